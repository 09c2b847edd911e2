/*
 * Finding PCI functions: a walk over bus 0 and every bus behind a bridge, with a work list instead of
 * recursion. Firmware numbers the buses; a bridge that it left alone gets the next free number.
 */
#include <weir/cpu.h>
#include <weir/init.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "pci_internal.h"

extern const struct pci_driver *const pci_drivers_start[], *const pci_drivers_end[];

struct list pci_devices = LIST_INIT(pci_devices);

/* The walk over one segment. */
struct walk {
    unsigned segment;
    uint64_t seen[BITMAP_WORDS(PCI_BUSES)];
    uint8_t pending[PCI_BUSES]; /* a bus enters once, so it cannot overflow */
    unsigned first, count;
    unsigned highest;           /* bus number in use */
};

static void walk_add_bus(struct walk *w, unsigned bus)
{
    if (bus >= PCI_BUSES || bitmap_test(w->seen, bus))
        return; /* a bridge that leads back: a loop in what firmware wrote */
    bitmap_set(w->seen, bus);
    w->pending[w->count++] = (uint8_t)bus;
    w->highest = MAX(w->highest, bus);
}

/* ---- BARs ---- */

/* The bits of a BAR that can be set say its size. Decoding is off meanwhile. */
static uint32_t bar_probe(struct pci_device *d, unsigned offset)
{
    uint32_t old = pci_read32(d, offset);
    pci_write32(d, offset, ~0u);
    uint32_t bits = pci_read32(d, offset);
    pci_write32(d, offset, old);
    return bits;
}

/* Returns how many BAR registers this one takes. */
static unsigned bar_read(struct pci_device *d, unsigned index, unsigned count)
{
    struct pci_bar *b = &d->bar[index];
    unsigned offset = PCI_BAR0 + 4 * index;
    uint32_t low = pci_read32(d, offset);
    uint32_t bits = bar_probe(d, offset);
    b->io = low & 1;
    if (b->io) {
        uint32_t mask = bits & ~3u;
        b->base = low & ~3u;
        b->size = mask ? (~(mask | 0xffff0000u) + 1) & 0xffffu : 0;
        return 1;
    }
    b->prefetchable = low & 8;
    b->is64 = (low & 6) == 4 && index + 1 < count;
    uint64_t mask = bits & ~0xfu, base = low & ~0xfu;
    if (b->is64) {
        base |= (uint64_t)pci_read32(d, offset + 4) << 32;
        mask |= (uint64_t)bar_probe(d, offset + 4) << 32;
    } else {
        mask |= mask ? 0xffffffff00000000UL : 0;
    }
    b->base = base;
    b->size = mask ? ~mask + 1 : 0;
    return b->is64 ? 2 : 1;
}

static void bars_read(struct pci_device *d)
{
    unsigned count = pci_is_bridge(d) ? 2 : 6;
    uint16_t command = pci_read16(d, PCI_COMMAND);
    pci_write16(d, PCI_COMMAND, command & (uint16_t)~(PCI_COMMAND_IO | PCI_COMMAND_MEMORY));
    for (unsigned i = 0; i < count;)
        i += bar_read(d, i, count);
    pci_write16(d, PCI_COMMAND, command);
}

/* ---- functions ---- */

static void bridge_found(struct walk *w, struct pci_device *d)
{
    unsigned secondary = pci_read8(d, PCI_SECONDARY_BUS);
    if (secondary == 0) {
        if (w->highest + 1 >= PCI_BUSES)
            return;
        secondary = w->highest + 1;
        pci_write8(d, PCI_PRIMARY_BUS, d->bus);
        pci_write8(d, PCI_SECONDARY_BUS, (uint8_t)secondary);
        pci_write8(d, PCI_SUBORDINATE_BUS, (uint8_t)secondary);
    }
    pci_enable(d, true, true, true); /* forward both ways */
    walk_add_bus(w, secondary);
}

struct pci_device *pci_find_function(unsigned segment, unsigned bus, unsigned devfn)
{
    struct pci_device *d;
    list_for_each_entry(d, &pci_devices, link)
    {
        if (d->segment == segment && d->bus == bus && ((unsigned)d->slot << 3 | d->function) == devfn)
            return d;
    }
    return NULL;
}

static void function_found(struct walk *w, unsigned bus, unsigned slot, unsigned function)
{
    struct pci_device *known = pci_find_function(w->segment, bus, slot << 3 | function);
    if (known) {
        if (pci_is_bridge(known))
            walk_add_bus(w, pci_read8(known, PCI_SECONDARY_BUS));
        return;
    }
    struct pci_device *d = kzalloc(sizeof(*d));
    if (!d) {
        log_error("pci: no memory for function %02x:%02x.%u", bus, slot, function);
        return;
    }
    d->refs = 1;
    d->segment = (uint16_t)w->segment;
    d->bus = (uint8_t)bus;
    d->slot = (uint8_t)slot;
    d->function = (uint8_t)function;
    d->vendor = pci_read16(d, PCI_VENDOR_ID);
    d->device = pci_read16(d, PCI_DEVICE_ID);
    d->revision = pci_read8(d, PCI_REVISION);
    d->class_code = pci_read32(d, PCI_REVISION) >> 8;
    d->header_type = pci_read8(d, PCI_HEADER_TYPE);
    snprintf(d->name, sizeof(d->name), "%04x:%02x:%02x.%u", w->segment & 0xffff, bus & 0xff,
             slot & 0x1f, function & 7);
    bars_read(d);
    if (pci_is_bridge(d)) {
        bridge_found(w, d);
    } else {
        d->subsystem_vendor = pci_read16(d, PCI_SUBSYSTEM_VENDOR);
        d->subsystem = pci_read16(d, PCI_SUBSYSTEM_ID);
    }
    d->interrupt_line = pci_read8(d, PCI_INTERRUPT_LINE);
    d->interrupt_pin = pci_read8(d, PCI_INTERRUPT_PIN);
    list_add_tail(&pci_devices, &d->link);
    log_debug("pci %s: %04x:%04x class %06x", d->name, d->vendor, d->device, d->class_code);
}

static unsigned read_vendor(struct walk *w, unsigned bus, unsigned slot, unsigned function)
{
    return pci_access->read(w->segment, bus, slot << 3 | function, PCI_VENDOR_ID, 2);
}

static void scan_bus(struct walk *w, unsigned bus)
{
    for (unsigned slot = 0; slot < PCI_SLOTS; slot++) {
        if (read_vendor(w, bus, slot, 0) == 0xffff)
            continue;
        unsigned type = pci_access->read(w->segment, bus, slot << 3, PCI_HEADER_TYPE, 1);
        unsigned functions = type & PCI_HEADER_MULTIFUNCTION ? PCI_FUNCTIONS : 1;
        for (unsigned f = 0; f < functions; f++) {
            if (read_vendor(w, bus, slot, f) != 0xffff)
                function_found(w, bus, slot, f);
        }
    }
}

static void scan_segment(unsigned segment)
{
    struct walk *w = kzalloc(sizeof(*w));
    if (!w)
        return;
    w->segment = segment;
    walk_add_bus(w, 0);
    while (w->first < w->count)
        scan_bus(w, w->pending[w->first++]);
    kfree(w);
}

void pci_enumerate(void)
{
    for (unsigned s = 0; s < pci_segment_count(); s++)
        scan_segment(s);
    pci_assign_bars();
    struct pci_device *d;
    list_for_each_entry(d, &pci_devices, link)
    {
        if (!d->msix_entries)
            pci_probe_msix(d);
    }
}

/* ---- drivers ---- */

void pci_probe(struct pci_device *d)
{
    d->probed = true;
    for (const struct pci_driver *const *p = pci_drivers_start; p < pci_drivers_end; p++) {
        if (!(*p)->match(d))
            continue;
        if ((*p)->probe(d) == 0)
            d->driver = *p;
        break;
    }
}

void pci_start(struct pci_device *d)
{
    if (!d->driver || d->started)
        return;
    d->started = true;
    int error = d->driver->start(d);
    if (error) {
        log_error("pci %s: %s did not start: error %d", d->name, d->driver->name, -error);
        d->driver = NULL;
    }
}

static void pci_bus_init(void)
{
    pci_access_init();
    pci_enumerate();
    acpi_slots_init();
    struct pci_device *d;
    list_for_each_entry(d, &pci_devices, link)
        pci_probe(d);
}
INIT_CALL(INIT_BUS, pci_bus_init);

static void pci_driver_init(void)
{
    struct pci_device *d;
    list_for_each_entry(d, &pci_devices, link)
        pci_start(d);
}
INIT_CALL(INIT_DRIVER, pci_driver_init);
