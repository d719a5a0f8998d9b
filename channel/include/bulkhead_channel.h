/*
 * Messages between two VMs over a channel ([channel.NAME] of a description), for programs in C: of a guest without an
 * operating system, or of a user's on Linux. The crate bulkhead-channel is the same for Rust, and says what stands where in
 * the two regions, what the other end can do and what it cannot, and how either end starts again.
 *
 * Needs the __atomic builtins of GCC or Clang, and nothing else: no library, no lock, only loads and stores of 64 bits.
 *
 *     struct bulkhead_channel channel;
 *     if (bulkhead_channel_open(&channel, own, peer, bytes, 64, 128))
 *         ...                                  // the regions do not hold 128 messages of 64 bytes
 *     if (bulkhead_channel_send(&channel, text, length) == BULKHEAD_CHANNEL_RING)
 *         ring();                              // a barrier (dsb ishst), then any 32-bit write to the doorbell's page
 *
 *     while ((length = bulkhead_channel_look(&channel, buffer, sizeof(buffer))) >= 0) {
 *         ...                                  // what the message says
 *         if (bulkhead_channel_take(&channel) == BULKHEAD_CHANNEL_RING)
 *             ring();
 *     }
 *     if (length == BULKHEAD_CHANNEL_EMPTY && bulkhead_channel_wait_message(&channel))
 *         ...                                  // sleep until the doorbell's interrupt; an end that polls leaves this out
 */
#ifndef BULKHEAD_CHANNEL_H
#define BULKHEAD_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

/* One end of a channel. */
struct bulkhead_channel {
	uint64_t *own;        /* region that this end writes */
	const uint64_t *peer; /* region that the other end writes */
	size_t message;       /* bytes of the longest message */
	size_t slots;         /* messages that wait in each direction at most, a power of two */
};

/* Results of the functions below; negative ones have changed nothing but what their lines say. */
enum {
	BULKHEAD_CHANNEL_DONE = 0,
	BULKHEAD_CHANNEL_RING = 1,      /* done, and the other end is to be rung */
	BULKHEAD_CHANNEL_EMPTY = -1,    /* no message is there */
	BULKHEAD_CHANNEL_FULL = -2,     /* no slot is free */
	BULKHEAD_CHANNEL_TOO_LONG = -3, /* longer than the channel's messages, or than the buffer */
	BULKHEAD_CHANNEL_BROKEN = -4,   /* the other end has not kept the protocol: what it sent is left out. To be answered by a ring */
	BULKHEAD_CHANNEL_NONE = -5      /* there is no such channel in these regions */
};

/* Words of a region: bulkhead-channel's table. */
enum {
	BULKHEAD_CHANNEL_SENT_ = 0,
	BULKHEAD_CHANNEL_TAKEN_ = 8,
	BULKHEAD_CHANNEL_WANTS_MESSAGE_ = 16,
	BULKHEAD_CHANNEL_WANTS_ROOM_ = 24,
	BULKHEAD_CHANNEL_SLOTS_ = 32
};

static inline uint64_t bulkhead_channel_get_(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void bulkhead_channel_put_(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline size_t bulkhead_channel_slot_words_(const struct bulkhead_channel *c)
{
	return 1 + (c->message + 7) / 8;
}

static inline size_t bulkhead_channel_slot_(const struct bulkhead_channel *c, uint64_t number)
{
	return BULKHEAD_CHANNEL_SLOTS_ + (size_t)(number & (c->slots - 1)) * bulkhead_channel_slot_words_(c);
}

/* Whether a number that went from before to after has come to wanted. */
static inline int bulkhead_channel_reached_(uint64_t wanted, uint64_t before, uint64_t after)
{
	return after - wanted < after - before;
}

/* Messages that this end has sent, ever: where one that starts again goes on. */
static inline uint64_t bulkhead_channel_sent(const struct bulkhead_channel *c)
{
	return bulkhead_channel_get_(&c->own[BULKHEAD_CHANNEL_SENT_]);
}

/* Messages that this end has taken, ever. */
static inline uint64_t bulkhead_channel_taken(const struct bulkhead_channel *c)
{
	return bulkhead_channel_get_(&c->own[BULKHEAD_CHANNEL_TAKEN_]);
}

/*
 * Opens a channel whose regions are mapped, each of so many bytes; message and slots are those of the device tree.
 * BULKHEAD_CHANNEL_DONE or BULKHEAD_CHANNEL_NONE.
 */
static inline int bulkhead_channel_open(struct bulkhead_channel *c, void *own, const void *peer, size_t bytes,
                                        size_t message, size_t slots)
{
	if (message == 0 || message > 4096 || slots == 0 || slots > 65536 || (slots & (slots - 1)) != 0)
		return BULKHEAD_CHANNEL_NONE;
	c->own = (uint64_t *)own;
	c->peer = (const uint64_t *)peer;
	c->message = message;
	c->slots = slots;
	if (bytes / 8 < BULKHEAD_CHANNEL_SLOTS_ + slots * bulkhead_channel_slot_words_(c))
		return BULKHEAD_CHANNEL_NONE;
	return BULKHEAD_CHANNEL_DONE;
}

/* Slots that are free, or BULKHEAD_CHANNEL_BROKEN: the other end says that it has taken what was not sent. */
static inline long bulkhead_channel_free(const struct bulkhead_channel *c)
{
	/* Its reads of a slot come before what is written there next. */
	uint64_t taken = __atomic_load_n(&c->peer[BULKHEAD_CHANNEL_TAKEN_], __ATOMIC_ACQUIRE);
	uint64_t waiting = bulkhead_channel_sent(c) - taken;
	if (waiting > c->slots)
		return BULKHEAD_CHANNEL_BROKEN;
	return (long)(c->slots - waiting);
}

/* Messages that wait, or BULKHEAD_CHANNEL_BROKEN: more than there are slots, which are left out. */
static inline long bulkhead_channel_waiting(struct bulkhead_channel *c)
{
	uint64_t sent = __atomic_load_n(&c->peer[BULKHEAD_CHANNEL_SENT_], __ATOMIC_ACQUIRE);
	uint64_t waiting = sent - bulkhead_channel_taken(c);
	if (waiting > c->slots) {
		__atomic_store_n(&c->own[BULKHEAD_CHANNEL_TAKEN_], sent, __ATOMIC_RELEASE);
		return BULKHEAD_CHANNEL_BROKEN;
	}
	return (long)waiting;
}

/* Sends a message: BULKHEAD_CHANNEL_DONE, _RING, _FULL, _TOO_LONG or _BROKEN. */
static inline int bulkhead_channel_send(struct bulkhead_channel *c, const void *message, size_t length)
{
	const unsigned char *bytes = (const unsigned char *)message;
	uint64_t sent = bulkhead_channel_sent(c), next = sent + 1, wanted;
	uint64_t *word = &c->own[bulkhead_channel_slot_(c, sent)];
	long room = bulkhead_channel_free(c);
	size_t i;

	if (length > c->message)
		return BULKHEAD_CHANNEL_TOO_LONG;
	if (room <= 0)
		return room < 0 ? BULKHEAD_CHANNEL_BROKEN : BULKHEAD_CHANNEL_FULL;
	bulkhead_channel_put_(word++, length);
	for (i = 0; i < length; i += 8) {
		uint64_t value = 0;
		__builtin_memcpy(&value, bytes + i, length - i < 8 ? length - i : 8);
		bulkhead_channel_put_(word++, value);
	}
	__atomic_store_n(&c->own[BULKHEAD_CHANNEL_SENT_], next, __ATOMIC_RELEASE);
	/* The number before the look: either the other end sees it when it wants to sleep, or this end sees that it wants to. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	wanted = bulkhead_channel_get_(&c->peer[BULKHEAD_CHANNEL_WANTS_MESSAGE_]);
	return bulkhead_channel_reached_(wanted, sent, next) ? BULKHEAD_CHANNEL_RING : BULKHEAD_CHANNEL_DONE;
}

/*
 * Copies the next message to a buffer of so many bytes; it stays until it is taken. Its length, or BULKHEAD_CHANNEL_EMPTY,
 * _TOO_LONG or _BROKEN.
 */
static inline long bulkhead_channel_look(struct bulkhead_channel *c, void *buffer, size_t size)
{
	unsigned char *bytes = (unsigned char *)buffer;
	long waiting = bulkhead_channel_waiting(c);
	uint64_t taken = bulkhead_channel_taken(c), length;
	const uint64_t *word = &c->peer[bulkhead_channel_slot_(c, taken)];
	size_t i;

	if (waiting <= 0)
		return waiting < 0 ? BULKHEAD_CHANNEL_BROKEN : BULKHEAD_CHANNEL_EMPTY;
	length = bulkhead_channel_get_(word++);
	if (length > c->message) {
		__atomic_store_n(&c->own[BULKHEAD_CHANNEL_TAKEN_], taken + 1, __ATOMIC_RELEASE);
		return BULKHEAD_CHANNEL_BROKEN;
	}
	if (length > size)
		return BULKHEAD_CHANNEL_TOO_LONG;
	for (i = 0; i < length; i += 8) {
		uint64_t value = bulkhead_channel_get_(word++);
		__builtin_memcpy(bytes + i, &value, length - i < 8 ? length - i : 8);
	}
	return (long)length;
}

/* Takes the message that was seen, so that its slot is free: BULKHEAD_CHANNEL_DONE, _RING or _EMPTY. */
static inline int bulkhead_channel_take(struct bulkhead_channel *c)
{
	uint64_t taken, wanted;

	if (bulkhead_channel_waiting(c) <= 0)
		return BULKHEAD_CHANNEL_EMPTY;
	taken = bulkhead_channel_taken(c);
	/* The slot was read before the other end may write there. */
	__atomic_store_n(&c->own[BULKHEAD_CHANNEL_TAKEN_], taken + 1, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	wanted = bulkhead_channel_get_(&c->peer[BULKHEAD_CHANNEL_WANTS_ROOM_]);
	return bulkhead_channel_reached_(wanted, taken, taken + 1) ? BULKHEAD_CHANNEL_RING : BULKHEAD_CHANNEL_DONE;
}

/* Asks to be rung when a message is sent. 0 if one is there already: then the other end may ring all the same. */
static inline int bulkhead_channel_wait_message(struct bulkhead_channel *c)
{
	bulkhead_channel_put_(&c->own[BULKHEAD_CHANNEL_WANTS_MESSAGE_], bulkhead_channel_taken(c) + 1);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return bulkhead_channel_waiting(c) == 0;
}

/* Asks to be rung when a message is taken. 0 if there is room already: then the other end may ring all the same. */
static inline int bulkhead_channel_wait_room(struct bulkhead_channel *c)
{
	uint64_t taken = bulkhead_channel_get_(&c->peer[BULKHEAD_CHANNEL_TAKEN_]);

	bulkhead_channel_put_(&c->own[BULKHEAD_CHANNEL_WANTS_ROOM_], taken + 1);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return bulkhead_channel_free(c) <= 0;
}

/*
 * Whether the other end may sleep though a message or room is there, because this end has ended between sending or taking and
 * ringing. To be asked when it starts again.
 */
static inline int bulkhead_channel_owes(const struct bulkhead_channel *c)
{
	uint64_t sent = bulkhead_channel_sent(c), taken = bulkhead_channel_taken(c);
	uint64_t message = bulkhead_channel_get_(&c->peer[BULKHEAD_CHANNEL_WANTS_MESSAGE_]);
	uint64_t room = bulkhead_channel_get_(&c->peer[BULKHEAD_CHANNEL_WANTS_ROOM_]);

	return (sent != 0 && bulkhead_channel_reached_(message, sent - 1, sent)) ||
	       (taken != 0 && bulkhead_channel_reached_(room, taken - 1, taken));
}

#endif
