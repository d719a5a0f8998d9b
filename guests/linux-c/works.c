/*
 * Work in the manner of MiBench's automotive set in a Linux program, as guests/src/kernels.rs has it on bare metal: what sorts, what smooths a
 * picture, what counts bits, what computes, small and large. As /init, each is done once uncounted, then between the marks of its figure, from
 * FIGURE on in the order of `WORKS`. It begins when the kernel's clock says START_MS, so that others on the board can wait for that.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/reboot.h>
#include <time.h>
#include <unistd.h>

#define START_MS 1500
#define FIGURE 11
#define WORDS (1 << 18)

static uint64_t data[WORDS];

/* What a plugin watches for (guests/src/marks.rs). */
void mark_begin(uint64_t id);
void mark_end(uint64_t id);
__asm__(".text\n"
	".global mark_begin\n.type mark_begin, %function\n"
	"mark_begin:\n\tnop\n\tret\n"
	".size mark_begin, . - mark_begin\n"
	".global mark_end\n.type mark_end, %function\n"
	"mark_end:\n\tnop\n\tnop\n\tret\n"
	".size mark_end, . - mark_end\n");

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static int by_distance(const void *a, const void *b)
{
	uint64_t one = ((const uint64_t *)a)[3], other = ((const uint64_t *)b)[3];

	return (one > other) - (one < other);
}

/* Sorts so many points of three coordinates by their distance, by the library's function. */
static uint64_t sort(uint64_t points)
{
	uint64_t state = 0x2545f4914f6cdd1d;

	for (uint64_t point = 0; point < points; point++) {
		uint64_t *of = data + 4 * point;

		of[3] = 0;
		for (int axis = 0; axis < 3; axis++) {
			of[axis] = next(&state) & 0xffff;
			of[3] += of[axis] * of[axis];
		}
	}
	qsort(data, points, 4 * sizeof(*data), by_distance);
	for (uint64_t point = 1; point < points; point++)
		if (data[4 * point - 1] > data[4 * point + 3])
			return 0;
	return data[4 * (points / 2) + 3];
}

/* Smooths a picture, three quarters as high as wide: a pixel becomes the mean of its neighbours, those of like brightness counting most. */
static uint64_t smooth(uint64_t width)
{
	uint64_t height = width / 4 * 3, state = 0x9e3779b97f4a7c15, sum = 0;
	uint8_t *picture = (uint8_t *)data, *smoothed = picture + width * height;
	uint16_t *weights = (uint16_t *)(smoothed + width * height);

	for (uint64_t pixel = 0; pixel < width * height; pixel++)
		picture[pixel] = next(&state);
	for (int difference = 0; difference < 256; difference++)
		weights[difference] = 1024 / (1 + difference * difference / 400);
	for (uint64_t y = 2; y < height - 2; y++)
		for (uint64_t x = 2; x < width - 2; x++) {
			uint64_t total = 0, weight = 0;

			for (uint64_t row = y - 2; row <= y + 2; row++)
				for (uint64_t column = x - 2; column <= x + 2; column++) {
					int there = picture[row * width + column];
					int counts = weights[abs(there - picture[y * width + x])];

					total += counts * there;
					weight += counts;
				}
			smoothed[y * width + x] = total / weight;
			sum += total / weight;
		}
	return sum;
}

/* Counts the bits of so many numbers in four ways. */
static uint64_t count_bits(uint64_t numbers)
{
	uint64_t number = 1, sum = 0;

	for (int byte = 0; byte < 256; byte++)
		data[byte] = __builtin_popcount(byte);
	for (; numbers; numbers--) {
		number = number * 6364136223846793005 + 13;
		for (uint64_t rest = number; rest; rest &= rest - 1)
			sum++;
		for (int byte = 0; byte < 8; byte++)
			sum += data[number >> 8 * byte & 0xff];
		for (int bit = 0; bit < 64; bit++)
			sum += number >> bit & 1;
		sum += __builtin_popcountll(number);
	}
	return sum;
}

static uint64_t root(uint64_t of, int power)
{
	uint64_t found = 0;

	for (int bit = 64 / power - 1; bit >= 0; bit--) {
		uint64_t try = found | 1ull << bit;
		unsigned __int128 value = (unsigned __int128)try * try;

		if (power == 3 && value <= of)
			value *= try;
		if (value <= of)
			found = try;
	}
	return found;
}

/* Square roots, roots of cubics and angles, in whole numbers, into a table. */
static uint64_t compute(uint64_t numbers)
{
	uint64_t sum = 0;

	for (uint64_t number = 0; number < numbers; number++) {
		uint64_t square = root(number * 0x9e3779b97f4a7c15, 2);
		uint64_t cubic = root(number * 0xd1342543de82ef95, 3);

		data[number % (WORDS / 4)] = square ^ cubic << 32;
		sum += square + cubic + number % 360 * 205887 / 180;
	}
	return sum;
}

static const struct {
	const char *name;
	uint64_t (*work)(uint64_t);
	uint64_t size;
} WORKS[] = {
	{"qsort-small", sort, 1500},
	{"qsort-large", sort, 12000},
	{"susan-small", smooth, 64},
	{"susan-large", smooth, 192},
	{"bitcount-small", count_bits, 1000},
	{"bitcount-large", count_bits, 10000},
	{"basicmath-small", compute, 500},
	{"basicmath-large", compute, 4000},
};

int main(void)
{
	struct timespec start = {START_MS / 1000, START_MS % 1000 * 1000000};
	int failed = 0;

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL);
	/* The model begins with what it sees here. */
	mark_begin(0);
	mark_end(0);
	for (uint64_t n = 0; n < sizeof(WORKS) / sizeof(*WORKS); n++) {
		uint64_t first = WORKS[n].work(WORKS[n].size), result;

		mark_begin(FIGURE + n);
		result = WORKS[n].work(WORKS[n].size);
		mark_end(FIGURE + n);
		if (!result || result != first) {
			printf("works: FAIL %s\n", WORKS[n].name);
			failed = 1;
		}
	}
	if (!failed)
		printf("works: DONE\n");
	fflush(stdout);
	if (getpid() == 1)
		reboot(RB_POWER_OFF);
	return failed;
}
