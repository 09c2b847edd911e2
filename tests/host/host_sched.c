/* Threads, wait queues, sleeping locks and timers over pthreads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <string.h>
#include <weir/sched.h>
#include <weir/errno.h>
#include "host.h"

/* <sched.h> is not included: its names are close to ours. */
extern int sched_yield(void);
static void host_yield(void) { sched_yield(); }

struct host_thread {
    struct thread thread;
    struct cpu *cpu;
    pthread_mutex_t lock; /* guards the change of thread.state against the sleeper */
    pthread_cond_t wake;
};
static __thread struct host_thread *self;
static struct cpu cpus[CPU_MAX];
static unsigned cpus_used = 8, next_cpu;
static int next_tid = 1;

void host_set_cpu_count(unsigned n) { cpus_used = n; }
unsigned cpu_count(void) { return cpus_used; }
struct cpu *cpu_by_id(unsigned id)
{
    cpus[id].self = &cpus[id];
    cpus[id].id = id;
    return &cpus[id];
}

static struct host_thread *host_thread_new(const char *name)
{
    struct host_thread *h = calloc(1, sizeof *h);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->wake, &attr);
    h->thread.tid = __atomic_fetch_add(&next_tid, 1, __ATOMIC_RELAXED);
    h->thread.refcount = 2;
    snprintf(h->thread.name, sizeof h->thread.name, "%s", name);
    return h;
}
static struct host_thread *host_self(void)
{
    if (!self)
        self = host_thread_new("host");
    if (!self->cpu) {
        self->thread.cpu = __atomic_fetch_add(&next_cpu, 1, __ATOMIC_RELAXED) % cpus_used;
        self->cpu = cpu_by_id(self->thread.cpu);
    }
    return self;
}
struct thread *host_current_thread(void) { return &host_self()->thread; }
struct cpu *host_this_cpu(void) { return host_self()->cpu; }

struct started { struct host_thread *h; pthread_t id; struct started *next; };
static struct started *all_started;
static pthread_mutex_t started_lock = PTHREAD_MUTEX_INITIALIZER;

static void *thread_main(void *arg)
{
    self = arg;
    self->thread.fn(self->thread.arg);
    return NULL;
}
struct thread *thread_create(const char *name, void (*fn)(void *), void *arg)
{
    struct host_thread *h = host_thread_new(name);
    h->thread.fn = fn;
    h->thread.arg = arg;
    return &h->thread;
}
void thread_start(struct thread *t)
{
    struct started *s = calloc(1, sizeof *s);
    s->h = (struct host_thread *)t;
    if (pthread_create(&s->id, NULL, thread_main, t))
        abort();
    pthread_mutex_lock(&started_lock);
    s->next = all_started;
    all_started = s;
    pthread_mutex_unlock(&started_lock);
}
void thread_exit(void) { pthread_exit(NULL); }
void host_join_thread(struct thread *t)
{
    struct started *s = NULL;
    pthread_mutex_lock(&started_lock);
    for (struct started **link = &all_started; *link; link = &(*link)->next) {
        if (&(*link)->h->thread == t) {
            s = *link;
            *link = s->next;
            break;
        }
    }
    pthread_mutex_unlock(&started_lock);
    if (!s)
        return;
    pthread_join(s->id, NULL);
    free(s->h);
    free(s);
}
void host_join_threads(void)
{
    for (;;) {
        pthread_mutex_lock(&started_lock);
        struct started *s = all_started;
        if (s)
            all_started = s->next;
        pthread_mutex_unlock(&started_lock);
        if (!s)
            return;
        pthread_join(s->id, NULL);
        free(s->h);
        free(s);
    }
}
/* Thread memory is kept for host_join_threads. */
void thread_get(struct thread *t) { atomic_fetch_add(&t->refcount, 1); }
void thread_put(struct thread *t) { atomic_fetch_sub(&t->refcount, 1); }
void thread_set_nice(struct thread *t, int nice) {}
void thread_set_affinity(struct thread *t, const struct cpumask *mask) {}
void thread_yield(void) { host_yield(); }

static void set_state(struct host_thread *h, enum thread_state state)
{
    pthread_mutex_lock(&h->lock);
    atomic_store_relaxed(&h->thread.state, state);
    pthread_mutex_unlock(&h->lock);
}
bool thread_wake(struct thread *t)
{
    struct host_thread *h = (struct host_thread *)t;
    pthread_mutex_lock(&h->lock);
    bool asleep = t->state != THREAD_RUNNABLE;
    atomic_store_relaxed(&t->state, THREAD_RUNNABLE);
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    return asleep;
}
void thread_interrupt(struct thread *t)
{
    atomic_fetch_or(&t->pending, THREAD_SIGNAL);
    if (atomic_load_relaxed(&t->state) == THREAD_INTERRUPTIBLE)
        thread_wake(t);
}
void thread_kill(struct thread *t)
{
    atomic_fetch_or(&t->pending, THREAD_KILL);
    uint32_t state = atomic_load_relaxed(&t->state);
    if (state == THREAD_INTERRUPTIBLE || state == THREAD_KILLABLE)
        thread_wake(t);
}
static bool sleep_until_woken(uint64_t deadline_ns)
{
    struct host_thread *h = host_self();
    bool expired = false;
    pthread_mutex_lock(&h->lock);
    while (h->thread.state != THREAD_RUNNABLE && !expired) {
        if (deadline_ns == TIME_FOREVER) {
            pthread_cond_wait(&h->wake, &h->lock);
        } else {
            struct timespec ts = { (time_t)(deadline_ns / NSEC_PER_SEC), (long)(deadline_ns % NSEC_PER_SEC) };
            expired = pthread_cond_timedwait(&h->wake, &h->lock, &ts) != 0;
        }
    }
    atomic_store_relaxed(&h->thread.state, THREAD_RUNNABLE);
    pthread_mutex_unlock(&h->lock);
    return expired;
}
void schedule(void) { sleep_until_woken(TIME_FOREVER); }
int wait_schedule(enum thread_state state, uint64_t deadline_ns)
{
    uint32_t pending = atomic_load_relaxed(&current->pending);
    if ((state == THREAD_INTERRUPTIBLE && pending) || (state == THREAD_KILLABLE && (pending & THREAD_KILL)))
        return -EINTR;
    return sleep_until_woken(deadline_ns) ? -ETIMEDOUT : 0;
}
void sleep_until_ns(uint64_t deadline_ns)
{
    set_state(host_self(), THREAD_UNINTERRUPTIBLE);
    while (!sleep_until_woken(deadline_ns) && clock_monotonic_ns() < deadline_ns)
        set_state(host_self(), THREAD_UNINTERRUPTIBLE);
}
int sleep_until_ns_interruptible(uint64_t deadline_ns)
{
    set_state(host_self(), THREAD_INTERRUPTIBLE);
    int r = wait_schedule(THREAD_INTERRUPTIBLE, deadline_ns);
    return r == -EINTR ? -EINTR : 0;
}

/* ---- wait queues ---- */
void wait_queue_init(struct wait_queue *q)
{
    spin_init(&q->lock);
    list_init(&q->waiters);
}
static bool wake_waiter_thread(struct waiter *w, unsigned events)
{
    return thread_wake(w->thread) && w->exclusive;
}
void waiter_init(struct waiter *w, bool exclusive)
{
    *w = (struct waiter){ .fn = wake_waiter_thread, .thread = current, .exclusive = exclusive };
    list_init(&w->link);
}
void waiter_init_fn(struct waiter *w, bool (*fn)(struct waiter *, unsigned))
{
    *w = (struct waiter){ .fn = fn };
    list_init(&w->link);
}
static void queue_waiter_locked(struct wait_queue *q, struct waiter *w)
{
    if (w->queue)
        return;
    w->queue = q;
    if (w->exclusive)
        list_add_tail(&q->waiters, &w->link);
    else
        list_add(&q->waiters, &w->link);
}
void wait_queue_add(struct wait_queue *q, struct waiter *w)
{
    spin_lock(&q->lock);
    queue_waiter_locked(q, w);
    spin_unlock(&q->lock);
}
void wait_queue_remove(struct wait_queue *q, struct waiter *w)
{
    spin_lock(&q->lock);
    if (w->queue) {
        list_del(&w->link);
        w->queue = NULL;
    }
    spin_unlock(&q->lock);
}
void prepare_wait(struct wait_queue *q, struct waiter *w, enum thread_state state)
{
    spin_lock(&q->lock);
    queue_waiter_locked(q, w);
    set_state(host_self(), state);
    spin_unlock(&q->lock);
    barrier_full();
}
void finish_wait(struct wait_queue *q, struct waiter *w)
{
    set_state(host_self(), THREAD_RUNNABLE);
    wait_queue_remove(q, w);
}
void wake_events(struct wait_queue *q, unsigned events, unsigned exclusive_count)
{
    struct waiter *w, *next;
    spin_lock(&q->lock);
    list_for_each_entry_safe(w, next, &q->waiters, link) {
        if (w->fn(w, events) && exclusive_count && !--exclusive_count)
            break;
    }
    spin_unlock(&q->lock);
}
void wake_all(struct wait_queue *q) { wake_events(q, ~0u, 0); }
void wake_one(struct wait_queue *q) { wake_events(q, ~0u, 1); }

/* ---- sleeping locks: the kernel's own ---- */
#include "sched/mutex.c"

void spin_lock_slow(spinlock_t *l)
{
    for (unsigned i = 0; !spin_try_lock(l); i++) {
        if (i > 100)
            host_yield();
        cpu_relax();
    }
}

/* ---- clock and timers ---- */
static uint64_t clock_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}
uint64_t clock_monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t clock_realtime_ns(void) { return clock_ns(CLOCK_REALTIME); }
void clock_set_realtime_ns(uint64_t now_ns) {}
void clock_delay_ns(uint64_t ns)
{
    for (uint64_t end = clock_monotonic_ns() + ns; clock_monotonic_ns() < end;)
        cpu_relax();
}

static pthread_mutex_t timer_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t timer_change = PTHREAD_COND_INITIALIZER;
static struct timer *timers; /* linked through node.parent */
static struct timer *timer_running;
static pthread_t timer_thread_id;

static bool timer_unlink_locked(struct timer *t)
{
    for (struct timer **link = &timers; *link; link = (struct timer **)&(*link)->node.parent) {
        if (*link == t) {
            *link = (struct timer *)t->node.parent;
            t->state = 0;
            return true;
        }
    }
    return false;
}
static void *timer_main(void *arg)
{
    pthread_mutex_lock(&timer_lock);
    for (;;) {
        struct timer *first = NULL;
        for (struct timer *t = timers; t; t = (struct timer *)t->node.parent) {
            if (!first || t->deadline_ns < first->deadline_ns)
                first = t;
        }
        if (!first) {
            pthread_cond_wait(&timer_change, &timer_lock);
            continue;
        }
        uint64_t now = clock_monotonic_ns();
        if (first->deadline_ns > now) {
            uint64_t at = clock_realtime_ns() + MIN(first->deadline_ns - now, NSEC_PER_SEC);
            struct timespec ts = { (time_t)(at / NSEC_PER_SEC), (long)(at % NSEC_PER_SEC) };
            pthread_cond_timedwait(&timer_change, &timer_lock, &ts);
            continue;
        }
        timer_unlink_locked(first);
        timer_running = first;
        pthread_mutex_unlock(&timer_lock);
        first->fn(first);
        pthread_mutex_lock(&timer_lock);
        timer_running = NULL;
        pthread_cond_broadcast(&timer_change);
    }
    return NULL;
}
void timer_init(struct timer *t, void (*fn)(struct timer *))
{
    memset(t, 0, sizeof *t);
    t->fn = fn;
}
void timer_arm(struct timer *t, uint64_t deadline_ns)
{
    pthread_mutex_lock(&timer_lock);
    if (!timer_thread_id && pthread_create(&timer_thread_id, NULL, timer_main, NULL))
        abort();
    timer_unlink_locked(t);
    t->deadline_ns = deadline_ns;
    t->state = 1;
    t->node.parent = (struct rb_node *)timers;
    timers = t;
    pthread_cond_broadcast(&timer_change);
    pthread_mutex_unlock(&timer_lock);
}
bool timer_cancel(struct timer *t)
{
    pthread_mutex_lock(&timer_lock);
    bool armed = timer_unlink_locked(t);
    pthread_mutex_unlock(&timer_lock);
    return armed;
}
void timer_cancel_sync(struct timer *t)
{
    pthread_mutex_lock(&timer_lock);
    timer_unlink_locked(t);
    while (timer_running == t)
        pthread_cond_wait(&timer_change, &timer_lock);
    timer_unlink_locked(t);
    pthread_mutex_unlock(&timer_lock);
}
