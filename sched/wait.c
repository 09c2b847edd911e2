/*
 * Wait queues.
 *
 * A waiter puts itself on the list, writes its state (full barrier), then looks at its condition. A
 * waker changes the condition, then (full barrier, in wait_queue_active or by taking the lock and in
 * thread_wake) looks at list and state. Either the waiter sees the condition, or the waker sees the
 * waiter, and thread_wake does the rest (sched.c).
 */
#include <weir/sched.h>
#include <weir/printk.h>

#define ANY_EVENT (~0u)

void wait_queue_init(struct wait_queue *q)
{
    spin_init(&q->lock);
    list_init(&q->waiters);
}

static bool wake_thread(struct waiter *w, unsigned events)
{
    return thread_wake(w->thread);
}

void waiter_init(struct waiter *w, bool exclusive)
{
    *w = (struct waiter){ .fn = wake_thread, .thread = current, .exclusive = exclusive };
}

void waiter_init_fn(struct waiter *w, bool (*fn)(struct waiter *, unsigned))
{
    *w = (struct waiter){ .fn = fn };
}

static inline void add_locked(struct wait_queue *q, struct waiter *w)
{
    if (w->queue) {
        assert(w->queue == q);
        return;
    }
    w->queue = q;
    if (w->exclusive)
        list_add_tail(&q->waiters, &w->link);
    else
        list_add(&q->waiters, &w->link);
}

static inline void add(struct wait_queue *q, struct waiter *w)
{
    uint64_t flags = spin_lock_irqsave(&q->lock);
    add_locked(q, w);
    spin_unlock_irqrestore(&q->lock, flags);
}

void wait_queue_add(struct wait_queue *q, struct waiter *w)
{
    add(q, w);
}

/* Always by the lock: a waker that is still inside w->fn holds it, and w may be on our stack. */
static inline void take_off(struct wait_queue *q, struct waiter *w)
{
    uint64_t flags = spin_lock_irqsave(&q->lock);
    if (w->queue == q) {
        list_del(&w->link);
        w->queue = NULL;
    }
    spin_unlock_irqrestore(&q->lock, flags);
}

void wait_queue_remove(struct wait_queue *q, struct waiter *w)
{
    take_off(q, w);
}

void prepare_wait(struct wait_queue *q, struct waiter *w, enum thread_state state)
{
    add(q, w);
    /* Full barrier: list and state are visible before the caller looks at its condition. */
    atomic_exchange(&current->state, (uint32_t)state);
}

void finish_wait(struct wait_queue *q, struct waiter *w)
{
    /* A wake-up that comes now finds us runnable and does nothing. */
    atomic_store_relaxed(&current->state, THREAD_RUNNABLE);
    take_off(q, w);
}

static inline bool wake_waiter(struct waiter *w, unsigned events)
{
    return likely(w->fn == wake_thread) ? thread_wake(w->thread) : w->fn(w, events);
}

void wake_events(struct wait_queue *q, unsigned events, unsigned exclusive_count)
{
    uint64_t flags = spin_lock_irqsave(&q->lock);
    struct waiter *w, *next;
    list_for_each_entry_safe(w, next, &q->waiters, link) {
        bool exclusive = w->exclusive; /* fn may take w off, and then w may be gone */
        if (exclusive && !exclusive_count)
            break; /* exclusive ones are at the tail */
        if (wake_waiter(w, events) && exclusive)
            exclusive_count--;
    }
    spin_unlock_irqrestore(&q->lock, flags);
}

void wake_all(struct wait_queue *q)
{
    uint64_t flags = spin_lock_irqsave(&q->lock);
    struct waiter *w, *next;
    list_for_each_entry_safe(w, next, &q->waiters, link)
        (void)wake_waiter(w, ANY_EVENT);
    spin_unlock_irqrestore(&q->lock, flags);
}

void wake_one(struct wait_queue *q)
{
    wake_events(q, ANY_EVENT, 1);
}
