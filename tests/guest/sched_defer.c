/* Deferred wake-ups: what a thread wakes last runs on its CPU once it sleeps, and nothing waits for that which need not. */
#include "sched_test.h"

#define ROUNDS 200

/* A thread that sleeps until it is called, and says where it woke. */
struct sleeper {
    struct team *team;
    struct thread *thread;
    struct wait_queue queue, back; /* it sleeps in queue, its caller in back */
    uint32_t calls, answers; /* a */
    uint32_t cpu;            /* a where it answered */
};

static void answer_calls(void *arg)
{
    struct sleeper *s = arg;
    for (;;) {
        wait_event(&s->queue, atomic_load_acquire(&s->calls) != s->answers || atomic_load_acquire(&s->team->stop));
        if (atomic_load_acquire(&s->calls) == s->answers)
            break;
        atomic_store_relaxed(&s->cpu, this_cpu()->id);
        atomic_store_release(&s->answers, s->answers + 1);
        wake_all(&s->back);
    }
    team_leave(s->team);
}

/* Call s, which sleeps and is off its stack by then. */
static bool call(struct sleeper *s)
{
    uint64_t end = clock_monotonic_ns() + 10 * NSEC_PER_SEC;
    while (!(atomic_load_acquire(&s->thread->state) & THREAD_PARKED) || atomic_load_acquire(&s->thread->on_cpu)) {
        if (clock_monotonic_ns() > end)
            return false;
        cpu_relax();
    }
    atomic_fetch_add(&s->calls, 1);
    wake_all(&s->queue);
    return true;
}

static bool answered(struct sleeper *s) { return atomic_load_acquire(&s->answers) == atomic_load_relaxed(&s->calls); }

/* Without giving up the CPU: another one must run s. */
static bool answers_elsewhere(struct sleeper *s)
{
    uint64_t end = clock_monotonic_ns() + 30 * NSEC_PER_SEC;
    while (!answered(s))
        if (clock_monotonic_ns() > end)
            return false;
        else
            cpu_relax();
    return atomic_load_relaxed(&s->cpu) != this_cpu()->id;
}

struct caller {
    struct team *team;
    struct sleeper s[2];
    unsigned here; /* answers on the caller's CPU */
    const char *failure;
};

/* It is called and then the caller sleeps: mostly it runs here (not if others wait here, or it had just been elsewhere). */
static const char *then_sleep(struct caller *c)
{
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned cpu = this_cpu()->id;
        if (!call(&c->s[0]))
            return "the sleeper does not sleep";
        wait_event(&c->s[0].back, answered(&c->s[0]));
        c->here += atomic_load_relaxed(&c->s[0].cpu) == cpu;
    }
    return c->here >= ROUNDS / 2 ? NULL : "deferred threads run elsewhere";
}

static const char *then_work(struct caller *c)
{
    struct cpumask elsewhere;
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (!call(&c->s[0]) || !call(&c->s[1]))
            return "the sleeper does not sleep";
        if (!answers_elsewhere(&c->s[0]))
            return "a second wake-up leaves the first one waiting";
        thread_flush_wakes();
        if (!answers_elsewhere(&c->s[1]))
            return "a flush leaves it waiting";
        if (!call(&c->s[0]))
            return "the sleeper does not sleep";
        /* A wake-up of ours, by ourselves, before we sleep: schedule() returns at once. */
        struct waiter w;
        waiter_init(&w, false);
        prepare_wait(&c->s[0].back, &w, THREAD_UNINTERRUPTIBLE);
        (void)thread_wake(current);
        schedule();
        finish_wait(&c->s[0].back, &w);
        if (!answers_elsewhere(&c->s[0]))
            return "a sleep that was none leaves it waiting";
        if (!call(&c->s[0]))
            return "the sleeper does not sleep";
        thread_yield();
        if (!answered(&c->s[0]) && !answers_elsewhere(&c->s[0]))
            return "a yield leaves it waiting";
    }
    memset(&elsewhere, 0xff, sizeof(elsewhere));
    bitmap_clear(elsewhere.bits, this_cpu()->id);
    thread_set_affinity(c->s[0].thread, &elsewhere);
    for (unsigned i = 0; i < ROUNDS; i++)
        if (!call(&c->s[0]) || !answers_elsewhere(&c->s[0]))
            return "one that may not run here waits for us";
    return NULL;
}

static void call_sleepers(void *arg)
{
    struct caller *c = arg;
    thread_defer_wakes();
    c->failure = then_sleep(c);
    if (!c->failure && cpu_count() > 1)
        c->failure = then_work(c);
    atomic_store_release(&c->team->stop, true);
    for (unsigned i = 0; i < ARRAY_SIZE(c->s); i++)
        wake_all(&c->s[i].queue);
    team_leave(c->team);
}

GUEST_TEST(sched_deferred_wake_up)
{
    struct team team;
    struct caller c = { .team = &team };
    struct sched_totals before, after;
    GUEST_CHECK(team_init(&team, 3));
    for (unsigned i = 0; i < ARRAY_SIZE(c.s); i++) {
        c.s[i].team = &team;
        wait_queue_init(&c.s[i].queue);
        wait_queue_init(&c.s[i].back);
        c.s[i].thread = team_add(&team, "sleeper", answer_calls, &c.s[i]);
        GUEST_CHECK(c.s[i].thread);
    }
    struct thread *t = team_add(&team, "caller", call_sleepers, &c);
    GUEST_CHECK(t);
    team_pin(t, cpu_count() - 1);
    sched_totals(&before);
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 120));
    sched_totals(&after);
    log_info("%u of %u on the caller's CPU, %lu deferred", c.here, ROUNDS, (unsigned long)(after.deferred - before.deferred));
    if (c.failure)
        log_error("%s", c.failure);
    GUEST_CHECK(!c.failure);
    GUEST_CHECK(after.deferred - before.deferred >= ROUNDS / 2);
    GUEST_CHECK(scheduler_is_sound());
    return 0;
}
