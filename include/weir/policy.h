/*
 * Scheduling policy: pure functions over plain structs, no hardware, no locks, compiled into the
 * kernel (sched/) and into the simulator (tests/sim). The mechanism holds the run queue's lock
 * around every call that takes a run queue.
 */
#ifndef WEIR_POLICY_H
#define WEIR_POLICY_H
#include <weir/bitmap.h>
#include <weir/rbtree.h>

/* What the policy keeps for each thread. */
struct policy_entity {
    struct rb_node node;        /* in the run queue, by virtual deadline */
    uint64_t vruntime, deadline;
    uint32_t weight;            /* from nice; 1024 = nice 0 */
    int8_t nice;
    bool queued;
    uint64_t last_ran_ns, last_moved_ns;
};
#endif
