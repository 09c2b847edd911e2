/* Demands, the plan, and binding: from a source to whatever serves it. */
#include <weir/atomic.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "irq_internal.h"

struct mutex irq_mutex = MUTEX_INIT(irq_mutex);
struct list irq_devices = LIST_INIT(irq_devices);
struct plan irq_plan;

struct irq_vector *irq_system_vector, *irq_config_vector, *irq_line_vector;

static struct irq_source *source_of(const struct irq_device *d, unsigned source)
{
    if (source == IRQ_CONFIG)
        return (struct irq_source *)&d->config;
    assert(source < d->demand.sources);
    return &d->sources[source];
}

/* ---- demand ---- */

static void init_source(struct irq_device *d, struct irq_source *s, unsigned index)
{
    s->device = d;
    s->index = index;
    s->grant = IRQ_GRANT_POLLED;
    s->entry = -1;
}

struct irq_device *irq_demand(const struct irq_demand *demand, const struct irq_device_ops *ops,
                              void *device)
{
    struct irq_device *d = kzalloc(sizeof(*d));
    if (!d)
        return NULL;
    d->demand = *demand;
    d->demand.sources = MAX(demand->sources, 1u);
    str_copy(d->name, demand->name, sizeof(d->name));
    d->demand.name = d->name;
    d->ops = ops;
    d->device = device;
    d->sources = kcalloc(d->demand.sources, sizeof(d->sources[0]));
    if (!d->sources) {
        kfree(d);
        return NULL;
    }
    for (unsigned i = 0; i < d->demand.sources; i++)
        init_source(d, &d->sources[i], i);
    init_source(d, &d->config, IRQ_CONFIG);
    mutex_lock(&irq_mutex);
    list_add_tail(&irq_devices, &d->link);
    mutex_unlock(&irq_mutex);
    return d;
}

/* ---- the plan ---- */

void irq_grant_sources(struct irq_device *d)
{
    const struct plan_grant *g = &d->grant;
    for (unsigned i = 0; i < d->demand.sources; i++) {
        struct irq_source *s = &d->sources[i];
        s->grant = g->rung;
        s->entry = g->queue_entries ? (int)plan_entry(g, d->demand.sources, i) : -1;
    }
    d->config.grant = g->rung;
    d->config.entry = g->queue_entries ? 0 : -1;
}

/* Arrays for what the grant allows; without memory the device is polled. */
void irq_prepare_device(struct irq_device *d)
{
    const struct plan_grant *g = &d->grant;
    if (g->queue_entries) {
        d->entries = kcalloc(g->config_entries + g->queue_entries, sizeof(d->entries[0]));
        d->vectors = kcalloc(g->queue_entries, sizeof(d->vectors[0]));
        if (!d->entries || !d->vectors)
            d->grant = (struct plan_grant){ .rung = IRQ_GRANT_POLLED };
    }
    irq_grant_sources(d);
    d->planned = true;
}

static void print_plan(void)
{
    static char text[8192]; /* once, at boot */
    irq_plan_print(text, sizeof(text));
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        if (!end)
            break;
        *end = '\0';
        log_info("%s", line);
        line = end + 1;
    }
}

static void irq_plan_init(void)
{
    irq_vectors_init();
    irq_pollers_init();
    irq_replan();
    print_plan();
    irq_watchdog_start();
}
INIT_CALL(INIT_PLAN, irq_plan_init);

enum irq_grant irq_grant_of(const struct irq_device *d, unsigned source)
{
    return source_of(d, source)->grant;
}

int irq_entry_of(const struct irq_device *d, unsigned source)
{
    return source_of(d, source)->entry;
}

bool irq_bound(const struct irq_device *d, unsigned source)
{
    return atomic_load_acquire(&source_of(d, source)->service) != NULL;
}

int irq_refused(struct irq_device *d, unsigned source)
{
    mutex_lock(&irq_mutex);
    struct irq_source *s = source_of(d, source);
    int last = s->entry, fallback = d->sources[0].entry;
    bool again = !s->refused_once && fallback >= 0 && fallback != last;
    s->refused_once = true;
    s->entry = again ? fallback : -1;
    s->grant = again ? IRQ_GRANT_DEVICE_ONE : IRQ_GRANT_POLLED;
    log_warn("%s: refuses MSI-X entry %d for %s %u, %s", d->name, last,
             source == IRQ_CONFIG ? "configuration" : "queue", source == IRQ_CONFIG ? 0 : source,
             again ? "tries another" : "polled from now on");
    int entry = s->entry;
    mutex_unlock(&irq_mutex);
    return entry;
}

/* ---- binding: irq_mutex held ---- */

static struct irq_vector *shared_vector(struct irq_vector **slot, unsigned cpu, bool is_line,
                                        const char *label)
{
    if (!*slot)
        *slot = irq_vector_create(cpu, is_line, label);
    return *slot;
}

struct irq_vector *irq_vector_for_entry(struct irq_device *d, unsigned entry, unsigned cpu)
{
    const struct plan_grant *g = &d->grant;
    if (entry < g->config_entries) {
        if (irq_plan.config_shared)
            return shared_vector(&irq_config_vector, cpu, false, "PCI-MSI");
        if (g->vectors == 0)
            return shared_vector(&irq_system_vector, cpu, false, "PCI-MSI");
        entry = g->config_entries; /* with the device's first queue */
    }
    if (g->vectors == 0)
        return shared_vector(&irq_system_vector, cpu, false, "PCI-MSI");
    return shared_vector(&d->vectors[plan_vector(g, entry)], cpu, false, "PCI-MSI");
}

int irq_write_entry(struct irq_device *d, unsigned entry, struct irq_vector *v)
{
    uint64_t address;
    uint32_t data;
    int error = msi_message(v->cpu, v->number, &address, &data);
    if (!error)
        error = d->ops->write_message(d->device, entry, address, data);
    if (!error)
        d->entries[entry].vector = v;
    return error;
}

static int bind_message(struct irq_device *d, struct irq_source *s, unsigned cpu)
{
    unsigned entry = (unsigned)s->entry;
    struct irq_vector *v = irq_vector_for_entry(d, entry, cpu);
    if (!v)
        return -ENOMEM;
    int error = irq_vector_add(v, s);
    if (error)
        return error;
    if (d->entries[entry].vector != v)
        error = irq_write_entry(d, entry, v);
    if (error) {
        irq_vector_remove(v, s);
        return error;
    }
    s->vector = v;
    return 0;
}

static struct irq_vector *vector_for_line(struct irq_device *d, unsigned cpu)
{
    struct irq_device *o;
    list_for_each_entry(o, &irq_devices, link)
    {
        if (o->line && o->demand.intx_gsi == d->demand.intx_gsi)
            return o->line;
    }
    if (d->grant.rung == IRQ_GRANT_SYSTEM_SHARED)
        return shared_vector(&irq_line_vector, cpu, true, "IO-APIC");
    return irq_vector_create(cpu, true, "IO-APIC");
}

static int bind_line(struct irq_device *d, unsigned cpu)
{
    if (d->line)
        return 0;
    struct irq_vector *v = vector_for_line(d, cpu);
    if (!v)
        return -ENOMEM;
    int error = irq_vector_add(v, d);
    if (!error)
        error = ioapic_route((unsigned)d->demand.intx_gsi, v->number, v->cpu, true, false);
    if (error) {
        irq_vector_remove(v, d);
        return error;
    }
    d->line = v;
    ioapic_mask((unsigned)d->demand.intx_gsi, false);
    return 0;
}

enum irq_grant irq_bind(struct irq_device *d, unsigned source, unsigned cpu,
                        const struct irq_service *service, void *arg)
{
    struct irq_source *s = source_of(d, source);
    cpu %= cpu_count();
    mutex_lock(&irq_mutex);
    s->cpu = cpu;
    s->arg = arg;
    /* The argument is visible before the service that takes it. */
    atomic_store_release(&s->service, service);
    int error = -ENOENT;
    if (s->grant != IRQ_GRANT_POLLED && s->entry >= 0)
        error = bind_message(d, s, cpu);
    else if (s->grant != IRQ_GRANT_POLLED && d->demand.msix_entries == 0)
        error = bind_line(d, cpu);
    if (error) {
        if (s->grant != IRQ_GRANT_POLLED)
            log_warn("%s: source %d has no interrupt (error %d), polled", d->name, (int)source,
                     -error);
        s->grant = IRQ_GRANT_POLLED;
        irq_poller_attach(s, cpu);
    }
    enum irq_grant grant = s->grant;
    mutex_unlock(&irq_mutex);
    /* For what came before the message was in place. */
    irq_source_serve(s);
    return grant;
}

bool irq_vector_move(struct irq_device *d, struct irq_source *s, unsigned cpu)
{
    struct irq_vector *v = s->vector;
    if (!v || v->set->count != 1 || v->cpu == cpu)
        return false;
    unsigned old = v->cpu;
    v->cpu = cpu;
    if (irq_write_entry(d, (unsigned)s->entry, v) == 0)
        return true;
    v->cpu = old;
    return irq_write_entry(d, (unsigned)s->entry, v) == 0;
}

void irq_set_affinity(struct irq_device *d, unsigned source, unsigned cpu)
{
    struct irq_source *s = source_of(d, source);
    mutex_lock(&irq_mutex);
    s->cpu = cpu % cpu_count();
    bool moved = irq_vector_move(d, s, s->cpu);
    mutex_unlock(&irq_mutex);
    if (moved)
        irq_source_serve(s); /* for what came while the entry was masked */
}

/* ---- release ---- */

static void release_source(struct irq_device *d, struct irq_source *s)
{
    if (s->vector)
        irq_vector_remove(s->vector, s);
    s->vector = NULL;
    irq_poller_detach(s);
    atomic_store_release(&s->service, NULL);
}

static bool line_in_use(const struct irq_device *d)
{
    const struct irq_device *o;
    list_for_each_entry(o, &irq_devices, link)
    {
        if (o != d && o->line && o->demand.intx_gsi == d->demand.intx_gsi)
            return true;
    }
    return false;
}

static void release_line(struct irq_device *d)
{
    if (!d->line)
        return;
    if (!line_in_use(d))
        ioapic_mask((unsigned)d->demand.intx_gsi, true);
    irq_vector_remove(d->line, d);
    if (d->line->set->count == 0 && d->line != irq_line_vector)
        irq_vector_retire(d->line);
    d->line = NULL;
}

void irq_release(struct irq_device *d)
{
    mutex_lock(&irq_mutex);
    const struct plan_grant *g = &d->grant;
    for (unsigned e = 0; d->entries && e < g->config_entries + g->queue_entries; e++) {
        if (d->entries[e].vector)
            d->ops->mask(d->device, e, true);
    }
    release_line(d);
    for (unsigned i = 0; i < d->demand.sources; i++)
        release_source(d, &d->sources[i]);
    release_source(d, &d->config);
    for (unsigned i = 0; d->vectors && i < g->queue_entries; i++) {
        if (d->vectors[i])
            irq_vector_retire(d->vectors[i]);
    }
    list_del(&d->link);
    irq_wait_handlers();
    irq_vectors_reap();
    irq_replan_locked();
    mutex_unlock(&irq_mutex);
}

void irq_free(struct irq_device *d)
{
    if (!d)
        return;
    kfree(d->vectors);
    kfree(d->entries);
    kfree(d->sources);
    kfree(d);
}
