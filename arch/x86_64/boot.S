/* PVH entry (32-bit, paging off, EBX = hvm_start_info) to long mode at the high half. */
#include "asm_offsets.h"
#define PHYS(sym) ((sym) - KERNEL_BASE_ASM)

    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18              /* name size, descriptor size, XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .quad PHYS(pvh_start)

    .section .text.boot, "ax"
    .code32
    .globl pvh_start
pvh_start:
    cli
    cld
    movl %ebx, %esi             /* CPUID clobbers EBX */
    lgdt PHYS(boot_gdt_pointer)
    movl $PHYS(boot_pml4), %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x20, %eax             /* PAE */
    movl %eax, %cr4
    movl $0x80000001, %eax
    cpuid
    movl %edx, %edi
    movl $MSR_EFER, %ecx
    rdmsr
    orl $(EFER_LME | EFER_SCE), %eax
    testl $(1 << 20), %edi      /* NX */
    jz 1f
    orl $EFER_NXE, %eax
1:  wrmsr
    movl %cr0, %eax
    andl $~0x6000000c, %eax     /* CD, NW, TS, EM off */
    orl $0x80010023, %eax       /* PG, WP, NE, MP, PE */
    movl %eax, %cr0
    ljmp $KERNEL_CS, $PHYS(long_mode)
    .code64
long_mode:
    movq $high_half, %rax
    jmp *%rax
high_half:
    lgdt boot_gdt_pointer_high
    movl $KERNEL_SS, %eax
    movl %eax, %ss
    movl %eax, %ds
    movl %eax, %es
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movq $boot_stack_top, %rsp
    movl %esi, %edi
    xorl %ebp, %ebp
    call arch_start
    ud2

    .section .data, "aw"
    .balign 16
    .globl boot_gdt
boot_gdt:
    .quad 0, 0
    .quad 0x00af9b000000ffff    /* KERNEL_CS */
    .quad 0x00cf93000000ffff    /* KERNEL_SS */
boot_gdt_pointer:
    .word 31
    .long PHYS(boot_gdt)
    .balign 16
    .globl boot_gdt_pointer_high
boot_gdt_pointer_high:
    .word 31
    .quad boot_gdt

/* First GiB, three times: identity (until the jump, and for the AP trampoline), direct map, image.
 * Replaced by paging.c; afterwards only a starting AP loads it. */
    .balign 4096
    .globl boot_pml4
boot_pml4:
    .quad PHYS(boot_pdpt_low) + 3
    .fill 272, 8, 0
    .quad PHYS(boot_pdpt_low) + 3
    .fill 237, 8, 0
    .quad PHYS(boot_pdpt_high) + 3
boot_pdpt_low:
    .quad PHYS(boot_pd) + 3
    .fill 511, 8, 0
boot_pdpt_high:
    .fill 510, 8, 0
    .quad PHYS(boot_pd) + 3, 0
boot_pd:
    .set address, 0
    .rept 512
    .quad address + 0x83
    .set address, address + 0x200000
    .endr

/* The page under each stack stays unmapped once paging.c has run. */
    .section .bss.stack, "aw", @nobits
    .balign 4096
    .globl boot_stack_guard, boot_stack, boot_stack_top, boot_ist_stacks
boot_stack_guard:
    .skip 4096
boot_stack:
    .skip BOOT_STACK_SIZE
boot_stack_top:
boot_ist_stacks:
    .skip IST_STACK_SIZE * IST_COUNT

    .section .note.GNU-stack, "", @progbits
