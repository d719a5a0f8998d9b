/*
 * Claim: a control loop in C keeps its periods of a millisecond while a program of Linux gives it orders and reads its reports, through a
 * channel and without an exit.
 *
 * Each period it takes the orders that have come, which have to come in order, and sends a report each tenth period. It looks at the clock
 * and takes no interrupts. The order STOP ends it.
 */
#include "bulkhead_channel.h"
#include "guest.h"

#define PERIODS_PER_SECOND 1000
#define PERIODS_PER_REPORT 10
/* Orders that it takes in a period at most: what it does in one is bounded, whatever the other end sends. */
#define ORDERS_PER_PERIOD 64
#define STOP UINT64_MAX

/* What it says of itself; guests/linux-c/loop-talk.c reads it. */
struct report {
	uint64_t periods;
	uint64_t orders;
	uint64_t wrong;   /* orders that were not the next one */
	uint64_t lost;    /* periods that were not begun before their end */
	uint64_t late_ns; /* begin of the latest period, behind its time */
};

void guest(const void *tree)
{
	struct channel_node node;
	struct bulkhead_channel channel;
	struct report report = { 0, 0, 0, 0, 0 };
	uint64_t period = frequency() / PERIODS_PER_SECOND, next = now() + period, stop = 0;

	if (find_channel(tree, "loop", &node) ||
	    bulkhead_channel_open(&channel, node.own, node.peer, node.bytes, node.message, node.messages)) {
		print("c-loop: FAIL there is no channel `loop`\n");
		return;
	}
	/* Who started again goes on with the orders behind those that it has taken. */
	report.orders = bulkhead_channel_taken(&channel);
	while (!stop) {
		uint64_t late, order;
		int count;

		while (now() < next)
			__asm__ volatile("yield");
		late = now() - next;
		if (late >= period) {
			report.lost += late / period;
			next += late / period * period;
		} else if (late * (1000000000 / frequency()) > report.late_ns) {
			report.late_ns = late * (1000000000 / frequency());
		}
		next += period;
		report.periods++;
		for (count = 0; count < ORDERS_PER_PERIOD; count++) {
			long length = bulkhead_channel_look(&channel, &order, sizeof(order));

			if (length == BULKHEAD_CHANNEL_EMPTY)
				break;
			stop = length == sizeof(order) && order == STOP;
			if (stop) {
				bulkhead_channel_take(&channel);
				break;
			}
			report.wrong += length != sizeof(order) || order != report.orders;
			report.orders++;
			bulkhead_channel_take(&channel);
		}
		/* A report that finds no room is left out: the next one says more. */
		if (stop || report.periods % PERIODS_PER_REPORT == 0)
			bulkhead_channel_send(&channel, &report, sizeof(report));
	}
	print("c-loop: periods=");
	print_number(report.periods);
	print(" orders=");
	print_number(report.orders);
	print(" wrong=");
	print_number(report.wrong);
	print(" lost=");
	print_number(report.lost);
	print(report.wrong ? "\nc-loop: FAIL\n" : "\nc-loop: PASS\n");
}
