/* Numbers that assembler and C share. cpu.c checks each against the structures. */
#ifndef WEIR_ARCH_ASM_OFFSETS_H
#define WEIR_ARCH_ASM_OFFSETS_H

#define KERNEL_BASE_ASM 0xffffffff80000000

/* Segment selectors. The order is what SYSRET wants (user code = base + 16, user data = base + 8) and
 * what Linux uses, because programs see the values in signal frames. */
#define KERNEL_CS 0x10
#define KERNEL_SS 0x18
#define USER_CS32 0x23
#define USER_SS   0x2b
#define USER_CS   0x33
#define TSS_SEL   0x40

#define CPU_CURRENT    8
#define CPU_KERNEL_RSP 16
#define CPU_USER_RSP   24

#define TF_R15    0
#define TF_RBX    40
#define TF_R11    48
#define TF_RAX    80
#define TF_RCX    88
#define TF_RDI    112
#define TF_ORIG   120
#define TF_ERROR  128
#define TF_RIP    136
#define TF_CS     144
#define TF_RFLAGS 152
#define TF_RSP    160
#define TF_SS     168
#define TF_SIZE   176

#define IST_NMI 1
#define IST_DF  2
#define IST_MC  3
#define IST_DB  4
#define IST_COUNT 4

#define BOOT_STACK_SIZE 16384
#define IST_STACK_SIZE  8192

#define MSR_EFER    0xc0000080
#define MSR_GS_BASE 0xc0000101
#define EFER_SCE 0x001
#define EFER_LME 0x100
#define EFER_NXE 0x800

#endif
