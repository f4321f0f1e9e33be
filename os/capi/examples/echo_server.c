/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An echo server in C: one wait set for the listener and every connection.
 *
 *   echo_server ADDRESS [CONNECTIONS]
 *
 * ADDRESS is "127.0.0.1:7007", "[::1]:7007" or "unix:/path"; port 0 takes a free one. Prints where it listens. Ends after
 * CONNECTIONS connections have ended, if that is given.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <towpath.h>

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "echo_server: %s: %s\n", what, tp_strerror(rc));
        exit(1);
    }
}

static void say_where(struct tp *os, int listener)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);
    char text[INET6_ADDRSTRLEN] = "";
    check(tp_getsockname(os, listener, (struct sockaddr *)&addr, &len), "getsockname");
    if (addr.ss_family == AF_INET) {
        struct sockaddr_in *in = (struct sockaddr_in *)&addr;
        printf("listening on %s:%d\n", inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text)), ntohs(in->sin_port));
    } else if (addr.ss_family == AF_INET6) {
        struct sockaddr_in6 *in = (struct sockaddr_in6 *)&addr;
        printf("listening on [%s]:%d\n", inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof(text)), ntohs(in->sin6_port));
    } else {
        printf("listening\n");
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct tp *os;
    struct tp_waitset *set;
    struct tp_result result;
    struct sockaddr_storage addr;
    socklen_t len;
    tp_token token;
    long left = argc > 2 ? atol(argv[2]) : -1;

    if (argc < 2) {
        fprintf(stderr, "usage: echo_server ADDRESS [CONNECTIONS]\n");
        return 2;
    }
    check(tp_start(&os, NULL), "start");
    check(tp_waitset_create(os, &set), "wait set");
    check(tp_address(argv[1], &addr, &len), argv[1]);
    int listener = tp_socket(os, addr.ss_family, SOCK_STREAM, 0);
    check(listener, "socket");
    check(tp_bind(os, listener, (struct sockaddr *)&addr, len), "bind");
    check(tp_listen(os, listener, 128), "listen");
    say_where(os, listener);
    check(tp_accept(os, listener, &token), "accept");
    check(tp_waitset_add(set, token), "wait set");

    while (left != 0) {
        check(tp_waitset_wait(set, &result, TP_FOREVER), "wait");
        switch (result.op) {
        case TP_OP_ACCEPT:
            check(tp_pop(os, result.accepted_qd, &token), "pop");
            check(tp_waitset_add(set, token), "wait set");
            check(tp_accept(os, listener, &token), "accept");
            break;
        case TP_OP_POP:
            if (tp_sga_len(&result.sga) == 0) {
                check(tp_close(os, result.qd), "close");
                left -= left > 0;
                continue;
            }
            /* The bytes go back as they came, without a copy; freeing them at once is safe. */
            if (tp_push(os, result.qd, &result.sga, &token) < 0) {
                tp_sga_free(os, &result.sga);
                check(tp_close(os, result.qd), "close");
                left -= left > 0;
                continue;
            }
            check(tp_sga_free(os, &result.sga), "free");
            break;
        case TP_OP_PUSH:
            check(tp_pop(os, result.qd, &token), "pop");
            break;
        default:
            /* A connection broke; the listener never fails but by our own fault. */
            if (result.qd == listener)
                check(result.error, "accept");
            check(tp_close(os, result.qd), "close");
            left -= left > 0;
            continue;
        }
        check(tp_waitset_add(set, token), "wait set");
    }
    check(tp_close(os, listener), "close");
    check(tp_waitset_destroy(set), "wait set");
    check(tp_stop(os), "stop");
    return 0;
}
