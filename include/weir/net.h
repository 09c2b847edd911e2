/*
 * Network: devices towards drivers, sockets towards the Linux layer (core/net).
 *
 * Sockets are TCP or UDP over IPv4/IPv6 on S lwIP instances. A socket is made by socket_create, ends with
 * socket_close (graceful; memory goes when the protocol is done). Blocking is the caller's: every call
 * here is non-blocking and returns -EAGAIN; the caller waits on socket_wait_queue with socket_poll.
 * Thread context.
 */
#ifndef WEIR_NET_H
#define WEIR_NET_H
#include <weir/sched.h>
#include <weir/uio.h>
#include <weir/poll.h>

/* ---- network devices ---- */
struct net_frame;               /* one received frame: pages and offsets; owned by who holds it */
struct net_device {
    char name[16];              /* eth0 ... */
    uint8_t mac[6];
    unsigned mtu, rx_queues, tx_queues;
    bool link_up;               /* a */
    bool tx_csum, rx_csum, tso4, tso6;
    const struct net_device_ops *ops;
    void *driver_data;
    void *stack_data;           /* core/net's */
    struct list link;
};
struct net_segment { uint64_t phys; const void *virt; uint32_t len; };
/* Checksum and segmentation wishes of one frame to send (virtio_net_hdr semantics). */
#define NET_GSO_NONE 0
#define NET_GSO_TCPV4 1
#define NET_GSO_TCPV6 4
struct net_tx_info { bool needs_csum; uint16_t csum_start, csum_offset; uint16_t gso_size; uint8_t gso_type; uint16_t header_len; };
struct net_device_ops {
    /* Queue one frame on `queue`; done(cookie) is called when the device no longer needs the memory.
     * -EAGAIN = ring full (tx_wake of the stack is called when there is room). Rings the doorbell when
     * `more` is false. */
    int (*transmit)(struct net_device *d, unsigned queue, const struct net_segment *segs, unsigned count,
                    const struct net_tx_info *info, void (*done)(void *cookie), void *cookie, bool more);
    void (*flush)(struct net_device *d, unsigned queue); /* doorbell now */
    /* What the device does, and counters of its queues, as text. Any thread. Bytes written. */
    size_t (*print)(struct net_device *d, char *buf, size_t size);
};
/* At probe: a device with so many receive queues will come; as many protocol stacks are made. */
void net_device_expect(unsigned rx_queues);
int net_device_register(struct net_device *d) __must_check;
void net_device_unregister(struct net_device *d);
void net_device_link_changed(struct net_device *d);
/* After -EAGAIN there is room again, or should be looked for. Thread context, driver's queue lock not held. */
void net_device_tx_wake(struct net_device *d, unsigned queue);
void net_device_announce(struct net_device *d); /* tell the neighbours our addresses (gratuitous ARP) */

/* Bytes that belong to the stack in front of net_rx_segment.data (in each of them). */
#define NET_RX_HEADROOM 96
/* Writable bytes in front of the first segment of a frame to send: the driver's, for its header. */
#define NET_TX_HEADROOM 32

/* How received flows are spread over `queues` receive queues (RSS): Toeplitz with this key; the hash modulo the number of
 * buckets is the index of the table; what has no hash goes to queue 0. Thread context, before registration. */
#define NET_RSS_KEY_BYTES 40
#define NET_RSS_BUCKETS 128
struct net_rss { uint8_t key[NET_RSS_KEY_BYTES]; uint16_t queue[NET_RSS_BUCKETS]; };
void net_device_rss(unsigned queues, struct net_rss *out);

/* A received frame to the stack, from the receive queue's thread. `bufs` are driver buffers whose
 * ownership passes to the stack until free_fn(cookie of each). csum_ok: the device vouches for it;
 * needs_csum: partial checksum of a local sender (trusted, not on the wire). hashed: TCP over IPv4, and `hash` is what the
 * device computed of it with net_device_rss's key. */
struct net_rx_segment { void *data; uint32_t len; void (*free_fn)(void *cookie); void *cookie; };
void net_receive(struct net_device *d, unsigned queue, const struct net_rx_segment *segs, unsigned count,
                 bool csum_ok, bool needs_csum, bool hashed, uint32_t hash);
/* Called by the receiver thread after a burst, so that the stack sends what it delayed. */
void net_receive_done(struct net_device *d, unsigned queue);

/* ---- sockets ---- */
struct socket;
struct socket_address { uint16_t family; uint16_t port; /* host order */ uint8_t addr[16]; }; /* AF_INET: first 4 */
#define AF_UNSPEC_WEIR 0
#define AF_UNIX_WEIR 1
#define AF_INET_WEIR 2
#define AF_INET6_WEIR 10
#define SOCK_STREAM_WEIR 1
#define SOCK_DGRAM_WEIR 2

int socket_create(int family, int type, struct socket **out) __must_check; /* -EAFNOSUPPORT, -ENOMEM, -EPROTONOSUPPORT */
void socket_close(struct socket *s);             /* last reference of the file went */
int socket_bind(struct socket *s, const struct socket_address *a) __must_check;
int socket_listen(struct socket *s, int backlog) __must_check;
int socket_accept(struct socket *s, struct socket **out, struct socket_address *peer) __must_check;
int socket_connect(struct socket *s, const struct socket_address *a) __must_check; /* -EINPROGRESS, -EISCONN, -EALREADY */
ssize_t socket_send(struct socket *s, struct uio *u, unsigned msg_flags, const struct socket_address *to) __must_check; /* -EPIPE: the caller raises SIGPIPE */
ssize_t socket_receive(struct socket *s, struct uio *u, unsigned msg_flags, struct socket_address *from) __must_check;
int socket_shutdown(struct socket *s, int how) __must_check;
int socket_name(struct socket *s, bool peer, struct socket_address *out) __must_check;
int socket_set_option(struct socket *s, int level, int name, const void *value, size_t len) __must_check; /* Linux levels and names */
int socket_get_option(struct socket *s, int level, int name, void *value, size_t *len) __must_check;
unsigned socket_poll(struct socket *s);          /* POLL* now */
struct wait_queue *socket_wait_queue(struct socket *s);
size_t socket_readable_bytes(struct socket *s);  /* FIONREAD */
/* /proc/net/tcp etc. and counters */
size_t net_print_counters(char *buf, size_t size);
/* TCP connections of all stacks, open or closing; those that only wait out TIME_WAIT. Thread context. */
unsigned net_connections(void);
unsigned net_time_waits(void);
#endif
