/*
 * The process-wide vector budget (core/irq): demands in, grants out, binding of grants to IDT vectors,
 * MSI-X messages and pollers. Two phases: drivers call irq_demand() at INIT_BUS, the planner runs at
 * INIT_PLAN, drivers bind at INIT_DRIVER. Later (hot-plug) irq_demand() re-plans at once.
 *
 * A device owns its struct irq_device from irq_demand() to irq_release(). A source is one thing that
 * must be served: a queue (or a pair), or the configuration change.
 */
#ifndef WEIR_IRQ_H
#define WEIR_IRQ_H
#include <weir/list.h>
#include <weir/bitmap.h>

enum irq_class { IRQ_CLASS_BLOCK, IRQ_CLASS_NET, IRQ_CLASS_OTHER };
enum irq_grant { IRQ_GRANT_OWN, IRQ_GRANT_DEVICE_SHARED, IRQ_GRANT_DEVICE_ONE, IRQ_GRANT_SYSTEM_SHARED,
                 IRQ_GRANT_POLLED };

struct irq_device;
struct irq_source;

struct irq_demand {
    const char *name;            /* "virtio-blk 0000:00:04.0"; copied */
    enum irq_class class;
    unsigned sources;            /* queues or pairs that want service */
    bool config_change;
    unsigned msix_entries;       /* table size; 0 = no MSI-X (INTx line or poller) */
    int intx_gsi;                /* -1 = none */
};
struct irq_device_ops {
    /* Programme MSI-X entry `entry` with the message and unmask it; 0 or -errno (entry refused). */
    int (*write_message)(void *device, unsigned entry, uint64_t address, uint32_t data);
    /* Mask or unmask an entry. After unmask the source is served once, for what came meanwhile. */
    void (*mask)(void *device, unsigned entry, bool masked);
};
/* Returns NULL without memory. Thread context. */
struct irq_device *irq_demand(const struct irq_demand *demand, const struct irq_device_ops *ops, void *device);

/* What the planner gave; valid after INIT_PLAN. Entries to use: source i goes to MSI-X entry
 * irq_entry_of(d, i), or -1 = no entry (polled, INTx). The configuration change has index IRQ_CONFIG. */
#define IRQ_CONFIG (~0u)
enum irq_grant irq_grant_of(const struct irq_device *d, unsigned source);
int irq_entry_of(const struct irq_device *d, unsigned source);

/* Bind: `serve` is called in interrupt context, or by the poller thread, each time the source may have
 * work; it must be harmless when there is none and returns true if it found work. `busy` tells the
 * poller whether anything is in flight (NULL = always). Once irq_bind returns, the source is served,
 * whatever rung of the ladder that takes; it cannot fail, only degrade (return value: the grant in
 * force). cpu is the wished CPU. */
enum irq_grant irq_bind(struct irq_device *d, unsigned source, unsigned cpu,
                        bool (*serve)(void *arg), bool (*busy)(void *arg), void *arg);
/* The device read back NO_VECTOR for this source: moves it down the ladder; returns the new entry or -1. */
int irq_refused(struct irq_device *d, unsigned source);
/* Follow a thread: move the source's vector to another CPU (thread context). */
void irq_set_affinity(struct irq_device *d, unsigned source, unsigned cpu);
/* Undo: no handler of this device runs any more when it returns. Vectors go back to the pool. */
void irq_release(struct irq_device *d);
/* The plan, one line a device, to a buffer (/proc/weir/vectors); returns characters. */
size_t irq_plan_print(char *buf, size_t size);
/* /proc/interrupts in Linux's form. */
size_t irq_interrupts_print(char *buf, size_t size);
#endif
