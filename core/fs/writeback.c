/*
 * Background write-back: one thread that sleeps while nothing is dirty. A cache goes on the dirty list with its
 * first dirty page (holding a reference of its owner) and off it when it has none. File systems hook in for their
 * metadata.
 *
 * Lock: dirty_lock (spin, not for interrupts) guards the list; taken with no other lock held.
 */
#include "pagecache_internal.h"
#include "fs.h"
#include <weir/init.h>
#include <weir/printk.h>

#define DIRTY_AGE_NS (5 * NSEC_PER_SEC)
#define LIMIT_PERCENT 20
#define BACKGROUND_PERCENT 10

static spinlock_t dirty_lock = SPINLOCK_INIT;
static struct list dirty_caches = LIST_INIT(dirty_caches);
static struct wait_queue flusher_wait = WAIT_QUEUE_INIT(flusher_wait);
static struct wait_queue throttle_wait = WAIT_QUEUE_INIT(throttle_wait);
static uint64_t metadata_deadline_ns = TIME_FOREVER; /* a */
static bool flusher_running, flusher_stop;           /* a */

static uint64_t dirty_limit(unsigned percent) { return MAX(mm_total_pages() * percent / 100, 64ul); }
static bool above(unsigned percent)
{
    return atomic_load_relaxed(&pagecache_dirty_total) + atomic_load_relaxed(&pagecache_writeback_total) > dirty_limit(percent);
}

void writeback_cache_dirtied(struct pagecache *c)
{
    bool wake = false;
    /* The reference first: once listed, the flusher may find the cache clean and release it. */
    if (c->ops->hold)
        c->ops->hold(c);
    spin_lock(&dirty_lock);
    bool was_listed = c->listed;
    if (!was_listed) {
        atomic_store_relaxed(&c->listed, true);
        c->dirtied_ns = clock_monotonic_ns();
        wake = list_empty(&dirty_caches);
        list_add_tail(&dirty_caches, &c->dirty_link);
    }
    spin_unlock(&dirty_lock);
    if (was_listed && c->ops->release)
        c->ops->release(c);
    if (wake)
        wake_all(&flusher_wait);
}
void writeback_cache_clean(struct pagecache *c)
{
    bool release = false;
    if (!c->ops || !atomic_load_relaxed(&c->listed))
        return;
    spin_lock(&dirty_lock);
    /* The count is read under dirty_lock: who dirties the first page raises it before it comes here for the
     * lock, so either we see it, or it lists the cache again after us. */
    if (c->listed && !atomic_load_acquire(&c->dirty_count)) {
        list_del(&c->dirty_link);
        atomic_store_relaxed(&c->listed, false);
        release = true;
    }
    spin_unlock(&dirty_lock);
    if (release && c->ops->release)
        c->ops->release(c);
}

void writeback_metadata_dirtied(void)
{
    uint64_t never = TIME_FOREVER;
    if (atomic_load_relaxed(&metadata_deadline_ns) == TIME_FOREVER &&
        atomic_cas(&metadata_deadline_ns, &never, clock_monotonic_ns() + DIRTY_AGE_NS))
        wake_all(&flusher_wait);
}

/* The oldest cache dirtied at or before `before`, held for the caller; goes to the end of the list with a new age,
 * so that one that stays dirty does not starve the others. */
static struct pagecache *oldest(uint64_t before)
{
    struct pagecache *c = NULL;
    spin_lock(&dirty_lock);
    if (!list_empty(&dirty_caches)) {
        c = list_first(&dirty_caches, struct pagecache, dirty_link);
        if (c->dirtied_ns > before) {
            c = NULL;
        } else {
            if (c->ops->hold)
                c->ops->hold(c);
            list_del(&c->dirty_link);
            list_add_tail(&dirty_caches, &c->dirty_link);
            c->dirtied_ns = clock_monotonic_ns();
        }
    }
    spin_unlock(&dirty_lock);
    return c;
}
static uint64_t next_deadline(void)
{
    uint64_t at = atomic_load_relaxed(&metadata_deadline_ns);
    spin_lock(&dirty_lock);
    if (!list_empty(&dirty_caches))
        at = MIN(at, list_first(&dirty_caches, struct pagecache, dirty_link)->dirtied_ns + DIRTY_AGE_NS);
    spin_unlock(&dirty_lock);
    return at;
}

static void write_old(void)
{
    uint64_t now = clock_monotonic_ns();
    struct pagecache *c;
    /* Each cache at most once a round: those written get a dirtied_ns later than now. */
    while ((c = oldest(above(BACKGROUND_PERCENT) ? now : now - MIN(now, DIRTY_AGE_NS)))) {
        int r = pagecache_start_write(c, 0, UINT64_MAX - 1);
        if (r)
            log_warn("write-back: error %d", -r);
        if (c->ops->release)
            c->ops->release(c);
        if (!above(LIMIT_PERCENT))
            wake_all(&throttle_wait);
    }
    wake_all(&throttle_wait);
}

static void flusher(void *arg)
{
    while (!atomic_load_acquire(&flusher_stop)) {
        uint64_t deadline = next_deadline();
        if (!above(BACKGROUND_PERCENT) && deadline > clock_monotonic_ns()) {
            int r = wait_event_timeout(&flusher_wait, next_deadline() < deadline || above(BACKGROUND_PERCENT) ||
                                       atomic_load_acquire(&flusher_stop), deadline);
            (void)r; /* timed out or not: look again */
            continue;
        }
        write_old();
        if (atomic_load_relaxed(&metadata_deadline_ns) <= clock_monotonic_ns()) {
            atomic_store_relaxed(&metadata_deadline_ns, TIME_FOREVER);
            super_commit_all();
        }
        /* Above the limit with everything already under way: let completions come. */
        if (above(BACKGROUND_PERCENT))
            sleep_until_ns(clock_monotonic_ns() + 2 * NSEC_PER_MSEC);
    }
    atomic_store_release(&flusher_running, false);
    wake_all(&flusher_wait);
}

void writeback_start(void)
{
    if (atomic_exchange(&flusher_running, true))
        return;
    atomic_store_relaxed(&flusher_stop, false);
    struct thread *t = thread_create("flusher", flusher, NULL);
    if (!t)
        panic("no memory for the write-back thread");
    thread_start(t);
    thread_put(t);
}
void writeback_stop(void)
{
    if (!atomic_load_acquire(&flusher_running))
        return;
    atomic_store_release(&flusher_stop, true);
    wake_all(&flusher_wait);
    wait_event(&flusher_wait, !atomic_load_acquire(&flusher_running));
}

/* Every dirty cache written; used by sync and unmount. */
void writeback_all(void)
{
    uint64_t now = clock_monotonic_ns();
    struct pagecache *c;
    while ((c = oldest(now))) {
        int r = pagecache_write_and_wait(c, 0, UINT64_MAX - 1);
        if (r)
            log_warn("write-back: error %d", -r);
        if (c->ops->release)
            c->ops->release(c);
    }
}

void pagecache_throttle(void)
{
    if (likely(!above(LIMIT_PERCENT)))
        return;
    if (!atomic_load_relaxed(&flusher_running)) {
        writeback_all();
        return;
    }
    wake_all(&flusher_wait);
    wait_event(&throttle_wait, !above(LIMIT_PERCENT));
}
