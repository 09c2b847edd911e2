/* Multiboot entry: magic in EAX, information in EBX; jumps to what shim() returns, with EBX as PVH wants it. */
    .section .multiboot, "a", @progbits
    .align 4
    .long 0x1badb002, 2, -(0x1badb002 + 2) /* memory map wanted */

    .text
    .globl start
start:
    mov $stack_end, %esp
    push %ebx
    push %eax
    call shim /* in EAX the entry, in EDX the start info */
    mov %edx, %ebx
    jmp *%eax

    .bss
    .align 16
    .skip 4096
stack_end:
    .section .note.GNU-stack, "", @progbits
