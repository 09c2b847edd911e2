/*
 * virtio core: devices, negotiation, virtqueues (virtio 1.2 sections 2, 3, 4.1).
 *
 * Life of a device, all in thread context: virtio_pci_create (INIT_BUS) - virtio_reset - features -
 * virtio_negotiate - virtio_demand - [INIT_PLAN] - queues with virtio_queue_start and
 * virtio_config_start (INIT_DRIVER) - virtio_driver_ok - I/O - virtio_shutdown.
 *
 * A virtqueue is made by virtio_queue_start (or virtqueue_create), owned by one driver, and destroyed
 * after the device or queue was reset. Enqueue, notify and dequeue are separate, so batching is the
 * caller's choice. Not locked: the owner serialises the calls on one queue with the queue's own lock
 * (virtqueue_notify, virtqueue_has_used and virtqueue_in_flight need none). The ring itself
 * (drivers/virtio/ring.h) knows no PCI.
 *
 * A device is not trusted. When a queue lies (bad id, length or index), that device is fenced: its
 * queues answer -EIO and NULL, the device is reset, then d->on_fenced is called in thread context; the
 * driver takes back its cookies with virtqueue_detach and ends them with an error. From there it may try
 * to have the device back: virtio_recover - virtqueue_restart of each queue - virtio_resume.
 */
#ifndef WEIR_VIRTIO_H
#define WEIR_VIRTIO_H
#include <weir/compiler.h>
#include <weir/irq.h>
#include <weir/pci.h>

struct virtqueue;
struct virtio_device {
    struct pci_device *pci;
    const struct virtio_transport_ops *transport;
    void *transport_data;
    uint64_t features;           /* accepted; fixed after virtio_negotiate */
    struct irq_device *irq;      /* from virtio_demand */
    bool driver_ok;              /* notifications may be sent */
    bool broken;                 /* a fenced: a queue lied, or surprise removal */
    bool fencing;                /* f the fencing thread has, or will have, to do with it */
    bool fence_done;             /* a device is reset after fencing or stopping; cookies may be taken back */
    bool vanished;               /* a it was not there any more when it was to be reset */
    bool queue_reset;            /* I the transport can reset single queues */
    bool isolated;               /* fencing thread: it did not come out of reset, and is cut off from memory */
    bool stopped;                /* a written under f: virtio_stop was called */
    unsigned recoveries;         /* fencing thread: in a row */
    uint64_t recovered_ns;       /* fencing thread: the last one, on the monotonic clock */
    /* Thread context, once, after a fenced device was reset. May be NULL. */
    void (*on_fenced)(struct virtio_device *d);
    /* With RING_RESET: a queue lied. True: the driver resets that queue alone (virtqueue_reset), else the device is
     * fenced. Called again and again until then; in the context, and under the lock, of virtqueue_get. May be NULL. */
    bool (*on_queue_fault)(struct virtqueue *q);
    void *driver_data;           /* the driver's */
    const struct irq_service *config_service; /* the driver's, behind our own look at the status */
    void *config_arg;
    struct list queues;          /* of struct virtqueue */
    struct list fence_link;      /* fencing thread's list */
    char name[32];               /* "virtio-blk 0000:00:04.0" */
};
struct virtio_buffer { uint64_t phys; uint32_t len; };

#define VIRTIO_F_ANY_LAYOUT    27 /* legacy devices only */
#define VIRTIO_F_INDIRECT_DESC 28
#define VIRTIO_F_EVENT_IDX     29
#define VIRTIO_F_VERSION_1     32
#define VIRTIO_F_ACCESS_PLATFORM 33
#define VIRTIO_F_RING_PACKED   34
#define VIRTIO_F_IN_ORDER      35
#define VIRTIO_F_ORDER_PLATFORM 36
#define VIRTIO_F_RING_RESET    40

/* PCI match for device type `type` (1 net, 2 block): modern id 0x1040 + type, or the transitional one. */
bool virtio_pci_match(const struct pci_device *pci, unsigned type);
/* Map capabilities of a PCI function, enable memory, bus mastering and MSI-X (all masked); no device
 * access beyond reading. NULL: not usable (logged with the reason). */
struct virtio_device *virtio_pci_create(struct pci_device *pci, const char *driver_name) __must_check;
void virtio_pci_destroy(struct virtio_device *d);
/* Reset, wait until it is done, ACKNOWLEDGE, DRIVER. Before features are read. 0, -ETIMEDOUT (stuck). */
int virtio_reset(struct virtio_device *d) __must_check;
uint64_t virtio_device_features(struct virtio_device *d);
/* Accept offered & wanted (device-type bits whose prerequisites are missing dropped by the caller; bits
 * 24..41 belong to this layer, which adds VERSION_1, the ring features it has and ORDER/ACCESS_PLATFORM
 * as needed), set FEATURES_OK, read it back. `required` bits that are not offered, or FEATURES_OK not
 * sticking: -EOPNOTSUPP, FAILED set, with a message naming the bits. */
int virtio_negotiate(struct virtio_device *d, uint64_t wanted, uint64_t required) __must_check;
/* Driven by the interface before virtio 1.0. Without VIRTIO_F_ANY_LAYOUT such a device wants each header in a buffer
 * of its own; a driver that joins header and data requires it. */
bool virtio_is_legacy(const struct virtio_device *d);
void virtio_driver_ok(struct virtio_device *d); /* asserts that each queue has a service; sends held-back kicks */
void virtio_fail(struct virtio_device *d);      /* status FAILED; the device stays unused until a reset */
/* Stop: reset the device (bounded; at once when it has vanished), release its vectors. Its queues answer
 * -EIO from here on; take their cookies back with virtqueue_detach. May be called again. */
void virtio_stop(struct virtio_device *d);
/* Destroy the queues, when nobody calls anything with the device or its queues any more. */
void virtio_shutdown(struct virtio_device *d);
/* True: the device is there and well. Else it is fenced (or was, or does not run). Any context; one status read. */
bool virtio_check(struct virtio_device *d);
/* Fence a lying or vanished device. Any context; the rest happens in a thread. */
void virtio_fence(struct virtio_device *d, const char *why);
static inline bool virtio_has(const struct virtio_device *d, unsigned bit) { return (d->features >> bit) & 1; }
/* In on_fenced, when no cookie is out any more: negotiate the same features again. 0, or -errno when the device does
 * not go along, has vanished, is being stopped, or has been recovered three times in a row, each within ten minutes of
 * the last: then it stays fenced (logged). Then virtqueue_restart for every queue, then virtio_resume. */
int virtio_recover(struct virtio_device *d) __must_check;
/* DRIVER_OK, and the queues take requests again; their interrupts are off. False: it is being stopped. */
bool virtio_resume(struct virtio_device *d) __must_check;
/* A recovery that cannot be finished: FAILED. */
void virtio_give_up(struct virtio_device *d, const char *why);
/* Device configuration: single fields at their own width; whole structs with the generation check. */
uint8_t virtio_config_read8(struct virtio_device *d, unsigned offset);
uint16_t virtio_config_read16(struct virtio_device *d, unsigned offset);
uint32_t virtio_config_read32(struct virtio_device *d, unsigned offset);
uint64_t virtio_config_read64(struct virtio_device *d, unsigned offset);                 /* two halves, same generation */
void virtio_config_read(struct virtio_device *d, unsigned offset, void *buf, size_t len); /* bytes, until generation is stable */
void virtio_config_write8(struct virtio_device *d, unsigned offset, uint8_t v);
/* Bytes of device configuration that the device has (a field beyond them is absent). */
unsigned virtio_config_size(struct virtio_device *d);

/* ---- interrupts ---- */
/* State the demand for `sources` queues or pairs. INIT_BUS. 0 or -ENOMEM. */
int virtio_demand(struct virtio_device *d, enum irq_class class, unsigned sources, bool config_change) __must_check;
/* Serve configuration changes (interrupt context or poller: mark and wake). 0 or -errno. */
int virtio_config_start(struct virtio_device *d, unsigned cpu, const struct irq_service *service, void *arg) __must_check;

/* ---- queues ---- */
unsigned virtio_queue_count(struct virtio_device *d); /* queues the device has */
/* Make and enable queue `index` (at most max_size entries, 0 = as the device offers) bound to the MSI-X
 * entry of irq source `source`, walking down the ladder when the device refuses. source < 0: the queue
 * is never to interrupt (control queues that their user polls). The caller binds the source with
 * irq_bind afterwards; a pair's two queues name the same source. Interrupts start disabled: enable
 * with virtqueue_enable_interrupts. max_segments bounds the chains the caller will add (sizes the
 * indirect tables). Errors: ptr_err -ENOENT (no such queue), -ENOMEM, -EINVAL, -EIO. */
struct virtqueue *virtio_queue_start(struct virtio_device *d, unsigned index, unsigned max_size,
                                     unsigned max_segments, int source) __must_check;
void virtqueue_destroy(struct virtqueue *q);    /* device or queue was reset */
struct virtio_device *virtqueue_device(const struct virtqueue *q);
unsigned virtqueue_size(const struct virtqueue *q);
unsigned virtqueue_index(const struct virtqueue *q);
unsigned virtqueue_free(const struct virtqueue *q);      /* descriptors that can be supplied now */
unsigned virtqueue_max_segments(const struct virtqueue *q); /* longest chain that can ever fit */
unsigned virtqueue_in_flight(const struct virtqueue *q);
/* Supply a chain: out readable buffers, then in writable ones. 0; -ENOSPC = full now, try after a
 * dequeue; -E2BIG = never fits; -EINVAL = empty; -EIO = queue broken. Does not notify. */
int virtqueue_add(struct virtqueue *q, const struct virtio_buffer *bufs, unsigned out, unsigned in, void *cookie) __must_check;
/* True if the device wants a doorbell for what was added since the last call. Then ring it with
 * virtqueue_notify, outside the lock. Before DRIVER_OK it is false and the kick is held back. */
bool virtqueue_kick_prepare(struct virtqueue *q) __must_check;
void virtqueue_notify(struct virtqueue *q);
/* Next completed cookie (NULL = none) and the length the device wrote (len may be NULL). A lying device:
 * queue broken, device fenced, NULL. */
void *virtqueue_get(struct virtqueue *q, uint32_t *len);
bool virtqueue_has_used(const struct virtqueue *q);
/* Interrupts are armed by enable and, with event index, good for one: after an interrupt drain the
 * queue, then enable; true = completions arrived meanwhile, drain again. Disable is advice only. */
void virtqueue_disable_interrupts(struct virtqueue *q);
bool virtqueue_enable_interrupts(struct virtqueue *q) __must_check;
/* After reset: hand back each cookie still outstanding, once. NULL = no more. */
void *virtqueue_detach(struct virtqueue *q);
/* Why the queue is broken; NULL = it is not. */
const char *virtqueue_fault(const struct virtqueue *q);
/* RING_RESET (section 2.6.1): when it returns 0 the device has let go of this queue, and of it alone: take the cookies
 * back with virtqueue_detach, then virtqueue_restart. -EOPNOTSUPP not negotiated, -EIO fenced, -ETIMEDOUT (stuck).
 * Thread context, no lock. */
int virtqueue_reset(struct virtqueue *q) __must_check;
/* After reset, with nothing outstanding: the ring as new, at the device as it was (size, addresses, MSI-X entry).
 * 0; -EIO: the device does not take it. Thread context, with the owner's lock. */
int virtqueue_restart(struct virtqueue *q) __must_check;
struct virtqueue_stats { uint64_t added, completed, notifies; };
void virtqueue_stats(const struct virtqueue *q, struct virtqueue_stats *out);
#endif
