/*
 * Start of an application processor: real mode at a page below 1 MiB, to long mode on boot_pml4, to its own
 * stack. Copied to the page by smp.c, so everything here is relative to trampoline_start and the page's
 * address comes from CS. Touches no lock and no memory but its own until it has arrived: it may be reset and
 * started again at any point.
 */
#include "asm_offsets.h"
#define PHYS(sym) ((sym) - KERNEL_BASE_ASM)
#define HERE(sym) ((sym) - trampoline_start)

    .section .rodata, "a"
    .balign 16
    .code16
    .globl trampoline_start, trampoline_end, trampoline_far, trampoline_gdt_base, trampoline_efer
trampoline_start:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    lgdtl HERE(trampoline_gdt_pointer)
    movl $0x20, %eax            /* PAE */
    movl %eax, %cr4
    movl HERE(trampoline_cr3), %eax
    movl %eax, %cr3
    movl $MSR_EFER, %ecx
    rdmsr
    orl HERE(trampoline_efer), %eax
    wrmsr
    movl %cr0, %eax
    andl $~0x6000000c, %eax
    orl $0x80010023, %eax       /* PG and PE together: straight to long mode */
    movl %eax, %cr0
    ljmpl *HERE(trampoline_far)
    .balign 8
trampoline_far:                 /* filled in by smp.c: linear address of trampoline_long */
    .long 0
    .word KERNEL_CS
trampoline_efer:
    .long EFER_LME | EFER_SCE
trampoline_cr3:
    .long PHYS(boot_pml4)
trampoline_gdt_pointer:
    .word 31
trampoline_gdt_base:            /* filled in by smp.c */
    .long 0
    .balign 8
    .globl trampoline_gdt
trampoline_gdt:
    .quad 0, 0
    .quad 0x00af9b000000ffff
    .quad 0x00cf93000000ffff

    .code64
    .globl trampoline_long
trampoline_long:
    movq $ap_high, %rax
    jmp *%rax
trampoline_end:

    .text
ap_high:
    movl $KERNEL_SS, %eax
    movl %eax, %ss
    movl %eax, %ds
    movl %eax, %es
    lgdt boot_gdt_pointer_high
    movq kernel_cr3, %rax       /* boot_pml4 maps the first GiB only: the stacks may lie above */
    movq %rax, %cr3
    movl $1, %eax
    lock xaddl %eax, ap_next_stack
    cmpl ap_stack_count, %eax
    jae 1f                      /* more arrivals than stacks: not one of ours */
    movq ap_stacks, %rdx
    movq (%rdx, %rax, 8), %rsp
    movl %eax, %edi
    xorl %ebp, %ebp
    call ap_start
1:  cli
    hlt
    jmp 1b

    .section .note.GNU-stack, "", @progbits
