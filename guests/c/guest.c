/* See guest.h. */
#include "guest.h"

/* The PL011 (DDI 0183): data, and flags with bit 5 while there is no room for a byte. */
#define UART ((volatile uint32_t *)0x09000000)
#define UART_FLAGS 6
#define UART_FULL (1 << 5)

/* The compiler may call these in a program without a library. */
void *memcpy(void *to, const void *from, size_t size)
{
	unsigned char *next = to;
	const unsigned char *source = from;

	while (size--)
		*next++ = *source++;
	return to;
}

void *memset(void *to, int value, size_t size)
{
	unsigned char *next = to;

	while (size--)
		*next++ = (unsigned char)value;
	return to;
}

void print(const char *text)
{
	for (; *text; text++) {
		while (UART[UART_FLAGS] & UART_FULL)
			;
		UART[0] = (unsigned char)*text;
	}
}

void print_number(uint64_t number)
{
	char digits[21];
	char *next = digits + sizeof(digits);

	*--next = 0;
	do
		*--next = (char)('0' + number % 10);
	while (number /= 10);
	print(next);
}

/* A number of 32 bits as device trees have them. */
static uint32_t cell(const unsigned char *bytes)
{
	return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static uint64_t wide(const unsigned char *bytes)
{
	return (uint64_t)cell(bytes) << 32 | cell(bytes + 4);
}

static int is(const char *one, const char *other)
{
	while (*one && *one == *other) {
		one++;
		other++;
	}
	return *one == *other;
}

/* Walks the tokens of the structure block (Devicetree Specification 0.4, section 5.4). */
int find_channel(const void *tree, const char *name, struct channel_node *channel)
{
	const unsigned char *start = tree, *next, *strings;
	int is_channel = 0, is_it = 0;

	if (!tree || cell(start) != 0xd00dfeed)
		return -1;
	next = start + cell(start + 8);
	strings = start + cell(start + 12);
	for (;;) {
		uint32_t token = cell(next);

		next += 4;
		if (token == 1) { /* FDT_BEGIN_NODE: what was read of another one is of no use */
			while (*next++)
				;
			is_channel = is_it = 0;
			memset(channel, 0, sizeof(*channel));
		} else if (token == 3) { /* FDT_PROP: length, name, value */
			uint32_t length = cell(next);
			const char *property = (const char *)strings + cell(next + 4);
			const unsigned char *value = next + 8;

			next = value + length;
			if (is(property, "compatible"))
				is_channel = is((const char *)value, "bulkhead,channel");
			else if (is(property, "label"))
				is_it = is((const char *)value, name);
			else if (is(property, "bulkhead,message-size"))
				channel->message = cell(value);
			else if (is(property, "bulkhead,messages"))
				channel->messages = cell(value);
			else if (is(property, "reg") && length >= 32) {
				channel->own = (void *)wide(value);
				channel->bytes = wide(value + 8);
				channel->peer = (const void *)wide(value + 16);
				channel->rings = length >= 48 ? (volatile uint32_t *)wide(value + 32) : NULL;
			}
		} else if (token == 2) { /* FDT_END_NODE */
			if (is_channel && is_it && channel->own)
				return 0;
			is_channel = is_it = 0;
		} else if (token != 4) { /* FDT_NOP; else the end */
			return -1;
		}
		next = start + (((size_t)(next - start) + 3) & ~(size_t)3);
	}
}
