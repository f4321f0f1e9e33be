/* Processes: fork with private memory, pipes, wait, exec, signals, sockets, shared mappings, poll. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int caught;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)info, (void)context;
	caught += number;
}

static void pipes(void)
{
	int fd[2], status;
	char text[64];
	static int private = 1;
	if (pipe(fd))
		exit(90);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		private = 2;
		close(fd[0]);
		dprintf(fd[1], "child sees %d", private);
		_exit(7);
	}
	close(fd[1]);
	ssize_t n = read(fd[0], text, sizeof text);
	waitpid(child, &status, 0);
	printf("%.*s, parent %d, status %d, then %zd\n", (int)n, text, private, WEXITSTATUS(status), read(fd[0], text, 1));
}

static void signals(void)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
	raise(SIGUSR1);
	sigset_t set, old;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, &old);
	raise(SIGUSR1);
	int before = caught;
	sigprocmask(SIG_SETMASK, &old, NULL);
	printf("signals %d then %d\n", before, caught);
	signal(SIGPIPE, SIG_IGN);
	int fd[2];
	if (pipe(fd))
		exit(91);
	close(fd[0]);
	ssize_t n = write(fd[1], "x", 1);
	printf("broken pipe %zd %d\n", n, errno == EPIPE);
	fflush(stdout);
	pid_t child = fork();
	int status;
	if (child == 0)
		abort();
	waitpid(child, &status, 0);
	printf("aborted by %d\n", WTERMSIG(status));
}

static void sockets(void)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	char text[64];
	if (bind(listener, (struct sockaddr *)&address, len) || listen(listener, 4))
		exit(92);
	getsockname(listener, (struct sockaddr *)&address, &len);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&address, sizeof address))
			_exit(93);
		write(fd, "ping", 4);
		ssize_t n = read(fd, text, sizeof text);
		_exit(n == 4 && !memcmp(text, "pong", 4) ? 0 : 94);
	}
	int fd = accept(listener, NULL, NULL), status;
	struct pollfd poller = { .fd = fd, .events = POLLIN };
	int ready = poll(&poller, 1, 10000);
	ssize_t n = read(fd, text, sizeof text);
	write(fd, "pong", 4);
	waitpid(child, &status, 0);
	printf("socket %d %.*s %d\n", ready, (int)n, text, WEXITSTATUS(status));
}

static void memory(char **argv)
{
	int *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	fflush(stdout);
	if (fork() == 0) {
		shared[1024] = 42;
		_exit(0);
	}
	wait(&status);
	char *big = malloc(10 << 20);
	memset(big, 5, 10 << 20);
	long sum = 0;
	for (int i = 0; i < 10 << 20; i += 4096)
		sum += big[i];
	big = realloc(big, 20 << 20);
	printf("shared %d sum %ld kept %d\n", shared[1024], sum, big[(10 << 20) - 1]);
	free(big);
	fflush(stdout);
	if (fork() == 0) {
		execl(argv[0], argv[0], "again", NULL);
		_exit(95);
	}
	wait(&status);
	printf("exec %d\n", WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		printf("again: %s\n", argv[1]);
		return 23;
	}
	pipes();
	signals();
	sockets();
	memory(argv);
	struct timespec before, after, nap = { 0, 30000000 };
	clock_gettime(CLOCK_MONOTONIC, &before);
	nanosleep(&nap, NULL);
	clock_gettime(CLOCK_MONOTONIC, &after);
	long us = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
	printf("slept %s\n", us >= 30000 ? "enough" : "too little");
	return 0;
}
