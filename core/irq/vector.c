/* IDT vectors: the pool, who listens on each, and the handler that calls them. */
#include <weir/atomic.h>
#include <weir/cmdline.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "irq_internal.h"

/* A line that stays up although nobody owns up to it would take its CPU for ever. */
#define UNCLAIMED_MAX 100000u

struct cpu_counts {
    uint64_t count[VECTOR_COUNT];
} __cacheline;

struct list irq_vectors = LIST_INIT(irq_vectors);
static struct cpu_counts **counts;      /* by CPU; each written by its CPU only */
static uint64_t in_use[4];              /* irq_mutex: numbers taken, arch's own included */
static unsigned pool_size;

void irq_vectors_init(void)
{
    vector_reserved(in_use);
    for (unsigned v = 0; v < VECTOR_FIRST; v++)
        bitmap_set(in_use, v);
    unsigned available = VECTOR_COUNT - bitmap_weight(in_use, VECTOR_COUNT);
    pool_size = (unsigned)MIN(cmdline_u64("irq.vectors", available), (uint64_t)available);

    counts = kcalloc(cpu_count(), sizeof(*counts));
    if (!counts)
        panic("irq: no memory for interrupt counters");
    for (unsigned i = 0; i < cpu_count(); i++) {
        counts[i] = kzalloc(sizeof(struct cpu_counts));
        if (!counts[i])
            panic("irq: no memory for interrupt counters");
    }
}

unsigned irq_pool_size(void)
{
    return pool_size;
}

unsigned irq_vectors_in_use(void)
{
    mutex_lock(&irq_mutex);
    unsigned n = bitmap_weight(in_use, VECTOR_COUNT);
    mutex_unlock(&irq_mutex);
    return n;
}

uint64_t irq_vector_count(const struct irq_vector *v, unsigned cpu)
{
    return atomic_load_relaxed(&counts[cpu]->count[v->number]);
}

/* ---- sets ---- */

struct irq_set *irq_set_with(const struct irq_set *old, void *member)
{
    struct irq_set *s = kmalloc(sizeof(*s) + (old->count + 1) * sizeof(void *));
    if (!s)
        return NULL;
    memcpy(s->members, old->members, old->count * sizeof(void *));
    s->members[old->count] = member;
    s->count = old->count + 1;
    return s;
}

struct irq_set *irq_set_without(const struct irq_set *old, const void *member)
{
    struct irq_set *s = kmalloc(sizeof(*s) + old->count * sizeof(void *));
    if (!s)
        return NULL;
    s->count = 0;
    for (unsigned i = 0; i < old->count; i++) {
        if (old->members[i] != member)
            s->members[s->count++] = old->members[i];
    }
    return s;
}

/* ---- handlers: interrupt context ---- */

bool irq_source_serve(struct irq_source *s)
{
    const struct irq_service *service = atomic_load_acquire(&s->service);
    if (!service || !service->serve(s->arg))
        return false;
    atomic_store_relaxed(&s->served, atomic_load_relaxed(&s->served) + 1);
    return true;
}

static void serve_line_device(struct irq_device *d, unsigned ack)
{
    if (ack & IRQ_ACK_QUEUE) {
        for (unsigned i = 0; i < d->demand.sources; i++)
            irq_source_serve(&d->sources[i]);
    }
    if (ack & IRQ_ACK_CONFIG)
        irq_source_serve(&d->config);
}

static void line_handler(unsigned number, void *arg)
{
    struct irq_vector *v = arg;
    counts[this_cpu()->id]->count[number]++;
    const struct irq_set *set = atomic_load_acquire(&v->set);
    bool claimed = false;
    for (unsigned i = 0; i < set->count; i++) {
        struct irq_device *d = set->members[i];
        unsigned ack = d->ops->ack(d->device);
        claimed |= ack != 0;
        serve_line_device(d, ack);
    }
    if (claimed) {
        v->unclaimed = 0;
    } else if (++v->unclaimed == UNCLAIMED_MAX) {
        for (unsigned i = 0; i < set->count; i++) {
            struct irq_device *d = set->members[i];
            ioapic_mask((unsigned)d->demand.intx_gsi, true);
        }
        log_error("irq: vector %u (%s) is raised without end by a device without driver; line masked",
                  number, v->label);
    }
}

static void message_handler(unsigned number, void *arg)
{
    struct irq_vector *v = arg;
    counts[this_cpu()->id]->count[number]++;
    const struct irq_set *set = atomic_load_acquire(&v->set);
    for (unsigned i = 0; i < set->count; i++)
        irq_source_serve(set->members[i]);
}

static void nothing(void *arg)
{
}

/* Handlers run with interrupts off, so a CPU that has answered this call has left every handler that
 * it was in. This CPU is in thread context. */
void irq_wait_handlers(void)
{
    struct cpumask all = { { 0 } };
    for (unsigned i = 0; i < cpu_count(); i++)
        bitmap_set(all.bits, i);
    cpu_call(&all, nothing, NULL);
}

/* ---- vectors: thread context, irq_mutex held ---- */

/* Old sets wait here: calling every CPU for each of hundreds of bindings at boot would cost seconds. */
#define RETIRED_MAX 256u
static struct irq_set *retired[RETIRED_MAX];
static unsigned retired_count;
static struct list dying = LIST_INIT(dying); /* vectors whose numbers are not free yet */

static void free_retired(void)
{
    irq_wait_handlers();
    while (retired_count)
        kfree(retired[--retired_count]);
}

static void retire(struct irq_set *old)
{
    if (retired_count == RETIRED_MAX)
        free_retired();
    retired[retired_count++] = old;
}

/* On each CPU, interrupts off: is an interrupt of a dying vector waiting to be taken here? */
static void look_for_pending(void *arg)
{
    bool *pending = arg;
    struct irq_vector *v;
    list_for_each_entry(v, &dying, link)
    {
        if (vector_pending(v->number))
            atomic_store_relaxed(pending, true);
    }
}

/* No message names a dying vector any more, but one that was sent may sit in a CPU's request register,
 * behind an interrupt of higher priority: answering a call says that handlers were left, not that this one
 * was taken. So every CPU is asked what it has pending. */
static void wait_pending(void)
{
    struct cpumask all = { { 0 } };
    for (unsigned i = 0; i < cpu_count(); i++)
        bitmap_set(all.bits, i);
    bool pending;
    do {
        pending = false;
        cpu_call(&all, look_for_pending, &pending);
        uint64_t flags = irq_save();
        look_for_pending(&pending);
        irq_restore(flags);
    } while (pending);
}

void irq_vectors_reap(void)
{
    if (!list_empty(&dying))
        wait_pending();
    struct irq_vector *v, *next;
    list_for_each_entry(v, &dying, link)
        vector_set_handler(v->number, NULL, NULL);
    free_retired(); /* waits: the handlers that were taken meanwhile have ended */
    list_for_each_entry_safe(v, next, &dying, link)
    {
        list_del(&v->link);
        bitmap_clear(in_use, v->number);
        kfree(v->set);
        kfree(v);
    }
}

void irq_vector_retire(struct irq_vector *v)
{
    list_del(&v->link);
    list_add_tail(&dying, &v->link);
}

static unsigned free_number(void)
{
    unsigned number = bitmap_next_clear(in_use, VECTOR_COUNT, VECTOR_FIRST);
    if (number >= VECTOR_COUNT && !list_empty(&dying)) {
        irq_vectors_reap();
        number = bitmap_next_clear(in_use, VECTOR_COUNT, VECTOR_FIRST);
    }
    return number;
}

struct irq_vector *irq_vector_create(unsigned cpu, bool is_line, const char *label)
{
    unsigned number = free_number();
    if (number >= VECTOR_COUNT)
        return NULL;
    struct irq_vector *v = kzalloc(sizeof(*v));
    if (!v)
        return NULL;
    v->set = kzalloc(sizeof(*v->set));
    if (!v->set) {
        kfree(v);
        return NULL;
    }
    v->number = number;
    v->cpu = cpu;
    v->is_line = is_line;
    str_copy(v->label, label, sizeof(v->label));
    bitmap_set(in_use, number);
    list_add_tail(&irq_vectors, &v->link);
    vector_set_handler(number, is_line ? line_handler : message_handler, v);
    return v;
}

bool irq_vector_has(const struct irq_vector *v, const void *member)
{
    for (unsigned i = 0; i < v->set->count; i++) {
        if (v->set->members[i] == member)
            return true;
    }
    return false;
}

int irq_vector_add(struct irq_vector *v, void *member)
{
    if (irq_vector_has(v, member))
        return 0;
    struct irq_set *old = v->set, *fresh = irq_set_with(old, member);
    if (!fresh)
        return -ENOMEM;
    /* The new set's contents are visible before the pointer to it. */
    atomic_store_release(&v->set, fresh);
    retire(old);
    return 0;
}

void irq_vector_remove(struct irq_vector *v, void *member)
{
    if (!irq_vector_has(v, member))
        return;
    struct irq_set *old = v->set, *fresh = irq_set_without(old, member);
    if (fresh) {
        atomic_store_release(&v->set, fresh);
        retire(old);
        return;
    }
    /* No memory: shrink in place while no handler can be looking. */
    vector_set_handler(v->number, NULL, NULL);
    irq_wait_handlers();
    unsigned kept = 0;
    for (unsigned i = 0; i < v->set->count; i++) {
        if (v->set->members[i] != member)
            v->set->members[kept++] = v->set->members[i];
    }
    v->set->count = kept;
    vector_set_handler(v->number, v->is_line ? line_handler : message_handler, v);
}
