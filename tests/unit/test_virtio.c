/* virtio core (reset, negotiation, queues, fencing) over a transport that can misbehave. Numbers are those of
 * docs/virtio-rules.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/errno.h>
#include <weir/sched.h>
#include <weir/string.h>

#include "drivers/virtio/transport.h"
#include "drivers/virtio/virtio_wire.h"
#include "tests/unit/fake_ring.h"

/* ---- the fake device ---- */

static struct fake {
    uint8_t status;
    uint64_t offered, accepted;
    unsigned words_read, words_written;   /* bit masks */
    bool refuses_features, stuck_in_reset;
    unsigned reset_reads;                 /* status reads until a reset is done */
    bool in_reset;
    char order[64];                       /* one letter for each status bit that appeared, f = features written */
    unsigned queue_reset_reads;           /* until the reset of a queue is done */
    bool queue_stuck, cleared_bit;
    bool features_after_ok;
    unsigned generation, changes_left;    /* the configuration changes during so many reads */
    uint8_t config[64];
    unsigned config_size;
    unsigned queue_size, max_vector;      /* entries >= max_vector are refused */
    uint16_t vector[4], config_entry;
    struct virtio_queue_setup setup[4];
    bool enabled[4], late_setup;
    volatile uint16_t doorbell[4];
    unsigned isolated, queues_reset;
} F;

static void note(char c)
{
    size_t n = strlen(F.order);
    if (n + 1 < sizeof(F.order))
        F.order[n] = c;
}
static uint8_t status_read(struct virtio_device *d)
{
    if (F.in_reset && F.stuck_in_reset)
        return 0x0f;
    if (F.in_reset && F.reset_reads) {
        F.reset_reads--;
        return 0x0f;
    }
    F.in_reset = false;
    return F.status;
}
static void status_write(struct virtio_device *d, uint8_t s)
{
    if (s == 0) {
        F.in_reset = true;
        F.status = 0;
        F.words_written = 0;
        memset(F.setup, 0, sizeof(F.setup)); /* 61: a reset device has forgotten its queues and vectors */
        memset(F.enabled, 0, sizeof(F.enabled));
        F.config_entry = VIRTIO_NO_VECTOR;
        for (unsigned i = 0; i < ARRAY_SIZE(F.vector); i++)
            F.vector[i] = VIRTIO_NO_VECTOR;
        note('0');
        return;
    }
    if (F.in_reset)
        note('!'); /* went on before the reset was done */
    F.cleared_bit |= (F.status & ~s) != 0;
    uint8_t fresh = s & ~F.status;
    if (fresh & VIRTIO_STATUS_ACKNOWLEDGE) note('A');
    if (fresh & VIRTIO_STATUS_DRIVER) note('D');
    if (fresh & VIRTIO_STATUS_FEATURES_OK) note('F');
    if (fresh & VIRTIO_STATUS_DRIVER_OK) note('K');
    if (fresh & VIRTIO_STATUS_FAILED) note('X');
    if (F.refuses_features)
        s &= ~VIRTIO_STATUS_FEATURES_OK;
    F.status = s;
}
static uint32_t features_read(struct virtio_device *d, unsigned word)
{
    F.words_read |= 1u << word;
    return (uint32_t)(F.offered >> 32 * word);
}
static void features_write(struct virtio_device *d, unsigned word, uint32_t bits)
{
    if (F.words_written == 0)
        note('f');
    F.features_after_ok |= F.status & VIRTIO_STATUS_FEATURES_OK;
    F.words_written |= 1u << word;
    F.accepted = (F.accepted & ~(0xffffffffUL << 32 * word)) | (uint64_t)bits << 32 * word;
}
static uint8_t generation(struct virtio_device *d) { return (uint8_t)F.generation; }
static unsigned config_size(struct virtio_device *d) { return F.config_size; }
static uint32_t config_read(struct virtio_device *d, unsigned offset, unsigned width)
{
    uint32_t v = 0;
    memcpy(&v, F.config + offset, width);
    if (F.changes_left) { /* between two reads of the driver */
        F.changes_left--;
        F.generation++;
        for (unsigned i = 0; i < sizeof(F.config); i++)
            F.config[i]++;
    }
    return v;
}
static void config_write8(struct virtio_device *d, unsigned offset, uint8_t v) { F.config[offset] = v; }
static uint16_t config_vector(struct virtio_device *d, uint16_t e) { return F.config_entry = e < F.max_vector ? e : VIRTIO_NO_VECTOR; }
static uint16_t queue_vector(struct virtio_device *d, unsigned i, uint16_t e)
{
    F.late_setup |= F.enabled[i];
    return F.vector[i] = e < F.max_vector ? e : VIRTIO_NO_VECTOR;
}
static unsigned queue_count(struct virtio_device *d) { return 4; }
static unsigned queue_size(struct virtio_device *d, unsigned i) { return i == 3 ? 0 : F.queue_size; }
static void queue_setup(struct virtio_device *d, unsigned i, const struct virtio_queue_setup *s)
{
    F.late_setup |= F.enabled[i];
    F.setup[i] = *s;
}
static void queue_enable(struct virtio_device *d, unsigned i)
{
    F.late_setup |= F.setup[i].size == 0;
    F.enabled[i] = true;
}
static volatile uint16_t *queue_doorbell(struct virtio_device *d, unsigned i) { return &F.doorbell[i]; }
static bool queue_reset(struct virtio_device *d, unsigned i, bool begin)
{
    if (begin) {
        F.enabled[i] = false;
        F.setup[i] = (struct virtio_queue_setup){ 0 };
        F.vector[i] = VIRTIO_NO_VECTOR;
        F.queues_reset++;
        return F.queue_reset_reads || F.queue_stuck;
    }
    return F.queue_stuck || (F.queue_reset_reads && --F.queue_reset_reads);
}
static void isolate(struct virtio_device *d) { F.isolated++; }
static int demand(struct virtio_device *d, const struct irq_demand *x) { return 0; }
static const struct virtio_transport_ops ops = {
    status_read, status_write, features_read, features_write, generation, config_size, config_read, config_write8,
    config_vector, queue_vector, queue_count, queue_size, queue_setup, queue_enable, queue_doorbell, isolate, NULL, demand,
    .queue_reset = queue_reset,
};

/* ---- core/irq as far as virtio needs it: entries 1 and 2 for sources 0 and 1, then entry 0, then polled ---- */

static int entry[2];
static bool bound[2];
static const struct irq_service *config_bound;
static void *config_bound_arg;
void irq_free(struct irq_device *d) { }
int irq_entry_of(const struct irq_device *d, unsigned s) { return s == IRQ_CONFIG ? 0 : entry[s]; }
int irq_refused(struct irq_device *d, unsigned s) { return entry[s] = entry[s] > 0 ? 0 : -1; }
bool irq_bound(const struct irq_device *d, unsigned s) { return bound[s]; }
enum irq_grant irq_bind(struct irq_device *d, unsigned s, unsigned cpu, const struct irq_service *v, void *a)
{
    if (s == IRQ_CONFIG) {
        config_bound = v;
        config_bound_arg = a;
    }
    return IRQ_GRANT_OWN;
}
void irq_release(struct irq_device *d) {}

static struct virtio_device D;
static int start(void **state)
{
    F = (struct fake){ .offered = 1UL << VIRTIO_F_VERSION_1 | 1UL << VIRTIO_F_EVENT_IDX | 1UL << VIRTIO_F_INDIRECT_DESC,
                       .status = 0x0f, .queue_size = 16, .max_vector = 8, .config_size = 64 };
    D = (struct virtio_device){ .transport = &ops, .name = "fake" };
    list_init(&D.queues);
    list_init(&D.fence_link);
    entry[0] = 1;
    entry[1] = 2;
    bound[0] = bound[1] = true;
    return 0;
}
static int end(void **state)
{
    virtio_shutdown(&D);
    return 0;
}
static void ready(uint64_t wanted)
{
    assert_int_equal(virtio_reset(&D), 0);
    assert_int_equal(virtio_negotiate(&D, wanted, 0), 0);
}

static void rule09_order_of_initialisation(void **s)
{
    ready(0);
    virtio_driver_ok(&D);
    assert_string_equal(F.order, "0ADfFK");
}
static void rule10_waits_until_reset_is_done(void **s)
{
    F.reset_reads = 20;
    ready(0);
    assert_null(strchr(F.order, '!'));
}
static void rule10_gives_up_on_a_device_stuck_in_reset(void **s)
{
    F.stuck_in_reset = true;
    assert_int_equal(virtio_reset(&D), -ETIMEDOUT);
}
static void rule11_no_status_bit_is_ever_cleared(void **s)
{
    ready(0);
    virtio_driver_ok(&D);
    virtio_fail(&D);
    assert_false(F.cleared_bit);
}
static void rule12_both_feature_words(void **s)
{
    ready(0);
    assert_int_equal(F.words_read, 3);
    assert_int_equal(F.words_written, 3);
}
/* 21: no SUSPEND either, so that nothing is ever suspended; 55: no IN_ORDER. */
static void rule13_16_21_55_only_known_and_offered_bits(void **s)
{
    F.offered = ~0UL & ~(1UL << 5) & ~(1UL << VIRTIO_F_EVENT_IDX);
    ready(1UL << 3 | 1UL << 5 | 1UL << VIRTIO_F_IN_ORDER | 1UL << VIRTIO_F_RING_PACKED);
    assert_true(F.accepted == (1UL << 3 | 1UL << VIRTIO_F_INDIRECT_DESC | 1UL << VIRTIO_F_VERSION_1 |
                               1UL << VIRTIO_F_ACCESS_PLATFORM | 1UL << VIRTIO_F_RING_PACKED |
                               1UL << VIRTIO_F_ORDER_PLATFORM));
    assert_true(D.features == F.accepted);
}
static void rule14_a_device_without_version_1_is_refused(void **s)
{
    F.offered = 1;
    assert_int_equal(virtio_reset(&D), 0);
    assert_int_equal(virtio_negotiate(&D, 1, 0), -EOPNOTSUPP);
    assert_true(F.status & VIRTIO_STATUS_FAILED);
}
static void rule15_features_ok_is_read_back(void **s)
{
    F.refuses_features = true;
    assert_int_equal(virtio_reset(&D), 0);
    assert_int_equal(virtio_negotiate(&D, 0, 0), -EOPNOTSUPP);
    assert_true(F.status & VIRTIO_STATUS_FAILED);
    assert_true(D.features == 0);
}
static const struct virtio_buffer one = { 4096, 16 };
static void rule17_no_doorbell_before_driver_ok(void **s)
{
    ready(0);
    F.doorbell[1] = 0xeeee;
    struct virtqueue *q = virtio_queue_start(&D, 1, 0, 4, 0);
    assert_false(is_err(q));
    assert_int_equal(virtqueue_add(q, &one, 1, 0, &D), 0);
    assert_false(virtqueue_kick_prepare(q));
    assert_int_equal(F.doorbell[1], 0xeeee);
    virtio_driver_ok(&D);
    assert_int_equal(F.doorbell[1], 1); /* the held-back kick: rule 41, 16 bits of queue index */
}
static void rule22_reads_until_the_generation_is_stable(void **s)
{
    ready(0);
    F.changes_left = 7;
    uint64_t v = virtio_config_read64(&D, 0);
    uint64_t want;
    memcpy(&want, F.config, 8);
    assert_true(v == want && v != 0);
    uint8_t bytes[6];
    F.changes_left = 9;
    virtio_config_read(&D, 8, bytes, 6);
    assert_int_equal(memcmp(bytes, F.config + 8, 6), 0);
}
static void rule23_24_fields_beyond_the_size_are_absent(void **s)
{
    ready(0);
    memset(F.config, 0x77, sizeof(F.config));
    F.config_size = 10;
    assert_int_equal(virtio_config_read16(&D, 8), 0x7777);
    assert_int_equal(virtio_config_read32(&D, 8), 0);
    virtio_config_write8(&D, 32, 1);
    assert_int_equal(F.config[32], 0x77);
}
static void rule30_size_zero_means_no_queue(void **s)
{
    ready(0);
    assert_int_equal(ptr_err(virtio_queue_start(&D, 3, 0, 1, 0)), -ENOENT);
    assert_int_equal(ptr_err(virtio_queue_start(&D, 4, 0, 1, 0)), -ENOENT);
    assert_true(list_empty(&D.queues));
}
static void rule31_sizes_are_powers_of_two_at_most_the_device_s(void **s)
{
    ready(0);
    F.queue_size = 100;
    struct virtqueue *q = virtio_queue_start(&D, 0, 0, 1, 0);
    assert_int_equal(virtqueue_size(q), 64);
    q = virtio_queue_start(&D, 1, 9, 1, 1);
    assert_int_equal(virtqueue_size(q), 8);
    assert_int_equal(F.setup[1].size, 8);
}
static void rule32_everything_is_set_before_enable(void **s)
{
    ready(0);
    assert_false(is_err(virtio_queue_start(&D, 0, 0, 4, 0)));
    assert_true(F.enabled[0]);
    assert_false(F.late_setup);
    assert_int_equal(F.vector[0], 1);
}
static void rule57_a_refused_vector_goes_down_the_ladder(void **s)
{
    ready(0);
    F.max_vector = 1; /* only entry 0 */
    assert_false(is_err(virtio_queue_start(&D, 0, 0, 4, 0)));
    assert_int_equal(F.vector[0], 0);
    F.max_vector = 0; /* none at all */
    assert_false(is_err(virtio_queue_start(&D, 1, 0, 4, 1)));
    assert_int_equal(F.vector[1], VIRTIO_NO_VECTOR);
    assert_int_equal(entry[1], -1);
}
static jmp_buf caught;
static void catch_panic(const char *message) { longjmp(caught, 1); }
extern void (*host_panic_hook)(const char *message);
static void no_queue_without_service_at_driver_ok(void **s)
{
    ready(0);
    assert_false(is_err(virtio_queue_start(&D, 0, 0, 4, 0)));
    bound[0] = false;
    host_panic_hook = catch_panic;
    if (setjmp(caught) == 0) {
        virtio_driver_ok(&D);
        fail();
    }
    host_panic_hook = NULL;
    assert_null(strchr(F.order, 'K'));
}
static struct completion fenced;
static void on_fenced(struct virtio_device *d) { completion_complete(&fenced); }
static void rule46_a_lying_device_is_fenced(void **s)
{
    struct fake_ring r;
    ready(0);
    struct virtqueue *q = virtio_queue_start(&D, 0, 0, 4, 0);
    completion_init(&fenced);
    D.on_fenced = on_fenced;
    virtio_driver_ok(&D);
    struct ring_addresses a = { F.setup[0].descriptors, F.setup[0].driver, F.setup[0].device };
    fake_ring_init(&r, F.setup[0].size, a, true);
    assert_int_equal(virtqueue_add(q, &one, 0, 1, &D), 0);
    fake_ring_complete(&r, 77, 0);
    assert_null(virtqueue_get(q, NULL));
    completion_wait(&fenced);
    assert_true(D.broken && D.fence_done);
    assert_int_equal(F.status, 0); /* reset: it cannot write to our memory any more */
    assert_int_equal(virtqueue_add(q, &one, 1, 0, &D), -EIO);
    assert_null(virtqueue_get(q, NULL));
    F.doorbell[0] = 0xeeee;
    virtqueue_notify(q);
    assert_int_equal(F.doorbell[0], 0xeeee);
    assert_ptr_equal(virtqueue_detach(q), &D); /* what it had comes back, once */
    assert_null(virtqueue_detach(q));
}
static void fencing_cuts_off_what_reset_cannot_stop(void **s)
{
    ready(0);
    completion_init(&fenced);
    D.on_fenced = on_fenced;
    virtio_driver_ok(&D);
    F.stuck_in_reset = true;
    virtio_fence(&D, "test");
    virtio_fence(&D, "twice is once");
    completion_wait(&fenced);
    assert_int_equal(F.isolated, 1);
}

/* ---- recovery: a driver of one queue and the configuration ---- */

static struct virtqueue *Q;
static unsigned came_back, config_served;
static bool resumed;
static bool serve_config(void *a) { config_served++; return true; }
static const struct irq_service config_service = { .serve = serve_config };
static void recover(struct virtio_device *d)
{
    while (virtqueue_detach(Q))
        came_back++;
    assert_int_equal(virtqueue_add(Q, &one, 1, 0, &D), -EIO); /* nothing goes in meanwhile */
    resumed = !virtio_recover(d) && !virtqueue_restart(Q) && virtio_resume(d);
    completion_complete(&fenced);
}
static void recoverable(void)
{
    ready(0);
    D.on_fenced = recover;
    Q = virtio_queue_start(&D, 0, 0, 4, 0);
    assert_int_equal(virtio_config_start(&D, 0, &config_service, NULL), 0);
    virtio_driver_ok(&D);
    came_back = config_served = 0;
    completion_init(&fenced);
}
/* Wait for the end of the fence, which needs the driver's call-back to have returned. */
static void fence_ends(void)
{
    completion_wait(&fenced);
    while (__atomic_load_n(&D.fencing, __ATOMIC_ACQUIRE))
        sleep_until_ns(clock_monotonic_ns() + NSEC_PER_MSEC);
}
static void lie(void)
{
    struct fake_ring r;
    struct ring_addresses a = { F.setup[0].descriptors, F.setup[0].driver, F.setup[0].device };
    completion_init(&fenced);
    fake_ring_init(&r, F.setup[0].size, a, true);
    r.used_index = r.used->index;
    assert_int_equal(virtqueue_add(Q, &one, 0, 1, &D), 0);
    fake_ring_complete(&r, 77, 0);
    assert_null(virtqueue_get(Q, NULL));
    fence_ends();
}
static void rule20_a_device_that_asks_for_a_reset_is_recovered(void **s)
{
    recoverable();
    assert_int_equal(virtqueue_add(Q, &one, 0, 1, &D), 0);
    memset(F.order, 0, sizeof(F.order));
    F.status |= VIRTIO_STATUS_NEEDS_RESET;
    assert_false(config_bound->serve(config_bound_arg)); /* the configuration interrupt says so */
    fence_ends();
    assert_true(resumed && !D.broken);
    assert_string_equal(F.order, "0ADfFK");
    assert_int_equal(came_back, 1);
    assert_int_equal(config_served, 0); /* nothing of its configuration was believed */
    assert_true(config_bound->serve(config_bound_arg));
}
/* An honest device, to which the ring is new: it is empty, and a request works. */
static void round_trip(void)
{
    struct fake_ring r;
    struct fake_chain c;
    uint32_t len;
    fake_ring_init(&r, F.setup[0].size, (struct ring_addresses){ F.setup[0].descriptors, F.setup[0].driver, F.setup[0].device }, true);
    assert_false(fake_ring_take(&r, &c));
    assert_int_equal(virtqueue_add(Q, &one, 0, 1, &D), 0);
    assert_true(virtqueue_kick_prepare(Q));
    assert_true(fake_ring_take(&r, &c));
    assert_null(c.wrong);
    fake_ring_complete(&r, c.head, 3);
    assert_ptr_equal(virtqueue_get(Q, &len), &D);
    assert_int_equal(len, 3);
}
static void rule20_61_the_rings_and_vectors_are_set_anew(void **s)
{
    recoverable();
    struct virtio_queue_setup before = F.setup[0];
    uint64_t accepted = F.accepted;
    round_trip();
    lie();
    assert_true(resumed);
    assert_true(F.accepted == accepted && !F.features_after_ok);
    assert_int_equal(F.vector[0], 1);
    assert_int_equal(F.config_entry, 0);
    assert_true(F.enabled[0] && !F.late_setup);
    assert_int_equal(F.setup[0].size, before.size);
    assert_true(F.setup[0].descriptors == before.descriptors && F.setup[0].driver == before.driver &&
                F.setup[0].device == before.device);
    round_trip();
}
static void rule19_a_device_that_does_not_come_back_is_failed(void **s)
{
    recoverable();
    F.max_vector = 0; /* refuses the vectors that it had */
    lie();
    assert_false(resumed);
    assert_true(D.broken && (F.status & VIRTIO_STATUS_FAILED));
    assert_null(strchr(F.order + 7, 'K')); /* behind the first start's */
    virtio_stop(&D);
    assert_int_equal(F.status, 0); /* reset again before its memory goes */
}
static void a_device_is_recovered_three_times_in_a_row_and_no_more(void **s)
{
    recoverable();
    for (unsigned i = 0; i < 3; i++) {
        lie();
        assert_true(resumed);
    }
    D.recovered_ns -= 601 * NSEC_PER_SEC; /* a lie after more than ten minutes starts a new row */
    for (unsigned i = 0; i < 4; i++) {
        lie();
        assert_int_equal(resumed, i < 3);
    }
    assert_true(D.broken);
}
static void stop_then_recover(struct virtio_device *d)
{
    while (virtqueue_detach(Q))
        ;
    int error = virtio_recover(d);
    assert_int_equal(error, 0);
    assert_int_equal(virtqueue_restart(Q), 0);
    d->stopped = true; /* as virtio_stop does it at this very moment, before it waits for the fence */
    resumed = virtio_resume(d);
    d->stopped = false;
    completion_complete(&fenced);
}
static void a_device_that_is_stopped_is_not_resumed(void **s)
{
    recoverable();
    D.on_fenced = stop_then_recover;
    lie();
    assert_false(resumed);
    assert_true(D.broken);
    virtio_stop(&D);
    assert_int_equal(F.status, 0);
}
static void rule58_one_entry_for_configuration_and_queue(void **s)
{
    entry[0] = 0; /* what the planner gives when the device has one entry */
    recoverable();
    assert_int_equal(F.vector[0], 0);
    assert_int_equal(F.config_entry, 0);
    assert_true(config_bound->serve(config_bound_arg));
    assert_int_equal(config_served, 1);
}

/* ---- reset of one queue ---- */

static unsigned queue_faults;
static bool mend_queue;
static bool on_queue_fault(struct virtqueue *q)
{
    queue_faults++;
    return mend_queue;
}
static struct virtqueue *other;
static void two_queues(bool offered)
{
    D.queue_reset = true;
    if (offered)
        F.offered |= 1UL << VIRTIO_F_RING_RESET;
    ready(0);
    D.on_fenced = on_fenced;
    D.on_queue_fault = on_queue_fault;
    Q = virtio_queue_start(&D, 0, 0, 4, 0);
    other = virtio_queue_start(&D, 1, 0, 4, 1);
    virtio_driver_ok(&D);
    completion_init(&fenced);
    queue_faults = 0;
    mend_queue = true;
}
static void one_lie(void)
{
    struct fake_ring r;
    fake_ring_init(&r, F.setup[0].size, (struct ring_addresses){ F.setup[0].descriptors, F.setup[0].driver, F.setup[0].device }, true);
    r.used_index = r.used->index;
    assert_int_equal(virtqueue_add(Q, &one, 0, 1, &D), 0);
    fake_ring_complete(&r, 77, 0);
    assert_null(virtqueue_get(Q, NULL));
}
static void rule62_a_lying_queue_is_reset_alone(void **s)
{
    two_queues(true);
    F.queue_reset_reads = 20;
    round_trip();
    assert_int_equal(virtqueue_add(other, &one, 0, 1, &F), 0);
    one_lie();
    assert_int_equal(queue_faults, 1);
    assert_false(D.broken);
    assert_non_null(virtqueue_fault(Q));
    assert_int_equal(virtqueue_add(Q, &one, 0, 1, &D), -EIO);
    assert_int_equal(virtqueue_reset(Q), 0);
    assert_int_equal(F.queue_reset_reads, 0); /* not before the device said so */
    assert_false(F.enabled[0]);
    assert_ptr_equal(virtqueue_detach(Q), &D);
    assert_int_equal(virtqueue_restart(Q), 0);
    assert_true(F.enabled[0] && F.vector[0] == 1 && !F.late_setup);
    assert_null(virtqueue_fault(Q));
    round_trip();
    assert_int_equal(virtqueue_in_flight(other), 1); /* which nobody touched */
    assert_true(F.enabled[1] && F.queues_reset == 1);
}
static void rule62_a_queue_that_stays_in_reset_is_reported(void **s)
{
    two_queues(true);
    F.queue_stuck = true;
    assert_int_equal(virtqueue_reset(Q), -ETIMEDOUT);
}
static void rule62_without_the_feature_or_the_driver_the_device_is_fenced(void **s)
{
    two_queues(false);
    assert_int_equal(virtqueue_reset(Q), -EOPNOTSUPP);
    one_lie();
    assert_true(D.broken);
    completion_wait(&fenced);
    assert_int_equal(queue_faults + F.queues_reset, 0);
    end(NULL);
    start(NULL);
    two_queues(true);
    mend_queue = false; /* often enough, says the driver */
    one_lie();
    assert_true(D.broken);
    completion_wait(&fenced);
    assert_int_equal(queue_faults, 1);
    assert_int_equal(virtqueue_reset(Q), -EIO);
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(rule09_order_of_initialisation), T(rule10_waits_until_reset_is_done), T(rule10_gives_up_on_a_device_stuck_in_reset),
        T(rule11_no_status_bit_is_ever_cleared), T(rule12_both_feature_words), T(rule13_16_21_55_only_known_and_offered_bits),
        T(rule14_a_device_without_version_1_is_refused), T(rule15_features_ok_is_read_back), T(rule17_no_doorbell_before_driver_ok),
        T(rule22_reads_until_the_generation_is_stable), T(rule23_24_fields_beyond_the_size_are_absent),
        T(rule30_size_zero_means_no_queue), T(rule31_sizes_are_powers_of_two_at_most_the_device_s),
        T(rule32_everything_is_set_before_enable), T(rule57_a_refused_vector_goes_down_the_ladder),
        T(no_queue_without_service_at_driver_ok), T(rule46_a_lying_device_is_fenced), T(fencing_cuts_off_what_reset_cannot_stop),
        T(rule19_a_device_that_does_not_come_back_is_failed), T(rule20_a_device_that_asks_for_a_reset_is_recovered),
        T(rule20_61_the_rings_and_vectors_are_set_anew), T(a_device_is_recovered_three_times_in_a_row_and_no_more),
        T(rule62_a_lying_queue_is_reset_alone), T(rule62_a_queue_that_stays_in_reset_is_reported),
        T(rule62_without_the_feature_or_the_driver_the_device_is_fenced),
        T(a_device_that_is_stopped_is_not_resumed), T(rule58_one_entry_for_configuration_and_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
