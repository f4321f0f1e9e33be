/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the header promises, tried one by one; run by the tests. Prints "N promises kept".
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <towpath.h>

static int kept;

#define PROMISE(condition)                                                                      \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition);               \
            exit(1);                                                                            \
        }                                                                                       \
        kept++;                                                                                 \
    } while (0)

static struct tp *os;

static struct tp_result done(tp_token token)
{
    struct tp_result result;
    PROMISE(tp_wait(os, token, &result, 5ULL * 1000 * 1000 * 1000) == 0);
    PROMISE(result.token == token);
    return result;
}

static void handles(void)
{
    struct tp_config config = { .size = sizeof(config), .libos = "no such" };
    struct tp *other;
    struct tp_result result;
    PROMISE(tp_start(NULL, NULL) == -EINVAL);
    PROMISE(tp_start(&other, &config) == -EINVAL);
    PROMISE(strstr(tp_strerror(-EINVAL), "no such") != NULL);
    config.size = 1;
    PROMISE(tp_start(&other, &config) == -EINVAL);
    PROMISE(tp_socket(NULL, AF_INET, SOCK_STREAM, 0) == -EINVAL);
    PROMISE(tp_socket(os, 77, SOCK_STREAM, 0) == -EAFNOSUPPORT);
    PROMISE(tp_socket(os, AF_INET, SOCK_RAW, 0) == -ESOCKTNOSUPPORT);
    PROMISE(tp_close(os, -1) == -EBADF);
    PROMISE(tp_close(os, 12345) == -EBADF);
    PROMISE(tp_wait(os, 12345, &result, 0) == -EINVAL);
    PROMISE(tp_pop(os, 12345, NULL) == -EINVAL);
    PROMISE(strcmp(tp_strerror(0), "no error") == 0);
    PROMISE(strlen(tp_version()) > 0 && strncmp(tp_libos(os), "kernel", 6) == 0);
}

static void *from_another_thread(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)tp_queue(os);
}

static void threads(void)
{
    pthread_t thread;
    void *rc;
    PROMISE(pthread_create(&thread, NULL, from_another_thread, NULL) == 0);
    PROMISE(pthread_join(thread, &rc) == 0);
    PROMISE((int)(intptr_t)rc == -EPERM);
}

/* The program may free at once what it pushes; what was pushed arrives all the same. */
static void use_after_free(void)
{
    tp_token push, pop;
    int queue = tp_queue(os);
    PROMISE(queue >= 0);
    char *object = tp_malloc(os, 1000);
    PROMISE(object != NULL);
    memset(object, 'x', 1000);
    struct tp_sga sga = { .segments = 2, .segment = { { object, 10 }, { object + 500, 20 } } };
    PROMISE(tp_push(os, queue, &sga, &push) == 0);
    PROMISE(tp_free(os, object) == 0);
    PROMISE(tp_free(os, object) == -EINVAL);
    PROMISE(tp_free(os, object + 8) == -EINVAL);
    char *next = tp_malloc(os, 1000);
    PROMISE(next != NULL && next != object);
    memset(next, 'y', 1000);
    PROMISE(tp_pop(os, queue, &pop) == 0);
    PROMISE(done(push).op == TP_OP_PUSH);
    struct tp_result result = done(pop);
    PROMISE(result.op == TP_OP_POP && tp_sga_len(&result.sga) == 30);
    for (uint32_t i = 0; i < result.sga.segments; i++)
        for (size_t k = 0; k < result.sga.segment[i].len; k++)
            if (((char *)result.sga.segment[i].base)[k] != 'x') {
                fprintf(stderr, "the bytes changed on their way\n");
                exit(1);
            }
    PROMISE(tp_sga_free(os, &result.sga) == 0);
    PROMISE(tp_free(os, next) == 0);
    int on_the_stack = 0;
    struct tp_sga foreign = { .segments = 1, .segment = { { &on_the_stack, sizeof(on_the_stack) } } };
    PROMISE(tp_push(os, queue, &foreign, &push) == -EINVAL);
    foreign.segments = TP_SEGMENTS_MAX + 1;
    PROMISE(tp_push(os, queue, &foreign, &push) == -EINVAL);
    PROMISE(tp_close(os, queue) == 0);
}

static void arrays(void)
{
    struct tp_sga sga, copy;
    tp_token token;
    int queue = tp_queue(os);
    PROMISE(tp_sga_alloc(os, 100, &sga) == 0);
    PROMISE(tp_sga_len(&sga) == 100 && sga.segments == 1);
    PROMISE(tp_sga_writable(os, &sga) == 1);
    memset(sga.segment[0].base, 'a', 100);
    PROMISE(tp_sga_clone(os, &sga, &copy) == 0);
    PROMISE(copy.segment[0].base == sga.segment[0].base);
    PROMISE(tp_sga_writable(os, &sga) == 0);
    PROMISE(tp_sga_free(os, &copy) == 0);
    PROMISE(tp_sga_free(os, &copy) == 0);
    PROMISE(tp_sga_writable(os, &sga) == 1);
    /* A part of it. */
    sga.segment[0].base = (char *)sga.segment[0].base + 90;
    sga.segment[0].len = 10;
    PROMISE(tp_push(os, queue, &sga, &token) == 0);
    PROMISE(done(token).op == TP_OP_PUSH);
    sga.segment[0].len = 11;
    PROMISE(tp_push(os, queue, &sga, &token) == -EINVAL);
    PROMISE(tp_pop(os, queue, &token) == 0);
    struct tp_result result = done(token);
    PROMISE(tp_sga_len(&result.sga) == 10);
    PROMISE(tp_sga_free(os, &result.sga) == 0);
    PROMISE(tp_sga_free(os, &sga) == 0);
    PROMISE(tp_close(os, queue) == 0);
}

static void tokens(void)
{
    struct tp_result result, results[3];
    struct tp_waitset *set;
    tp_token pops[3], push;
    size_t index = 99;
    struct tp_sga sga;
    int queues[3];
    for (int i = 0; i < 3; i++) {
        queues[i] = tp_queue(os);
        PROMISE(tp_pop(os, queues[i], &pops[i]) == 0);
    }
    PROMISE(tp_wait(os, pops[0], &result, 1000000) == -ETIMEDOUT);
    PROMISE(tp_wait_all(os, pops, 3, results, 1000000) == -ETIMEDOUT);
    PROMISE(tp_sga_alloc(os, 4, &sga) == 0);
    PROMISE(tp_push(os, queues[1], &sga, &push) == 0);
    PROMISE(tp_wait_any(os, pops, 3, &index, &result, TP_FOREVER) == 0);
    PROMISE(index == 1 && result.qd == queues[1]);
    PROMISE(tp_sga_free(os, &result.sga) == 0);
    PROMISE(tp_wait(os, pops[1], &result, 0) == -EINVAL);
    PROMISE(done(push).error == 0);
    PROMISE(tp_waitset_create(os, &set) == 0);
    PROMISE(tp_waitset_wait(set, &result, 0) == -EOPNOTSUPP);
    PROMISE(tp_waitset_add(set, pops[0]) == 0);
    PROMISE(tp_waitset_add(set, pops[0]) == -EBUSY);
    PROMISE(tp_waitset_add(set, pops[2]) == 0);
    PROMISE(tp_waitset_remove(set, pops[2]) == 0);
    PROMISE(tp_close(os, queues[0]) == 0);
    PROMISE(tp_waitset_wait(set, &result, TP_FOREVER) == 0);
    PROMISE(result.token == pops[0] && result.error == -ECANCELED && result.op == TP_OP_FAILED);
    PROMISE(tp_waitset_destroy(set) == 0);
    PROMISE(tp_close(os, queues[2]) == 0);
    result = done(pops[2]);
    PROMISE(result.error == -ECANCELED);
    PROMISE(tp_sga_free(os, &sga) == 0);
    PROMISE(tp_close(os, queues[1]) == 0);
}

static void files(void)
{
    char path[] = "/tmp/towpath-promises-XXXXXX";
    tp_token token;
    struct tp_sga sga;
    int fd = mkstemp(path);
    PROMISE(fd >= 0);
    close(fd);
    int file = tp_open(os, path, O_RDWR | O_TRUNC, 0);
    PROMISE(file >= 0);
    PROMISE(tp_sga_alloc(os, 5, &sga) == 0);
    memcpy(sga.segment[0].base, "hello", 5);
    PROMISE(tp_push_sync(os, file, &sga, &token) == 0);
    PROMISE(done(token).error == 0);
    PROMISE(tp_sync(os, file, &token) == 0);
    PROMISE(done(token).op == TP_OP_SYNC);
    PROMISE(tp_lseek(os, file, 1, SEEK_SET) == 1);
    PROMISE(tp_pop(os, file, &token) == 0);
    struct tp_result result = done(token);
    PROMISE(tp_sga_len(&result.sga) == 4 && memcmp(result.sga.segment[0].base, "ello", 4) == 0);
    PROMISE(tp_sga_free(os, &result.sga) == 0);
    PROMISE(tp_truncate(os, file, 2) == 0);
    PROMISE(tp_lseek(os, file, 0, SEEK_END) == 2);
    PROMISE(tp_lseek(os, file, 0, 99) == -EINVAL);
    PROMISE(tp_close(os, file) == 0);
    PROMISE(tp_open(os, "/no/such/file", O_RDONLY, 0) == -ENOENT);
    PROMISE(strstr(tp_strerror(-ENOENT), "/no/such/file") != NULL);
    PROMISE(tp_sga_free(os, &sga) == 0);
    PROMISE(unlink(path) == 0);
}

static void datagrams(void)
{
    struct sockaddr_storage addr, from;
    socklen_t len, from_len = sizeof(from);
    tp_token token, pop;
    struct tp_sga sga;
    PROMISE(tp_address("nonsense", &addr, &len) < 0);
    PROMISE(tp_address("127.0.0.1:0", &addr, &len) == 0);
    int a = tp_socket(os, AF_INET, SOCK_DGRAM, 0), b = tp_socket(os, AF_INET, SOCK_DGRAM, 0);
    PROMISE(tp_bind(os, a, (struct sockaddr *)&addr, len) == 0);
    PROMISE(tp_bind(os, b, (struct sockaddr *)&addr, len) == 0);
    PROMISE(tp_bind(os, b, (struct sockaddr *)&addr, 3) == -EINVAL);
    PROMISE(tp_getsockname(os, a, (struct sockaddr *)&from, &from_len) == 0);
    PROMISE(from_len == sizeof(struct sockaddr_in));
    PROMISE(tp_pop(os, a, &pop) == 0);
    PROMISE(tp_sga_alloc(os, 7, &sga) == 0);
    PROMISE(tp_pushto(os, b, &sga, (struct sockaddr *)&from, from_len, &token) == 0);
    PROMISE(done(token).error == 0);
    struct tp_result result = done(pop);
    PROMISE(result.op == TP_OP_POP && tp_sga_len(&result.sga) == 7 && result.addr_len == sizeof(struct sockaddr_in));
    PROMISE(tp_sga_free(os, &result.sga) == 0);
    PROMISE(tp_sga_free(os, &sga) == 0);
    PROMISE(tp_close(os, a) == 0 && tp_close(os, b) == 0);
}

static void options(void)
{
    struct sockaddr_storage addr;
    socklen_t len;
    tp_token token, accepted;
    PROMISE(tp_address("127.0.0.1:0", &addr, &len) == 0);
    int listener = tp_socket(os, AF_INET, SOCK_STREAM, 0), client = tp_socket(os, AF_INET, SOCK_STREAM, 0);
    PROMISE(tp_bind(os, listener, (struct sockaddr *)&addr, len) == 0);
    PROMISE(tp_listen(os, listener, 1) == 0);
    PROMISE(tp_getsockname(os, listener, (struct sockaddr *)&addr, &len) == 0);
    PROMISE(tp_accept(os, listener, &accepted) == 0);
    PROMISE(tp_connect(os, client, (struct sockaddr *)&addr, len, &token) == 0);
    PROMISE(done(token).op == TP_OP_CONNECT);
    struct tp_result result = done(accepted);
    PROMISE(result.op == TP_OP_ACCEPT && result.accepted_qd >= 0 && result.addr_len > 0);
    PROMISE(tp_set_nodelay(os, client, 0) == 0);
    PROMISE(tp_set_keepalive(os, client, 30) == 0);
    PROMISE(tp_set_linger(os, client, 1) == 0 && tp_set_linger(os, client, -1) == 0);
    PROMISE(tp_getpeername(os, client, (struct sockaddr *)&addr, &len) == 0);
    PROMISE(tp_shutdown(os, client, 99) == -EINVAL);
    PROMISE(tp_shutdown(os, client, SHUT_WR) == 0);
    PROMISE(tp_pop(os, result.accepted_qd, &token) == 0);
    struct tp_result end = done(token);
    PROMISE(end.op == TP_OP_POP && tp_sga_len(&end.sga) == 0);
    PROMISE(tp_close(os, result.accepted_qd) == 0 && tp_close(os, client) == 0 && tp_close(os, listener) == 0);
    PROMISE(tp_set_waiting(os, "block") == 0 && tp_set_waiting(os, "never") == -EINVAL);
}

int main(void)
{
    struct tp_stats stats;
    PROMISE(tp_start(&os, NULL) == 0);
    handles();
    threads();
    use_after_free();
    arrays();
    tokens();
    files();
    datagrams();
    options();
    PROMISE(tp_get_stats(os, &stats) == 0 && stats.pushes > 0 && stats.queues == 0);
    PROMISE(tp_stop(os) == 0);
    printf("%d promises kept\n", kept);
    return 0;
}
