/* The smallest program with a C library: arguments, floating point, an exit status. */
#include <stdio.h>

int main(int argc, char **argv)
{
	printf("hello, %s: %d arguments, %.3f\n", argc > 1 ? argv[1] : "nobody", argc, 2.0 / 3.0 * argc);
	return argc;
}
