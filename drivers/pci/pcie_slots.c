/*
 * Native hot-plug slots of PCI Express ports (PCIe 4.0 sections 6.7 and 7.5.3): a card comes, the slot gets
 * power, its functions are scanned; the attention button asks for the card, its functions are removed and
 * the power goes. A card that is missing although nobody asked was pulled out.
 *
 * Ports that ACPI manages are left to it. A port is a device with one source for core/irq, served as a
 * configuration change: interrupt, or a look every 100 ms where no vector is left.
 */
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>

#include "pci_internal.h"

#define CAP_EXPRESS        0x10u
#define EXPRESS_FLAGS      2u
#define FLAGS_PORT_TYPE(f) (((f) >> 4) & 15)
#define PORT_ROOT          4u
#define PORT_DOWNSTREAM    6u
#define FLAGS_SLOT         0x0100u
#define SLOT_CAP           0x14u
#define SLOT_CAP_HOTPLUG   0x0040u
#define SLOT_CONTROL       0x18u
#define CONTROL_BUTTON     0x0001u /* interrupt for each of these */
#define CONTROL_PRESENCE   0x0008u
#define CONTROL_INTERRUPT  0x0020u
#define CONTROL_LED        0x0300u
#define CONTROL_LED_ON     0x0100u
#define CONTROL_LED_OFF    0x0300u
#define CONTROL_POWER_OFF  0x0400u
#define SLOT_STATUS        0x1au
#define STATUS_BUTTON      0x0001u
#define STATUS_EVENTS      0x001fu /* cleared by writing ones */
#define STATUS_PRESENT     0x0040u
#define CLASS_BRIDGE       0x0604u
#define COME_UP_NS         (1000 * NSEC_PER_MSEC)
#define COME_UP_POLL_NS    (2 * NSEC_PER_MSEC)

/* Key: I immutable, e lock (interrupts off). */
struct port {
    struct pci_device *pci;  /* I */
    unsigned cap;            /* I */
    struct irq_device *irq;  /* I */
    spinlock_t lock;
    uint16_t events;         /* e taken off the port, not looked at yet */
    struct port *next;       /* I */
};
static struct port *ports; /* INIT_BUS, then constant */

/* ---- interrupt ---- */

/* The slot's status now; its events are with the others that nobody has looked at. */
static uint16_t take_status_locked(struct port *p)
{
    uint16_t status = pci_read16(p->pci, p->cap + SLOT_STATUS), events = status & STATUS_EVENTS;
    if (!events || pci_read16(p->pci, PCI_VENDOR_ID) == 0xffff)
        return status & (uint16_t)~STATUS_EVENTS;
    pci_write16(p->pci, p->cap + SLOT_STATUS, events);
    p->events |= events;
    return status;
}

static bool take_events(struct port *p)
{
    uint64_t flags = spin_lock_irqsave(&p->lock);
    bool taken = take_status_locked(p) & STATUS_EVENTS;
    spin_unlock_irqrestore(&p->lock, flags);
    if (taken)
        pci_hotplug_wake();
    return taken;
}

static unsigned line_ack(void *device)
{
    return take_events(device) ? IRQ_ACK_CONFIG : 0;
}

static int write_message(void *device, unsigned entry, uint64_t address, uint32_t data)
{
    struct port *p = device;
    return pci_msix_write(p->pci, entry, address, data);
}

static void mask_entry(void *device, unsigned entry, bool masked)
{
    struct port *p = device;
    pci_msix_mask(p->pci, entry, masked);
}

static const struct irq_device_ops irq_ops = { .write_message = write_message, .mask = mask_entry, .ack = line_ack };

static bool serve(void *arg)
{
    return take_events(arg);
}
static const struct irq_service service = { .serve = serve };

/* ---- hot-plug thread ---- */

static unsigned bus_behind(const struct port *p)
{
    return pci_read8(p->pci, PCI_SECONDARY_BUS);
}

static void set_power(struct port *p, bool on)
{
    uint16_t control = pci_read16(p->pci, p->cap + SLOT_CONTROL);
    control &= (uint16_t)~(CONTROL_LED | CONTROL_POWER_OFF);
    control |= on ? CONTROL_LED_ON : CONTROL_LED_OFF | CONTROL_POWER_OFF;
    pci_write16(p->pci, p->cap + SLOT_CONTROL, control);
}

static void card_came(struct port *p)
{
    unsigned bus = bus_behind(p);
    set_power(p, true);
    uint64_t deadline = clock_monotonic_ns() + COME_UP_NS;
    while (pci_access->read(p->pci->segment, bus, 0, PCI_VENDOR_ID, 2) == 0xffff) {
        if (clock_monotonic_ns() > deadline) {
            log_warn("pci %s: the card in this slot does not come up", p->pci->name);
            return;
        }
        sleep_until_ns(clock_monotonic_ns() + COME_UP_POLL_NS);
    }
    pci_hotplug_scan();
}

static void card_goes(struct port *p, bool surprise)
{
    if (pci_hotplug_remove(p->pci->segment, bus_behind(p), -1, surprise))
        set_power(p, false);
}

static void look(struct port *p)
{
    /* Events and presence of one moment. A port may press the button for whoever plugs a card (QEMU does): seen later than
     * the card, that would be a request to take it out. */
    uint64_t flags = spin_lock_irqsave(&p->lock);
    bool noted = p->events, present = noted && (take_status_locked(p) & STATUS_PRESENT);
    unsigned events = p->events;
    p->events = 0;
    spin_unlock_irqrestore(&p->lock, flags);
    if (!noted)
        return;
    bool empty = pci_slot_empty(p->pci->segment, bus_behind(p), -1);
    if (present && empty)
        card_came(p);
    else if (!empty && (!present || (events & STATUS_BUTTON)))
        card_goes(p, !present);
}

void pcie_slots_look(void)
{
    for (struct port *p = ports; p; p = p->next)
        look(p);
}

/* ---- driver ---- */

static unsigned slot_capability(const struct pci_device *d)
{
    if (d->class_code >> 8 != CLASS_BRIDGE)
        return 0;
    unsigned cap = pci_find_capability(d, CAP_EXPRESS, 0);
    if (!pci_capability_fits(cap, SLOT_STATUS + sizeof(uint16_t)))
        return 0;
    unsigned flags = pci_read16(d, cap + EXPRESS_FLAGS), type = FLAGS_PORT_TYPE(flags);
    bool slot = (flags & FLAGS_SLOT) && (type == PORT_ROOT || type == PORT_DOWNSTREAM);
    return slot && (pci_read32(d, cap + SLOT_CAP) & SLOT_CAP_HOTPLUG) ? cap : 0;
}

static bool match(const struct pci_device *d)
{
    return slot_capability(d) && !acpi_slots_manage(d);
}

static int probe(struct pci_device *d)
{
    struct port *p = kzalloc(sizeof(*p));
    if (!p)
        return -ENOMEM;
    spin_init(&p->lock);
    p->pci = d;
    p->cap = slot_capability(d);
    bool msix = d->msix_entries && pci_msix_enable(d) == 0;
    bool line = !msix && d->interrupt_pin && d->interrupt_line && d->interrupt_line != 0xff;
    char name[40];
    snprintf(name, sizeof(name), "pcie-slot %.16s", d->name);
    struct irq_demand demand = {
        .name = name,
        .class = IRQ_CLASS_OTHER,
        .sources = 1,
        .config_change = true,
        .msix_entries = msix ? d->msix_entries : 0,
        .intx_gsi = line ? d->interrupt_line : -1,
    };
    p->irq = irq_demand(&demand, &irq_ops, p);
    if (!p->irq) {
        kfree(p);
        return -ENOMEM;
    }
    d->driver_data = p;
    p->next = ports;
    ports = p;
    return 0;
}

static int start(struct pci_device *d)
{
    struct port *p = d->driver_data;
    irq_bind(p->irq, IRQ_CONFIG, 0, &service, p);
    uint16_t control = pci_read16(d, p->cap + SLOT_CONTROL);
    pci_write16(d, p->cap + SLOT_CONTROL, control | CONTROL_BUTTON | CONTROL_PRESENCE | CONTROL_INTERRUPT);
    /* What was plugged before anybody listened. */
    uint64_t flags = spin_lock_irqsave(&p->lock);
    p->events |= STATUS_EVENTS & ~STATUS_BUTTON;
    spin_unlock_irqrestore(&p->lock, flags);
    pci_hotplug_wake();
    return 0;
}

static const struct pci_driver pcie_slot_driver = {
    .name = "pcie-slot",
    .match = match,
    .probe = probe,
    .start = start,
};
PCI_DRIVER(pcie_slot_driver);
