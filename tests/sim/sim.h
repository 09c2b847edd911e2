/*
 * Discrete-event simulator of the scheduler: the kernel's policy (sched/policy.c) on simulated CPUs, with
 * the mechanism of sched/sched.c and sched/balance.c reduced to what costs time.
 *
 * A thread is a behaviour: each time its burst of work is over, `next` says what follows. Time is virtual
 * nanoseconds; equal seeds give equal runs.
 */
#ifndef SIM_H
#define SIM_H
#include <weir/policy_queue.h>

/* Prices in ns; sources beside sim_costs_default. */
struct sim_costs {
    uint64_t switch_ns, wake_ns, ipi_send_ns, ipi_wake_ns, migrate_ns, steal_ns, balance_ns, interrupt_ns;
};
extern const struct sim_costs sim_costs_default;

struct sim;
struct sim_thread;
enum sim_step_kind { SIM_RUN, SIM_BLOCK, SIM_EXIT };
struct sim_step {
    enum sim_step_kind kind;
    uint64_t ns; /* of useful work, for SIM_RUN */
};

struct sim_thread {
    struct policy_entity entity;
    struct sim_step (*next)(struct sim *s, struct sim_thread *t);
    void *data;
    unsigned phase, id;
    unsigned cpu;
    int last_cpu;           /* -1 = has not run */
    unsigned tokens;        /* wake-ups that came while it was not blocked */
    bool blocked, done;
    bool defers_wakes;      /* see thread_defer_wakes */
    struct policy_deferral deferral;
    struct sim_thread *deferred;
    uint64_t left_ns;       /* of the burst */
    uint64_t useful_ns;     /* work done without overhead */
    uint64_t migrations;
    uint64_t ready_ns, worst_wait_ns;
    struct cpumask mask;
};

struct sim_cpu {
    struct policy_cpu *policy;
    struct sim_thread *running;
    uint64_t charged_ns, ticket; /* ticket: events with an older one are void */
    uint64_t delay_ns;      /* overhead to be paid before the next burst */
    uint64_t next_balance_ns, balance_interval_ns, tick_ns; /* tick_ns 0 = none armed */
    bool ticking, look_pending, turn_over;
    uint64_t busy_ns;
};

struct sim_event {
    uint64_t at, order, ticket;
    void (*fn)(struct sim *s, void *arg, uint64_t ticket);
    void *arg;
};

struct sim {
    struct policy_machine machine;
    struct policy_cpu policy[CPU_MAX];
    struct sim_cpu cpu[CPU_MAX];
    unsigned cpus;
    const struct sim_costs *costs;
    struct sim_thread *threads;
    unsigned thread_count, thread_max, alive;
    struct sim_event *heap;
    unsigned heap_count, heap_max;
    uint64_t now, order;
    uint32_t seed;
    unsigned acting_cpu;    /* whose code runs: payer of wake-ups */
    bool in_interrupt;
    uint64_t wasted_ns;     /* CPU time idle while a thread waited behind another one */
    uint64_t migrations, ipis, switches, finished_ns;
    unsigned bad_halts;     /* halts with a thread to be pulled */
};

struct sim *sim_create(const struct policy_params *params, unsigned cpus, const struct sim_costs *costs, uint32_t seed,
                       unsigned max_threads);
void sim_destroy(struct sim *s);
struct sim_thread *sim_thread(struct sim *s, struct sim_step (*next)(struct sim *, struct sim_thread *), void *data);
void sim_pin(struct sim *s, struct sim_thread *t, unsigned cpu);
void sim_start(struct sim *s, struct sim_thread *t, unsigned creator_cpu);
void sim_wake(struct sim *s, struct sim_thread *t);                    /* by the thread that acts */
void sim_interrupt_wake(struct sim *s, struct sim_thread *t, unsigned cpu); /* by an interrupt on cpu */
void sim_at(struct sim *s, uint64_t at, void (*fn)(struct sim *, void *, uint64_t), void *arg);
void sim_run(struct sim *s, uint64_t until_ns);                        /* or until no thread is left */
uint64_t sim_random(struct sim *s, uint64_t below);
#endif
