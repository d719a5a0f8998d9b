/*
 * A program for debuggers and profilers: calls `step` as often as its argument says. Whoever counts its instructions finds as many more for each
 * call.
 */
#include <stdlib.h>

volatile long count;

__attribute__((noinline)) void step(long n)
{
	count = n;
}

int main(int argc, char **argv)
{
	long calls = argc > 1 ? atol(argv[1]) : 0;

	for (long n = 1; n <= calls; n++)
		step(n);
	return count != calls;
}
