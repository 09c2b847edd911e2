/* Boots by PVH and leaves at once with status 0: what a machine costs before a kernel does anything. */
    .section .note.pvh, "a", @note
    .long 4, 4, 18 /* XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .long entry

    .text
    .code32
    .globl entry
entry:
    mov $0xf4, %edx /* isa-debug-exit */
    xor %eax, %eax
    out %eax, %dx
    hlt
