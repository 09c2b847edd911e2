/* Private to core/net: the network devices as the stacks see them. */
#ifndef CORE_NET_DEVICE_H
#define CORE_NET_DEVICE_H
#include "core/net/net_internal.h"

#define NET_STACKS_MAX 64 /* bits of nothing; bounds the arrays below */

/* Key: I immutable, q lock, L the lock of the stack whose index it is */
struct tx_queue {
    spinlock_t lock;            /* before the driver's queue lock */
    struct tx_packet *head, *tail; /* q what found the ring full, in order */
    unsigned count;             /* q */
    struct net_device *device;  /* I */
    unsigned index;             /* I */
    struct list flush_link[NET_STACKS_MAX]; /* L on the stack's list of queues that want a doorbell */
} __cacheline;

struct tx_queue *device_tx_queue(struct net_device *d, uint32_t hash);
struct tx_queue *device_tx_queue_at(struct net_device *d, unsigned queue);
bool device_queue_full(struct tx_queue *q);
void transmit_drop_queue(struct tx_queue *q);
#endif
