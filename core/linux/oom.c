/*
 * Out of memory: the process with the most private memory goes. Not the first one: its end is the machine's, and
 * PostgreSQL's postmaster survives the loss of a child.
 */
#include "task_internal.h"
#include <weir/init.h>

#define RETRY_NS (10 * NSEC_PER_MSEC)

struct oom_choice {
    struct process *worst;
    uint64_t bytes;
    bool dying; /* somebody is on his way out already: wait for what he gives back */
};

static void oom_rank(struct process *p, void *arg)
{
    struct oom_choice *c = arg;
    uint64_t virtual_bytes, private_bytes, shared_bytes;

    if (p == process_first || !p->aspace)
        return;
    if (p->exiting || (p->shared.set & SIGBIT(SIGKILL))) {
        c->dying = true;
        return;
    }
    aspace_usage(p->aspace, &virtual_bytes, &private_bytes, &shared_bytes);
    if (private_bytes > c->bytes) {
        c->bytes = private_bytes;
        c->worst = p;
    }
}

/* The list is walked with the tree lock held; the choice must not vanish before it is killed. */
static void oom_rank_and_hold(struct process *p, void *arg)
{
    struct oom_choice *c = arg;
    struct process *before = c->worst;

    oom_rank(p, c);
    if (c->worst != before) {
        process_get(c->worst);
        if (before)
            process_put(before); /* in the tree still: not the last reference */
    }
}

static struct mutex choosing = MUTEX_INIT(choosing); /* two at once would both kill */

static bool oom_make_room(void)
{
    struct oom_choice c = {0};
    const struct siginfo_weir info = {.code = 0x80};

    if (atomic_load_relaxed(&current->pending) & THREAD_KILL)
        return false;
    mutex_lock(&choosing);
    process_for_each(oom_rank_and_hold, &c);
    if (c.worst && !c.dying) {
        log_error("out of memory: %s (pid %d), which uses %lu KiB of its own, is killed", c.worst->name,
                  c.worst->pid, (unsigned long)(c.bytes >> 10));
        (void)signal_send_process(c.worst, SIGKILL, &info);
        c.dying = true;
    }
    mutex_unlock(&choosing);
    if (c.worst)
        process_put(c.worst);
    if (!c.dying) {
        log_error("out of memory, and no process but the first one is left");
        return false;
    }
    /* Until the victim has given its pages back; if it is the caller, this ends at once. */
    return sleep_until_ns_interruptible(clock_monotonic_ns() + RETRY_NS) == 0 ||
           !(atomic_load_relaxed(&current->pending) & THREAD_KILL);
}

static void oom_init(void)
{
    aspace_set_oom_hook(oom_make_room);
}
INIT_CALL(INIT_LINUX, oom_init);
