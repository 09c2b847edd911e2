/*
 * One CPU's queue: see weir/policy.h. In a header because each of these is a few instructions long and a
 * switch goes through a dozen of them: as calls they cost more than what they do.
 *
 * Why deadlines and not only virtual time: every entity gets turns of POLICY_SLICE_NS, so a switch
 * happens once a turn and not at each crossing of two virtual clocks; and a turn's deadline moves only
 * by service received, so everyone's turn comes.
 */
#ifndef WEIR_POLICY_QUEUE_H
#define WEIR_POLICY_QUEUE_H
#include <weir/policy.h>

#define POLICY_WEIGHT_NICE_0 1024u

/* Virtual time may wrap: compare by difference. */
static inline bool policy_before(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0;
}

static inline uint64_t policy_to_virtual(uint64_t ns, uint32_t weight)
{
    return likely(weight == POLICY_WEIGHT_NICE_0) ? ns : ns * POLICY_WEIGHT_NICE_0 / weight;
}

static inline uint64_t policy_turn_of(const struct policy_entity *e)
{
    return policy_to_virtual(POLICY_SLICE_NS, e->weight);
}

static inline struct policy_entity *policy_entity_of(struct rb_node *n)
{
    return container_of(n, struct policy_entity, node);
}

static inline void policy_load_publish(struct policy_cpu *c)
{
    atomic_store_relaxed(&c->load, c->queued + (c->running != NULL));
}

/* The floor follows the least virtual time of those that want to run. The tree is ordered by deadline,
 * so the first one's virtual time is the least up to a turn, which is all the precision needed. */
static inline void policy_floor_raise(struct policy_cpu *c)
{
    const struct policy_entity *first = c->first, *run = c->running;
    if (first && run && policy_before(run->vruntime, first->vruntime))
        first = run;
    else if (!first)
        first = run;
    if (first && policy_before(c->floor, first->vruntime))
        c->floor = first->vruntime;
}

/* Those that wait, in order of deadline. The first one is kept beside the tree: most queues have no second. */
static inline struct policy_entity *policy_next_of(const struct policy_cpu *c, struct policy_entity *e)
{
    struct rb_node *n = e == c->first ? rb_first(&c->tree) : rb_next(&e->node);
    return n ? policy_entity_of(n) : NULL;
}

static inline struct policy_entity *policy_last(const struct policy_cpu *c)
{
    struct rb_node *n = rb_last(&c->tree);
    return n ? policy_entity_of(n) : c->first;
}

static inline struct policy_entity *policy_previous_of(const struct policy_cpu *c, struct policy_entity *e)
{
    if (e == c->first)
        return NULL;
    struct rb_node *n = rb_prev(&e->node);
    return n ? policy_entity_of(n) : c->first;
}

static inline void policy_queue_add(struct policy_cpu *c, struct policy_entity *e)
{
    if (!c->first)
        c->first = e;
    else
        policy_tree_add(c, e);
    e->queued = true;
    e->movable = !e->affinity || policy_is_movable(c, e);
    c->queued++;
    c->movable += e->movable;
}

static inline void policy_queue_remove(struct policy_cpu *c, struct policy_entity *e)
{
    if (c->queued > 1)
        policy_tree_remove(c, e);
    else
        c->first = NULL;
    e->queued = false;
    c->queued--;
    c->movable -= e->movable;
    e->movable = false;
}

static inline void policy_make_relative(const struct policy_cpu *c, struct policy_entity *e)
{
    e->lag = (int64_t)(e->vruntime - c->floor);
    e->slice_left = policy_before(e->vruntime, e->deadline) ? e->deadline - e->vruntime : 0;
}

enum policy_enqueue_kind {
    POLICY_NEW,  /* first time: a full turn */
    POLICY_WAKE, /* after sleep: what it slept counts as virtual time, up to the credit */
    POLICY_MOVE, /* from another queue: keeps its lag and what is left of its turn */
};
static inline void policy_enqueue(struct policy_cpu *c, struct policy_entity *e, enum policy_enqueue_kind kind,
                                  uint64_t now_ns)
{
    int64_t turn = (int64_t)policy_turn_of(e), lag = e->lag;
    if (kind == POLICY_WAKE) {
        if (now_ns > e->last_ran_ns)
            lag -= (int64_t)(now_ns - e->last_ran_ns);
        e->last_ran_ns = now_ns; /* it waits from now on */
    } else if (kind == POLICY_NEW) {
        lag = 0;
        e->last_ran_ns = now_ns;
    }
    /* Neither a long debt nor a long claim follows an entity into another queue. */
    lag = MAX(-(int64_t)POLICY_WAKE_CREDIT_NS, MIN(turn, lag));
    e->vruntime = c->floor + (uint64_t)lag;
    e->deadline = e->vruntime + (kind == POLICY_MOVE && e->slice_left ? e->slice_left : (uint64_t)turn);
    policy_queue_add(c, e);
    policy_load_publish(c);
}

/* e must be queued here. */
static inline void policy_dequeue(struct policy_cpu *c, struct policy_entity *e)
{
    policy_queue_remove(c, e);
    policy_make_relative(c, e);
    policy_load_publish(c);
}

/* Take the next entity out of the tree and make it the running one. NULL if none waits. Nothing may run. */
static inline struct policy_entity *policy_pick(struct policy_cpu *c)
{
    struct policy_entity *e = c->first;
    if (e) {
        policy_queue_remove(c, e);
        c->running = e;
        atomic_store_relaxed(&c->load, c->queued + 1);
    }
    return e;
}

/* The running one stops and goes back into the tree: preempted. */
static inline void policy_put(struct policy_cpu *c, uint64_t now_ns)
{
    struct policy_entity *e = c->running;
    c->running = NULL;
    e->last_ran_ns = now_ns;
    policy_queue_add(c, e);
    policy_load_publish(c);
}

/* The running one stops and leaves: asleep, dead or moving. */
static inline void policy_stop(struct policy_cpu *c, uint64_t now_ns)
{
    struct policy_entity *e = c->running;
    c->running = NULL;
    policy_floor_raise(c); /* to those who stay: what e is owed must be measured against them, not against itself */
    e->last_ran_ns = now_ns;
    policy_make_relative(c, e);
    atomic_store_relaxed(&c->load, c->queued);
}

/* The running one has run for delta_ns. True if its turn is over (it has been given the next one). */
static inline bool policy_charge(struct policy_cpu *c, uint64_t delta_ns)
{
    struct policy_entity *e = c->running;
    e->vruntime += policy_to_virtual(delta_ns, e->weight);
    policy_floor_raise(c);
    if (policy_before(e->vruntime, e->deadline))
        return false;
    e->deadline = e->vruntime + policy_turn_of(e);
    return true;
}

/* Should e, just queued here, take the CPU from the running one? (True if none runs.) */
static inline bool policy_preempts(const struct policy_cpu *c, const struct policy_entity *e)
{
    return !c->running || policy_before(e->deadline + POLICY_PREEMPT_GAIN_NS, c->running->deadline);
}

/* May this wake-up, by a thread that runs on cpu, be deferred? */
static inline bool policy_may_defer(struct policy_deferral *d, unsigned cpu)
{
    if (d->cpu != cpu) {
        d->cpu = (uint16_t)cpu;
        d->rest = POLICY_DEFER_REST;
    }
    if (!d->rest)
        return true;
    d->rest--;
    return false;
}

/* Run time until the running one's turn is over. */
static inline uint64_t policy_slice_left_ns(const struct policy_cpu *c)
{
    const struct policy_entity *e = c->running;
    if (!policy_before(e->vruntime, e->deadline))
        return 0;
    uint64_t left = e->deadline - e->vruntime;
    return likely(e->weight == POLICY_WEIGHT_NICE_0) ? left : left * e->weight / POLICY_WEIGHT_NICE_0;
}
#endif
