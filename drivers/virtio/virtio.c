/* virtio devices: reset, negotiation, configuration, fencing. No transport and no queue in here. */
#include <weir/atomic.h>
#include <weir/cmdline.h>
#include <weir/errno.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>

#include "transport.h"
#include "virtio_wire.h"

#define RESET_TIMEOUT_NS  (2 * NSEC_PER_SEC)
#define RESET_POLL_NS     (100 * NSEC_PER_USEC)
#define GENERATION_TRIES  1000
/* A device that needs to be recovered more often than this is not worth its requests' errors. */
#define RECOVERIES_MAX    3u
#define RECOVERY_WINDOW_NS (600 * NSEC_PER_SEC)

/* Bits 24 to 41 speak of the transport and the rings: this layer's business, not a driver's. */
#define CORE_BITS (((1ULL << 42) - 1) & ~((1ULL << 24) - 1))

/* ---- status ---- */

static void add_status(struct virtio_device *d, uint8_t bits)
{
    d->transport->status_write(d, d->transport->status_read(d) | bits);
}

#define STATUS_GONE 0xffu /* what a bus reads where nothing is */

/* Write 0 and wait until the device says that it is done. -ENODEV: it is not there any more. */
static int reset_and_wait(struct virtio_device *d)
{
    d->transport->status_write(d, 0);
    uint64_t deadline = clock_monotonic_ns() + RESET_TIMEOUT_NS;
    uint8_t status;
    while ((status = d->transport->status_read(d)) != 0) {
        if (status == STATUS_GONE)
            return -ENODEV;
        if (clock_monotonic_ns() > deadline) {
            log_error("%s: does not come out of reset", d->name);
            return -ETIMEDOUT;
        }
        sleep_until_ns(clock_monotonic_ns() + RESET_POLL_NS);
    }
    return 0;
}

int virtio_reset(struct virtio_device *d)
{
    d->driver_ok = false;
    int error = reset_and_wait(d);
    if (error)
        return error;
    d->features = 0;
    add_status(d, VIRTIO_STATUS_ACKNOWLEDGE);
    add_status(d, VIRTIO_STATUS_DRIVER);
    return 0;
}

void virtio_fail(struct virtio_device *d)
{
    add_status(d, VIRTIO_STATUS_FAILED);
}

/* ---- features ---- */

uint64_t virtio_device_features(struct virtio_device *d)
{
    uint64_t low = d->transport->features_read(d, 0);
    return low | (uint64_t)d->transport->features_read(d, 1) << 32;
}

/* The ring and transport features that we can do, as far as the command line lets us. */
static uint64_t core_features(const struct virtio_device *d)
{
    uint64_t f = 1ULL << VIRTIO_F_VERSION_1 | 1ULL << VIRTIO_F_ACCESS_PLATFORM |
                 1ULL << VIRTIO_F_ORDER_PLATFORM;
    if (d->queue_reset)
        f |= 1ULL << VIRTIO_F_RING_RESET;
    if (cmdline_bool("virtio.indirect", true))
        f |= 1ULL << VIRTIO_F_INDIRECT_DESC;
    if (cmdline_bool("virtio.packed", true))
        f |= 1ULL << VIRTIO_F_RING_PACKED;
    if (cmdline_bool("virtio.event_idx", true))
        f |= 1ULL << VIRTIO_F_EVENT_IDX;
    return f;
}

bool virtio_is_legacy(const struct virtio_device *d)
{
    return d->transport->legacy;
}

/* False: the device does not go along with this set. */
static bool accept(struct virtio_device *d, uint64_t features)
{
    d->transport->features_write(d, 0, (uint32_t)features);
    d->transport->features_write(d, 1, (uint32_t)(features >> 32));
    if (d->transport->legacy)
        return true;
    add_status(d, VIRTIO_STATUS_FEATURES_OK);
    return d->transport->status_read(d) & VIRTIO_STATUS_FEATURES_OK;
}

int virtio_negotiate(struct virtio_device *d, uint64_t wanted, uint64_t required)
{
    uint64_t offered = virtio_device_features(d);
    bool legacy = d->transport->legacy;
    if (!legacy)
        required |= 1ULL << VIRTIO_F_VERSION_1;
    uint64_t missing = required & ~offered;
    if (missing) {
        log_error("%s: not usable, it does not offer the features 0x%lx", d->name,
                  (unsigned long)missing);
        virtio_fail(d);
        return -EOPNOTSUPP;
    }
    uint64_t accepted = offered & ((wanted & ~CORE_BITS) | core_features(d) |
                                   (legacy ? 1ULL << VIRTIO_F_ANY_LAYOUT : 0));
    if (!accept(d, accepted)) {
        log_error("%s: refuses the features 0x%lx (it offers 0x%lx)", d->name,
                  (unsigned long)accepted, (unsigned long)offered);
        virtio_fail(d);
        return -EOPNOTSUPP;
    }
    d->features = accepted;
    if (virtio_has(d, VIRTIO_F_RING_PACKED))
        log_info("%s: packed rings", d->name);
    return 0;
}

/* ---- device configuration ---- */

unsigned virtio_config_size(struct virtio_device *d)
{
    return d->transport->config_size(d);
}

/* A field outside what the device has reads as 0: its feature bit was a lie. */
static uint32_t config_field(struct virtio_device *d, unsigned offset, unsigned width)
{
    if (offset + width > virtio_config_size(d)) {
        log_warn("%s: configuration has no field at offset %u", d->name, offset);
        return 0;
    }
    return d->transport->config_read(d, offset, width);
}

uint8_t virtio_config_read8(struct virtio_device *d, unsigned offset)
{
    return (uint8_t)config_field(d, offset, 1);
}

uint16_t virtio_config_read16(struct virtio_device *d, unsigned offset)
{
    return (uint16_t)config_field(d, offset, 2);
}

uint32_t virtio_config_read32(struct virtio_device *d, unsigned offset)
{
    return config_field(d, offset, 4);
}

uint64_t virtio_config_read64(struct virtio_device *d, unsigned offset)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < GENERATION_TRIES; i++) {
        uint8_t before = d->transport->generation(d);
        value = config_field(d, offset, 4);
        value |= (uint64_t)config_field(d, offset + 4, 4) << 32;
        if (d->transport->generation(d) == before)
            return value;
    }
    log_warn("%s: configuration changes without end", d->name);
    return value;
}

void virtio_config_read(struct virtio_device *d, unsigned offset, void *buf, size_t len)
{
    uint8_t *out = buf;
    for (unsigned i = 0; i < GENERATION_TRIES; i++) {
        uint8_t before = d->transport->generation(d);
        for (size_t k = 0; k < len; k++)
            out[k] = (uint8_t)config_field(d, offset + (unsigned)k, 1);
        if (d->transport->generation(d) == before)
            return;
    }
    log_warn("%s: configuration changes without end", d->name);
}

void virtio_config_write8(struct virtio_device *d, unsigned offset, uint8_t v)
{
    if (offset < virtio_config_size(d))
        d->transport->config_write8(d, offset, v);
}

/* ---- configuration interrupt ---- */

bool virtio_check(struct virtio_device *d)
{
    if (atomic_load_relaxed(&d->broken) || !d->driver_ok)
        return false;
    uint8_t status = d->transport->status_read(d);
    /* Where a device was taken out, some machines read ones, others zeroes. */
    if (status == STATUS_GONE || !(status & VIRTIO_STATUS_DRIVER_OK))
        virtio_fence(d, "it has vanished, or lost its state");
    else if (status & VIRTIO_STATUS_NEEDS_RESET)
        virtio_fence(d, "it asks for a reset");
    else
        return true;
    return false;
}

static bool config_serve(void *arg)
{
    struct virtio_device *d = arg;
    return virtio_check(d) && d->config_service->serve(d->config_arg);
}

static const struct irq_service config_irq_service = { .serve = config_serve };

int virtio_config_start(struct virtio_device *d, unsigned cpu, const struct irq_service *service,
                        void *arg)
{
    d->config_service = service;
    d->config_arg = arg;
    int entry = irq_entry_of(d->irq, IRQ_CONFIG);
    while (entry >= 0 && d->transport->config_vector(d, (uint16_t)entry) != entry)
        entry = irq_refused(d->irq, IRQ_CONFIG);
    if (entry < 0)
        d->transport->config_vector(d, VIRTIO_NO_VECTOR);
    irq_bind(d->irq, IRQ_CONFIG, cpu, &config_irq_service, d);
    return 0;
}

/* ---- demand ---- */

int virtio_demand(struct virtio_device *d, enum irq_class class, unsigned sources,
                  bool config_change)
{
    struct irq_demand demand = {
        .name = d->name,
        .class = class,
        .sources = sources,
        .config_change = config_change,
        .intx_gsi = -1,
    };
    return d->transport->demand(d, &demand);
}

/* ---- fencing ---- */

/*
 * running --virtio_fence--> broken, fencing: the thread resets it, on_fenced takes everything back
 *    ^                          |
 *    +------virtio_resume-------+--- or it stays broken, for good
 *
 * virtio_stop sets `stopped`, after which nothing clears `broken`, and waits until the thread has let go.
 */
static spinlock_t fence_lock = SPINLOCK_INIT; /* f, interrupts off; innermost */
static struct list fence_list = LIST_INIT(fence_list); /* f */
static struct wait_queue fence_wait = WAIT_QUEUE_INIT(fence_wait);
static struct wait_queue fenced_wait = WAIT_QUEUE_INIT(fenced_wait); /* for the end of `fencing` */
static bool fence_thread_started; /* a */

static struct virtio_device *fence_next(void)
{
    struct virtio_device *d = NULL;
    uint64_t flags = spin_lock_irqsave(&fence_lock);
    if (!list_empty(&fence_list)) {
        d = list_first(&fence_list, struct virtio_device, fence_link);
        list_del(&d->fence_link);
    }
    spin_unlock_irqrestore(&fence_lock, flags);
    return d;
}

/* Cookies go back only when the device cannot write to their memory any more. */
static void silence(struct virtio_device *d)
{
    int error = reset_and_wait(d);
    d->isolated = error == -ETIMEDOUT;
    if (d->isolated)
        d->transport->isolate(d);
    bool present = !d->transport->present || d->transport->present(d);
    atomic_store_relaxed(&d->vanished, error == -ENODEV || !present);
    atomic_store_release(&d->fence_done, true);
}

static void fence_finish(struct virtio_device *d)
{
    silence(d);
    if (d->on_fenced)
        d->on_fenced(d);
    if (d->vanished && d->transport->vanished)
        d->transport->vanished(d);
    /* The device may be taken apart by who waits for this. */
    uint64_t flags = spin_lock_irqsave(&fence_lock);
    atomic_store_release(&d->fencing, false);
    spin_unlock_irqrestore(&fence_lock, flags);
    wake_all(&fenced_wait);
}

static void fence_thread(void *arg)
{
    for (;;) {
        struct virtio_device *d;
        wait_event(&fence_wait, (d = fence_next()) != NULL);
        fence_finish(d);
    }
}

/* A thread must exist before it is needed: fencing happens in interrupt context. */
static void fence_thread_start(void)
{
    if (atomic_exchange(&fence_thread_started, true))
        return;
    struct thread *t = thread_create("virtio-fence", fence_thread, NULL);
    if (!t)
        panic("no memory for the virtio fencing thread");
    thread_start(t);
    thread_put(t);
}

void virtio_fence(struct virtio_device *d, const char *why)
{
    uint64_t flags = spin_lock_irqsave(&fence_lock);
    bool first = !d->broken;
    atomic_store_relaxed(&d->broken, true);
    d->fencing |= first;
    spin_unlock_irqrestore(&fence_lock, flags);
    if (!first)
        return;
    log_error("%s: fenced: %s", d->name, why);
    flags = spin_lock_irqsave(&fence_lock);
    list_add_tail(&fence_list, &d->fence_link);
    spin_unlock_irqrestore(&fence_lock, flags);
    wake_all(&fence_wait);
}

/* ---- recovery ---- */

void virtio_give_up(struct virtio_device *d, const char *why)
{
    log_error("%s: stays fenced until the next boot: %s", d->name, why);
    virtio_fail(d);
}

/* Why the device does not come back, or NULL. */
static const char *start_over(struct virtio_device *d)
{
    int entry = d->config_service ? irq_entry_of(d->irq, IRQ_CONFIG) : -1;
    uint16_t vector = entry < 0 ? VIRTIO_NO_VECTOR : (uint16_t)entry;
    add_status(d, VIRTIO_STATUS_ACKNOWLEDGE);
    add_status(d, VIRTIO_STATUS_DRIVER);
    if (d->features & ~virtio_device_features(d))
        return "it does not offer the features any more that it had";
    if (!accept(d, d->features))
        return "it refuses the features that it had";
    if (d->transport->config_vector(d, vector) != vector)
        return "it refuses the vector that it had";
    return NULL;
}

int virtio_recover(struct virtio_device *d)
{
    if (d->vanished || atomic_load_relaxed(&d->stopped))
        return -ENODEV;
    const char *why = NULL;
    uint64_t now = clock_monotonic_ns();
    if (d->recoveries && now - d->recovered_ns > RECOVERY_WINDOW_NS)
        d->recoveries = 0;
    if (d->isolated)
        why = "it does not come out of reset";
    else if (d->recoveries == RECOVERIES_MAX)
        why = "it was recovered often enough";
    if (!why) {
        d->recoveries++;
        d->recovered_ns = now;
        /* From here on it must be reset again before anything of it is freed. */
        atomic_store_relaxed(&d->fence_done, false);
        why = start_over(d);
    }
    if (why)
        virtio_give_up(d, why);
    return why ? -EIO : 0;
}

bool virtio_resume(struct virtio_device *d)
{
    add_status(d, VIRTIO_STATUS_DRIVER_OK);
    uint64_t flags = spin_lock_irqsave(&fence_lock);
    bool runs = !d->stopped;
    /* Who sees it whole again must see the rings as new. */
    if (runs)
        atomic_store_release(&d->broken, false);
    spin_unlock_irqrestore(&fence_lock, flags);
    if (runs)
        log_warn("%s: recovered by a reset (%u of at most %u in a row)", d->name, d->recoveries, RECOVERIES_MAX);
    return runs;
}

void virtio_driver_ok(struct virtio_device *d)
{
    fence_thread_start();
    virtqueue_assert_served(d);
    add_status(d, VIRTIO_STATUS_DRIVER_OK);
    d->driver_ok = true;
    virtqueue_send_held_kicks(d);
}

void virtio_stop(struct virtio_device *d)
{
    if (d->stopped)
        return;
    uint64_t flags = spin_lock_irqsave(&fence_lock);
    d->stopped = true;
    atomic_store_relaxed(&d->broken, true);
    spin_unlock_irqrestore(&fence_lock, flags);
    wait_event(&fenced_wait, !atomic_load_acquire(&d->fencing));
    if (!d->fence_done) /* never fenced, or recovered since */
        silence(d);
    d->driver_ok = false;
    if (d->irq)
        irq_release(d->irq);
}
