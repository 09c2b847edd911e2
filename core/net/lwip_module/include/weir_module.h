/* What every file of the module sees: the kernel's functions, and the hooks that lwIP calls. */
#ifndef WEIR_MODULE_H
#define WEIR_MODULE_H
#include <weir/compiler.h>

void *module_alloc(size_t size);
void *module_calloc(size_t n, size_t size);
void module_free(void *p);
uint32_t module_now_ms(void);
void module_assert_failed(const char *what, const char *file, int line) __attribute__((noreturn));

/* module.c: numbers that an outsider cannot guess. */
uint32_t module_random(void);
uint32_t module_tcp_isn(uint32_t local_ip, uint16_t local_port, uint32_t remote_ip, uint16_t remote_port);
/* tcp_glue.c: 0 = process the segment, else drop it. The header's numbers are in host order already. */
struct tcp_pcb;
struct tcp_hdr;
struct pbuf;
signed char module_tcp_admit(struct tcp_pcb *pcb, const struct tcp_hdr *header, const struct pbuf *p);
#endif
