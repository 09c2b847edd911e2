/*
 * Atomic operations on plain integers and pointers. Each name states its ordering; the call
 * site's comment states what must be seen before what. `_relaxed` orders nothing.
 */
#ifndef WEIR_ATOMIC_H
#define WEIR_ATOMIC_H

#include <weir/compiler.h>

#define atomic_load_relaxed(p)      __atomic_load_n((p), __ATOMIC_RELAXED)
#define atomic_load_acquire(p)      __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define atomic_store_relaxed(p, v)  __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define atomic_store_release(p, v)  __atomic_store_n((p), (v), __ATOMIC_RELEASE)
/* Read-modify-write: full barriers (x86 lock prefix). They return the value BEFORE the operation. */
#define atomic_fetch_add(p, v)      __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define atomic_fetch_sub(p, v)      __atomic_fetch_sub((p), (v), __ATOMIC_SEQ_CST)
#define atomic_fetch_or(p, v)       __atomic_fetch_or((p), (v), __ATOMIC_SEQ_CST)
#define atomic_fetch_and(p, v)      __atomic_fetch_and((p), (v), __ATOMIC_SEQ_CST)
#define atomic_exchange(p, v)       __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
/* Strong compare-and-swap; *expected is updated on failure. */
#define atomic_cas(p, expected, v) \
    __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

#define barrier_compiler() __asm__ volatile("" ::: "memory")
#define barrier_full()     __atomic_thread_fence(__ATOMIC_SEQ_CST) /* store-load too: mfence or lock op */
#define barrier_read()     __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define barrier_write()    __atomic_thread_fence(__ATOMIC_RELEASE)

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
