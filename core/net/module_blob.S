/* The lwIP module, whole, in the image. */
    .section .rodata.lwip_module, "a"
    .balign 4096
    .globl lwip_module_start, lwip_module_end
lwip_module_start:
    .incbin LWIP_MODULE_FILE
lwip_module_end:
    .section .note.GNU-stack, "", @progbits
