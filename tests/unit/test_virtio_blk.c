/* virtio-blk: what it tells and asks the device, over virtqueues whose device side is here. Numbers are those of
 * docs/virtio-rules.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/host/host.h"
#include "drivers/virtio/virtio_blk.c"

/* ---- the device ---- */

enum { QUEUES = 8, CHAINS = 64, RING = 64 };
struct chain {
    unsigned out, in;
    struct virtio_buffer bufs[RING];
    void *cookie;
};
struct virtqueue {
    unsigned index;
    struct chain chains[CHAINS]; /* with the device */
    unsigned count, room;        /* room: of chains */
    void *used[CHAINS];
    unsigned used_count, kicked;
    struct blk_queue *owner;
    bool polled;
};
static struct fake {
    uint8_t config[64];
    uint64_t offered, accepted;
    bool negotiated, early_optional;
    unsigned queue_count, ring;
    bool held;                   /* nothing completes until device_run */
    uint8_t status;              /* that requests end with; STATUS_NONE = not written */
    uint8_t status_seen;         /* what stood there before */
    const char *id;
    struct chain last;
    struct blk_header header;    /* of the last chain */
    struct blk_range range;
    unsigned chains_done;
    uint64_t bytes;              /* of data, since the start */
    unsigned most_segments;
    uint32_t largest;
    bool bound[QUEUES];
    const struct irq_service *config_service;
    void *config_arg;
    unsigned demanded, restarted, refuses_queue, resumed, given_up;
    bool refuses_recovery;
} F;
static struct virtqueue queues[QUEUES];
#define STATUS_NONE 0x77

static void execute(struct virtqueue *q, struct chain *c)
{
    struct virtio_buffer *first = &c->bufs[0], *last = &c->bufs[c->out + c->in - 1];
    assert_int_equal(first->len, sizeof(struct blk_header)); /* 85: the status stands alone, last, for the device to write */
    assert_int_equal(last->len, 1);
    assert_true(c->out >= 1 && c->in >= 1);
    F.last = *c;
    memcpy(&F.header, (void *)first->phys, sizeof(F.header));
    uint8_t *status = (uint8_t *)last->phys;
    F.status_seen = *status;
    unsigned segments = c->out + c->in - 2;
    F.most_segments = MAX(F.most_segments, segments);
    for (unsigned i = 1; i <= segments; i++) {
        F.bytes += c->bufs[i].len;
        F.largest = MAX(F.largest, c->bufs[i].len);
    }
    if (F.header.type == BLK_T_DISCARD || F.header.type == BLK_T_WRITE_ZEROES) {
        assert_int_equal(segments, 1);
        assert_int_equal(c->bufs[1].len, 16);
        memcpy(&F.range, (void *)c->bufs[1].phys, 16);
    }
    if (F.header.type == BLK_T_GET_ID && F.id)
        memcpy((void *)c->bufs[1].phys, F.id, BLK_ID_BYTES);
    if (F.status != STATUS_NONE)
        *status = F.status;
    q->used[q->used_count++] = c->cookie;
    F.chains_done++;
}
static void device_run(struct virtqueue *q)
{
    for (unsigned i = 0; i < q->count; i++)
        execute(q, &q->chains[i]);
    q->count = 0;
    if (!q->polled && q->used_count)
        blk_queue_service.serve(q->owner);
}

/* ---- virtqueues and the virtio core, as the driver sees them ---- */

struct virtqueue *virtio_queue_start(struct virtio_device *d, unsigned index, unsigned max_size, unsigned max_segments, int source)
{
    struct virtqueue *q = &queues[index];
    *q = (struct virtqueue){ .index = index, .room = CHAINS, .polled = source < 0 };
    q->owner = &((struct blk_disk *)d->driver_data)->queues[index];
    return q;
}
unsigned virtqueue_size(const struct virtqueue *q) { return F.ring; }
unsigned virtqueue_max_segments(const struct virtqueue *q) { return F.ring; }
unsigned virtqueue_index(const struct virtqueue *q) { return q->index; }
unsigned virtqueue_in_flight(const struct virtqueue *q) { return q->count + q->used_count; }
int virtqueue_add(struct virtqueue *q, const struct virtio_buffer *bufs, unsigned out, unsigned in, void *cookie)
{
    assert_true(out + in <= F.ring);
    if (q->count == q->room)
        return -ENOSPC;
    struct chain *c = &q->chains[q->count++];
    c->out = out;
    c->in = in;
    c->cookie = cookie;
    memcpy(c->bufs, bufs, (out + in) * sizeof(bufs[0]));
    return 0;
}
bool virtqueue_kick_prepare(struct virtqueue *q) { return q->count != 0; }
void virtqueue_notify(struct virtqueue *q)
{
    q->kicked++;
    if (!F.held)
        device_run(q);
}
void *virtqueue_get(struct virtqueue *q, uint32_t *len) { return q->used_count ? q->used[--q->used_count] : NULL; }
bool virtqueue_has_used(const struct virtqueue *q) { return q->used_count != 0; }
bool virtqueue_enable_interrupts(struct virtqueue *q) { return q->used_count != 0; }
void *virtqueue_detach(struct virtqueue *q) { return q->count ? q->chains[--q->count].cookie : NULL; }
int virtqueue_restart(struct virtqueue *q) { F.restarted++; return F.restarted == F.refuses_queue ? -EIO : 0; }

static struct virtio_device V;
struct virtio_device *virtio_pci_create(struct pci_device *pci, const char *name) { return &V; }
bool virtio_check(struct virtio_device *d) { return true; }
int virtio_recover(struct virtio_device *d)
{
    for (unsigned i = 0; i < QUEUES; i++)
        assert_int_equal(virtqueue_in_flight(&queues[i]), 0); /* what was in flight has ended */
    return F.refuses_recovery ? -EIO : 0;
}
bool virtio_resume(struct virtio_device *d) { F.resumed++; return true; }
void virtio_give_up(struct virtio_device *d, const char *why) { F.given_up++; }
void virtio_pci_destroy(struct virtio_device *d) {}
bool virtio_pci_match(const struct pci_device *pci, unsigned type) { return type == 2; }
int virtio_reset(struct virtio_device *d) { return 0; }
int virtio_negotiate(struct virtio_device *d, uint64_t wanted, uint64_t required)
{
    F.negotiated = true;
    F.accepted = d->features = F.offered & wanted;
    return 0;
}
int virtio_demand(struct virtio_device *d, enum irq_class class, unsigned sources, bool config) { F.demanded = sources; return 0; }
unsigned virtio_queue_count(struct virtio_device *d) { return F.queue_count; }
static uint64_t field(unsigned offset, unsigned width)
{
    uint64_t v = 0;
    F.early_optional |= !F.negotiated && offset != BLK_CONFIG_CAPACITY;
    memcpy(&v, F.config + offset, width);
    return v;
}
uint8_t virtio_config_read8(struct virtio_device *d, unsigned o) { return (uint8_t)field(o, 1); }
uint16_t virtio_config_read16(struct virtio_device *d, unsigned o) { return (uint16_t)field(o, 2); }
uint32_t virtio_config_read32(struct virtio_device *d, unsigned o) { return (uint32_t)field(o, 4); }
uint64_t virtio_config_read64(struct virtio_device *d, unsigned o) { return field(o, 8); }
int virtio_config_start(struct virtio_device *d, unsigned cpu, const struct irq_service *service, void *arg)
{
    F.config_service = service;
    F.config_arg = arg;
    return 0;
}
void virtio_driver_ok(struct virtio_device *d) {}
void virtio_stop(struct virtio_device *d) {}
void virtio_shutdown(struct virtio_device *d) {}
enum irq_grant irq_grant_of(const struct irq_device *d, unsigned source) { return IRQ_GRANT_OWN; }
enum irq_grant irq_bind(struct irq_device *d, unsigned source, unsigned cpu, const struct irq_service *s, void *arg)
{
    F.bound[source] = true;
    return IRQ_GRANT_OWN;
}
void irq_source_busy(struct irq_device *d, unsigned source) {}

/* ---- helpers ---- */

static void set(unsigned offset, uint64_t value, unsigned width) { memcpy(F.config + offset, &value, width); }
#define BIT64(b) (1ULL << (b))
#define USUAL                                                                                                            \
    (BIT64(BLK_F_SEG_MAX) | BIT64(BLK_F_BLK_SIZE) | BIT64(BLK_F_FLUSH) | BIT64(BLK_F_MQ) | BIT64(BLK_F_DISCARD) |         \
     BIT64(BLK_F_WRITE_ZEROES))

static struct pci_device pci;
static struct block_device *disk; /* the last one started */
static void begin(uint64_t offered)
{
    F = (struct fake){ .offered = offered, .queue_count = QUEUES, .ring = RING };
    set(BLK_CONFIG_CAPACITY, 4 << 20, 8); /* 2 GiB */
    set(BLK_CONFIG_SEG_MAX, 30, 4);
    set(BLK_CONFIG_BLK_SIZE, 512, 4);
    set(BLK_CONFIG_NUM_QUEUES, 4, 2);
    set(BLK_CONFIG_MAX_DISCARD_SECTORS, 1000, 4);
    set(BLK_CONFIG_MAX_DISCARD_SEG, 4, 4);
    set(BLK_CONFIG_MAX_WRITE_ZEROES_SECTORS, 500, 4);
    V = (struct virtio_device){ .name = "virtio-blk fake" };
}
static int probe_and_start(void)
{
    int error = blk_probe(&pci);
    if (!error)
        error = blk_start(&pci);
    if (!error)
        disk = &((struct blk_disk *)pci.driver_data)->block;
    return error;
}
static void up(uint64_t offered)
{
    begin(offered);
    assert_int_equal(probe_and_start(), 0);
}
static int teardown(void **state)
{
    host_cmdline_set("");
    if (disk) {
        block_unregister(disk);
        blk_free(disk->driver_data);
    }
    disk = NULL;
    return 0;
}
static int submit(enum block_op op, uint64_t sector, struct block_segment *segments, unsigned count, uint64_t sectors)
{
    struct block_request r = { .device = disk, .op = op, .sector = sector, .segments = segments, .segment_count = count,
                               .sector_count = sectors };
    return block_submit_wait(&r);
}
static char page[4096] __attribute__((aligned(4096)));
static struct block_segment one = { 0, 4096 };
static int setup(void **state)
{
    one.phys = (uint64_t)page;
    return 0;
}

/* ---- the rules ---- */

static void rule18_82_no_optional_field_is_read_before_features_ok(void **state)
{
    up(USUAL | BIT64(BLK_F_CONFIG_WCE));
    assert_false(F.early_optional);
}
static void rule79_the_capacity_follows_the_device(void **state)
{
    up(USUAL);
    unsigned before = F.chains_done;
    assert_int_equal(submit(BLOCK_READ, (4 << 20) - 7, &one, 1, 0), -EINVAL);
    assert_int_equal(F.chains_done, before);
    set(BLK_CONFIG_CAPACITY, 8 << 20, 8);
    assert_true(F.config_service->serve(F.config_arg));
    assert_int_equal(submit(BLOCK_READ, (8 << 20) - 8, &one, 1, 0), 0);
    set(BLK_CONFIG_CAPACITY, 1 << 20, 8);
    assert_true(F.config_service->serve(F.config_arg));
    assert_int_equal(submit(BLOCK_READ, (8 << 20) - 8, &one, 1, 0), -EINVAL);
    assert_false(F.config_service->serve(F.config_arg)); /* nothing new */
}
static void rule81_a_flush_has_sector_0_and_no_data(void **state)
{
    up(USUAL);
    assert_int_equal(block_flush(disk), 0);
    assert_int_equal(F.header.type, BLK_T_FLUSH);
    assert_true(F.header.sector == 0 && F.last.out == 1 && F.last.in == 1);
}
static void rule82_a_cache_is_flushed_unless_the_device_says_that_it_writes_through(void **state)
{
    up(USUAL); /* with FLUSH only: assume write-back */
    assert_true(disk->has_flush);
    teardown(NULL);
    up(USUAL & ~BIT64(BLK_F_FLUSH)); /* write-through */
    assert_false(disk->has_flush);
    unsigned before = F.chains_done;
    assert_int_equal(block_flush(disk), 0);
    assert_int_equal(F.chains_done, before);
    teardown(NULL);
    begin(USUAL | BIT64(BLK_F_CONFIG_WCE));
    set(BLK_CONFIG_WRITEBACK, 0, 1);
    assert_int_equal(probe_and_start(), 0);
    assert_false(disk->has_flush);
    teardown(NULL);
    begin(USUAL | BIT64(BLK_F_CONFIG_WCE));
    set(BLK_CONFIG_WRITEBACK, 1, 1);
    assert_int_equal(probe_and_start(), 0);
    assert_true(disk->has_flush);
}
static void rule83_discards_and_zeroes_are_whole_records_within_the_limits(void **state)
{
    up(USUAL);
    unsigned before = F.chains_done;
    assert_int_equal(submit(BLOCK_DISCARD, 64, NULL, 0, 2500), 0);
    assert_int_equal(F.chains_done - before, 3); /* of 1000 at most */
    assert_true(F.range.sector == 64 + 2000 && F.range.sectors == 500);
    assert_int_equal(F.range.flags, 0); /* unmap is for zeroes alone */
    assert_true(F.header.type == BLK_T_DISCARD && F.header.sector == 0);
    assert_int_equal(submit(BLOCK_WRITE_ZEROES, 8, NULL, 0, 500), 0);
    assert_true(F.header.type == BLK_T_WRITE_ZEROES && F.range.sector == 8 && F.range.sectors == 500);
    F.status = BLK_S_IOERR;
    assert_int_equal(submit(BLOCK_DISCARD, 64, NULL, 0, 2500), -EIO);
    F.status = BLK_S_OK;
    teardown(NULL);
    begin(USUAL);
    set(BLK_CONFIG_MAX_DISCARD_SEG, 0, 4);
    set(BLK_CONFIG_MAX_WRITE_ZEROES_SECTORS, 0, 4);
    assert_int_equal(probe_and_start(), 0);
    assert_false(disk->has_discard || disk->has_write_zeroes);
    assert_int_equal(submit(BLOCK_DISCARD, 0, NULL, 0, 8), -EOPNOTSUPP);
}
static void rule84_the_id_is_exactly_20_bytes_and_may_be_unterminated(void **state)
{
    begin(USUAL);
    F.id = "abcdefghijklmnopqrst-and-more";
    assert_int_equal(probe_and_start(), 0);
    assert_int_equal(F.header.type, BLK_T_GET_ID);
    assert_true(F.last.in == 2 && F.last.bufs[1].len == 20);
    assert_string_equal(disk->serial, "abcdefghijklmnopqrst");
}
static void rule85_a_status_that_was_not_written_is_an_error(void **state)
{
    up(USUAL);
    assert_int_equal(submit(BLOCK_READ, 0, &one, 1, 0), 0);
    assert_int_equal(F.status_seen, BLK_S_PRESET);
    F.status = STATUS_NONE;
    assert_int_equal(submit(BLOCK_READ, 0, &one, 1, 0), -EIO);
    assert_non_null(strstr(host_log_last(), "0xff"));
    F.status = 3;
    assert_int_equal(submit(BLOCK_READ, 0, &one, 1, 0), -EIO);
}
static void statuses_are_passed_on_as_they_are(void **state)
{
    up(USUAL);
    F.status = BLK_S_IOERR;
    assert_int_equal(submit(BLOCK_WRITE, 0, &one, 1, 0), -EIO);
    F.status = BLK_S_UNSUPP;
    assert_int_equal(submit(BLOCK_WRITE, 0, &one, 1, 0), -EOPNOTSUPP);
    F.status = BLK_S_OK;
    assert_int_equal(submit(BLOCK_WRITE, 0, &one, 1, 0), 0);
}
static void rule86_a_gib_is_cut_to_both_limits_and_each_part_is_awaited(void **state)
{
    begin(USUAL | BIT64(BLK_F_SIZE_MAX));
    set(BLK_CONFIG_SIZE_MAX, 65536, 4);
    assert_int_equal(probe_and_start(), 0);
    struct block_segment huge = { 1ULL << 40, 1u << 30 }; /* nobody looks at the data */
    F.bytes = F.most_segments = F.largest = 0;
    assert_int_equal(submit(BLOCK_READ, 0, &huge, 1, 0), 0);
    assert_true(F.bytes == 1u << 30);
    assert_int_equal(F.most_segments, 30); /* header and status do not count */
    assert_int_equal(F.largest, 65536);
}
static void rule86_a_segment_limit_above_the_ring_is_the_ring_s(void **state)
{
    begin(USUAL);
    F.ring = 16;
    set(BLK_CONFIG_SEG_MAX, 126, 4);
    assert_int_equal(probe_and_start(), 0);
    assert_int_equal(disk->limits.max_segments, 14);
    teardown(NULL);
    begin(USUAL & ~BIT64(BLK_F_SEG_MAX)); /* not offered: one */
    assert_int_equal(probe_and_start(), 0);
    assert_int_equal(disk->limits.max_segments, 1);
    teardown(NULL);
    begin(USUAL);
    set(BLK_CONFIG_SEG_MAX, 0, 4);
    assert_int_equal(probe_and_start(), 0);
    assert_int_equal(disk->limits.max_segments, 1);
}
static void rule87_a_read_only_disk_is_never_asked_to_write(void **state)
{
    up(USUAL | BIT64(BLK_F_RO));
    unsigned before = F.chains_done;
    assert_int_equal(submit(BLOCK_WRITE, 0, &one, 1, 0), -EROFS);
    assert_int_equal(submit(BLOCK_DISCARD, 0, NULL, 0, 8), -EROFS);
    assert_int_equal(block_flush(disk), 0);
    assert_int_equal(F.chains_done, before);
    assert_int_equal(submit(BLOCK_READ, 0, &one, 1, 0), 0);
}
static void rule87_zero_queues_are_taken_as_one(void **state)
{
    begin(USUAL);
    set(BLK_CONFIG_NUM_QUEUES, 0, 2);
    assert_int_equal(probe_and_start(), 0);
    assert_int_equal(disk->queue_count, 1);
}
static void rule88_a_zoned_model_is_not_accepted(void **state)
{
    up(USUAL | BIT64(17));
    assert_false(F.accepted & BIT64(17));
}
static void impossible_block_and_segment_sizes_are_refused(void **state)
{
    static const uint32_t sizes[] = { 0, 1, 511, 513, 3 * 512, 131072, UINT32_MAX };
    for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
        begin(USUAL);
        set(BLK_CONFIG_BLK_SIZE, sizes[i], 4);
        assert_int_equal(probe_and_start(), -EINVAL);
    }
    begin(USUAL | BIT64(BLK_F_SIZE_MAX));
    set(BLK_CONFIG_SIZE_MAX, 511, 4);
    assert_int_equal(probe_and_start(), -EINVAL);
}

/* ---- queues ---- */

static void queues_are_divided_between_interrupts_and_polling(void **state)
{
    static const struct { const char *words; unsigned offered, queues, polled; } cases[] = {
        { "", 4, 4, 0 },                      /* 8 CPUs here */
        { "", 64, 8, 0 },
        { "blk.poll_queues=2", 4, 4, 2 },
        { "blk.poll_queues=2", 8, 8, 2 },
        { "blk.poll_queues=9", 4, 4, 3 },     /* one stays with interrupts */
        { "blk.poll_queues=2", 1, 1, 0 },
    };
    for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
        begin(USUAL);
        host_cmdline_set(cases[i].words);
        set(BLK_CONFIG_NUM_QUEUES, cases[i].offered, 2);
        assert_int_equal(probe_and_start(), 0);
        assert_int_equal(disk->queue_count, cases[i].queues);
        assert_int_equal(disk->poll_queue_count, cases[i].polled);
        assert_int_equal(F.demanded, cases[i].queues - cases[i].polled); /* no vector is asked for them */
        for (unsigned q = 0; q < disk->queue_count; q++)
            assert_int_equal(F.bound[q], !queues[q].polled);
        teardown(NULL);
    }
}
static unsigned ended;
static void count_end(struct block_request *r, int status) { ended++; }
static void polled_requests_end_in_block_poll_and_nowhere_else(void **state)
{
    begin(USUAL);
    host_cmdline_set("blk.poll_queues=2");
    assert_int_equal(probe_and_start(), 0);
    struct block_request r = { .device = disk, .segments = &one, .segment_count = 1, .polled = true, .end = count_end };
    ended = 0;
    F.held = true;
    block_submit(&r);
    assert_false(block_poll(disk));
    unsigned q = queues[2].count ? 2 : 3;
    assert_int_equal(queues[q].count, 1);
    device_run(&queues[q]);
    assert_int_equal(ended, 0);
    assert_true(block_poll(disk));
    assert_int_equal(ended, 1);
    F.held = false;
    struct block_request waits = { .device = disk, .segments = &one, .segment_count = 1, .polled = true };
    assert_int_equal(block_submit_wait(&waits), 0);
}
static void a_plug_costs_one_doorbell_and_a_mixed_one_one_for_each_kind(void **state)
{
    begin(USUAL);
    host_cmdline_set("blk.poll_queues=1");
    assert_int_equal(probe_and_start(), 0);
    struct block_request r[16];
    for (unsigned mixed = 0; mixed < 2; mixed++) {
        struct block_plug plug;
        struct block_stats before, after;
        block_stats(disk, &before);
        ended = 0;
        block_plug_start(&plug);
        for (unsigned i = 0; i < 16; i++) {
            r[i] = (struct block_request){ .device = disk, .segments = &one, .segment_count = 1, .end = count_end,
                                           .polled = mixed && i % 2 };
            block_submit_plugged(&plug, &r[i]);
        }
        assert_int_equal(ended, 0);
        block_plug_finish(&plug);
        while (block_poll(disk))
            ;
        block_stats(disk, &after);
        assert_int_equal(ended, 16);
        assert_int_equal(after.doorbells - before.doorbells, 1 + mixed);
    }
}
static void completions_are_all_taken_whatever_the_batch(void **state)
{
    static const char *const words[] = { "", "blk.batch=1", "blk.batch=3", "blk.batch=0" };
    for (unsigned i = 0; i < ARRAY_SIZE(words); i++) {
        begin(USUAL);
        host_cmdline_set(words[i]);
        assert_int_equal(probe_and_start(), 0);
        struct block_request r[10];
        F.held = true;
        ended = 0;
        for (unsigned n = 0; n < 10; n++) {
            r[n] = (struct block_request){ .device = disk, .segments = &one, .segment_count = 1, .end = count_end };
            block_submit(&r[n]);
        }
        for (unsigned q = 0; q < disk->queue_count; q++)
            device_run(&queues[q]);
        assert_int_equal(ended, 10);
        F.held = false;
        teardown(NULL);
    }
}
static void a_request_that_the_device_keeps_is_named_once(void **state)
{
    up(USUAL);
    struct block_request r = { .device = disk, .op = BLOCK_WRITE, .sector = 88, .segments = &one, .segment_count = 1, .end = count_end };
    struct block_stats s;
    F.held = true;
    block_submit(&r);
    struct virtqueue *q = queues;
    while (!q->count)
        q++;
    for (unsigned i = 0; i < 9; i++)
        assert_false(blk_queue_service.pending(q->owner));
    assert_null(strstr(host_log_last(), "stalled"));
    blk_queue_service.pending(q->owner);
    assert_non_null(strstr(host_log_last(), "a write of sector 88"));
    log_warn("something else");
    blk_queue_service.pending(q->owner);
    assert_non_null(strstr(host_log_last(), "something else"));
    block_stats(disk, &s);
    assert_int_equal(s.oldest_s, 11);
    device_run(q);
    F.held = false;
    assert_false(blk_queue_service.pending(q->owner));
    assert_int_equal(submit(BLOCK_READ, 0, &one, 1, 0), 0);
}

static int ended_with;
static void end_with(struct block_request *r, int status)
{
    ended++;
    ended_with = status;
}
static void rule20_a_fenced_disk_ends_its_requests_once_and_is_recovered(void **state)
{
    up(USUAL);
    struct block_request r = { .device = disk, .op = BLOCK_WRITE, .segments = &one, .segment_count = 1, .end = end_with };
    F.held = true;
    ended = 0;
    block_submit(&r);
    assert_int_equal(ended, 0);
    set(BLK_CONFIG_CAPACITY, 6 << 20, 8); /* it came back larger */
    V.on_fenced(&V);
    assert_int_equal(ended, 1);
    assert_int_equal(ended_with, -EIO);
    assert_int_equal(F.restarted, disk->queue_count);
    assert_int_equal(F.resumed, 1);
    assert_int_equal(disk->capacity_sectors, 6 << 20);
    F.held = false;
    assert_int_equal(submit(BLOCK_READ, 0, &one, 1, 0), 0);
    assert_int_equal(ended, 1);
}
static void a_fenced_disk_that_does_not_take_a_queue_stays_fenced(void **state)
{
    up(USUAL);
    F.refuses_queue = 2;
    V.on_fenced(&V);
    assert_int_equal(F.restarted, 2);
    assert_int_equal(F.given_up, 1);
    assert_int_equal(F.resumed, 0);
    F.refuses_recovery = true;
    F.restarted = 0;
    V.on_fenced(&V);
    assert_int_equal(F.restarted + F.resumed, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(rule18_82_no_optional_field_is_read_before_features_ok),
        TEST(rule79_the_capacity_follows_the_device),
        TEST(rule81_a_flush_has_sector_0_and_no_data),
        TEST(rule82_a_cache_is_flushed_unless_the_device_says_that_it_writes_through),
        TEST(rule83_discards_and_zeroes_are_whole_records_within_the_limits),
        TEST(rule84_the_id_is_exactly_20_bytes_and_may_be_unterminated),
        TEST(rule85_a_status_that_was_not_written_is_an_error),
        TEST(statuses_are_passed_on_as_they_are),
        TEST(rule86_a_gib_is_cut_to_both_limits_and_each_part_is_awaited),
        TEST(rule86_a_segment_limit_above_the_ring_is_the_ring_s),
        TEST(rule87_a_read_only_disk_is_never_asked_to_write),
        TEST(rule87_zero_queues_are_taken_as_one),
        TEST(rule88_a_zoned_model_is_not_accepted),
        TEST(impossible_block_and_segment_sizes_are_refused),
        TEST(queues_are_divided_between_interrupts_and_polling),
        TEST(polled_requests_end_in_block_poll_and_nowhere_else),
        TEST(a_plug_costs_one_doorbell_and_a_mixed_one_one_for_each_kind),
        TEST(completions_are_all_taken_whatever_the_batch),
        TEST(a_request_that_the_device_keeps_is_named_once),
        TEST(rule20_a_fenced_disk_ends_its_requests_once_and_is_recovered),
        TEST(a_fenced_disk_that_does_not_take_a_queue_stays_fenced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
