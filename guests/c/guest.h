/*
 * What a guest in C has of its board: a console, a clock, its device tree. start.S calls `guest` with the device tree and switches the VM off when
 * that returns.
 */
#ifndef GUEST_H
#define GUEST_H

#include <stddef.h>
#include <stdint.h>

void guest(const void *tree);

/* Ticks of the virtual counter, and how many there are in a second. */
static inline uint64_t now(void)
{
	uint64_t ticks;

	__asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(ticks)::"memory");
	return ticks;
}

static inline uint64_t frequency(void)
{
	uint64_t hertz;

	__asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
	return hertz;
}

/* Writes a text, and a number in decimal, to the console: the PL011 at its place in the guest environment. Each byte is an exit. */
void print(const char *text);
void print_number(uint64_t number);

/* A channel of this VM, as its device tree has it. */
struct channel_node {
	void *own;
	const void *peer;
	size_t bytes;             /* of each region */
	size_t message;           /* bytes of the longest message */
	size_t messages;          /* that wait in each direction at most */
	volatile uint32_t *rings; /* page of the doorbell; NULL: the other end polls */
};

/* Looks for the channel with this name: 0, or -1 if there is none. */
int find_channel(const void *tree, const char *name, struct channel_node *channel);

#endif
