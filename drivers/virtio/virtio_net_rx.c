/*
 * Receiving, as in NAPI: an interrupt marks the pair and wakes its thread; the thread takes frames until the
 * ring is dry, re-arms the interrupt and looks once more. Only the thread touches the receive ring.
 *
 * Buffers go up to the stack and come back to the heap from wherever they are freed; the ring is filled from
 * the heap. A slot that could not be filled for want of memory stays empty and is tried again: at each pass,
 * and every RETRY_NS while any slot is empty, for an empty ring raises no interrupt.
 */
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/time.h>
#include "drivers/virtio/virtio_net.h"

#define POLL_BUDGET 64
#define RETRY_NS (20 * NSEC_PER_MSEC)
#define FOLLOW_NS NSEC_PER_SEC /* the thread must have stayed so long; at most one move in that time */
#define RX_MEMORY_SHARE 16 /* all receive buffers together: at most a 16th of memory */

static void buffer_free(void *buffer)
{
    kfree(buffer);
}

void nic_rx_fill(struct net_pair *p)
{
    struct net_nic *nic = p->nic;
    bool added = false;
    while (p->posted < p->target) {
        uint8_t *buffer = kmalloc(nic->buffer_size);
        if (!buffer) {
            p->starved++;
            break;
        }
        struct virtio_buffer b = { virt_to_phys(buffer + NET_RX_HEADROOM), nic->buffer_size - NET_RX_HEADROOM };
        if (virtqueue_add(p->rx, &b, 0, 1, buffer)) {
            kfree(buffer);
            break;
        }
        p->posted++;
        added = true;
    }
    if (!added || !virtqueue_kick_prepare(p->rx))
        return;
    virtqueue_notify(p->rx);
    /* The ring had run dry. QEMU, which spreads flows in software, then stops reading the tap's queue that the frame came
     * by, and goes on with it at a doorbell of the ring of the same number: not this one. So each ring gets one. */
    for (unsigned i = 0; nic->rss && i < nic->pairs; i++) {
        if (i != p->index)
            virtqueue_notify(nic->pair[i].rx);
    }
}

static void gathered_drop(struct net_pair *p)
{
    for (unsigned i = 0; i < p->gathered_count; i++)
        p->gathered[i].free_fn(p->gathered[i].cookie);
    p->gathered_count = p->gathered_wanted = 0;
}

/* One buffer from the device: the first, or one more, of a frame. */
static void take_buffer(struct net_pair *p, uint8_t *buffer, uint32_t len)
{
    struct net_nic *nic = p->nic;
    uint8_t *data = buffer + NET_RX_HEADROOM;
    len = MIN(len, nic->buffer_size - NET_RX_HEADROOM);
    if (!p->gathered_wanted) {
        struct virtio_net_header *h = &p->gathered_header;
        *h = (struct virtio_net_header){ 0 };
        memcpy(h, data, nic->header_size);
        p->gathered_wanted = virtio_net_rx_buffers(h, nic->mergeable, len, nic->header_size, RX_BUFFERS_MAX);
        if (!p->gathered_wanted) {
            p->lies++;
            kfree(buffer);
            return;
        }
        data += nic->header_size;
        len -= nic->header_size;
    }
    p->gathered[p->gathered_count++] = (struct net_rx_segment){ data, len, buffer_free, buffer };
    if (p->gathered_count < p->gathered_wanted)
        return;
    const struct virtio_net_header *h = &p->gathered_header;
    bool guest_csum = virtio_has(nic->virtio, NET_F_GUEST_CSUM);
    bool needs = guest_csum && (h->flags & NET_HDR_NEEDS_CSUM);
    bool valid = guest_csum && (h->flags & NET_HDR_DATA_VALID);
    unsigned count = p->gathered_count;
    p->gathered_count = p->gathered_wanted = 0;
    p->frames++;
    bool hashed = nic->hashes && h->hash_report == NET_HASH_REPORT_TCPV4;
    net_receive(&nic->net, p->index, p->gathered, count, valid, needs, hashed, h->hash_value);
}

bool nic_rx_burst(struct net_pair *p)
{
    unsigned budget = POLL_BUDGET;
    uint32_t len;
    uint8_t *buffer;
    while (budget && (buffer = virtqueue_get(p->rx, &len))) {
        budget--;
        p->posted--;
        take_buffer(p, buffer, len);
    }
    /* First the ring, so that the device can go on, then the stack. */
    nic_rx_fill(p);
    net_receive_done(&p->nic->net, p->index);
    return !budget;
}

static void rx_detach(struct net_pair *p)
{
    void *buffer;
    gathered_drop(p);
    while ((buffer = virtqueue_detach(p->rx)))
        kfree(buffer);
    p->posted = 0;
}

static void detach(struct net_pair *p)
{
    rx_detach(p);
    nic_tx_detach(p);
}

/* A queue of the pair lied: it alone is reset, its frames are lost, the others do not notice. Until then nothing is
 * added to it and nothing taken: its ring is broken. */
static void reset_queue(struct net_pair *p, struct virtqueue *q)
{
    struct virtio_device *v = p->nic->virtio;
    log_error("%s: queue %u is reset: %s", v->name, virtqueue_index(q), virtqueue_fault(q));
    atomic_store_relaxed(&p->resets, p->resets + 1);
    int r = virtqueue_reset(q);
    if (!r && q == p->rx) {
        rx_detach(p);
        r = virtqueue_restart(q);
    } else if (!r) {
        nic_tx_detach(p);
        r = nic_tx_restart(p);
    }
    if (r)
        virtio_fence(v, "it does not let go of a queue");
}

void nic_reset_lying_queues(struct net_pair *p)
{
    if (unlikely(virtqueue_fault(p->rx)))
        reset_queue(p, p->rx);
    if (unlikely(virtqueue_fault(p->tx)))
        reset_queue(p, p->tx);
}

/* An interrupt on the CPU where the thread will run wakes it without a message to another CPU. */
static void follow_thread(struct net_pair *p)
{
    unsigned cpu = this_cpu()->id;
    uint64_t now = clock_monotonic_ns();
    if (cpu != p->seen_cpu) {
        p->seen_cpu = cpu;
        p->seen_since_ns = now;
    } else if (cpu != p->irq_cpu && now - p->seen_since_ns >= FOLLOW_NS) {
        p->irq_cpu = cpu;
        irq_set_affinity(p->nic->virtio->irq, p->index, cpu);
    }
}

void nic_rx_thread(void *pair)
{
    struct net_pair *p = pair;
    struct net_nic *nic = p->nic;
    thread_defer_wakes(); /* with one packet at a time its receiver answers on the CPU that took the interrupt */
    for (;;) {
        bool again = true;
        while (again && !atomic_load_relaxed(&nic->virtio->broken)) {
            atomic_store_relaxed(&p->armed, false);
            nic_reset_lying_queues(p);
            virtqueue_disable_interrupts(p->rx);
            while (nic_rx_burst(p)) {
                thread_flush_wakes();
                cond_resched();
            }
            again = nic_tx_poll(p);
            /* Arm, then look: what came before the arming is seen by enable, what comes after interrupts. */
            again = virtqueue_enable_interrupts(p->rx) || again;
            if (again)
                thread_flush_wakes();
            cond_resched();
        }
        if (atomic_load_acquire(&nic->virtio->fence_done))
            break;
        atomic_store_relaxed(&p->armed, true);
        if (p->index == 0 && atomic_load_relaxed(&nic->config_work) && atomic_exchange(&nic->config_work, false))
            nic_config_work(nic);
        uint64_t deadline = p->posted < p->target ? clock_monotonic_ns() + RETRY_NS : TIME_FOREVER;
        (void)wait_event_timeout(&p->wait, atomic_load_acquire(&p->work), deadline);
        (void)atomic_exchange(&p->work, false);
        if (!atomic_load_acquire(&nic->virtio->broken))
            follow_thread(p);
    }
    detach(p);
    nic_pair_ended(p);
    thread_exit();
}

static bool pair_serve(void *arg)
{
    struct net_pair *p = arg;
    bool found = virtqueue_has_used(p->rx) || (atomic_load_relaxed(&p->tx_stopped) && virtqueue_has_used(p->tx));
    atomic_store_release(&p->work, true);
    wake_all(&p->wait);
    return found;
}

/* For the watchdog: interrupts were armed, something has come, and the thread still sleeps. */
static bool pair_pending(void *arg)
{
    struct net_pair *p = arg;
    return atomic_load_relaxed(&p->armed) && !atomic_load_relaxed(&p->work) && virtqueue_has_used(p->rx);
}

const struct irq_service nic_pair_service = { .serve = pair_serve, .pending = pair_pending };

int nic_rx_start(struct net_pair *p)
{
    struct net_nic *nic = p->nic;
    p->rx = virtio_queue_start(nic->virtio, 2 * p->index, 0, 1, (int)p->index);
    if (is_err(p->rx))
        return (int)ptr_err(p->rx);
    uint64_t affordable = mm_total_pages() * PAGE_SIZE / RX_MEMORY_SHARE / nic->pairs / nic->buffer_size;
    p->target = (unsigned)MIN((uint64_t)virtqueue_size(p->rx), MAX(affordable, (uint64_t)RX_BUFFERS_MAX));
    nic_rx_fill(p);
    return p->posted ? 0 : -ENOMEM;
}
