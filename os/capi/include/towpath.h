/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * towpath.h: PDPIX, the queue API of Towpath, for C.
 *
 * A runtime (struct tp) belongs to the thread that started it; every call on it from another thread is -EPERM.
 * Queues are named by descriptors (int, never negative), operations by tokens. push, pop, accept and connect start an
 * operation and name it; tp_wait and its kin take the result, once.
 *
 * Every function that returns int returns 0 or a value that is not negative on success, and a negative errno on
 * failure; tp_strerror says what was tried and what to do. Nothing changes when a call fails.
 *
 * Memory: the bytes of a scatter-gather array that is pushed must come from tp_sga_alloc, tp_malloc or a pop. They may
 * be freed at any time, also while a push of them is under way: they are reused only when nothing refers to them any
 * more. They may be written only while tp_sga_writable says so.
 */
#ifndef TOWPATH_H
#define TOWPATH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A runtime, a wait set, the hold on a buffer: opaque. */
struct tp;
struct tp_waitset;
struct tp_hold;

/* Names one operation until its result is taken. */
typedef uint64_t tp_token;

/* Segments an array can have. */
#define TP_SEGMENTS_MAX 16
/* Wait without limit. */
#define TP_FOREVER UINT64_MAX

/* One run of bytes. */
struct tp_segment {
    void *base;
    size_t len;
};

/*
 * A scatter-gather array. tp_sga_alloc and results fill it in; a program may also fill it in itself, with hold NULL and
 * segments inside memory of tp_malloc. Where hold is not NULL the segments may be shortened and moved within the bytes
 * they had, and tp_sga_free must be called once.
 */
struct tp_sga {
    uint32_t segments;
    uint32_t reserved;
    struct tp_segment segment[TP_SEGMENTS_MAX];
    struct tp_hold *hold;
};

/* What a runtime is started with; zero or NULL is the default. */
struct tp_config {
    size_t size;              /* sizeof(struct tp_config) */
    const char *libos;        /* "kernel", "kernel@uring", "kernel@syscalls" */
    const char *waiting;      /* "spin", "adaptive", "block" */
    uint64_t memory_max;      /* bytes of heap */
    uint32_t queues_max;      /* queues open at once */
    uint32_t operations_max;  /* operations pending at once */
};

/* What an operation was. */
enum tp_op {
    TP_OP_FAILED = 0, /* see error */
    TP_OP_PUSH = 1,
    TP_OP_POP = 2,
    TP_OP_ACCEPT = 3,
    TP_OP_CONNECT = 4,
    TP_OP_SYNC = 5,
};

/* The result of an operation. Of a pop the caller owns sga and frees it; a stream that has ended gives an empty one. */
struct tp_result {
    tp_token token;
    int qd;                        /* the queue it was started on */
    int op;                        /* enum tp_op */
    int error;                     /* 0 or a negative errno; -ECANCELED if the queue was closed */
    int accepted_qd;               /* of an accept: the new queue, which the caller closes; else -1 */
    struct tp_sga sga;             /* of a pop */
    struct sockaddr_storage addr;  /* of an accept: the peer; of a datagram: its sender */
    socklen_t addr_len;            /* 0 if there is none */
};

/* What a runtime has done so far. */
struct tp_stats {
    uint64_t pushes;
    uint64_t pops;
    uint64_t immediate;
    uint64_t accepted;
    uint64_t queues;
    uint64_t sleeps;
    uint64_t copied_bytes;
};

/* Runtime. */
int tp_start(struct tp **os, const struct tp_config *config);
int tp_stop(struct tp *os);
const char *tp_libos(struct tp *os);
const char *tp_version(void);
const char *tp_strerror(int error);
int tp_set_waiting(struct tp *os, const char *waiting);
int tp_get_stats(struct tp *os, struct tp_stats *stats);

/* Queues. */
int tp_socket(struct tp *os, int domain, int type, int protocol);
int tp_bind(struct tp *os, int qd, const struct sockaddr *addr, socklen_t len);
int tp_listen(struct tp *os, int qd, int backlog);
int tp_accept(struct tp *os, int qd, tp_token *token);
int tp_connect(struct tp *os, int qd, const struct sockaddr *addr, socklen_t len, tp_token *token);
int tp_close(struct tp *os, int qd);
int tp_shutdown(struct tp *os, int qd, int how);
int tp_queue(struct tp *os);
int tp_getsockname(struct tp *os, int qd, struct sockaddr *addr, socklen_t *len);
int tp_getpeername(struct tp *os, int qd, struct sockaddr *addr, socklen_t *len);
int tp_address(const char *text, struct sockaddr_storage *addr, socklen_t *len);
int tp_set_nodelay(struct tp *os, int qd, int on);
int tp_set_keepalive(struct tp *os, int qd, unsigned int seconds);
int tp_set_linger(struct tp *os, int qd, int seconds);

/* Files. */
int tp_open(struct tp *os, const char *path, int flags, mode_t mode);
int tp_creat(struct tp *os, const char *path, mode_t mode);
int64_t tp_lseek(struct tp *os, int qd, int64_t offset, int whence);
int tp_truncate(struct tp *os, int qd, uint64_t len);
int tp_sync(struct tp *os, int qd, tp_token *token);

/* Data. */
int tp_push(struct tp *os, int qd, const struct tp_sga *sga, tp_token *token);
int tp_pushto(struct tp *os, int qd, const struct tp_sga *sga, const struct sockaddr *addr, socklen_t len, tp_token *token);
int tp_push_sync(struct tp *os, int qd, const struct tp_sga *sga, tp_token *token);
int tp_pop(struct tp *os, int qd, tp_token *token);

/* Waiting. */
int tp_wait(struct tp *os, tp_token token, struct tp_result *result, uint64_t timeout_ns);
int tp_wait_any(struct tp *os, const tp_token *tokens, size_t count, size_t *index, struct tp_result *result, uint64_t timeout_ns);
int tp_wait_all(struct tp *os, const tp_token *tokens, size_t count, struct tp_result *results, uint64_t timeout_ns);
int tp_waitset_create(struct tp *os, struct tp_waitset **set);
int tp_waitset_add(struct tp_waitset *set, tp_token token);
int tp_waitset_remove(struct tp_waitset *set, tp_token token);
int tp_waitset_wait(struct tp_waitset *set, struct tp_result *result, uint64_t timeout_ns);
int tp_waitset_destroy(struct tp_waitset *set);

/* Memory. */
int tp_sga_alloc(struct tp *os, size_t len, struct tp_sga *sga);
int tp_sga_free(struct tp *os, struct tp_sga *sga);
int tp_sga_clone(struct tp *os, const struct tp_sga *sga, struct tp_sga *copy);
int tp_sga_writable(struct tp *os, const struct tp_sga *sga);
size_t tp_sga_len(const struct tp_sga *sga);
void *tp_malloc(struct tp *os, size_t len);
int tp_free(struct tp *os, void *ptr);

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_H */
