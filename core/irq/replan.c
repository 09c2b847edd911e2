/*
 * Planning again when a device comes or goes. Queues stay bound to their MSI-X entries; what changes is
 * the message of an entry, or that a source goes to or from a poller. I/O runs on meanwhile:
 *
 *   1. the source is put on the new vector as well as the old one;
 *   2. the entry is masked, rewritten, unmasked. The device keeps what it raises meanwhile as pending;
 *   3. the source is served once, whatever the device does about pending bits;
 *   4. it is taken off the old vector. One that is left empty keeps its handler until no CPU has it
 *      pending (irq_vectors_reap); only then is its number used again.
 *
 * Devices that lose vectors go first, so that the pool is never exceeded by what is gained. Devices on
 * interrupt lines keep what they have.
 */
#include <weir/atomic.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "irq_internal.h"

/* ---- counters ---- */

static uint64_t served(const struct irq_device *d)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < d->demand.sources; i++)
        sum += atomic_load_relaxed(&d->sources[i].served);
    return sum;
}

void irq_count_rung(struct irq_device *d)
{
    uint64_t now = served(d);
    d->served_on[d->grant.rung] += now - d->served_before;
    d->served_before = now;
}

uint64_t irq_served_on(const struct irq_device *d, enum irq_grant rung)
{
    return d->served_on[rung] + (rung == d->grant.rung ? served(d) - d->served_before : 0);
}

/* ---- one source ---- */

static void tell_polled(struct irq_source *s, bool polled)
{
    if (s->service->polled)
        s->service->polled(s->arg, polled);
}

static void leave_vector(struct irq_source *s)
{
    if (s->vector)
        irq_vector_remove(s->vector, s);
    s->vector = NULL;
}

static void move_to_poller(struct irq_device *d, struct irq_source *s)
{
    s->grant = IRQ_GRANT_POLLED;
    if (!s->poller) {
        tell_polled(s, true);
        irq_poller_attach(s, s->cpu);
    }
    leave_vector(s);
}

/* On the vector that the plan has for its entry now. False: there is none to be had. */
static bool move_to_vector(struct irq_device *d, struct irq_source *s)
{
    unsigned entry = (unsigned)s->entry;
    struct irq_vector *v = irq_vector_for_entry(d, entry, s->cpu);
    if (!v || irq_vector_add(v, s))
        return false;
    if (d->entries[entry].vector != v && irq_write_entry(d, entry, v)) {
        if (v != s->vector)
            irq_vector_remove(v, s);
        return false;
    }
    if (s->vector != v)
        leave_vector(s);
    s->vector = v;
    if (s->poller) {
        irq_poller_detach(s);
        tell_polled(s, false);
    }
    return true;
}

static void move_source(struct irq_device *d, struct irq_source *s)
{
    if (!s->service || s->entry < 0)
        return; /* not bound yet, or the device refused it any entry */
    s->grant = d->grant.rung;
    if (s->grant == IRQ_GRANT_POLLED || !move_to_vector(d, s))
        move_to_poller(d, s);
    irq_source_serve(s);
}

static void mask_unused_entries(struct irq_device *d)
{
    const struct plan_grant *g = &d->grant;
    if (g->rung != IRQ_GRANT_POLLED)
        return;
    for (unsigned e = 0; e < g->config_entries + g->queue_entries; e++) {
        if (d->entries[e].vector)
            d->ops->mask(d->device, e, true);
        d->entries[e].vector = NULL;
    }
}

/* A vector that serves a source alone goes where the source is wanted. */
static void settle_cpus(struct irq_device *d)
{
    for (unsigned i = 0; i < d->demand.sources; i++) {
        struct irq_source *s = &d->sources[i];
        if (irq_vector_move(d, s, s->cpu))
            irq_source_serve(s);
    }
}

/* ---- one device ---- */

static void regrant(struct irq_device *d, const struct plan_grant *g)
{
    unsigned before = d->grant.vectors;
    bool worse = g->rung > d->grant.rung || (g->rung == d->grant.rung && g->vectors < before);
    bool better = g->rung < d->grant.rung || (g->rung == d->grant.rung && g->vectors > before);
    irq_count_rung(d);
    d->demotions += worse;
    d->promotions += better;
    d->grant = *g;
    if (before && !g->vectors && g->rung == IRQ_GRANT_SYSTEM_SHARED && !irq_system_vector) {
        irq_system_vector = d->vectors[0]; /* the pool may have no other to spare yet */
        d->vectors[0] = NULL;
    }
    for (unsigned i = 0; i < d->demand.sources; i++)
        move_source(d, &d->sources[i]);
    move_source(d, &d->config);
    mask_unused_entries(d);
    for (unsigned i = g->vectors; i < before; i++) {
        if (d->vectors[i])
            irq_vector_retire(d->vectors[i]);
        d->vectors[i] = NULL;
    }
    settle_cpus(d);
    if (worse || better)
        log_info("irq: %s: %u of %u vectors", d->name, g->vectors, g->queue_entries);
}

static bool can_change(const struct irq_device *d)
{
    return d->planned && d->demand.msix_entries && d->entries;
}

static void drop_if_empty(struct irq_vector **v)
{
    if (*v && (*v)->set->count == 0) {
        irq_vector_retire(*v);
        *v = NULL;
    }
}

static void apply(const struct plan_grant *grants)
{
    struct irq_device *d;
    const struct plan_grant *g = grants;
    list_for_each_entry(d, &irq_devices, link)
    {
        if (can_change(d) && (g->vectors < d->grant.vectors || g->rung > d->grant.rung))
            regrant(d, g);
        g++;
    }
    g = grants;
    list_for_each_entry(d, &irq_devices, link)
    {
        if (!d->planned) {
            d->grant = *g;
            irq_prepare_device(d);
        } else if (can_change(d)) {
            if (g->vectors != d->grant.vectors || g->rung != d->grant.rung)
                regrant(d, g);
            else
                move_source(d, &d->config); /* the common vector may have come or gone */
        }
        g++;
    }
    drop_if_empty(&irq_system_vector);
    drop_if_empty(&irq_config_vector);
    irq_vectors_reap();
}

/* ---- all ---- */

static void collect(struct plan_demand *demands)
{
    struct irq_device *d;
    list_for_each_entry(d, &irq_devices, link)
    {
        *demands++ = (struct plan_demand){
            .name = d->name,
            .class = d->demand.class,
            .sources = d->demand.sources,
            .config_change = d->demand.config_change,
            .msix_entries = d->demand.msix_entries,
            .line = d->demand.intx_gsi,
        };
    }
}

/* No memory to plan: whoever is new is polled. */
static void poll_the_new(void)
{
    struct irq_device *d;
    list_for_each_entry(d, &irq_devices, link)
    {
        if (d->planned)
            continue;
        d->grant = (struct plan_grant){ .rung = IRQ_GRANT_POLLED };
        irq_prepare_device(d);
    }
}

void irq_replan_locked(void)
{
    unsigned n = 0;
    struct irq_device *d;
    list_for_each_entry(d, &irq_devices, link)
        n++;
    struct plan_demand *demands = kcalloc(n + 1, sizeof(*demands));
    struct plan_grant *grants = kcalloc(n + 1, sizeof(*grants));
    unsigned *order = kcalloc(n + 1, sizeof(*order));
    if (demands && grants && order) {
        collect(demands);
        plan_make(demands, n, irq_pool_size(), order, grants, &irq_plan);
        apply(grants);
    } else {
        log_warn("irq: no memory to plan %u devices", n);
        poll_the_new();
    }
    kfree(demands);
    kfree(grants);
    kfree(order);
}

void irq_replan(void)
{
    mutex_lock(&irq_mutex);
    irq_replan_locked();
    mutex_unlock(&irq_mutex);
}
