/* Sleeping locks and completions under load. */
#include "sched_test.h"

#define RUN_NS NSEC_PER_SEC

struct shared {
    struct team *team;
    struct mutex mutex;
    struct rw_mutex rw;
    uint64_t end_ns;
    uint64_t count, mirror; /* the lock's */
    uint64_t inside;        /* the lock's */
    uint32_t faults;        /* a */
    uint64_t passes[512];   /* each thread its own */
};
struct member {
    struct shared *s;
    unsigned id;
};

static void mutex_member(void *arg)
{
    struct member *m = arg;
    struct shared *s = m->s;
    uint32_t seed = m->id + 1;
    while (clock_monotonic_ns() < s->end_ns) {
        mutex_lock(&s->mutex);
        if (s->inside++ || !mutex_is_mine(&s->mutex))
            atomic_fetch_add(&s->faults, 1);
        s->count++;
        uint32_t r = random_next(&seed);
        if (!(r % 64))
            thread_yield(); /* holding it, so that others must sleep */
        s->mirror++;
        s->inside--;
        mutex_unlock(&s->mutex);
        s->passes[m->id]++;
        if (!(r % 8))
            cond_resched();
    }
    team_leave(s->team);
}

static void rw_member(void *arg)
{
    struct member *m = arg;
    struct shared *s = m->s;
    uint32_t seed = m->id + 1;
    while (clock_monotonic_ns() < s->end_ns) {
        uint32_t r = random_next(&seed);
        if (r % 8) {
            rw_read_lock(&s->rw);
            uint64_t a = atomic_load_relaxed(&s->count);
            if (!(r % 16))
                thread_yield();
            if (a != atomic_load_relaxed(&s->mirror) || s->inside)
                atomic_fetch_add(&s->faults, 1);
            rw_read_unlock(&s->rw);
        } else {
            rw_write_lock(&s->rw);
            if (s->inside++)
                atomic_fetch_add(&s->faults, 1);
            s->count++;
            if (!(r % 3))
                thread_yield();
            s->mirror++;
            s->inside--;
            rw_write_unlock(&s->rw);
        }
        s->passes[m->id]++;
        cond_resched();
    }
    team_leave(s->team);
}

static int lock_stress(const char *what, void (*fn)(void *), unsigned n)
{
    struct team team;
    struct shared *s = kzalloc(sizeof(*s));
    struct member *members = kcalloc(n, sizeof(*members));
    GUEST_CHECK(s && members && n <= ARRAY_SIZE(s->passes) && team_init(&team, n));
    s->team = &team;
    mutex_init(&s->mutex);
    rw_mutex_init(&s->rw);
    s->end_ns = clock_monotonic_ns() + RUN_NS;
    for (unsigned i = 0; i < n; i++) {
        members[i] = (struct member){ s, i };
        GUEST_CHECK(team_add(&team, what, fn, &members[i]));
    }
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 60));
    uint64_t least = UINT64_MAX, total = 0;
    for (unsigned i = 0; i < n; i++) {
        least = MIN(least, s->passes[i]);
        total += s->passes[i];
    }
    log_info("%s: %u threads, %lu passes, least %lu", what, n, (unsigned long)total, (unsigned long)least);
    GUEST_CHECK(!s->faults && s->count == s->mirror && !s->inside);
    GUEST_CHECK(mutex_try_lock(&s->mutex)); /* free, with nobody left behind */
    mutex_unlock(&s->mutex);
    GUEST_CHECK(list_empty(&s->mutex.waiters) && list_empty(&s->rw.waiters) && !s->rw.readers);
    kfree(s);
    kfree(members);
    GUEST_CHECK(scheduler_is_sound());
    return 0;
}

GUEST_TEST(sched_mutex) { return lock_stress("mutex", mutex_member, MIN(2 * cpu_count() + 2, 512u)); }
GUEST_TEST(sched_rw_mutex) { return lock_stress("rw_mutex", rw_member, MIN(2 * cpu_count() + 2, 512u)); }

/* ---- completions on the waiter's stack, and threads by the thousand ---- */

struct waiter_member {
    struct team *team;
    uint64_t end_ns, rounds;
    uint32_t broken;
};

static void complete_it(void *arg)
{
    completion_complete(arg);
}

/* The frame is overwritten as soon as the wait returns: a completer that still touched it would show. */
static __attribute__((noinline)) bool one_completion(void)
{
    struct completion c;
    completion_init(&c);
    struct thread *t = thread_create("completer", complete_it, &c);
    if (!t)
        return false;
    thread_start(t);
    thread_put(t);
    completion_wait(&c);
    bool intact = c.done && !spin_is_locked(&c.wait.lock) && list_empty(&c.wait.waiters);
    memset(&c, 0x5a, sizeof(c));
    barrier_compiler();
    for (unsigned i = 0; i < sizeof(c); i++)
        intact &= ((volatile unsigned char *)&c)[i] == 0x5a;
    return intact;
}

static void wait_often(void *arg)
{
    struct waiter_member *m = arg;
    for (; clock_monotonic_ns() < m->end_ns; m->rounds++)
        m->broken += !one_completion();
    team_leave(m->team);
}

GUEST_TEST(sched_completion)
{
    struct team team;
    unsigned n = MIN(cpu_count() + 1, 16u);
    struct waiter_member m[16];
    GUEST_CHECK(team_init(&team, n));
    for (unsigned i = 0; i < n; i++) {
        m[i] = (struct waiter_member){ .team = &team, .end_ns = clock_monotonic_ns() + RUN_NS };
        GUEST_CHECK(team_add(&team, "waits", wait_often, &m[i]));
    }
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 60));
    uint64_t rounds = 0;
    for (unsigned i = 0; i < n; i++) {
        GUEST_CHECK(!m[i].broken);
        rounds += m[i].rounds;
    }
    log_info("completion: %lu threads made, run and gone", (unsigned long)rounds);
    return 0;
}
