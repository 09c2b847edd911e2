/* What the files of sched/ share. */
#ifndef SCHED_PRIVATE_H
#define SCHED_PRIVATE_H
#include <weir/sched.h>
#include <weir/policy_queue.h>

struct sched_counters {
    uint64_t switches;      /* to another thread, idle included */
    uint64_t wakes;         /* parked threads that this CPU queued somewhere */
    uint64_t deferred;      /* of these: queued here when their waker slept */
    uint64_t kicks;         /* reschedule IPIs sent */
    uint64_t kicks_saved;   /* not sent, since the target was going to look anyway */
    uint64_t steals;        /* threads pulled here while idle */
    uint64_t steals_failed; /* victims that had nothing for us when looked at under the lock */
    uint64_t balance_passes, balance_moves;
    uint64_t nudges;        /* idle CPUs told to pull */
    uint64_t ticks, timers;
    uint64_t halts;
    uint64_t halts_with_work; /* decisions to halt although work was there to be taken: must stay 0 */
    uint64_t stalls;        /* stealable work found beside a halted, unclaimed CPU a tick later: must stay 0 */
    uint64_t idle_ns;
};

/* Key: I immutable, r lock, o the CPU itself with interrupts off, a atomic.
 * Lock order: wait queue or mutex lock > r. Never two r at once. Taken with interrupts off. */
struct run_queue {
    spinlock_t lock;
    unsigned id;                /* I */
    struct cpu *cpu;            /* I */
    struct policy_cpu *policy;  /* I the pointer */
    struct thread *idle;        /* I */
    struct thread *curr;        /* r */
    struct thread *prev;        /* o the thread being switched from, until finish_switch */
    struct thread *push;        /* o prev, or what prev woke: it cannot stay here, to be placed once prev is off its stack */
    bool ticking;               /* r the tick is armed: others wait, or did a moment ago */
    bool turn_over;             /* r curr's turn ended while the queue was charged by another CPU */
    bool overloaded;            /* r what the machine's overloaded bit shows */
    bool polling;               /* a idle, and looks at need_resched before it halts: no IPI needed */
    bool halted;                /* a has decided to halt and has not woken since */
    uint64_t claims;            /* a times this CPU was claimed to pull */
    uint64_t claims_served;     /* a value of claims before its last complete look */
    uint64_t charged_ns;        /* r curr has been charged up to here */
    uint64_t overloaded_since_ns; /* r */
    uint64_t balance_interval_ns, next_balance_ns; /* o */
    unsigned suspect_cpu;       /* o a halted CPU seen beside work at the last tick */
    uint64_t suspect_halts, suspect_ns; /* o */
    unsigned long_waits;        /* o consecutive looks that found a thread waiting for long */
    struct sched_counters n;    /* o, except what is changed under r */
} __cacheline;

extern struct policy_machine machine;
extern struct run_queue *run_queues[CPU_MAX];

static inline struct thread *thread_of(struct policy_entity *e) { return container_of(e, struct thread, entity); }

/* sched.c */
void sched_kick(unsigned cpu);              /* set need_resched; IPI if needed. Any context */
void sched_enqueue_anywhere(struct thread *t, unsigned target, enum policy_enqueue_kind kind);
/* balance.c: interrupts off, no run-queue lock held. */
bool sched_steal(struct run_queue *rq);
void sched_balance(struct run_queue *rq, uint64_t now_ns);
/* A CPU to kick, so that it pulls from rq, or CPU_MAX. rq->lock held. */
unsigned sched_claim_helper_locked(struct run_queue *rq, const struct cpumask *affinity);
unsigned sched_claim_helper_for_queued_locked(struct run_queue *rq);
void sched_detect_stall(struct run_queue *rq, uint64_t now_ns);
bool sched_unclaimed_work_for(unsigned cpu); /* work that the idle cpu could take and nobody is on the way to; takes locks */
/* sched.c helpers for balance.c: lock held. */
void rq_publish_locked(struct run_queue *rq, uint64_t now_ns);
/* thread.c */
void thread_release_dead(struct thread *t); /* interrupts off, t off its stack for ever */
struct thread *thread_create_idle(unsigned cpu);
/* timer.c: interrupts off, this CPU. */
void timer_cpu_init(unsigned cpu);
void timer_set_tick(uint64_t deadline_ns);  /* an earlier one that is armed stays */
void timer_before_halt(void);               /* exactly the next timer, or none */
void sched_tick(uint64_t now_ns);           /* called by the timer interrupt when the tick is due */

#endif
