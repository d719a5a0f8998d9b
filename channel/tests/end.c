/*
 * One end of a channel, in C, for tests/c.rs.
 *
 *     end steps MESSAGE SLOTS        does what the lines of its input say, and prints the results and both regions
 */
#include <bulkhead_channel.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what)
{
	fprintf(stderr, "end: %s\n", what);
	exit(1);
}

static int steps(size_t message, size_t slots)
{
	size_t bytes = 256 + slots * (8 + (message + 7) / 8 * 8), i;
	uint64_t *own = calloc(1, bytes), *peer = calloc(1, bytes);
	unsigned char *buffer = malloc(message + 8);
	struct bulkhead_channel c;
	char step[16];
	uint64_t a, b;

	if (bulkhead_channel_open(&c, own, peer, bytes - 8, message, slots) != BULKHEAD_CHANNEL_NONE)
		fail("a region that is too small is taken");
	if (bulkhead_channel_open(&c, own, peer, bytes, message, slots) != BULKHEAD_CHANNEL_DONE)
		fail("no channel");
	while (scanf("%15s %" SCNu64 " %" SCNu64, step, &a, &b) == 3) {
		if (!strcmp(step, "write")) {
			peer[a] = b;
		} else if (!strcmp(step, "send")) {
			memset(buffer, (int)b, message + 8);
			printf("%d\n", bulkhead_channel_send(&c, buffer, a));
		} else if (!strcmp(step, "look")) {
			long length = bulkhead_channel_look(&c, buffer, a);
			printf("%ld", length);
			for (i = 0; length > 0 && i < (size_t)length; i++)
				printf(" %d", buffer[i]);
			printf("\n");
		} else if (!strcmp(step, "take")) {
			printf("%d\n", bulkhead_channel_take(&c));
		} else if (!strcmp(step, "message")) {
			printf("%d\n", bulkhead_channel_wait_message(&c));
		} else if (!strcmp(step, "room")) {
			printf("%d\n", bulkhead_channel_wait_room(&c));
		} else if (!strcmp(step, "owes")) {
			printf("%d\n", bulkhead_channel_owes(&c));
		} else {
			fail("what step is that?");
		}
	}
	for (i = 0; i < bytes / 8; i++)
		printf("%" PRIu64 "\n", own[i]);
	return 0;
}

int main(int count, char **words)
{
	if (count == 4 && !strcmp(words[1], "steps"))
		return steps(strtoul(words[2], NULL, 10), strtoul(words[3], NULL, 10));
	fail("which words are these?");
	return 1;
}
