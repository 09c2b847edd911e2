#include "sched_test.h"

bool team_init(struct team *team, unsigned max)
{
    *team = (struct team){ .max = max };
    wait_queue_init(&team->done);
    team->threads = kcalloc(max, sizeof(*team->threads));
    return team->threads;
}

struct thread *team_add(struct team *team, const char *name, void (*fn)(void *), void *arg)
{
    struct thread *t = team->count < team->max ? thread_create(name, fn, arg) : NULL;
    if (t)
        team->threads[team->count++] = t;
    return t;
}

void team_pin(struct thread *t, unsigned cpu)
{
    struct cpumask mask = { 0 };
    bitmap_set(mask.bits, cpu);
    thread_set_affinity(t, &mask);
}

void team_start(struct team *team)
{
    atomic_store_relaxed(&team->left, team->count);
    for (unsigned i = 0; i < team->count; i++)
        thread_start(team->threads[i]);
}

void team_leave(struct team *team)
{
    /* The team is on the tester's stack: it may go only when the last one has let go of the lock. */
    uint64_t flags = spin_lock_irqsave(&team->done.lock);
    uint32_t left = atomic_fetch_sub(&team->left, 1) - 1;
    struct waiter *w;
    if (!left)
        list_for_each_entry(w, &team->done.waiters, link)
            w->fn(w, ~0u);
    spin_unlock_irqrestore(&team->done.lock, flags);
}

bool team_finish(struct team *team, unsigned seconds)
{
    uint64_t deadline = clock_monotonic_ns() + seconds * NSEC_PER_SEC;
    if (wait_event_timeout(&team->done, !atomic_load_acquire(&team->left), deadline)) {
        log_error("%u of %u threads have not finished after %u s", team->left, team->count, seconds);
        sched_dump("a test does not end");
        return false;
    }
    for (unsigned i = 0; i < team->count; i++)
        thread_put(team->threads[i]);
    kfree(team->threads);
    return true;
}

void burn_ns(uint64_t ns)
{
    uint64_t end = clock_monotonic_ns() + ns;
    while (clock_monotonic_ns() < end) {
        for (unsigned i = 0; i < 100; i++)
            barrier_compiler();
        cond_resched();
    }
}

void sleep_ms(unsigned ms)
{
    sleep_until_ns(clock_monotonic_ns() + ms * NSEC_PER_MSEC);
}

bool scheduler_is_sound(void)
{
    struct sched_totals n;
    sched_totals(&n);
    if (n.halts_with_work || n.stalls)
        log_error("%lu halts beside work, %lu stalls", (unsigned long)n.halts_with_work, (unsigned long)n.stalls);
    return !n.halts_with_work && !n.stalls;
}

uint32_t random_next(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

static void count_thread(struct thread *t, void *count) { ++*(uint64_t *)count; }

static uint64_t count_threads(void)
{
    uint64_t count = 0;
    thread_for_each(count_thread, &count);
    return count;
}

GUEST_BALANCE("threads", count_threads);
