/* Exercises the malloc family from several threads that free each other's objects, with forks meanwhile. Every object
 * is filled with a pattern of its address and length and checked before it is freed. Exit status 0 if all held. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "failed: %s, line %d\n", #x, __LINE__); _exit(1); } } while (0)
#define SLOTS 512

struct object { size_t len; unsigned char seed; };
static _Atomic(struct object *) slots[SLOTS];

static struct object *make(uint64_t *rng) {
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    uint64_t r = *rng >> 20;
    size_t len = sizeof(struct object) + (r % 100 < 90 ? r % 700 : r % 1000 < 998 ? r % 70000 : r % (6 << 20));
    void *p = 0;
    switch (r >> 33 & 7) {
    case 0: CHECK(posix_memalign(&p, 64, len) == 0 && (uintptr_t)p % 64 == 0); break;
    case 1: p = calloc(1, len); CHECK(p); for (size_t i = 0; i < len; i++) CHECK(((char *)p)[i] == 0); break;
    case 2: p = malloc(len / 2 + sizeof(struct object)); CHECK(p); p = realloc(p, len); break;
    case 3: p = memalign(4096, len); CHECK((uintptr_t)p % 4096 == 0); break;
    default: p = malloc(len);
    }
    CHECK(p && (uintptr_t)p % 16 == 0 && malloc_usable_size(p) >= len);
    struct object *o = p;
    o->len = len;
    o->seed = (unsigned char)((uintptr_t)p >> 4);
    memset(o + 1, o->seed, len - sizeof *o);
    return o;
}

static void destroy(struct object *o) {
    if (!o) return;
    unsigned char *bytes = (unsigned char *)(o + 1);
    CHECK(o->seed == (unsigned char)((uintptr_t)o >> 4));
    for (size_t i = 0; i < o->len - sizeof *o; i += 97) CHECK(bytes[i] == o->seed);
    o->seed++;
    errno = 77;
    free(o);
    CHECK(errno == 77);
}

static void *work(void *arg) {
    uint64_t rng = (uintptr_t)arg * 7919 + 1;
    int rounds = atoi(getenv("ROUNDS") ? getenv("ROUNDS") : "20000");
    for (int i = 0; i < rounds; i++) {
        struct object *o = make(&rng);
        destroy(atomic_exchange(&slots[(rng >> 40) % SLOTS], o));
    }
    return 0;
}

static void *brief(void *arg) {
    uint64_t rng = (uintptr_t)arg;
    destroy(atomic_exchange(&slots[(uintptr_t)arg % SLOTS], make(&rng)));
    return 0;
}

static void refusals(void) {
    CHECK(malloc((size_t)-1 / 2) == 0 && errno == ENOMEM);
    errno = 0;
    volatile size_t many = (size_t)-1 / 2;
    CHECK(calloc(many, 4) == 0 && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(0, many, 4) == 0 && errno == ENOMEM);
    void *p = 0;
    CHECK(posix_memalign(&p, 24, 8) == EINVAL && posix_memalign(&p, 8192, 100) == 0 && (uintptr_t)p % 8192 == 0);
    free(p);
    p = aligned_alloc(1 << 22, 100);
    CHECK(p && (uintptr_t)p % (1 << 22) == 0);
    free(p);
    p = malloc(0);
    void *q = malloc(0);
    CHECK(p && q && p != q);
    free(p);
    free(q);
    free(0);
    char *big = malloc(9 << 20);
    memset(big, 5, 9 << 20);
    big = realloc(big, 20 << 20);
    CHECK(big && big[0] == 5 && big[(9 << 20) - 1] == 5);
    big = realloc(big, 100);
    CHECK(big && big[99] == 5);
    free(big);
    CHECK((uintptr_t)valloc(1) % 4096 == 0 && malloc_usable_size(pvalloc(1)) >= 4096);
}

/* Each line on standard error is one refusal that the test counts. */
static int misuses(void) {
    char *p = malloc(100), *q = malloc(100);
    int local;
    void *volatile where = &local;
    free(p);
    void *volatile again = p;
    free(again);
    void *volatile inside = q + 16;
    free(inside);
    free(where);
    memset(q, 1, 100);
    free(q);
    char *fresh[64];
    for (int i = 0; i < 64; i++) {
        fresh[i] = malloc(100);
        for (int k = 0; k < i; k++) CHECK(fresh[k] != fresh[i]);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "misuse")) return misuses();
    refusals();
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], 0, work, (void *)(i + 1)) == 0);
    for (long i = 0; i < 30; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            uint64_t rng = i + 99;
            for (int k = 0; k < 200; k++) destroy(make(&rng));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        pthread_t t;
        CHECK(pthread_create(&t, 0, brief, (void *)(i + 7)) == 0 && pthread_join(t, 0) == 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < SLOTS; i++) destroy(atomic_exchange(&slots[i], 0));
    puts("all held");
    return 0;
}
