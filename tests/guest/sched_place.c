/* Where threads run: fan-out, pulling, affinity, lone threads. */
#include "sched_test.h"

struct burner {
    struct team *team;
    uint32_t seen_cpu; /* a the last CPU it ran on */
    uint64_t turns;
};

static void burn_until_stop(void *arg)
{
    struct burner *b = arg;
    while (!atomic_load_relaxed(&b->team->stop)) {
        atomic_store_relaxed(&b->seen_cpu, this_cpu()->id);
        burn_ns(20 * NSEC_PER_USEC);
        b->turns++;
    }
    team_leave(b->team);
}

static unsigned distinct_cpus(struct burner *b, unsigned n)
{
    struct cpumask mask = { 0 };
    for (unsigned i = 0; i < n; i++)
        bitmap_set(mask.bits, atomic_load_relaxed(&b[i].seen_cpu));
    return bitmap_weight(mask.bits, CPU_MAX);
}

#define FAN 4

/* The promise is 20 ms of guest time. The clock shows the host's time, and here virtual CPUs wait for the host, so the
 * best of several tries must keep it (the baseline policy needs 100 ms in all of them, as its balance passes are so far
 * apart); that the decision is taken at once is checked apart from it, each time. */
#define SPREAD_NS (20 * NSEC_PER_MSEC)
#define SPREAD_TRIES 100
#define SPREAD_BOUND_NS (3 * NSEC_PER_SEC)

static int best_of_tries(const char *name, int (*once)(uint64_t *spread_ns))
{
    uint64_t best_ns = UINT64_MAX;
    for (unsigned i = 0; i < SPREAD_TRIES && best_ns > SPREAD_NS; i++) {
        uint64_t ns;
        if (once(&ns))
            return 1;
        log_info("%s: %u threads apart after %lu us", name, FAN, (unsigned long)(ns / NSEC_PER_USEC));
        best_ns = MIN(best_ns, ns);
    }
    GUEST_CHECK(best_ns <= SPREAD_NS);
    return 0;
}

/* Time until the team has been seen on as many CPUs as it can have, or the bound. */
static uint64_t time_to_spread(struct burner *b, unsigned n)
{
    uint64_t start = clock_monotonic_ns();
    do
        sleep_ms(1);
    while (distinct_cpus(b, n) < MIN(cpu_count(), n) && clock_monotonic_ns() - start < SPREAD_BOUND_NS);
    return clock_monotonic_ns() - start;
}

/* Four threads made on one CPU sit on four CPUs after at most 20 ms. */
static int fan_out(uint64_t *spread_ns)
{
    struct team team;
    struct burner b[FAN] = { 0 };
    GUEST_CHECK(team_init(&team, FAN));
    for (unsigned i = 0; i < FAN; i++) {
        b[i].team = &team;
        GUEST_CHECK(team_add(&team, "fan", burn_until_stop, &b[i]));
    }
    team_start(&team);
    struct cpumask placed = { 0 };
    for (unsigned i = 0; i < FAN; i++)
        bitmap_set(placed.bits, atomic_load_relaxed(&team.threads[i]->cpu));
    *spread_ns = time_to_spread(b, FAN);
    unsigned cpus = distinct_cpus(b, FAN);
    atomic_store_relaxed(&team.stop, true);
    GUEST_CHECK(team_finish(&team, 30));
    GUEST_CHECK(cpus == MIN(cpu_count(), FAN));
    GUEST_CHECK(bitmap_weight(placed.bits, CPU_MAX) == FAN || cpu_count() <= 2 * FAN);
    return 0;
}

GUEST_TEST(sched_fan_out) { return best_of_tries("fan-out", fan_out); }

/* The same when they begin in one queue: pinned to one CPU together, then set free. */
static int pull(uint64_t *spread_ns)
{
    struct team team;
    struct burner b[FAN] = { 0 };
    struct cpumask all;
    memset(&all, 0xff, sizeof(all));
    GUEST_CHECK(team_init(&team, FAN));
    for (unsigned i = 0; i < FAN; i++) {
        b[i].team = &team;
        struct thread *t = team_add(&team, "pull", burn_until_stop, &b[i]);
        GUEST_CHECK(t);
        team_pin(t, 0);
    }
    team_start(&team);
    sleep_ms(10);
    unsigned before = distinct_cpus(b, FAN);
    struct sched_totals pulled_before, pulled_after;
    sched_totals(&pulled_before);
    for (unsigned i = 0; i < FAN; i++)
        thread_set_affinity(team.threads[i], &all);
    *spread_ns = time_to_spread(b, FAN);
    unsigned cpus = distinct_cpus(b, FAN);
    sched_totals(&pulled_after);
    atomic_store_relaxed(&team.stop, true);
    GUEST_CHECK(team_finish(&team, 30));
    GUEST_CHECK(before == 1);
    /* Idle CPUs were told at once; it was not only the tick of the busy one that pushed threads out. Of two CPUs
     * none idles while this thread runs. */
    GUEST_CHECK(pulled_after.nudges > pulled_before.nudges || cpu_count() <= 2);
    GUEST_CHECK(cpus == MIN(cpu_count(), FAN));
    GUEST_CHECK(scheduler_is_sound());
    return 0;
}

GUEST_TEST(sched_pull) { return best_of_tries("pull", pull); }

/* A thread that runs alone on its CPU is never moved. */
GUEST_TEST(sched_lone_thread_stays)
{
    struct team team;
    struct burner b = { .team = &team };
    GUEST_CHECK(team_init(&team, 1));
    struct thread *t = team_add(&team, "lone", burn_until_stop, &b);
    GUEST_CHECK(t);
    team_start(&team);
    sleep_ms(20);
    uint64_t before = t->migrations;
    sleep_ms(300);
    uint64_t after = t->migrations;
    atomic_store_relaxed(&team.stop, true);
    GUEST_CHECK(team_finish(&team, 30));
    /* One move can be right: another kernel thread may have met it. A scheduler that bounces it moves it 5 times. */
    GUEST_CHECK(after - before <= 1 || cpu_count() == 1);
    return 0;
}

struct pinned {
    struct team *team;
    unsigned cpu;      /* a where it must be */
    uint32_t wrong;    /* a */
};

static void run_where_told(void *arg)
{
    struct pinned *p = arg;
    while (!atomic_load_relaxed(&p->team->stop)) {
        if (this_cpu()->id != p->cpu)
            atomic_fetch_add(&p->wrong, 1);
        burn_ns(50 * NSEC_PER_USEC);
        sleep_until_ns(clock_monotonic_ns() + 50 * NSEC_PER_USEC);
    }
    team_leave(p->team);
}

/* Pinned threads stay, two to a CPU, whatever idles elsewhere. */
GUEST_TEST(sched_affinity_holds)
{
    unsigned n = 2 * MIN(cpu_count(), 8u);
    struct team team;
    struct pinned p[16] = { 0 };
    GUEST_CHECK(team_init(&team, n));
    for (unsigned i = 0; i < n; i++) {
        p[i] = (struct pinned){ .team = &team, .cpu = i / 2 };
        struct thread *t = team_add(&team, "pinned", run_where_told, &p[i]);
        GUEST_CHECK(t);
        team_pin(t, p[i].cpu);
    }
    team_start(&team);
    sleep_ms(200);
    atomic_store_relaxed(&team.stop, true);
    GUEST_CHECK(team_finish(&team, 30));
    for (unsigned i = 0; i < n; i++)
        GUEST_CHECK(!p[i].wrong);
    GUEST_CHECK(scheduler_is_sound());
    return 0;
}

struct mover {
    struct team *team;
    uint32_t wrong;
};

static void move_itself(void *arg)
{
    struct mover *m = arg;
    for (unsigned i = 0; i < 4 * cpu_count() && i < 400; i++) {
        unsigned cpu = (i * 7) % cpu_count();
        team_pin(current, cpu);
        m->wrong += this_cpu()->id != cpu;
    }
    team_leave(m->team);
}

/* A thread that narrows its own mask runs inside it when the call returns. */
GUEST_TEST(sched_affinity_moves_the_caller)
{
    struct team team;
    struct mover m = { &team, 0 };
    GUEST_CHECK(team_init(&team, 1));
    GUEST_CHECK(team_add(&team, "mover", move_itself, &m));
    team_start(&team);
    GUEST_CHECK(team_finish(&team, 60));
    GUEST_CHECK(!m.wrong);
    return 0;
}

/* A running and a waiting thread are moved from outside, while they run, wait and sleep. */
GUEST_TEST(sched_affinity_moves_others)
{
    struct team team;
    struct burner b[FAN] = { 0 };
    uint32_t seed = 7;
    GUEST_CHECK(team_init(&team, FAN));
    for (unsigned i = 0; i < FAN; i++) {
        b[i].team = &team;
        GUEST_CHECK(team_add(&team, "moved", burn_until_stop, &b[i]));
    }
    team_start(&team);
    unsigned wrong = 0;
    for (unsigned round = 0; round < 20; round++) {
        unsigned cpu[FAN];
        for (unsigned i = 0; i < FAN; i++) {
            cpu[i] = random_next(&seed) % cpu_count();
            team_pin(team.threads[i], cpu[i]);
        }
        /* Each runs in its new place before long: wait for a turn begun after the move. */
        for (unsigned i = 0; i < FAN; i++) {
            uint64_t turns = atomic_load_relaxed(&b[i].turns), until = clock_monotonic_ns() + 5 * NSEC_PER_SEC;
            while (atomic_load_relaxed(&b[i].turns) < turns + 2 && clock_monotonic_ns() < until)
                sleep_ms(1);
            wrong += atomic_load_relaxed(&b[i].seen_cpu) != cpu[i];
        }
    }
    atomic_store_relaxed(&team.stop, true);
    GUEST_CHECK(team_finish(&team, 60));
    GUEST_CHECK(!wrong);
    return 0;
}
