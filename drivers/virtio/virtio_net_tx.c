/*
 * Transmitting. Completions are taken whenever something is sent or the pair's thread looks; the device is
 * asked for an interrupt only while a frame waits for room, so that the ring's draining never depends on
 * further sending or receiving.
 */
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/string.h>
#include "drivers/virtio/virtio_net.h"

#define TX_SEGMENTS_MAX 24

static void reclaim_locked(struct net_pair *p)
{
    struct tx_slot *slot;
    while ((slot = virtqueue_get(p->tx, NULL))) {
        slot->done(slot->cookie);
        slot->next = p->free_slots;
        p->free_slots = slot;
    }
}

static void fill_header(struct net_nic *nic, struct virtio_net_header *h, const struct net_tx_info *info)
{
    *h = (struct virtio_net_header){ 0 };
    if (info->needs_csum && nic->net.tx_csum) {
        h->flags = NET_HDR_NEEDS_CSUM;
        h->csum_start = info->csum_start;
        h->csum_offset = info->csum_offset;
    }
    if (info->gso_type == NET_GSO_TCPV4 && nic->net.tso4) {
        h->gso_type = NET_HDR_GSO_TCPV4;
        h->gso_size = info->gso_size;
        h->header_len = info->header_len;
    }
}

static int add_locked(struct net_pair *p, const struct net_segment *segs, unsigned count, const struct net_tx_info *info,
                      void (*done)(void *cookie), void *cookie)
{
    struct net_nic *nic = p->nic;
    struct virtio_buffer bufs[TX_SEGMENTS_MAX];
    struct tx_slot *slot = p->free_slots;
    if (!slot)
        return -ENOSPC;
    struct virtio_net_header h;
    fill_header(nic, &h, info);
    /* The header goes right in front of the frame, into the headroom: one buffer for both. */
    memcpy((uint8_t *)(uintptr_t)segs[0].virt - nic->header_size, &h, nic->header_size);
    bufs[0] = (struct virtio_buffer){ segs[0].phys - nic->header_size, segs[0].len + nic->header_size };
    for (unsigned i = 1; i < count; i++)
        bufs[i] = (struct virtio_buffer){ segs[i].phys, segs[i].len };
    int r = virtqueue_add(p->tx, bufs, count, 0, slot);
    if (r)
        return r;
    p->free_slots = slot->next;
    slot->done = done;
    slot->cookie = cookie;
    return 0;
}

int nic_transmit(struct net_device *d, unsigned queue, const struct net_segment *segs, unsigned count,
                 const struct net_tx_info *info, void (*done)(void *cookie), void *cookie, bool more)
{
    struct net_nic *nic = d->driver_data;
    struct net_pair *p = &nic->pair[queue];
    bool kick = false;
    if (count > TX_SEGMENTS_MAX || atomic_load_relaxed(&nic->virtio->broken))
        return -EIO;
    spin_lock(&p->tx_lock);
    reclaim_locked(p);
    int r = add_locked(p, segs, count, info, done, cookie);
    if (r == -ENOSPC) {
        /* What waits in the ring unseen must go, or no completion comes. */
        kick = virtqueue_kick_prepare(p->tx);
        atomic_store_relaxed(&p->tx_stopped, true);
        if (virtqueue_enable_interrupts(p->tx)) {
            reclaim_locked(p);
            r = add_locked(p, segs, count, info, done, cookie);
            if (!r)
                atomic_store_relaxed(&p->tx_stopped, false);
        }
    }
    if (!r && !more)
        kick = virtqueue_kick_prepare(p->tx);
    bool look = r == -ENOSPC && virtqueue_has_used(p->tx);
    spin_unlock(&p->tx_lock);
    if (kick)
        virtqueue_notify(p->tx);
    if (look) {
        /* Completions came, but too few: the thread goes on from here. */
        atomic_store_release(&p->work, true);
        wake_all(&p->wait);
    }
    return r == -ENOSPC ? -EAGAIN : r;
}

void nic_flush(struct net_device *d, unsigned queue)
{
    struct net_nic *nic = d->driver_data;
    struct net_pair *p = &nic->pair[queue];
    spin_lock(&p->tx_lock);
    bool kick = virtqueue_kick_prepare(p->tx);
    spin_unlock(&p->tx_lock);
    if (kick)
        virtqueue_notify(p->tx);
}

bool nic_tx_poll(struct net_pair *p)
{
    bool wake = false, again = false;
    if (!virtqueue_in_flight(p->tx) && !atomic_load_relaxed(&p->tx_stopped))
        return false;
    spin_lock(&p->tx_lock);
    reclaim_locked(p);
    if (p->tx_stopped) {
        /* Not for a single free slot: a quarter, so that sending goes on in batches. */
        if (virtqueue_free(p->tx) >= virtqueue_size(p->tx) / 4) {
            atomic_store_relaxed(&p->tx_stopped, false);
            virtqueue_disable_interrupts(p->tx);
            wake = true;
        } else {
            again = virtqueue_enable_interrupts(p->tx);
        }
    }
    spin_unlock(&p->tx_lock);
    if (wake && p->nic->registered)
        net_device_tx_wake(&p->nic->net, p->index);
    return again;
}

void nic_tx_detach(struct net_pair *p)
{
    struct tx_slot *slot;
    spin_lock(&p->tx_lock);
    while ((slot = virtqueue_detach(p->tx))) {
        slot->done(slot->cookie);
        slot->next = p->free_slots;
        p->free_slots = slot;
    }
    spin_unlock(&p->tx_lock);
}

int nic_tx_restart(struct net_pair *p)
{
    spin_lock(&p->tx_lock);
    int r = virtqueue_restart(p->tx);
    spin_unlock(&p->tx_lock);
    return r;
}

int nic_tx_start(struct net_pair *p)
{
    spin_init(&p->tx_lock);
    p->tx = virtio_queue_start(p->nic->virtio, 2 * p->index + 1, 0, TX_SEGMENTS_MAX, (int)p->index);
    if (is_err(p->tx))
        return (int)ptr_err(p->tx);
    unsigned count = virtqueue_size(p->tx);
    p->slots = kcalloc(count, sizeof(p->slots[0]));
    if (!p->slots)
        return -ENOMEM;
    for (unsigned i = 0; i < count; i++) {
        p->slots[i].next = p->free_slots;
        p->free_slots = &p->slots[i];
    }
    return 0;
}
