/* One PCI function: capabilities, BAR mapping, MSI-X table. */
#include <weir/atomic.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>

#include "pci_internal.h"

static unsigned next_capability(const struct pci_device *d, unsigned pointer_at)
{
    unsigned at = pci_read8(d, pointer_at) & ~3u;
    return at >= 0x40 ? at : 0;
}

unsigned pci_find_capability(const struct pci_device *d, uint8_t id, unsigned after)
{
    if (!(pci_read16(d, PCI_STATUS) & PCI_STATUS_CAPABILITIES))
        return 0;
    bool past = after == 0;
    uint64_t seen = 0; /* capabilities are 4-byte-aligned in 256 bytes; one met again is a loop */
    unsigned at = next_capability(d, PCI_CAPABILITIES);
    while (at && !(seen & BIT(at / 4))) {
        seen |= BIT(at / 4);
        if (past && pci_read8(d, at) == id)
            return at;
        past |= at == after;
        at = next_capability(d, at + 1);
    }
    return 0;
}

void pci_enable(struct pci_device *d, bool memory, bool io, bool bus_master)
{
    uint16_t command = pci_read16(d, PCI_COMMAND);
    command &= (uint16_t)~(PCI_COMMAND_MEMORY | PCI_COMMAND_IO | PCI_COMMAND_MASTER);
    command |= (uint16_t)((memory ? PCI_COMMAND_MEMORY : 0) | (io ? PCI_COMMAND_IO : 0) |
                          (bus_master ? PCI_COMMAND_MASTER : 0));
    pci_write16(d, PCI_COMMAND, command);
}

void *pci_map_bar(struct pci_device *d, unsigned bar)
{
    struct pci_bar *b = &d->bar[bar];
    if (bar >= ARRAY_SIZE(d->bar) || b->size == 0 || b->io || b->base == 0)
        return NULL;
    if (!b->mapped)
        b->mapped = vmap_phys(b->base, b->size, VMAP_RW | VMAP_UNCACHED);
    return b->mapped;
}

void pci_unmap_bars(struct pci_device *d)
{
    for (unsigned i = 0; i < ARRAY_SIZE(d->bar); i++) {
        if (d->bar[i].mapped)
            vunmap(d->bar[i].mapped);
        d->bar[i].mapped = NULL;
    }
}

void pci_get(struct pci_device *d)
{
    atomic_fetch_add(&d->refs, 1);
}

void pci_put(struct pci_device *d)
{
    if (atomic_fetch_sub(&d->refs, 1) == 1)
        kfree(d);
}

/* ---- MSI-X, PCI 3.0 section 6.8.2 ---- */

#define MSIX_CONTROL       2u
#define MSIX_TABLE         4u
#define MSIX_BYTES         12u
#define MSIX_CONTROL_SIZE  0x07ffu
#define MSIX_FUNCTION_MASK 0x4000u
#define MSIX_ENABLE        0x8000u
#define MSIX_ENTRY_BYTES   16u
/* Words of a table entry. */
enum { ENTRY_ADDRESS, ENTRY_ADDRESS_HIGH, ENTRY_DATA, ENTRY_CONTROL, ENTRY_WORDS };
#define ENTRY_MASKED 1u

void pci_probe_msix(struct pci_device *d)
{
    unsigned cap = pci_find_capability(d, PCI_CAP_MSIX, 0);
    if (!pci_capability_fits(cap, MSIX_BYTES))
        return;
    unsigned entries = (pci_read16(d, cap + MSIX_CONTROL) & MSIX_CONTROL_SIZE) + 1;
    uint32_t table = pci_read32(d, cap + MSIX_TABLE);
    unsigned bar = table & 7;
    uint64_t end = (uint64_t)(table & ~7u) + (uint64_t)entries * MSIX_ENTRY_BYTES;
    if (bar >= ARRAY_SIZE(d->bar) || d->bar[bar].io || end > d->bar[bar].size) {
        log_warn("pci %s: MSI-X table lies outside its BAR, not used", d->name);
        return;
    }
    d->msix_offset = (uint16_t)cap;
    d->msix_entries = entries;
}

static void set_control(struct pci_device *d, uint16_t set, uint16_t clear)
{
    uint16_t v = pci_read16(d, d->msix_offset + MSIX_CONTROL);
    pci_write16(d, d->msix_offset + MSIX_CONTROL, (uint16_t)((v & ~clear) | set));
}

int pci_msix_enable(struct pci_device *d)
{
    if (!d->msix_entries)
        return -ENOENT;
    uint32_t table = pci_read32(d, d->msix_offset + MSIX_TABLE);
    char *bar = pci_map_bar(d, table & 7);
    if (!bar)
        return -ENOMEM;
    d->msix_table = (volatile uint32_t *)(bar + (table & ~7u));
    /* Function mask first: no entry may fire before it has its own mask. */
    set_control(d, MSIX_ENABLE | MSIX_FUNCTION_MASK, 0);
    for (unsigned i = 0; i < d->msix_entries; i++)
        d->msix_table[i * ENTRY_WORDS + ENTRY_CONTROL] = ENTRY_MASKED;
    set_control(d, 0, MSIX_FUNCTION_MASK);
    pci_write16(d, PCI_COMMAND, pci_read16(d, PCI_COMMAND) | PCI_COMMAND_INTX_DISABLE);
    if (!(pci_read16(d, d->msix_offset + MSIX_CONTROL) & MSIX_ENABLE)) {
        d->msix_table = NULL;
        return -EIO;
    }
    return 0;
}

void pci_msix_disable(struct pci_device *d)
{
    if (!d->msix_table)
        return;
    set_control(d, 0, MSIX_ENABLE);
    pci_write16(d, PCI_COMMAND, pci_read16(d, PCI_COMMAND) & (uint16_t)~PCI_COMMAND_INTX_DISABLE);
    d->msix_table = NULL;
}

void pci_msix_mask(struct pci_device *d, unsigned entry, bool masked)
{
    if (!d->msix_table || entry >= d->msix_entries)
        return;
    volatile uint32_t *control = &d->msix_table[entry * ENTRY_WORDS + ENTRY_CONTROL];
    *control = masked ? ENTRY_MASKED : 0;
    (void)*control; /* the read pushes the posted write out to the device */
}

int pci_msix_write(struct pci_device *d, unsigned entry, uint64_t address, uint32_t data)
{
    if (!d->msix_table || entry >= d->msix_entries)
        return -EINVAL;
    volatile uint32_t *e = &d->msix_table[entry * ENTRY_WORDS];
    /* Changing the message of an unmasked entry is undefined. */
    pci_msix_mask(d, entry, true);
    e[ENTRY_ADDRESS] = (uint32_t)address;
    e[ENTRY_ADDRESS_HIGH] = (uint32_t)(address >> 32);
    e[ENTRY_DATA] = data;
    if (e[ENTRY_ADDRESS] != (uint32_t)address || e[ENTRY_ADDRESS_HIGH] != (uint32_t)(address >> 32) ||
        e[ENTRY_DATA] != data)
        return -EIO;
    pci_msix_mask(d, entry, false);
    return 0;
}
