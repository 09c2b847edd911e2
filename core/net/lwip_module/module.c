/* One lwIP instance: start, timers, counters, errors, numbers that cannot be guessed. */
#include "glue.h"
#include "lwip/dhcp.h"
#include "lwip/init.h"
#include "lwip/netif.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/stats.h"
#include "lwip/sys.h"
#include "lwip/timeouts.h"
#include <weir/errno.h>

static uint64_t key[2];
static uint64_t random_counter;

/* SipHash-2-4 of four words: a keyed function of what an outsider knows, that he cannot compute. */
static inline uint64_t rotate(uint64_t x, unsigned n)
{
    return (x << n) | (x >> (64 - n));
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static uint64_t keyed_hash(uint64_t a, uint64_t b)
{
    uint64_t v[4] = { key[0] ^ 0x736f6d6570736575UL, key[1] ^ 0x646f72616e646f6dUL,
                      key[0] ^ 0x6c7967656e657261UL, key[1] ^ 0x7465646279746573UL };
    const uint64_t words[3] = { a, b, 16UL << 56 };
    for (unsigned i = 0; i < 3; i++) {
        v[3] ^= words[i];
        sip_round(v);
        sip_round(v);
        v[0] ^= words[i];
    }
    v[2] ^= 0xff;
    for (unsigned i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint32_t module_random(void)
{
    return (uint32_t)keyed_hash(random_counter++, 1);
}

uint32_t module_tcp_isn(uint32_t local_ip, uint16_t local_port, uint32_t remote_ip, uint16_t remote_port)
{
    uint64_t ports = (uint64_t)local_port << 16 | remote_port;
    /* RFC 6528: a clock of 4 us plus the keyed hash of the connection. */
    return (uint32_t)keyed_hash((uint64_t)local_ip << 32 | remote_ip, ports << 8) + module_now_ms() * 250;
}

/* lwIP asks for the time when it sets a timer, and when it looks at them. */
static bool timers_touched;

u32_t sys_now(void)
{
    timers_touched = true;
    return module_now_ms();
}

int glue_errno(err_t err)
{
    switch (err) {
    case ERR_OK:
    case ERR_CLSD:
        return 0;
    case ERR_MEM:
        return -ENOMEM;
    case ERR_BUF:
        return -EADDRNOTAVAIL; /* no free port */
    case ERR_TIMEOUT:
    case ERR_ABRT:
        return -ETIMEDOUT;
    case ERR_RTE:
        return -ENETUNREACH;
    case ERR_USE:
        return -EADDRINUSE;
    case ERR_ALREADY:
        return -EALREADY;
    case ERR_ISCONN:
        return -EISCONN;
    case ERR_CONN:
        return -ENOTCONN;
    case ERR_RST:
        return -ECONNRESET;
    case ERR_WOULDBLOCK:
        return -EAGAIN;
    default:
        return -EINVAL;
    }
}

struct stack *glue_stack;

static void module_start(struct stack *stack, const uint64_t seed[2])
{
    glue_stack = stack;
    key[0] = seed[0];
    key[1] = seed[1];
    lwip_init();
    struct netif *n;
    NETIF_FOREACH(n)
        NETIF_SET_CHECKSUM_CTRL(n, 0); /* the loopback interface: memory does not err on the way */
    tcp_glue_start();
    flow_start(keyed_hash(2, 2));
}

static uint32_t module_run_timers(bool due)
{
    tcp_glue_trim_time_wait();
    if (!due && !timers_touched)
        return STACK_TIMERS_AS_BEFORE;
    sys_check_timeouts();
    tcp_glue_trim_time_wait();
    uint32_t ms = sys_timeouts_sleeptime();
    timers_touched = false;
    return ms == SYS_TIMEOUTS_SLEEPTIME_INFINITE ? STACK_NO_TIMER : ms;
}

static bool module_poll_loopback(void)
{
    bool found = false;
    struct netif *n;
    NETIF_FOREACH(n) {
        if (n->loop_first) {
            found = true;
            netif_poll(n);
        }
    }
    return found;
}

static void module_counters(struct stack_counters *c)
{
    *c = (struct stack_counters){
        .tcp_in = lwip_stats.tcp.recv, .tcp_out = lwip_stats.tcp.xmit, .tcp_dropped = lwip_stats.tcp.drop,
        .tcp_checksum = lwip_stats.tcp.chkerr, .tcp_memory = lwip_stats.tcp.memerr,
        .ip_in = lwip_stats.ip.recv, .ip_dropped = lwip_stats.ip.drop,
        .udp_in = lwip_stats.udp.recv, .udp_dropped = lwip_stats.udp.drop,
        .icmp_in = lwip_stats.icmp.recv, .arp_in = lwip_stats.etharp.recv,
    };
    for (struct tcp_pcb *p = tcp_active_pcbs; p; p = p->next)
        c->tcp_active++;
    for (struct tcp_pcb *p = tcp_tw_pcbs; p; p = p->next)
        c->tcp_time_wait++;
    for (struct tcp_pcb_listen *p = tcp_listen_pcbs.listen_pcbs; p; p = p->next)
        c->tcp_listening++;
}

static struct module_ops ops;

#define TAKE(from, member) ops.member = (from).member
const struct module_ops *lwip_module_ops(void)
{
    ops = tcp_glue_ops;
    ops.start = module_start;
    ops.run_timers = module_run_timers;
    ops.poll_loopback = module_poll_loopback;
    ops.counters = module_counters;
    TAKE(netif_glue_ops, netif_add);
    TAKE(netif_glue_ops, netif_remove);
    TAKE(netif_glue_ops, netif_link);
    TAKE(netif_glue_ops, netif_set_address);
    TAKE(netif_glue_ops, netif_dhcp);
    TAKE(netif_glue_ops, netif_address);
    TAKE(netif_glue_ops, netif_announce);
    TAKE(netif_glue_ops, netif_input);
    TAKE(netif_glue_ops, pbuf_free);
    TAKE(udp_glue_ops, udp_new);
    TAKE(udp_glue_ops, udp_close);
    TAKE(udp_glue_ops, udp_bind);
    TAKE(udp_glue_ops, udp_connect);
    TAKE(udp_glue_ops, udp_disconnect);
    TAKE(udp_glue_ops, udp_send);
    TAKE(udp_glue_ops, udp_names);
    return &ops;
}
