/* Helpers of the scheduler's self-tests. */
#ifndef SCHED_TEST_H
#define SCHED_TEST_H
#include <weir/init.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>

/* Threads of one test; all are started together and waited for. */
struct team {
    struct thread **threads;
    unsigned count, max;
    uint32_t left; /* a */
    struct wait_queue done;
    bool stop;     /* a */
};

bool team_init(struct team *team, unsigned max) __must_check;
/* Make a thread that runs fn(arg); it must call team_leave at its end. NULL without memory. */
struct thread *team_add(struct team *team, const char *name, void (*fn)(void *), void *arg) __must_check;
void team_pin(struct thread *t, unsigned cpu);
void team_start(struct team *team);
void team_leave(struct team *team);
/* Wait for all to leave. False, with a dump of everything, when that takes longer than `seconds`; then
 * nothing is freed. */
bool team_finish(struct team *team, unsigned seconds) __must_check;
/* Compute for so long, giving way when others want the CPU. */
void burn_ns(uint64_t ns);
void sleep_ms(unsigned ms);
/* True if neither a bad decision to halt nor a stall has been counted since boot. */
bool scheduler_is_sound(void) __must_check;
uint32_t random_next(uint32_t *seed);
#endif
