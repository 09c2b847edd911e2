/*
 * Mutex, reader-writer mutex, completion.
 *
 * The mutex is handed over in one of two ways. Normally unlock frees it and wakes the first waiter, and
 * whoever comes first has it: were it always given to the sleeper, it would lie idle until that one's
 * virtual CPU runs, and everyone would queue behind that. But a waiter that has been woken once and found
 * it taken asks for it (MUTEX_HANDOFF), and the next unlock gives it to that one: so nobody starves.
 */
#include <weir/sched.h>
#include <weir/printk.h>
#include <weir/string.h>

#define MUTEX_WAITERS 1UL /* unlock must look at the list */
#define MUTEX_HANDOFF 2UL /* unlock must give it to the first waiter; nobody else may take it */
#define MUTEX_SPINS   200 /* looks at the owner, with a pause each: a few microseconds, less than a sleep costs */

struct mutex_waiter {
    struct list link;
    struct thread *thread;
};

static struct thread *owner_of(uint64_t word)
{
    return (struct thread *)(word & ~MUTEX_FLAGS);
}

void mutex_init(struct mutex *m)
{
    m->owner = 0;
    spin_init(&m->lock);
    list_init(&m->waiters);
}

bool mutex_try_lock(struct mutex *m)
{
    uint64_t word = atomic_load_relaxed(&m->owner);
    while (!owner_of(word) && !(word & MUTEX_HANDOFF)) {
        /* Keeps MUTEX_WAITERS. Full barrier: the critical section stays behind it. */
        if (atomic_cas(&m->owner, &word, word | (uint64_t)current))
            return true;
    }
    return false;
}

/* Worth it only while the owner runs: it may then unlock soon. True if we got it. */
static bool spin_for(struct mutex *m)
{
    for (unsigned i = 0; i < MUTEX_SPINS; i++) {
        uint64_t word = atomic_load_relaxed(&m->owner);
        struct thread *owner = owner_of(word);
        if (word & MUTEX_HANDOFF)
            return false;
        if (!owner) {
            if (mutex_try_lock(m))
                return true;
        } else if (!atomic_load_relaxed(&owner->on_cpu) || atomic_load_relaxed(&this_cpu()->need_resched)) {
            /* owner may have unlocked and be freed by now: its memory is still mapped (slab), and a
             * wrong answer costs one needless spin or sleep. */
            return false;
        }
        cpu_relax();
    }
    return false;
}

/* Under m->lock: may the waiter w, first in the list or not, have it now? */
static bool take_locked(struct mutex *m, struct mutex_waiter *w)
{
    uint64_t word = atomic_load_relaxed(&m->owner);
    bool first = m->waiters.next == &w->link;
    for (;;) {
        if (owner_of(word) == w->thread)
            return true; /* handed over */
        if (owner_of(word) || ((word & MUTEX_HANDOFF) && !first))
            return false;
        if (atomic_cas(&m->owner, &word, (uint64_t)w->thread | MUTEX_WAITERS))
            return true;
    }
}

static void lock_slow(struct mutex *m)
{
    struct mutex_waiter w = { .thread = current };
    bool woken = false;
    spin_lock(&m->lock);
    list_add_tail(&m->waiters, &w.link);
    for (;;) {
        /* The state is written before the mark and the owner are looked at, and unlock looks at the list
         * after it has freed the owner word: it sees us, or we see it free. */
        atomic_exchange(&w.thread->state, THREAD_UNINTERRUPTIBLE);
        atomic_fetch_or(&m->owner, MUTEX_WAITERS | (woken && m->waiters.next == &w.link ? MUTEX_HANDOFF : 0));
        if (take_locked(m, &w))
            break;
        spin_unlock(&m->lock);
        schedule();
        woken = true;
        spin_lock(&m->lock);
    }
    atomic_store_relaxed(&w.thread->state, THREAD_RUNNABLE);
    list_del(&w.link);
    /* We own it and hold the lock: nobody else changes the flags (they are set under the lock only). */
    if (list_empty(&m->waiters))
        atomic_fetch_and(&m->owner, ~MUTEX_FLAGS);
    else
        atomic_fetch_and(&m->owner, ~MUTEX_HANDOFF);
    spin_unlock(&m->lock);
}

void mutex_lock(struct mutex *m)
{
    uint64_t word = 0;
    if (likely(atomic_cas(&m->owner, &word, (uint64_t)current)))
        return;
    assert(owner_of(word) != current);
    if (mutex_try_lock(m) || spin_for(m))
        return;
    lock_slow(m);
}

void mutex_unlock(struct mutex *m)
{
    uint64_t word = (uint64_t)current;
    if (likely(atomic_cas(&m->owner, &word, 0)))
        return;
    assert(owner_of(word) == current);
    spin_lock(&m->lock);
    assert(!list_empty(&m->waiters));
    struct mutex_waiter *first = list_first(&m->waiters, struct mutex_waiter, link);
    word = atomic_load_relaxed(&m->owner);
    if (word & MUTEX_HANDOFF)
        atomic_exchange(&m->owner, (uint64_t)first->thread | MUTEX_WAITERS);
    else
        atomic_exchange(&m->owner, MUTEX_WAITERS);
    /* Under the lock: the waiter needs it to leave, so it is still there. */
    thread_wake(first->thread);
    spin_unlock(&m->lock);
}

/* ---- rw_mutex: the lock itself passes to waiters in order of arrival, under m->lock ---- */

struct rw_waiter {
    struct list link;
    struct thread *thread;
    bool writer;
    bool granted; /* m->lock */
};

void rw_mutex_init(struct rw_mutex *m)
{
    *m = (struct rw_mutex){ .readers = 0 };
    list_init(&m->waiters);
}

/* Not inlined: gcc would warn that w's address stays behind, not seeing that the granter takes it off. */
static __attribute__((noinline)) void rw_queue_locked(struct rw_mutex *m, struct rw_waiter *w)
{
    list_add_tail(&m->waiters, &w->link);
}

static void rw_wait_locked(struct rw_mutex *m, bool writer)
{
    struct rw_waiter w = { .thread = current, .writer = writer };
    rw_queue_locked(m, &w);
    while (!w.granted) { /* the granter takes w off the list */
        /* Written under the lock that the granter takes, so it is seen by it. */
        atomic_exchange(&w.thread->state, THREAD_UNINTERRUPTIBLE);
        spin_unlock(&m->lock);
        schedule();
        spin_lock(&m->lock);
    }
}

/* Give the lock to the first waiter, and to the readers right behind it, as far as it is free. */
static void rw_grant_locked(struct rw_mutex *m)
{
    while (!list_empty(&m->waiters)) {
        struct rw_waiter *w = list_first(&m->waiters, struct rw_waiter, link);
        if (m->readers < 0 || (w->writer && m->readers > 0))
            return;
        m->readers = w->writer ? -1 : m->readers + 1;
        list_del(&w->link);
        w->granted = true;
        /* w is on a stack that its thread leaves only after taking m->lock. */
        thread_wake(w->thread);
    }
}

void rw_read_lock(struct rw_mutex *m)
{
    spin_lock(&m->lock);
    if (m->readers >= 0 && list_empty(&m->waiters))
        m->readers++;
    else
        rw_wait_locked(m, false);
    spin_unlock(&m->lock);
}

void rw_write_lock(struct rw_mutex *m)
{
    spin_lock(&m->lock);
    if (!m->readers && list_empty(&m->waiters))
        m->readers = -1;
    else
        rw_wait_locked(m, true);
    spin_unlock(&m->lock);
}

void rw_read_unlock(struct rw_mutex *m)
{
    spin_lock(&m->lock);
    assert(m->readers > 0);
    if (!--m->readers)
        rw_grant_locked(m);
    spin_unlock(&m->lock);
}

void rw_write_unlock(struct rw_mutex *m)
{
    spin_lock(&m->lock);
    assert(m->readers == -1);
    m->readers = 0;
    rw_grant_locked(m);
    spin_unlock(&m->lock);
}

/* ---- completion ---- */

void completion_init(struct completion *c)
{
    wait_queue_init(&c->wait);
    c->done = false;
}

/* The waiter leaves only after it has seen `done` under the lock, and our last touch of c is the release
 * of that lock: so c may be on the waiter's stack. */
void completion_complete(struct completion *c)
{
    uint64_t flags = spin_lock_irqsave(&c->wait.lock);
    c->done = true;
    struct waiter *w;
    list_for_each_entry(w, &c->wait.waiters, link)
        thread_wake(w->thread);
    spin_unlock_irqrestore(&c->wait.lock, flags);
}

void completion_wait(struct completion *c)
{
    struct waiter w;
    waiter_init(&w, false);
    uint64_t flags = spin_lock_irqsave(&c->wait.lock);
    if (!c->done) {
        list_add_tail(&c->wait.waiters, &w.link);
        while (!c->done) {
            atomic_exchange(&current->state, THREAD_UNINTERRUPTIBLE); /* the completer takes the lock after us */
            spin_unlock_irqrestore(&c->wait.lock, flags);
            schedule();
            flags = spin_lock_irqsave(&c->wait.lock);
        }
        list_del(&w.link);
    }
    spin_unlock_irqrestore(&c->wait.lock, flags);
}
