/*
 * Cross calls. Each CPU has one outstanding call at most (the caller waits for it), kept in its arch_cpu;
 * a target's `incoming` mask names the callers that want it.
 */
#include <weir/printk.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"

/* An answer takes a few microseconds, unless the target's virtual CPU is not running: then this one should give
 * its host CPU away. */
#define SPINS 200
#define REPORT_NS (5 * NSEC_PER_SEC)

static void call_interrupt(unsigned vector, void *arg)
{
    struct arch_cpu *a = arch_of(this_cpu());
    for (unsigned w = 0; w < ARRAY_SIZE(a->incoming.bits); w++) {
        if (!atomic_load_relaxed(&a->incoming.bits[w]))
            continue;
        /* Full barrier: the caller's fn and arg were written before its bit. */
        uint64_t bits = atomic_exchange(&a->incoming.bits[w], 0);
        while (bits) {
            unsigned caller = w * 64 + (unsigned)__builtin_ctzll(bits);
            bits &= bits - 1;
            struct arch_cpu *from = arch_of(cpus[caller]);
            from->call_fn(from->call_arg);
            /* Full barrier: all that fn did is visible before the caller sees the count fall, and the count
             * has fallen before call_asleep is read. The caller may be in its next call by then; a kick too
             * many does no harm. */
            if (atomic_fetch_sub(&from->call_left, 1) == 1 && atomic_load_relaxed(&from->call_asleep))
                cpu_kick(caller);
        }
    }
}

void call_init(void)
{
    vector_set_handler(VECTOR_CALL, call_interrupt, NULL);
}

static void report_late(const struct cpumask *mask, unsigned self)
{
    for (unsigned i = 0; i < cpu_count(); i++) {
        if (i != self && bitmap_test(mask->bits, i) && bitmap_test(arch_of(cpus[i])->incoming.bits, self))
            log_warn("cross call from CPU %u: CPU %u has not answered for 5 s (still waiting)", self, i);
    }
}

static void wait_asleep(struct arch_cpu *a, const struct cpumask *mask, unsigned self)
{
    uint64_t report = clock_monotonic_ns() + REPORT_NS;
    atomic_store_relaxed(&a->call_asleep, true);
    for (;;) {
        irq_disable();
        barrier_full(); /* call_asleep is seen by the last target, or its count is seen here */
        if (!atomic_load_acquire(&a->call_left))
            break;
        __asm__ volatile("sti; hlt" : : : "memory");
        if (unlikely(clock_monotonic_ns() > report)) {
            report_late(mask, self);
            report = TIME_FOREVER;
        }
    }
    irq_enable();
    atomic_store_relaxed(&a->call_asleep, false);
}

void cpu_call(const struct cpumask *mask, void (*fn)(void *), void *arg)
{
    struct cpu *c = this_cpu();
    struct arch_cpu *a = arch_of(c);
    unsigned targets = 0;
    assert(irq_enabled() && !c->irq_depth);
    for (unsigned i = 0; i < cpu_count(); i++)
        targets += i != c->id && bitmap_test(mask->bits, i);
    if (!targets)
        return;
    a->call_fn = fn;
    a->call_arg = arg;
    atomic_store_relaxed(&a->call_left, targets);
    for (unsigned i = 0; i < cpu_count(); i++) {
        if (i == c->id || !bitmap_test(mask->bits, i))
            continue;
        /* Full barrier: fn and arg are seen before the bit. A word that was not empty has an interrupt on
         * its way already, sent by whoever filled it; its handler takes the word after this. */
        uint64_t before = atomic_fetch_or(&arch_of(cpus[i])->incoming.bits[c->id / 64], 1UL << (c->id % 64));
        if (!before)
            apic_send(cpus[i]->apic_id, ICR_FIXED(VECTOR_CALL));
    }
    /* Interrupts are on: calls to this CPU are served meanwhile. */
    for (unsigned spins = 0; atomic_load_acquire(&a->call_left) && spins < SPINS; spins++)
        cpu_relax();
    if (atomic_load_acquire(&a->call_left))
        wait_asleep(a, mask, c->id);
}
