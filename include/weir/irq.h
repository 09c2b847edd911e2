/*
 * The process-wide vector budget (core/irq): demands in, grants out, binding of grants to IDT vectors,
 * MSI-X messages and pollers. Two phases: drivers call irq_demand() at INIT_BUS, the planner runs at
 * INIT_PLAN, drivers bind at INIT_DRIVER. A device that comes later states its demand, then irq_replan()
 * plans again with all demands: running devices lose or gain vectors, under I/O. irq_release() plans again too.
 *
 * A device owns its struct irq_device from irq_demand() to irq_free(). A source is one thing that
 * must be served: a queue (or a receive/transmit pair), or the configuration change.
 *
 * Command line: irq.vectors=N lowers the pool to N vectors; irq.pollers=N sets the number of poller
 * threads (default: a quarter of the CPUs, at least 1).
 */
#ifndef WEIR_IRQ_H
#define WEIR_IRQ_H
#include <weir/list.h>
#include <weir/bitmap.h>

enum irq_class { IRQ_CLASS_BLOCK, IRQ_CLASS_NET, IRQ_CLASS_OTHER };
/* The ladder, best first. Nothing ever falls off its end. */
enum irq_grant { IRQ_GRANT_OWN, IRQ_GRANT_DEVICE_SHARED, IRQ_GRANT_DEVICE_ONE, IRQ_GRANT_SYSTEM_SHARED,
                 IRQ_GRANT_POLLED, IRQ_GRANTS };

struct irq_device;

struct irq_demand {
    const char *name;            /* "virtio-blk 0000:00:04.0"; copied; unique */
    enum irq_class class;
    unsigned sources;            /* queues or pairs that want service */
    bool config_change;
    unsigned msix_entries;       /* table size; 0 = no MSI-X (INTx line or poller) */
    int intx_gsi;                /* -1 = none; looked at only when msix_entries is 0 */
};
/* How the binding reaches the device. Called in thread context, except ack. */
struct irq_device_ops {
    /* Programme MSI-X entry `entry` with the message and unmask it; 0 or -errno (entry refused). */
    int (*write_message)(void *device, unsigned entry, uint64_t address, uint32_t data);
    /* Mask or unmask an entry. */
    void (*mask)(void *device, unsigned entry, bool masked);
    /* INTx only, interrupt context, once per interrupt: acknowledge at the device. IRQ_ACK_* bits, 0 =
     * the interrupt is another device's. NULL for devices that are never on a line. */
    unsigned (*ack)(void *device);
};
#define IRQ_ACK_QUEUE  1u
#define IRQ_ACK_CONFIG 2u

/* States a demand. NULL without memory. Thread context, INIT_BUS. */
struct irq_device *irq_demand(const struct irq_demand *demand, const struct irq_device_ops *ops, void *device);

/* Plan again: a demand was added. Thread context. */
void irq_replan(void);

/* What the planner gave; valid after INIT_PLAN. Source i uses MSI-X entry irq_entry_of(d, i), or -1 = the
 * device has none. A polled source has an entry too, masked, for the day when it gets a vector. The configuration change is source IRQ_CONFIG. Entries are fixed for the life
 * of the device; several sources may have the same. */
#define IRQ_CONFIG (~0u)
enum irq_grant irq_grant_of(const struct irq_device *d, unsigned source);
int irq_entry_of(const struct irq_device *d, unsigned source);

/* How a source is served. All three may be called on any CPU, at the same time, and when there is
 * nothing to do; they must be short and must not block. */
struct irq_service {
    /* Take what is there: in interrupt context, or from a poller thread. True if it found work. */
    bool (*serve)(void *arg);
    /* Is anything in flight, so that polling makes sense? NULL = always (a receive queue). */
    bool (*busy)(void *arg);
    /* Has the device finished something that nobody has taken yet? For the watchdog; NULL = not watched. */
    bool (*pending)(void *arg);
    /* Something is in flight, and nothing has been taken for some seconds: is the device there at all? From the
     * watchdog's thread, again while it lasts. Slow devices are no fault. NULL = not watched. */
    void (*stalled)(void *arg);
    /* The source is polled from now on, or no longer: arm the device's interrupts or leave them off. Thread
     * context; serve is called right after. NULL = all the same to it. */
    void (*polled)(void *arg, bool polled);
};
/* Once irq_bind returns, the source is served, whatever rung of the ladder that takes; it cannot fail,
 * only degrade (return value: the grant in force). `cpu` is the wished CPU (taken modulo the number of
 * CPUs). `service` must live as long as the binding. Thread context. */
enum irq_grant irq_bind(struct irq_device *d, unsigned source, unsigned cpu,
                        const struct irq_service *service, void *arg);
bool irq_bound(const struct irq_device *d, unsigned source);
/* The device read back NO_VECTOR for this source: moves it down the ladder; returns the entry to try
 * next, or -1 = it is polled now. Before irq_bind. */
int irq_refused(struct irq_device *d, unsigned source);
/* A request went in flight on this source: wakes its poller if it has one. Any context; costs two
 * loads when the source has a vector. Call it after the doorbell. */
void irq_source_busy(struct irq_device *d, unsigned source);
/* Follow a thread: move the source's vector to another CPU (thread context). Ignored when the vector
 * is shared or the source is polled. */
void irq_set_affinity(struct irq_device *d, unsigned source, unsigned cpu);
/* Undo: no handler and no poller of this device runs any more when it returns. Vectors go back to the
 * pool and other devices gain them. irq_source_busy and irq_set_affinity do nothing from now on. */
void irq_release(struct irq_device *d);
void irq_free(struct irq_device *d);  /* released, and nobody calls anything with it any more; NULL allowed */
/* The plan, one line a device, to a buffer (/proc/weir/vectors); returns characters. */
size_t irq_plan_print(char *buf, size_t size);
/* /proc/interrupts in Linux's form. */
size_t irq_interrupts_print(char *buf, size_t size);
/* Completions that only the watchdog found since boot. Anything but 0 is a lost interrupt. */
unsigned irq_vectors_in_use(void); /* arch's own and exceptions included. Thread context */
uint64_t irq_watchdog_rescues(void);
#endif
