/* Claim: a debugger works in a stock Linux: breakpoints and watchpoints of the hardware hit where they are set, each of them, and a program is stepped
 * instruction by instruction. It does by ptrace what gdb does for `hbreak`, `watch` and `stepi`; the program that it traces is its own child. */

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asm/ptrace.h>

#define MOST 16
#define STEPS 2000

static volatile uint64_t words[MOST];

/* Where breakpoints are: each goes there in turn. */
#define PLACE(n) __attribute__((noinline)) static void place##n(void) { __asm__ volatile("nop" ::: "memory"); }
PLACE(0)
PLACE(1)
PLACE(2)
PLACE(3)
PLACE(4)
PLACE(5)
static void (*const places[])(void) = {place0, place1, place2, place3, place4, place5};
#define PLACES (sizeof(places) / sizeof(places[0]))

/* Seconds after which a breakpoint does not come any more. */
#define PATIENCE 10

static int failed;
static pid_t pid;

/* Nothing has stopped the child for long. */
static void late(int number)
{
	static const char words[] = "traced: FAIL nothing stops the program\n";

	(void)number;
	kill(pid, SIGKILL);
	_exit(write(STDOUT_FILENO, words, sizeof(words) - 1) > 0 ? 1 : 2);
}

static void check(int holds, const char *what, unsigned long n)
{
	if (holds)
		return;
	failed = 1;
	printf("traced: FAIL %s %lu: %s\n", what, n, strerror(errno));
}

/* The program that is traced. */
static void child(void)
{
	ptrace(PTRACE_TRACEME, 0, 0, 0);
	raise(SIGSTOP);
	for (;;) {
		for (unsigned n = 0; n < PLACES; n++)
			places[n]();
		for (unsigned n = 0; n < MOST; n++)
			words[n]++;
	}
}

/* Waits until the child stops. Returns whether a trap has stopped it. */
static int stopped(void)
{
	int status;

	return waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

static uint64_t pc(void)
{
	struct user_pt_regs registers = {0};
	struct iovec vector = {&registers, sizeof(registers)};

	check(!ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &vector), "registers", 0);
	return registers.pc;
}

/* How many there are of a kind. */
static unsigned count(int kind)
{
	struct user_hwdebug_state state = {0};
	struct iovec vector = {&state, sizeof(state)};

	check(!ptrace(PTRACE_GETREGSET, pid, kind, &vector), "number of registers", kind);
	return state.dbg_info & 0xff;
}

/* Sets one of a kind; `control` 0 takes it away. */
static void set(int kind, unsigned number, uint64_t address, uint32_t control)
{
	struct user_hwdebug_state state = {0};
	struct iovec vector = {&state, offsetof(struct user_hwdebug_state, dbg_regs) + (number + 1) * sizeof(state.dbg_regs[0])};

	check(!ptrace(PTRACE_GETREGSET, pid, kind, &vector), "get", number);
	state.dbg_regs[number].addr = address;
	state.dbg_regs[number].ctrl = control;
	check(!ptrace(PTRACE_SETREGSET, pid, kind, &vector), "set", number);
}

int main(void)
{
	/* Enabled, at EL0, for all four bytes; enabled, for stores to all eight bytes at EL0. */
	const uint32_t breaks = 0xf << 5 | 2 << 1 | 1, watches = 0xff << 5 | 2 << 3 | 2 << 1 | 1;
	unsigned breakpoints, watchpoints, moved = 0;
	uint64_t before;
	int status;

	pid = fork();
	if (!pid)
		child();
	signal(SIGALRM, late);
	alarm(PATIENCE);
	check(pid > 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "start", 0);
	breakpoints = count(NT_ARM_HW_BREAK);
	watchpoints = count(NT_ARM_HW_WATCH);
	check(breakpoints >= 2, "breakpoints", breakpoints);
	check(watchpoints >= 2, "watchpoints", watchpoints);

	for (unsigned n = 0; n < breakpoints && n < PLACES; n++) {
		set(NT_ARM_HW_BREAK, n, (uint64_t)places[n], breaks);
		for (int again = 0; again < 3; again++) {
			check(!ptrace(PTRACE_CONT, pid, 0, 0) && stopped(), "stop at a breakpoint", n);
			check(pc() == (uint64_t)places[n], "place of a breakpoint", n);
			/* A debugger goes on without it. */
			set(NT_ARM_HW_BREAK, n, (uint64_t)places[n], 0);
			check(!ptrace(PTRACE_SINGLESTEP, pid, 0, 0) && stopped(), "step behind a breakpoint", n);
			check(pc() == (uint64_t)places[n] + 4, "behind a breakpoint", n);
			set(NT_ARM_HW_BREAK, n, (uint64_t)places[n], breaks);
		}
		set(NT_ARM_HW_BREAK, n, (uint64_t)places[n], 0);
	}
	for (unsigned n = 0; n < watchpoints && n < MOST; n++) {
		siginfo_t info;

		set(NT_ARM_HW_WATCH, n, (uint64_t)&words[n], watches);
		check(!ptrace(PTRACE_CONT, pid, 0, 0) && stopped(), "stop at a watchpoint", n);
		check(!ptrace(PTRACE_GETSIGINFO, pid, 0, &info) && (uint64_t)info.si_addr == (uint64_t)&words[n], "address of a watchpoint", n);
		set(NT_ARM_HW_WATCH, n, (uint64_t)&words[n], 0);
	}
	before = pc();
	for (unsigned n = 0; n < STEPS; n++) {
		uint64_t now;

		check(!ptrace(PTRACE_SINGLESTEP, pid, 0, 0) && stopped(), "step", n);
		now = pc();
		moved += now != before;
		before = now;
	}
	check(moved == STEPS, "steps that have moved", moved);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	if (!failed)
		printf("traced: PASS %u breakpoints, %u watchpoints, %u steps\n", breakpoints, watchpoints, moved);
	return failed;
}
