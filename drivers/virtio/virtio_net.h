/*
 * virtio-net (virtio 1.2 section 5.1), private to its files.
 *
 * Each frame on a queue has a header in front:
 *
 *   0      flags        1 = the sum at csum_start is partial, 2 = sum verified (receive)
 *   1      gso_type     0 none, 1 TCP over IPv4, 4 TCP over IPv6, +0x80 ECN
 *   2..3   hdr_len      4..5 gso_size      6..7 csum_start     8..9 csum_offset
 *   10..11 num_buffers  (modern, or mergeable buffers: the header is 12 bytes; else 10)
 *   12..15 hash   16..17 of what it is   18..19 nothing (HASH_REPORT: the header is 20 bytes)
 *
 * Queues: 2i receives, 2i+1 transmits for pair i; the control queue comes behind the last possible pair.
 * A pair has one irq source and one thread, which owns the receive ring; the transmit ring has a lock.
 */
#ifndef DRIVERS_VIRTIO_NET_H
#define DRIVERS_VIRTIO_NET_H
#include <weir/net.h>
#include <weir/virtio.h>
#include "drivers/virtio/virtio_net_header.h"

#define RX_BUFFERS_MAX 64      /* of one frame; more is a lie */

struct rx_slot;
struct net_nic;

struct tx_slot {
    struct tx_slot *next;      /* free list */
    void (*done)(void *cookie);
    void *cookie;
};

/* Key: I immutable, o the pair's thread, x tx_lock, a atomic */
struct net_pair {
    struct net_nic *nic;       /* I */
    unsigned index;            /* I */
    struct virtqueue *rx;      /* I; used by o */
    struct virtqueue *tx;      /* I; used under x */
    struct thread *thread;     /* I */
    struct wait_queue wait;
    bool work;                 /* a the thread shall look */
    unsigned resets;           /* a single queues of the pair that were reset */
    bool armed;                /* a interrupts are on and the thread waits */
    /* receiving */
    unsigned posted, target;   /* o buffers with the device; how many there shall be */
    struct net_rx_segment gathered[RX_BUFFERS_MAX]; /* o the frame being put together */
    unsigned gathered_count, gathered_wanted;       /* o */
    struct virtio_net_header gathered_header;       /* o */
    uint64_t frames, lies, starved;                 /* o */
    unsigned irq_cpu, seen_cpu;                     /* o where the interrupt goes; where the thread ran last */
    uint64_t seen_since_ns;                         /* o */
    /* sending */
    spinlock_t tx_lock;
    struct tx_slot *slots, *free_slots; /* x */
    bool tx_stopped;           /* x, read without: a frame was refused, its queue waits for room */
} __cacheline;

struct net_nic {
    struct net_device net;
    struct virtio_device *virtio;
    unsigned max_pairs, pairs; /* I of the device; in use */
    unsigned header_size;      /* I */
    unsigned buffer_size;      /* I a receive buffer with headroom */
    bool mergeable;            /* I */
    uint32_t hash_types;       /* I of RSS; 0: none */
    bool rss, hashes;          /* I from registration on: the device obeys our table; says the hash of each frame */
    bool registered;
    unsigned running;          /* a threads of pairs that have not ended */
    bool config_work;          /* a */
    struct net_pair *pair;     /* I [pairs] */
    struct virtqueue *control; /* control_lock */
    struct mutex control_lock;
};

int nic_rx_start(struct net_pair *p) __must_check;
void nic_rx_thread(void *pair);
void nic_rx_fill(struct net_pair *p);
void nic_reset_lying_queues(struct net_pair *p); /* by the pair's thread */
bool nic_rx_burst(struct net_pair *p); /* up to a budget of buffers, by the pair's thread; true = the ring may hold more */
extern const struct irq_service nic_pair_service;
int nic_tx_start(struct net_pair *p) __must_check;
bool nic_tx_poll(struct net_pair *p);      /* reclaim; true = interrupts could not be armed, look again */
void nic_tx_detach(struct net_pair *p);
int nic_tx_restart(struct net_pair *p) __must_check; /* after a reset of the queue alone, and nic_tx_detach */
int nic_transmit(struct net_device *d, unsigned queue, const struct net_segment *segs, unsigned count,
                 const struct net_tx_info *info, void (*done)(void *cookie), void *cookie, bool more); /* net_device_ops */
void nic_flush(struct net_device *d, unsigned queue);
void nic_config_work(struct net_nic *nic);
void nic_pair_ended(struct net_pair *p); /* the last that the pair's thread does with it */
#endif
