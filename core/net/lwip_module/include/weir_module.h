/* What every file of the module sees: the kernel's functions, and the hooks that lwIP calls. */
#ifndef WEIR_MODULE_H
#define WEIR_MODULE_H
#include <weir/compiler.h>

void *module_alloc(size_t size);
void *module_calloc(size_t n, size_t size);
void module_free(void *p);
uint32_t module_now_ms(void);
void module_assert_failed(const char *what, const char *file, int line) __attribute__((noreturn));

/* Sum of 16-bit words as they lie in memory, for the internet checksum: headers, so few words. */
static inline uint16_t module_checksum(const void *data, int len)
{
    const uint8_t *p = (const uint8_t *)data;
    uint64_t sum = 0;
    uint32_t word;
    if (len == 20) { /* an IPv4 header: twice a round trip */
        uint32_t w[5];
        __builtin_memcpy(w, p, 20);
        sum = (uint64_t)w[0] + w[1] + w[2] + w[3] + w[4];
        sum = (sum & 0xffffffff) + (sum >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        return (uint16_t)((sum & 0xffff) + (sum >> 16));
    }
    for (; len >= 4; len -= 4, p += 4) {
        __builtin_memcpy(&word, p, 4);
        sum += word;
    }
    if (len & 2) {
        sum += (uint32_t)p[0] | (uint32_t)p[1] << 8;
        p += 2;
    }
    if (len & 1)
        sum += p[0];
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)((sum & 0xffff) + (sum >> 16));
}

/* module.c: numbers that an outsider cannot guess. */
uint32_t module_random(void);
uint32_t module_tcp_isn(uint32_t local_ip, uint16_t local_port, uint32_t remote_ip, uint16_t remote_port);
/* tcp_glue.c: 0 = process the segment, else drop it. The header's numbers are in host order already. */
struct tcp_pcb;
struct tcp_hdr;
struct pbuf;
signed char module_tcp_admit(struct tcp_pcb *pcb, const struct tcp_hdr *header, const struct pbuf *p);
#endif
