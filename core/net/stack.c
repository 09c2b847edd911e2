/* Stack instances: who is inside, what is left to do for the one who leaves, timers. */
#include <weir/cmdline.h>
#include <weir/time.h>
#include "core/net/device.h"

/* Sockets that one visitor serves for others before the stack's thread takes over. */
#define SERVICE_BUDGET 256
#define LOOPBACK_BUDGET 256

unsigned stack_count;
static struct stack *stacks;
struct net_counters net_counters;

struct stack *stack_by_index(unsigned i)
{
    return &stacks[i];
}

void stack_add_pending(struct stack *st, struct socket *s)
{
    spin_lock(&st->pending_lock);
    if (!s->pending) {
        s->pending = true;
        socket_get(s);
        list_add_tail(&st->pending, &s->pending_link);
    }
    spin_unlock(&st->pending_lock);
}

static struct socket *take_pending(struct stack *st)
{
    struct socket *s = NULL;
    spin_lock(&st->pending_lock);
    if (!list_empty(&st->pending)) {
        s = list_first(&st->pending, struct socket, pending_link);
        list_del(&s->pending_link);
        /* Cleared before the service: what is noted from here on puts it on the list again. */
        s->pending = false;
    }
    spin_unlock(&st->pending_lock);
    return s;
}

static bool has_pending(struct stack *st)
{
    return atomic_load_relaxed(&st->pending.next) != &st->pending || atomic_load_relaxed(&st->room_again);
}

static void run_timers_locked(struct stack *st)
{
    uint32_t ms = st->ops->run_timers(st->timer_due);
    st->timer_due = false;
    if (ms == STACK_TIMERS_AS_BEFORE)
        return;
    if (ms == STACK_NO_TIMER) {
        if (st->armed_ns != TIME_FOREVER) {
            timer_cancel(&st->timer);
            st->armed_ns = TIME_FOREVER;
        }
        return;
    }
    uint64_t deadline = clock_monotonic_ns() + MAX(ms, 1u) * NSEC_PER_MSEC;
    /* A timer that fires early only looks again; one that is armed for later must be brought forward. */
    if (deadline + NSEC_PER_MSEC < st->armed_ns) {
        st->armed_ns = deadline;
        timer_arm(&st->timer, deadline);
    }
}

/* All that whoever was in the stack has left to do. False: there is more, the thread goes on with it. */
static bool run_locked(struct stack *st)
{
    unsigned budget = SERVICE_BUDGET, loops = LOOPBACK_BUDGET;
    bool more;
    do {
        more = false;
        if (atomic_load_relaxed(&st->room_again) && atomic_exchange(&st->room_again, false)) {
            st->output_stalled = false;
            st->ops->tcp_output_all();
        }
        struct socket *s;
        while (budget && (s = take_pending(st))) {
            budget--;
            socket_service(s);
            socket_put(s);
        }
        if (loops && st->ops->poll_loopback()) {
            loops--;
            more = true;
        }
        socket_gone_drain_locked(st);
    } while (more);
    run_timers_locked(st);
    device_flush_locked(st);
    return budget && loops;
}

void stack_lock(struct stack *st)
{
    mutex_lock(&st->lock);
}

void stack_unlock(struct stack *st)
{
    for (;;) {
        bool done = run_locked(st);
        mutex_unlock(&st->lock);
        if (!done) {
            stack_wake_thread(st);
            return;
        }
        /* The unlock is visible before the list is read: whoever added to the list and found the lock
         * taken is seen here, or found it free. */
        barrier_full();
        if (!has_pending(st) || !mutex_try_lock(&st->lock))
            return;
    }
}

void stack_kick(struct stack *st, struct socket *s)
{
    stack_add_pending(st, s);
    barrier_full(); /* the list is visible before the lock is tried; pairs with stack_unlock */
    if (mutex_try_lock(&st->lock))
        stack_unlock(st);
}

void stack_wake_thread(struct stack *st)
{
    atomic_store_release(&st->work, true);
    wake_all(&st->wait);
}

static void timer_fired(struct timer *t)
{
    stack_wake_thread(container_of(t, struct stack, timer));
}

static void stack_thread(void *arg)
{
    struct stack *st = arg;
    for (;;) {
        wait_event(&st->wait, atomic_load_acquire(&st->work));
        /* Cleared before looking: what is wanted from here on sets it again. */
        (void)atomic_exchange(&st->work, false);
        if (atomic_load_relaxed(&st->follow) && atomic_exchange(&st->follow, false))
            device_follow_addresses(st);
        stack_lock(st);
        if (clock_monotonic_ns() >= st->armed_ns) {
            st->armed_ns = TIME_FOREVER; /* it has fired */
            st->timer_due = true;
        }
        stack_unlock(st);
        cond_resched();
    }
}

uint32_t module_now_ms(void)
{
    return (uint32_t)(clock_monotonic_ns() / NSEC_PER_MSEC);
}

void *module_alloc(size_t size)
{
    return kmalloc(size);
}

void *module_calloc(size_t n, size_t size)
{
    return kcalloc(n, size);
}

void module_free(void *p)
{
    kfree(p);
}

void module_assert_failed(const char *what, const char *file, int line)
{
    const char *base = strrchr(file, '/');
    panic("lwip: %s:%d: %s", base ? base + 1 : file, line, what);
}

static void random_seed(uint64_t seed[2])
{
#if defined(__x86_64__)
    uint32_t a = 1, b, c = 0, d;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    for (unsigned i = 0; i < 2; i++) {
        bool ok = false;
        if (c & (1u << 30))
            __asm__ volatile("rdrand %0; setc %1" : "=r"(seed[i]), "=qm"(ok));
        if (!ok)
            seed[i] = (clock_realtime_ns() ^ __builtin_ia32_rdtsc()) * 0x9e3779b97f4a7c15UL;
    }
#endif
}

static bool stack_start(struct stack *st, unsigned index)
{
    mutex_init(&st->lock);
    spin_init(&st->pending_lock);
    list_init(&st->pending);
    list_init(&st->gone);
    list_init(&st->flush);
    wait_queue_init(&st->wait);
    timer_init(&st->timer, timer_fired);
    st->armed_ns = TIME_FOREVER;
    st->index = index;
    st->ops = module_instantiate(&st->module_base);
    if (!st->ops)
        return false;
    uint64_t seed[2];
    random_seed(seed);
    stack_lock(st);
    st->ops->start(st, seed);
    stack_unlock(st);
    char name[16];
    snprintf(name, sizeof(name), "net/%u", index);
    st->thread = thread_create(name, stack_thread, st);
    if (!st->thread)
        return false;
    thread_start(st->thread);
    return true;
}

void net_stacks_start(unsigned wanted)
{
    if (stack_count)
        return;
    wanted = (unsigned)cmdline_u64("net.stacks", wanted);
    wanted = MAX(1u, MIN(MIN(wanted, cpu_count()), NET_STACKS_MAX));
    transmit_init();
    stacks = kcalloc(wanted, sizeof(*stacks));
    if (!stacks)
        panic("net: no memory for %u stacks", wanted);
    unsigned started = 0;
    while (started < wanted && stack_start(&stacks[started], started))
        started++;
    if (!started)
        panic("net: no protocol stack could be started");
    if (started < wanted)
        log_warn("net: %u of %u protocol stacks started", started, wanted);
    stack_count = started;
    log_info("net: %u protocol stack%s, lwIP at %p%s", started, started > 1 ? "s" : "", stacks[0].module_base,
             started > 1 ? " and on" : "");
}
