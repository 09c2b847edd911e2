/*
 * One-shot timers: a tree for each CPU, by deadline, and that CPU's one-shot event programmed lazily.
 *
 * A timer belongs to the base of its `cpu`, which changes only under that base's lock. While its
 * call-back runs (base->running) it stays with that base, so timer_cancel_sync knows where to look; the
 * base looks at its tree again after each call-back, so a re-arm from anywhere is not missed.
 */
#include "sched_private.h"
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>

/* Key: t lock, o its CPU with interrupts off. Interrupts are off while lock is held. */
struct timer_base {
    spinlock_t lock;
    struct rb_tree tree;       /* t */
    uint64_t first_ns;         /* t deadline of the first timer, TIME_FOREVER if none */
    struct timer *running;     /* t call-back under way; compared, never followed */
    uint64_t tick_ns;          /* o scheduler's tick, TIME_FOREVER = none */
    uint64_t programmed_ns;    /* o what the one-shot is set to */
} __cacheline;

static struct timer_base *bases[CPU_MAX];

enum { TIMER_IDLE, TIMER_ARMED };

void timer_cpu_init(unsigned cpu)
{
    struct timer_base *b = kzalloc(sizeof(*b));
    if (!b)
        panic("no memory for the timers of CPU %u", cpu);
    b->first_ns = b->tick_ns = b->programmed_ns = TIME_FOREVER;
    bases[cpu] = b;
}

static struct timer_base *base_of_this_cpu(void)
{
    return bases[this_cpu()->id];
}

static struct timer *timer_of(struct rb_node *n)
{
    return container_of(n, struct timer, node);
}

/* Lock the base that t belongs to. */
static struct timer_base *lock_base(struct timer *t)
{
    for (;;) {
        unsigned cpu = atomic_load_relaxed(&t->cpu);
        struct timer_base *b = bases[cpu];
        spin_lock(&b->lock);
        if (atomic_load_relaxed(&t->cpu) == cpu)
            return b;
        spin_unlock(&b->lock);
    }
}

static void first_update_locked(struct timer_base *b)
{
    struct rb_node *n = rb_first(&b->tree);
    b->first_ns = n ? timer_of(n)->deadline_ns : TIME_FOREVER;
}

static bool remove_locked(struct timer_base *b, struct timer *t)
{
    if (t->state != TIMER_ARMED)
        return false;
    rb_remove(&b->tree, &t->node);
    t->state = TIMER_IDLE;
    if (t->deadline_ns == b->first_ns)
        first_update_locked(b);
    return true;
}

static void insert_locked(struct timer_base *b, struct timer *t, uint64_t deadline_ns)
{
    struct rb_node **link = &b->tree.root, *parent = NULL;
    t->deadline_ns = deadline_ns;
    while (*link) {
        parent = *link;
        link = deadline_ns < timer_of(parent)->deadline_ns ? &parent->left : &parent->right;
    }
    rb_insert(&b->tree, &t->node, parent, link);
    t->state = TIMER_ARMED;
    b->first_ns = MIN(b->first_ns, deadline_ns);
}

/* Program this CPU's event for `want` if it would otherwise come later. An event that comes too early is
 * cheap; setting it anew on every switch is not. */
static void program_at_most(struct timer_base *b, uint64_t want_ns)
{
    if (want_ns < b->programmed_ns) {
        b->programmed_ns = want_ns;
        clock_event_arm(want_ns);
    }
}

void timer_init(struct timer *t, void (*fn)(struct timer *))
{
    *t = (struct timer){ .fn = fn, .cpu = this_cpu()->id };
}

void timer_arm(struct timer *t, uint64_t deadline_ns)
{
    uint64_t flags = irq_save();
    struct timer_base *mine = base_of_this_cpu(), *b;
    for (;;) {
        b = lock_base(t);
        remove_locked(b, t);
        if (b == mine || b->running == t)
            break;
        /* Ours from now on; whoever finds it between the two locks finds it idle. */
        atomic_store_relaxed(&t->cpu, this_cpu()->id);
        spin_unlock(&b->lock);
    }
    if (deadline_ns != TIME_FOREVER)
        insert_locked(b, t, deadline_ns);
    /* Another CPU's base is here only because it runs this timer's call-back; it looks again by itself. */
    if (b == mine)
        program_at_most(b, b->first_ns);
    spin_unlock_irqrestore(&b->lock, flags);
}

bool timer_cancel(struct timer *t)
{
    uint64_t flags = irq_save();
    struct timer_base *b = lock_base(t);
    bool armed = remove_locked(b, t);
    spin_unlock_irqrestore(&b->lock, flags);
    return armed;
}

void timer_cancel_sync(struct timer *t)
{
    for (;;) {
        uint64_t flags = irq_save();
        struct timer_base *b = lock_base(t);
        remove_locked(b, t); /* again in each round: the call-back may have re-armed it */
        bool running = b->running == t;
        spin_unlock_irqrestore(&b->lock, flags);
        if (!running)
            return;
        /* It runs on another CPU (on this one we would not be here), in interrupt context: soon over. */
        cpu_relax();
    }
}

void timer_set_tick(uint64_t deadline_ns)
{
    struct timer_base *b = base_of_this_cpu();
    b->tick_ns = MIN(b->tick_ns, deadline_ns);
    program_at_most(b, b->tick_ns);
}

void timer_before_halt(void)
{
    struct timer_base *b = base_of_this_cpu();
    b->tick_ns = TIME_FOREVER;
    spin_lock(&b->lock);
    uint64_t want = b->first_ns;
    spin_unlock(&b->lock);
    if (want != b->programmed_ns) {
        b->programmed_ns = want;
        clock_event_arm(want);
    }
}

/* Run what is due. Returns the next deadline. */
static uint64_t expire(struct timer_base *b)
{
    struct run_queue *rq = this_cpu()->rq;
    spin_lock(&b->lock);
    while (b->first_ns != TIME_FOREVER && b->first_ns <= clock_monotonic_ns()) {
        struct timer *t = timer_of(rb_first(&b->tree));
        void (*fn)(struct timer *) = t->fn;
        remove_locked(b, t);
        b->running = t;
        spin_unlock(&b->lock);
        rq->n.timers++;
        fn(t);
        spin_lock(&b->lock);
        b->running = NULL; /* t may be gone as soon as the lock is free */
    }
    uint64_t next = b->first_ns;
    spin_unlock(&b->lock);
    return next;
}

void sched_timer_interrupt(void)
{
    struct timer_base *b = base_of_this_cpu();
    b->programmed_ns = 0; /* program nothing until the end: see program_at_most */
    uint64_t now_ns = clock_monotonic_ns();
    if (b->tick_ns <= now_ns) {
        b->tick_ns = TIME_FOREVER;
        sched_tick(now_ns); /* sets the next one if it is needed */
    }
    uint64_t next_ns = expire(b);
    b->programmed_ns = TIME_FOREVER; /* the one-shot has fired */
    program_at_most(b, MIN(next_ns, b->tick_ns));
}

/* ---- sleeping until a time ---- */

struct sleeper {
    struct timer timer;
    struct thread *thread;
};

static void sleeper_wake(struct timer *t)
{
    thread_wake(container_of(t, struct sleeper, timer)->thread);
}

static __attribute__((noinline)) int schedule_until(uint64_t deadline_ns)
{
    if (deadline_ns <= clock_monotonic_ns())
        return -ETIMEDOUT;
    /* The state has been written before the timer can fire, so its wake-up counts even before schedule(). */
    struct sleeper s = { .thread = current };
    timer_init(&s.timer, sleeper_wake);
    timer_arm(&s.timer, deadline_ns);
    schedule();
    timer_cancel_sync(&s.timer);
    return 0;
}

int wait_schedule(enum thread_state state, uint64_t deadline_ns)
{
    uint32_t pending = atomic_load_relaxed(&current->pending);
    if (unlikely(pending) && (state == THREAD_INTERRUPTIBLE || (state == THREAD_KILLABLE && (pending & THREAD_KILL))))
        return -EINTR;
    if (deadline_ns != TIME_FOREVER)
        return schedule_until(deadline_ns);
    schedule();
    return 0;
}

static int sleep_until(enum thread_state state, uint64_t deadline_ns)
{
    int result;
    do {
        atomic_exchange(&current->state, state); /* full barrier: before pending bits are read */
        result = wait_schedule(state, deadline_ns);
    } while (!result);
    atomic_store_relaxed(&current->state, THREAD_RUNNABLE);
    return result == -ETIMEDOUT ? 0 : result;
}

void sleep_until_ns(uint64_t deadline_ns)
{
    int result = sleep_until(THREAD_UNINTERRUPTIBLE, deadline_ns);
    assert(!result);
}

int sleep_until_ns_interruptible(uint64_t deadline_ns)
{
    return sleep_until(THREAD_INTERRUPTIBLE, deadline_ns);
}
