/* virtio-net: what it asks the device for and what it makes of the answers, over virtqueues whose device side is here.
 * Numbers are those of docs/virtio-rules.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/host/host.h"
/* The threads of the pairs are not run: a test is its pair's thread. */
#define thread_create(name, fn, arg) (&fake_thread)
#define thread_start(t) ((void)(t))
static struct thread fake_thread;
#include "drivers/virtio/virtio_net.c"

/* ---- the device ---- */

enum { PAIRS = 8, QUEUES = 2 * PAIRS + 1, RING = 32 };
struct chain {
    struct virtio_buffer bufs[RING];
    void *cookie;
};
struct virtqueue {
    unsigned index, size, count, done_count, kicks;
    struct chain chains[RING];   /* with the device */
    struct { void *cookie; uint32_t len; } done[RING];
    bool want_kick;
    const char *fault;           /* it lied */
    unsigned resets;
};
struct command {
    uint8_t class, command;
    uint8_t data[400];
    size_t len;
    unsigned posted;             /* receive buffers of all queues at that time */
    bool announced;
};
static struct fake {
    uint8_t config[64];
    uint64_t offered;
    struct virtqueue queues[QUEUES];
    uint8_t refuse[8][8];        /* by class and command: the answer, 0 = OK */
    struct command commands[8];
    unsigned command_count, announced, received, freed_frames;
    bool hashed;
    uint32_t hash;
    unsigned registered_queues;
    bool driver_ok;
    int refuse_reset;
    unsigned fenced;
} F;

static unsigned posted_now(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < PAIRS; i++)
        n += F.queues[2 * i].count;
    return n;
}

static void run_control(struct virtqueue *q)
{
    struct chain *c = &q->chains[--q->count];
    struct command *to = &F.commands[F.command_count++];
    const uint8_t *head = (const uint8_t *)c->bufs[0].phys;
    *to = (struct command){ .class = head[0], .command = head[1], .len = c->bufs[0].len - 2, .posted = posted_now(),
                            .announced = F.announced != 0 };
    memcpy(to->data, head + 2, to->len);
    assert_int_equal(c->bufs[1].len, 1);                          /* 78: one byte, last, for the device to write */
    *(uint8_t *)c->bufs[1].phys = F.refuse[head[0]][head[1]];
    q->done[q->done_count].cookie = c->cookie;
    q->done[q->done_count++].len = 1;
}

/* A frame of `len` bytes behind this header, into the oldest buffer. */
static void device_sends(unsigned pair, const struct virtio_net_header *h, unsigned header, uint32_t len)
{
    struct virtqueue *q = &F.queues[2 * pair];
    assert_true(q->count > 0);
    struct chain c = q->chains[0];
    memmove(q->chains, q->chains + 1, --q->count * sizeof(c));
    memcpy((void *)c.bufs[0].phys, h, header);
    q->done[q->done_count].cookie = c.cookie;
    q->done[q->done_count++].len = header + len;
}

/* ---- virtqueues, the virtio core and core/net, as the driver sees them ---- */

struct virtqueue *virtio_queue_start(struct virtio_device *d, unsigned index, unsigned max_size, unsigned max_segments, int source)
{
    assert_true(index < QUEUES);
    F.queues[index] = (struct virtqueue){ .index = index, .size = RING };
    return &F.queues[index];
}
unsigned virtqueue_size(const struct virtqueue *q) { return q->size; }
unsigned virtqueue_free(const struct virtqueue *q) { return q->size - q->count; }
unsigned virtqueue_in_flight(const struct virtqueue *q) { return q->count + q->done_count; }
int virtqueue_add(struct virtqueue *q, const struct virtio_buffer *bufs, unsigned out, unsigned in, void *cookie)
{
    if (q->count + q->done_count == q->size)
        return -ENOSPC;
    struct chain *c = &q->chains[q->count++];
    memcpy(c->bufs, bufs, (out + in) * sizeof(bufs[0]));
    c->cookie = cookie;
    return 0;
}
bool virtqueue_kick_prepare(struct virtqueue *q) { return F.driver_ok && (q->want_kick || q->index == 2 * PAIRS); }
void virtqueue_notify(struct virtqueue *q)
{
    assert_true(F.driver_ok); /* 17 */
    q->kicks++;
    if (q->index == 2 * PAIRS)
        run_control(q);
}
void *virtqueue_get(struct virtqueue *q, uint32_t *len)
{
    if (!q->done_count)
        return NULL;
    void *cookie = q->done[0].cookie;
    if (len)
        *len = q->done[0].len;
    memmove(q->done, q->done + 1, --q->done_count * sizeof(q->done[0]));
    return cookie;
}
bool virtqueue_has_used(const struct virtqueue *q) { return q->done_count != 0; }
bool virtqueue_enable_interrupts(struct virtqueue *q) { return q->done_count != 0; }
void virtqueue_disable_interrupts(struct virtqueue *q) {}
void *virtqueue_detach(struct virtqueue *q)
{
    if (q->done_count)
        return virtqueue_get(q, NULL);
    return q->count ? q->chains[--q->count].cookie : NULL;
}

static struct virtio_device V;
struct virtio_device *virtqueue_device(const struct virtqueue *q) { return &V; }
unsigned virtqueue_index(const struct virtqueue *q) { return q->index; }
const char *virtqueue_fault(const struct virtqueue *q) { return q->fault; }
int virtqueue_reset(struct virtqueue *q)
{
    q->resets++;
    return F.refuse_reset;
}
int virtqueue_restart(struct virtqueue *q)
{
    assert_int_equal(virtqueue_in_flight(q), 0); /* everything was taken back */
    q->fault = NULL;
    return 0;
}
void virtio_fence(struct virtio_device *d, const char *why) { F.fenced++; }
struct virtio_device *virtio_pci_create(struct pci_device *pci, const char *name) { return &V; }
void virtio_pci_destroy(struct virtio_device *d) {}
bool virtio_pci_match(const struct pci_device *pci, unsigned type) { return type == 1; }
bool virtio_is_legacy(const struct virtio_device *d) { return false; }
int virtio_reset(struct virtio_device *d) { return 0; }
uint64_t virtio_device_features(struct virtio_device *d) { return F.offered; }
int virtio_negotiate(struct virtio_device *d, uint64_t wanted, uint64_t required)
{
    assert_int_equal(wanted & ~F.offered, 0);
    d->features = (F.offered & wanted) | 1ULL << VIRTIO_F_VERSION_1;
    return 0;
}
int virtio_demand(struct virtio_device *d, enum irq_class class, unsigned sources, bool config) { return 0; }
void virtio_config_read(struct virtio_device *d, unsigned o, void *buf, size_t len) { memcpy(buf, F.config + o, len); }
uint8_t virtio_config_read8(struct virtio_device *d, unsigned o) { return F.config[o]; }
uint16_t virtio_config_read16(struct virtio_device *d, unsigned o) { return (uint16_t)(F.config[o] | F.config[o + 1] << 8); }
uint32_t virtio_config_read32(struct virtio_device *d, unsigned o)
{
    return virtio_config_read16(d, o) | (uint32_t)virtio_config_read16(d, o + 2) << 16;
}
int virtio_config_start(struct virtio_device *d, unsigned cpu, const struct irq_service *service, void *arg) { return 0; }
void virtio_driver_ok(struct virtio_device *d) { F.driver_ok = true; }
void virtio_stop(struct virtio_device *d) { F.driver_ok = false; }
void virtio_shutdown(struct virtio_device *d) {}
enum irq_grant irq_bind(struct irq_device *d, unsigned source, unsigned cpu, const struct irq_service *s, void *arg)
{
    return IRQ_GRANT_OWN;
}
void irq_set_affinity(struct irq_device *d, unsigned source, unsigned cpu) {}
void thread_defer_wakes(void) {}
void thread_flush_wakes(void) {}

void net_device_expect(unsigned rx_queues) {}
void net_device_rss(unsigned queues, struct net_rss *out)
{
    memset(out->key, 0x5a, sizeof(out->key));
    for (unsigned i = 0; i < NET_RSS_BUCKETS; i++)
        out->queue[i] = (uint16_t)(i % queues);
}
int net_device_register(struct net_device *d)
{
    F.registered_queues = d->rx_queues;
    assert_int_equal(d->rx_queues, d->tx_queues);
    return 0;
}
void net_device_unregister(struct net_device *d) {}
void net_device_link_changed(struct net_device *d) {}
void net_device_tx_wake(struct net_device *d, unsigned queue) {}
void net_device_announce(struct net_device *d) { F.announced++; }
void net_receive(struct net_device *d, unsigned queue, const struct net_rx_segment *segs, unsigned count, bool csum_ok,
                 bool needs_csum, bool hashed, uint32_t hash)
{
    F.received++;
    F.hashed = hashed;
    F.hash = hash;
    for (unsigned i = 0; i < count; i++)
        segs[i].free_fn(segs[i].cookie);
}
void net_receive_done(struct net_device *d, unsigned queue) {}

/* ---- helpers ---- */

#define B(bit) (1ULL << (bit))
#define USUAL (B(NET_F_MAC) | B(NET_F_STATUS) | B(NET_F_MRG_RXBUF) | B(NET_F_CTRL_VQ) | B(NET_F_GUEST_ANNOUNCE) | B(NET_F_MQ))
#define RSS (B(NET_F_RSS) | B(NET_F_HASH_REPORT))

static struct pci_device pci;
static struct net_nic *nic;

static void begin(uint64_t offered)
{
    F = (struct fake){ .offered = offered };
    F.config[CONFIG_STATUS] = STATUS_LINK_UP;
    F.config[CONFIG_MAX_PAIRS] = PAIRS;
    F.config[CONFIG_RSS_MAX_KEY] = 40;
    F.config[CONFIG_RSS_MAX_TABLE] = 128;
    F.config[CONFIG_HASH_TYPES] = 0x3f;
    V = (struct virtio_device){ .name = "virtio-net fake" };
    host_set_cpu_count(4);
}

static void start(void)
{
    assert_int_equal(nic_probe(&pci), 0);
    assert_int_equal(nic_start(&pci), 0);
    nic = pci.driver_data;
}

static int teardown(void **state)
{
    host_fail_allocations_after(-1);
    if (nic)
        nic_free(nic);
    nic = NULL;
    return 0;
}

/* ---- the rules ---- */

static void rule_74_buffers_first_then_the_pairs(void **state)
{
    begin(USUAL);
    start();
    assert_int_equal(F.command_count, 1);
    assert_int_equal(F.commands[0].class, CTRL_MQ);
    assert_int_equal(F.commands[0].command, CTRL_MQ_PAIRS_SET);
    assert_int_equal(F.commands[0].len, 2);
    assert_int_equal(F.commands[0].data[0] | F.commands[0].data[1] << 8, 4);
    assert_int_equal(F.commands[0].posted, 4 * RING);
    assert_int_equal(F.registered_queues, 4);
}

static void rule_78_anything_but_ok_is_a_refusal_and_one_pair_is_left(void **state)
{
    for (unsigned answer = 1; answer < 256; answer += 127) {
        begin(USUAL);
        F.refuse[CTRL_MQ][CTRL_MQ_PAIRS_SET] = (uint8_t)answer;
        start();
        assert_int_equal(F.registered_queues, 1);
        teardown(state);
    }
}

static void rule_75_rss_takes_the_place_of_the_pairs_command(void **state)
{
    begin(USUAL | RSS);
    start();
    assert_int_equal(F.command_count, 1);
    assert_int_equal(F.commands[0].command, CTRL_MQ_RSS_CONFIG);
    assert_int_equal(F.commands[0].posted, 4 * RING);
    struct virtio_net_rss_command c;
    assert_int_equal(F.commands[0].len, sizeof(c));
    memcpy(&c, F.commands[0].data, sizeof(c));
    assert_int_equal(c.max_tx, 4);
    assert_int_equal(c.table[5], 1);
    assert_int_equal(c.key[39], 0x5a);
    assert_true(nic->rss && nic->hashes);
    assert_int_equal(F.registered_queues, 4);
}

static void rule_75_refused_rss_leaves_the_pairs_and_refused_pairs_leave_one(void **state)
{
    begin(USUAL | RSS);
    F.refuse[CTRL_MQ][CTRL_MQ_RSS_CONFIG] = 1;
    start();
    assert_int_equal(F.command_count, 2);
    assert_int_equal(F.commands[1].command, CTRL_MQ_PAIRS_SET);
    assert_int_equal(F.registered_queues, 4);
    assert_false(nic->rss || nic->hashes);
    teardown(state);

    begin(USUAL | RSS);
    F.refuse[CTRL_MQ][CTRL_MQ_RSS_CONFIG] = F.refuse[CTRL_MQ][CTRL_MQ_PAIRS_SET] = 1;
    start();
    assert_int_equal(F.registered_queues, 1);
    teardown(state);

    /* Its limits are too small for our table: it is not asked. */
    begin(USUAL | RSS);
    F.config[CONFIG_RSS_MAX_TABLE] = 64;
    start();
    assert_int_equal(F.command_count, 1);
    assert_int_equal(F.commands[0].command, CTRL_MQ_PAIRS_SET);
    teardown(state);

    /* RSS alone brings queues too; there is nothing to fall back to. */
    begin((USUAL | RSS) & ~B(NET_F_MQ));
    start();
    assert_int_equal(F.registered_queues, 4);
    teardown(state);
    begin((USUAL | RSS) & ~B(NET_F_MQ));
    F.refuse[CTRL_MQ][CTRL_MQ_RSS_CONFIG] = 1;
    start();
    assert_int_equal(F.command_count, 1);
    assert_int_equal(F.registered_queues, 1);
}

static void rule_69_the_hash_is_believed_only_after_rss_and_for_tcp(void **state)
{
    struct virtio_net_header h = { .num_buffers = 1, .hash_value = 0x12345678, .hash_report = NET_HASH_REPORT_TCPV4 };
    begin(USUAL | RSS);
    start();
    assert_int_equal(nic->header_size, 20);
    device_sends(1, &h, 20, 60);
    nic_rx_burst(&nic->pair[1]);
    assert_true(F.hashed);
    assert_int_equal(F.hash, 0x12345678);
    h.hash_report = 3; /* UDP: its hash says nothing of DHCP */
    device_sends(1, &h, 20, 60);
    nic_rx_burst(&nic->pair[1]);
    assert_false(F.hashed);
    teardown(state);

    begin(USUAL | RSS);
    F.refuse[CTRL_MQ][CTRL_MQ_RSS_CONFIG] = 1;
    start();
    h.hash_report = NET_HASH_REPORT_TCPV4;
    device_sends(1, &h, 20, 60);
    nic_rx_burst(&nic->pair[1]);
    assert_int_equal(F.received, 1);
    assert_false(F.hashed);
}

static void rule_72_a_lying_header_costs_its_frame_and_no_slot(void **state)
{
    struct virtio_net_header h = { .num_buffers = 500 };
    begin(USUAL);
    start();
    for (unsigned i = 0; i < 3 * RING; i++) {
        device_sends(0, &h, 12, 60);
        nic_rx_burst(&nic->pair[0]);
        assert_int_equal(nic->pair[0].posted, RING);
    }
    assert_int_equal(nic->pair[0].lies, 3 * RING);
    assert_int_equal(F.received, 0);
    h.num_buffers = 1;
    device_sends(0, &h, 12, 60);
    nic_rx_burst(&nic->pair[0]);
    assert_int_equal(F.received, 1);
}

static void a_slot_that_finds_no_memory_is_filled_later(void **state)
{
    struct virtio_net_header h = { .num_buffers = 1 };
    begin(USUAL);
    start();
    struct net_pair *p = &nic->pair[2];
    for (unsigned left = 0; left < RING; left += 5) {
        for (unsigned i = 0; i < RING; i++)
            device_sends(2, &h, 12, 60);
        host_fail_allocations_after((long)left);
        uint64_t starved = p->starved;
        nic_rx_burst(p);
        assert_int_equal(p->starved, starved + 1);
        assert_int_equal(p->posted, left);
        assert_int_equal(F.queues[4].count, left);
        host_fail_allocations_after(-1);
        nic_rx_fill(p);
        assert_int_equal(p->posted, RING);
        assert_int_equal(F.queues[4].count, RING);
    }
}

static void with_rss_a_ring_that_ran_dry_gets_a_doorbell_at_each_ring(void **state)
{
    struct virtio_net_header h = { .num_buffers = 1 };
    for (unsigned rss = 0; rss < 2; rss++) {
        begin(USUAL | (rss ? RSS : 0));
        start();
        unsigned before[4];
        for (unsigned i = 0; i < 4; i++)
            before[i] = F.queues[2 * i].kicks;
        device_sends(3, &h, nic->header_size, 60);
        nic_rx_burst(&nic->pair[3]);
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(F.queues[2 * i].kicks, before[i]); /* it did not run dry */
        F.queues[6].want_kick = true;
        device_sends(3, &h, nic->header_size, 60);
        nic_rx_burst(&nic->pair[3]);
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(F.queues[2 * i].kicks, before[i] + (i == 3 || rss));
        teardown(state);
    }
}

static void rule_77_announce_then_acknowledge(void **state)
{
    begin(USUAL);
    start();
    F.config[CONFIG_STATUS] = STATUS_LINK_UP | STATUS_ANNOUNCE;
    nic_config_work(nic);
    assert_int_equal(F.announced, 1);
    assert_int_equal(F.commands[1].class, CTRL_ANNOUNCE);
    assert_int_equal(F.commands[1].command, CTRL_ANNOUNCE_ACK);
    assert_true(F.commands[1].announced);
    teardown(state);

    begin(USUAL & ~B(NET_F_GUEST_ANNOUNCE));
    start();
    F.config[CONFIG_STATUS] = STATUS_LINK_UP | STATUS_ANNOUNCE;
    nic_config_work(nic);
    assert_int_equal(F.announced, 0);
}

static void rule_68_an_mtu_that_cannot_be_is_refused_and_a_large_one_has_buffers(void **state)
{
    begin(B(NET_F_MTU));
    F.config[CONFIG_MTU] = 67;
    assert_int_equal(nic_probe(&pci), -EINVAL);
    begin(B(NET_F_MTU));
    F.config[CONFIG_MTU] = 9000 & 255;
    F.config[CONFIG_MTU + 1] = 9000 >> 8;
    start();
    assert_int_equal(nic->net.mtu, 9000);
    assert_true(F.queues[0].chains[0].bufs[0].len >= 12 + 14 + 9000);
}

static void rule_62_a_lying_queue_is_reset_alone_and_filled_again(void **state)
{
    begin(USUAL);
    start();
    struct net_pair *p = &nic->pair[1];
    struct virtqueue *rx = &F.queues[2], *tx = &F.queues[3];
    for (unsigned i = 0; i < 2; i++) {
        rx->fault = "it lied";
        assert_true(V.on_queue_fault(rx));
        assert_true(p->work); /* its thread is asked to look */
        p->work = false;
        nic_reset_lying_queues(p);
        assert_null(rx->fault);
        assert_int_equal(rx->count, 0);
        nic_rx_burst(p);
        assert_int_equal(rx->count, RING);
    }
    tx->fault = "it lied";
    assert_true(V.on_queue_fault(tx));
    nic_reset_lying_queues(p);
    assert_int_equal(tx->resets, 1);
    assert_null(tx->fault);
    assert_int_equal(F.queues[0].resets + F.queues[1].resets + F.queues[4].resets, 0);
    assert_int_equal(posted_now(), 4 * RING);
    assert_int_equal(F.fenced, 0);
    assert_false(V.on_queue_fault(tx));                     /* three times were enough for this pair */
    assert_false(V.on_queue_fault(&F.queues[2 * PAIRS]));   /* nor the control queue */
    assert_true(V.on_queue_fault(&F.queues[0]));
    F.queues[0].fault = "it lied";
    F.refuse_reset = -ETIMEDOUT;
    nic_reset_lying_queues(&nic->pair[0]);
    assert_int_equal(F.fenced, 1);
    assert_int_equal(F.queues[0].count, RING);              /* the device still has those */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(rule_62_a_lying_queue_is_reset_alone_and_filled_again, teardown),
        cmocka_unit_test_teardown(rule_68_an_mtu_that_cannot_be_is_refused_and_a_large_one_has_buffers, teardown),
        cmocka_unit_test_teardown(rule_69_the_hash_is_believed_only_after_rss_and_for_tcp, teardown),
        cmocka_unit_test_teardown(rule_72_a_lying_header_costs_its_frame_and_no_slot, teardown),
        cmocka_unit_test_teardown(rule_74_buffers_first_then_the_pairs, teardown),
        cmocka_unit_test_teardown(rule_75_rss_takes_the_place_of_the_pairs_command, teardown),
        cmocka_unit_test_teardown(rule_75_refused_rss_leaves_the_pairs_and_refused_pairs_leave_one, teardown),
        cmocka_unit_test_teardown(rule_77_announce_then_acknowledge, teardown),
        cmocka_unit_test_teardown(rule_78_anything_but_ok_is_a_refusal_and_one_pair_is_left, teardown),
        cmocka_unit_test_teardown(a_slot_that_finds_no_memory_is_filled_later, teardown),
        cmocka_unit_test_teardown(with_rss_a_ring_that_ran_dry_gets_a_doorbell_at_each_ring, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
