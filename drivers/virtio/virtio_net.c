/* virtio-net: finding, negotiating and starting NICs; control queue; link and announcements. */
#include <weir/atomic.h>
#include <weir/cmdline.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/time.h>
#include "drivers/virtio/virtio_net.h"

#define NET_TYPE 1
enum { CONFIG_MAC = 0, CONFIG_STATUS = 6, CONFIG_MAX_PAIRS = 8, CONFIG_MTU = 10,
       CONFIG_RSS_MAX_KEY = 17, CONFIG_RSS_MAX_TABLE = 18, CONFIG_HASH_TYPES = 20 };
enum { STATUS_LINK_UP = 1, STATUS_ANNOUNCE = 2 };
enum { CTRL_ANNOUNCE = 3, CTRL_MQ = 4 };
#define CTRL_ANNOUNCE_ACK 0
enum { CTRL_MQ_PAIRS_SET = 0, CTRL_MQ_RSS_CONFIG = 1 };
#define CTRL_OK 0
#define CTRL_TIMEOUT_NS (2 * NSEC_PER_SEC)
#define MTU_DEFAULT 1500u
#define MTU_MAX 9000u
#define QUEUE_RESETS_MAX 3u /* of a pair; the next lie fences the device */
_Static_assert(NET_TX_HEADROOM >= NET_HDR_SIZE_MAX, "no room for the header");
_Static_assert(NET_RSS_KEY == NET_RSS_KEY_BYTES && NET_RSS_TABLE == NET_RSS_BUCKETS, "core/net and the device name the same flows");

/* ---- control queue ---- */

struct control_command {
    uint8_t class, command;
    uint8_t data[sizeof(struct virtio_net_rss_command)]; /* the largest */
    uint8_t ack;
};

/* 0 if the device said OK; everything else is a failure. Thread context. */
static int control(struct net_nic *nic, uint8_t class, uint8_t command, const void *data, unsigned len)
{
    if (!nic->control)
        return -EOPNOTSUPP;
    struct control_command *c = kzalloc(sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->class = class;
    c->command = command;
    c->ack = 0xff; /* a value that no device writes */
    if (len)
        memcpy(c->data, data, len);
    struct virtio_buffer bufs[2] = { { virt_to_phys(c), 2 + len }, { virt_to_phys(&c->ack), 1 } };
    mutex_lock(&nic->control_lock);
    int r = virtqueue_add(nic->control, bufs, 1, 1, c);
    if (!r) {
        if (virtqueue_kick_prepare(nic->control))
            virtqueue_notify(nic->control);
        uint64_t deadline = clock_monotonic_ns() + CTRL_TIMEOUT_NS;
        void *done = NULL;
        while (!(done = virtqueue_get(nic->control, NULL)) && clock_monotonic_ns() < deadline)
            sleep_until_ns(clock_monotonic_ns() + 20 * NSEC_PER_USEC);
        if (!done) {
            /* The device still owns the memory: it is not freed, and the queue is not used again. */
            nic->control = NULL;
            mutex_unlock(&nic->control_lock);
            return -ETIMEDOUT;
        }
        r = c->ack == CTRL_OK ? 0 : -EIO;
    }
    mutex_unlock(&nic->control_lock);
    kfree(c);
    return r;
}

/* ---- configuration changes ---- */

void nic_config_work(struct net_nic *nic)
{
    if (!virtio_has(nic->virtio, NET_F_STATUS))
        return;
    uint16_t status = virtio_config_read16(nic->virtio, CONFIG_STATUS);
    bool up = status & STATUS_LINK_UP;
    if (up != nic->net.link_up) {
        atomic_store_relaxed(&nic->net.link_up, up);
        net_device_link_changed(&nic->net);
    }
    if ((status & STATUS_ANNOUNCE) && virtio_has(nic->virtio, NET_F_GUEST_ANNOUNCE)) {
        net_device_announce(&nic->net);
        if (control(nic, CTRL_ANNOUNCE, CTRL_ANNOUNCE_ACK, NULL, 0))
            log_warn("%s: announcement was not acknowledged", nic->virtio->name);
    }
}

static bool config_changed(void *arg)
{
    struct net_nic *nic = arg;
    atomic_store_relaxed(&nic->config_work, true);
    atomic_store_release(&nic->pair[0].work, true);
    wake_all(&nic->pair[0].wait);
    return true;
}
static const struct irq_service config_service = { .serve = config_changed };

/* ---- life ---- */

static struct wait_queue ended_wait = WAIT_QUEUE_INIT(ended_wait);

static void nic_fenced(struct virtio_device *v)
{
    struct net_nic *nic = v->driver_data;
    for (unsigned i = 0; i < nic->pairs; i++) {
        atomic_store_release(&nic->pair[i].work, true);
        wake_all(&nic->pair[i].wait);
    }
}

/* A pair's thread resets its queues one by one, a few times. The control queue's user is not a thread of ours. */
static bool nic_queue_fault(struct virtqueue *q)
{
    struct net_nic *nic = virtqueue_device(q)->driver_data;
    unsigned pair = virtqueue_index(q) / 2;
    if (pair >= nic->net.rx_queues || !nic->pair[pair].thread ||
        atomic_load_relaxed(&nic->pair[pair].resets) >= QUEUE_RESETS_MAX)
        return false;
    atomic_store_release(&nic->pair[pair].work, true);
    wake_all(&nic->pair[pair].wait);
    return true;
}

/* After virtio_stop. */
static void nic_release(struct net_nic *nic)
{
    for (unsigned i = 0; nic->pair && i < nic->pairs; i++) {
        struct net_pair *p = &nic->pair[i];
        void *buffer;
        while (p->rx && !is_err(p->rx) && (buffer = virtqueue_detach(p->rx)))
            kfree(buffer);
        kfree(p->slots);
    }
    virtio_shutdown(nic->virtio);
    virtio_pci_destroy(nic->virtio);
    kfree(nic->pair);
    kfree(nic);
}

static void nic_free(struct net_nic *nic)
{
    virtio_stop(nic->virtio);
    nic_release(nic);
}

void nic_pair_ended(struct net_pair *p)
{
    /* With the last one the device may be freed: the queue of those who wait is not a part of it. */
    atomic_fetch_sub(&p->nic->running, 1);
    wake_all(&ended_wait);
}

/* The function leaves, or has left. Frames under way are lost; connections over its address end with an error. */
static void nic_remove(struct pci_device *pci, bool surprise)
{
    struct net_nic *nic = pci->driver_data;
    virtio_stop(nic->virtio);
    /* The device is reset: each pair's thread takes its buffers back and ends. */
    atomic_store_release(&nic->virtio->fence_done, true);
    nic_fenced(nic->virtio);
    wait_event(&ended_wait, !atomic_load_acquire(&nic->running));
    for (unsigned i = 0; i < nic->pairs; i++) {
        if (nic->pair[i].thread)
            thread_put(nic->pair[i].thread);
    }
    net_device_unregister(&nic->net);
    nic_release(nic);
    pci->driver_data = NULL;
}

/* ---- what can be seen ---- */

static const struct { uint8_t bit; const char *word; } feature_words[] = {
    { NET_F_CSUM, "csum" }, { NET_F_GUEST_CSUM, "guest_csum" }, { NET_F_HOST_TSO4, "tso4" }, { NET_F_GUEST_TSO4, "guest_tso4" },
    { NET_F_MRG_RXBUF, "mergeable" }, { NET_F_MTU, "mtu" }, { NET_F_STATUS, "status" }, { NET_F_CTRL_VQ, "control" },
    { NET_F_GUEST_ANNOUNCE, "announce" }, { NET_F_MQ, "mq" }, { VIRTIO_F_INDIRECT_DESC, "indirect" },
    { VIRTIO_F_EVENT_IDX, "event_idx" }, { VIRTIO_F_RING_PACKED, "packed" },
};

static size_t nic_print(struct net_device *d, char *buf, size_t size)
{
    struct net_nic *nic = d->driver_data;
    uint64_t frames = 0, lies = 0, starved = 0;
    unsigned posted = 0, target = 0, sending = 0;
    for (unsigned i = 0; i < d->rx_queues; i++) {
        const struct net_pair *p = &nic->pair[i];
        frames += atomic_load_relaxed(&p->frames);
        lies += atomic_load_relaxed(&p->lies);
        starved += atomic_load_relaxed(&p->starved);
        posted += atomic_load_relaxed(&p->posted);
        target += p->target;
        sending += virtqueue_in_flight(p->tx);
    }
    size_t n = (size_t)scnprintf(buf, size, "pairs %u posted %u of %u sending %u frames %lu lies %lu starved %lu features", d->rx_queues,
                                 posted, target, sending, (unsigned long)frames, (unsigned long)lies, (unsigned long)starved);
    for (size_t i = 0; i < ARRAY_SIZE(feature_words); i++) {
        if (virtio_has(nic->virtio, feature_words[i].bit))
            n += (size_t)scnprintf(buf + n, size - n, " %s", feature_words[i].word);
    }
    return n + (size_t)scnprintf(buf + n, size - n, "%s%s", nic->rss ? " rss" : "", nic->hashes ? " hash" : "");
}

static const struct net_device_ops nic_ops = { .transmit = nic_transmit, .flush = nic_flush, .print = nic_print };

static int read_config(struct net_nic *nic)
{
    struct virtio_device *v = nic->virtio;
    if (virtio_has(v, NET_F_MAC)) {
        virtio_config_read(v, CONFIG_MAC, nic->net.mac, 6);
    } else {
        /* Locally administered, different from boot to boot. */
        uint64_t x = clock_realtime_ns() * 0x9e3779b97f4a7c15UL;
        memcpy(nic->net.mac, &x, 6);
        nic->net.mac[0] = (nic->net.mac[0] & 0xfc) | 2;
    }
    nic->net.mtu = MTU_DEFAULT;
    if (virtio_has(v, NET_F_MTU))
        nic->net.mtu = MIN((unsigned)virtio_config_read16(v, CONFIG_MTU), MTU_MAX);
    if (nic->net.mtu < 68) {
        log_error("%s: MTU of %u cannot be used", v->name, nic->net.mtu);
        return -EINVAL;
    }
    nic->max_pairs = virtio_has(v, NET_F_MQ) || virtio_has(v, NET_F_RSS) ? virtio_config_read16(v, CONFIG_MAX_PAIRS) : 1;
    nic->max_pairs = MAX(nic->max_pairs, 1u);
    nic->net.link_up = !virtio_has(v, NET_F_STATUS) || (virtio_config_read16(v, CONFIG_STATUS) & STATUS_LINK_UP);
    nic->pairs = virtio_net_pairs(v->features, nic->max_pairs, cpu_count(), (unsigned)cmdline_u64("net.pairs", 0));
    nic->header_size = virtio_net_header_size(v->features, virtio_has(v, VIRTIO_F_VERSION_1));
    nic->mergeable = virtio_has(v, NET_F_MRG_RXBUF);
    if (virtio_has(v, NET_F_RSS))
        nic->hash_types = virtio_net_hash_types(virtio_config_read8(v, CONFIG_RSS_MAX_KEY),
                                                virtio_config_read16(v, CONFIG_RSS_MAX_TABLE), virtio_config_read32(v, CONFIG_HASH_TYPES));
    nic->buffer_size = virtio_net_buffer_size(v->features, nic->header_size, nic->net.mtu, NET_RX_HEADROOM);
    nic->net.tx_csum = virtio_has(v, NET_F_CSUM);
    nic->net.rx_csum = virtio_has(v, NET_F_GUEST_CSUM);
    nic->net.tso4 = virtio_has(v, NET_F_HOST_TSO4) && cmdline_bool("net.tso", true);
    return 0;
}

static int nic_probe(struct pci_device *pci)
{
    struct net_nic *nic = kzalloc(sizeof(*nic));
    if (!nic)
        return -ENOMEM;
    mutex_init(&nic->control_lock);
    nic->virtio = virtio_pci_create(pci, "virtio-net");
    if (!nic->virtio) {
        kfree(nic);
        return -ENODEV;
    }
    nic->virtio->driver_data = nic;
    nic->virtio->on_fenced = nic_fenced;
    nic->virtio->on_queue_fault = nic_queue_fault;
    nic->net.driver_data = nic;
    nic->net.ops = &nic_ops;
    int error = virtio_reset(nic->virtio);
    if (!error)
        error = virtio_negotiate(nic->virtio, virtio_net_choose_features(virtio_device_features(nic->virtio)),
                                 virtio_is_legacy(nic->virtio) ? 1ULL << VIRTIO_F_ANY_LAYOUT : 0);
    if (!error)
        error = read_config(nic);
    if (!error)
        error = virtio_demand(nic->virtio, IRQ_CLASS_NET, nic->pairs, virtio_has(nic->virtio, NET_F_STATUS));
    if (error) {
        nic_free(nic);
        return error;
    }
    net_device_expect(nic->pairs);
    pci->driver_data = nic;
    return 0;
}

static int start_pairs(struct net_nic *nic)
{
    struct virtio_device *v = nic->virtio;
    nic->pair = kcalloc(nic->pairs, sizeof(nic->pair[0]));
    if (!nic->pair)
        return -ENOMEM;
    for (unsigned i = 0; i < nic->pairs; i++) {
        struct net_pair *p = &nic->pair[i];
        p->nic = nic;
        p->index = i;
        wait_queue_init(&p->wait);
        int r = nic_rx_start(p);
        if (!r)
            r = nic_tx_start(p);
        if (r)
            return r;
    }
    if (virtio_has(v, NET_F_CTRL_VQ)) {
        struct virtqueue *q = virtio_queue_start(v, virtio_net_control_index(v->features, nic->max_pairs), 0, 2, -1);
        if (is_err(q))
            log_warn("%s: no control queue: error %d", v->name, (int)-ptr_err(q));
        else
            nic->control = q;
    }
    for (unsigned i = 0; i < nic->pairs; i++) {
        nic->pair[i].irq_cpu = i % cpu_count();
        irq_bind(v->irq, i, i, &nic_pair_service, &nic->pair[i]);
    }
    if (virtio_has(v, NET_F_STATUS))
        return virtio_config_start(v, 0, &config_service, nic);
    return 0;
}

/* The device spreads flows by our table, and with HASH_REPORT says each one's hash: pairs and table in one command. */
static int use_rss(struct net_nic *nic, const struct net_rss *rss)
{
    struct virtio_net_rss_command *c = kmalloc(sizeof(*c));
    if (!c)
        return -ENOMEM;
    int r = -EINVAL;
    if (virtio_net_rss_command(c, nic->hash_types, rss->key, rss->queue, nic->pairs))
        r = control(nic, CTRL_MQ, CTRL_MQ_RSS_CONFIG, c, sizeof(*c));
    kfree(c);
    return r;
}

/* As far as the device agrees: RSS, else plain pairs, else one. */
static void use_pairs(struct net_nic *nic)
{
    const char *name = nic->virtio->name;
    struct net_rss rss;
    if (nic->pairs == 1)
        return;
    net_device_rss(nic->pairs, &rss);
    if (nic->hash_types) {
        int r = use_rss(nic, &rss);
        if (!r) {
            nic->rss = true;
            nic->hashes = virtio_has(nic->virtio, NET_F_HASH_REPORT);
            return;
        }
        log_warn("%s: the device refuses RSS (error %d)", name, -r);
    }
    uint16_t pairs = (uint16_t)nic->pairs;
    int r = virtio_has(nic->virtio, NET_F_MQ) ? control(nic, CTRL_MQ, CTRL_MQ_PAIRS_SET, &pairs, sizeof(pairs)) : -EOPNOTSUPP;
    if (r) {
        log_warn("%s: the device refuses %u queue pairs (error %d); using one", name, nic->pairs, -r);
        nic->net.rx_queues = nic->net.tx_queues = 1;
    }
}

static int nic_start(struct pci_device *pci)
{
    struct net_nic *nic = pci->driver_data;
    int r = start_pairs(nic);
    if (r) {
        log_error("%s: does not start: error %d", nic->virtio->name, -r);
        nic_free(nic);
        return r;
    }
    nic->net.rx_queues = nic->net.tx_queues = nic->pairs;
    virtio_driver_ok(nic->virtio);
    use_pairs(nic);
    r = net_device_register(&nic->net);
    if (r) {
        nic_free(nic);
        return r;
    }
    nic->registered = true;
    for (unsigned i = 0; i < nic->net.rx_queues; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%s-%u", nic->net.name, i);
        struct thread *t = thread_create(name, nic_rx_thread, &nic->pair[i]);
        if (!t)
            panic("%s: no memory for the thread of a receive queue", nic->virtio->name);
        nic->pair[i].thread = t;
        atomic_fetch_add(&nic->running, 1);
        thread_start(t);
    }
    log_info("%s: %s, %u of %u queue pairs, rings of %u and %u, %u byte buffers%s%s%s", nic->net.name, nic->virtio->name,
             nic->net.rx_queues, nic->max_pairs, virtqueue_size(nic->pair[0].rx), virtqueue_size(nic->pair[0].tx),
             nic->buffer_size, nic->mergeable ? ", mergeable" : "", nic->rss ? ", RSS" : "", nic->hashes ? ", hashes" : "");
    return 0;
}

static bool nic_match(const struct pci_device *pci)
{
    return virtio_pci_match(pci, NET_TYPE);
}

static const struct pci_driver virtio_net_driver = {
    .name = "virtio-net",
    .match = nic_match,
    .probe = nic_probe,
    .start = nic_start,
    .remove = nic_remove,
};
PCI_DRIVER(virtio_net_driver);
