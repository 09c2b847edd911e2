#include <weir/mm.h>
#include <weir/sched.h>
#include "tests/guest/on_each_cpu.h"

struct run {
    int (*fn)(unsigned, void *);
    void *arg;
    int failures;         /* a */
    unsigned left;        /* a */
    struct completion done;
};
struct seat {
    struct run *run;
    unsigned cpu;
};

static void seat_thread(void *arg)
{
    struct seat *s = arg;
    struct run *r = s->run;
    atomic_fetch_add(&r->failures, r->fn(s->cpu, r->arg));
    if (atomic_fetch_sub(&r->left, 1) == 1)
        completion_complete(&r->done);
}

int on_each_cpu(int (*fn)(unsigned cpu, void *arg), void *arg)
{
    unsigned n = cpu_count();
    struct run r = { .fn = fn, .arg = arg, .left = n + 1 };
    struct seat *seats = kcalloc(n, sizeof *seats);
    completion_init(&r.done);
    for (unsigned i = 0; i < n; i++) {
        struct cpumask mask = { { 0 } };
        bitmap_set(mask.bits, i);
        if (seats)
            seats[i] = (struct seat){ &r, i };
        struct thread *t = seats ? thread_create("each-cpu", seat_thread, &seats[i]) : NULL;
        if (!t) {
            atomic_fetch_sub(&r.left, 1);
            atomic_store_relaxed(&r.failures, -1000000);
            continue;
        }
        thread_set_affinity(t, &mask);
        thread_start(t);
        thread_put(t);
    }
    if (atomic_fetch_sub(&r.left, 1) != 1)
        completion_wait(&r.done);
    kfree(seats);
    return r.failures < 0 ? -1 : r.failures;
}
