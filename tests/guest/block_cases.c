/* What a disk may be or do beside working: hold data over a restart, be read-only, report errors, grow. The disks
 * are told apart by their serials. */
#include <weir/atomic.h>
#include <weir/cmdline.h>
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "block_util.h"

#define CHUNK (64u << 10)

static struct block_device *by_serial(const char *serial)
{
    for (struct block_device *d = NULL; (d = block_next(d));) {
        if (!strcmp(d->serial, serial))
            return d;
    }
    return NULL;
}

/* The first 8 MiB of each scratch disk. */
static uint64_t persist_bytes(const struct block_device *d)
{
    return MIN(d->capacity_sectors << SECTOR_SHIFT, 8UL << 20) / CHUNK * CHUNK;
}

static int fill(struct block_device *d, char *buf)
{
    for (uint64_t at = 0; at < persist_bytes(d); at += CHUNK) {
        pattern_fill(buf, CHUNK, d, at >> SECTOR_SHIFT, 1234);
        int error = block_write(d, at, buf, CHUNK);
        if (error)
            return error;
    }
    return block_flush(d);
}

static int compare(struct block_device *d, char *buf)
{
    for (uint64_t at = 0; at < persist_bytes(d); at += CHUNK) {
        int error = block_read(d, at, buf, CHUNK);
        if (error)
            return error;
        if (!pattern_check(buf, CHUNK, d, at >> SECTOR_SHIFT, 1234))
            return -EIO;
    }
    return 0;
}

/* Both in one boot, or with test.persist=fill and test.persist=compare in two. */
GUEST_TEST(block_persist)
{
    const char *only = cmdline_get("test.persist");
    if (!scratch_count())
        return disk_absent("scratch");
    char *buf = kmalloc(CHUNK);
    GUEST_CHECK(buf);
    for (struct block_device *d = NULL; (d = scratch_next(d));) {
        if (!only || !strcmp(only, "fill"))
            GUEST_CHECK(fill(d, buf) == 0);
        if (!only || !strcmp(only, "compare"))
            GUEST_CHECK(compare(d, buf) == 0);
    }
    kfree(buf);
    return 0;
}

/* Zeroing and discarding touch the asked range and nothing beside it, whatever the block size. */
GUEST_TEST(block_zeroes)
{
    enum { BLOCKS = 64, FROM = 17, COUNT = 30 };
    struct block_device *d = scratch_next(NULL);
    if (!d || !d->has_write_zeroes)
        return disk_absent("scratch");
    size_t unit = MAX(d->logical_block, 4096u), len = BLOCKS * unit;
    char *buf = kmalloc(len);
    GUEST_CHECK(buf);
    pattern_fill(buf, len, d, 0, 77);
    GUEST_CHECK(block_write(d, 0, buf, len) == 0);
    struct block_request r = { .device = d, .op = BLOCK_WRITE_ZEROES,
                               .sector = FROM * unit >> SECTOR_SHIFT,
                               .sector_count = COUNT * unit >> SECTOR_SHIFT };
    GUEST_CHECK(block_submit_wait(&r) == 0);
    if (d->has_discard) {
        r.op = BLOCK_DISCARD;
        GUEST_CHECK(block_submit_wait(&r) == 0);
    }
    memset(buf, 0xee, len);
    GUEST_CHECK(block_read(d, 0, buf, len) == 0);
    GUEST_CHECK(pattern_check(buf, FROM * unit, d, 0, 77));
    size_t end = (FROM + COUNT) * unit;
    GUEST_CHECK(pattern_check(buf + end, len - end, d, end >> SECTOR_SHIFT, 77));
    for (size_t i = FROM * unit; i < end && !d->has_discard; i++)
        GUEST_CHECK(buf[i] == 0);
    r.sector++;
    if (d->logical_block > SECTOR_SIZE)
        GUEST_CHECK(block_submit_wait(&r) == -EINVAL);
    kfree(buf);
    return 0;
}

/* Rule 87: refused above the driver, without touching the device; flush is nothing to do. */
GUEST_TEST(block_read_only)
{
    struct block_device *d = by_serial("readonly");
    if (!d)
        return disk_absent("readonly");
    struct block_stats before, after;
    char *buf = kzalloc(4096);
    GUEST_CHECK(buf && d->read_only);
    GUEST_CHECK(block_read(d, 0, buf, 4096) == 0);
    block_stats(d, &before);
    GUEST_CHECK(block_write(d, 0, buf, 4096) == -EROFS);
    GUEST_CHECK(block_flush(d) == 0);
    struct block_request r = { .device = d, .op = BLOCK_WRITE_ZEROES, .sector_count = 8 };
    GUEST_CHECK(block_submit_wait(&r) == -EROFS);
    block_stats(d, &after);
    GUEST_CHECK(before.device_requests == after.device_requests);
    kfree(buf);
    return 0;
}

/* A disk that fails its first write, read and flush, once each: that request has the error, the next has not. */
GUEST_TEST(block_errors)
{
    struct block_device *d = by_serial("faulty");
    if (!d)
        return disk_absent("faulty");
    char *buf = kzalloc(4096);
    GUEST_CHECK(buf);
    GUEST_CHECK(block_write(d, 1 << 20, buf, 4096) == -EIO);
    GUEST_CHECK(block_write(d, 1 << 20, buf, 4096) == 0);
    GUEST_CHECK(block_read(d, 1 << 20, buf, 4096) == -EIO);
    GUEST_CHECK(block_read(d, 1 << 20, buf, 4096) == 0);
    GUEST_CHECK(block_flush(d) == -EIO);
    GUEST_CHECK(block_flush(d) == 0);
    kfree(buf);
    return 0;
}

/* Rule 79: the size is read again when the device says that its configuration changed. The other side resizes the
 * disk to 96 MiB when it reads the line. */
GUEST_TEST(block_resize)
{
    struct block_device *d = by_serial("grows");
    if (!d)
        return disk_absent("grows");
    char *buf = kzalloc(4096);
    GUEST_CHECK(buf);
    GUEST_CHECK(block_write(d, 80UL << 20, buf, 4096) == -EINVAL);
    log_info("block_resize: waiting");
    uint64_t deadline = clock_monotonic_ns() + 60 * NSEC_PER_SEC;
    while (atomic_load_relaxed(&d->capacity_sectors) != 96 << 11) {
        GUEST_CHECK(clock_monotonic_ns() < deadline);
        sleep_until_ns(clock_monotonic_ns() + 10 * NSEC_PER_MSEC);
    }
    GUEST_CHECK(block_write(d, 80UL << 20, buf, 4096) == 0);
    kfree(buf);
    return 0;
}
