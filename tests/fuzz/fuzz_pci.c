/*
 * A PCI function whose configuration space and BARs hold anything: capability walk, MSI-X table, virtio regions and
 * doorbells. Whatever stands there: every walk ends, no access outside a BAR or unaligned (ASan, UBSan), and
 * configuration space is read at aligned offsets inside it.
 *
 * Input: 256 bytes of configuration space, six sizes of BARs (a byte each), then what the BARs hold, over and over.
 */
#include <stdlib.h>
#include <weir/errno.h>
#include <weir/string.h>

#undef assert
#define assert(c) do { if (!(c)) abort(); } while (0)
#include "drivers/pci/pci_internal.h"
#include "drivers/virtio/transport.h"
#include "drivers/virtio/virtio_wire.h"

static uint8_t config[PCI_CONFIG_BYTES];
static unsigned reads;
const struct pci_access *pci_access;

static uint32_t read_config(unsigned offset, unsigned width)
{
    uint32_t v = 0;
    assert(offset % width == 0 && offset + width <= sizeof(config));
    assert(++reads < 100000); /* walks end */
    memcpy(&v, config + offset, width);
    return v;
}
uint8_t pci_read8(const struct pci_device *d, unsigned o) { return (uint8_t)read_config(o, 1); }
uint16_t pci_read16(const struct pci_device *d, unsigned o) { return (uint16_t)read_config(o, 2); }
uint32_t pci_read32(const struct pci_device *d, unsigned o) { return read_config(o, 4); }
void pci_write16(const struct pci_device *d, unsigned o, uint16_t v)
{
    assert(o % 2 == 0 && o + 2 <= sizeof(config));
    memcpy(config + o, &v, 2);
}
void pci_hotplug_wake(void) { }
struct irq_device *irq_demand(const struct irq_demand *d, const struct irq_device_ops *o, void *x) { return NULL; }

/* Every call with what the device answers; what it names must lie inside its BAR. */
static void drive(struct virtio_device *d)
{
    const struct virtio_transport_ops *t = d->transport;
    struct virtio_queue_setup q = { 16, 1, 2, 3 };
    (void)t->status_read(d);
    t->status_write(d, 0);
    for (unsigned word = 0; word < 2; word++) {
        (void)t->features_read(d, word);
        t->features_write(d, word, 0);
    }
    (void)t->generation(d);
    unsigned size = t->config_size(d);
    for (unsigned width = 1; width <= 4; width *= 2) {
        if (size >= width)
            (void)t->config_read(d, (size - width) & ~(width - 1), width);
    }
    if (size)
        t->config_write8(d, size - 1, 0);
    (void)t->config_vector(d, 0);
    (void)t->queue_count(d);
    (void)t->queue_size(d, 0);
    volatile uint16_t *doorbell = t->queue_doorbell(d, 0);
    if (doorbell)
        *doorbell = 0;
    t->queue_setup(d, 0, &q);
    (void)t->queue_vector(d, 0, 0);
    t->queue_enable(d, 0);
    if (d->queue_reset)
        (void)t->queue_reset(d, 0, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < sizeof(config) + 7)
        return 0;
    memcpy(config, data, sizeof(config));
    const uint8_t *sizes = data + sizeof(config), *rest = sizes + 6;
    size_t left = size - sizeof(config) - 6;
    struct pci_device *p = calloc(1, sizeof(*p));
    void *bars[6] = { 0 };
    *p = (struct pci_device){ .vendor = 0x1af4, .device = (uint16_t)(0x1000 + config[2]), .refs = 2, .name = "fuzz" };
    for (unsigned i = 0; i < 6; i++) {
        size_t bytes = sizes[i] & 0x3f ? (size_t)(sizes[i] & 0x3f) * 64 : 0;
        bars[i] = bytes ? malloc(bytes) : NULL;
        for (size_t k = 0; k < bytes; k++)
            ((uint8_t *)bars[i])[k] = rest[k % left];
        p->bar[i] = (struct pci_bar){ .base = (uint64_t)bars[i], .size = bytes, .io = sizes[i] >> 7, .mapped = bars[i] };
    }
    reads = 0;
    for (unsigned id = 0; id < 256; id++) {
        unsigned found = 0;
        for (unsigned at = 0; (at = pci_find_capability(p, (uint8_t)id, at)) != 0; found++)
            assert(at >= 0x40 && at < sizeof(config) && found < 64);
        reads = 0;
    }
    pci_probe_msix(p);
    struct virtio_device *d = virtio_pci_create(p, "fuzz");
    if (p->msix_table) {
        (void)pci_msix_write(p, p->msix_entries - 1, 0xfee00000, 1);
        assert(pci_msix_write(p, p->msix_entries, 0, 0) == -EINVAL);
    }
    if (d) {
        if (!d->transport->legacy) /* ports cannot be had here */
            drive(d);
        for (unsigned i = 0; i < 6; i++)
            p->bar[i].mapped = NULL; /* they are not vmap_phys's */
        virtio_pci_destroy(d);
    }
    for (unsigned i = 0; i < 6; i++)
        free(bars[i]);
    free(p);
    return 0;
}
