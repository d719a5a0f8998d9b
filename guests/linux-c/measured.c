/* Claim: performance counters work in a stock Linux: they count what a program does in user space and in the kernel apart, several at once,
 * on every CPU that it runs on, and an overflow brings a sample. It asks the kernel as perf does. `measured N`: with N counters at once. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 8
#define TURNS 2000000
#define CALLS 2000
/* Long: Linux turns counters off for a while if samples take too much of its time. */
#define PERIOD 1000000

static int failed;
static volatile sig_atomic_t samples;

static void check(int holds, const char *what, long long seen)
{
	if (holds)
		return;
	failed = 1;
	printf("measured: FAIL %s: %lld (%s)\n", what, seen, strerror(errno));
}

static int open_counter(uint64_t event, int user, int kernel, uint64_t period, int leader)
{
	struct perf_event_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.type = PERF_TYPE_HARDWARE;
	attr.size = sizeof(attr);
	attr.config = event;
	attr.disabled = leader < 0;
	attr.exclude_user = !user;
	attr.exclude_kernel = !kernel;
	attr.exclude_hv = 1;
	attr.sample_period = period;
	attr.wakeup_events = period ? 1 : 0;
	return syscall(SYS_perf_event_open, &attr, 0, -1, leader, 0);
}

static long long value(int counter)
{
	uint64_t words = 0;

	if (read(counter, &words, sizeof(words)) != sizeof(words))
		return -1;
	return words;
}

/* A loop of two instructions. */
static void loop(unsigned long turns)
{
	__asm__ volatile("1: subs %0, %0, #1\n\tb.ne 1b" : "+r"(turns) : : "cc");
}

static long long over(int counter, void (*work)(void))
{
	ioctl(counter, PERF_EVENT_IOC_RESET, 0);
	ioctl(counter, PERF_EVENT_IOC_ENABLE, 0);
	work();
	ioctl(counter, PERF_EVENT_IOC_DISABLE, 0);
	return value(counter);
}

static void run_loop(void)
{
	loop(TURNS);
}

static void run_calls(void)
{
	for (int n = 0; n < CALLS; n++)
		syscall(SYS_getppid);
}

static void on_sample(int number)
{
	(void)number;
	samples++;
}

/* User space and the kernel, apart and together. */
static void levels(void)
{
	int user = open_counter(PERF_COUNT_HW_INSTRUCTIONS, 1, 0, 0, -1);
	int kernel = open_counter(PERF_COUNT_HW_INSTRUCTIONS, 0, 1, 0, -1);
	long long seen;

	check(user >= 0 && kernel >= 0, "no counter", user);
	seen = over(user, run_loop);
	check(seen >= 2 * TURNS && seen < 2 * TURNS + 2000, "instructions of a loop", seen);
	seen = over(user, run_calls);
	check(seen >= 4 * CALLS && seen < 60 * CALLS, "instructions around calls", seen);
	seen = over(kernel, run_calls);
	check(seen >= 50 * CALLS && seen < 2000 * CALLS, "instructions of calls", seen);
	close(user);
	close(kernel);
}

/* Several at once. */
static void group(int wanted)
{
	int counters[MOST], count = 0;
	long long first;

	while (count < wanted && count < MOST) {
		counters[count] = open_counter(PERF_COUNT_HW_INSTRUCTIONS, 1, 0, 0, count ? counters[0] : -1);
		if (counters[count] < 0)
			break;
		count++;
	}
	check(count == wanted, "counters at once", count);
	first = over(counters[0], run_loop);
	check(first >= 2 * TURNS && first < 2 * TURNS + 2000, "instructions of a group", first);
	for (int n = 1; n < count; n++) {
		long long seen = value(counters[n]);

		check(seen >= first - 2000 && seen <= first + 2000, "another one of the group", seen);
	}
	while (count)
		close(counters[--count]);
}

/* Cycles, and a signal after each period of them. */
static void sampling(void)
{
	int counter = open_counter(PERF_COUNT_HW_CPU_CYCLES, 1, 0, PERIOD, -1);
	long long seen;

	check(counter >= 0, "no counter of cycles", counter);
	signal(SIGIO, on_sample);
	fcntl(counter, F_SETFL, O_ASYNC);
	fcntl(counter, F_SETOWN, getpid());
	seen = over(counter, run_loop);
	/* An instruction takes 8 cycles. */
	check(seen >= 16 * TURNS && seen < 16 * TURNS * 11 / 10, "cycles of a loop", seen);
	check(samples >= seen / PERIOD / 2 && samples <= seen / PERIOD + 1, "samples", samples);
	close(counter);
}

int main(int count, char **words)
{
	int cpus = sysconf(_SC_NPROCESSORS_ONLN), wanted = count > 1 ? atoi(words[1]) : 1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (open_counter(PERF_COUNT_HW_INSTRUCTIONS, 1, 0, 0, -1) < 0) {
		printf("measured: FAIL no performance counters: %s\n", strerror(errno));
		return 1;
	}
	for (int cpu = 0; cpu < cpus; cpu++) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		check(sched_setaffinity(0, sizeof(set), &set) == 0, "moving to a CPU", cpu);
		samples = 0;
		levels();
		group(wanted);
		sampling();
	}
	if (!failed)
		printf("measured: PASS %d counters, %d CPUs, %d samples\n", wanted, cpus, (int)samples);
	return failed;
}
