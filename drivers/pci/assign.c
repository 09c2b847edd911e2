/*
 * Memory BARs that firmware left empty. A root bus takes what is free in the host bridge's window, top
 * down, and never RAM (where the window is not known: below the interrupt controllers); a function
 * behind a bridge takes what is free in the bridge's memory window. What does not fit stays without address
 * (its driver says so).
 */
#include <weir/cpu.h>
#include <weir/mm.h>
#include <weir/printk.h>

#include "pci_internal.h"

#define GUESSED_WINDOW_END   0xfec00000UL /* I/O APIC and local APICs from here on */
#define GUESSED_WINDOW_START 0x40000000UL

struct window {
    uint64_t start, end;
};

static bool overlaps(uint64_t a, uint64_t a_end, uint64_t b, uint64_t b_end)
{
    return a < b_end && b < a_end;
}

static struct window bridge_window(const struct pci_device *bridge)
{
    uint32_t v = pci_read32(bridge, PCI_BRIDGE_MEMORY_BASE);
    uint64_t start = (uint64_t)(v & 0xfff0u) << 16;
    uint64_t end = (uint64_t)(v & 0xfff00000u) + 0x100000;
    return start < end ? (struct window){ start, end } : (struct window){ 0, 0 };
}

static struct window root_window(void)
{
    struct acpi_pci_host host;
    acpi_pci_host(&host);
    if (host.window_end)
        return (struct window){ host.window_start, host.window_end };
    return (struct window){ GUESSED_WINDOW_START, GUESSED_WINDOW_END };
}

static const struct pci_device *bridge_above(const struct pci_device *d)
{
    const struct pci_device *b;
    list_for_each_entry(b, &pci_devices, link)
    {
        if (pci_is_bridge(b) && b->segment == d->segment &&
            pci_read8(b, PCI_SECONDARY_BUS) == d->bus)
            return b;
    }
    return NULL;
}

/* Does anything that decodes on the same bus lie in the range? Returns where it starts, or 0. */
static uint64_t conflict(const struct pci_device *d, uint64_t start, uint64_t end)
{
    const struct pci_device *o;
    list_for_each_entry(o, &pci_devices, link)
    {
        if (o->segment != d->segment || o->bus != d->bus)
            continue;
        for (unsigned i = 0; i < ARRAY_SIZE(o->bar); i++) {
            const struct pci_bar *b = &o->bar[i];
            if (b->size && !b->io && b->base && overlaps(start, end, b->base, b->base + b->size))
                return b->base;
        }
        if (pci_is_bridge(o)) {
            struct window w = bridge_window(o);
            if (w.end && overlaps(start, end, w.start, w.end))
                return w.start;
        }
    }
    return 0;
}

/* Highest free address of the window for a BAR, 0 = none. */
static uint64_t find_free(const struct pci_device *d, struct window w, uint64_t size)
{
    uint64_t end = w.end;
    while (end >= w.start + size) {
        uint64_t start = ALIGN_DOWN(end - size, size);
        if (start < w.start || page_of_phys(start) || page_of_phys(start + size - 1))
            return 0;
        uint64_t blocked = conflict(d, start, start + size);
        if (!blocked)
            return start;
        end = MIN(blocked, start + size - 1);
    }
    return 0;
}

static void assign_bar(struct pci_device *d, unsigned index)
{
    struct pci_bar *b = &d->bar[index];
    const struct pci_device *bridge = d->bus ? bridge_above(d) : NULL;
    struct window w = bridge ? bridge_window(bridge) : root_window();
    uint64_t size = MAX(b->size, PAGE_SIZE);
    uint64_t base = w.end ? find_free(d, w, size) : 0;
    if (!base) {
        log_warn("pci %s: no room for BAR %u of %lu KiB", d->name, index,
                 (unsigned long)(b->size >> 10));
        return;
    }
    uint16_t command = pci_read16(d, PCI_COMMAND);
    pci_write16(d, PCI_COMMAND, command & (uint16_t)~PCI_COMMAND_MEMORY);
    pci_write32(d, PCI_BAR0 + 4 * index, (uint32_t)base);
    if (b->is64)
        pci_write32(d, PCI_BAR0 + 4 * index + 4, (uint32_t)(base >> 32));
    b->base = base;
    pci_write16(d, PCI_COMMAND, command);
    log_debug("pci %s: BAR %u placed at 0x%lx", d->name, index, (unsigned long)base);
}

void pci_assign_bars(void)
{
    struct pci_device *d;
    list_for_each_entry(d, &pci_devices, link)
    {
        if (d->vendor != 0x1af4)
            continue; /* only what we drive; chipset functions are firmware's business */
        for (unsigned i = 0; i < ARRAY_SIZE(d->bar); i++) {
            if (d->bar[i].size && !d->bar[i].io && !d->bar[i].base)
                assign_bar(d, i);
        }
    }
}
