# Bare metal, from M-mode into S-mode under Sv39: five timer interrupts, a page fault that its handler mends, output
# on the UART of QEMU's virt board, and the end through its test finisher.
	.option norvc
	.globl _start
_start:
	la t0, machine_trap
	csrw mtvec, t0
	li t0, 0xb1ff
	csrw medeleg, t0
	li t0, 0x222
	csrw mideleg, t0
	li t0, 7
	csrw mcounteren, t0
	li t0, 1
	slli t0, t0, 63
	csrs 0x30a, t0              # menvcfg.STCE: stimecmp
	li t0, -1
	srli t0, t0, 10
	csrw pmpaddr0, t0
	li t0, 0x1f
	csrw pmpcfg0, t0            # all of memory for S-mode
	la t0, table
	li t1, 0xcf                 # gigapage 0: devices, read and write, A and D
	sd t1, 0(t0)
	li t1, 0x200000cf           # gigapage 2: memory
	sd t1, 16(t0)
	srli t0, t0, 12
	li t1, 8
	slli t1, t1, 60
	or t0, t0, t1
	csrw satp, t0
	sfence.vma
	la t0, supervisor_trap
	csrw stvec, t0
	li t0, 0x1800
	csrc mstatus, t0
	li t0, 0x800
	csrs mstatus, t0
	la t0, supervisor
	csrw mepc, t0
	mret

supervisor:
	li s0, 0x10000000
	li s1, 0                    # timer interrupts so far
	rdtime t0
	addi t0, t0, 100
	csrw 0x14d, t0
	li t0, 0x20
	csrw sie, t0
	csrsi sstatus, 2
1:	wfi
	li t0, 5
	blt s1, t0, 1b
	csrci sstatus, 2
	li t0, 5
	slli t0, t0, 30             # 5 GiB: not mapped yet
	lwu t1, 0(t0)
	la t2, _start
	lwu t2, 0(t2)
	bne t1, t2, fail
	li a0, 'd'
	sb a0, 0(s0)
	li a0, '\n'
	sb a0, 0(s0)
	li t0, 0x100000
	li t1, 0x5555
	sw t1, 0(t0)
2:	j 2b

	.align 2
supervisor_trap:
	csrr t3, scause
	bltz t3, timer
	li t4, 13
	bne t3, t4, fail
	la t3, table
	li t4, 0x200000cf
	sd t4, 40(t3)               # 5 GiB now leads to memory
	sfence.vma
	li a0, 'p'
	sb a0, 0(s0)
	sret
timer:
	addi s1, s1, 1
	li a0, 't'
	sb a0, 0(s0)
	rdtime t3
	addi t3, t3, 100
	csrw 0x14d, t3
	sret

	.align 2
machine_trap:
fail:
	li t0, 0x100000
	li t1, 0x13333
	sw t1, 0(t0)
3:	j 3b

	.data
	.align 12
table:
	.zero 4096
