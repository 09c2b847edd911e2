/*
 * Scheduling policy: pure functions over plain structs, no hardware, no locks, compiled into the
 * kernel (sched/) and into the simulator (tests/sim).
 *
 * Each CPU has a policy_cpu: waiting entities ordered by virtual deadline, and the entity
 * that runs. An entity gets virtual time as it runs, at a rate inverse to its weight; when it has used
 * a slice its deadline moves a slice further. The earliest deadline runs next. An entity that is in no
 * queue keeps its virtual time relative to the queue it left (`lag`), so it can enter any other.
 *
 * Locks: the caller holds the run queue's lock around each call that takes a policy_cpu it changes.
 * The members marked `a`, and the masks of policy_machine, are read and changed without it.
 */
#ifndef WEIR_POLICY_H
#define WEIR_POLICY_H
#include <weir/bitmap.h>
#include <weir/rbtree.h>
#include <weir/compiler.h>

#define POLICY_SLICE_NS        (3 * NSEC_PER_MSEC) /* a turn at nice 0 while others wait */
#define POLICY_WAKE_CREDIT_NS  (POLICY_SLICE_NS / 2) /* how far sleep may put an entity ahead */
#define POLICY_PREEMPT_GAIN_NS (NSEC_PER_MSEC / 2) /* a waker preempts if its deadline is this much earlier */
#define POLICY_MOVE_REST_NS    (2 * NSEC_PER_MSEC) /* balance leaves a thread alone for so long after a move */
#define POLICY_NICE_MIN (-20)
#define POLICY_NICE_MAX 19

/* What the policy keeps for each thread. Key: r the lock of the CPU it is on. */
struct policy_entity {
    struct rb_node node;             /* r in the tree, by virtual deadline */
    uint64_t vruntime, deadline;     /* r virtual ns; valid while queued or running */
    int64_t lag;                     /* r vruntime less the queue's floor; valid while neither */
    uint64_t slice_left;             /* r deadline less vruntime; valid while neither */
    const struct cpumask *affinity;  /* r NULL = every CPU */
    uint32_t weight;                 /* r from nice; 1024 = nice 0 */
    int8_t nice;                     /* r */
    bool queued;                     /* r waits in a queue */
    bool movable;                    /* r counted in the queue's `movable` */
    uint64_t last_ran_ns;            /* r when it last left the CPU or was queued first */
    uint64_t last_moved_ns;          /* r when pull or balance last moved it */
};

/* A thread that lets the one it woke last run here when it sleeps (thread_defer_wakes). That is cheap as long as its CPU is
 * free again before it is needed next. One that finds itself elsewhere was driven out by what it left behind: it places
 * its wake-ups at once for a while. */
#define POLICY_DEFER_REST 16 /* wake-ups */
struct policy_deferral {
    uint16_t cpu;  /* where it last looked */
    uint16_t rest; /* wake-ups to go */
};

/* The policy's part of a run queue. */
struct policy_cpu {
    struct policy_entity *first;     /* r whose deadline is the earliest of those that wait */
    struct rb_tree tree;             /* r the others */
    struct policy_entity *running;   /* r NULL = the idle thread runs */
    uint64_t floor;                  /* r no runnable entity is far below it; never goes back */
    uint32_t queued;                 /* r first and tree */
    uint32_t movable;                /* r of those, entities allowed on more than this CPU */
    uint32_t load;                   /* a queued + running; idle is not load */
    unsigned id;                     /* I */
} __cacheline;

/* What a policy is made of; `sched.policy=NAME` chooses. */
struct policy_params {
    const char *name;
    bool spread_new;      /* new threads go to an idle CPU; else they stay on their creator's */
    bool wake_idle;       /* a woken thread whose CPU is busy goes to an idle CPU; else it stays */
    bool idle_pull;       /* an idle CPU takes waiting threads before it halts */
    bool drain;           /* balance moves the whole surplus; else one thread a pass */
    uint64_t balance_ns;  /* first interval of a busy CPU's balance pass */
    uint64_t balance_max_ns; /* it doubles up to this while passes find nothing to move */
};
extern const struct policy_params policy_weir;     /* the default */
extern const struct policy_params policy_baseline; /* creator's CPU, last CPU, one thread each 100 ms */
extern const struct policy_params policy_drain10;  /* baseline, but each 10 ms and draining */
const struct policy_params *policy_by_name(const char *name); /* NULL if there is none */

/* All CPUs, as placement sees them. Key: I immutable, a atomic. */
struct policy_machine {
    const struct policy_params *params; /* I */
    unsigned cpu_count;                 /* a ids below it are looked at */
    struct policy_cpu *cpu;             /* I array of CPU_MAX */
    uint32_t rotor;                     /* a start of the next search for a new thread's CPU */
    struct cpumask online __cacheline;  /* a */
    struct cpumask idle __cacheline;    /* a idle and not claimed; whoever clears a bit owes that CPU work or a look */
    struct cpumask overloaded __cacheline; /* a has a waiting thread that another CPU could run at once */
};

void policy_machine_init(struct policy_machine *m, const struct policy_params *params, struct policy_cpu *cpus);
void policy_cpu_init(struct policy_cpu *c, unsigned id);
void policy_entity_init(struct policy_entity *e, int nice);
uint32_t policy_weight(int nice); /* clamps */

/* ---- one CPU's queue ---- */
/* Queueing, picking and charging: weir/policy_queue.h. */
void policy_tree_add(struct policy_cpu *c, struct policy_entity *e);    /* beside a first one */
void policy_tree_remove(struct policy_cpu *c, struct policy_entity *e); /* of two or more, first included */
bool policy_is_movable(const struct policy_cpu *c, const struct policy_entity *e); /* its affinity, not NULL, allows other CPUs */
/* Give up the rest of the turn. */
void policy_yield(struct policy_cpu *c);
/* Change the weight, wherever e is: c is the CPU it belongs to. */
void policy_set_nice(struct policy_cpu *c, struct policy_entity *e, int nice);
/* A thread waits here that another CPU could run at once. A lone thread, waiting for its own CPU to
 * notice it, does not count: it must not be moved. */
static inline bool policy_is_overloaded(const struct policy_cpu *c)
{
    return c->movable && c->queued + (c->running != NULL) >= 2;
}
static inline bool policy_allowed(const struct policy_entity *e, unsigned cpu)
{
    return !e->affinity || bitmap_test(e->affinity->bits, cpu);
}

/* ---- placement: no lock; each returns a CPU in affinity that is online, as long as policy_servable.
 * If that CPU was idle it has been claimed: the caller must queue something there, or make it look. ---- */
bool policy_servable(const struct policy_machine *m, const struct cpumask *affinity); /* some CPU of the mask is up */
/* Claim an idle CPU allowed by affinity (NULL = any), searching from `start` upwards and round.
 * CPU_MAX if none. One atomic when it succeeds at first try; O(words of the mask). */
unsigned policy_claim_idle(struct policy_machine *m, unsigned start, const struct cpumask *affinity);
unsigned policy_place_new(struct policy_machine *m, unsigned creator, const struct cpumask *affinity);
/* Some CPU idles, at a glance. */
static inline bool policy_any_idle(const struct policy_machine *m)
{
    uint64_t any = atomic_load_relaxed(&m->idle.bits[0]);
    for (unsigned i = 1; i * 64 < atomic_load_relaxed(&m->cpu_count); i++)
        any |= atomic_load_relaxed(&m->idle.bits[i]);
    return any;
}
static inline bool policy_usable(const struct policy_machine *m, unsigned cpu, const struct cpumask *affinity)
{
    return bitmap_test(m->online.bits, cpu) && (!affinity || bitmap_test(affinity->bits, cpu));
}
unsigned policy_search_wake(struct policy_machine *m, unsigned last, unsigned waker, const struct cpumask *affinity);
static inline unsigned policy_place_wake(struct policy_machine *m, unsigned last, unsigned waker,
                                         const struct cpumask *affinity)
{
    if (likely(policy_usable(m, last, affinity)) && !policy_any_idle(m))
        return last;
    return policy_search_wake(m, last, waker, affinity);
}

/* ---- pulling ---- */
/* Most looks of a CPU that goes idle end here. */
static inline bool policy_any_overloaded(const struct policy_machine *m)
{
    uint64_t any = atomic_load_relaxed(&m->overloaded.bits[0]);
    for (unsigned i = 1; i * 64 < atomic_load_relaxed(&m->cpu_count); i++)
        any |= atomic_load_relaxed(&m->overloaded.bits[i]);
    return any;
}
/* Next overloaded CPU to look at, from `start` upwards and round, `tried` skipped; CPU_MAX if none. */
unsigned policy_find_victim(const struct policy_machine *m, const struct cpumask *tried, unsigned start);
/* How many threads an idle CPU takes from this victim: one while other CPUs idle, else half of the waiting. */
unsigned policy_steal_count(const struct policy_machine *m, const struct policy_cpu *victim);
/* The waiting entity that `thief` may take, first deadline first, or NULL. Leaves a lone thread alone. */
struct policy_entity *policy_steal_candidate(const struct policy_cpu *victim, unsigned thief);

/* ---- balance ---- */
struct policy_move {
    uint16_t cpu, count;
};
/* What CPU `me` should push where, from a snapshot of all loads, so that no difference of two or more
 * between it and another is left. Returns the number of entries written, at most max. */
unsigned policy_balance_plan(struct policy_machine *m, unsigned me, struct policy_move *moves, unsigned max);
/* The waiting entity to push to `target`: the last to run here, allowed there, not moved lately. NULL if none. */
struct policy_entity *policy_push_candidate(const struct policy_cpu *c, unsigned target, uint64_t now_ns);
/* Interval to the next pass after one that moved `moved` threads. */
uint64_t policy_next_balance_ns(const struct policy_params *p, uint64_t interval_ns, unsigned moved);
#endif
