/* Every CPU: its own block and stacks, its vectors, its clock, cross calls. */
#include <weir/init.h>
#include <weir/irq.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"
#include "tests/guest/on_each_cpu.h"

#define WAIT_NS (20 * NSEC_PER_SEC)

static int check_own_block(unsigned cpu, void *arg)
{
    struct cpu *c = this_cpu();
    struct arch_cpu *a = arch_of(c);
    GUEST_CHECK(c->self == c && c->id == cpu && cpu_by_id(cpu) == c && c->online);
    GUEST_CHECK(apic_id() == c->apic_id);
    GUEST_CHECK(c->running == current && c->kernel_rsp == current->kstack_top);
    GUEST_CHECK(a->tss.rsp[0] == current->kstack_top);
    uint64_t rsp = (uint64_t)__builtin_frame_address(0);
    GUEST_CHECK(rsp < current->kstack_top && rsp > current->kstack_top - KSTACK_SIZE);
    for (unsigned other = 0; other < cpu_count(); other++) {
        struct arch_cpu *o = arch_of(cpu_by_id(other));
        for (unsigned i = 0; i < IST_COUNT && other != cpu; i++)
            GUEST_CHECK(a->tss.ist[i] != o->tss.ist[i]);
        GUEST_CHECK(other == cpu || cpu_by_id(other)->apic_id != c->apic_id);
    }
    return 0;
}

GUEST_TEST(each_cpu_has_its_own_block_and_stacks)
{
    return on_each_cpu(check_own_block, NULL) != 0;
}

/* One CPU at a time raises every free vector on itself; the handler notes number and place. */
static struct {
    unsigned vector, cpu, count;
} seen;

static void note_vector(unsigned vector, void *arg)
{
    seen.vector = vector;
    seen.cpu = this_cpu()->id;
    atomic_fetch_add((unsigned *)arg, 1);
}

static bool wait_for(const unsigned *value, unsigned wanted)
{
    uint64_t deadline = clock_monotonic_ns() + WAIT_NS;
    while (atomic_load_acquire(value) != wanted) {
        if (clock_monotonic_ns() > deadline)
            return false;
        cpu_relax();
    }
    return true;
}

static bool vector_is_free(const uint64_t *reserved, unsigned vector)
{
    return !bitmap_test(reserved, vector) && !vector_get_handler(vector);
}

GUEST_TEST(each_vector_reaches_its_handler_on_each_cpu)
{
    uint64_t reserved[4];
    unsigned tried = 0;
    vector_reserved(reserved);
    for (unsigned vector = VECTOR_FIRST; vector < VECTOR_COUNT; vector++) {
        if (!vector_is_free(reserved, vector))
            continue;
        tried++;
        vector_set_handler(vector, note_vector, &seen.count);
        for (unsigned cpu = 0; cpu < cpu_count(); cpu++) {
            unsigned before = atomic_load_relaxed(&seen.count);
            apic_send(cpu_by_id(cpu)->apic_id, ICR_FIXED(vector));
            GUEST_CHECK(wait_for(&seen.count, before + 1));
            GUEST_CHECK(seen.vector == vector && seen.cpu == cpu);
        }
        vector_set_handler(vector, NULL, NULL);
    }
    GUEST_CHECK(tried > 0);
    return 0;
}

GUEST_TEST(vector_without_handler_is_counted_and_dropped)
{
    uint64_t reserved[4];
    unsigned vector = VECTOR_FIRST;
    vector_reserved(reserved);
    while (!vector_is_free(reserved, vector))
        vector++;
    for (unsigned cpu = 0; cpu < cpu_count(); cpu++) {
        uint64_t before = vector_spurious_count(), deadline = clock_monotonic_ns() + WAIT_NS;
        apic_send(cpu_by_id(cpu)->apic_id, ICR_FIXED(vector));
        while (vector_spurious_count() == before && clock_monotonic_ns() < deadline)
            cpu_relax();
        GUEST_CHECK(vector_spurious_count() == before + 1);
        /* EOI was given: a lower vector still gets through. */
        unsigned count = atomic_load_relaxed(&seen.count);
        vector_set_handler(vector, note_vector, &seen.count);
        apic_send(cpu_by_id(cpu)->apic_id, ICR_FIXED(vector));
        GUEST_CHECK(wait_for(&seen.count, count + 1));
        vector_set_handler(vector, NULL, NULL);
    }
    return 0;
}

static struct {
    spinlock_t lock;
    uint64_t last; /* lock */
} latest;

static int check_clock(unsigned cpu, void *arg)
{
    for (unsigned i = 0; i < 2000; i++) {
        spin_lock(&latest.lock);
        uint64_t now = clock_monotonic_ns(), before = latest.last;
        latest.last = now;
        spin_unlock(&latest.lock);
        GUEST_CHECK(now >= before);
        cond_resched();
    }
    return 0;
}

GUEST_TEST(clock_never_goes_back_across_cpus)
{
    return on_each_cpu(check_clock, NULL) != 0;
}

GUEST_TEST(sleep_ends_after_its_deadline_and_soon)
{
    for (unsigned ms = 1; ms <= 64; ms *= 4) {
        uint64_t deadline = clock_monotonic_ns() + ms * NSEC_PER_MSEC;
        sleep_until_ns(deadline);
        uint64_t now = clock_monotonic_ns();
        GUEST_CHECK(now >= deadline);
        GUEST_CHECK(now < deadline + 2 * NSEC_PER_SEC); /* the host may be busy, the timer not lost */
    }
    return 0;
}

#define EARLY_PER_SLEEP_MAX 2 /* one for a rate that is a little wrong; more come from one that is very wrong */
static int check_timer_rate(unsigned cpu, void *arg)
{
    const struct arch_cpu *a = arch_of(this_cpu());
    uint64_t early = atomic_load_relaxed(&a->timer_early);
    sleep_until_ns(clock_monotonic_ns() + 100 * NSEC_PER_MSEC);
    GUEST_CHECK(this_cpu()->id == cpu);
    GUEST_CHECK(atomic_load_relaxed(&a->timer_early) - early <= EARLY_PER_SLEEP_MAX);
    return 0;
}

/* What the timer is told as 100 ms is about that: not a fraction, approached in many steps. */
GUEST_TEST(timer_interrupts_are_not_early)
{
    return on_each_cpu(check_timer_rate, NULL) != 0;
}

#define CALL_ROUNDS 20
static unsigned called[CPU_MAX]; /* o */

static void count_call(void *arg)
{
    unsigned *total = arg;
    called[this_cpu()->id]++;
    atomic_fetch_add(total, 1);
}

static int call_everyone(unsigned cpu, void *arg)
{
    struct cpumask all = { { 0 } };
    for (unsigned i = 0; i < cpu_count(); i++)
        bitmap_set(all.bits, i);
    for (unsigned round = 0; round < CALL_ROUNDS; round++) {
        unsigned total = 0; /* on this stack: nobody may touch it after cpu_call has returned */
        cpu_call(&all, count_call, &total);
        GUEST_CHECK(total == cpu_count() - 1);
        cond_resched();
    }
    return 0;
}

GUEST_TEST(cross_calls_from_all_cpus_at_once)
{
    memset(called, 0, sizeof called);
    GUEST_CHECK(on_each_cpu(call_everyone, NULL) == 0);
    for (unsigned i = 0; i < cpu_count(); i++)
        GUEST_CHECK(called[i] == CALL_ROUNDS * (cpu_count() - 1));
    return 0;
}

static uint64_t vectors(void) { return irq_vectors_in_use(); }

GUEST_BALANCE("vectors", vectors);
