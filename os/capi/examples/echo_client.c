/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An echo client in C: sends messages one after the other and checks that each comes back.
 *
 *   echo_client ADDRESS [COUNT [SIZE]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath.h>

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "echo_client: %s: %s\n", what, tp_strerror(rc));
        exit(1);
    }
}

static struct tp_result wait_for(struct tp *os, tp_token token, const char *what)
{
    struct tp_result result;
    check(tp_wait(os, token, &result, 10ULL * 1000 * 1000 * 1000), what);
    check(result.error, what);
    return result;
}

/* Compares what came with the message from `at` on; how much came. */
static size_t compare(const struct tp_sga *sga, const unsigned char *message, size_t at, size_t size)
{
    size_t got = 0;
    for (uint32_t i = 0; i < sga->segments; i++) {
        size_t n = sga->segment[i].len;
        if (at + got + n > size || memcmp(sga->segment[i].base, message + at + got, n) != 0) {
            fprintf(stderr, "echo_client: what came back is not what was sent\n");
            exit(1);
        }
        got += n;
    }
    return got;
}

int main(int argc, char **argv)
{
    struct tp *os;
    struct sockaddr_storage addr;
    socklen_t len;
    tp_token token;
    long count = argc > 2 ? atol(argv[2]) : 1000;
    size_t size = argc > 3 ? (size_t)atol(argv[3]) : 64;

    if (argc < 2 || count <= 0 || size == 0) {
        fprintf(stderr, "usage: echo_client ADDRESS [COUNT [SIZE]]\n");
        return 2;
    }
    check(tp_start(&os, NULL), "start");
    check(tp_address(argv[1], &addr, &len), argv[1]);
    int qd = tp_socket(os, addr.ss_family, SOCK_STREAM, 0);
    check(qd, "socket");
    check(tp_connect(os, qd, (struct sockaddr *)&addr, len, &token), "connect");
    wait_for(os, token, argv[1]);

    for (long i = 0; i < count; i++) {
        struct tp_sga message;
        size_t got = 0;
        check(tp_sga_alloc(os, size, &message), "alloc");
        unsigned char *bytes = message.segment[0].base;
        for (size_t k = 0; k < size; k++)
            bytes[k] = (unsigned char)(i + (long)k);
        check(tp_push(os, qd, &message, &token), "push");
        wait_for(os, token, "push");
        while (got < size) {
            check(tp_pop(os, qd, &token), "pop");
            struct tp_result result = wait_for(os, token, "pop");
            size_t n = compare(&result.sga, bytes, got, size);
            if (n == 0) {
                fprintf(stderr, "echo_client: the server closed the connection\n");
                return 1;
            }
            got += n;
            check(tp_sga_free(os, &result.sga), "free");
        }
        check(tp_sga_free(os, &message), "free");
    }
    check(tp_close(os, qd), "close");
    check(tp_stop(os), "stop");
    printf("%ld messages of %zu bytes came back\n", count, size);
    return 0;
}
