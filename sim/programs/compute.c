/* Plain computation over many instructions: sorting, checksums, matrices, strings, with a digest at the end. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t crc(const unsigned char *bytes, size_t len)
{
	uint32_t c = ~0u;
	while (len--) {
		c ^= *bytes++;
		for (int i = 0; i < 8; i++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
	}
	return ~c;
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	static uint32_t numbers[20000];
	static double m[48][48], n[48][48], p[48][48];
	uint32_t seed = 1, digest = 0;
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < 20000; i++)
			numbers[i] = seed = seed * 1664525 + 1013904223;
		qsort(numbers, 20000, sizeof *numbers, by_value);
		digest ^= crc((unsigned char *)numbers, sizeof numbers);
		for (int i = 0; i < 48; i++)
			for (int j = 0; j < 48; j++) {
				m[i][j] = sin(i * j + round);
				n[i][j] = sqrt(i + j) / (1 + i);
				p[i][j] = 0;
			}
		for (int i = 0; i < 48; i++)
			for (int j = 0; j < 48; j++)
				for (int k = 0; k < 48; k++)
					p[i][j] += m[i][k] * n[k][j];
		digest ^= crc((unsigned char *)p, sizeof p);
		char text[256] = "";
		for (int i = 0; i < 30; i++)
			snprintf(text + strlen(text), sizeof text - strlen(text), "%d:%g ", i, p[i][i]);
		digest ^= crc((unsigned char *)text, strlen(text));
	}
	printf("digest %08x\n", digest);
	return 0;
}
