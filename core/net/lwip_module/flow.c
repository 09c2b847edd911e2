/*
 * From a frame to its connection without a walk. lwIP looks for the connection of a segment in a list, from its head on,
 * and moves what it found to the front: fine for one peer, thousands of steps for thousands. Here is a table by
 * addresses and ports of the connections that others made to us. For the time of one input its find is the head of
 * lwIP's list: the first look hits. The true head comes back afterwards; if lwIP has taken the connection off its
 * list meanwhile (it ended), it is taken off the true list too, which takes a walk, once in its life.
 *
 * Nothing in one input of a known connection puts another on that list or takes one off: callbacks of core/net only
 * make notes. What is not in the table (active opens, loopback, requests for a connection) is found as lwIP does.
 */
#include "glue.h"
#include "lwip/priv/tcp_priv.h"

#define BUCKETS 1024u

struct flow {
    struct flow *next;
    struct tcp_pcb *pcb;
    unsigned bucket;
};
static struct flow *buckets[BUCKETS];
static u8_t ext_id;
static uint64_t key;             /* odd: which flows share a bucket cannot be guessed */
static struct tcp_pcb *true_head; /* while `parked` */

static unsigned bucket_of(uint32_t remote_ip, uint32_t local_ip, uint16_t remote_port, uint16_t local_port)
{
    uint64_t x = ((uint64_t)remote_ip << 32 | (uint32_t)remote_port << 16 | local_port) ^ (uint64_t)local_ip << 13;
    x *= key;
    x ^= x >> 29;
    x *= key;
    return (unsigned)(x >> 40) % BUCKETS;
}

static void on_destroy(u8_t id, void *data)
{
    struct flow *f = data;
    (void)id;
    if (!f)
        return;
    struct flow **at = &buckets[f->bucket];
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    module_free(f);
}

static const struct tcp_ext_arg_callbacks callbacks = { on_destroy, NULL };

void flow_add(struct tcp_pcb *pcb)
{
    struct flow *f = module_alloc(sizeof(*f));
    if (!f)
        return; /* it is found all the same */
    f->pcb = pcb;
    f->bucket = bucket_of(ip_addr_get_ip4_u32(&pcb->remote_ip), ip_addr_get_ip4_u32(&pcb->local_ip), pcb->remote_port,
                          pcb->local_port);
    f->next = buckets[f->bucket];
    buckets[f->bucket] = f;
    tcp_ext_arg_set_callbacks(pcb, ext_id, &callbacks);
    tcp_ext_arg_set(pcb, ext_id, f);
}

bool flow_forget(struct tcp_pcb *pcb)
{
    struct flow *f = tcp_ext_arg_get(pcb, ext_id);
    on_destroy(ext_id, f);
    tcp_ext_arg_set(pcb, ext_id, NULL);
    return f != NULL;
}

static struct tcp_pcb *flow_find(const uint8_t *frame, uint32_t len)
{
    /* Ethernet (14), IPv4 (at least 20), TCP (at least 20); no fragment. */
    if (len < 54 || frame[12] != 0x08 || frame[13] != 0x00 || frame[23] != IP_PROTO_TCP || (frame[20] & 0x3f) || frame[21])
        return NULL;
    unsigned ip_len = (frame[14] & 15) * 4U;
    if (ip_len < 20 || 14 + ip_len + 20 > len)
        return NULL;
    const uint8_t *tcp = frame + 14 + ip_len;
    uint32_t remote_ip, local_ip;
    memcpy(&remote_ip, frame + 26, 4);
    memcpy(&local_ip, frame + 30, 4);
    uint16_t remote_port = (uint16_t)(tcp[0] << 8 | tcp[1]), local_port = (uint16_t)(tcp[2] << 8 | tcp[3]);
    for (struct flow *f = buckets[bucket_of(remote_ip, local_ip, remote_port, local_port)]; f; f = f->next) {
        struct tcp_pcb *pcb = f->pcb;
        if (pcb->remote_port == remote_port && pcb->local_port == local_port && pcb->state > LISTEN &&
            pcb->state != TIME_WAIT && ip_addr_get_ip4_u32(&pcb->remote_ip) == remote_ip &&
            ip_addr_get_ip4_u32(&pcb->local_ip) == local_ip)
            return pcb;
    }
    return NULL;
}

struct tcp_pcb *flow_park(const uint8_t *frame, uint32_t len)
{
    struct tcp_pcb *pcb = flow_find(frame, len);
    if (!pcb || pcb == tcp_active_pcbs)
        return NULL;
    true_head = tcp_active_pcbs;
    tcp_active_pcbs = pcb;
    return pcb;
}

void flow_unpark(struct tcp_pcb *parked)
{
    struct tcp_pcb *behind = tcp_active_pcbs;
    if (!parked)
        return;
    tcp_active_pcbs = true_head;
    if (behind == parked)
        return;
    /* lwIP has unlinked it from the list that began with it; it may be freed already. */
    struct tcp_pcb *p = true_head;
    while (p->next != parked)
        p = p->next;
    p->next = behind;
}

void flow_start(uint64_t seed)
{
    ext_id = tcp_ext_arg_alloc_id();
    key = seed | 1;
}
