/* Private to drivers/pci: how configuration space is reached, and what enumeration hands on. */
#ifndef WEIR_PCI_INTERNAL_H
#define WEIR_PCI_INTERNAL_H
#include <weir/pci.h>

/* Configuration header, PCI 3.0 section 6.1 and PCI-to-PCI bridge 1.2 section 3.2. */
enum pci_register {
    PCI_VENDOR_ID = 0x00,
    PCI_DEVICE_ID = 0x02,
    PCI_COMMAND = 0x04,
    PCI_STATUS = 0x06,
    PCI_REVISION = 0x08,
    PCI_HEADER_TYPE = 0x0e,
    PCI_BAR0 = 0x10,
    PCI_PRIMARY_BUS = 0x18,
    PCI_SECONDARY_BUS = 0x19,
    PCI_SUBORDINATE_BUS = 0x1a,
    PCI_BRIDGE_MEMORY_BASE = 0x20,
    PCI_SUBSYSTEM_VENDOR = 0x2c,
    PCI_SUBSYSTEM_ID = 0x2e,
    PCI_CAPABILITIES = 0x34,
    PCI_INTERRUPT_LINE = 0x3c,
    PCI_INTERRUPT_PIN = 0x3d,
};
#define PCI_COMMAND_IO           0x0001u
#define PCI_COMMAND_MEMORY       0x0002u
#define PCI_COMMAND_MASTER       0x0004u
#define PCI_COMMAND_INTX_DISABLE 0x0400u
#define PCI_STATUS_CAPABILITIES  0x0010u
#define PCI_HEADER_MULTIFUNCTION 0x80u
#define PCI_HEADER_BRIDGE        0x01u
#define PCI_CAP_MSIX             0x11u

#define PCI_CONFIG_BYTES   256u
#define PCI_SLOTS          32u
#define PCI_FUNCTIONS      8u
#define PCI_BUSES          256u

/* One access of width 1, 2 or 4 to a register aligned to it. */
struct pci_access {
    uint32_t (*read)(unsigned segment, unsigned bus, unsigned devfn, unsigned offset, unsigned width);
    void (*write)(unsigned segment, unsigned bus, unsigned devfn, unsigned offset, unsigned width,
                  uint32_t value);
};
extern const struct pci_access *pci_access; /* chosen by pci_access_init; tests put their own */
void pci_access_init(void);
unsigned pci_segment_count(void);           /* segments that can be reached, at least 1 */

extern struct list pci_devices;             /* in bus order; after INIT_DRIVER the hot-plug thread's */
void pci_enumerate(void);                   /* finds what is not in the list yet */
void pci_probe(struct pci_device *d);
void pci_start(struct pci_device *d);
struct pci_device *pci_find_function(unsigned segment, unsigned bus, unsigned devfn);
static inline bool pci_is_bridge(const struct pci_device *d)
{
    return (d->header_type & 0x7f) == PCI_HEADER_BRIDGE;
}

/* hotplug.c; the hot-plug thread calls all but pci_hotplug_wake */
void pci_hotplug_scan(void);                /* functions that came: probe, plan, start */
/* All functions of a slot, or of a bus with slot < 0, and what is behind them. False: a driver cannot let go. */
bool pci_hotplug_remove(unsigned segment, unsigned bus, int slot, bool surprise);
bool pci_slot_empty(unsigned segment, unsigned bus, int slot);
/* acpi_slots.c: QEMU's ACPI hot-plug registers; pcie_slots.c: native slots of PCI Express ports. */
void acpi_slots_init(void);
bool acpi_slots_manage(const struct pci_device *bridge);
void acpi_slots_look(void);
void pcie_slots_look(void);

static inline uint32_t pci_port_read32(uint16_t port)
{
    uint32_t v;
    __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline void pci_port_write32(uint16_t port, uint32_t v)
{
    __asm__ volatile("outl %0, %1" : : "a"(v), "Nd"(port));
}
void pci_assign_bars(void);
void pci_probe_msix(struct pci_device *d);
#endif
