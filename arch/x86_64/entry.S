/*
 * Entry from ring 3 and ring 0, exit, and the context switch.
 *
 * GS holds this CPU's struct cpu whenever the kernel runs; SWAPGS exchanges it with the program's on the
 * way in and out. CR4.FSGSBASE stays off, so a program's GS base is always a user address (bit 63
 * clear), and NMI, #DF, #MC and #DB -- which may strike between SYSCALL and SWAPGS -- can tell from the
 * sign of the MSR which one is loaded.
 */
#include "asm_offsets.h"

/* Three bytes that smap_patch() turns into CLAC or STAC where CPUID offers SMAP. */
.macro SMAP_SITE kind
9001:
    .byte 0x0f, 0x1f, 0x00
    .pushsection .smap_sites, "a"
    .quad 9001b
    .quad \kind
    .popsection
.endm
#define CLAC SMAP_SITE 0

.macro PUSH_REGS
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %rax
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
.endm
.macro POP_REGS
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rax
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
.endm
/* A frame record with the interrupted address, so that backtraces walk through interrupts. */
.macro CALL_WITH_FRAME fn
    movq %rsp, %rdi
    pushq TF_RIP(%rdi)
    pushq %rbp
    movq %rsp, %rbp
    call \fn
    addq $16, %rsp
.endm

    .text
/* One stub of 16 bytes for each vector. */
    .balign 16
    .globl vector_stubs
vector_stubs:
    .set vector, 0
    .rept 256
    .balign 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    pushq $0
    .endif
    pushq $vector
    .if vector == 1 || vector == 2 || vector == 8 || vector == 18
    jmp paranoid_entry
    .else
    jmp common_entry
    .endif
    .set vector, vector + 1
    .endr

    .globl common_entry
common_entry:
    testb $3, TF_CS - TF_ORIG(%rsp)
    jz 1f
    swapgs
    CLAC
    cld
    PUSH_REGS
user_trap:
    xorl %ebp, %ebp             /* a backtrace ends at the border to ring 3 */
    CALL_WITH_FRAME trap_dispatch
    jmp return_to_user
1:  CLAC
    cld
    /* IRETQ to ring 3 faults in ring 0, after SWAPGS, when a signal frame gave it a bad address or
     * selector: make it the program's fault. */
    cmpq $iret_to_user, TF_RIP - TF_ORIG(%rsp)
    je 2f
    PUSH_REGS
    CALL_WITH_FRAME trap_dispatch
    .globl return_to_kernel
return_to_kernel:
    POP_REGS
    addq $16, %rsp
    iretq
2:  swapgs
    PUSH_REGS
    movq %rsp, %rdi
    call trap_iret_fault        /* returns the frame, rebuilt at the top of the stack */
    movq %rax, %rsp
    jmp user_trap

/* NMI, #DF, #MC, #DB: own stack, GS unknown. */
paranoid_entry:
    CLAC
    cld
    PUSH_REGS
    testb $3, TF_CS(%rsp)
    jnz 2f
    xorl %ebx, %ebx
    movl $MSR_GS_BASE, %ecx
    rdmsr
    testl %edx, %edx
    js 1f
    swapgs
    incl %ebx
1:  CALL_WITH_FRAME trap_dispatch_paranoid
    testl %ebx, %ebx
    jz return_to_kernel
    swapgs
    jmp return_to_kernel
2:  swapgs
    cmpb $2, TF_ORIG(%rsp)
    je 3f
    /* #DB and #MC from ring 3 may block or end the program: move to the thread's own stack. */
    movq %rsp, %rsi
    movq %gs:CPU_KERNEL_RSP, %rsp
    subq $TF_SIZE, %rsp
    movq %rsp, %rdi
    movl $(TF_SIZE / 8), %ecx
    rep movsq
    jmp user_trap
3:  xorl %ebp, %ebp
    CALL_WITH_FRAME trap_dispatch_paranoid
    swapgs
    jmp return_to_kernel

    .globl syscall_entry
    .balign 64
syscall_entry:                  /* interrupts off, AC and DF cleared by SFMASK */
    swapgs
    movq %rsp, %gs:CPU_USER_RSP
    movq %gs:CPU_KERNEL_RSP, %rsp
    pushq $USER_SS
    pushq %gs:CPU_USER_RSP
    pushq %r11
    pushq $USER_CS
    pushq %rcx
    pushq $0
    pushq %rax
    PUSH_REGS
    xorl %ebp, %ebp
    CALL_WITH_FRAME trap_syscall

/* RSP = the trapframe. */
    .globl return_to_user
return_to_user:
    movq %rsp, %rdi
    call trap_prepare_user      /* returns with interrupts off; true if SYSRET will do */
    testb %al, %al
    jz 1f
    POP_REGS
    movq TF_RSP - TF_ORIG(%rsp), %rsp
    swapgs                      /* interrupts are off; NMI copes (see above) */
    sysretq
1:  POP_REGS
    addq $16, %rsp
    swapgs
    .globl iret_to_user
iret_to_user:
    iretq

/* struct thread *switch_stacks(uint64_t *save_rsp, uint64_t new_rsp, struct thread *prev) */
    .globl switch_stacks
    .balign 16
switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    movq %rdx, %rax
    ret

/* First code of a kernel thread: RBX = entry. Interrupts are off. */
    .globl thread_first_kernel
thread_first_kernel:
    xorl %ebp, %ebp
    call *%rbx
    ud2

/* First code of a user thread: its trapframe lies at RSP. */
    .globl thread_first_user
thread_first_user:
    xorl %ebp, %ebp
    call sched_switched_in
    jmp return_to_user

    .section .note.GNU-stack, "", @progbits
