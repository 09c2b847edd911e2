/*
 * What the virtio core asks of a transport (PCI modern here; a fake one in the unit tests). Each
 * function is one access, or one short sequence, without policy.
 */
#ifndef WEIR_VIRTIO_TRANSPORT_H
#define WEIR_VIRTIO_TRANSPORT_H
#include <weir/virtio.h>

struct virtio_queue_setup {
    unsigned size;
    uint64_t descriptors, driver, device;
};
struct virtio_transport_ops {
    uint8_t (*status_read)(struct virtio_device *d);
    void (*status_write)(struct virtio_device *d, uint8_t status);
    uint32_t (*features_read)(struct virtio_device *d, unsigned word);
    void (*features_write)(struct virtio_device *d, unsigned word, uint32_t bits);
    uint8_t (*generation)(struct virtio_device *d);
    unsigned (*config_size)(struct virtio_device *d);
    /* width 1, 2 or 4, offset aligned to it and inside the size. */
    uint32_t (*config_read)(struct virtio_device *d, unsigned offset, unsigned width);
    void (*config_write8)(struct virtio_device *d, unsigned offset, uint8_t v);
    /* Both return what the device reads back. */
    uint16_t (*config_vector)(struct virtio_device *d, uint16_t entry);
    uint16_t (*queue_vector)(struct virtio_device *d, unsigned index, uint16_t entry);
    unsigned (*queue_count)(struct virtio_device *d);
    unsigned (*queue_size)(struct virtio_device *d, unsigned index); /* 0 = absent */
    void (*queue_setup)(struct virtio_device *d, unsigned index, const struct virtio_queue_setup *s);
    void (*queue_enable)(struct virtio_device *d, unsigned index);
    /* Address of the doorbell, NULL if it would lie outside the notify region. After queue_setup. A transport whose
     * doorbell is no memory leaves this NULL and has queue_notify. */
    volatile uint16_t *(*queue_doorbell)(struct virtio_device *d, unsigned index);
    /* Cut the device off from memory when reset does not help (bus mastering off). */
    void (*isolate)(struct virtio_device *d);
    /* The device reads as all ones: whoever watches its slot should look. NULL = nobody does. */
    void (*vanished)(struct virtio_device *d);
    /* State the vector demand to core/irq on the device's behalf. */
    int (*demand)(struct virtio_device *d, const struct irq_demand *demand);
    void (*queue_notify)(struct virtio_device *d, unsigned index);
    /* Before virtio 1.0: no VERSION_1, no FEATURES_OK, queues of exactly the offered size at one page address. */
    bool legacy;
    /* Ask for the reset of one queue, or (begin = false) look; true while it is under way. Only with d->queue_reset. */
    bool (*queue_reset)(struct virtio_device *d, unsigned index, bool begin);
    bool (*present)(struct virtio_device *d); /* is it still in its slot? NULL = it cannot be taken out */
};

/* Between virtio.c and virtqueue.c. */
void virtqueue_assert_served(struct virtio_device *d);
void virtqueue_send_held_kicks(struct virtio_device *d);
#endif
