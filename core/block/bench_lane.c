/*
 * A lane: one job on one disk. Its thread keeps `depth` requests in flight: it takes back what has ended, makes a new
 * request of each, and sends those together. What ends is pushed on a list without a lock; only the first one on an
 * empty list wakes the thread, and only when it sleeps.
 */
#include <weir/atomic.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "bench.h"

#define BUSY 0x80000000u      /* in a block's generation: a request on it is in flight */
#define GOLDEN_SEED 0x9e3779b97f4a7c15UL
#define COMPLAINTS_MAX 5u     /* of each lane; the rest is counted */

struct bench_io {
    struct block_request request;
    struct block_segment segment;
    struct bench_lane *lane;
    struct bench_io *next;    /* lane's idle or done list */
    struct page *pages;
    uint64_t started_ns;
    uint64_t block;           /* of the lane's area */
};

/* Key: I immutable after creation, o the lane's thread, a atomic. */
struct bench_lane {
    struct bench_run *run;         /* I */
    struct block_device *device;   /* I */
    struct bench_area area;        /* I */
    uint64_t stamp_run;            /* I whose stamps are looked for */
    uint64_t blocks;               /* I in the area */
    unsigned job;                  /* I */
    struct bench_io *ios;          /* I run->o.depth of them */
    uint32_t *generations;         /* o of each block, with BUSY; NULL = nothing is verified while running */
    enum bench_phase phase;              /* o */
    struct bench_io *idle;         /* o */
    struct bench_io *done;         /* a newest first */
    unsigned in_flight;            /* o */
    unsigned complaints;           /* o */
    uint64_t issued, cursor, seed; /* o */
    struct wait_queue wait;
    struct bench_totals totals;    /* o */
    struct bench_histogram latencies; /* o */
};

/* ---- what to do next ---- */

static uint64_t next_random(struct bench_lane *l)
{
    l->seed ^= l->seed << 13; /* xorshift: every 64-bit number but 0 */
    l->seed ^= l->seed >> 7;
    l->seed ^= l->seed << 17;
    return l->seed;
}

static uint32_t device_id(const struct bench_lane *l)
{
    return bench_device_id(*l->device->serial ? l->device->serial : l->device->name);
}

static uint64_t sectors_a_block(const struct bench_lane *l)
{
    return l->run->o.block_bytes >> SECTOR_SHIFT;
}

static void fill(const struct bench_lane *l, struct bench_io *io, uint32_t generation)
{
    char *data = page_virt(io->pages);
    struct bench_stamp s = { .run = l->stamp_run, .device = device_id(l), .generation = generation };
    for (uint64_t i = 0; i < sectors_a_block(l); i++) {
        s.sector = io->request.sector + i;
        bench_sector_fill(data + i * SECTOR_SIZE, &s);
    }
}

/* A block without a request in flight: there are more blocks than requests. */
static uint64_t free_block(const struct bench_lane *l, uint64_t block)
{
    while (l->generations && (l->generations[block] & BUSY))
        block = block + 1 == l->blocks ? 0 : block + 1;
    return block;
}

static bool next_load(struct bench_lane *l, struct bench_io *io, uint64_t now)
{
    const struct bench_options *o = &l->run->o;
    if (now >= l->run->end_ns || (o->ios && l->issued == o->ios))
        return false;
    uint64_t at = o->random ? next_random(l) % l->blocks : l->cursor++ % l->blocks;
    bool write = o->writes && (!o->reads || (next_random(l) >> 40 & 1));
    io->block = free_block(l, at);
    io->request.op = write ? BLOCK_WRITE : BLOCK_READ;
    io->request.sector = l->area.first_sector + io->block * sectors_a_block(l);
    if (!l->generations)
        return true;
    if (write)
        fill(l, io, ++l->generations[io->block]);
    l->generations[io->block] |= BUSY;
    return true;
}

/* Everything that was written, or with verify=check the whole area. */
static bool next_verify(struct bench_lane *l, struct bench_io *io)
{
    while (l->generations && l->cursor < l->blocks && !l->generations[l->cursor])
        l->cursor++;
    if (l->cursor >= l->blocks)
        return false;
    io->block = l->cursor++;
    io->request.op = BLOCK_READ;
    io->request.sector = l->area.first_sector + io->block * sectors_a_block(l);
    return true;
}

/* ---- what came back ---- */

static void complain(struct bench_lane *l, uint64_t sector, const char *what, unsigned number)
{
    if (l->complaints++ < COMPLAINTS_MAX)
        log_error("bench: %s: sector %lu: %s %u", l->device->name, (unsigned long)sector, what, number);
}

/* Every sector of the block must be what generation `expected` put there; 0 = any of the run, or foreign. */
static void check(struct bench_lane *l, struct bench_io *io, uint32_t expected)
{
    const char *data = page_virt(io->pages);
    struct bench_stamp s = { .run = l->stamp_run, .device = device_id(l) };
    for (uint64_t i = 0; i < sectors_a_block(l); i++) {
        s.sector = io->request.sector + i;
        s.generation = expected;
        enum bench_match match = bench_sector_check(data + i * SECTOR_SIZE, &s);
        if (match == BENCH_FOREIGN && !expected)
            continue;
        if (match == BENCH_SAME) {
            l->totals.verified++;
            l->totals.sum += bench_stamp_checksum(&s);
            continue;
        }
        l->totals.mismatches++;
        complain(l, s.sector, match == BENCH_FOREIGN ? "never written, should hold generation"
                                                     : "is not what was written, generation", s.generation);
    }
}

static void take_back(struct bench_lane *l, struct bench_io *io, uint64_t now)
{
    l->in_flight--;
    io->next = l->idle;
    l->idle = io;
    uint32_t generation = 0;
    if (l->generations) {
        l->generations[io->block] &= ~BUSY;
        generation = l->generations[io->block];
    }
    if (io->request.status) {
        l->totals.errors++;
        complain(l, io->request.sector, "error", (unsigned)-io->request.status);
        return;
    }
    if (l->phase == BENCH_LOAD) {
        l->totals.ios++;
        l->totals.bytes += io->segment.len;
        bench_histogram_add(&l->latencies, now - io->started_ns);
    }
    if (l->phase == BENCH_VERIFY)
        check(l, io, generation);
    else if (generation && io->request.op == BLOCK_READ) { /* counted once, when everything is read back */
        uint64_t verified = l->totals.verified, sum = l->totals.sum;
        check(l, io, generation);
        l->totals.verified = verified;
        l->totals.sum = sum;
    }
}

static void io_end(struct block_request *r, int status)
{
    struct bench_io *io = r->arg;
    struct bench_lane *l = io->lane;
    r->status = status;
    struct bench_io *first = atomic_load_relaxed(&l->done);
    do
        io->next = first;
    while (!atomic_cas(&l->done, &first, io));
    if (!first && wait_queue_active(&l->wait))
        wake_all(&l->wait);
}

/* A function of its own, so that profiles tell looking in vain from work. */
static void __attribute__((noinline)) spin_for_done(struct bench_lane *l)
{
    while (!block_poll(l->device) && !atomic_load_relaxed(&l->done)) {
        l->totals.empty_polls++;
        cond_resched();
    }
}

/* At least one that has ended. */
static struct bench_io *wait_done(struct bench_lane *l)
{
    struct bench_io *chain;
    while (!(chain = atomic_exchange(&l->done, NULL))) {
        if (l->run->o.poll)
            spin_for_done(l);
        else
            wait_event(&l->wait, atomic_load_relaxed(&l->done));
    }
    return chain;
}

/* ---- the thread ---- */

static void send_all(struct bench_lane *l, uint64_t now)
{
    struct block_plug plug;
    struct bench_io *io;
    block_plug_start(&plug);
    while ((io = l->idle) && (l->phase == BENCH_LOAD ? next_load(l, io, now) : next_verify(l, io))) {
        l->idle = io->next;
        io->started_ns = now;
        l->in_flight++;
        l->issued++;
        block_submit_plugged(&plug, &io->request);
    }
    block_plug_finish(&plug);
}

static void do_phase(struct bench_lane *l, enum bench_phase phase)
{
    l->phase = phase;
    l->cursor = 0;
    uint64_t now = clock_monotonic_ns();
    for (;;) {
        send_all(l, now);
        if (l->in_flight == 0)
            return;
        struct bench_io *io = wait_done(l), *next;
        now = clock_monotonic_ns();
        for (; io; io = next) {
            next = io->next;
            take_back(l, io, now);
        }
    }
}

static void lane_thread(void *arg)
{
    struct bench_lane *l = arg;
    struct bench_run *run = l->run;
    wait_event(&run->wait, atomic_load_acquire(&run->phase) >= BENCH_LOAD);
    if (run->o.verify != BENCH_VERIFY_CHECK)
        do_phase(l, BENCH_LOAD);
    atomic_fetch_add(&run->loaded, 1);
    wake_all(&run->wait);
    wait_event(&run->wait, atomic_load_acquire(&run->phase) >= BENCH_VERIFY);
    if (run->o.verify != BENCH_UNVERIFIED)
        do_phase(l, BENCH_VERIFY);
    atomic_fetch_add(&run->verified, 1);
    wake_all(&run->wait);
    thread_exit();
}

/* ---- life ---- */

static unsigned order_of(size_t bytes)
{
    unsigned order = 0;
    while ((PAGE_SIZE << order) < bytes)
        order++;
    return order;
}

static bool make_io(struct bench_lane *l, struct bench_io *io)
{
    uint32_t bytes = l->run->o.block_bytes;
    io->pages = page_alloc(order_of(bytes), MM_ZERO);
    if (!io->pages)
        return false;
    io->lane = l;
    io->segment = (struct block_segment){ page_phys(io->pages), bytes };
    io->request = (struct block_request){
        .device = l->device,
        .segments = &io->segment,
        .segment_count = 1,
        .polled = l->run->o.poll,
        .end = io_end,
        .arg = io,
    };
    io->next = l->idle;
    l->idle = io;
    return true;
}

struct bench_lane *bench_lane_create(struct bench_run *run, struct block_device *d, unsigned job,
                                     struct bench_area area, uint64_t stamp_run)
{
    struct bench_lane *l = kzalloc(sizeof(*l));
    if (!l)
        return NULL;
    wait_queue_init(&l->wait);
    l->run = run;
    l->device = d;
    l->job = job;
    l->area = area;
    l->stamp_run = stamp_run;
    l->blocks = area.sectors / sectors_a_block(l);
    l->seed = GOLDEN_SEED * (job + 1) + device_id(l);
    l->ios = kcalloc(run->o.depth, sizeof(l->ios[0]));
    bool ok = l->ios != NULL;
    if (ok && run->o.verify == BENCH_VERIFY_WRITTEN) {
        l->generations = kcalloc(l->blocks, sizeof(l->generations[0]));
        ok = l->generations != NULL;
    }
    for (unsigned i = 0; ok && i < run->o.depth; i++)
        ok = make_io(l, &l->ios[i]);
    if (ok)
        return l;
    bench_lane_destroy(l);
    return NULL;
}

int bench_lane_start(struct bench_lane *l)
{
    char name[16];
    snprintf(name, sizeof(name), "bench/%s/%u", l->device->name, l->job);
    struct thread *t = thread_create(name, lane_thread, l);
    if (!t)
        return -ENOMEM;
    struct cpumask mask = { { 0 } };
    bitmap_set(mask.bits, l->job % cpu_count());
    thread_set_affinity(t, &mask);
    thread_start(t);
    thread_put(t);
    return 0;
}

void bench_lane_totals(const struct bench_lane *l, struct bench_totals *sum, struct bench_histogram *latencies)
{
    const struct bench_totals *t = &l->totals;
    sum->ios += t->ios;
    sum->bytes += t->bytes;
    sum->errors += t->errors;
    sum->empty_polls += t->empty_polls;
    sum->verified += t->verified;
    sum->mismatches += t->mismatches;
    sum->sum += t->sum;
    bench_histogram_merge(latencies, &l->latencies);
}

void bench_lane_destroy(struct bench_lane *l)
{
    for (unsigned i = 0; l->ios && i < l->run->o.depth; i++) {
        if (l->ios[i].pages)
            page_put(l->ios[i].pages);
    }
    kfree(l->generations);
    kfree(l->ios);
    kfree(l);
}
