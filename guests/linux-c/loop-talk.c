/*
 * Gives orders to the control loop in guests/c/c-loop.c and reads its reports.
 *
 *     loop-talk CHANNEL ORDERS     sends so many orders, then waits until all are done; a line for each second
 *     loop-talk CHANNEL stop       has the loop end
 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "bulkhead_channel_linux.h"

/* Seconds without a report after which the loop is gone. */
#define PATIENCE 30

struct report {
	uint64_t periods, orders, wrong, lost, late_ns;
};

static double seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void show(const struct report *report)
{
	printf("loop-talk: periods=%" PRIu64 " orders=%" PRIu64 " wrong=%" PRIu64 " lost=%" PRIu64 " late_us=%" PRIu64 "\n",
	       report->periods, report->orders, report->wrong, report->lost, report->late_ns / 1000);
	fflush(stdout);
}

int main(int count, char **words)
{
	struct bulkhead_channel_linux end;
	struct bulkhead_channel *channel = &end.channel;
	struct report report, last = { 0, 0, 0, 0, 0 };
	uint64_t order, wanted, reports = 0, back = 0;
	double shown, heard;

	if (count != 3)
		return fprintf(stderr, "usage: loop-talk CHANNEL ORDERS, or loop-talk CHANNEL stop\n"), 2;
	if (bulkhead_channel_linux_open(&end, words[1])) {
		printf("loop-talk: FAIL cannot open channel %s: %s\n", words[1], strerror(errno));
		return 1;
	}
	if (strcmp(words[2], "stop") == 0) {
		order = UINT64_MAX;
		while (bulkhead_channel_send(channel, &order, sizeof(order)) == BULKHEAD_CHANNEL_FULL)
			usleep(1000);
		return 0;
	}
	/* Orders are numbered by how many were sent, ever: a program that starts again goes on. */
	wanted = bulkhead_channel_sent(channel) + strtoull(words[2], NULL, 0);
	shown = heard = seconds();
	while (last.orders < wanted) {
		while ((order = bulkhead_channel_sent(channel)) < wanted &&
		       bulkhead_channel_send(channel, &order, sizeof(order)) >= 0)
			;
		while (bulkhead_channel_look(channel, &report, sizeof(report)) == sizeof(report)) {
			back += report.periods <= last.periods || report.orders < last.orders;
			last = report;
			reports++;
			heard = seconds();
			bulkhead_channel_take(channel);
		}
		if (seconds() - shown >= 1) {
			shown = seconds();
			show(&last);
		}
		if (seconds() - heard > PATIENCE) {
			printf("loop-talk: FAIL no report for %d s\n", PATIENCE);
			return 1;
		}
		usleep(1000);
	}
	show(&last);
	printf("loop-talk: %s %" PRIu64 " reports\n", back || last.wrong ? "FAIL" : "PASS", reports);
	return back || last.wrong;
}
