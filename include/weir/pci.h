/*
 * PCI functions (drivers/pci): configuration space through ECAM (MCFG) or ports 0xCF8/0xCFC, BARs,
 * capabilities, MSI-X. Enumerated at INIT_BUS; drivers register a match table before that with PCI_DRIVER.
 */
#ifndef WEIR_PCI_H
#define WEIR_PCI_H
#include <weir/list.h>
#include <weir/irq.h>

struct pci_bar {
    uint64_t base, size;         /* physical; size 0 = absent */
    bool io, is64, prefetchable;
    void *mapped;                /* pci_map_bar */
};
struct pci_device {
    uint16_t segment; uint8_t bus, slot, function;
    uint16_t vendor, device, subsystem_vendor, subsystem;
    uint32_t class_code; uint8_t revision, header_type, interrupt_line, interrupt_pin;
    struct pci_bar bar[6];
    /* MSI-X, filled when the capability is present */
    uint16_t msix_offset; unsigned msix_entries; /* entries in the table, 1..2048; 0 = none */
    volatile uint32_t *msix_table;
    const struct pci_driver *driver;
    bool probed, started;        /* hot-plug: which functions are new */
    void *driver_data;
    struct list link;
    unsigned refs;               /* a the bus's, and the driver's until it has taken everything down */
    bool gone;                   /* a unplugged: the slot may hold another function; accesses go nowhere */
    char name[16];               /* "0000:00:04.0" */
};
struct pci_driver {
    const char *name;
    bool (*match)(const struct pci_device *d);
    int (*probe)(struct pci_device *d);  /* INIT_BUS: look, map, state irq demand; no I/O */
    int (*start)(struct pci_device *d);  /* INIT_DRIVER: grants are known */
    /* The function goes (hot-plug thread), or with `surprise` has gone: end what is in flight, give vectors
     * back, touch the function no more after the return. The driver's memory may live on as long as others
     * refer to it; pci_put with the end of it. NULL = cannot be unplugged. */
    void (*remove)(struct pci_device *d, bool surprise);
} __attribute__((aligned(64)));
#define PCI_DRIVER(d) static const struct pci_driver *const pci_driver_##d __section(".pci_drivers") = &(d)

/* Something may have come or gone: the hot-plug thread looks. Any context. */
void pci_hotplug_wake(void);

uint8_t pci_read8(const struct pci_device *d, unsigned offset);
uint16_t pci_read16(const struct pci_device *d, unsigned offset);
uint32_t pci_read32(const struct pci_device *d, unsigned offset);
void pci_write8(const struct pci_device *d, unsigned offset, uint8_t v);
void pci_write16(const struct pci_device *d, unsigned offset, uint16_t v);
void pci_write32(const struct pci_device *d, unsigned offset, uint32_t v);
/* Offset of the next capability with this id after `after` (0 = first), 0 = none. Loop- and bounds-safe. */
unsigned pci_find_capability(const struct pci_device *d, uint8_t id, unsigned after);
/* There is one, and so many bytes of it lie in the 256 that a function surely has: one may stand at their end. */
static inline bool pci_capability_fits(unsigned cap, unsigned bytes) { return cap && cap + bytes <= 256; }
void *pci_map_bar(struct pci_device *d, unsigned bar) __must_check; /* uncached; NULL = absent or no memory */
void pci_unmap_bars(struct pci_device *d);
void pci_get(struct pci_device *d);
void pci_put(struct pci_device *d);
void pci_enable(struct pci_device *d, bool memory, bool io, bool bus_master);
int pci_msix_enable(struct pci_device *d) __must_check;   /* all entries masked; 0 or -errno */
void pci_msix_disable(struct pci_device *d);
int pci_msix_write(struct pci_device *d, unsigned entry, uint64_t address, uint32_t data) __must_check; /* + unmask, read back */
void pci_msix_mask(struct pci_device *d, unsigned entry, bool masked);
#endif
