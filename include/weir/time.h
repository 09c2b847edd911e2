/* Clocks and one-shot timers. */
#ifndef WEIR_TIME_H
#define WEIR_TIME_H
#include <weir/compiler.h>
#include <weir/rbtree.h>

#define TIME_FOREVER UINT64_MAX /* as a deadline: never */

/* Nanoseconds since boot, monotonic on and across CPUs. Any context, no locks. */
uint64_t clock_monotonic_ns(void);
/* Nanoseconds since the epoch (CMOS clock or kvmclock at boot, advanced by the monotonic clock). */
uint64_t clock_realtime_ns(void);
void clock_set_realtime_ns(uint64_t now_ns);
/* What the vDSO needs: monotonic_ns = ((tsc - tsc_base) * mult >> shift) + base_ns. usable is false
 * when the TSC may not be read by programs (not invariant and no tsc=reliable). */
struct clock_tsc_params {
    bool usable;
    uint64_t tsc_base, base_ns, realtime_offset_ns;
    uint32_t mult, shift;
};
void clock_tsc_params(struct clock_tsc_params *out);
void clock_delay_ns(uint64_t ns); /* busy wait, boot and device reset only */

/*
 * A timer is made by its owner (embedded, zeroed with timer_init), armed and cancelled from any
 * context, and ends with timer_cancel_sync. The callback runs in interrupt context on the CPU that
 * armed it; it marks and wakes, nothing more. It may re-arm its own timer.
 */
struct timer {
    struct rb_node node;      /* the arming CPU's timer lock */
    uint64_t deadline_ns;     /* the same */
    void (*fn)(struct timer *);
    unsigned cpu;             /* the same */
    uint8_t state;            /* the same: 0 idle, 1 armed */
};
void timer_init(struct timer *t, void (*fn)(struct timer *));
void timer_arm(struct timer *t, uint64_t deadline_ns); /* absolute monotonic; re-arms if armed */
bool timer_cancel(struct timer *t);                    /* true if it was armed; callback may be running */
void timer_cancel_sync(struct timer *t);               /* also waits for a running callback; thread context */

/* ---- arch hooks for sched/timer.c ---- */
void clock_event_arm(uint64_t deadline_ns); /* this CPU's one-shot; TIME_FOREVER disarms; past = at once */
#endif
