/* Timers: never early, in order, cancelled for good. */
#include "sched_test.h"

#define MANY 100

struct shot {
    struct timer timer;
    uint64_t wanted_ns, fired_ns;
    uint32_t order;
    uint32_t *sequence; /* a */
    uint32_t *left;     /* a */
};

static void shot_fired(struct timer *t)
{
    struct shot *s = container_of(t, struct shot, timer);
    s->fired_ns = clock_monotonic_ns();
    s->order = atomic_fetch_add(s->sequence, 1);
    atomic_fetch_sub(s->left, 1);
}

GUEST_TEST(timer_order)
{
    struct shot *shots = kcalloc(MANY, sizeof(*shots));
    uint32_t sequence = 0, left = MANY, seed = 99;
    GUEST_CHECK(shots);
    team_pin(current, 0); /* one base, so that order is defined */
    /* All are armed long before the first is due: one armed when it is due would rightly come late. */
    uint64_t now = clock_monotonic_ns() + NSEC_PER_SEC;
    for (unsigned i = 0; i < MANY; i++) {
        shots[i] = (struct shot){ .sequence = &sequence, .left = &left };
        timer_init(&shots[i].timer, shot_fired);
        shots[i].wanted_ns = now + random_next(&seed) % (50 * NSEC_PER_MSEC);
        timer_arm(&shots[i].timer, shots[i].wanted_ns);
    }
    uint64_t armed_ns = clock_monotonic_ns();
    for (unsigned i = 0; i < 5000 && atomic_load_relaxed(&left); i++)
        sleep_ms(1);
    bool armed_in_time = armed_ns < now;
    struct cpumask all;
    memset(&all, 0xff, sizeof(all));
    thread_set_affinity(current, &all);
    uint64_t latest = 0;
    unsigned early = 0, disorder = 0;
    for (unsigned i = 0; i < MANY; i++) {
        timer_cancel_sync(&shots[i].timer);
        early += shots[i].fired_ns < shots[i].wanted_ns;
        latest = MAX(latest, shots[i].fired_ns - shots[i].wanted_ns);
        for (unsigned j = 0; j < MANY; j++)
            disorder += shots[i].wanted_ns < shots[j].wanted_ns && shots[i].order > shots[j].order;
    }
    log_info("timers: %u fired, latest %lu us late", MANY - left, (unsigned long)(latest / NSEC_PER_USEC));
    GUEST_CHECK(!left && !early && (!disorder || !armed_in_time));
    kfree(shots);
    return 0;
}

struct again {
    struct timer timer;
    uint32_t count; /* a */
};

static void fire_again(struct timer *t)
{
    struct again *a = container_of(t, struct again, timer);
    if (atomic_fetch_add(&a->count, 1) < 9)
        timer_arm(t, clock_monotonic_ns() + 100 * NSEC_PER_USEC);
}

GUEST_TEST(timer_rearms_itself)
{
    struct again a = { .count = 0 };
    timer_init(&a.timer, fire_again);
    timer_arm(&a.timer, clock_monotonic_ns());
    for (unsigned i = 0; i < 5000 && atomic_load_relaxed(&a.count) < 10; i++)
        sleep_ms(1);
    timer_cancel_sync(&a.timer);
    GUEST_CHECK(a.count == 10);
    return 0;
}

/* A call-back that always re-arms, cancelled from everywhere: after the call it never runs again. */
struct stubborn {
    struct timer timer;
    struct team *team;
    uint32_t dead;   /* a set after cancel_sync */
    uint32_t ghosts; /* a call-backs seen after that */
    uint32_t fired;  /* a */
    uint64_t end_ns, rounds;
};

static void stubborn_fire(struct timer *t)
{
    struct stubborn *s = container_of(t, struct stubborn, timer);
    if (atomic_load_acquire(&s->dead))
        atomic_fetch_add(&s->ghosts, 1);
    atomic_fetch_add(&s->fired, 1);
    timer_arm(t, clock_monotonic_ns() + 10 * NSEC_PER_USEC);
}

static void cancel_often(void *arg)
{
    struct stubborn *s = arg;
    while (clock_monotonic_ns() < s->end_ns) {
        atomic_store_release(&s->dead, 0);
        timer_arm(&s->timer, clock_monotonic_ns());
        burn_ns(50 * NSEC_PER_USEC);
        team_pin(current, (unsigned)(s->rounds % cpu_count())); /* cancel from another CPU */
        timer_cancel_sync(&s->timer);
        atomic_store_release(&s->dead, 1);
        burn_ns(20 * NSEC_PER_USEC);
        s->rounds++;
    }
    team_leave(s->team);
}

GUEST_TEST(timer_cancel_sync_is_final)
{
    struct team team;
    unsigned n = MIN(cpu_count() + 1, 8u);
    struct stubborn *s = kcalloc(n, sizeof(*s));
    GUEST_CHECK(s && team_init(&team, n));
    for (unsigned i = 0; i < n; i++) {
        s[i] = (struct stubborn){ .team = &team, .end_ns = clock_monotonic_ns() + NSEC_PER_SEC };
        timer_init(&s[i].timer, stubborn_fire);
        GUEST_CHECK(team_add(&team, "canceller", cancel_often, &s[i]));
    }
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 60));
    uint64_t fired = 0, rounds = 0;
    for (unsigned i = 0; i < n; i++) {
        GUEST_CHECK(!s[i].ghosts);
        fired += s[i].fired;
        rounds += s[i].rounds;
    }
    log_info("timers: %lu cancelled, %lu fired", (unsigned long)rounds, (unsigned long)fired);
    kfree(s);
    return 0;
}

GUEST_TEST(timer_sleep_is_not_early)
{
    uint64_t worst = 0;
    for (unsigned i = 0; i < 50; i++) {
        uint64_t until = clock_monotonic_ns() + i * 100 * NSEC_PER_USEC;
        sleep_until_ns(until);
        uint64_t now = clock_monotonic_ns();
        GUEST_CHECK(now >= until);
        worst = MAX(worst, now - until);
    }
    log_info("sleeps: at most %lu us late", (unsigned long)(worst / NSEC_PER_USEC));
    return 0;
}

/* Other kernel threads wake up now and then and meet somebody on a CPU: a few ticks for each are right. */
static bool few_ticks(const struct sched_totals *before, const struct sched_totals *after)
{
    uint64_t ticks = after->ticks - before->ticks, wakes = after->wakes - before->wakes;
    log_info("%lu ticks, %lu wake-ups", (unsigned long)ticks, (unsigned long)wakes);
    return ticks <= 5 + 4 * wakes;
}

/* An idle CPU takes no timer interrupt, and one with a single thread none for time slices. */
GUEST_TEST(timer_tickless)
{
    struct sched_totals before, after;
    sleep_ms(20);
    sched_totals(&before);
    sleep_ms(300);
    sched_totals(&after);
    GUEST_CHECK(few_ticks(&before, &after)); /* 300 if it ticked */
    sched_totals(&before);
    burn_ns(200 * NSEC_PER_MSEC);
    sched_totals(&after);
    GUEST_CHECK(few_ticks(&before, &after)); /* 50 to 200 if it ticked */
    return 0;
}
