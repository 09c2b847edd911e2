/* Host wrapper: mutex_is_mine. */
#ifndef HOST_WEIR_SCHED_H
#define HOST_WEIR_SCHED_H
#include_next <weir/sched.h>
static inline bool mutex_is_mine(struct mutex *m) { return (atomic_load_relaxed(&m->owner) & ~MUTEX_FLAGS) == (uint64_t)current; }
#endif
