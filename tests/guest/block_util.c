#include <weir/cmdline.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "block_util.h"

#define CROWD_TIMEOUT_NS (120 * NSEC_PER_SEC)

static bool is_scratch(const struct block_device *d)
{
    if (d->read_only)
        return false;
    if (!strncmp(d->serial, "scratch", 7))
        return true;
    return cmdline_bool("test.scratch", false) && strcmp(d->name, "vda");
}

struct block_device *scratch_next(struct block_device *after)
{
    do
        after = block_next(after);
    while (after && !is_scratch(after));
    return after;
}

unsigned scratch_count(void)
{
    unsigned n = 0;
    for (struct block_device *d = NULL; (d = scratch_next(d));)
        n++;
    return n;
}

static bool is_expected(const char *serial)
{
    const char *tests = cmdline_get("test"), *disks = cmdline_get("test.disks");
    if (tests && *tests && strcmp(tests, "all"))
        return true;
    return disks && strstr(disks, serial);
}

int disk_absent(const char *serial)
{
    if (is_expected(serial)) {
        log_error("no disk with the serial `%s`, and the test needs it", serial);
        return 1;
    }
    log_warn("no disk with the serial `%s`: not tested", serial);
    return 0;
}

static uint64_t pattern_word(const struct block_device *d, uint64_t sector, unsigned round,
                             unsigned word)
{
    uint64_t x = sector * 64 + word + ((uint64_t)round << 40) + ((uint64_t)d->name[2] << 56);
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15UL;
    return x ^ (x >> 29);
}

void pattern_fill(void *buf, size_t len, struct block_device *d, uint64_t sector, unsigned round)
{
    uint64_t *w = buf;
    for (size_t i = 0; i < len / 8; i++)
        w[i] = pattern_word(d, sector + i / 64, round, i % 64);
}

bool pattern_check(const void *buf, size_t len, struct block_device *d, uint64_t sector,
                   unsigned round)
{
    const uint64_t *w = buf;
    for (size_t i = 0; i < len / 8; i++) {
        uint64_t want = pattern_word(d, sector + i / 64, round, i % 64);
        if (w[i] != want) {
            log_error("%s: sector %lu word %u is %016lx, not %016lx (round %u)", d->name,
                      (unsigned long)(sector + i / 64), (unsigned)(i % 64), (unsigned long)w[i],
                      (unsigned long)want, round);
            return false;
        }
    }
    return true;
}

static void member_thread(void *arg)
{
    struct crowd_member *m = arg;
    struct crowd *c = m->crowd;
    int error = m->work(m);
    if (error) {
        log_error("block test: thread %u on %s, CPU %u: error %d", m->id, m->disk->name, m->cpu,
                  -error);
        atomic_fetch_add(&c->failed, 1);
    }
    atomic_fetch_sub(&c->running, 1);
    wake_all(&c->done);
    thread_exit();
}

static bool start_member(struct crowd_member *m)
{
    struct thread *t = thread_create("block-test", member_thread, m);
    if (!t)
        return false;
    struct cpumask mask = { { 0 } };
    bitmap_set(mask.bits, m->cpu);
    thread_set_affinity(t, &mask);
    atomic_fetch_add(&m->crowd->running, 1);
    thread_start(t);
    thread_put(t);
    return true;
}

unsigned crowd_run(int (*work)(struct crowd_member *m), unsigned per_disk)
{
    static struct crowd crowd; /* outlives members that never end */
    unsigned n = 0, total = scratch_count() * per_disk;
    wait_queue_init(&crowd.done);
    crowd.failed = crowd.running = 0;
    struct crowd_member *members = kcalloc(total, sizeof(*members));
    if (!members)
        return 1;
    for (struct block_device *d = NULL; (d = scratch_next(d));) {
        for (unsigned i = 0; i < per_disk; i++, n++) {
            members[n] = (struct crowd_member){ work, d, i % cpu_count(), i, &crowd };
            if (!start_member(&members[n]))
                atomic_fetch_add(&crowd.failed, 1);
        }
    }
    uint64_t deadline = clock_monotonic_ns() + CROWD_TIMEOUT_NS;
    int late = wait_event_timeout(&crowd.done, atomic_load_acquire(&crowd.running) == 0, deadline);
    if (late) {
        log_error("block test: %u threads did not end", atomic_load_relaxed(&crowd.running));
        return crowd.failed + crowd.running;
    }
    kfree(members);
    return crowd.failed;
}
