/*
 * The border between core/net in the kernel image and one lwIP instance, a module of its own
 * (core/net/lwip_module). No lwIP type crosses it; both sides include this file.
 *
 * The kernel holds the stack's lock around every operation below, except pbuf_free. The module calls back
 * into the kernel (struct module_imports names those functions) under that lock; they must not block.
 */
#ifndef CORE_NET_STACK_API_H
#define CORE_NET_STACK_API_H
#include <weir/compiler.h>

struct stack;        /* kernel's */
struct socket;       /* kernel's; the module only hands it back */
struct net_device;   /* the same */
struct tcp_handle;   /* a lwIP connection; valid until socket_tcp_gone() of its socket */
struct tcp_listener; /* a lwIP listener; valid until tcp_listen_close */
struct udp_handle;
struct netif_handle;

/* IPv4 address in network order, port in host order. */
struct stack_address {
    uint32_t ip;
    uint16_t port;
};

/* A piece of a frame on its way out. `pages`: memory of page_alloc, which may be sent by reference. */
struct stack_tx_piece {
    const void *data;
    uint32_t len;
    bool pages;
};
#define STACK_TX_PIECES 24

/* A piece of a received frame; NET_RX_HEADROOM bytes before the first byte of `data` are usable. */
struct stack_rx_piece {
    void *data;
    uint32_t len;
    void (*free_fn)(void *cookie);
    void *cookie;
};

struct stack_keepalive {
    bool on;
    uint32_t idle_ms, interval_ms, count;
};

struct stack_tcp_info {
    uint8_t state; /* Linux TCP_ESTABLISHED ... values */
    uint32_t snd_mss, snd_cwnd, snd_wnd, rcv_wnd, retransmits;
    uint32_t queued_bytes, rto_ms;
};

struct stack_counters {
    uint64_t tcp_in, tcp_out, tcp_dropped, tcp_checksum, tcp_memory;
    uint64_t ip_in, ip_dropped, udp_in, udp_dropped, icmp_in, arp_in;
    uint32_t tcp_active, tcp_time_wait, tcp_listening;
};

#define STACK_NO_TIMER UINT32_MAX
#define STACK_TIMERS_AS_BEFORE (UINT32_MAX - 1)
/* struct module_ops.netif_add: what the device can do. */
#define STACK_NETIF_TX_CSUM 1u

struct module_ops {
    /* `stack` comes back in the calls that name no socket. */
    void (*start)(struct stack *stack, const uint64_t random_seed[2]);
    /* Run what is due, if the timer went off or a timer was set since; milliseconds until the next, or one of the
     * values above. */
    uint32_t (*run_timers)(bool due);
    /* Deliver what was sent to this machine itself; true if there was something. */
    bool (*poll_loopback)(void);

    struct netif_handle *(*netif_add)(struct net_device *d, const char *name, const uint8_t mac[6], unsigned mtu,
                                      unsigned flags);
    void (*netif_remove)(struct netif_handle *n);
    void (*netif_link)(struct netif_handle *n, bool up);
    void (*netif_set_address)(struct netif_handle *n, uint32_t ip, uint32_t mask, uint32_t gateway);
    int (*netif_dhcp)(struct netif_handle *n);
    bool (*netif_address)(struct netif_handle *n, uint32_t *ip, uint32_t *mask, uint32_t *gateway);
    void (*netif_announce)(struct netif_handle *n); /* gratuitous ARP */
    /* verified: TCP and UDP sums need no look (the device did, or a local sender left them partial). */
    void (*netif_input)(struct netif_handle *n, const struct stack_rx_piece *pieces, unsigned count, bool verified);

    struct tcp_handle *(*tcp_new)(struct socket *s);
    int (*tcp_bind)(struct tcp_handle *t, const struct stack_address *a, bool reuse);
    /* Consumes t on success. */
    struct tcp_listener *(*tcp_listen)(struct tcp_handle *t, struct socket *s);
    void (*tcp_listen_close)(struct tcp_listener *l);
    int (*tcp_connect)(struct tcp_handle *t, const struct stack_address *a);
    /* Bytes accepted (0 = full), or -errno. copy: the data is copied; else it must stay until acknowledged. */
    long (*tcp_write)(struct tcp_handle *t, const void *data, size_t len, bool copy, bool more);
    void (*tcp_output)(struct tcp_handle *t);
    void (*tcp_consumed)(struct tcp_handle *t, size_t len, size_t grow);
    size_t (*tcp_window)(struct tcp_handle *t, size_t set); /* set != 0: initial receive window */
    int (*tcp_shutdown_send)(struct tcp_handle *t); /* FIN after what was written */
    void (*tcp_close)(struct tcp_handle *t);        /* FIN, and nothing more is received */
    void (*tcp_abort)(struct tcp_handle *t);        /* RST */
    void (*tcp_names)(struct tcp_handle *t, struct stack_address *local, struct stack_address *remote);
    void (*tcp_no_delay)(struct tcp_handle *t, bool on);
    void (*tcp_keepalive)(struct tcp_handle *t, const struct stack_keepalive *k);
    void (*tcp_info)(struct tcp_handle *t, struct stack_tcp_info *out);
    void (*tcp_output_all)(void); /* after a full transmit ring: send what waits */
    void (*tcp_time_wait_limit)(unsigned limit);

    struct udp_handle *(*udp_new)(struct socket *s);
    void (*udp_close)(struct udp_handle *u);
    int (*udp_bind)(struct udp_handle *u, const struct stack_address *a, bool reuse);
    int (*udp_connect)(struct udp_handle *u, const struct stack_address *a);
    void (*udp_disconnect)(struct udp_handle *u);
    int (*udp_send)(struct udp_handle *u, const void *data, size_t len, const struct stack_address *to);
    void (*udp_names)(struct udp_handle *u, struct stack_address *local, struct stack_address *remote);

    void (*counters)(struct stack_counters *out);
    void (*pbuf_free)(void *pbuf); /* no lock needed: the caller is the only owner */
};

/* ---- what the kernel provides to the module ---- */
/* The frame to d; 0, -ENOBUFS (dropped; tcp_output_all follows when there is room). */
int stack_transmit(struct stack *st, struct net_device *d, const struct stack_tx_piece *pieces, unsigned count);
void stack_netif_changed(struct stack *st, struct net_device *d);
/* A SYN arrived for a listener: may a connection be made? Then either socket_tcp_accepted or _dropped follows. */
bool socket_tcp_syn(struct socket *listener);
void socket_tcp_syn_dropped(struct socket *listener);
/* Handshake done: the socket of the new connection, NULL = refuse (RST). */
struct socket *socket_tcp_accepted(struct stack *st, struct socket *listener, struct tcp_handle *t);
void socket_tcp_connected(struct socket *s);
/* One piece of data in order: true = the kernel keeps `pbuf` (module_ops.pbuf_free later). */
bool socket_tcp_data(struct socket *s, const void *data, uint32_t len, void *pbuf);
void socket_tcp_data_end(struct socket *s); /* after the pieces of one segment */
void socket_tcp_eof(struct socket *s);
void socket_tcp_acked(struct socket *s, uint32_t len);
void socket_tcp_error(struct socket *s, int error); /* -errno; the handle is gone */
void socket_tcp_gone(struct socket *s);             /* lwIP has freed the connection: last call for it */
void socket_udp_data(struct socket *s, const struct stack_address *from, uint32_t len,
                     void (*copy)(void *pbuf, void *dst, uint32_t len), void *pbuf);

void *module_alloc(size_t size);
void *module_calloc(size_t n, size_t size);
void module_free(void *p);
uint32_t module_now_ms(void);
void module_log(const char *text);
__noreturn void module_assert_failed(const char *what, const char *file, int line);

/* The module's one exported symbol. */
__attribute__((visibility("default"))) const struct module_ops *lwip_module_ops(void);
#endif
