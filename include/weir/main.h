/* core/main.c: hand-over from arch, and the application to start. */
#ifndef WEIR_MAIN_H
#define WEIR_MAIN_H
/* Called by arch on the boot CPU's boot stack: memory, heap, clock, IDT, local APIC and console work,
 * interrupts are off, cmdline_init has run. Never returns (becomes the boot CPU's idle thread). */
void kernel_main(void) __attribute__((noreturn));
/* Registered at INIT_LINUX. start() returns 0 (running; machine_exit follows later), APPLICATION_NONE
 * (no root image, nothing to run) or -errno. */
#define APPLICATION_NONE 1
void main_set_application(int (*start)(void));
#endif
