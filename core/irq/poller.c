/*
 * Pollers: what serves a source that has no vector.
 *
 * A poller is a thread with a set of sources. It looks at all of them without pause while completions
 * come, and for SPIN_NS after the last one or after a submitter's call; then it sleeps between looks,
 * from SLEEP_MIN_NS doubling to SLEEP_MAX_NS, while anything is in flight; with nothing in flight it
 * sleeps until irq_source_busy. So a completion waits SLEEP_MAX_NS at most (plus the time to get a
 * CPU), and an idle source costs nothing. A source that cannot say whether it is busy (a receive
 * queue) is looked at every SLEEP_MAX_NS at least; a configuration source every CONFIG_POLL_NS.
 */
#include <weir/atomic.h>
#include <weir/cmdline.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "irq_internal.h"

#define SPIN_NS        (50 * NSEC_PER_USEC)
#define SLEEP_MIN_NS   (50 * NSEC_PER_USEC)
#define SLEEP_MAX_NS   (500 * NSEC_PER_USEC)
#define CONFIG_POLL_NS (100 * NSEC_PER_MSEC)

/* Key: P pass mutex, I immutable, a atomic, o the poller's thread. */
struct irq_poller {
    struct mutex pass;          /* held while the set is walked; taken by who changes the set */
    struct irq_set *set;        /* P */
    bool kicked;                /* a a submitter called since the last pass began */
    bool started;               /* irq_mutex */
    struct wait_queue wait;
    unsigned id;                /* I */
} __cacheline;

static struct irq_poller *pollers;
static unsigned poller_count;

/* What a pass saw. */
struct pass_result {
    bool found;       /* completions came */
    bool in_flight;   /* more will come */
    bool unknown;     /* a source that cannot say */
    uint64_t config_ns; /* when a configuration source is next due, TIME_FOREVER = none */
};

static void poll_source(struct irq_source *s, uint64_t now, struct pass_result *r)
{
    const struct irq_service *service = atomic_load_acquire(&s->service);
    if (!service)
        return;
    if (s->index == IRQ_CONFIG) {
        if (now >= s->next_poll_ns) {
            irq_source_serve(s);
            s->next_poll_ns = now + CONFIG_POLL_NS;
        }
        r->config_ns = MIN(r->config_ns, s->next_poll_ns);
        return;
    }
    bool busy = !service->busy || service->busy(s->arg);
    if (busy)
        r->found |= irq_source_serve(s);
    if (!service->busy)
        r->unknown = true;
    else
        r->in_flight |= service->busy(s->arg);
}

static struct pass_result poll_pass(struct irq_poller *p, uint64_t now)
{
    struct pass_result r = { .config_ns = TIME_FOREVER };
    mutex_lock(&p->pass);
    for (unsigned i = 0; i < p->set->count; i++)
        poll_source(p->set->members[i], now, &r);
    mutex_unlock(&p->pass);
    return r;
}

static void poller_thread(void *arg)
{
    struct irq_poller *p = arg;
    uint64_t active_ns = 0, interval = SLEEP_MIN_NS;
    for (;;) {
        /* Taken back before the pass: a submitter that calls during the pass, on a source already
         * looked at, leaves it set and we pass again. The exchange is a full barrier, as is the
         * one in irq_source_busy: either it sees kicked false, or we see its request in flight. */
        bool kicked = atomic_exchange(&p->kicked, false);
        uint64_t now = clock_monotonic_ns();
        struct pass_result r = poll_pass(p, now);
        if (r.found || kicked) {
            active_ns = now;
            interval = SLEEP_MIN_NS;
        }
        if (r.found || (r.in_flight && now - active_ns < SPIN_NS)) {
            thread_yield();
            continue;
        }
        uint64_t deadline = r.config_ns;
        if (r.in_flight || r.unknown) {
            deadline = MIN(deadline, now + interval);
            interval = MIN(interval * 2, SLEEP_MAX_NS);
        }
        (void)wait_event_timeout(&p->wait, atomic_load_relaxed(&p->kicked), deadline);
    }
}

void irq_source_busy(struct irq_device *d, unsigned source)
{
    struct irq_poller *p = atomic_load_relaxed(&d->sources[source].poller);
    if (likely(!p))
        return;
    /* The request is in flight before we look whether the poller is told already. */
    barrier_full();
    if (atomic_load_relaxed(&p->kicked))
        return;
    atomic_store_relaxed(&p->kicked, true);
    if (wait_queue_active(&p->wait))
        wake_all(&p->wait);
}

/* ---- irq_mutex held ---- */

void irq_pollers_init(void)
{
    poller_count = (unsigned)cmdline_u64("irq.pollers", MAX(cpu_count() / 4, 1u));
    poller_count = MIN(MAX(poller_count, 1u), cpu_count());
    pollers = kcalloc(poller_count, sizeof(*pollers));
    if (!pollers)
        panic("irq: no memory for pollers");
    for (unsigned i = 0; i < poller_count; i++) {
        mutex_init(&pollers[i].pass);
        wait_queue_init(&pollers[i].wait);
        pollers[i].id = i;
        pollers[i].set = kzalloc(sizeof(struct irq_set));
        if (!pollers[i].set)
            panic("irq: no memory for pollers");
    }
}

static void poller_start(struct irq_poller *p)
{
    char name[16];
    snprintf(name, sizeof(name), "irq-poller/%u", p->id);
    struct thread *t = thread_create(name, poller_thread, p);
    if (!t)
        panic("irq: no memory for a poller, and the source it is for has no vector");
    p->started = true;
    thread_start(t);
    thread_put(t);
}

static void change_set(struct irq_poller *p, struct irq_set *fresh)
{
    if (!fresh)
        panic("irq: no memory for the set of poller %u", p->id);
    mutex_lock(&p->pass);
    struct irq_set *old = p->set;
    p->set = fresh;
    mutex_unlock(&p->pass);
    kfree(old);
}

void irq_poller_attach(struct irq_source *s, unsigned cpu)
{
    struct irq_poller *p = &pollers[cpu % poller_count];
    change_set(p, irq_set_with(p->set, s));
    atomic_store_release(&s->poller, p);
    if (!p->started)
        poller_start(p);
    atomic_store_relaxed(&p->kicked, true);
    wake_all(&p->wait);
}

void irq_poller_detach(struct irq_source *s)
{
    struct irq_poller *p = s->poller;
    if (!p)
        return;
    atomic_store_relaxed(&s->poller, NULL);
    change_set(p, irq_set_without(p->set, s));
}
