/* Private to the PCI transports: modern (virtio_pci.c) and legacy (virtio_pci_legacy.c). */
#ifndef WEIR_VIRTIO_PCI_H
#define WEIR_VIRTIO_PCI_H
#include <weir/virtio.h>

struct virtio_region {
    volatile uint8_t *at; /* NULL = absent */
    uint32_t length;
};
struct virtio_pci {
    struct virtio_device device;
    struct irq_device_ops irq_ops;
    /* modern */
    struct virtio_region common, notify, isr, config;
    uint32_t notify_multiplier;
    /* legacy */
    uint16_t ports;
    unsigned legacy_queues;  /* counted so far */
    uint32_t legacy_page;    /* of the queue that is being set up */
};

static inline struct virtio_pci *virtio_pci_of(struct virtio_device *d)
{
    return d->transport_data;
}
/* IRQ_ACK_* bits of an interrupt status byte. */
unsigned virtio_pci_ack_bits(uint8_t isr);
/* `ack` NULL: the device cannot use its line. */
int virtio_pci_demand(struct virtio_device *d, const struct irq_demand *from_core, unsigned (*ack)(void *device));
void virtio_pci_isolate(struct virtio_device *d);
bool virtio_pci_present(struct virtio_device *d);
void virtio_pci_vanished(struct virtio_device *d);
/* Drive the function by its legacy interface; false if it has none. */
bool virtio_pci_legacy_use(struct virtio_pci *v) __must_check;
#endif
