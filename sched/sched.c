/*
 * Run queues, the switch, wake-ups.
 *
 * Why no wake-up is lost. A sleeper writes its sleeping state, then (full barrier) looks at its
 * condition, then calls schedule(). A waker changes the condition, then (full barrier) looks at the
 * state. So either the sleeper sees the condition or the waker sees the state. The state word is then
 * changed by compare-and-swap only: by the waker to RUNNABLE, by schedule() to the state with
 * THREAD_PARKED. If the waker is first, schedule() finds RUNNABLE and the thread goes on. If schedule()
 * is first, the waker finds PARKED, and so knows that it, alone, must queue the thread.
 *
 * Why no thread runs on two CPUs. schedule() parks or queues a thread under its run queue's lock and
 * holds that lock until the next thread has left the old stack (finish_switch). So whoever holds the
 * lock sees queued threads off their stacks. A waker that takes a parked thread elsewhere without that
 * lock waits for on_cpu == false first.
 */
#include "sched_private.h"
#include <weir/cmdline.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

struct policy_machine machine;
struct run_queue *run_queues[CPU_MAX];
static struct policy_cpu policy_cpus[CPU_MAX];

/* ---- telling a CPU to look ---- */

void sched_kick(unsigned cpu)
{
    struct run_queue *rq = run_queues[cpu], *mine = this_cpu()->rq;
    /* Already set: whoever set it has sent, or is sending, the IPI, and the target clears the flag only
     * under its queue's lock, before it looks. The exchange is a full barrier: the flag is visible before
     * `polling` is read. The idle thread clears `polling`, full barrier, then reads the flag: one of the
     * two sees the other. */
    if (atomic_exchange(&rq->cpu->need_resched, true) || rq == mine || atomic_load_relaxed(&rq->polling)) {
        mine->n.kicks_saved += rq != mine;
        return;
    }
    mine->n.kicks++;
    cpu_kick(cpu);
}

/* ---- the queue; all with rq->lock held ---- */

static inline void charge_locked(struct run_queue *rq, uint64_t now_ns)
{
    uint64_t delta = now_ns > rq->charged_ns ? now_ns - rq->charged_ns : 0;
    rq->charged_ns += delta;
    if (likely(rq->policy->running)) {
        rq->curr->runtime_ns += delta;
        rq->turn_over |= policy_charge(rq->policy, delta);
    } else if (rq->curr == rq->idle) {
        rq->n.idle_ns += delta;
    }
}

/* Queueing does not need it to the microsecond: the floor, by which the newcomer is placed, is late by so much. */
#define CHARGE_LATE_NS (20 * NSEC_PER_USEC)

static inline void charge_roughly_locked(struct run_queue *rq, uint64_t now_ns)
{
    if (now_ns > rq->charged_ns + CHARGE_LATE_NS)
        charge_locked(rq, now_ns);
}

/* Show in the machine's mask whether there is something to take here. The atomic is a full barrier:
 * the bit is visible before the caller reads the idle mask (sched_nudge); an idle CPU sets its idle
 * bit, full barrier, then reads this mask (idle_loop). So work beside an idle CPU is always seen by one. */
static void publish_change_locked(struct run_queue *rq, bool overloaded, uint64_t now_ns)
{
    rq->overloaded = overloaded;
    if (overloaded) {
        rq->overloaded_since_ns = now_ns;
        bitmap_test_and_set_atomic(machine.overloaded.bits, rq->id);
    } else {
        bitmap_test_and_clear_atomic(machine.overloaded.bits, rq->id);
    }
}

static inline void publish_locked(struct run_queue *rq, uint64_t now_ns)
{
    /* Shown to nobody while there is one CPU. */
    bool overloaded = atomic_load_relaxed(&machine.cpu_count) > 1 && policy_is_overloaded(rq->policy);
    if (unlikely(overloaded != rq->overloaded))
        publish_change_locked(rq, overloaded, now_ns);
}

void rq_publish_locked(struct run_queue *rq, uint64_t now_ns)
{
    publish_locked(rq, now_ns);
}

#define BALANCE_SOONEST_NS (200 * NSEC_PER_USEC) /* a queue that fills for a moment is not balanced */

/* While others wait, this CPU takes a tick: for the end of the turn and for balance, which is due an
 * interval after the last pass. An earlier tick that is armed already stays, so that switches, each of
 * which comes here, do not put it off for ever. It also stays when nobody waits any more: one tick that
 * finds nothing costs less than to set it anew for each thread that waits for a moment. */
static void tick_arm_locked(struct run_queue *rq, uint64_t now_ns)
{
    rq->ticking = true;
    timer_set_tick(MIN(now_ns + policy_slice_left_ns(rq->policy),
                       MAX(rq->next_balance_ns, now_ns + BALANCE_SOONEST_NS)));
}

/* True if rq's CPU must be told to look. */
static inline bool enqueue_locked(struct run_queue *rq, struct thread *t, enum policy_enqueue_kind kind, uint64_t now_ns)
{
    charge_roughly_locked(rq, now_ns);
    policy_enqueue(rq->policy, &t->entity, kind, now_ns);
    publish_locked(rq, now_ns);
    if (policy_preempts(rq->policy, &t->entity))
        return true;
    if (rq->ticking)
        return false;
    /* The running thread was alone until now and so takes no ticks. Only its own CPU can arm them. */
    if (rq != this_cpu()->rq)
        return true;
    tick_arm_locked(rq, now_ns);
    return false;
}

/* Queue t, which is off its stack and in no queue, on CPU target, or elsewhere if its affinity changed
 * meanwhile. Interrupts off, no run-queue lock held. */
static inline __attribute__((always_inline)) void enqueue_anywhere(struct thread *t, unsigned target, enum policy_enqueue_kind kind)
{
    struct run_queue *rq;
    for (;;) {
        rq = run_queues[target];
        spin_lock(&rq->lock);
        if (t->cpu != target) {
            t->migrations += kind != POLICY_NEW;
            atomic_store_relaxed(&t->cpu, target);
            barrier_full(); /* cpu is visible before affinity is read: see thread_set_affinity */
        }
        if (likely(policy_allowed(&t->entity, target)))
            break;
        if (!policy_servable(&machine, t->entity.affinity))
            break;
        spin_unlock(&rq->lock);
        sched_kick(target); /* it may have been claimed for t: it must look, to show itself idle again */
        target = policy_place_wake(&machine, target, target, t->entity.affinity);
    }
    bool was_overloaded = rq->overloaded, look = enqueue_locked(rq, t, kind, clock_monotonic_ns());
    /* Claimed under the lock: t, and so its affinity, cannot go away, and whoever sees the waiting thread
     * sees the claim too. If t must stay here, it is one that came before it that may go elsewhere now. */
    unsigned helper = CPU_MAX;
    if (rq->overloaded && policy_any_idle(&machine)) {
        if (t->entity.movable)
            helper = sched_claim_helper_locked(rq, t->entity.affinity);
        else if (!was_overloaded)
            helper = sched_claim_helper_for_queued_locked(rq);
    }
    spin_unlock(&rq->lock);
    if (look)
        sched_kick(target);
    if (helper != CPU_MAX)
        sched_kick(helper);
}

void sched_enqueue_anywhere(struct thread *t, unsigned target, enum policy_enqueue_kind kind)
{
    enqueue_anywhere(t, target, kind);
}

/* ---- wake-ups ---- */

/* Where t, which is parked and ours, shall go. Interrupts off. */
static inline unsigned place_woken(struct run_queue *mine, struct thread *t)
{
    unsigned last = atomic_load_relaxed(&t->cpu);
    /* Still on its stack: its CPU is in the middle of the switch and holds its queue's lock, so queueing
     * it there waits for exactly that. Acquire: pairs with the release in finish_switch; what the switch
     * saved is visible to the CPU that we give the thread to. */
    if (unlikely(atomic_load_acquire(&t->on_cpu))) {
        if (unlikely(!policy_allowed(&t->entity, last)))
            while (atomic_load_acquire(&t->on_cpu))
                cpu_relax();
        return last;
    }
    return policy_place_wake(&machine, last, mine->id, t->entity.affinity);
}

/* Keep t, which is parked and ours, for when the current thread sleeps. What it kept so far, or NULL. Thread context.
 * Acquire: see place_woken. */
static __attribute__((noinline)) struct thread *defer(struct run_queue *mine, struct thread *t)
{
    if (mine->policy->queued || !machine.params->wake_idle || !policy_may_defer(&current->deferral, mine->id) ||
        !policy_allowed(&t->entity, mine->id) || atomic_load_acquire(&t->on_cpu))
        return t;
    struct thread *before = current->deferred;
    current->deferred = t;
    return before;
}

/* True, for the sake of a call in tail position. */
static __attribute__((noinline)) bool enqueue_woken(struct thread *t)
{
    uint64_t flags = irq_save();
    struct cpu *cpu = this_cpu();
    cpu->rq->n.wakes++;
    if (likely(!current->defers_wakes || cpu->irq_depth) || (t = defer(cpu->rq, t)))
        enqueue_anywhere(t, place_woken(cpu->rq, t), POLICY_WAKE);
    irq_restore(flags);
    return true;
}

void thread_defer_wakes(void)
{
    current->defers_wakes = true;
}

void thread_flush_wakes(void)
{
    struct thread *t = current->deferred;
    if (likely(!t))
        return;
    uint64_t flags = irq_save();
    current->deferred = NULL;
    sched_enqueue_anywhere(t, place_woken(this_cpu()->rq, t), POLICY_WAKE);
    irq_restore(flags);
}

#define WAKE_ANY  (BIT(THREAD_UNINTERRUPTIBLE) | BIT(THREAD_KILLABLE) | BIT(THREAD_INTERRUPTIBLE))

/* Wake t if it is in one of the states of `mask`. */
static inline bool wake_from(struct thread *t, unsigned long mask)
{
    barrier_full(); /* the caller's change of the condition is visible before the state is read */
    uint32_t state = atomic_load_relaxed(&t->state);
    do {
        if (!(mask & BIT(state & ~THREAD_PARKED)))
            return false;
    } while (!atomic_cas(&t->state, &state, THREAD_RUNNABLE));
    /* Of all wakers exactly one has swapped. Not parked: t is on its way to schedule(), finds itself
     * runnable there, and may be gone by now. Parked: t is ours, it cannot run until we queue it. */
    return state & THREAD_PARKED ? enqueue_woken(t) : true;
}

bool thread_wake(struct thread *t)
{
    return wake_from(t, WAKE_ANY);
}

/* A thread in ring 3 must come into the kernel to see its pending bit. If it is switched in only after
 * we look, its way to ring 3 reads the bit: on_cpu is set with a full barrier before that read. */
static void pend(struct thread *t, uint32_t bit, unsigned long mask)
{
    atomic_fetch_or(&t->pending, bit); /* full barrier: visible before state and on_cpu are read */
    if (wake_from(t, mask))
        return;
    unsigned cpu = atomic_load_relaxed(&t->cpu);
    if (atomic_load_relaxed(&t->on_cpu) && t != current && cpu != this_cpu()->id)
        cpu_kick(cpu);
}

void thread_interrupt(struct thread *t)
{
    pend(t, THREAD_SIGNAL, BIT(THREAD_INTERRUPTIBLE));
}

void thread_kill(struct thread *t)
{
    pend(t, THREAD_KILL, BIT(THREAD_INTERRUPTIBLE) | BIT(THREAD_KILLABLE));
}

void thread_start(struct thread *t)
{
    uint64_t flags = irq_save();
    uint32_t state = THREAD_NEW;
    bool fresh = atomic_cas(&t->state, &state, THREAD_RUNNABLE);
    assert(fresh);
    thread_get(t); /* the running thread's own reference */
    sched_enqueue_anywhere(t, policy_place_new(&machine, this_cpu()->id, t->entity.affinity), POLICY_NEW);
    irq_restore(flags);
}

/* ---- the switch ---- */

/* Pending bits that end or prevent a sleep in this state. */
static uint32_t ends_sleep(uint32_t state)
{
    return state == THREAD_INTERRUPTIBLE ? THREAD_SIGNAL | THREAD_KILL : state == THREAD_KILLABLE ? THREAD_KILL : 0;
}

/* Does prev leave the CPU for good or until a wake-up? */
static bool park_locked(struct thread *prev)
{
    uint32_t state = atomic_load_relaxed(&prev->state);
    for (;;) {
        if (state == THREAD_RUNNABLE)
            return false;
        if (state == THREAD_DEAD)
            return true;
        /* A signal that came before the state was written woke nobody: see it here. */
        uint32_t pending = atomic_load_relaxed(&prev->pending);
        bool stay = unlikely(pending) && (pending & ends_sleep(state));
        if (atomic_cas(&prev->state, &state, stay ? (uint32_t)THREAD_RUNNABLE : state | THREAD_PARKED))
            return !stay;
    }
}

/* First thing on the new stack, still with the lock that switch_thread took and interrupts off. */
static inline void finish_switch(void)
{
    struct run_queue *rq = this_cpu()->rq;
    struct thread *prev = rq->prev;
    bool dead = atomic_load_relaxed(&prev->state) == THREAD_DEAD;
    struct thread *push = rq->push;
    rq->push = NULL;
    /* Release: all that prev did, and its saved registers, are visible before it is seen off its stack. */
    atomic_store_release(&prev->on_cpu, false);
    spin_unlock(&rq->lock);
    /* From here on prev may run elsewhere; only a dead one, and one that must be pushed, is ours. */
    if (unlikely(push))
        sched_enqueue_anywhere(push, policy_place_wake(&machine, atomic_load_relaxed(&push->cpu), rq->id, push->entity.affinity),
                               push == prev ? POLICY_MOVE : POLICY_WAKE);
    if (unlikely(dead))
        thread_release_dead(prev);
}

void sched_switched_in(void)
{
    finish_switch();
}

static void nudge_locked(struct run_queue *rq)
{
    unsigned helper = sched_claim_helper_locked(rq, NULL);
    if (helper != CPU_MAX)
        sched_kick(helper);
}

/* This CPU leaves idle for a thread. */
static void leave_idle_locked(struct run_queue *rq)
{
    if (bitmap_test(machine.idle.bits, rq->id))
        bitmap_test_and_clear_atomic(machine.idle.bits, rq->id);
    /* Somebody may have claimed us to pull from an overloaded queue, and we got a thread otherwise: the
     * look that we owe goes to another idle CPU. */
    uint64_t claims = atomic_load_relaxed(&rq->claims);
    if (machine.params->idle_pull && policy_find_victim(&machine, NULL, 0) != CPU_MAX)
        nudge_locked(rq);
    atomic_store_relaxed(&rq->claims_served, claims);
}

/* prev sleeps. What it woke last takes over here, unless others wait here: then it is placed like any other. */
static void take_deferred_locked(struct run_queue *rq, struct thread *prev, uint64_t now_ns)
{
    struct thread *t = prev->deferred;
    prev->deferred = NULL;
    if (rq->policy->queued) {
        rq->push = t;
        return;
    }
    if (t->cpu != rq->id) {
        t->migrations++;
        atomic_store_relaxed(&t->cpu, rq->id);
    }
    barrier_full(); /* cpu is visible before affinity is read: see thread_set_affinity */
    if (unlikely(!policy_allowed(&t->entity, rq->id))) {
        rq->push = t;
        return;
    }
    rq->n.deferred++;
    policy_enqueue(rq->policy, &t->entity, POLICY_WAKE, now_ns);
}

/* What runs next; prev is queued, parked, to be pushed, or stays. */
static struct thread *choose_locked(struct run_queue *rq, bool may_block, uint64_t now_ns)
{
    struct thread *prev = rq->curr;
    if (prev != rq->idle) {
        if (may_block && park_locked(prev)) {
            policy_stop(rq->policy, now_ns);
            if (unlikely(prev->deferred))
                take_deferred_locked(rq, prev, now_ns);
        } else if (unlikely(!policy_allowed(&prev->entity, rq->id)) && policy_servable(&machine, prev->entity.affinity)) {
            policy_stop(rq->policy, now_ns);
            rq->push = prev;
        } else if (rq->policy->queued) {
            policy_put(rq->policy, now_ns);
        } else {
            return prev;
        }
    }
    struct policy_entity *e = policy_pick(rq->policy);
    return e ? thread_of(e) : rq->idle;
}

static void switch_thread(bool may_block)
{
    uint64_t flags = irq_save();
    struct cpu *cpu = this_cpu();
    struct run_queue *rq = cpu->rq;
    assert(!cpu->irq_depth);
    spin_lock(&rq->lock);
    uint64_t now_ns = clock_monotonic_ns();
    charge_locked(rq, now_ns);
    /* Cleared under the lock and before the pick: who queues later sets it again, later. */
    atomic_store_relaxed(&cpu->need_resched, false);
    struct thread *prev = rq->curr, *next = choose_locked(rq, may_block, now_ns);
    rq->turn_over = false;
    bool was_overloaded = rq->overloaded;
    publish_locked(rq, now_ns);
    if (rq->policy->queued)
        tick_arm_locked(rq, now_ns);
    if (next == prev) {
        spin_unlock(&rq->lock);
        irq_restore(flags);
        thread_flush_wakes(); /* prev did not sleep after all */
        return;
    }
    rq->curr = next;
    rq->prev = prev;
    if (unlikely(prev->deferred) && !rq->push) { /* prev did not sleep: others were chosen before it */
        rq->push = prev->deferred;
        prev->deferred = NULL;
    }
    rq->n.switches++;
    next->switches++;
    (void)atomic_exchange(&next->on_cpu, true); /* full barrier: visible before next reads its pending bits, see pend */
    if (prev == rq->idle)
        leave_idle_locked(rq);
    else if (unlikely(rq->overloaded && !was_overloaded))
        nudge_locked(rq); /* the preempted one may go elsewhere, the one before could not */
    arch_switch(prev, next);
    finish_switch();
    irq_restore(flags);
}

void schedule(void)
{
    switch_thread(true);
}

/* Never blocks, whatever the state: a thread that has prepared to wait and yields while it looks at its
 * condition stays in the queue. */
void thread_yield(void)
{
    thread_flush_wakes();
    if (!atomic_load_relaxed(&this_cpu()->need_resched)) {
        uint64_t flags = irq_save();
        struct run_queue *rq = this_cpu()->rq;
        spin_lock(&rq->lock);
        if (rq->policy->running && rq->policy->queued) {
            charge_locked(rq, clock_monotonic_ns());
            policy_yield(rq->policy);
        }
        spin_unlock(&rq->lock);
        irq_restore(flags);
    }
    switch_thread(false);
}

/* The tick of a CPU on which threads wait. Interrupt context. */
void sched_tick(uint64_t now_ns)
{
    struct run_queue *rq = this_cpu()->rq;
    spin_lock(&rq->lock);
    charge_locked(rq, now_ns);
    rq->n.ticks++;
    bool waiting = rq->policy->queued, over = rq->turn_over;
    rq->turn_over = false;
    spin_unlock(&rq->lock);
    if (waiting && over)
        atomic_store_relaxed(&rq->cpu->need_resched, true); /* looked at on the way out of this interrupt */
    if (waiting && now_ns >= rq->next_balance_ns) {
        sched_balance(rq, now_ns);
        rq->next_balance_ns = now_ns + rq->balance_interval_ns;
    }
    sched_detect_stall(rq, now_ns);
    spin_lock(&rq->lock);
    if (rq->policy->queued && rq->policy->running)
        tick_arm_locked(rq, now_ns);
    else
        rq->ticking = false;
    spin_unlock(&rq->lock);
}

/* ---- attributes ---- */

/* The lock of the queue t belongs to; cpu changes only under the lock of the queue it moves to or from. */
static struct run_queue *lock_queue_of(struct thread *t)
{
    for (;;) {
        unsigned cpu = atomic_load_relaxed(&t->cpu);
        struct run_queue *rq = run_queues[cpu];
        spin_lock(&rq->lock);
        if (atomic_load_relaxed(&t->cpu) == cpu)
            return rq;
        spin_unlock(&rq->lock);
    }
}

void thread_set_nice(struct thread *t, int nice)
{
    uint64_t flags = irq_save();
    struct run_queue *rq = lock_queue_of(t);
    charge_locked(rq, clock_monotonic_ns());
    policy_set_nice(rq->policy, &t->entity, nice);
    spin_unlock_irqrestore(&rq->lock, flags);
}

void thread_set_affinity(struct thread *t, const struct cpumask *mask)
{
    bool everywhere = true;
    for (unsigned cpu = 0; cpu < cpu_count(); cpu++)
        everywhere &= bitmap_test(mask->bits, cpu);
    for (unsigned i = 0; i < BITMAP_WORDS(CPU_MAX); i++)
        atomic_store_relaxed(&t->affinity.bits[i], mask->bits[i]);
    atomic_store_release(&t->entity.affinity, everywhere ? NULL : &t->affinity);
    /* The mask is visible before cpu is read. Who moves t writes cpu, full barrier, reads the mask: either
     * it sees the new mask, or we see the new cpu and move t ourselves. */
    barrier_full();
    uint64_t flags = irq_save();
    struct run_queue *rq = lock_queue_of(t);
    bool queued = t->entity.queued, leave = rq->curr == t && !policy_allowed(&t->entity, rq->id);
    if (queued) {
        policy_dequeue(rq->policy, &t->entity);
        rq_publish_locked(rq, clock_monotonic_ns());
    }
    spin_unlock(&rq->lock);
    if (queued)
        sched_enqueue_anywhere(t, rq->id, POLICY_MOVE); /* stays if it may */
    else if (leave && t != current)
        sched_kick(rq->id); /* its CPU pushes it out */
    irq_restore(flags);
    if (leave && t == current)
        switch_thread(false);
}

/* ---- idle ---- */

static bool told_to_look(struct run_queue *rq)
{
    return atomic_load_relaxed(&rq->cpu->need_resched);
}

/* Interrupts off. True if there may be something to run. */
static bool find_work(struct run_queue *rq)
{
    uint64_t claims = atomic_load_relaxed(&rq->claims);
    bool pull = machine.params->idle_pull;
    if (told_to_look(rq) || (pull && sched_steal(rq)))
        return true;
    /* Now say that we idle, full barrier, and look again: see rq_publish_locked. */
    bitmap_test_and_set_atomic(machine.idle.bits, rq->id);
    if (told_to_look(rq) || (pull && sched_steal(rq)))
        return true;
    atomic_store_relaxed(&rq->claims_served, claims);
    return false;
}

static bool check_halts; /* verify each decision to halt against the queues themselves */

/* Work is there, we are not claimed, and nobody else is on the way to it: the protocol is broken. */
static bool halts_beside_work(struct run_queue *rq)
{
    return machine.params->idle_pull && sched_unclaimed_work_for(rq->id) && bitmap_test(machine.idle.bits, rq->id) &&
           !told_to_look(rq);
}

static void halt(struct run_queue *rq)
{
    rq->n.halts++;
    rq->ticking = false; /* timer_before_halt disarms it */
    if (unlikely(check_halts) && halts_beside_work(rq))
        rq->n.halts_with_work++;
    timer_before_halt();
    atomic_store_relaxed(&rq->halted, true);
    atomic_store_relaxed(&rq->polling, false);
    barrier_full(); /* polling is seen false before need_resched is read: pairs with sched_kick */
    cpu_halt();     /* looks at need_resched; returns with interrupts on */
    atomic_store_relaxed(&rq->halted, false);
}

static __noreturn void idle_loop(struct run_queue *rq)
{
    for (;;) {
        irq_disable();
        /* From here to the halt a setter of need_resched may leave the IPI out. */
        atomic_store_relaxed(&rq->polling, true);
        if (!find_work(rq)) {
            halt(rq);
            continue;
        }
        /* Who saw polling has set need_resched after queueing: switch_thread sees the thread. A claim made
         * for pulling is passed on by leave_idle_locked, or served by the next round of this loop. */
        atomic_store_relaxed(&rq->polling, false);
        switch_thread(false);
        irq_enable();
    }
}

static void run_queue_create(unsigned id)
{
    struct run_queue *rq = kzalloc(sizeof(*rq));
    if (!rq)
        panic("no memory for the run queue of CPU %u", id);
    rq->id = id;
    rq->cpu = this_cpu();
    rq->policy = &policy_cpus[id];
    policy_cpu_init(rq->policy, id);
    rq->idle = rq->curr = thread_create_idle(id);
    rq->charged_ns = clock_monotonic_ns();
    rq->balance_interval_ns = machine.params->balance_ns;
    rq->suspect_cpu = CPU_MAX;
    timer_cpu_init(id);
    rq->cpu->rq = rq;
    rq->cpu->idle = rq->idle;
    rq->cpu->running = rq->idle;
    run_queues[id] = rq;
    /* cpu_count may be seen before CPUs in between have come: `online` decides, and it is set last.
     * Release: whoever sees the bit sees the queue. */
    uint32_t count = atomic_load_relaxed(&machine.cpu_count);
    while (count < id + 1 && !atomic_cas(&machine.cpu_count, &count, id + 1))
        ;
    bitmap_test_and_set_atomic(machine.online.bits, id);
}

void sched_init(void)
{
    const char *name = cmdline_get("sched.policy");
    const struct policy_params *params = name ? policy_by_name(name) : &policy_weir;
    if (!params) {
        log_warn("sched.policy=%s is unknown: using %s", name, policy_weir.name);
        params = &policy_weir;
    }
    check_halts = cmdline_bool("sched.check", cmdline_get("test") != NULL);
    policy_machine_init(&machine, params, policy_cpus);
    run_queue_create(this_cpu()->id);
}

void sched_cpu_start(void)
{
    if (!this_cpu()->rq)
        run_queue_create(this_cpu()->id);
    idle_loop(this_cpu()->rq);
}
