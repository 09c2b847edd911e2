/* The vDSO as data of the kernel; see vdso/. */
    .section .rodata
    .balign 4096
    .global vdso_image_start, vdso_image_end
vdso_image_start:
    .incbin VDSO_SO
vdso_image_end:
    .section .note.GNU-stack, "", @progbits
