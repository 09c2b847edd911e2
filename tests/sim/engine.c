/* The simulated CPUs; see sim.h. The names follow sched/sched.c and sched/balance.c. */
#include "sim.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/*
 * All of these are assumptions, at one instruction a nanosecond where we run ourselves: none was measured under
 * KVM. switch, wake: a wake-up with its switch is 597 counted instructions (`scripts/compare --switch`), rounded up.
 * IPI: sending costs an exit; a halted virtual CPU must be entered again before its first instruction.
 * migration: refill of the hot part of a working set of 256 KiB at 10 GB/s.
 * That each may be half or double without changing the order of the policies is what the simulator checks.
 */
const struct sim_costs sim_costs_default = {
    .switch_ns = 500, .wake_ns = 250, .ipi_send_ns = 1500, .ipi_wake_ns = 5000,
    .migrate_ns = 3000, .steal_ns = 500, .balance_ns = 1500, .interrupt_ns = 1000,
};

/* ---- events ---- */

static bool earlier(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void event_add(struct sim *s, uint64_t at, void (*fn)(struct sim *, void *, uint64_t), void *arg, uint64_t ticket)
{
    if (s->heap_count == s->heap_max) {
        s->heap_max = s->heap_max ? 2 * s->heap_max : 1024;
        s->heap = realloc(s->heap, s->heap_max * sizeof(*s->heap));
    }
    unsigned i = s->heap_count++;
    struct sim_event e = { at < s->now ? s->now : at, s->order++, ticket, fn, arg };
    for (; i && earlier(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
}

static struct sim_event event_take(struct sim *s)
{
    struct sim_event first = s->heap[0], last = s->heap[--s->heap_count];
    unsigned i = 0;
    for (;;) {
        unsigned child = 2 * i + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && earlier(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!earlier(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return first;
}

void sim_at(struct sim *s, uint64_t at, void (*fn)(struct sim *, void *, uint64_t), void *arg)
{
    event_add(s, at, fn, arg, 0);
}

uint64_t sim_random(struct sim *s, uint64_t below)
{
    s->seed ^= s->seed << 13;
    s->seed ^= s->seed >> 17;
    s->seed ^= s->seed << 5;
    return s->seed % below;
}

/* ---- the mechanism ---- */

static unsigned id_of(const struct sim *s, const struct sim_cpu *c) { return (unsigned)(c - s->cpu); }
static struct sim_thread *thread_of(struct policy_entity *e) { return container_of(e, struct sim_thread, entity); }
static void look(struct sim *s, void *arg, uint64_t ticket);
static void reschedule(struct sim *s, struct sim_cpu *c);

static void charge(struct sim *s, struct sim_cpu *c)
{
    uint64_t delta = s->now > c->charged_ns ? s->now - c->charged_ns : 0;
    if (!delta)
        return;
    c->charged_ns = s->now;
    if (!c->running)
        return;
    c->busy_ns += delta;
    c->running->left_ns -= MIN(c->running->left_ns, delta);
    c->turn_over |= policy_charge(c->policy, delta);
}

static void publish(struct sim *s, struct sim_cpu *c)
{
    if (policy_is_overloaded(c->policy))
        bitmap_set(s->machine.overloaded.bits, id_of(s, c));
    else
        bitmap_clear(s->machine.overloaded.bits, id_of(s, c));
}

static void pay(struct sim *s, struct sim_cpu *c, uint64_t ns)
{
    if (c->running)
        c->running->left_ns += ns; /* it is that much later done */
    else
        c->delay_ns += ns;
}

/* need_resched, and the IPI if c is not the one that acts. */
static void kick(struct sim *s, struct sim_cpu *c)
{
    if (c->look_pending)
        return;
    c->look_pending = true;
    uint64_t delay = 0;
    if (id_of(s, c) != s->acting_cpu) {
        s->ipis++;
        pay(s, &s->cpu[s->acting_cpu], s->costs->ipi_send_ns);
        delay = c->running ? s->costs->ipi_send_ns : s->costs->ipi_wake_ns;
    }
    event_add(s, s->now + delay, look, c, 0);
}

static void arm_tick(struct sim *s, struct sim_cpu *c);

static void enqueue(struct sim *s, struct sim_cpu *c, struct sim_thread *t, enum policy_enqueue_kind kind)
{
    charge(s, c);
    t->cpu = id_of(s, c);
    if (kind != POLICY_MOVE)
        t->ready_ns = s->now;
    policy_enqueue(c->policy, &t->entity, kind, s->now);
    publish(s, c);
    if (policy_preempts(c->policy, &t->entity) || !c->ticking)
        kick(s, c);
    if (s->machine.params->idle_pull && policy_is_overloaded(c->policy)) {
        unsigned helper = policy_claim_idle(&s->machine, t->cpu + 1, t->entity.affinity);
        if (helper != CPU_MAX)
            kick(s, &s->cpu[helper]);
    }
}

static void tick(struct sim *s, void *arg, uint64_t ticket);

static void arm_tick(struct sim *s, struct sim_cpu *c)
{
    uint64_t at = MIN(s->now + policy_slice_left_ns(c->policy), MAX(c->next_balance_ns, s->now + 200 * NSEC_PER_USEC));
    c->ticking = true;
    if (c->tick_ns && c->tick_ns <= at)
        return;
    c->tick_ns = at;
    event_add(s, at, tick, c, at);
}

static bool steal(struct sim *s, struct sim_cpu *c)
{
    struct cpumask tried = { 0 };
    unsigned me = id_of(s, c), victim;
    bitmap_set(tried.bits, me);
    while ((victim = policy_find_victim(&s->machine, &tried, me)) != CPU_MAX) {
        struct sim_cpu *v = &s->cpu[victim];
        struct sim_thread *taken[64];
        unsigned n = 0, want = MIN(policy_steal_count(&s->machine, v->policy), 64u);
        charge(s, v);
        for (struct policy_entity *e; n < want && (e = policy_steal_candidate(v->policy, me)); n++) {
            policy_dequeue(v->policy, e);
            taken[n] = thread_of(e);
        }
        publish(s, v);
        bitmap_set(tried.bits, victim);
        c->delay_ns += s->costs->steal_ns;
        for (unsigned i = 0; i < n; i++) {
            taken[i]->entity.last_moved_ns = s->now;
            enqueue(s, c, taken[i], POLICY_MOVE);
        }
        if (n)
            return true;
    }
    return false;
}

static void burst_over(struct sim *s, void *arg, uint64_t ticket);

/* c runs t from now on. */
static void dispatch(struct sim *s, struct sim_cpu *c, struct sim_thread *t, bool switched)
{
    c->running = t;
    c->charged_ns = s->now;
    c->turn_over = false;
    if (switched) {
        s->switches++;
        t->left_ns += s->costs->switch_ns;
        if (s->now - t->ready_ns > t->worst_wait_ns)
            t->worst_wait_ns = s->now - t->ready_ns;
        if (t->last_cpu >= 0 && t->last_cpu != (int)id_of(s, c)) {
            t->left_ns += s->costs->migrate_ns;
            t->migrations++;
            s->migrations++;
        }
        t->last_cpu = (int)id_of(s, c);
    }
    t->left_ns += c->delay_ns;
    c->delay_ns = 0;
    event_add(s, s->now + t->left_ns, burst_over, c, c->ticket);
}

static void go_idle(struct sim *s, struct sim_cpu *c)
{
    unsigned me = id_of(s, c);
    c->running = NULL;
    c->charged_ns = s->now;
    c->ticking = false;
    bitmap_set(s->machine.idle.bits, me);
    if (s->machine.params->idle_pull && !c->look_pending) {
        if (steal(s, c))
            return; /* enqueue has kicked us */
        for (unsigned v = 0; v < s->cpus; v++)
            s->bad_halts += v != me && policy_steal_candidate(&s->policy[v], me) && !s->cpu[v].look_pending;
    }
}

/* schedule(): whatever runs has been put back or taken off. */
static void pick(struct sim *s, struct sim_cpu *c, struct sim_thread *prev)
{
    bool was_idle = bitmap_test(s->machine.idle.bits, id_of(s, c));
    c->ticket++;
    struct policy_entity *e = policy_pick(c->policy);
    publish(s, c);
    if (!e) {
        go_idle(s, c);
        return;
    }
    bitmap_clear(s->machine.idle.bits, id_of(s, c));
    dispatch(s, c, thread_of(e), thread_of(e) != prev);
    c->ticking = false;
    if (c->policy->queued)
        arm_tick(s, c);
    if (was_idle && s->machine.params->idle_pull && policy_find_victim(&s->machine, NULL, 0) != CPU_MAX) {
        unsigned helper = policy_claim_idle(&s->machine, id_of(s, c) + 1, NULL);
        if (helper != CPU_MAX)
            kick(s, &s->cpu[helper]);
    }
}

static void reschedule(struct sim *s, struct sim_cpu *c)
{
    struct sim_thread *prev = c->running;
    charge(s, c);
    if (prev) {
        prev->ready_ns = s->now;
        policy_put(c->policy, s->now);
        c->running = NULL;
    }
    pick(s, c, prev);
}

static void look(struct sim *s, void *arg, uint64_t ticket)
{
    struct sim_cpu *c = arg;
    c->look_pending = false;
    s->acting_cpu = id_of(s, c);
    reschedule(s, c);
}

static void balance(struct sim *s, struct sim_cpu *c)
{
    struct policy_move moves[CPU_MAX];
    unsigned moved = 0, n = policy_balance_plan(&s->machine, id_of(s, c), moves, CPU_MAX);
    pay(s, c, s->costs->balance_ns);
    for (unsigned i = 0; i < n; i++) {
        for (unsigned k = 0; k < moves[i].count; k++) {
            struct policy_entity *e = policy_push_candidate(c->policy, moves[i].cpu, s->now);
            if (!e)
                break;
            policy_dequeue(c->policy, e);
            publish(s, c);
            e->last_moved_ns = s->now;
            enqueue(s, &s->cpu[moves[i].cpu], thread_of(e), POLICY_MOVE);
            moved++;
        }
    }
    c->balance_interval_ns = policy_next_balance_ns(s->machine.params, c->balance_interval_ns, moved);
    c->next_balance_ns = s->now + c->balance_interval_ns;
}

static void tick(struct sim *s, void *arg, uint64_t at)
{
    struct sim_cpu *c = arg;
    if (at != c->tick_ns)
        return; /* an earlier one has taken its place */
    c->tick_ns = 0;
    if (!c->running) {
        c->ticking = false; /* going to halt disarms it */
        return;
    }
    s->acting_cpu = id_of(s, c);
    charge(s, c);
    bool over = c->turn_over;
    c->turn_over = false;
    if (c->policy->queued && s->now >= c->next_balance_ns)
        balance(s, c);
    pay(s, c, s->costs->interrupt_ns);
    if (c->policy->queued && over) {
        reschedule(s, c);
    } else if (c->policy->queued) {
        arm_tick(s, c);
    } else {
        c->ticking = false;
    }
}

static void place_woken(struct sim *s, struct sim_thread *t)
{
    unsigned cpu = policy_place_wake(&s->machine, t->cpu, s->acting_cpu, t->entity.affinity);
    enqueue(s, &s->cpu[cpu], t, POLICY_WAKE);
}

static void flush_wakes(struct sim *s, struct sim_thread *t)
{
    struct sim_thread *woken = t->deferred;
    t->deferred = NULL;
    if (woken)
        place_woken(s, woken);
}

static void burst_over(struct sim *s, void *arg, uint64_t ticket)
{
    struct sim_cpu *c = arg;
    struct sim_thread *t = c->running;
    if (ticket != c->ticket || !t)
        return;
    s->acting_cpu = id_of(s, c);
    charge(s, c);
    if (t->left_ns) { /* overhead came on top meanwhile */
        event_add(s, s->now + t->left_ns, burst_over, c, ticket);
        return;
    }
    for (;;) {
        struct sim_step step = t->next(s, t);
        if (step.kind == SIM_RUN) {
            flush_wakes(s, t);
            t->left_ns += step.ns;
            t->useful_ns += step.ns;
            event_add(s, s->now + t->left_ns, burst_over, c, ticket);
            return;
        }
        if (step.kind == SIM_BLOCK && t->tokens) {
            t->tokens--;
            continue;
        }
        c->delay_ns += t->left_ns; /* what it owes for waking others */
        t->left_ns = 0;
        t->blocked = step.kind == SIM_BLOCK;
        if (step.kind == SIM_EXIT) {
            t->done = true;
            s->alive--;
            s->finished_ns = s->now;
        }
        if (c->policy->queued)
            flush_wakes(s, t);
        policy_stop(c->policy, s->now);
        c->running = NULL;
        if (t->deferred) { /* runs here: nobody needs to be told */
            t->deferred->cpu = id_of(s, c);
            policy_enqueue(c->policy, &t->deferred->entity, POLICY_WAKE, s->now);
            t->deferred = NULL;
        }
        pick(s, c, NULL);
        return;
    }
}

/* ---- threads ---- */

void sim_wake(struct sim *s, struct sim_thread *t)
{
    struct sim_cpu *mine = &s->cpu[s->acting_cpu];
    if (!t->blocked) {
        t->tokens++;
        return;
    }
    t->blocked = false;
    t->ready_ns = s->now;
    pay(s, mine, s->costs->wake_ns);
    struct sim_thread *waker = s->in_interrupt ? NULL : mine->running;
    if (!waker || !waker->defers_wakes || mine->policy->queued || !s->machine.params->wake_idle ||
        !policy_may_defer(&waker->deferral, s->acting_cpu) || !policy_allowed(&t->entity, s->acting_cpu)) {
        place_woken(s, t);
        return;
    }
    flush_wakes(s, waker);
    waker->deferred = t;
}

void sim_interrupt_wake(struct sim *s, struct sim_thread *t, unsigned cpu)
{
    s->acting_cpu = cpu;
    charge(s, &s->cpu[cpu]);
    pay(s, &s->cpu[cpu], s->costs->interrupt_ns);
    s->in_interrupt = true;
    sim_wake(s, t);
    s->in_interrupt = false;
}

struct sim_thread *sim_thread(struct sim *s, struct sim_step (*next)(struct sim *, struct sim_thread *), void *data)
{
    assert(s->thread_count < s->thread_max);
    struct sim_thread *t = &s->threads[s->thread_count];
    t->id = s->thread_count++;
    t->next = next;
    t->data = data;
    t->last_cpu = -1;
    policy_entity_init(&t->entity, 0);
    s->alive++;
    return t;
}

void sim_pin(struct sim *s, struct sim_thread *t, unsigned cpu)
{
    memset(&t->mask, 0, sizeof(t->mask));
    bitmap_set(t->mask.bits, cpu);
    t->entity.affinity = &t->mask;
}

void sim_start(struct sim *s, struct sim_thread *t, unsigned creator_cpu)
{
    s->acting_cpu = creator_cpu;
    enqueue(s, &s->cpu[policy_place_new(&s->machine, creator_cpu, t->entity.affinity)], t, POLICY_NEW);
}

/* ---- the run ---- */

/* CPU time idle beside threads that wait behind others, since the last event. */
static void account_waste(struct sim *s, uint64_t until)
{
    uint64_t waiting = 0, idle = 0;
    for (unsigned i = 0; i < s->cpus; i++) {
        uint32_t queued = s->policy[i].queued;
        if (s->cpu[i].running)
            waiting += queued;
        else if (queued)
            waiting += queued - 1; /* one is about to run here */
        else
            idle++;
    }
    s->wasted_ns += MIN(waiting, idle) * (until - s->now);
}

struct sim *sim_create(const struct policy_params *params, unsigned cpus, const struct sim_costs *costs, uint32_t seed,
                       unsigned max_threads)
{
    struct sim *s = aligned_alloc(64, ALIGN_UP(sizeof(*s), 64));
    memset(s, 0, sizeof(*s));
    policy_machine_init(&s->machine, params, s->policy);
    s->machine.cpu_count = s->cpus = cpus;
    s->costs = costs;
    s->seed = seed;
    s->thread_max = max_threads;
    s->threads = calloc(max_threads, sizeof(*s->threads));
    for (unsigned i = 0; i < cpus; i++) {
        policy_cpu_init(&s->policy[i], i);
        s->cpu[i].policy = &s->policy[i];
        s->cpu[i].balance_interval_ns = params->balance_ns;
        /* Machines do not tick in step. */
        s->cpu[i].next_balance_ns = params->balance_ns * i / cpus;
        bitmap_set(s->machine.online.bits, i);
        bitmap_set(s->machine.idle.bits, i);
    }
    return s;
}

void sim_destroy(struct sim *s)
{
    free(s->threads);
    free(s->heap);
    free(s);
}

void sim_run(struct sim *s, uint64_t until_ns)
{
    while (s->heap_count && s->alive && s->heap[0].at <= until_ns) {
        struct sim_event e = event_take(s);
        if (e.at != s->now)
            account_waste(s, e.at);
        s->now = e.at;
        e.fn(s, e.arg, e.ticket);
    }
    if (s->alive && s->now < until_ns)
        s->now = until_ns;
}
