/*
 * Raw spinlocks: test-and-set with back-off, held for a few instructions, never while blocking and
 * never while waiting for another CPU. A lock that an interrupt handler takes must be taken with
 * spin_lock_irqsave everywhere.
 */
#ifndef WEIR_SPINLOCK_H
#define WEIR_SPINLOCK_H
#include <weir/cpu.h>

typedef struct spinlock {
    uint32_t locked; /* a */
} spinlock_t;
#define SPINLOCK_INIT { 0 }

static inline void spin_init(spinlock_t *l) { l->locked = 0; }
static inline bool spin_try_lock(spinlock_t *l)
{
    /* Acquire: the critical section's accesses stay after the lock is seen taken by us. */
    return !__atomic_exchange_n(&l->locked, 1, __ATOMIC_ACQUIRE);
}
void spin_lock_slow(spinlock_t *l); /* bounded exponential back-off with pause */
static inline void spin_lock(spinlock_t *l)
{
    if (unlikely(!spin_try_lock(l)))
        spin_lock_slow(l);
}
static inline void spin_unlock(spinlock_t *l)
{
    /* Release: everything done under the lock is visible before it is seen free. */
    __atomic_store_n(&l->locked, 0, __ATOMIC_RELEASE);
}
static inline bool spin_is_locked(const spinlock_t *l) { return atomic_load_relaxed(&l->locked); }
static inline uint64_t spin_lock_irqsave(spinlock_t *l)
{
    uint64_t flags = irq_save();
    spin_lock(l);
    return flags;
}
static inline void spin_unlock_irqrestore(spinlock_t *l, uint64_t flags)
{
    spin_unlock(l);
    irq_restore(flags);
}
#endif
