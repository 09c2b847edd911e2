/* Configuration space: ECAM windows named by the MCFG table or the host bridge's _CBA, else ports 0xCF8 and 0xCFC. */
#include <weir/atomic.h>
#include <weir/cpu.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/spinlock.h>
#include <weir/string.h>

#include "pci_internal.h"

#define CONFIG_ADDRESS 0xcf8
#define CONFIG_DATA    0xcfc
#define ECAM_BUS_BYTES (1u << 20)
#define SEGMENTS_MAX   4u

const struct pci_access *pci_access;

/* ---- ports ---- */

static spinlock_t port_lock = SPINLOCK_INIT; /* address and data port belong together; any context */

static uint32_t port_select(unsigned bus, unsigned devfn, unsigned offset)
{
    return 0x80000000u | bus << 16 | devfn << 8 | (offset & 0xfcu);
}

static uint32_t ports_read(unsigned segment, unsigned bus, unsigned devfn, unsigned offset,
                           unsigned width)
{
    uint32_t v = 0;
    uint16_t port = (uint16_t)(CONFIG_DATA + (offset & 3));
    uint64_t flags = spin_lock_irqsave(&port_lock);
    pci_port_write32(CONFIG_ADDRESS, port_select(bus, devfn, offset));
    if (width == 1)
        __asm__ volatile("inb %1, %b0" : "+a"(v) : "Nd"(port));
    else if (width == 2)
        __asm__ volatile("inw %1, %w0" : "+a"(v) : "Nd"(port));
    else
        __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port));
    spin_unlock_irqrestore(&port_lock, flags);
    return v;
}

static void ports_write(unsigned segment, unsigned bus, unsigned devfn, unsigned offset,
                        unsigned width, uint32_t v)
{
    uint16_t port = (uint16_t)(CONFIG_DATA + (offset & 3));
    uint64_t flags = spin_lock_irqsave(&port_lock);
    pci_port_write32(CONFIG_ADDRESS, port_select(bus, devfn, offset));
    if (width == 1)
        __asm__ volatile("outb %b0, %1" : : "a"(v), "Nd"(port));
    else if (width == 2)
        __asm__ volatile("outw %w0, %1" : : "a"(v), "Nd"(port));
    else
        pci_port_write32(port, v);
    spin_unlock_irqrestore(&port_lock, flags);
}

static const struct pci_access port_access = { ports_read, ports_write };

/* ---- ECAM ---- */

struct ecam_window {
    uint64_t base;             /* of bus 0, even when first_bus is not 0 */
    unsigned segment, first_bus, last_bus;
    void *mapped[PCI_BUSES];   /* a bus at a time, when it is first looked at */
};
static struct ecam_window *ecam_windows[SEGMENTS_MAX];
static unsigned ecam_count;

static struct ecam_window *ecam_find(unsigned segment, unsigned bus)
{
    for (unsigned i = 0; i < ecam_count; i++) {
        struct ecam_window *w = ecam_windows[i];
        if (w->segment == segment && bus >= w->first_bus && bus <= w->last_bus)
            return w;
    }
    return NULL;
}

/* Two threads may both map a bus: one wins, the other undoes its own. */
static void *ecam_bus(struct ecam_window *w, unsigned bus)
{
    void *at = atomic_load_acquire(&w->mapped[bus]);
    if (at)
        return at;
    at = vmap_phys(w->base + (uint64_t)bus * ECAM_BUS_BYTES, ECAM_BUS_BYTES,
                   VMAP_RW | VMAP_UNCACHED);
    void *expected = NULL;
    if (at && !atomic_cas(&w->mapped[bus], &expected, at)) {
        vunmap(at);
        at = expected;
    }
    return at;
}

static volatile void *ecam_address(unsigned segment, unsigned bus, unsigned devfn, unsigned offset)
{
    struct ecam_window *w = ecam_find(segment, bus);
    char *at = w ? ecam_bus(w, bus) : NULL;
    return at ? at + (devfn << 12) + offset : NULL;
}

static uint32_t ecam_read(unsigned segment, unsigned bus, unsigned devfn, unsigned offset,
                          unsigned width)
{
    volatile void *p = ecam_address(segment, bus, devfn, offset);
    if (!p)
        return ~0u;
    if (width == 1)
        return *(volatile uint8_t *)p;
    if (width == 2)
        return *(volatile uint16_t *)p;
    return *(volatile uint32_t *)p;
}

static void ecam_write(unsigned segment, unsigned bus, unsigned devfn, unsigned offset,
                       unsigned width, uint32_t v)
{
    volatile void *p = ecam_address(segment, bus, devfn, offset);
    if (!p)
        return;
    if (width == 1)
        *(volatile uint8_t *)p = (uint8_t)v;
    else if (width == 2)
        *(volatile uint16_t *)p = (uint16_t)v;
    else
        *(volatile uint32_t *)p = v;
}

static const struct pci_access ecam_access = { ecam_read, ecam_write };

/* ACPI MCFG: a 44-byte header, then 16-byte entries. */
struct mcfg_entry {
    uint64_t base;
    uint16_t segment;
    uint8_t first_bus, last_bus;
    uint32_t reserved;
} __packed;
#define ACPI_LENGTH_OFFSET 4
#define MCFG_HEADER_BYTES  44

static void ecam_add(const struct mcfg_entry *e)
{
    if (ecam_count == SEGMENTS_MAX || e->base == 0 || e->last_bus < e->first_bus) {
        log_warn("pci: ECAM window of segment %u ignored", e->segment);
        return;
    }
    struct ecam_window *w = kzalloc(sizeof(*w));
    if (!w)
        return;
    w->base = e->base;
    w->segment = e->segment;
    w->first_bus = e->first_bus;
    w->last_bus = e->last_bus;
    ecam_windows[ecam_count++] = w;
}

static void ecam_init(void)
{
    const char *mcfg = acpi_table("MCFG");
    if (!mcfg) {
        struct acpi_pci_host host;
        acpi_pci_host(&host);
        if (host.ecam_base)
            ecam_add(&(struct mcfg_entry){ .base = host.ecam_base, .last_bus = PCI_BUSES - 1 });
        return;
    }
    uint32_t length;
    memcpy(&length, mcfg + ACPI_LENGTH_OFFSET, sizeof(length));
    for (uint32_t at = MCFG_HEADER_BYTES; at + sizeof(struct mcfg_entry) <= length;
         at += sizeof(struct mcfg_entry)) {
        struct mcfg_entry e;
        memcpy(&e, mcfg + at, sizeof(e));
        ecam_add(&e);
    }
}

void pci_access_init(void)
{
    ecam_init();
    /* A window must answer for bus 0 of segment 0, or the table is not to be believed. */
    if (ecam_find(0, 0) && ecam_read(0, 0, 0, PCI_VENDOR_ID, 2) != 0xffff)
        pci_access = &ecam_access;
    else
        pci_access = &port_access;
    log_debug("pci: configuration space through %s",
              pci_access == &ecam_access ? "ECAM" : "ports");
}

unsigned pci_segment_count(void)
{
    unsigned n = 1;
    for (unsigned i = 0; i < ecam_count; i++)
        n = MAX(n, ecam_windows[i]->segment + 1);
    return n;
}

/* ---- by device ---- */

static unsigned devfn(const struct pci_device *d)
{
    return (unsigned)d->slot << 3 | d->function;
}

/* Where a function was unplugged, another may be by now. */
static uint32_t read_config(const struct pci_device *d, unsigned offset, unsigned width)
{
    if (atomic_load_relaxed(&d->gone))
        return ~0u;
    return pci_access->read(d->segment, d->bus, devfn(d), offset, width);
}

static void write_config(const struct pci_device *d, unsigned offset, unsigned width, uint32_t v)
{
    if (!atomic_load_relaxed(&d->gone))
        pci_access->write(d->segment, d->bus, devfn(d), offset, width, v);
}

uint8_t pci_read8(const struct pci_device *d, unsigned offset)
{
    return (uint8_t)read_config(d, offset, 1);
}

uint16_t pci_read16(const struct pci_device *d, unsigned offset)
{
    return (uint16_t)read_config(d, offset, 2);
}

uint32_t pci_read32(const struct pci_device *d, unsigned offset)
{
    return read_config(d, offset, 4);
}

void pci_write8(const struct pci_device *d, unsigned offset, uint8_t v)
{
    write_config(d, offset, 1, v);
}

void pci_write16(const struct pci_device *d, unsigned offset, uint16_t v)
{
    write_config(d, offset, 2, v);
}

void pci_write32(const struct pci_device *d, unsigned offset, uint32_t v)
{
    write_config(d, offset, 4, v);
}
