/*
 * Threads, wait queues, mutexes.
 *
 * A thread is made by thread_create (kernel) or thread_create_user (ring 3), runs after
 * thread_start, and ends in thread_exit; its memory goes when the last reference does
 * (thread_put; thread_create returns one to the caller, the running thread holds another).
 */
#ifndef WEIR_SCHED_H
#define WEIR_SCHED_H
#include <weir/spinlock.h>
#include <weir/list.h>
#include <weir/rbtree.h>
#include <weir/time.h>
#include <weir/trap.h>
#include <weir/policy.h>

#define KSTACK_SIZE 16384UL

enum thread_state {
    THREAD_RUNNABLE,        /* running or in a run queue */
    THREAD_UNINTERRUPTIBLE, /* woken by its event only */
    THREAD_KILLABLE,        /* and by thread_kill */
    THREAD_INTERRUPTIBLE,   /* and by thread_interrupt */
    THREAD_DEAD,
    THREAD_NEW,
};
/* Or'ed into a sleeping state by schedule(), under the run queue's lock, once the thread is off its
 * queue: from then on the waker must queue it. Without it, the thread is still on its way to schedule()
 * and sees the wake-up there. One word, so each wake-up falls on exactly one side. */
#define THREAD_PARKED 0x100u
enum thread_pending { THREAD_SIGNAL = 1, THREAD_KILL = 2 };

/* Key: I immutable, o the thread itself (or its creator before start), r the lock of its run queue,
 * a atomic. */
struct thread {
    uint64_t rsp;                 /* r saved stack pointer (arch switch) */
    uint64_t kstack_top;          /* I */
    void *kstack;                 /* I */
    uint64_t fs_base;             /* o */
    void *fpu;                    /* o XSAVE area; NULL for kernel threads */
    struct pagetable *pagetable;  /* o NULL for kernel threads */
    void *task;                   /* o core/linux: struct task; NULL for kernel threads */
    struct policy_entity entity;  /* r */
    uint32_t state;               /* a enum thread_state; written with `r` or by the thread itself */
    uint32_t pending;             /* a enum thread_pending */
    uint32_t refcount;            /* a */
    bool on_cpu;                  /* a still on its stack: a waker waits for false before moving it */
    bool defers_wakes;            /* o see thread_defer_wakes */
    struct policy_deferral deferral; /* o */
    struct thread *deferred;      /* o woken by this thread, in no queue yet: runs here when this thread sleeps */
    unsigned cpu;                 /* r where it runs, waits or last ran; the waker's while parked */
    struct cpumask affinity;      /* r */
    uint64_t runtime_ns;          /* r guest run time */
    uint64_t switches, migrations;/* r */
    struct thread *move_next;     /* whoever moves it: list of threads between two queues */
    struct list all_link;         /* the thread list's lock */
    int tid;                      /* I unique */
    char name[16];                /* o */
    void (*fn)(void *);           /* I */
    void *arg;                    /* I */
};

void sched_init(void);                 /* boot CPU, before any thread */
void sched_cpu_start(void) __noreturn; /* each other CPU: becomes its idle thread */

/* NULL without memory. Not started. Thread context. */
struct thread *thread_create(const char *name, void (*fn)(void *), void *arg) __must_check;
/* First runs by returning to ring 3 with *regs. Takes over fpu (from fpu_alloc). */
struct thread *thread_create_user(const char *name, const struct trapframe *regs, struct pagetable *pt,
                                  void *fpu, uint64_t fs_base, void *task) __must_check;
void thread_start(struct thread *t);   /* placed on an idle CPU if there is one. Any context */
__noreturn void thread_exit(void);
void thread_get(struct thread *t);
void thread_put(struct thread *t);
void thread_set_nice(struct thread *t, int nice);
void thread_set_affinity(struct thread *t, const struct cpumask *mask);
/* Mark pending and wake if its sleep allows that. Any context. */
void thread_interrupt(struct thread *t); /* THREAD_SIGNAL */
void thread_kill(struct thread *t);      /* THREAD_KILL; also wakes interruptible */
/* What it is doing, for display: enum thread_state without the parked mark. */
static inline enum thread_state thread_state_of(struct thread *t)
{
    return (enum thread_state)(atomic_load_relaxed(&t->state) & ~THREAD_PARKED);
}
static inline bool thread_signal_pending(struct thread *t) { return atomic_load_relaxed(&t->pending) != 0; }
/* Call fn for every thread with the list lock held (must not block): dumps and gdb. */
void thread_for_each(void (*fn)(struct thread *, void *), void *arg);

void schedule(void);                   /* thread context; blocks if state was set to a sleep */
void thread_yield(void);
static inline void cond_resched(void)
{
    if (unlikely(atomic_load_relaxed(&this_cpu()->need_resched)))
        thread_yield();
}
/* From now on the thread that the caller woke last, in thread context, is placed only when the caller sleeps (and then
 * here: the CPU is awake and about to be free, any other would have to be woken), wakes another, yields, or flushes. For a
 * thread that wakes others as the last thing before it sleeps. It must flush before it works on. Thread context. */
void thread_defer_wakes(void);
void thread_flush_wakes(void);
/* Make runnable if asleep. True if it was. Any context. Pairs with the state store in prepare_wait:
 * the waker changes the condition, then full barrier, then looks at the state. */
bool thread_wake(struct thread *t);

void sleep_until_ns(uint64_t deadline_ns);                            /* uninterruptible */
int sleep_until_ns_interruptible(uint64_t deadline_ns) __must_check;  /* 0 or -EINTR */

/* ---- wait queues ---- */
struct wait_queue {
    spinlock_t lock;   /* taken with interrupts off; order: before run-queue locks; never two at once
                          except an epoll's after a source's */
    struct list waiters;
};
#define WAIT_QUEUE_INIT(name) { SPINLOCK_INIT, LIST_INIT((name).waiters) }
struct waiter {
    struct list link;           /* queue's lock */
    struct wait_queue *queue;   /* queue's lock; NULL when not queued */
    /* Called with the queue's lock held and interrupts off; true if it consumed an exclusive wake-up.
     * May take its own waiter off the queue (list_del, queue = NULL) and no other.
     * The default (thread waiter) wakes `thread`; it consumes the wake-up only if the thread slept. */
    bool (*fn)(struct waiter *w, unsigned events);
    struct thread *thread;
    bool exclusive;
};
void wait_queue_init(struct wait_queue *q);
void waiter_init(struct waiter *w, bool exclusive);              /* for the current thread */
void waiter_init_fn(struct waiter *w, bool (*fn)(struct waiter *, unsigned));
void wait_queue_add(struct wait_queue *q, struct waiter *w);     /* exclusive ones at the tail */
void wait_queue_remove(struct wait_queue *q, struct waiter *w);  /* harmless if not queued */
/* Queue w and set the current thread's state; then test the condition; then schedule(). */
void prepare_wait(struct wait_queue *q, struct waiter *w, enum thread_state state);
void finish_wait(struct wait_queue *q, struct waiter *w);        /* state back to runnable */
/* events is handed to each waiter's fn; wake_all and wake_one pass ~0u: anything may have changed. */
void wake_all(struct wait_queue *q);                             /* any context */
void wake_one(struct wait_queue *q);                             /* all non-exclusive, one exclusive */
void wake_events(struct wait_queue *q, unsigned events, unsigned exclusive_count);
static inline bool wait_queue_active(struct wait_queue *q)
{
    barrier_full(); /* the caller's change of the condition is visible before the list is read */
    return !list_empty(&q->waiters);
}

/* One pass of a wait loop after prepare_wait and a false condition: sleep, at most to deadline_ns.
 * 0 = look again, -EINTR = signal or kill pending (as state allows), -ETIMEDOUT. */
int wait_schedule(enum thread_state state, uint64_t deadline_ns) __must_check;

#define wait_event_state(q, cond, state, deadline_ns) \
    ({ \
        int wait_result_ = 0; \
        if (!(cond)) { \
            /* Once: `now + limit` must not move on with each wake-up. */ \
            const uint64_t wait_deadline_ = (deadline_ns); \
            struct waiter wait_waiter_; \
            waiter_init(&wait_waiter_, false); \
            for (;;) { \
                prepare_wait((q), &wait_waiter_, (state)); \
                if (cond) \
                    break; \
                wait_result_ = wait_schedule((state), wait_deadline_); \
                if (cond) { \
                    wait_result_ = 0; \
                    break; \
                } \
                if (wait_result_) \
                    break; \
            } \
            finish_wait((q), &wait_waiter_); \
        } \
        wait_result_; \
    })
#define wait_event(q, cond)                ((void)wait_event_state(q, cond, THREAD_UNINTERRUPTIBLE, TIME_FOREVER))
#define wait_event_interruptible(q, cond)  wait_event_state(q, cond, THREAD_INTERRUPTIBLE, TIME_FOREVER)
#define wait_event_killable(q, cond)       wait_event_state(q, cond, THREAD_KILLABLE, TIME_FOREVER)
#define wait_event_timeout(q, cond, deadline_ns) wait_event_state(q, cond, THREAD_UNINTERRUPTIBLE, deadline_ns)
#define wait_event_interruptible_timeout(q, cond, deadline_ns) \
    wait_event_state(q, cond, THREAD_INTERRUPTIBLE, deadline_ns)

/* ---- sleeping locks: thread context only. Memory of a mutex or rw_mutex may be freed only when no
 * unlock can still be running on it (a reference count, not the lock itself, must say so). ---- */
struct mutex {
    uint64_t owner;         /* a struct thread * and MUTEX_FLAGS; 0 = free, nobody waits */
    spinlock_t lock;        /* guards waiters, and every change of owner while somebody waits */
    struct list waiters;
};
#define MUTEX_FLAGS 3UL
#define MUTEX_INIT(name) { 0, SPINLOCK_INIT, LIST_INIT((name).waiters) }
void mutex_init(struct mutex *m);
void mutex_lock(struct mutex *m); /* spins briefly while the owner runs, then sleeps (uninterruptible) */
bool mutex_try_lock(struct mutex *m);
void mutex_unlock(struct mutex *m);
static inline bool mutex_is_mine(struct mutex *m);

/* Many readers or one writer; first come, first served, so nobody starves: whoever comes while others
 * wait, waits too. The lock is handed to the first waiter (and to the readers right behind it). */
struct rw_mutex {
    spinlock_t lock;
    int readers;            /* lock; -1 = writer */
    struct list waiters;    /* lock */
};
#define RW_MUTEX_INIT(name) { SPINLOCK_INIT, 0, LIST_INIT((name).waiters) }
void rw_mutex_init(struct rw_mutex *m);
void rw_read_lock(struct rw_mutex *m);
void rw_read_unlock(struct rw_mutex *m);
void rw_write_lock(struct rw_mutex *m);
void rw_write_unlock(struct rw_mutex *m);

struct completion {
    struct wait_queue wait;
    bool done;              /* wait.lock */
};
void completion_init(struct completion *c);
void completion_complete(struct completion *c);  /* any context; c may be gone once the waiter returns */
void completion_wait(struct completion *c);      /* uninterruptible */

#if !__STDC_HOSTED__
static inline bool mutex_is_mine(struct mutex *m) { return (atomic_load_relaxed(&m->owner) & ~MUTEX_FLAGS) == (uint64_t)current; }
#endif

/* ---- what can be seen ---- */
/* /proc/weir/sched: counters of each CPU. Returns characters written. Any context. */
size_t sched_print_counters(char *buf, size_t size);
/* Every CPU, run queue and thread on the console, with backtraces of threads that are off CPU. Takes no lock
 * but that of the list of threads (a leaf, held for a few instructions elsewhere). Any context. */
void sched_dump(const char *why);
struct sched_totals { /* sums over all CPUs since boot */
    uint64_t switches, wakes, deferred, kicks, kicks_saved, migrations, steals, balance_moves, nudges, ticks, halts,
        halts_with_work, stalls;
};
void sched_totals(struct sched_totals *out);

/* ---- hooks that arch calls ---- */
void sched_timer_interrupt(void);  /* the one-shot of this CPU fired; interrupts off */
void sched_switched_in(void);      /* first code of a new thread: finishes the switch */
/* ---- arch primitives for sched ---- */
void arch_thread_init(struct thread *t, void (*entry)(void));           /* first switch starts entry() on its stack */
void arch_thread_init_user(struct thread *t, const struct trapframe *regs); /* ... sched_switched_in, then ring 3 */
/* Save prev, continue next: stack, FPU, FS base, page table, TSS.rsp0, gs current. Interrupts off.
 * Returns (in prev's life, later) the thread that ran before. */
struct thread *arch_switch(struct thread *prev, struct thread *next);
void arch_backtrace(struct thread *t); /* NULL = here; prints symbolised */
#endif
