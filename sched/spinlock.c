/* The slow side of raw spinlocks. */
#include <weir/spinlock.h>
#include <weir/printk.h>
#include <weir/time.h>

#define BACKOFF_MAX      64 /* pauses between two looks; more would only delay the winner */
#define LOOKS_PER_CLOCK  1024
#define REPORT_NS        (10 * NSEC_PER_SEC)

/* Only a report: going on without the lock would be worse than waiting. Once, for the console has a lock too. */
static void report(spinlock_t *l, const void *caller)
{
    static uint32_t reported;
    if (!atomic_exchange(&reported, 1))
        log_error("CPU %u has waited 10 s for the spinlock at %p, called from %p", this_cpu()->id, (void *)l, caller);
}

void spin_lock_slow(spinlock_t *l)
{
    unsigned backoff = 1;
    uint64_t start_ns = 0;
    for (unsigned looks = 1;; looks++) {
        for (unsigned i = 0; i < backoff; i++)
            cpu_relax();
        /* Read first: a waiting CPU that writes would take the line from the owner. */
        if (!spin_is_locked(l) && spin_try_lock(l))
            return;
        backoff = MIN(backoff * 2, BACKOFF_MAX);
        if (looks % LOOKS_PER_CLOCK)
            continue;
        uint64_t now_ns = clock_monotonic_ns();
        if (!start_ns)
            start_ns = now_ns;
        else if (now_ns - start_ns > REPORT_NS)
            report(l, __builtin_return_address(0));
    }
}
