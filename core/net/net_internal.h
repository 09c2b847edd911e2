/*
 * Private to core/net.
 *
 * Lock order: stack->lock (mutex) > socket->lock, stack->pending_lock, tx_queue->lock (spin, threads only)
 * > wait queue locks. socket->read_mutex and ->write_mutex are taken before stack->lock, and are the only
 * locks held while program memory is touched.
 *
 * Whoever wants something of lwIP for a connected socket notes it in the socket, puts the socket on the
 * stack's pending list, and serves the list if the stack's lock is free; if it is not, its holder serves
 * the list before it leaves (stack_unlock looks again after unlocking). So senders and readers never wait
 * for the stack.
 */
#ifndef CORE_NET_INTERNAL_H
#define CORE_NET_INTERNAL_H
#include <weir/mm.h>
#include <weir/net.h>
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/errno.h>
#include "core/net/stack_api.h"

struct tx_packet;

/* Key: I immutable, L lock, p pending_lock, a atomic, t the stack's own thread */
struct stack {
    struct mutex lock;
    const struct module_ops *ops;   /* I */
    unsigned index;                 /* I */
    spinlock_t pending_lock;
    struct list pending;            /* p sockets that want service */
    struct list gone;               /* L sockets whose connection lwIP has freed */
    struct tx_packet *tso;          /* L packet that may still grow */
    bool output_stalled;            /* L a frame was refused: tcp_output_all when there is room */
    bool room_again;                /* a a transmit queue has drained */
    uint64_t armed_ns;              /* L deadline of the timer, TIME_FOREVER = off */
    struct timer timer;
    bool timer_due;                 /* L the timer went off */
    struct wait_queue wait;         /* the thread's */
    bool work;                      /* a the thread shall run */
    bool follow;                    /* a addresses have changed in the first stack */
    struct thread *thread;          /* I */
    void *module_base;              /* I for backtraces */
    struct list flush;              /* L transmit queues that want a doorbell */
    uint64_t flows;                 /* L connections that others made to us here */
};

extern unsigned stack_count;
struct stack *stack_by_index(unsigned i);
void stack_lock(struct stack *st);
void stack_unlock(struct stack *st);
/* Put s on the pending list, and serve it now if nobody is in the stack. Thread context. */
void stack_kick(struct stack *st, struct socket *s);
void stack_add_pending(struct stack *st, struct socket *s);
void stack_wake_thread(struct stack *st); /* any context */

/* ---- device.c, transmit.c ---- */
void device_flush_locked(struct stack *st);
void transmit_init(void);
void transmit_flush_tso_locked(struct stack *st);
bool device_owns_address(uint32_t ip);
size_t device_print(char *buf, size_t size); /* a line a device; bytes written */
uint32_t device_source_address(uint32_t to); /* what frames to that address come from; 0 = none */
void net_stacks_start(unsigned wanted);      /* once: the first device, or INIT_NET without one */
void device_follow_addresses(struct stack *st); /* st->lock not held */
/* ADDRESS/LENGTH[,GATEWAY], in network order. 0 or -EINVAL. */
int net_parse_address(const char *text, uint32_t *ip, uint32_t *mask, uint32_t *gateway) __must_check;

/* ---- steer.c: pure ---- */
enum steer_kind { STEER_FLOW, STEER_ALL, STEER_FIRST };
/* Which stack a frame belongs to, from its first bytes. *hash is the same for both directions. */
enum steer_kind steer_frame(const uint8_t *frame, uint32_t len, uint32_t *hash);
/* Host order. Symmetric, and what a device computes with the key of steer_key. */
uint32_t steer_hash(uint32_t ip_a, uint32_t ip_b, uint16_t port_a, uint16_t port_b);
#define STEER_KEY_BYTES NET_RSS_KEY_BYTES
void steer_key(uint8_t key[STEER_KEY_BYTES]);
/* A flow's stack and queue follow from its bucket, as those of a device's table do. stacks, queues: at least 1. */
#define STEER_BUCKETS NET_RSS_BUCKETS
unsigned steer_stack(uint32_t hash, unsigned stacks);
/* Each queue carries flows of one stack where there are as many queues as stacks or more; else each stack uses one queue. */
unsigned steer_queue(uint32_t hash, unsigned queues, unsigned stacks);
/* Receive-side scaling hash (Toeplitz) of any bytes: addresses and ports in network order. */
uint32_t steer_toeplitz(const uint8_t key[STEER_KEY_BYTES], const uint8_t *data, unsigned len);

/* ---- sockets ---- */
struct rx_item {
    struct list link;
    const uint8_t *data;
    uint32_t offset, len;      /* read so far, valid */
    uint32_t capacity;         /* of buffer[]; 0 = `pbuf` holds the data */
    void *pbuf;
    struct stack_address from; /* datagrams */
    uint8_t buffer[];
};
struct tx_chunk {
    struct list link;
    uint8_t *data;
    uint32_t len, written, capacity;
    uint64_t end;              /* stream offset behind the last byte */
    struct page *page;         /* data may be sent by reference until acknowledged; NULL = buffer[] */
    uint8_t buffer[];
};

enum socket_state { SOCKET_NEW, SOCKET_LISTENING, SOCKET_CONNECTING, SOCKET_CONNECTED, SOCKET_CLOSED };

struct socket_options {
    bool reuse_address, no_delay, broadcast, cork;
    bool linger_on;
    uint32_t linger_s;
    struct stack_keepalive keepalive;
    uint32_t send_buffer, receive_buffer;
    uint32_t user_timeout_ms;
};

/* Key: I immutable, s lock, S stack's lock, r read_mutex, w write_mutex, a atomic, p stack's pending_lock */
struct socket {
    uint32_t refcount;              /* a */
    int type;                       /* I */
    struct stack *stack;            /* I */
    spinlock_t lock;
    struct wait_queue wait;
    enum socket_state state;        /* s */
    int error;                      /* s SO_ERROR, positive */
    bool eof;                       /* s the peer has finished */
    bool no_receive;                /* s shutdown(SHUT_RD) */
    bool no_send;                   /* s shutdown(SHUT_WR), or the connection ended */
    bool closed;                    /* s the file is gone */
    bool abort;                     /* s end with RST */
    bool connect_done;              /* s connect has reported success */
    bool bound;                     /* S */
    struct socket_options options;  /* s */
    struct stack_address local, remote; /* s */
    struct list pending_link;       /* p */
    bool pending;                   /* p */
    struct list gone_link;          /* S */
    bool attached;                  /* S lwIP holds a reference */
    struct tcp_handle *tcp;         /* S NULL before connect and after close */
    bool fin_sent;                  /* S */
    /* receiving */
    struct mutex read_mutex;
    struct list rx;                 /* s struct rx_item; removed by the holder of r only */
    size_t rx_bytes;                /* s */
    struct rx_item *rx_spare;       /* s an emptied small one, for the next small segment */
    size_t rx_consumed;             /* s not yet told to lwIP */
    size_t rx_window;               /* s window granted so far */
    size_t rx_since_growth;         /* s */
    size_t rx_grow;                 /* s */
    uint32_t rx_count;              /* s datagrams */
    /* sending */
    struct mutex write_mutex;
    struct list tx;                 /* s struct tx_chunk */
    struct tx_chunk *tx_next;       /* S first not wholly written; NULL = look at the list */
    uint64_t tx_queued, tx_written, tx_acked; /* s stream offsets */
    /* listening */
    struct list accept_queue, accept_link; /* s of the listener */
    unsigned accept_count, half_open, backlog; /* s */
    struct tcp_listener **listeners; /* S one for each stack */
    /* datagrams */
    struct udp_handle **udp;        /* S one for each stack */
};

#define RX_COPY_BELOW 512u          /* shorter pieces are copied out of the driver's buffer */
#define SEND_BUFFER_DEFAULT (256u * 1024)
#define RECEIVE_BUFFER_DEFAULT (1024u * 1024)
#define RECEIVE_WINDOW_FIRST 65535u
#define CONSUMED_BATCH 16384u       /* read bytes that are worth a visit to lwIP */

struct socket *socket_alloc(int type, struct stack *st);
void socket_get(struct socket *s);
void socket_put(struct socket *s);
void socket_service(struct socket *s);       /* stack's lock held */
void socket_gone_drain_locked(struct stack *st);
void socket_wake(struct socket *s, unsigned events);
void rx_item_free(struct socket *s, struct rx_item *item);
void rx_items_free(struct socket *s, struct list *items);
void tx_chunks_free(struct list *chunks);

int tcp_socket_connect(struct socket *s, const struct stack_address *a) __must_check;
int tcp_socket_listen(struct socket *s, int backlog) __must_check;
void tcp_socket_close(struct socket *s);
ssize_t tcp_socket_send(struct socket *s, struct uio *u, unsigned msg_flags) __must_check;
ssize_t tcp_socket_receive(struct socket *s, struct uio *u, unsigned msg_flags) __must_check;
unsigned tcp_socket_poll(struct socket *s);
void tcp_options_apply_locked(struct socket *s);
int udp_socket_setup(struct socket *s) __must_check;
int udp_socket_bind(struct socket *s, const struct stack_address *a) __must_check;
int udp_socket_connect(struct socket *s, const struct stack_address *a, bool disconnect) __must_check;
void udp_socket_close(struct socket *s);
ssize_t udp_socket_send(struct socket *s, struct uio *u, const struct stack_address *to) __must_check;
ssize_t udp_socket_receive(struct socket *s, struct uio *u, unsigned msg_flags, struct stack_address *from) __must_check;

/* Counters of the whole part, for the leak tests and /proc. */
struct net_counters {
    uint64_t rx_frames, rx_bytes, tx_frames, tx_bytes, tx_tso, tx_waited, tx_dropped, rx_dropped; /* waited: found the ring full */
    uint64_t rx_hashed, rx_astray; /* the device gave the hash; came by a queue that is not its flow's */
    uint64_t sockets, rx_items, tx_chunks, tx_packets; /* alive now */
    uint64_t accepts, syn_dropped, accept_overflow;
};
extern struct net_counters net_counters; /* a */
#define NET_COUNT(name, n) ((void)__atomic_fetch_add(&net_counters.name, (n), __ATOMIC_RELAXED))

/* ---- module_loader.c ---- */
/* A new lwIP instance; NULL with a message. */
const struct module_ops *module_instantiate(void **base);
#endif
