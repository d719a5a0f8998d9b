/*
 * Claim: a program of Linux on a stock kernel is an end of a channel, through the header that users have: messages go both ways, all of them, in
 * order and unaltered, and it sleeps by poll. The other end is guests/src/bin/channel.rs, whose messages these are.
 *
 *     channel-end NAME MESSAGES [reboot]
 *
 * It ends when all its runs together have sent and taken so many. It gives up all rights that it has when it has opened the channel. With
 * `reboot` it reboots the VM once, when half of the messages are sent.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/reboot.h>
#include <time.h>

#include "bulkhead_channel_linux.h"

/* Bytes of a message's number, with which it begins. */
#define NUMBER 8
/* Milliseconds of sleep after which a ring is lost. */
#define PATIENCE 20000

static unsigned long rings, sleeps, late, wrong;

/* Message `number`: its number, and bytes and a length that depend on it. */
static size_t compose(uint64_t number, unsigned char *message, size_t size)
{
	size_t length = NUMBER + (size_t)(number % (size - NUMBER + 1));

	memcpy(message, &number, NUMBER);
	memset(message + NUMBER, (int)(number & 0xff), length - NUMBER);
	return length;
}

static void ring(struct bulkhead_channel_linux *end)
{
	rings++;
	if (bulkhead_channel_linux_ring(end))
		wrong++;
}

/* Sends as many as there is room for. */
static void send_all(struct bulkhead_channel_linux *end, uint64_t messages)
{
	struct bulkhead_channel *channel = &end->channel;
	unsigned char message[64];

	while (bulkhead_channel_sent(channel) < messages) {
		size_t length = compose(bulkhead_channel_sent(channel), message, channel->message);
		int sent = bulkhead_channel_send(channel, message, length);

		if (sent == BULKHEAD_CHANNEL_RING)
			ring(end);
		else if (sent == BULKHEAD_CHANNEL_FULL)
			return;
		else if (sent != BULKHEAD_CHANNEL_DONE) {
			wrong++;
			return;
		}
	}
}

/* Takes all that are there, up to so many. */
static void take_all(struct bulkhead_channel_linux *end, uint64_t messages)
{
	struct bulkhead_channel *channel = &end->channel;
	unsigned char seen[64], sent[64];
	long length;

	while (bulkhead_channel_taken(channel) < messages) {
		size_t wanted = compose(bulkhead_channel_taken(channel), sent, channel->message);

		length = bulkhead_channel_look(channel, seen, sizeof(seen));
		if (length < 0) {
			wrong += length != BULKHEAD_CHANNEL_EMPTY;
			return;
		}
		if ((size_t)length != wanted || memcmp(seen, sent, wanted))
			wrong++;
		if (bulkhead_channel_take(channel) == BULKHEAD_CHANNEL_RING)
			ring(end);
	}
}

int main(int count, char **words)
{
	struct bulkhead_channel_linux end;
	struct bulkhead_channel *channel = &end.channel;
	uint64_t messages = count > 2 ? strtoull(words[2], NULL, 0) : 0;
	/* Behind the last slot, where the channel has nothing. */
	uint64_t *rebooted;

	if (count < 3)
		return fprintf(stderr, "channel-end: FAIL NAME MESSAGES [reboot]\n"), 2;
	if (bulkhead_channel_linux_open(&end, words[1])) {
		printf("channel-end: FAIL cannot open channel %s: %s\n", words[1], strerror(errno));
		return 1;
	}
	rebooted = (uint64_t *)end.own + end.bytes / 8 - 1;
	if (count < 4 && geteuid() == 0 && (setgid(65534) || setuid(65534)))
		wrong++;
	if (bulkhead_channel_owes(channel))
		ring(&end);
	for (;;) {
		int nothing_came, nothing_goes;

		send_all(&end, messages);
		take_all(&end, messages);
		if (bulkhead_channel_sent(channel) == messages && bulkhead_channel_taken(channel) == messages)
			break;
		if (count > 3 && *rebooted == 0 && bulkhead_channel_sent(channel) >= messages / 2) {
			printf("channel-end: reboots after %lu sent\n", (unsigned long)bulkhead_channel_sent(channel));
			fflush(stdout);
			*rebooted = 1;
			reboot(RB_AUTOBOOT);
		}
		if (end.heard < 0)
			continue;
		nothing_came = bulkhead_channel_taken(channel) == messages || bulkhead_channel_wait_message(channel);
		nothing_goes = bulkhead_channel_sent(channel) == messages || bulkhead_channel_wait_room(channel);
		if (!nothing_came || !nothing_goes)
			continue;
		sleeps++;
		if (bulkhead_channel_linux_sleep(&end, PATIENCE) <= 0 && ++late > 2)
			break;
	}
	printf("channel-end: %lu sent, %lu taken; %lu rings, %lu sleeps, %lu late, %lu wrong\n",
	       (unsigned long)bulkhead_channel_sent(channel), (unsigned long)bulkhead_channel_taken(channel), rings,
	       sleeps, late, wrong);
	if (wrong || late || bulkhead_channel_sent(channel) != messages || bulkhead_channel_taken(channel) != messages ||
	    (end.heard >= 0 && !sleeps))
		return puts("channel-end: FAIL"), 1;
	puts("channel-end: PASS");
	return 0;
}
