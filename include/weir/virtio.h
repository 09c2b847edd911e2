/*
 * virtio core: devices, negotiation, virtqueues (virtio 1.2 sections 2, 3, 4.1).
 *
 * A virtqueue is made by virtqueue_create, owned by one driver, and destroyed after the device or queue
 * was reset. Enqueue, notify and dequeue are separate. Not locked: the owner serialises enqueue against
 * dequeue of one queue with the queue's own lock. The ring itself (drivers/virtio/ring.h) knows no PCI.
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
    struct irq_device *irq;
    bool broken;                 /* a fenced: a queue lied, or surprise removal */
    char name[32];
};
struct virtio_buffer { uint64_t phys; uint32_t len; };

#define VIRTIO_F_INDIRECT_DESC 28
#define VIRTIO_F_EVENT_IDX     29
#define VIRTIO_F_VERSION_1     32
#define VIRTIO_F_ACCESS_PLATFORM 33
#define VIRTIO_F_RING_PACKED   34
#define VIRTIO_F_IN_ORDER      35
#define VIRTIO_F_ORDER_PLATFORM 36
#define VIRTIO_F_RING_RESET    40

/* Map capabilities of a PCI function; no device access beyond reading. NULL: not usable (logged). */
struct virtio_device *virtio_pci_create(struct pci_device *pci) __must_check;
void virtio_pci_destroy(struct virtio_device *d);
/* Reset, ACKNOWLEDGE, DRIVER. Before features are read. 0, -ETIMEDOUT (stuck in reset). */
int virtio_reset(struct virtio_device *d) __must_check;
uint64_t virtio_device_features(struct virtio_device *d);
/* Accept offered & wanted (bits whose prerequisites are missing dropped by the caller), FEATURES_OK, read
 * back. `required` bits that are not offered: -ENOTSUP with a message naming them. */
int virtio_negotiate(struct virtio_device *d, uint64_t wanted, uint64_t required) __must_check;
void virtio_driver_ok(struct virtio_device *d); /* asserts that each enabled queue has a service (irq_bind done) */
void virtio_fail(struct virtio_device *d);      /* status FAILED */
static inline bool virtio_has(const struct virtio_device *d, unsigned bit) { return (d->features >> bit) & 1; }
/* Device configuration: single fields at their own width; whole structs with the generation check. */
uint8_t virtio_config_read8(struct virtio_device *d, unsigned offset);
uint16_t virtio_config_read16(struct virtio_device *d, unsigned offset);
uint32_t virtio_config_read32(struct virtio_device *d, unsigned offset);
void virtio_config_read(struct virtio_device *d, unsigned offset, void *buf, size_t len); /* until generation is stable */
void virtio_config_write8(struct virtio_device *d, unsigned offset, uint8_t v);
/* Set the configuration vector to the entry; reads back; 0 or -EIO (NO_VECTOR). entry -1 = none. */
int virtio_set_config_vector(struct virtio_device *d, int entry) __must_check;
unsigned virtio_queue_count(struct virtio_device *d); /* queues the device has */

/* Make and enable queue `index` with at most max_size entries, bound to MSI-X entry (-1 = none).
 * If the device answers NO_VECTOR the queue exists all the same and *entry_refused is true: the caller
 * asks irq_refused() and virtqueue_set_vector(). Errors: ptr_err -ENOENT (size 0), -ENOMEM, -EINVAL. */
struct virtqueue *virtqueue_create(struct virtio_device *d, unsigned index, unsigned max_size, int entry,
                                   bool *entry_refused) __must_check;
int virtqueue_set_vector(struct virtqueue *q, int entry) __must_check;
void virtqueue_destroy(struct virtqueue *q);    /* device or queue was reset */
unsigned virtqueue_size(const struct virtqueue *q);
unsigned virtqueue_index(const struct virtqueue *q);
unsigned virtqueue_free(const struct virtqueue *q);      /* descriptors that can be supplied now */
unsigned virtqueue_max_segments(const struct virtqueue *q); /* longest chain that can ever fit */
unsigned virtqueue_in_flight(const struct virtqueue *q);
/* Supply a chain: out readable buffers, then in writable ones. 0; -ENOSPC = full now, try after a
 * dequeue; -E2BIG = never fits; -EIO = queue broken. Does not notify. */
int virtqueue_add(struct virtqueue *q, const struct virtio_buffer *bufs, unsigned out, unsigned in, void *cookie) __must_check;
/* Publish what was added; true if the device wants a doorbell. Then ring it outside the lock. */
bool virtqueue_kick_prepare(struct virtqueue *q) __must_check;
void virtqueue_notify(struct virtqueue *q);
/* Next completed cookie (NULL = none) and the length the device wrote. A lying device: queue broken,
 * device fenced, NULL. */
void *virtqueue_get(struct virtqueue *q, uint32_t *len);
bool virtqueue_has_used(const struct virtqueue *q);
/* Interrupt suppression: disable is advice; enable arms, full barrier, and returns true if
 * completions arrived meanwhile (poll again). */
void virtqueue_disable_interrupts(struct virtqueue *q);
bool virtqueue_enable_interrupts(struct virtqueue *q) __must_check;
/* After reset: hand back each cookie still outstanding, once. NULL = no more. */
void *virtqueue_detach(struct virtqueue *q);
struct virtqueue_stats { uint64_t added, completed, notifies, interrupts; };
void virtqueue_stats(const struct virtqueue *q, struct virtqueue_stats *out);
#endif
