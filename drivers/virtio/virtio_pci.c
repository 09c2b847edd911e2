/*
 * virtio over PCI, modern interface (virtio 1.2 section 4.1). Transitional devices are driven through
 * the same; devices with only the legacy I/O-port interface by virtio_pci_legacy.c.
 *
 * Vendor capabilities name up to five regions:
 *
 *   capability:  id(09) next len type | bar id 0 0 | offset | length | (notify: multiplier)
 *   common       features, status, queue registers
 *   notify       doorbells: queue's notify offset times the multiplier
 *   isr          one byte that clears when read; for line interrupts only
 *   device       the device type's configuration
 */
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "transport.h"
#include "virtio_pci.h"
#include "virtio_wire.h"

#define PCI_CAP_VENDOR 0x09u
#define MODERN_ID_BASE 0x1040u
#define MODERN_ID_LAST 0x107fu

static struct virtio_pci *self(struct virtio_device *d)
{
    return virtio_pci_of(d);
}

/* ---- register access, each at its own width ---- */

static uint8_t common_read8(struct virtio_device *d, unsigned offset)
{
    return self(d)->common.at[offset];
}

static uint16_t common_read16(struct virtio_device *d, unsigned offset)
{
    return *(volatile uint16_t *)(self(d)->common.at + offset);
}

static uint32_t common_read32(struct virtio_device *d, unsigned offset)
{
    return *(volatile uint32_t *)(self(d)->common.at + offset);
}

static void common_write8(struct virtio_device *d, unsigned offset, uint8_t v)
{
    self(d)->common.at[offset] = v;
}

static void common_write16(struct virtio_device *d, unsigned offset, uint16_t v)
{
    *(volatile uint16_t *)(self(d)->common.at + offset) = v;
}

static void common_write32(struct virtio_device *d, unsigned offset, uint32_t v)
{
    *(volatile uint32_t *)(self(d)->common.at + offset) = v;
}

static void common_write64(struct virtio_device *d, unsigned offset, uint64_t v)
{
    common_write32(d, offset, (uint32_t)v);
    common_write32(d, offset + 4, (uint32_t)(v >> 32));
}

static uint8_t status_read(struct virtio_device *d)
{
    return common_read8(d, COMMON_STATUS);
}

static void status_write(struct virtio_device *d, uint8_t status)
{
    common_write8(d, COMMON_STATUS, status);
}

static uint32_t features_read(struct virtio_device *d, unsigned word)
{
    common_write32(d, COMMON_DEVICE_FEATURE_SELECT, word);
    return common_read32(d, COMMON_DEVICE_FEATURE);
}

static void features_write(struct virtio_device *d, unsigned word, uint32_t bits)
{
    common_write32(d, COMMON_DRIVER_FEATURE_SELECT, word);
    common_write32(d, COMMON_DRIVER_FEATURE, bits);
}

static uint8_t generation(struct virtio_device *d)
{
    return common_read8(d, COMMON_GENERATION);
}

static unsigned config_size(struct virtio_device *d)
{
    return self(d)->config.at ? self(d)->config.length : 0;
}

static uint32_t config_read(struct virtio_device *d, unsigned offset, unsigned width)
{
    volatile uint8_t *at = self(d)->config.at + offset;
    if (width == 1)
        return *at;
    if (width == 2)
        return *(volatile uint16_t *)at;
    return *(volatile uint32_t *)at;
}

static void config_write8(struct virtio_device *d, unsigned offset, uint8_t v)
{
    self(d)->config.at[offset] = v;
}

static uint16_t config_vector(struct virtio_device *d, uint16_t entry)
{
    common_write16(d, COMMON_CONFIG_VECTOR, entry);
    return common_read16(d, COMMON_CONFIG_VECTOR);
}

static void queue_select(struct virtio_device *d, unsigned index)
{
    common_write16(d, COMMON_QUEUE_SELECT, (uint16_t)index);
}

static uint16_t queue_vector(struct virtio_device *d, unsigned index, uint16_t entry)
{
    queue_select(d, index);
    common_write16(d, COMMON_QUEUE_VECTOR, entry);
    return common_read16(d, COMMON_QUEUE_VECTOR);
}

static unsigned queue_count(struct virtio_device *d)
{
    return common_read16(d, COMMON_QUEUE_COUNT);
}

static unsigned queue_size(struct virtio_device *d, unsigned index)
{
    queue_select(d, index);
    return common_read16(d, COMMON_QUEUE_SIZE);
}

static void queue_setup(struct virtio_device *d, unsigned index, const struct virtio_queue_setup *s)
{
    queue_select(d, index);
    common_write16(d, COMMON_QUEUE_SIZE, (uint16_t)s->size);
    common_write64(d, COMMON_QUEUE_DESCRIPTORS, s->descriptors);
    common_write64(d, COMMON_QUEUE_DRIVER, s->driver);
    common_write64(d, COMMON_QUEUE_DEVICE, s->device);
}

static void queue_enable(struct virtio_device *d, unsigned index)
{
    queue_select(d, index);
    common_write16(d, COMMON_QUEUE_ENABLE, 1);
}

static bool queue_reset(struct virtio_device *d, unsigned index, bool begin)
{
    queue_select(d, index);
    if (begin)
        common_write16(d, COMMON_QUEUE_RESET, 1);
    return common_read16(d, COMMON_QUEUE_RESET) != 0;
}

static volatile uint16_t *queue_doorbell(struct virtio_device *d, unsigned index)
{
    queue_select(d, index);
    uint64_t offset = (uint64_t)common_read16(d, COMMON_QUEUE_NOTIFY_OFFSET) *
                      self(d)->notify_multiplier;
    if (offset % sizeof(uint16_t) || offset + sizeof(uint16_t) > self(d)->notify.length)
        return NULL;
    return (volatile uint16_t *)(self(d)->notify.at + offset);
}

void virtio_pci_isolate(struct virtio_device *d)
{
    pci_enable(d->pci, true, false, false);
}

bool virtio_pci_present(struct virtio_device *d)
{
    return pci_read16(d->pci, 0) == d->pci->vendor;
}

void virtio_pci_vanished(struct virtio_device *d)
{
    pci_hotplug_wake();
}

/* ---- interrupts ---- */

static int write_message(void *device, unsigned entry, uint64_t address, uint32_t data)
{
    struct virtio_device *d = device;
    return pci_msix_write(d->pci, entry, address, data);
}

static void mask_entry(void *device, unsigned entry, bool masked)
{
    struct virtio_device *d = device;
    pci_msix_mask(d->pci, entry, masked);
}

unsigned virtio_pci_ack_bits(uint8_t isr)
{
    if (isr == 0xff)
        return 0; /* gone from the bus */
    return (isr & VIRTIO_ISR_QUEUE ? IRQ_ACK_QUEUE : 0) |
           (isr & VIRTIO_ISR_CONFIG ? IRQ_ACK_CONFIG : 0);
}

/* Reading clears it and takes the line down: exactly once per interrupt. */
static unsigned line_ack(void *device)
{
    return virtio_pci_ack_bits(*self(device)->isr.at);
}

int virtio_pci_demand(struct virtio_device *d, const struct irq_demand *from_core,
                      unsigned (*ack)(void *device))
{
    struct virtio_pci *v = self(d);
    struct irq_demand full = *from_core;
    const struct pci_device *pci = d->pci;
    full.msix_entries = pci->msix_table ? pci->msix_entries : 0;
    bool has_line = pci->interrupt_pin && pci->interrupt_line && pci->interrupt_line != 0xff;
    full.intx_gsi = has_line && ack ? pci->interrupt_line : -1;
    v->irq_ops = (struct irq_device_ops){ .write_message = write_message, .mask = mask_entry, .ack = ack };
    d->irq = irq_demand(&full, &v->irq_ops, d);
    return d->irq ? 0 : -ENOMEM;
}

static int demand(struct virtio_device *d, const struct irq_demand *from_core)
{
    return virtio_pci_demand(d, from_core, self(d)->isr.at ? line_ack : NULL);
}

static const struct virtio_transport_ops transport_ops = {
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
    .queue_doorbell = queue_doorbell,
    .isolate = virtio_pci_isolate,
    .vanished = virtio_pci_vanished,
    .present = virtio_pci_present,
    .queue_reset = queue_reset,
    .demand = demand,
};

/* ---- discovery ---- */

/* Transitional ids (section 4.1.2.1) in the order of the device types 1 to 5, then 8 and 9. */
static unsigned transitional_type(unsigned id)
{
    static const uint8_t types[] = { 1, 2, 5, 3, 8, 4, 0, 0, 0, 9 };
    unsigned i = id - 0x1000u;
    return i < ARRAY_SIZE(types) ? types[i] : 0;
}

bool virtio_pci_match(const struct pci_device *pci, unsigned type)
{
    if (pci->vendor != VIRTIO_PCI_VENDOR)
        return false;
    if (pci->device >= MODERN_ID_BASE && pci->device <= MODERN_ID_LAST)
        return pci->device - MODERN_ID_BASE == type;
    return type != 0 && transitional_type(pci->device) == type;
}

/* Take a capability's region if it is the first usable one. A reserved BAR, or a region outside its
 * BAR or not aligned as its fields must be (section 4.1.4), makes it unusable. */
static void take_region(struct pci_device *pci, unsigned cap, struct virtio_region *out, uint32_t need, uint32_t align)
{
    unsigned bar = pci_read8(pci, cap + 4);
    uint32_t offset = pci_read32(pci, cap + 8), length = pci_read32(pci, cap + 12);
    if (out->at || bar > 5 || length < need || offset % align)
        return;
    if (pci->bar[bar].io || (uint64_t)offset + length > pci->bar[bar].size)
        return;
    char *base = pci_map_bar(pci, bar);
    if (!base)
        return;
    out->at = (volatile uint8_t *)(base + offset);
    out->length = length;
}

static void find_regions(struct pci_device *pci, struct virtio_pci *v)
{
    for (unsigned cap = 0; (cap = pci_find_capability(pci, PCI_CAP_VENDOR, cap)) != 0;) {
        unsigned bytes = pci_read8(pci, cap + 2), type = pci_read8(pci, cap + 3);
        if (bytes < VIRTIO_PCI_CAP_BYTES || !pci_capability_fits(cap, bytes))
            continue;
        if (type == VIRTIO_PCI_CAP_COMMON) {
            take_region(pci, cap, &v->common, COMMON_BYTES, 4);
        } else if (type == VIRTIO_PCI_CAP_NOTIFY && bytes >= VIRTIO_PCI_CAP_NOTIFY_BYTES) {
            bool had = v->notify.at != NULL;
            take_region(pci, cap, &v->notify, sizeof(uint16_t), 2);
            if (!had && v->notify.at)
                v->notify_multiplier = pci_read32(pci, cap + 16);
        } else if (type == VIRTIO_PCI_CAP_ISR) {
            take_region(pci, cap, &v->isr, 1, 1);
        } else if (type == VIRTIO_PCI_CAP_DEVICE) {
            take_region(pci, cap, &v->config, 1, 4);
        }
    }
}

struct virtio_device *virtio_pci_create(struct pci_device *pci, const char *driver_name)
{
    struct virtio_pci *v = kzalloc(sizeof(*v));
    if (!v)
        return NULL;
    struct virtio_device *d = &v->device;
    d->pci = pci;
    d->transport = &transport_ops;
    d->transport_data = v;
    list_init(&d->queues);
    list_init(&d->fence_link);
    snprintf(d->name, sizeof(d->name), "%.15s %.14s", driver_name, pci->name);

    find_regions(pci, v);
    bool modern = v->common.at && v->notify.at;
    if (!modern && (pci->device >= MODERN_ID_BASE || !virtio_pci_legacy_use(v))) {
        log_error("%s: not usable, %s", d->name,
                  pci->device < MODERN_ID_BASE ? "it has neither a modern nor a legacy interface"
                                               : "its common or notify region is missing");
        kfree(v);
        return NULL;
    }
    d->queue_reset = modern && v->common.length >= COMMON_QUEUE_RESET + sizeof(uint16_t);
    if (!modern)
        log_info("%s: by the legacy interface", d->name);
    pci_get(pci);
    pci_enable(pci, true, !modern, true);
    if (pci->msix_entries && pci_msix_enable(pci))
        log_warn("%s: MSI-X cannot be enabled", d->name);
    return d;
}

void virtio_pci_destroy(struct virtio_device *d)
{
    pci_msix_disable(d->pci);
    pci_enable(d->pci, false, false, false);
    pci_unmap_bars(d->pci);
    pci_put(d->pci);
    kfree(self(d));
}
