/* Threads: a mutex-protected counter, atomics, a condition variable as a bounded queue. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 2000, QUEUE = 8 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long plain, queue[QUEUE], head, tail;
static atomic_long counted;

static void *count(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		pthread_mutex_lock(&lock);
		plain += (long)arg;
		pthread_mutex_unlock(&lock);
		atomic_fetch_add(&counted, 1);
	}
	return arg;
}

static void *produce(void *arg)
{
	for (long i = 1; i <= 500; i++) {
		pthread_mutex_lock(&lock);
		while (tail - head == QUEUE)
			pthread_cond_wait(&changed, &lock);
		queue[tail++ % QUEUE] = i;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	return arg;
}

int main(void)
{
	pthread_t t[THREADS];
	long sum = 0;
	for (long i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, count, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++) {
		void *result;
		pthread_join(t[i], &result);
		sum += (long)result;
	}
	printf("plain %ld counted %ld joined %ld\n", plain, counted, sum);
	pthread_create(&t[0], NULL, produce, NULL);
	sum = 0;
	for (int i = 0; i < 500; i++) {
		pthread_mutex_lock(&lock);
		while (head == tail)
			pthread_cond_wait(&changed, &lock);
		sum += queue[head++ % QUEUE];
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	pthread_join(t[0], NULL);
	printf("queued %ld\n", sum);
	return 0;
}
