/*
 * QEMU's ACPI hot-plug registers (its docs/specs/acpi_pci_hotplug): five 32-bit ports, one bus at a time.
 *
 *   0   slots where something was plugged (reading clears)
 *   4   slots that are asked to be emptied
 *   8   write: empty these slots
 *   12  slots that can be hot-plugged
 *   16  which bus the others speak of
 *
 * General-purpose event 1 says that one of the first two has changed.
 */
#include <weir/cpu.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "aml_slots.h"
#include "pci_internal.h"

#define PORTS_I440FX 0xae00u
#define PORTS_Q35    0x0cc0u
enum { REG_UP = 0, REG_DOWN = 4, REG_EJECT = 8, REG_SELECT = 16 };
#define HOTPLUG_EVENT 1u
#define BUSES_MAX     256u

static uint16_t ports; /* 0 = this machine has none */
static struct aml_slots *buses;
static unsigned bus_count;

/* Number of the bus behind the bridges of a path, -1 = one of them is not there. */
static int bus_of(const struct aml_slots *s)
{
    unsigned bus = 0;
    for (unsigned i = 0; i < s->depth; i++) {
        const struct pci_device *bridge = pci_find_function(0, bus, s->path[i]);
        if (!bridge || !pci_is_bridge(bridge))
            return -1;
        bus = pci_read8(bridge, PCI_SECONDARY_BUS);
    }
    return (int)bus;
}

bool acpi_slots_manage(const struct pci_device *bridge)
{
    for (unsigned i = 0; ports && i < bus_count; i++) {
        if (buses[i].depth && bus_of(&buses[i]) == pci_read8(bridge, PCI_SECONDARY_BUS))
            return true;
    }
    return false;
}

static void empty_slots(unsigned bus, uint32_t down)
{
    while (down) {
        unsigned slot = (unsigned)__builtin_ctz(down);
        down &= down - 1;
        if (pci_hotplug_remove(0, bus, (int)slot, false))
            pci_port_write32((uint16_t)(ports + REG_EJECT), 1u << slot);
    }
}

void acpi_slots_look(void)
{
    uint32_t came = 0;
    for (unsigned i = 0; ports && i < bus_count; i++) {
        int bus = bus_of(&buses[i]);
        pci_port_write32((uint16_t)(ports + REG_SELECT), buses[i].selector);
        came |= pci_port_read32((uint16_t)(ports + REG_UP));
        uint32_t down = pci_port_read32((uint16_t)(ports + REG_DOWN));
        if (bus >= 0)
            empty_slots((unsigned)bus, down);
    }
    if (came)
        pci_hotplug_scan();
}

static void event(void *arg)
{
    pci_hotplug_wake();
}

static uint16_t ports_of_machine(void)
{
    const struct pci_device *host = pci_find_function(0, 0, 0);
    if (!host || host->vendor != 0x8086)
        return 0;
    return host->device == 0x1237 ? PORTS_I440FX : host->device == 0x29c0 ? PORTS_Q35 : 0;
}

void acpi_slots_init(void)
{
    const uint8_t *dsdt = acpi_table("DSDT");
    uint16_t at = ports_of_machine();
    if (!at || !dsdt)
        return;
    uint32_t length;
    memcpy(&length, dsdt + 4, sizeof(length));
    buses = kcalloc(BUSES_MAX, sizeof(*buses));
    bus_count = buses ? aml_slots_find(dsdt, length, buses, BUSES_MAX) : 0;
    if (!bus_count || acpi_gpe_enable(HOTPLUG_EVENT, event, NULL))
        return;
    ports = at;
    log_info("pci: hot-plug through ACPI, %u bus%s", bus_count, bus_count == 1 ? "" : "es");
}
