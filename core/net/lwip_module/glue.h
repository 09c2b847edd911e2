/* Private to the module: what its files share. */
#ifndef LWIP_MODULE_GLUE_H
#define LWIP_MODULE_GLUE_H
#include "lwip/err.h"
#include "lwip/ip_addr.h"
#include "core/net/stack_api.h"
#include <string.h>

int glue_errno(err_t err); /* lwIP's error as -errno */
static inline ip_addr_t glue_ip(uint32_t ip)
{
    ip_addr_t a;
    ip_addr_set_ip4_u32_val(a, ip);
    return a;
}

extern struct stack *glue_stack; /* whose instance this is */

void tcp_glue_start(void);

/* flow.c: a passively opened connection into the table (it leaves by itself), and around one frame's input. */
struct tcp_pcb;
void flow_start(uint64_t seed);
void flow_add(struct tcp_pcb *pcb);
bool flow_forget(struct tcp_pcb *pcb); /* in TIME_WAIT it is not looked for here. False: it was not in the table */
struct tcp_pcb *flow_park(const uint8_t *frame, uint32_t len);
void flow_unpark(struct tcp_pcb *parked); /* NULL = nothing */
void tcp_glue_trim_time_wait(void);
/* A connection request for a pair of addresses that still waits in TIME_WAIT ends that wait. */
void tcp_glue_before_input(const uint8_t *frame, uint32_t len);

extern const struct module_ops tcp_glue_ops, udp_glue_ops, netif_glue_ops; /* each fills its members */
#endif
