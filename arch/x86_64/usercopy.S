/*
 * Copies between kernel and program memory. RDI destination, RSI source, RDX bytes; returns the bytes NOT
 * copied. Blocks of 64 bytes, then words, then single bytes; a fault that could not be served goes on with
 * single bytes from where the block began, so the count is exact.
 */
.macro SMAP_SITE kind
9001:
    .byte 0x0f, 0x1f, 0x00
    .pushsection .smap_sites, "a"
    .quad 9001b
    .quad \kind
    .popsection
.endm
#define CLAC SMAP_SITE 0
#define STAC SMAP_SITE 1

.macro FAULT_TO label, insn:vararg
9002:
    \insn
    .pushsection .ex_table, "a"
    .quad 9002b
    .quad \label
    .popsection
.endm

    .text
    .globl usercopy_move
    .balign 64
usercopy_move:
    STAC
    cmpq $64, %rdx
    jb 2f
1:  FAULT_TO 5f, movq (%rsi), %rax
    FAULT_TO 5f, movq 8(%rsi), %rcx
    FAULT_TO 5f, movq 16(%rsi), %r8
    FAULT_TO 5f, movq 24(%rsi), %r9
    FAULT_TO 5f, movq %rax, (%rdi)
    FAULT_TO 5f, movq %rcx, 8(%rdi)
    FAULT_TO 5f, movq %r8, 16(%rdi)
    FAULT_TO 5f, movq %r9, 24(%rdi)
    FAULT_TO 5f, movq 32(%rsi), %rax
    FAULT_TO 5f, movq 40(%rsi), %rcx
    FAULT_TO 5f, movq 48(%rsi), %r8
    FAULT_TO 5f, movq 56(%rsi), %r9
    FAULT_TO 5f, movq %rax, 32(%rdi)
    FAULT_TO 5f, movq %rcx, 40(%rdi)
    FAULT_TO 5f, movq %r8, 48(%rdi)
    FAULT_TO 5f, movq %r9, 56(%rdi)
    addq $64, %rsi
    addq $64, %rdi
    subq $64, %rdx
    cmpq $64, %rdx
    jae 1b
2:  cmpq $8, %rdx
    jb 5f
3:  FAULT_TO 5f, movq (%rsi), %rax
    FAULT_TO 5f, movq %rax, (%rdi)
    addq $8, %rsi
    addq $8, %rdi
    subq $8, %rdx
    cmpq $8, %rdx
    jae 3b
5:  testq %rdx, %rdx
    jz 7f
6:  FAULT_TO 7f, movb (%rsi), %al
    FAULT_TO 7f, movb %al, (%rdi)
    incq %rsi
    incq %rdi
    decq %rdx
    jnz 6b
7:  CLAC
    movq %rdx, %rax
    ret

/* The same by REP MOVSB, for CPUs that say it is fast (ERMS) and longer pieces. */
    .globl usercopy_move_rep
    .balign 16
usercopy_move_rep:
    STAC
    movq %rdx, %rcx
    FAULT_TO 1f, rep movsb
1:  CLAC
    movq %rcx, %rax
    ret

/* RDI user destination, RSI bytes; returns the bytes not cleared. */
    .globl usercopy_zero
    .balign 16
usercopy_zero:
    STAC
    movq %rsi, %rcx
    andl $7, %esi
    shrq $3, %rcx
    xorl %eax, %eax
    FAULT_TO 2f, rep stosq
    movl %esi, %ecx
    FAULT_TO 1f, rep stosb
1:  CLAC
    movq %rcx, %rax
    ret
2:  leaq (%rsi, %rcx, 8), %rcx
    jmp 1b

/* RDI kernel destination, RSI user source: 0 or -EFAULT (-14). */
    .globl usercopy_get32
    .balign 16
usercopy_get32:
    STAC
    FAULT_TO 1f, movl (%rsi), %eax
    CLAC
    movl %eax, (%rdi)
    xorl %eax, %eax
    ret
1:  CLAC
    movl $-14, %eax
    ret

/* EDI expected, ESI desired, RDX user address, RCX kernel address for the value found. */
    .globl usercopy_cas32
    .balign 16
usercopy_cas32:
    STAC
    movl %edi, %eax
    FAULT_TO 1f, lock cmpxchgl %esi, (%rdx)
    CLAC
    movl %eax, (%rcx)
    xorl %eax, %eax
    ret
1:  CLAC
    movl $-14, %eax
    ret

    .section .note.GNU-stack, "", @progbits
