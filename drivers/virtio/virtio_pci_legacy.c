/*
 * virtio over PCI, the legacy interface (virtio 1.2 section 4.1.4.10): ports in BAR 0, in the guest's byte order.
 *
 *   0 device features   4 driver features   8 queue page   12 queue size   14 queue select   16 doorbell
 *   18 status           19 interrupt status   [20 configuration vector   22 queue vector]   device configuration
 *
 * The vectors are there only while MSI-X is on, and the device's configuration moves by their four bytes. There is no
 * FEATURES_OK, no generation, 32 feature bits, and a queue has the size that the device says, at a page that it is told.
 */
#include <weir/printk.h>

#include "transport.h"
#include "virtio_pci.h"
#include "virtio_wire.h"

enum {
    LEGACY_DEVICE_FEATURES = 0,
    LEGACY_DRIVER_FEATURES = 4,
    LEGACY_QUEUE_PAGE = 8,
    LEGACY_QUEUE_SIZE = 12,
    LEGACY_QUEUE_SELECT = 14,
    LEGACY_DOORBELL = 16,
    LEGACY_STATUS = 18,
    LEGACY_ISR = 19,
    LEGACY_CONFIG_VECTOR = 20,
    LEGACY_QUEUE_VECTOR = 22,
    LEGACY_BYTES = 24,
};
#define LEGACY_PAGE_SHIFT 12
#define QUEUES_MAX 1025u

static uint16_t port(struct virtio_device *d, unsigned offset)
{
    return (uint16_t)(virtio_pci_of(d)->ports + offset);
}

static uint32_t in(struct virtio_device *d, unsigned offset, unsigned width)
{
    uint32_t v = 0;
    if (width == 1)
        __asm__ volatile("inb %1, %b0" : "+a"(v) : "Nd"(port(d, offset)));
    else if (width == 2)
        __asm__ volatile("inw %1, %w0" : "+a"(v) : "Nd"(port(d, offset)));
    else
        __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port(d, offset)));
    return v;
}

/* Ports are not reordered with memory by the CPU; the clobber keeps the compiler from it. */
static void out(struct virtio_device *d, unsigned offset, unsigned width, uint32_t v)
{
    if (width == 1)
        __asm__ volatile("outb %b0, %1" : : "a"(v), "Nd"(port(d, offset)) : "memory");
    else if (width == 2)
        __asm__ volatile("outw %w0, %1" : : "a"(v), "Nd"(port(d, offset)) : "memory");
    else
        __asm__ volatile("outl %0, %1" : : "a"(v), "Nd"(port(d, offset)) : "memory");
}

static uint8_t status_read(struct virtio_device *d)
{
    return (uint8_t)in(d, LEGACY_STATUS, 1);
}

static void status_write(struct virtio_device *d, uint8_t status)
{
    out(d, LEGACY_STATUS, 1, status);
}

static uint32_t features_read(struct virtio_device *d, unsigned word)
{
    return word ? 0 : in(d, LEGACY_DEVICE_FEATURES, 4);
}

static void features_write(struct virtio_device *d, unsigned word, uint32_t bits)
{
    if (!word)
        out(d, LEGACY_DRIVER_FEATURES, 4, bits);
}

static uint8_t generation(struct virtio_device *d)
{
    return 0;
}

static unsigned config_offset(struct virtio_device *d)
{
    return d->pci->msix_table ? LEGACY_BYTES : LEGACY_CONFIG_VECTOR;
}

static unsigned config_size(struct virtio_device *d)
{
    return (unsigned)d->pci->bar[0].size - config_offset(d);
}

static uint32_t config_read(struct virtio_device *d, unsigned offset, unsigned width)
{
    return in(d, config_offset(d) + offset, width);
}

static void config_write8(struct virtio_device *d, unsigned offset, uint8_t v)
{
    out(d, config_offset(d) + offset, 1, v);
}

static uint16_t write_vector(struct virtio_device *d, unsigned offset, uint16_t entry)
{
    if (!d->pci->msix_table)
        return entry; /* no such register: what stands there is configuration */
    out(d, offset, 2, entry);
    return (uint16_t)in(d, offset, 2);
}

static uint16_t config_vector(struct virtio_device *d, uint16_t entry)
{
    return write_vector(d, LEGACY_CONFIG_VECTOR, entry);
}

static void queue_select(struct virtio_device *d, unsigned index)
{
    out(d, LEGACY_QUEUE_SELECT, 2, index);
}

static uint16_t queue_vector(struct virtio_device *d, unsigned index, uint16_t entry)
{
    queue_select(d, index);
    return write_vector(d, LEGACY_QUEUE_VECTOR, entry);
}

static unsigned queue_size(struct virtio_device *d, unsigned index)
{
    queue_select(d, index);
    return in(d, LEGACY_QUEUE_SIZE, 2);
}

static unsigned queue_count(struct virtio_device *d)
{
    struct virtio_pci *v = virtio_pci_of(d);
    while (v->legacy_queues < QUEUES_MAX && queue_size(d, v->legacy_queues))
        v->legacy_queues++;
    return v->legacy_queues;
}

/* Telling the page starts the queue, so it waits for queue_enable: the vector comes first. */
static void queue_setup(struct virtio_device *d, unsigned index, const struct virtio_queue_setup *s)
{
    virtio_pci_of(d)->legacy_page = (uint32_t)(s->descriptors >> LEGACY_PAGE_SHIFT);
}

static void queue_enable(struct virtio_device *d, unsigned index)
{
    queue_select(d, index);
    out(d, LEGACY_QUEUE_PAGE, 4, virtio_pci_of(d)->legacy_page);
}

static void queue_notify(struct virtio_device *d, unsigned index)
{
    out(d, LEGACY_DOORBELL, 2, index);
}

static unsigned line_ack(void *device)
{
    return virtio_pci_ack_bits((uint8_t)in(device, LEGACY_ISR, 1));
}

static int demand(struct virtio_device *d, const struct irq_demand *from_core)
{
    return virtio_pci_demand(d, from_core, line_ack);
}

static const struct virtio_transport_ops ops = {
    .status_read = status_read,
    .status_write = status_write,
    .features_read = features_read,
    .features_write = features_write,
    .generation = generation,
    .config_size = config_size,
    .config_read = config_read,
    .config_write8 = config_write8,
    .config_vector = config_vector,
    .queue_vector = queue_vector,
    .queue_count = queue_count,
    .queue_size = queue_size,
    .queue_setup = queue_setup,
    .queue_enable = queue_enable,
    .queue_notify = queue_notify,
    .isolate = virtio_pci_isolate,
    .vanished = virtio_pci_vanished,
    .present = virtio_pci_present,
    .demand = demand,
    .legacy = true,
};

bool virtio_pci_legacy_use(struct virtio_pci *v)
{
    const struct pci_bar *b = &v->device.pci->bar[0];
    if (!b->io || !b->base || b->size <= LEGACY_BYTES)
        return false;
    v->ports = (uint16_t)b->base;
    v->device.transport = &ops;
    return true;
}
