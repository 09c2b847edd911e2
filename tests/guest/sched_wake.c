/* Wake-ups: none lost, none invented; interruptible and killable sleeps. */
#include "sched_test.h"
#include <weir/errno.h>

#define STRESS_NS (2 * NSEC_PER_SEC)

/* Two threads pass a ball through two wait queues. */
struct table {
    struct team *team;
    struct wait_queue queue[2];
    uint32_t side; /* a whose turn */
    uint64_t rounds, limit; /* limit 0 = until end_ns */
    uint64_t end_ns;
};
struct player {
    struct table *table;
    unsigned side;
    bool defers;
};

static void play(void *arg)
{
    struct player *p = arg;
    struct table *t = p->table;
    if (p->defers)
        thread_defer_wakes();
    for (;;) {
        wait_event(&t->queue[p->side], atomic_load_acquire(&t->side) == p->side || atomic_load_acquire(&t->side) == 2);
        if (t->side == 2)
            break;
        bool over = !p->side && (t->limit ? t->rounds == t->limit : clock_monotonic_ns() > t->end_ns);
        t->rounds += !p->side;
        atomic_store_release(&t->side, over ? 2u : 1 - p->side);
        if (wait_queue_active(&t->queue[1 - p->side]))
            wake_all(&t->queue[1 - p->side]);
        if (over)
            break;
    }
    team_leave(t->team);
}

/* Pinned so that every ball crosses two CPUs if `pinned`. With `defers` one of each pair defers its wake-ups. */
static int ping_pong(unsigned pairs, bool pinned, bool defers, unsigned seconds)
{
    struct team team;
    struct table *tables = kcalloc(pairs, sizeof(*tables));
    struct player *players = kcalloc(2 * pairs, sizeof(*players));
    GUEST_CHECK(tables && players && team_init(&team, 2 * pairs));
    uint64_t end_ns = clock_monotonic_ns() + STRESS_NS;
    for (unsigned i = 0; i < 2 * pairs; i++) {
        struct table *t = &tables[i / 2];
        *t = (struct table){ .team = &team, .end_ns = end_ns };
        wait_queue_init(&t->queue[0]);
        wait_queue_init(&t->queue[1]);
        players[i] = (struct player){ t, i % 2, defers && i % 2 };
    }
    for (unsigned i = 0; i < 2 * pairs; i++) {
        struct thread *t = team_add(&team, "player", play, &players[i]);
        GUEST_CHECK(t);
        if (pinned)
            team_pin(t, (i / 2 + i % 2) % cpu_count());
    }
    team_start(&team);
    if (!team_finish(&team, seconds))
        return 1;
    uint64_t rounds = 0, least = UINT64_MAX;
    for (unsigned i = 0; i < pairs; i++) {
        rounds += tables[i].rounds;
        least = MIN(least, tables[i].rounds);
    }
    log_info("%u pairs%s: %lu rounds, least %lu", pairs, pinned ? ", pinned across CPUs" : "", (unsigned long)rounds,
             (unsigned long)least);
    kfree(tables);
    kfree(players);
    GUEST_CHECK(least);
    GUEST_CHECK(scheduler_is_sound());
    return 0;
}

GUEST_TEST(sched_no_lost_wake_up) { return ping_pong(2 * cpu_count(), false, false, 60); }

/* No timer runs for these: the reschedule IPI is the only thing that can wake them. */
GUEST_TEST(sched_no_lost_ipi) { return ping_pong(cpu_count(), true, false, 60); }

GUEST_TEST(sched_no_lost_wake_up_one_pair) { return ping_pong(1, false, false, 60); }

GUEST_TEST(sched_no_lost_deferred_wake_up) { return ping_pong(2 * cpu_count(), false, true, 60); }

/* One waker, many exclusive sleepers: every token wakes exactly one. */
struct tokens {
    struct team *team;
    struct wait_queue queue;
    uint32_t available, taken; /* a */
};

static bool take_token(struct tokens *k)
{
    uint32_t n = atomic_load_relaxed(&k->available);
    while (n)
        if (atomic_cas(&k->available, &n, n - 1))
            return true;
    return false;
}

static void take_tokens(void *arg)
{
    struct tokens *k = arg;
    while (!atomic_load_acquire(&k->team->stop)) {
        struct waiter w;
        bool got = false;
        waiter_init(&w, true);
        for (;;) {
            prepare_wait(&k->queue, &w, THREAD_UNINTERRUPTIBLE);
            if (atomic_load_acquire(&k->team->stop) || (got = take_token(k)))
                break;
            schedule();
        }
        finish_wait(&k->queue, &w);
        if (got)
            atomic_fetch_add(&k->taken, 1);
    }
    team_leave(k->team);
}

GUEST_TEST(sched_exclusive_wake_up)
{
    struct team team;
    struct tokens k = { .team = &team };
    unsigned n = 2 * cpu_count(), made = 0;
    wait_queue_init(&k.queue);
    GUEST_CHECK(team_init(&team, n));
    for (unsigned i = 0; i < n; i++)
        GUEST_CHECK(team_add(&team, "taker", take_tokens, &k));
    team_start(&team);
    uint64_t end = clock_monotonic_ns() + NSEC_PER_SEC;
    while (clock_monotonic_ns() < end) {
        atomic_fetch_add(&k.available, 1);
        wake_one(&k.queue);
        made++;
        cond_resched();
    }
    for (unsigned i = 0; i < 1000 && atomic_load_relaxed(&k.available); i++)
        sleep_ms(10);
    uint32_t left = atomic_load_relaxed(&k.available);
    atomic_store_release(&team.stop, true);
    wake_all(&k.queue);
    GUEST_CHECK(team_finish(&team, 30));
    log_info("%u tokens to %u takers, %u left", made, n, left);
    GUEST_CHECK(!left && k.taken == made);
    return 0;
}

/* Wake-ups from interrupt context (timers) against sleepers that are just going to sleep. */
struct alarm {
    struct timer timer;
    struct team *team;
    struct wait_queue queue;
    uint32_t rang; /* a */
    uint64_t rounds;
};

static void ring(struct timer *t)
{
    struct alarm *a = container_of(t, struct alarm, timer);
    atomic_store_release(&a->rang, 1);
    wake_all(&a->queue);
}

static void set_alarms(void *arg)
{
    struct alarm *a = arg;
    uint32_t seed = 1 + (uint32_t)(uintptr_t)a;
    uint64_t end = clock_monotonic_ns() + STRESS_NS;
    while (clock_monotonic_ns() < end) {
        atomic_store_relaxed(&a->rang, 0);
        timer_arm(&a->timer, clock_monotonic_ns() + random_next(&seed) % (20 * NSEC_PER_USEC));
        wait_event(&a->queue, atomic_load_acquire(&a->rang));
        a->rounds++;
    }
    timer_cancel_sync(&a->timer);
    team_leave(a->team);
}

GUEST_TEST(sched_no_lost_interrupt_wake_up)
{
    struct team team;
    unsigned n = cpu_count() + 2;
    struct alarm *alarms = kcalloc(n, sizeof(*alarms));
    GUEST_CHECK(alarms && team_init(&team, n));
    for (unsigned i = 0; i < n; i++) {
        timer_init(&alarms[i].timer, ring);
        wait_queue_init(&alarms[i].queue);
        alarms[i].team = &team;
        GUEST_CHECK(team_add(&team, "alarm", set_alarms, &alarms[i]));
    }
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 60));
    uint64_t rounds = 0;
    for (unsigned i = 0; i < n; i++)
        rounds += alarms[i].rounds;
    log_info("%u sleepers: %lu alarms", n, (unsigned long)rounds);
    kfree(alarms);
    return 0;
}

/* ---- signals ---- */

struct sleeper_case {
    struct team *team;
    struct wait_queue queue;
    enum thread_state state;
    bool event;  /* a */
    int result;
    uint32_t asleep; /* a */
};

static void sleep_in_state(void *arg)
{
    struct sleeper_case *s = arg;
    atomic_store_release(&s->asleep, 1);
    s->result = wait_event_state(&s->queue, atomic_load_acquire(&s->event), s->state, TIME_FOREVER);
    team_leave(s->team);
}

/* Result of a sleep in `state` that gets `poke` first and, if `event`, its event 20 ms later. */
static int poked_sleep(enum thread_state state, void (*poke)(struct thread *), bool event, int *result)
{
    struct team team;
    struct sleeper_case s = { .team = &team, .state = state };
    wait_queue_init(&s.queue);
    GUEST_CHECK(team_init(&team, 1));
    struct thread *t = team_add(&team, "poked", sleep_in_state, &s);
    GUEST_CHECK(t);
    team_start(&team);
    while (!atomic_load_acquire(&s.asleep))
        sleep_ms(1);
    sleep_ms(2);
    if (poke)
        poke(t);
    if (event) {
        sleep_ms(20);
        atomic_store_release(&s.event, true);
        wake_all(&s.queue);
    }
    GUEST_CHECK(team_finish(&team, 30));
    *result = s.result;
    return 0;
}

GUEST_TEST(sched_signal_semantics)
{
    static const struct {
        enum thread_state state;
        void (*poke)(struct thread *);
        int result;
    } cases[] = {
        { THREAD_INTERRUPTIBLE, NULL, 0 },
        { THREAD_INTERRUPTIBLE, thread_interrupt, -EINTR },
        { THREAD_INTERRUPTIBLE, thread_kill, -EINTR },
        { THREAD_KILLABLE, thread_interrupt, 0 },
        { THREAD_KILLABLE, thread_kill, -EINTR },
        { THREAD_UNINTERRUPTIBLE, thread_interrupt, 0 },
        { THREAD_UNINTERRUPTIBLE, thread_kill, 0 },
    };
    for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
        int result = 1;
        GUEST_CHECK(!poked_sleep(cases[i].state, cases[i].poke, !cases[i].result, &result));
        if (result != cases[i].result)
            log_error("case %u: result %d, wanted %d", i, result, cases[i].result);
        GUEST_CHECK(result == cases[i].result);
    }
    return 0;
}

/* A signal that arrives at any moment of going to sleep ends the sleep. */
struct nap {
    struct team *team;
    uint32_t round, answered; /* a */
};

static void nap_for_signals(void *arg)
{
    struct nap *n = arg;
    while (!atomic_load_acquire(&n->team->stop)) {
        int result = sleep_until_ns_interruptible(TIME_FOREVER);
        atomic_fetch_and(&current->pending, ~(uint32_t)THREAD_SIGNAL);
        if (result == -EINTR)
            atomic_store_release(&n->answered, atomic_load_acquire(&n->round));
    }
    team_leave(n->team);
}

GUEST_TEST(sched_no_lost_signal)
{
    struct team team;
    struct nap n = { .team = &team };
    GUEST_CHECK(team_init(&team, 1));
    struct thread *t = team_add(&team, "nap", nap_for_signals, &n);
    GUEST_CHECK(t);
    team_start(&team);
    uint64_t end = clock_monotonic_ns() + NSEC_PER_SEC, give_up = end + 20 * NSEC_PER_SEC;
    bool lost = false;
    while (clock_monotonic_ns() < end && !lost) {
        uint32_t round = atomic_load_relaxed(&n.round) + 1;
        atomic_store_release(&n.round, round);
        thread_interrupt(t);
        while (atomic_load_acquire(&n.answered) != round && !lost) {
            lost = clock_monotonic_ns() > give_up;
            thread_yield();
        }
    }
    log_info("%u signals answered", n.answered);
    atomic_store_release(&team.stop, true);
    thread_interrupt(t);
    GUEST_CHECK(!lost);
    GUEST_CHECK(team_finish(&team, 30));
    return 0;
}

/* ---- the price of a switch ---- */

/* Read by an instruction-counting plugin of QEMU; no effect otherwise. */
static void mark(void)
{
    __asm__ volatile("xchg %%bx, %%bx" : : : "memory");
}

static int switches_through(uint64_t rounds, uint64_t *switches)
{
    struct team team;
    struct table t = { .team = &team, .limit = rounds };
    struct player p[2] = { { &t, 0, false }, { &t, 1, false } };
    struct sched_totals before, after;
    wait_queue_init(&t.queue[0]);
    wait_queue_init(&t.queue[1]);
    GUEST_CHECK(team_init(&team, 2));
    for (unsigned i = 0; i < 2; i++) {
        struct thread *th = team_add(&team, "switch", play, &p[i]);
        GUEST_CHECK(th);
        team_pin(th, cpu_count() - 1);
    }
    sched_totals(&before);
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 60));
    sched_totals(&after);
    *switches = after.switches - before.switches;
    return 0;
}

/* Two threads on one CPU: what a switch through a wait queue costs. */
GUEST_TEST(sched_switch_cost)
{
    uint64_t switches, rounds = 20000;
    GUEST_CHECK(!switches_through(1000, &switches));
    mark();
    uint64_t start = clock_monotonic_ns();
    GUEST_CHECK(!switches_through(rounds, &switches));
    uint64_t ns = clock_monotonic_ns() - start;
    mark();
    log_info("%lu rounds, %lu switches, %lu ns a switch", (unsigned long)rounds, (unsigned long)switches,
             (unsigned long)(ns / switches));
    GUEST_CHECK(switches >= 2 * rounds);
    return 0;
}

/* ---- call-backs ---- */

struct called {
    struct waiter waiter;
    uint32_t magic; /* a CALLED while it may be called */
    uint32_t calls; /* a */
    unsigned events;
    bool answer;
    uint32_t *late; /* a calls of one that was off the queue */
};
#define CALLED 0xca11ed

static bool note_call(struct waiter *w, unsigned events)
{
    struct called *c = container_of(w, struct called, waiter);
    if (atomic_load_relaxed(&c->magic) != CALLED)
        atomic_fetch_add(c->late, 1);
    c->events = events;
    atomic_fetch_add(&c->calls, 1);
    return c->answer;
}

static void add_called(struct wait_queue *q, struct called *c, bool exclusive, bool answer, uint32_t *late)
{
    *c = (struct called){ .magic = CALLED, .answer = answer, .late = late };
    waiter_init_fn(&c->waiter, note_call);
    c->waiter.exclusive = exclusive;
    wait_queue_add(q, &c->waiter);
}

/* Everybody who is not exclusive is called, and exclusive ones in order until one has said that it woke somebody. */
GUEST_TEST(wait_queue_call_backs_in_order)
{
    struct wait_queue q;
    struct called plain[2], exclusive[3];
    uint32_t late = 0;
    wait_queue_init(&q);
    add_called(&q, &exclusive[0], true, false, &late);
    add_called(&q, &plain[0], false, true, &late);
    add_called(&q, &exclusive[1], true, true, &late);
    add_called(&q, &exclusive[2], true, true, &late);
    add_called(&q, &plain[1], false, false, &late);
    wake_events(&q, 5, 1);
    GUEST_CHECK(plain[0].calls == 1 && plain[1].calls == 1 && plain[0].events == 5);
    GUEST_CHECK(exclusive[0].calls == 1 && exclusive[1].calls == 1 && !exclusive[2].calls);
    wake_events(&q, 1, 0);
    GUEST_CHECK(plain[0].calls == 2 && plain[1].calls == 2 && exclusive[0].calls == 1);
    wake_all(&q);
    GUEST_CHECK(plain[0].calls == 3 && exclusive[0].calls == 2 && exclusive[1].calls == 2 && exclusive[2].calls == 1);
    for (unsigned i = 0; i < 2; i++)
        wait_queue_remove(&q, &plain[i].waiter);
    for (unsigned i = 0; i < 3; i++)
        wait_queue_remove(&q, &exclusive[i].waiter);
    wake_all(&q);
    GUEST_CHECK(plain[0].calls == 3 && exclusive[2].calls == 1 && !wait_queue_active(&q) && !late);
    return 0;
}

struct caller_back {
    struct team *team;
    struct wait_queue queue;
    uint32_t late, calls; /* a */
    uint64_t end_ns;
};

static void come_and_go(void *arg)
{
    struct caller_back *b = arg;
    while (clock_monotonic_ns() < b->end_ns) {
        struct called c;
        add_called(&b->queue, &c, false, true, &b->late);
        for (unsigned i = 0; i < 200 && !atomic_load_relaxed(&c.calls); i++)
            cpu_relax();
        wait_queue_remove(&b->queue, &c.waiter);
        atomic_store_relaxed(&c.magic, 0); /* nobody is inside its call-back, or will be */
        atomic_fetch_add(&b->calls, c.calls);
        cond_resched();
    }
    team_leave(b->team);
}

static void call_back(void *arg)
{
    struct caller_back *b = arg;
    while (clock_monotonic_ns() < b->end_ns) {
        wake_all(&b->queue);
        cond_resched();
    }
    team_leave(b->team);
}

/* A waiter that has been taken off is called no more: it may be on a stack. */
GUEST_TEST(wait_queue_call_backs_end_with_removal)
{
    struct team team;
    struct caller_back b = { .team = &team, .end_ns = clock_monotonic_ns() + STRESS_NS / 2 };
    unsigned n = MAX(2u, MIN(cpu_count(), 8u));
    wait_queue_init(&b.queue);
    GUEST_CHECK(team_init(&team, n));
    for (unsigned i = 0; i < n; i++)
        GUEST_CHECK(team_add(&team, "caller", i % 2 ? call_back : come_and_go, &b));
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 60));
    log_info("%u calls", b.calls);
    GUEST_CHECK(!b.late);
    GUEST_CHECK(b.calls || cpu_count() == 1);
    return 0;
}
