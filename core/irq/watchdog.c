/*
 * The watchdog: a queue with a completion that nobody has taken over LOOKS looks in a row has lost an
 * interrupt. It is served, counted and reported. A safety net, not a mechanism: a rescue outside
 * fault injection is a bug.
 *
 * A device with requests in flight that completes nothing for as long is looked at by its driver: it may
 * have been taken out. Otherwise slow devices are not its business (nothing to take), nor is a busy queue whose completions are
 * being taken (the count of useful serves moves).
 */
#include <weir/atomic.h>
#include <weir/cpu.h>
#include <weir/printk.h>

#include "irq_internal.h"

#define LOOK_NS NSEC_PER_SEC
/* A vCPU that the host has not run for this many seconds would look like a lost interrupt. */
#define LOOKS   4u

static uint64_t rescues; /* a */

uint64_t irq_watchdog_rescues(void)
{
    return atomic_load_relaxed(&rescues);
}

static void look_at(struct irq_source *s)
{
    const struct irq_service *service = atomic_load_acquire(&s->service);
    if (!service || !service->pending)
        return;
    uint64_t served = atomic_load_relaxed(&s->served);
    bool waiting = service->pending(s->arg) && served == s->served_seen;
    bool quiet = service->stalled && service->busy && service->busy(s->arg) && served == s->served_seen;
    s->quiet = quiet ? s->quiet + 1 : 0;
    if (s->quiet == LOOKS) {
        s->quiet = 0;
        service->stalled(s->arg);
    }
    s->served_seen = served;
    s->stuck = waiting ? s->stuck + 1 : 0;
    if (s->stuck < LOOKS)
        return;
    s->stuck = 0;
    if (!irq_source_serve(s))
        return;
    atomic_fetch_add(&rescues, 1);
    log_warn("irq: watchdog rescue: queue %u of %s had completions and no %s (vector %d, CPU %d)",
             s->index, s->device->name, s->poller ? "poll" : "interrupt",
             s->vector ? (int)s->vector->number : -1, s->vector ? (int)s->vector->cpu : -1);
}

static void watchdog_thread(void *arg)
{
    for (;;) {
        sleep_until_ns(clock_monotonic_ns() + LOOK_NS);
        mutex_lock(&irq_mutex);
        struct irq_device *d;
        list_for_each_entry(d, &irq_devices, link)
        {
            for (unsigned i = 0; i < d->demand.sources; i++)
                look_at(&d->sources[i]);
        }
        mutex_unlock(&irq_mutex);
    }
}

void irq_watchdog_start(void)
{
    struct thread *t = thread_create("irq-watchdog", watchdog_thread, NULL);
    if (!t) {
        log_warn("irq: no memory for the watchdog");
        return;
    }
    thread_start(t);
    thread_put(t);
}
