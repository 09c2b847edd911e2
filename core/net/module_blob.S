/* The lwIP module in the image, and the names of its functions for backtraces (made by core/net/net.mk). */
    .section .rodata.lwip_module, "a"
    .balign 4096
    .globl lwip_module_start, lwip_module_end
lwip_module_start:
    .incbin LWIP_MODULE_FILE
lwip_module_end:
    .include LWIP_SYMBOLS_FILE
    .section .note.GNU-stack, "", @progbits
