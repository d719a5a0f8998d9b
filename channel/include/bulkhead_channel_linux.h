/*
 * The end of a channel in a program of Linux, on a kernel without any driver of ours: bulkhead_channel.h over what Debian's
 * kernels have from 6.1 on. Needs a C library and, by /dev/mem, CAP_SYS_RAWIO to open; afterwards no rights but the files that
 * are open. By device-dax it needs no rights but those to the device files.
 *
 *     memory     not cached by either end, which is the default of a channel with a VM that has a `kernel`: /dev/mem, as
 *                Device memory. With cacheable = true device-dax, cached, on kernels that have it, as Debian's 6.12 (modules
 *                of_pmem, nd_pmem, dax_pmem, device_dax)
 *     it hears   an input device, whose key is pressed and released by each doorbell (modules gpio_keys and evdev)
 *     it rings   a line of a GPIO controller, whose register is the doorbell (gpio-mmio, built in)
 *
 *     struct bulkhead_channel_linux end;
 *     if (bulkhead_channel_linux_open(&end, "report"))
 *         ...                                          // errno says why
 *     if (bulkhead_channel_send(&end.channel, text, length) == BULKHEAD_CHANNEL_RING)
 *         bulkhead_channel_linux_ring(&end);
 *     ...
 *     if (bulkhead_channel_wait_message(&end.channel))
 *         bulkhead_channel_linux_sleep(&end, -1);      // or poll end.heard among other files, then bulkhead_channel_linux_heard
 */
#ifndef BULKHEAD_CHANNEL_LINUX_H
#define BULKHEAD_CHANNEL_LINUX_H

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/gpio.h>
#include <linux/input.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bulkhead_channel.h"

/* One end of a channel, and what is open for it. */
struct bulkhead_channel_linux {
	struct bulkhead_channel channel;
	int heard; /* can be read when the other end has rung; -1: this end polls */
	int line;  /* request of the GPIO line; -1: the other end polls */
	void *own; /* maps, of so many bytes */
	void *peer;
	size_t bytes;
};

/* Reads a property of a node of the device tree: its bytes, or -1. */
static inline long bulkhead_channel_linux_property_(const char *node, const char *name, void *buffer, size_t size)
{
	char path[512];
	long length;
	int file;

	snprintf(path, sizeof(path), "%s/%s", node, name);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return -1;
	length = read(file, buffer, size);
	close(file);
	return length;
}

/* A number of so many cells of 32 bits, as device trees have them. */
static inline uint64_t bulkhead_channel_linux_cells_(const unsigned char *bytes, size_t cells)
{
	uint64_t value = 0;
	size_t i;

	for (i = 0; i < cells * 4; i++)
		value = value << 8 | bytes[i];
	return value;
}

/* Opens the input device with this name, or gives -1. */
static inline int bulkhead_channel_linux_input_(const char *wanted)
{
	glob_t found;
	size_t i;
	int file = -1;

	if (glob("/dev/input/event*", 0, NULL, &found)) {
		errno = ENODEV;
		return -1;
	}
	for (i = 0; i < found.gl_pathc && file < 0; i++) {
		char name[256] = "";

		file = open(found.gl_pathv[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (file < 0)
			continue;
		if (ioctl(file, EVIOCGNAME(sizeof(name) - 1), name) < 0 || strcmp(name, wanted)) {
			close(file);
			file = -1;
			errno = ENODEV;
		}
	}
	globfree(&found);
	return file;
}

/* Requests the first line of the GPIO controller whose registers are at an address, or gives -1. It rings once. */
static inline int bulkhead_channel_linux_line_(uint64_t address)
{
	char wanted[GPIO_MAX_NAME_SIZE];
	glob_t found;
	size_t i;
	int line = -1;

	snprintf(wanted, sizeof(wanted), "%llx.gpio", (unsigned long long)address);
	errno = ENODEV;
	if (glob("/dev/gpiochip*", 0, NULL, &found))
		return -1;
	for (i = 0; i < found.gl_pathc && line < 0; i++) {
		struct gpiochip_info info = { 0 };
		struct gpio_v2_line_request request = { 0 };
		int chip = open(found.gl_pathv[i], O_RDWR | O_CLOEXEC);

		if (chip < 0)
			continue;
		if (ioctl(chip, GPIO_GET_CHIPINFO_IOCTL, &info) == 0 && strcmp(info.label, wanted) == 0) {
			request.num_lines = 1;
			request.config.flags = GPIO_V2_LINE_FLAG_OUTPUT;
			strcpy(request.consumer, "bulkhead channel");
			if (ioctl(chip, GPIO_V2_GET_LINE_IOCTL, &request) == 0)
				line = request.fd;
		} else {
			errno = ENODEV;
		}
		close(chip);
	}
	globfree(&found);
	return line;
}

/* Opens the device-dax of the pmem region of memory that starts at an address, or gives -1. */
static inline int bulkhead_channel_linux_dax_(uint64_t start)
{
	char wanted[32], path[64];
	glob_t found;
	size_t i;
	int file = -1, seen = 0;

	snprintf(wanted, sizeof(wanted), "/%llx.pmem/", (unsigned long long)start);
	errno = ENODEV;
	if (glob("/sys/bus/dax/devices/*", 0, NULL, &found))
		return -1;
	for (i = 0; i < found.gl_pathc && !seen; i++) {
		/* The device is below that of its pmem region. */
		char *device = realpath(found.gl_pathv[i], NULL);

		seen = device && strstr(device, wanted);
		free(device);
		if (!seen)
			continue;
		snprintf(path, sizeof(path), "/dev/%s", strrchr(found.gl_pathv[i], '/') + 1);
		file = open(path, O_RDWR | O_CLOEXEC);
	}
	if (!seen)
		errno = ENODEV;
	globfree(&found);
	return file;
}

/* Closes an end. What was sent stays. */
static inline void bulkhead_channel_linux_close(struct bulkhead_channel_linux *end)
{
	int before = errno;

	if (end->own != MAP_FAILED)
		munmap(end->own, end->bytes);
	if (end->peer != MAP_FAILED)
		munmap(end->peer, end->bytes);
	if (end->heard >= 0)
		close(end->heard);
	if (end->line >= 0)
		close(end->line);
	end->own = end->peer = MAP_FAILED;
	end->heard = end->line = -1;
	errno = before;
}

/*
 * Opens this VM's end of the channel with this name: 0, or -1 with errno. ENOENT: the device tree has no such channel. EMEDIUMTYPE: its
 * memory is cached, and no program of this kernel maps it (leave cacheable = true out). ENODEV, ENXIO: a driver is missing, gpio_keys,
 * evdev, gpio-mmio, or device_dax and those below it. EBUSY: another program has this end. EPERM, EACCES: no right to /dev/mem or to a device
 * file. EINVAL: pages of this kernel are larger than the channel's memory is aligned.
 */
static inline int bulkhead_channel_linux_open(struct bulkhead_channel_linux *end, const char *name)
{
	unsigned char reg[48], cells[4], pmem[16];
	char label[64], input[80];
	uint64_t size[2] = { 0, 0 }, base = 0;
	const char *node = NULL;
	glob_t found;
	size_t i;
	long length;
	int hears, uncached, file;
	long cached;

	end->own = end->peer = MAP_FAILED;
	end->heard = end->line = -1;
	errno = ENOENT;
	if (glob("/proc/device-tree/channel@*", 0, NULL, &found))
		return -1;
	for (i = 0; i < found.gl_pathc && !node; i++) {
		length = bulkhead_channel_linux_property_(found.gl_pathv[i], "label", label, sizeof(label));
		if (length == (long)strlen(name) + 1 && memcmp(label, name, (size_t)length) == 0)
			node = found.gl_pathv[i];
	}
	length = node ? bulkhead_channel_linux_property_(node, "reg", reg, sizeof(reg)) : -1;
	hears = node && bulkhead_channel_linux_property_(node, "interrupts", cells, sizeof(cells)) > 0;
	if (node && bulkhead_channel_linux_property_(node, "bulkhead,message-size", cells, 4) == 4)
		size[0] = bulkhead_channel_linux_cells_(cells, 1);
	if (node && bulkhead_channel_linux_property_(node, "bulkhead,messages", cells, 4) == 4)
		size[1] = bulkhead_channel_linux_cells_(cells, 1);
	uncached = node && bulkhead_channel_linux_property_(node, "bulkhead,uncached", cells, 4) >= 0;
	cached = node ? bulkhead_channel_linux_property_(node, "bulkhead,pmem", pmem, sizeof(pmem)) : -1;
	globfree(&found);
	if (length < 32) {
		errno = ENOENT;
		return -1;
	}
	if (!uncached && cached != sizeof(pmem)) {
		errno = EMEDIUMTYPE;
		return -1;
	}
	end->bytes = (size_t)bulkhead_channel_linux_cells_(reg + 8, 2);
	if (uncached) {
		file = open("/dev/mem", O_RDWR | O_SYNC | O_CLOEXEC);
	} else {
		/* The file starts where the pmem region's second word says. */
		base = bulkhead_channel_linux_cells_(pmem + 8, 2);
		file = bulkhead_channel_linux_dax_(bulkhead_channel_linux_cells_(pmem, 2));
	}
	if (file < 0)
		return -1;
	end->own = mmap(NULL, end->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
	                (off_t)(bulkhead_channel_linux_cells_(reg, 2) - base));
	if (end->own != MAP_FAILED)
		end->peer = mmap(NULL, end->bytes, PROT_READ, MAP_SHARED, file,
		                 (off_t)(bulkhead_channel_linux_cells_(reg + 16, 2) - base));
	close(file);
	if (end->own == MAP_FAILED || end->peer == MAP_FAILED)
		goto failed;
	errno = ENOENT;
	if (bulkhead_channel_open(&end->channel, end->own, end->peer, end->bytes, (size_t)size[0], (size_t)size[1]))
		goto failed;
	if (hears) {
		snprintf(input, sizeof(input), "bulkhead %s", name);
		end->heard = bulkhead_channel_linux_input_(input);
		if (end->heard < 0)
			goto failed;
	}
	if (length >= 48) {
		end->line = bulkhead_channel_linux_line_(bulkhead_channel_linux_cells_(reg + 32, 2));
		if (end->line < 0)
			goto failed;
	}
	return 0;
failed:
	bulkhead_channel_linux_close(end);
	return -1;
}

/* Rings the other end: 0, or -1 with errno; EINVAL: it polls. */
static inline int bulkhead_channel_linux_ring(struct bulkhead_channel_linux *end)
{
	struct gpio_v2_line_values values = { .bits = 1, .mask = 1 };

	if (end->line < 0) {
		errno = EINVAL;
		return -1;
	}
#ifdef __aarch64__
	/* What was sent is in memory before the doorbell is rung. */
	__asm__ volatile("dsb st" ::: "memory");
#endif
	return ioctl(end->line, GPIO_V2_LINE_SET_VALUES_IOCTL, &values);
}

/* Makes end->heard unreadable until the other end rings again; tells whether it has rung. To be called before looking for messages. */
static inline int bulkhead_channel_linux_heard(struct bulkhead_channel_linux *end)
{
	struct input_event events[64];
	int any = 0;

	while (end->heard >= 0 && read(end->heard, events, sizeof(events)) > 0)
		any = 1;
	return any;
}

/* Sleeps until the other end rings, or for so many milliseconds (-1: for ever): 1 if it has rung, 0 if not, -1 with errno. */
static inline int bulkhead_channel_linux_sleep(struct bulkhead_channel_linux *end, int milliseconds)
{
	struct pollfd wanted = { .fd = end->heard, .events = POLLIN };
	int ready = poll(&wanted, 1, milliseconds);

	if (ready > 0)
		bulkhead_channel_linux_heard(end);
	return ready;
}

#endif
