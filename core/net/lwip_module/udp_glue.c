/* UDP of one lwIP instance. */
#include "glue.h"
#include "lwip/pbuf.h"
#include "lwip/udp.h"
#include <weir/errno.h>

#define PCB(u) ((struct udp_pcb *)(u))

static void copy_datagram(void *pbuf, void *dst, uint32_t len)
{
    pbuf_copy_partial(pbuf, dst, (u16_t)len, 0);
}

static void on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *addr, u16_t port)
{
    (void)pcb;
    struct stack_address from = { ip_addr_get_ip4_u32(addr), port };
    socket_udp_data(arg, &from, p->tot_len, copy_datagram, p);
    pbuf_free(p);
}

static struct udp_handle *glue_udp_new(struct socket *s)
{
    struct udp_pcb *pcb = udp_new();
    if (pcb)
        udp_recv(pcb, on_datagram, s);
    return (struct udp_handle *)pcb;
}

static void glue_udp_close(struct udp_handle *u)
{
    udp_remove(PCB(u));
}

static int glue_udp_bind(struct udp_handle *u, const struct stack_address *a, bool reuse)
{
    ip_addr_t ip = glue_ip(a->ip);
    if (reuse)
        ip_set_option(PCB(u), SOF_REUSEADDR);
    ip_set_option(PCB(u), SOF_BROADCAST);
    return glue_errno(udp_bind(PCB(u), &ip, a->port));
}

static int glue_udp_connect(struct udp_handle *u, const struct stack_address *a)
{
    ip_addr_t ip = glue_ip(a->ip);
    return glue_errno(udp_connect(PCB(u), &ip, a->port));
}

static void glue_udp_disconnect(struct udp_handle *u)
{
    udp_disconnect(PCB(u));
}

static int glue_udp_send(struct udp_handle *u, const void *data, size_t len, const struct stack_address *to)
{
    struct pbuf *p = pbuf_alloc(PBUF_TRANSPORT, (u16_t)len, PBUF_RAM);
    if (!p)
        return -ENOBUFS;
    memcpy(p->payload, data, len);
    err_t err;
    if (to) {
        ip_addr_t ip = glue_ip(to->ip);
        err = udp_sendto(PCB(u), p, &ip, to->port);
    } else {
        err = udp_send(PCB(u), p);
    }
    pbuf_free(p);
    return err == ERR_MEM ? -ENOBUFS : glue_errno(err);
}

static void glue_udp_names(struct udp_handle *u, struct stack_address *local, struct stack_address *remote)
{
    *local = (struct stack_address){ ip_addr_get_ip4_u32(&PCB(u)->local_ip), PCB(u)->local_port };
    *remote = (struct stack_address){ ip_addr_get_ip4_u32(&PCB(u)->remote_ip), PCB(u)->remote_port };
}

const struct module_ops udp_glue_ops = {
    .udp_new = glue_udp_new,
    .udp_close = glue_udp_close,
    .udp_bind = glue_udp_bind,
    .udp_connect = glue_udp_connect,
    .udp_disconnect = glue_udp_disconnect,
    .udp_send = glue_udp_send,
    .udp_names = glue_udp_names,
};
