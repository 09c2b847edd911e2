/*
 * Functions that come and go while the machine runs. One thread does all of it: it is woken by the slots'
 * interrupts (acpi_slots.c, pcie_slots.c) or by a driver whose device reads as all ones, and after boot it
 * alone changes the list of functions.
 *
 *   came   scan, BARs, probe (demand stated), irq_replan, start
 *   asked  driver's remove, then the slot is emptied
 *   gone   (surprise) driver's remove with nothing there any more
 */
#include <weir/atomic.h>
#include <weir/init.h>
#include <weir/irq.h>
#include <weir/printk.h>
#include <weir/sched.h>

#include "pci_internal.h"

static struct wait_queue wait = WAIT_QUEUE_INIT(wait);
static bool wanted; /* a */

void pci_hotplug_wake(void)
{
    atomic_store_release(&wanted, true);
    wake_all(&wait);
}

/* ---- arrival ---- */

void pci_hotplug_scan(void)
{
    pci_enumerate();
    bool found = false;
    struct pci_device *d;
    list_for_each_entry(d, &pci_devices, link)
    {
        if (d->probed)
            continue;
        log_info("pci %s: plugged, %04x:%04x", d->name, d->vendor, d->device);
        pci_probe(d);
        found |= d->driver != NULL;
    }
    if (!found)
        return;
    irq_replan();
    list_for_each_entry(d, &pci_devices, link)
        pci_start(d);
}

/* ---- departure ---- */

static bool in_slot(const struct pci_device *d, unsigned segment, unsigned bus, int slot)
{
    return d->segment == segment && d->bus == bus && (slot < 0 || d->slot == slot);
}

bool pci_slot_empty(unsigned segment, unsigned bus, int slot)
{
    struct pci_device *d;
    list_for_each_entry(d, &pci_devices, link)
    {
        if (in_slot(d, segment, bus, slot))
            return false;
    }
    return true;
}

static bool remove_function(struct pci_device *d, bool surprise)
{
    if (pci_is_bridge(d) &&
        !pci_hotplug_remove(d->segment, pci_read8(d, PCI_SECONDARY_BUS), -1, surprise))
        return false;
    if (d->driver && !d->driver->remove) {
        log_warn("pci %s: %s cannot be unplugged", d->name, d->driver->name);
        return false;
    }
    if (d->driver)
        d->driver->remove(d, surprise);
    log_info("pci %s: %s", d->name, surprise ? "has vanished" : "may be taken out");
    list_del(&d->link);
    atomic_store_release(&d->gone, true);
    pci_put(d);
    return true;
}

bool pci_hotplug_remove(unsigned segment, unsigned bus, int slot, bool surprise)
{
    struct pci_device *d;
restart:
    list_for_each_entry(d, &pci_devices, link)
    {
        if (!in_slot(d, segment, bus, slot))
            continue;
        if (!remove_function(d, surprise))
            return false;
        goto restart; /* the list has changed, perhaps by more than this one */
    }
    return true;
}

/* A function that reads as all ones was taken out without asking. */
static void look_for_vanished(void)
{
    struct pci_device *d;
restart:
    list_for_each_entry(d, &pci_devices, link)
    {
        if (pci_read16(d, PCI_VENDOR_ID) != 0xffff)
            continue;
        if (remove_function(d, true))
            goto restart;
    }
}

/* ---- the thread ---- */

static void hotplug_thread(void *arg)
{
    for (;;) {
        wait_event(&wait, atomic_load_acquire(&wanted));
        atomic_store_relaxed(&wanted, false);
        barrier_full(); /* what is raised from here on sets it again */
        look_for_vanished();
        acpi_slots_look();
        pcie_slots_look();
    }
}

/* Last of all levels: what came or went while the machine started is looked at then. */
static void hotplug_init(void)
{
    struct thread *t = thread_create("pci-hotplug", hotplug_thread, NULL);
    if (!t) {
        log_warn("pci: no memory for the hot-plug thread");
        return;
    }
    thread_start(t);
    thread_put(t);
}
INIT_CALL(INIT_LINUX, hotplug_init);
