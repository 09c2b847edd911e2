/*
 * `bench=blk:KEY=VALUE,...`: load on disks without any program, as an I/O benchmark does it (docs/bench.md).
 *
 * Each disk is cut into as many parts as there are jobs; a job works on its own part only. The first 4 KiB of the
 * disk hold the seal of a verified run. Ends the machine: status 0, or 1 after an error or a mismatch.
 */
#include <weir/atomic.h>
#include <weir/bench.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "bench.h"

#define SEAL_BYTES 4096u /* a multiple of every logical block up to it; larger blocks are refused */
#define DISKS_MAX  64u

struct disk {
    struct block_device *device;
    struct bench_lane **lanes;   /* run.o.jobs of them */
    struct bench_seal seal;      /* verify=check: what the earlier run has left */
    uint64_t area_sectors;       /* of each lane */
    struct block_stats before, after;
};
static struct bench_run run;
static struct disk disks[DISKS_MAX];
static unsigned disk_count;

/* ---- which disks ---- */

static const char *why_not(const struct block_device *d, const struct bench_options *o)
{
    if (atomic_load_relaxed(&d->mounted) && (o->writes || o->verify != BENCH_UNVERIFIED))
        return "a file system on it is mounted";
    if (o->writes && o->verify != BENCH_VERIFY_CHECK && d->read_only)
        return "it is read-only";
    if (o->block_bytes % d->logical_block || d->logical_block > SEAL_BYTES)
        return "bs is not a multiple of its blocks";
    if (o->poll && !d->poll_queue_count)
        return "it has no polled queues (blk.poll_queues=N makes them)";
    return NULL;
}

static int choose_disks(const struct bench_options *o)
{
    bool all = !strcmp(o->dev, "all");
    for (struct block_device *d = NULL; (d = block_next(d));) {
        if (!bench_options_name(o, d->name) || (all && atomic_load_relaxed(&d->mounted)))
            continue;
        const char *why = why_not(d, o);
        if (why || disk_count == DISKS_MAX) {
            log_error("bench=blk: %s cannot be used: %s", d->name, why ? why : "too many disks");
            return -EINVAL;
        }
        block_get(d); /* for the rest of the machine's life */
        disks[disk_count++].device = d;
    }
    unsigned named = 1;
    for (const char *p = o->dev; *p; p++)
        named += *p == '+';
    if (disk_count && (all || disk_count == named))
        return 0;
    log_error("bench=blk: dev=%s: no such disk%s", o->dev, all ? ", only mounted ones" : "");
    return -ENODEV;
}

/* ---- the seal ---- */

static int write_seal(struct disk *k, struct bench_seal seal)
{
    struct block_device *d = k->device;
    char *block = kzalloc(SEAL_BYTES);
    if (!block)
        return -ENOMEM;
    if (seal.run)
        bench_seal_make(&seal);
    memcpy(block, &seal, sizeof(seal));
    /* The data is on the medium before the seal says so, and the seal before we say so. */
    int error = block_flush(d);
    if (!error)
        error = block_write(d, 0, block, SEAL_BYTES);
    if (!error)
        error = block_flush(d);
    kfree(block);
    if (error)
        log_error("bench: %s: the seal cannot be written: error %d", d->name, -error);
    return error;
}

static int read_seal(struct disk *k)
{
    char *block = kzalloc(SEAL_BYTES);
    if (!block)
        return -ENOMEM;
    int error = block_read(k->device, 0, block, SEAL_BYTES);
    memcpy(&k->seal, block, sizeof(k->seal));
    kfree(block);
    if (!error && !bench_seal_valid(&k->seal)) {
        log_error("bench: %s: no seal: no verified run has ended on it", k->device->name);
        error = -ENOENT;
    }
    return error;
}

/* ---- lanes ---- */

static int make_lanes(struct disk *k)
{
    const struct bench_options *o = &run.o;
    uint64_t first = SEAL_BYTES >> SECTOR_SHIFT, block = o->block_bytes >> SECTOR_SHIFT;
    uint64_t end = atomic_load_relaxed(&k->device->capacity_sectors);
    if (o->size_bytes)
        end = MIN(end, o->size_bytes >> SECTOR_SHIFT);
    first = DIV_ROUND_UP(first, block) * block;
    uint64_t blocks = end > first ? (end - first) / block / o->jobs : 0;
    if (blocks <= o->depth || blocks > UINT32_MAX) {
        log_error("bench=blk: %s: %lu blocks for each job; a depth of %u wants more of them (size=, bs=)",
                  k->device->name, (unsigned long)blocks, o->depth);
        return -EINVAL;
    }
    k->area_sectors = blocks * block;
    k->lanes = kcalloc(o->jobs, sizeof(struct bench_lane *));
    if (!k->lanes)
        return -ENOMEM;
    bool check = o->verify == BENCH_VERIFY_CHECK;
    for (unsigned j = 0; j < o->jobs; j++) {
        struct bench_area area = { first + j * k->area_sectors, k->area_sectors };
        k->lanes[j] = bench_lane_create(&run, k->device, j, area, check ? k->seal.run : run.run);
        if (!k->lanes[j]) {
            log_error("bench=blk: no memory for %u jobs of depth %u on %u disks", o->jobs, o->depth, disk_count);
            return -ENOMEM;
        }
    }
    return 0;
}

static int prepare(void)
{
    for (unsigned i = 0; i < disk_count; i++) {
        struct disk *k = &disks[i];
        int error = 0;
        if (run.o.verify == BENCH_VERIFY_CHECK)
            error = read_seal(k);
        else if (run.o.writes)
            error = write_seal(k, (struct bench_seal){ 0 }); /* what an earlier run has sealed is going */
        if (!error)
            error = make_lanes(k);
        if (error)
            return error;
    }
    for (unsigned i = 0; i < disk_count; i++) {
        for (unsigned j = 0; j < run.o.jobs; j++) {
            if (bench_lane_start(disks[i].lanes[j]))
                panic("bench: no memory for %u threads", disk_count * run.o.jobs);
        }
    }
    return 0;
}

static void next_phase(enum bench_phase phase)
{
    /* Lanes that see the phase see what it stands for. */
    atomic_store_release(&run.phase, phase);
    wake_all(&run.wait);
}

/* ---- the report ---- */

struct moment {
    uint64_t ns;
    struct sched_totals sched;
};

static void look(struct moment *m, bool before)
{
    for (unsigned i = 0; i < disk_count; i++)
        block_stats(disks[i].device, before ? &disks[i].before : &disks[i].after);
    sched_totals(&m->sched);
    m->ns = clock_monotonic_ns();
}

struct text {
    char buf[768];
    size_t used;
};

static void put(struct text *t, const char *key, uint64_t n)
{
    t->used += (size_t)scnprintf(t->buf + t->used, sizeof(t->buf) - t->used, " %s=%lu", key, (unsigned long)n);
}

/* a / b with three decimals */
static void put_ratio(struct text *t, const char *key, uint64_t a, uint64_t b)
{
    uint64_t milli = b ? (a * 1000 + b / 2) / b : 0;
    t->used += (size_t)scnprintf(t->buf + t->used, sizeof(t->buf) - t->used, " %s=%lu.%03lu", key,
                                 (unsigned long)(milli / 1000), (unsigned long)(milli % 1000));
}

static void put_latencies(struct text *t, const struct bench_histogram *h)
{
    put_ratio(t, "mean_us", h->total ? h->sum_ns / h->total : 0, 1000);
    put_ratio(t, "p50_us", bench_histogram_at(h, 500), 1000);
    put_ratio(t, "p99_us", bench_histogram_at(h, 990), 1000);
    put_ratio(t, "p999_us", bench_histogram_at(h, 999), 1000);
    put_ratio(t, "max_us", h->max_ns, 1000);
}

/* Switches and exits are the whole machine's: there is no saying whose they were. An exit is a doorbell, a halt or
 * an interrupt that one CPU sends another. */
static void put_costs(struct text *t, const struct disk *k, uint64_t ios, uint64_t all_ios,
                      const struct moment *a, const struct moment *b)
{
    uint64_t doorbells = 0;
    for (unsigned i = 0; i < disk_count; i++)
        doorbells += disks[i].after.doorbells - disks[i].before.doorbells;
    put_ratio(t, "interrupts_per_io", k->after.interrupts - k->before.interrupts, ios);
    put_ratio(t, "doorbells_per_io", k->after.doorbells - k->before.doorbells, ios);
    put_ratio(t, "switches_per_io", b->sched.switches - a->sched.switches, all_ios);
    put_ratio(t, "exits_per_io",
              doorbells + b->sched.halts - a->sched.halts + b->sched.kicks - a->sched.kicks, all_ios);
}

/* The seals fit what was read? Counts a difference as a mismatch. */
static void compare_seal(const struct disk *k, struct bench_totals *t)
{
    if (k->seal.sectors == t->verified && k->seal.sum == t->sum)
        return;
    log_error("bench: %s: %lu sectors of the run are there, %lu were sealed%s", k->device->name,
              (unsigned long)t->verified, (unsigned long)k->seal.sectors,
              k->seal.sectors == t->verified ? ", and some are older than that" : "");
    t->mismatches += !t->mismatches;
}

static bool report(struct disk *k, uint64_t all_ios, const struct moment *a, const struct moment *b)
{
    const struct bench_options *o = &run.o;
    static struct bench_histogram h;
    struct bench_totals t = { 0 };
    memset(&h, 0, sizeof(h));
    for (unsigned j = 0; j < o->jobs; j++)
        bench_lane_totals(k->lanes[j], &t, &h);
    bool check = o->verify == BENCH_VERIFY_CHECK;
    if (check)
        compare_seal(k, &t);
    bool ok = !t.errors && !t.mismatches;
    struct bench_seal seal = { .run = run.run, .area_sectors = k->area_sectors, .sectors = t.verified, .sum = t.sum };
    if (ok && o->verify == BENCH_VERIFY_WRITTEN)
        ok = write_seal(k, seal) == 0;
    static struct text text;
    text.used = 0;
    put(&text, "bs", o->block_bytes);
    put(&text, "depth", o->depth);
    put(&text, "jobs", o->jobs);
    put(&text, "queues", k->device->queue_count);
    put(&text, "queues_used", k->after.queues_used);
    put(&text, "poll_queues", k->device->poll_queue_count);
    put(&text, "poll", o->poll);
    if (!check) {
        uint64_t ns = MAX(b->ns - a->ns, 1UL);
        put_ratio(&text, "secs", ns / NSEC_PER_USEC, 1000000);
        put(&text, "ios", t.ios);
        put_ratio(&text, "iops", t.ios * 1000, ns / NSEC_PER_MSEC ? ns / NSEC_PER_MSEC : 1);
        put_ratio(&text, "mb_per_s", t.bytes / 1000, ns / NSEC_PER_MSEC ? ns / NSEC_PER_MSEC : 1);
        put_latencies(&text, &h);
        put_costs(&text, k, t.ios, all_ios, a, b);
        put(&text, "empty_polls", t.empty_polls);
        put(&text, "oldest_s", k->after.oldest_s);
    }
    if (o->verify != BENCH_UNVERIFIED) {
        put(&text, "verified_sectors", t.verified);
        put(&text, "mismatches", t.mismatches);
    }
    put(&text, "errors", t.errors);
    log_info("bench: dev=%s rw=%s%s", k->device->name, check ? "check" : bench_options_rw(o), text.buf);
    return ok;
}

static uint64_t count_ios(void)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < disk_count; i++)
        n += disks[i].after.requests - disks[i].before.requests;
    return n;
}

static void bench_thread(void *arg)
{
    static struct moment before, after;
    unsigned lanes = disk_count * run.o.jobs;
    if (prepare())
        machine_exit(1);
    log_info("bench: %s on %u disks, %u jobs of depth %u each", run.o.verify == BENCH_VERIFY_CHECK ? "check"
             : bench_options_rw(&run.o), disk_count, run.o.jobs, run.o.depth);
    look(&before, true);
    run.end_ns = before.ns + run.o.secs * NSEC_PER_SEC;
    next_phase(BENCH_LOAD);
    wait_event(&run.wait, atomic_load_acquire(&run.loaded) == lanes);
    look(&after, false);
    if (run.o.verify != BENCH_UNVERIFIED)
        log_info("bench: reading back");
    next_phase(BENCH_VERIFY);
    wait_event(&run.wait, atomic_load_acquire(&run.verified) == lanes);
    bool ok = true;
    uint64_t all_ios = count_ios();
    for (unsigned i = 0; i < disk_count; i++)
        ok &= report(&disks[i], all_ios, &before, &after);
    log_info("bench: blk %s", ok ? "ok" : "FAILED");
    machine_exit(ok ? 0 : 1);
}

int bench_blk_start(const char *options)
{
    char why[160];
    int error = bench_options_parse(options, &run.o, why, sizeof(why));
    if (error) {
        log_error("bench=blk: %s", why);
        return error;
    }
    error = choose_disks(&run.o);
    if (error)
        return error;
    wait_queue_init(&run.wait);
    run.run = clock_realtime_ns() | 1;
    struct thread *t = thread_create("bench-blk", bench_thread, NULL);
    if (!t)
        return -ENOMEM;
    thread_start(t);
    thread_put(t);
    return 0;
}
