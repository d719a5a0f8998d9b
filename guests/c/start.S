/*
 * From the first instruction of a guest in C to its `guest`: stack, bss, translation. Entered at EL1 with the device tree's address in x0, MMU and
 * caches off. Every address to itself: the first GiB as Device memory, the second, where RAM and channels are, as Normal write-back memory,
 * which is what the other end of a channel maps (docs/adr/0025-channels.md).
 */
	.section .text.start, "ax"
	.global _start
_start:
	msr	daifset, #15
	msr	spsel, #1
	adrp	x1, stack_top
	add	x1, x1, :lo12:stack_top
	mov	sp, x1
	adrp	x1, bss_start
	add	x1, x1, :lo12:bss_start
	adrp	x2, bss_end
	add	x2, x2, :lo12:bss_end
1:	cmp	x1, x2
	b.hs	2f
	str	xzr, [x1], #8
	b	1b

	/* Block descriptors (DDI 0487, D8.3): valid, access flag; Device is never executed. */
2:	adrp	x1, tables
	add	x1, x1, :lo12:tables
	ldr	x2, =(1 | 1 << 10 | 1 << 2 | 3 << 53)
	str	x2, [x1]
	ldr	x2, =(0x40000000 | 1 | 1 << 10 | 3 << 8)
	str	x2, [x1, #8]
	ldr	x2, =0x04ff			/* MAIR: 0 Normal write-back, 1 Device-nGnRE */
	msr	mair_el1, x2
	/* 39 bits by TTBR0, write-back and inner shareable walks, 4 KiB granule; TTBR1 off; physical addresses as the CPU has them. */
	ldr	x2, =(25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23)
	mrs	x3, id_aa64mmfr0_el1
	and	x3, x3, #7
	orr	x2, x2, x3, lsl #32
	msr	tcr_el1, x2
	msr	ttbr0_el1, x1
	dsb	sy
	tlbi	vmalle1
	ic	iallu
	dsb	sy
	isb
	ldr	x2, =(0x30d00800 | 1 | 1 << 2 | 1 << 3 | 1 << 12)
	msr	sctlr_el1, x2
	isb
	bl	guest

	/* PSCI SYSTEM_OFF (DEN0022) */
	ldr	x0, =0x84000008
	hvc	#0
3:	wfi
	b	3b

	.bss
	.balign	4096
tables:
	.space	4096
