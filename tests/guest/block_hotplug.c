/*
 * Disks that come and go under load. Each scratch disk, whenever it appears, gets threads that write, read back
 * and compare until the disk says -ENODEV or the test ends. The test ends when `test.rounds` disks have gone.
 * Whoever plugs waits for the line "loaded" of a disk before pulling it out. A disk whose serial starts with
 * `scratch-liar` may answer -EIO: its load goes on, and says when it is served again.
 */
#include <weir/atomic.h>
#include <weir/cmdline.h>
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/irq.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "block_util.h"

#define CHUNK        (16u << 10)
#define SLICE        (1u << 20)
#define THREADS      4u
#define LOADED_AFTER 20u /* verified chunks of a thread */
#define DISKS_MAX    16u
#define TIMEOUT_NS   (600 * NSEC_PER_SEC)

struct loaded_disk {
    struct block_device *disk; /* NULL = free; the load's reference */
    unsigned running;          /* a threads; the last one frees the slot */
    unsigned ready;            /* a threads that have verified LOADED_AFTER chunks */
    bool went;                 /* a */
    unsigned errors, rounds;   /* a that were answered -EIO; that were verified */
};
struct load_thread {
    struct loaded_disk *of;
    unsigned id;
};

static struct loaded_disk disks[DISKS_MAX];
static bool stop;           /* a */
static unsigned went, failed; /* a */
static struct wait_queue changed = WAIT_QUEUE_INIT(changed);

static int verify_one(struct block_device *d, char *buf, unsigned id, unsigned round)
{
    uint64_t at = (uint64_t)id * SLICE + round * CHUNK % SLICE;
    pattern_fill(buf, CHUNK, d, at >> SECTOR_SHIFT, round);
    int error = block_write(d, at, buf, CHUNK);
    if (!error) {
        memset(buf, 0, CHUNK);
        error = block_read(d, at, buf, CHUNK);
    }
    if (!error && !pattern_check(buf, CHUNK, d, at >> SECTOR_SHIFT, round))
        return -EBADMSG;
    return error;
}

static void load_thread(void *arg)
{
    struct load_thread *t = arg;
    struct loaded_disk *l = t->of;
    struct block_device *d = l->disk;
    char *buf = kmalloc(CHUNK);
    int error = buf ? 0 : -ENOMEM;
    bool liar = !strncmp(d->serial, "scratch-liar", 12), after_error = false;
    for (unsigned round = 0; !error && !atomic_load_relaxed(&stop); round++) {
        error = verify_one(d, buf, t->id, round);
        if (error == -EIO && liar) {
            atomic_fetch_add(&l->errors, 1);
            after_error = true;
            error = 0;
            sleep_until_ns(clock_monotonic_ns() + 10 * NSEC_PER_MSEC); /* a fenced disk answers at once */
        } else if (!error) {
            atomic_fetch_add(&l->rounds, 1);
            if (after_error)
                log_info("block test: %s is served again", d->name);
            after_error = false;
        }
        if (round == LOADED_AFTER && atomic_fetch_add(&l->ready, 1) + 1 == THREADS)
            log_info("block test: %s loaded", d->name);
        cond_resched();
    }
    if (error == -ENODEV) {
        atomic_store_relaxed(&l->went, true);
    } else if (error) {
        log_error("block test: %s: error %d", d->name, -error);
        atomic_fetch_add(&failed, 1);
    }
    kfree(buf);
    kfree(t);
    if (atomic_fetch_sub(&l->running, 1) == 1) {
        /* A disk that was pulled out is found until its driver has been told: not to be loaded again. */
        while (atomic_load_relaxed(&l->went) && !atomic_load_relaxed(&d->removed))
            sleep_until_ns(clock_monotonic_ns() + NSEC_PER_MSEC);
        atomic_fetch_add(&went, atomic_load_relaxed(&l->went));
        log_info("block test: %s: load has ended, %u rounds, %u errors", d->name, l->rounds, l->errors);
        block_put(d);
        atomic_store_release(&l->disk, NULL); /* the slot is free once it is empty */
        wake_all(&changed);
    }
    thread_exit();
}

static bool is_loaded(const struct block_device *d)
{
    for (unsigned i = 0; i < DISKS_MAX; i++) {
        if (atomic_load_acquire(&disks[i].disk) == d)
            return true;
    }
    return false;
}

static void load(struct block_device *d)
{
    for (unsigned i = 0; i < DISKS_MAX; i++) {
        struct loaded_disk *l = &disks[i];
        if (atomic_load_acquire(&l->disk))
            continue;
        block_get(d);
        *l = (struct loaded_disk){ .disk = d, .running = THREADS };
        for (unsigned t = 0; t < THREADS; t++) {
            struct load_thread *arg = kmalloc(sizeof(*arg));
            struct thread *thread = arg ? thread_create("block-load", load_thread, arg) : NULL;
            if (!thread)
                panic("block test: no memory");
            *arg = (struct load_thread){ l, t };
            thread_start(thread);
            thread_put(thread);
        }
        return;
    }
}

static bool all_ended(void)
{
    for (unsigned i = 0; i < DISKS_MAX; i++) {
        if (atomic_load_acquire(&disks[i].disk))
            return false;
    }
    return true;
}

GUEST_TEST(block_hotplug)
{
    static char plan[8192];
    unsigned rounds = (unsigned)cmdline_u64("test.rounds", 0);
    uint64_t deadline = clock_monotonic_ns() + TIMEOUT_NS;
    size_t free_before = 0;
    while (rounds && atomic_load_relaxed(&went) < rounds && !atomic_load_relaxed(&failed)) {
        GUEST_CHECK(clock_monotonic_ns() < deadline);
        for (struct block_device *d = NULL; (d = scratch_next(d));) {
            if (!is_loaded(d))
                load(d);
        }
        /* Memory is compared from the second disk that went on: the first fills caches. */
        if (!free_before && atomic_load_relaxed(&went) == 1)
            free_before = mm_free_pages();
        sleep_until_ns(clock_monotonic_ns() + 5 * NSEC_PER_MSEC);
    }
    atomic_store_relaxed(&stop, true);
    GUEST_CHECK(wait_event_timeout(&changed, all_ended(), deadline) == 0);
    /* The last disk's requests have ended; its driver may still be taking it down. */
    sleep_until_ns(clock_monotonic_ns() + NSEC_PER_SEC);
    irq_plan_print(plan, sizeof(plan));
    for (char *line = plan, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        log_info("%s", line);
    }
    if (rounds > 1)
        log_info("block test: %u disks went, %ld pages fewer are free", atomic_load_relaxed(&went),
                 (long)free_before - (long)mm_free_pages());
    GUEST_CHECK(!atomic_load_relaxed(&failed));
    return 0;
}
