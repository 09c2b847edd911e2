/* Disks under load: everything written is read back from the device and compared. */
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/irq.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "block_util.h"

#define VERIFY_ROUNDS 6u
#define VERIFY_BYTES  (96u << 10) /* more than one device request of 62 pages when scattered */

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}


/* The part of the disk that thread i of n has to itself, in bytes. */
static uint64_t slice_bytes(const struct block_device *d, unsigned n)
{
    return ALIGN_DOWN((d->capacity_sectors << SECTOR_SHIFT) / n, (uint64_t)d->logical_block);
}

/* Write somewhere in the slice, read it back, compare; sizes and places differ each round. */
static int verify_work(struct crowd_member *m)
{
    struct block_device *d = m->disk;
    uint64_t slice = slice_bytes(d, cpu_count());
    unsigned seed = m->id * 7919u + (unsigned)d->name[2];
    char *buf = kmalloc(VERIFY_BYTES);
    if (!buf)
        return -ENOMEM;
    int error = 0;
    for (unsigned round = 0; !error && round < VERIFY_ROUNDS; round++) {
        size_t most = MIN((size_t)VERIFY_BYTES, slice) / d->logical_block;
        size_t len = (1 + next_random(&seed) % most) * d->logical_block;
        uint64_t room = (slice - len) / d->logical_block + 1;
        uint64_t at = m->id * slice + next_random(&seed) % room * d->logical_block;
        pattern_fill(buf, len, d, at >> SECTOR_SHIFT, round);
        error = block_write(d, at, buf, len);
        if (error)
            break;
        memset(buf, 0xee, len);
        error = block_read(d, at, buf, len);
        if (!error && !pattern_check(buf, len, d, at >> SECTOR_SHIFT, round))
            error = -EIO;
    }
    if (!error)
        error = block_flush(d);
    kfree(buf);
    return error;
}

static bool quiet(void)
{
    if (irq_watchdog_rescues()) {
        log_error("%lu completions were found by the watchdog only",
                  (unsigned long)irq_watchdog_rescues());
        return false;
    }
    for (struct block_device *d = NULL; (d = scratch_next(d));) {
        struct block_stats s;
        block_stats(d, &s);
        if (s.in_flight) {
            log_error("%s: %lu requests still in flight", d->name, (unsigned long)s.in_flight);
            return false;
        }
    }
    return true;
}

/* Every disk and every queue at the same time, one thread for each CPU and disk. */
GUEST_TEST(block_verify)
{
    if (!scratch_count())
        return disk_absent("scratch");
    GUEST_CHECK(crowd_run(verify_work, cpu_count()) == 0);
    for (struct block_device *d = NULL; (d = scratch_next(d));) {
        struct block_stats s;
        block_stats(d, &s);
        log_info("%s: %lu requests, %lu to the device, %lu doorbells, %lu waits for room, %u queues",
                 d->name, (unsigned long)s.requests, (unsigned long)s.device_requests,
                 (unsigned long)s.doorbells, (unsigned long)s.full_waits, s.queues_used);
        GUEST_CHECK(s.queues_used == d->queue_count);
    }
    GUEST_CHECK(quiet());
    return 0;
}

/* Far more segments and bytes than any device request takes: split, and in the right order. */
GUEST_TEST(block_split)
{
    enum { SEGMENTS = 1000, BYTES = SEGMENTS * 4096 };
    if (!scratch_count())
        return disk_absent("scratch");
    struct block_device *d = scratch_next(NULL);
    char *buf = kmalloc(BYTES);
    struct block_segment *segments = kcalloc(SEGMENTS, sizeof(*segments));
    GUEST_CHECK(buf && segments);
    pattern_fill(buf, BYTES, d, 0, 99);
    /* Segment i of the request is page (i * 7) mod n: neighbours never touch in memory. */
    for (unsigned i = 0; i < SEGMENTS; i++)
        segments[i] = (struct block_segment){ virt_to_phys(buf + i * 7 % SEGMENTS * 4096), 4096 };
    struct block_request r = { .device = d, .op = BLOCK_WRITE, .segments = segments,
                               .segment_count = SEGMENTS };
    GUEST_CHECK((uint64_t)BYTES <= d->capacity_sectors << SECTOR_SHIFT);
    GUEST_CHECK(block_submit_wait(&r) == 0);
    char *back = kmalloc(BYTES);
    GUEST_CHECK(back);
    GUEST_CHECK(block_read(d, 0, back, BYTES) == 0);
    for (unsigned i = 0; i < SEGMENTS; i++)
        GUEST_CHECK(!memcmp(back + i * 4096, buf + i * 7 % SEGMENTS * 4096, 4096));
    kfree(back);
    kfree(segments);
    kfree(buf);
    GUEST_CHECK(quiet());
    return 0;
}

/* What must be refused is refused, with the right error, and before the device sees it. */
GUEST_TEST(block_refused)
{
    if (!scratch_count())
        return disk_absent("scratch");
    struct block_device *d = scratch_next(NULL);
    static char sector[4096] __attribute__((aligned(4096)));
    uint64_t end = d->capacity_sectors << SECTOR_SHIFT;
    struct block_stats before, after;
    block_stats(d, &before);
    GUEST_CHECK(block_read(d, end, sector, 4096) == -EINVAL);
    GUEST_CHECK(block_read(d, UINT64_MAX - 511 - 4096, sector, 4096) == -EINVAL);
    GUEST_CHECK(block_read(d, 1, sector, 4096) == -EINVAL);
    GUEST_CHECK(block_write(d, 0, sector, 100) == -EINVAL);
    block_stats(d, &after);
    GUEST_CHECK(after.device_requests == before.device_requests);
    return 0;
}

struct plug_state {
    unsigned left; /* a */
    int status;    /* a */
    struct completion all;
};

static void plug_end(struct block_request *r, int status)
{
    struct plug_state *s = r->arg;
    if (status)
        atomic_store_relaxed(&s->status, status);
    if (atomic_fetch_sub(&s->left, 1) == 1)
        completion_complete(&s->all);
}

/* Thirty-two requests that go out together cost one doorbell, not thirty-two. */
GUEST_TEST(block_plug)
{
    enum { COUNT = 32 };
    if (!scratch_count())
        return disk_absent("scratch");
    struct block_device *d = scratch_next(NULL);
    char *buf = kmalloc(COUNT * 4096);
    struct block_request *r = kcalloc(COUNT, sizeof(*r));
    struct block_segment *segments = kcalloc(COUNT, sizeof(*segments));
    GUEST_CHECK(buf && r && segments);
    static struct plug_state state;
    state.left = COUNT;
    state.status = 0;
    completion_init(&state.all);
    struct block_stats before, after;
    block_stats(d, &before);
    struct block_plug plug;
    block_plug_start(&plug);
    for (unsigned i = 0; i < COUNT; i++) {
        segments[i] = (struct block_segment){ virt_to_phys(buf + i * 4096), 4096 };
        r[i] = (struct block_request){ .device = d, .op = BLOCK_READ, .sector = i * 8,
                                       .segments = &segments[i], .segment_count = 1,
                                       .end = plug_end, .arg = &state };
        block_submit_plugged(&plug, &r[i]);
    }
    block_plug_finish(&plug);
    completion_wait(&state.all);
    block_stats(d, &after);
    GUEST_CHECK(state.status == 0);
    GUEST_CHECK(after.requests - before.requests == COUNT);
    /* A ring too small for the batch needs one more each time it was full. */
    GUEST_CHECK(after.doorbells - before.doorbells <= 1 + after.full_waits - before.full_waits);
    kfree(segments);
    kfree(r);
    kfree(buf);
    return 0;
}

/* Far more submitters than any ring holds: all get through. */
static int crowd_work(struct crowd_member *m)
{
    struct block_device *d = m->disk;
    char *buf = kmalloc(4096);
    if (!buf)
        return -ENOMEM;
    int error = 0;
    for (unsigned i = 0; !error && i < 32; i++) {
        uint64_t at = (uint64_t)(m->id * 32 + i) * 4096 % ((d->capacity_sectors << SECTOR_SHIFT) - 4096);
        at = ALIGN_DOWN(at, 4096UL);
        error = block_write(d, at, buf, 4096);
        if (!error && i % 8 == 7)
            error = block_flush(d);
    }
    kfree(buf);
    return error;
}

GUEST_TEST(block_crowd)
{
    if (!scratch_count())
        return disk_absent("scratch");
    GUEST_CHECK(crowd_run(crowd_work, 48) == 0);
    GUEST_CHECK(quiet());
    return 0;
}
