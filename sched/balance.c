/* Moving threads between CPUs: pull when idle, nudge of an idle CPU, push when busy; stall detector. */
#include "sched_private.h"
#include <weir/printk.h>

/* ---- pull ---- */

/* Take up to what policy allows from victim into a list. Their cpu is ours from here on, so that who looks
 * for them waits at our lock. */
static struct thread *take_from(struct run_queue *victim, struct run_queue *rq)
{
    struct thread *taken = NULL;
    spin_lock(&victim->lock);
    for (unsigned n = policy_steal_count(&machine, victim->policy); n; n--) {
        struct policy_entity *e = policy_steal_candidate(victim->policy, rq->id);
        if (!e)
            break;
        policy_dequeue(victim->policy, e);
        struct thread *t = thread_of(e);
        t->migrations++;
        atomic_store_relaxed(&t->cpu, rq->id);
        t->move_next = taken;
        taken = t;
    }
    rq_publish_locked(victim, clock_monotonic_ns());
    spin_unlock(&victim->lock);
    return taken;
}

bool sched_steal(struct run_queue *rq)
{
    if (!policy_any_overloaded(&machine))
        return false;
    struct cpumask tried = { 0 };
    bitmap_set(tried.bits, rq->id);
    unsigned victim;
    while ((victim = policy_find_victim(&machine, &tried, rq->id)) != CPU_MAX) {
        struct thread *t = take_from(run_queues[victim], rq);
        if (!t) {
            rq->n.steals_failed++;
            bitmap_set(tried.bits, victim);
            continue;
        }
        while (t) {
            struct thread *next = t->move_next;
            t->entity.last_moved_ns = clock_monotonic_ns();
            rq->n.steals++;
            sched_enqueue_anywhere(t, rq->id, POLICY_MOVE);
            t = next;
        }
        return true;
    }
    return false;
}

/* A thread waits on rq that another CPU could run: claim an idle CPU, which the caller kicks and which
 * will pull. rq is locked, and the overload has been published with a full barrier. */
unsigned sched_claim_helper_locked(struct run_queue *rq, const struct cpumask *affinity)
{
    if (!policy_any_idle(&machine) || !machine.params->idle_pull)
        return CPU_MAX;
    unsigned cpu = policy_claim_idle(&machine, rq->id + 1, affinity);
    if (cpu != CPU_MAX) {
        atomic_fetch_add(&run_queues[cpu]->claims, 1);
        this_cpu()->rq->n.nudges++;
    }
    return cpu;
}

/* The same for whichever queued thread an idle CPU can run. */
unsigned sched_claim_helper_for_queued_locked(struct run_queue *rq)
{
    unsigned cpu = CPU_MAX;
    for (struct policy_entity *e = rq->policy->first; e && cpu == CPU_MAX; e = policy_next_of(rq->policy, e)) {
        if (e->movable)
            cpu = sched_claim_helper_locked(rq, e->affinity);
    }
    return cpu;
}

/* Sum of all claims made, or 0 if some CPU has been claimed and has not finished its look. */
static uint64_t claims_all_served(void)
{
    uint64_t sum = 1;
    for (unsigned i = 0; i < atomic_load_relaxed(&machine.cpu_count); i++) {
        if (!bitmap_test(machine.online.bits, i))
            continue;
        uint64_t served = atomic_load_relaxed(&run_queues[i]->claims_served);
        if (atomic_load_relaxed(&run_queues[i]->claims) != served)
            return 0;
        sum += served;
    }
    return sum;
}

static bool work_on(unsigned victim, unsigned cpu)
{
    struct run_queue *v = run_queues[victim];
    if (victim == cpu || !bitmap_test(machine.online.bits, victim) || atomic_load_relaxed(&v->policy->load) < 2)
        return false;
    spin_lock(&v->lock);
    bool found = policy_steal_candidate(v->policy, cpu);
    spin_unlock(&v->lock);
    return found;
}

/* Work for an idle CPU that nobody is on the way to. Every claim made before the first sum has been served
 * and none was made since, so the work seen in between has no claim: whoever queued it should have seen our
 * idle bit, or we should have seen its overload. */
bool sched_unclaimed_work_for(unsigned cpu)
{
    uint64_t claims = claims_all_served();
    barrier_full();
    bool found = false;
    for (unsigned i = 0; claims && !found && i < atomic_load_relaxed(&machine.cpu_count); i++)
        found = work_on(i, cpu);
    barrier_full();
    return found && claims == claims_all_served();
}

/* ---- push ---- */

#define BALANCE_TARGETS 32 /* in one pass; what is left goes in the next one */

static struct thread *take_for(struct run_queue *rq, const struct policy_move *move, uint64_t now_ns)
{
    struct thread *taken = NULL;
    for (unsigned n = move->count; n; n--) {
        struct policy_entity *e = policy_push_candidate(rq->policy, move->cpu, now_ns);
        if (!e)
            break;
        policy_dequeue(rq->policy, e);
        struct thread *t = thread_of(e);
        e->last_moved_ns = now_ns;
        t->migrations++;
        atomic_store_relaxed(&t->cpu, move->cpu);
        t->move_next = taken;
        taken = t;
    }
    return taken;
}

void sched_balance(struct run_queue *rq, uint64_t now_ns)
{
    struct policy_move moves[BALANCE_TARGETS];
    struct thread *taken[BALANCE_TARGETS];
    unsigned moved = 0, n = policy_balance_plan(&machine, rq->id, moves, BALANCE_TARGETS);
    rq->n.balance_passes++;
    if (n) {
        spin_lock(&rq->lock);
        for (unsigned i = 0; i < n; i++)
            taken[i] = take_for(rq, &moves[i], now_ns);
        rq_publish_locked(rq, now_ns);
        spin_unlock(&rq->lock);
        for (unsigned i = 0; i < n; i++) {
            while (taken[i]) {
                struct thread *t = taken[i];
                taken[i] = t->move_next;
                moved++;
                sched_enqueue_anywhere(t, moves[i].cpu, POLICY_MOVE);
            }
        }
    }
    rq->n.balance_moves += moved;
    rq->balance_interval_ns = policy_next_balance_ns(machine.params, rq->balance_interval_ns, moved);
}

/* ---- stall detector ---- */

#define LONG_WAIT_NS    (20 * NSEC_PER_SEC)
#define LONG_WAIT_LOOKS 64 /* looks, one each 64 ticks of this CPU, so its own run time and not the host's */

static bool waits_long(struct run_queue *rq, uint64_t now_ns)
{
    bool found = false;
    spin_lock(&rq->lock);
    for (struct policy_entity *e = rq->policy->first; e && !found; e = policy_next_of(rq->policy, e))
        found = now_ns > e->last_ran_ns && now_ns - e->last_ran_ns > LONG_WAIT_NS;
    spin_unlock(&rq->lock);
    return found;
}

/* On the tick of a CPU with waiting threads. A halted CPU whose idle bit nobody has claimed, beside work
 * that has been there since before the last tick: the protocol has failed. Counted, and only then cured. */
void sched_detect_stall(struct run_queue *rq, uint64_t now_ns)
{
    unsigned suspect = CPU_MAX;
    if (machine.params->idle_pull && atomic_load_relaxed(&rq->overloaded)) {
        for (unsigned cpu = 0; cpu < machine.cpu_count && suspect == CPU_MAX; cpu++) {
            if (!bitmap_test(machine.idle.bits, cpu) || !atomic_load_relaxed(&run_queues[cpu]->halted))
                continue;
            spin_lock(&rq->lock);
            if (policy_steal_candidate(rq->policy, cpu))
                suspect = cpu;
            spin_unlock(&rq->lock);
        }
    }
    if (suspect != CPU_MAX) {
        uint64_t halts = atomic_load_relaxed(&run_queues[suspect]->n.halts);
        if (suspect == rq->suspect_cpu && halts == rq->suspect_halts && rq->overloaded_since_ns < rq->suspect_ns) {
            /* The one that was claimed may be a virtual CPU that the host does not run: then another one is
             * the cure, and nothing is wrong here. */
            rq->n.stalls += sched_unclaimed_work_for(suspect) && bitmap_test(machine.idle.bits, suspect);
            spin_lock(&rq->lock);
            unsigned helper = sched_claim_helper_locked(rq, NULL);
            spin_unlock(&rq->lock);
            if (helper != CPU_MAX)
                sched_kick(helper);
        }
        rq->suspect_halts = halts;
        rq->suspect_ns = now_ns;
    }
    rq->suspect_cpu = suspect;
    if (rq->n.ticks % 64)
        return;
    rq->long_waits = waits_long(rq, now_ns) ? rq->long_waits + 1 : 0;
    if (rq->long_waits == LONG_WAIT_LOOKS)
        sched_dump("a runnable thread waits");
}
