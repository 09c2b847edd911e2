/* Network devices as the stacks see them: registration, frames in, addresses. */
#include <weir/cmdline.h>
#include <weir/init.h>
#include <weir/time.h>
#include "core/net/device.h"

#define BATCH_FRAMES 64
#define BATCH_PIECES 128
#define DHCP_WAIT_NS (4 * NSEC_PER_SEC)

struct rx_frame {
    uint16_t first, count;
    bool verified;
};
/* Owned by the receive queue's thread. One batch for each stack, so that each is entered once. */
struct rx_batch {
    unsigned frame_count, piece_count;
    struct rx_frame frames[BATCH_FRAMES];
    struct stack_rx_piece pieces[BATCH_PIECES];
};

/* Key: I immutable, D devices_lock, L the stack's lock */
struct device_state {
    struct netif_handle **netifs;  /* L one for each stack */
    struct tx_queue *tx;           /* I */
    struct rx_batch **batches;     /* receive queue's thread: [queue * stack_count + stack] */
    uint16_t rx_queue_of[STEER_BUCKETS], tx_queue_of[STEER_BUCKETS]; /* I queue of a flow by its bucket */
    bool dhcp;                     /* D */
    uint32_t ip, mask, gateway;    /* a as stack 0 has them */
};

static uint8_t stack_of[STEER_BUCKETS];  /* written with devices_lock, before the first device is registered */
static unsigned queues_expected = 1; /* of the largest device; written at INIT_BUS */
static struct mutex devices_lock = MUTEX_INIT(devices_lock);
static struct list devices = LIST_INIT(devices); /* D */
static struct wait_queue address_wait = WAIT_QUEUE_INIT(address_wait);
static bool addresses_configured;                /* D INIT_NET has passed */

static inline struct device_state *state_of(struct net_device *d)
{
    return d->stack_data;
}

struct tx_queue *device_tx_queue_at(struct net_device *d, unsigned queue)
{
    return &state_of(d)->tx[queue];
}

struct tx_queue *device_tx_queue(struct net_device *d, uint32_t hash)
{
    struct device_state *state = state_of(d);
    return &state->tx[state->tx_queue_of[hash % STEER_BUCKETS]];
}

void device_flush_locked(struct stack *st)
{
    transmit_flush_tso_locked(st);
    while (!list_empty(&st->flush)) {
        struct list *l = st->flush.next;
        list_del(l);
        struct tx_queue *q = container_of(l - st->index, struct tx_queue, flush_link[0]);
        q->device->ops->flush(q->device, q->index);
    }
}

/* ---- frames in ---- */

static void batch_deliver(struct net_device *d, struct stack *st, struct rx_batch *b)
{
    struct device_state *state = state_of(d);
    stack_lock(st);
    struct netif_handle *n = state->netifs[st->index];
    for (unsigned i = 0; i < b->frame_count; i++) {
        const struct rx_frame *f = &b->frames[i];
        if (n) {
            st->ops->netif_input(n, b->pieces + f->first, f->count, f->verified);
            continue;
        }
        for (unsigned j = f->first; j < f->first + f->count; j++)
            b->pieces[j].free_fn(b->pieces[j].cookie);
    }
    b->frame_count = b->piece_count = 0;
    stack_unlock(st);
}

static void pieces_free(const struct net_rx_segment *segs, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        segs[i].free_fn(segs[i].cookie);
}

static void batch_add(struct net_device *d, struct stack *st, struct rx_batch *b, const struct net_rx_segment *segs,
                      unsigned count, bool verified)
{
    if (b->frame_count == BATCH_FRAMES || b->piece_count + count > BATCH_PIECES)
        batch_deliver(d, st, b);
    b->frames[b->frame_count++] = (struct rx_frame){ (uint16_t)b->piece_count, (uint16_t)count, verified };
    for (unsigned i = 0; i < count; i++)
        b->pieces[b->piece_count++] = (struct stack_rx_piece){ segs[i].data, segs[i].len, segs[i].free_fn, segs[i].cookie };
}

static void copy_free(void *cookie)
{
    kfree(cookie);
}

/* The same frame to one more stack: a copy of its first piece (ARP is short). */
static void batch_add_copy(struct net_device *d, struct stack *st, struct rx_batch *b, const struct net_rx_segment *seg)
{
    uint8_t *copy = kmalloc(NET_RX_HEADROOM + seg->len);
    if (!copy)
        return; /* as if lost on the wire */
    memcpy(copy + NET_RX_HEADROOM, seg->data, seg->len);
    struct net_rx_segment one = { copy + NET_RX_HEADROOM, seg->len, copy_free, copy };
    batch_add(d, st, b, &one, 1, true);
}

void net_receive(struct net_device *d, unsigned queue, const struct net_rx_segment *segs, unsigned count,
                 bool csum_ok, bool needs_csum, bool hashed, uint32_t hash)
{
    uint32_t total = 0;
    for (unsigned i = 0; i < count; i++)
        total += segs[i].len;
    struct rx_batch **batches = &state_of(d)->batches[queue * stack_count];
    if (!count || count > BATCH_PIECES || total < 14 || total > 0xffff) {
        pieces_free(segs, count);
        NET_COUNT(rx_dropped, 1);
        return;
    }
    NET_COUNT(rx_frames, 1);
    NET_COUNT(rx_bytes, total);
    bool verified = csum_ok || needs_csum;
    unsigned target = 0;
    if (stack_count > 1 || d->rx_queues > 1) {
        enum steer_kind kind = hashed ? STEER_FLOW : steer_frame(segs[0].data, segs[0].len, &hash);
        if (kind == STEER_FLOW) {
            target = stack_of[hash % STEER_BUCKETS];
            if (state_of(d)->rx_queue_of[hash % STEER_BUCKETS] != queue)
                NET_COUNT(rx_astray, 1);
        }
        if (hashed)
            NET_COUNT(rx_hashed, 1);
        for (unsigned i = 1; kind == STEER_ALL && i < stack_count; i++)
            batch_add_copy(d, stack_by_index(i), batches[i], &segs[0]);
    }
    batch_add(d, stack_by_index(target), batches[target], segs, count, verified);
}

void net_receive_done(struct net_device *d, unsigned queue)
{
    struct rx_batch **batches = &state_of(d)->batches[queue * stack_count];
    for (unsigned i = 0; i < stack_count; i++) {
        if (batches[i]->frame_count)
            batch_deliver(d, stack_by_index(i), batches[i]);
    }
}

/* ---- addresses ---- */

static void format_ip(char out[16], uint32_t ip)
{
    const uint8_t *b = (const uint8_t *)&ip;
    snprintf(out, 16, "%u.%u.%u.%u", b[0], b[1], b[2], b[3]);
}

static bool parse_ip(const char **text, uint32_t *out)
{
    uint8_t *b = (uint8_t *)out;
    const char *p = *text;
    for (unsigned i = 0; i < 4; i++) {
        unsigned v = 0, digits = 0;
        while (*p >= '0' && *p <= '9' && digits < 4) {
            v = v * 10 + (unsigned)(*p++ - '0');
            digits++;
        }
        if (!digits || v > 255 || (i < 3 && *p++ != '.'))
            return false;
        b[i] = (uint8_t)v;
    }
    *text = p;
    return true;
}

int net_parse_address(const char *text, uint32_t *ip, uint32_t *mask, uint32_t *gateway)
{
    *gateway = 0;
    if (!parse_ip(&text, ip) || *text++ != '/')
        return -EINVAL;
    unsigned len = 0, digits = 0;
    while (*text >= '0' && *text <= '9' && digits++ < 3)
        len = len * 10 + (unsigned)(*text++ - '0');
    if (!digits || len > 32)
        return -EINVAL;
    *mask = len ? __builtin_bswap32(~0u << (32 - len)) : 0;
    if (*text == ',') {
        text++;
        if (!parse_ip(&text, gateway))
            return -EINVAL;
    }
    return *text ? -EINVAL : 0;
}

/* lwIP calls this under the lock of st, after an address has come or gone. */
void stack_netif_changed(struct stack *st, struct net_device *d)
{
    struct device_state *state = state_of(d);
    if (st->index != 0 || !state || !state->netifs[0])
        return;
    uint32_t ip, mask, gateway;
    st->ops->netif_address(state->netifs[0], &ip, &mask, &gateway);
    if (ip == state->ip && mask == state->mask && gateway == state->gateway)
        return;
    state->ip = ip;
    state->mask = mask;
    state->gateway = gateway;
    if (ip) {
        char a[16], g[16];
        format_ip(a, ip);
        format_ip(g, gateway);
        log_info("net: %s: address %s/%u%s%s", d->name, a, bitmap_weight(&(uint64_t){ mask }, 32), gateway ? ", gateway " : "", gateway ? g : "");
    } else {
        log_warn("net: %s: no address any more", d->name);
    }
    /* The other stacks' interfaces follow from the thread of each. */
    for (unsigned i = 1; i < stack_count; i++) {
        atomic_store_relaxed(&stack_by_index(i)->follow, true);
        stack_wake_thread(stack_by_index(i));
    }
    wake_all(&address_wait);
}

/* Called by each stack's thread: take over what stack 0 has learnt. The list is looked at under its lock, which
 * comes before the stack's: a device may be on its way out. */
void device_follow_addresses(struct stack *st)
{
    struct net_device *d;
    mutex_lock(&devices_lock);
    stack_lock(st);
    list_for_each_entry(d, &devices, link) {
        struct device_state *state = state_of(d);
        uint32_t ip, mask, gateway;
        st->ops->netif_address(state->netifs[st->index], &ip, &mask, &gateway);
        if (ip != state->ip || mask != state->mask || gateway != state->gateway)
            st->ops->netif_set_address(state->netifs[st->index], state->ip, state->mask, state->gateway);
    }
    stack_unlock(st);
    mutex_unlock(&devices_lock);
}

bool device_owns_address(uint32_t ip)
{
    const uint8_t *b = (const uint8_t *)&ip;
    if (!ip || b[0] == 127)
        return true;
    struct net_device *d;
    bool found = false;
    mutex_lock(&devices_lock);
    list_for_each_entry(d, &devices, link)
        found = found || state_of(d)->ip == ip;
    mutex_unlock(&devices_lock);
    return found;
}

uint32_t device_source_address(uint32_t to)
{
    struct net_device *d;
    uint32_t near = 0, far = 0;
    mutex_lock(&devices_lock);
    list_for_each_entry(d, &devices, link) {
        const struct device_state *s = state_of(d);
        if (s->ip && ((s->ip ^ to) & s->mask) == 0)
            near = s->ip;
        else if (s->ip && !far)
            far = s->ip;
    }
    mutex_unlock(&devices_lock);
    return near ? near : far;
}

static void configure(struct net_device *d)
{
    struct device_state *state = state_of(d);
    char key[32];
    snprintf(key, sizeof(key), "ip.%s", d->name);
    const char *text = cmdline_get(key);
    if (!text && !strcmp(d->name, "eth0"))
        text = cmdline_get("ip");
    uint32_t ip, mask, gateway;
    bool dhcp = !text || !*text || !strcmp(text, "dhcp");
    if (!dhcp && net_parse_address(text, &ip, &mask, &gateway)) {
        log_error("net: %s=%s is not ADDRESS/LENGTH[,GATEWAY] or dhcp; using dhcp", key, text);
        dhcp = true;
    }
    struct stack *first = stack_by_index(0);
    stack_lock(first);
    if (dhcp) {
        state->dhcp = true;
        if (first->ops->netif_dhcp(state->netifs[0]))
            log_error("net: %s: DHCP could not be started", d->name);
    } else {
        first->ops->netif_set_address(state->netifs[0], ip, mask, gateway);
    }
    stack_unlock(first);
}

/* ---- registration ---- */

static void state_free(struct net_device *d)
{
    struct device_state *state = state_of(d);
    if (!state)
        return;
    for (unsigned i = 0; state->netifs && i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        stack_lock(st);
        if (state->netifs[i])
            st->ops->netif_remove(state->netifs[i]);
        state->netifs[i] = NULL;
        transmit_flush_tso_locked(st);
        stack_unlock(st);
    }
    for (unsigned i = 0; state->tx && i < d->tx_queues; i++)
        transmit_drop_queue(&state->tx[i]);
    for (unsigned i = 0; state->batches && i < d->rx_queues * stack_count; i++)
        kfree(state->batches[i]);
    kfree(state->batches);
    kfree(state->tx);
    kfree(state->netifs);
    kfree(state);
    d->stack_data = NULL;
}

static bool state_make(struct net_device *d)
{
    struct device_state *state = kzalloc(sizeof(*state));
    d->stack_data = state;
    if (!state)
        return false;
    state->netifs = kcalloc(stack_count, sizeof(*state->netifs));
    state->tx = kcalloc(d->tx_queues, sizeof(*state->tx));
    state->batches = kcalloc((size_t)d->rx_queues * stack_count, sizeof(*state->batches));
    if (!state->netifs || !state->tx || !state->batches)
        return false;
    for (unsigned i = 0; i < d->tx_queues; i++) {
        struct tx_queue *q = &state->tx[i];
        spin_init(&q->lock);
        q->device = d;
        q->index = i;
        for (unsigned j = 0; j < NET_STACKS_MAX; j++)
            list_init(&q->flush_link[j]);
    }
    for (unsigned i = 0; i < STEER_BUCKETS; i++) {
        state->rx_queue_of[i] = (uint16_t)steer_queue(i, d->rx_queues, stack_count);
        state->tx_queue_of[i] = (uint16_t)steer_queue(i, d->tx_queues, stack_count);
    }
    for (unsigned i = 0; i < d->rx_queues * stack_count; i++) {
        state->batches[i] = kzalloc(sizeof(struct rx_batch));
        if (!state->batches[i])
            return false;
    }
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        stack_lock(st);
        state->netifs[i] = st->ops->netif_add(d, d->name, d->mac, d->mtu, d->tx_csum ? STACK_NETIF_TX_CSUM : 0);
        if (state->netifs[i])
            st->ops->netif_link(state->netifs[i], d->link_up);
        stack_unlock(st);
        if (!state->netifs[i])
            return false;
    }
    return true;
}

void net_device_expect(unsigned rx_queues)
{
    queues_expected = MAX(queues_expected, rx_queues);
}

static void start_stacks_locked(void)
{
    net_stacks_start(queues_expected);
    for (unsigned i = 0; i < STEER_BUCKETS; i++)
        stack_of[i] = (uint8_t)steer_stack(i, stack_count);
}

void net_device_rss(unsigned queues, struct net_rss *out)
{
    mutex_lock(&devices_lock);
    start_stacks_locked();
    mutex_unlock(&devices_lock);
    steer_key(out->key);
    for (unsigned i = 0; i < NET_RSS_BUCKETS; i++)
        out->queue[i] = (uint16_t)steer_queue(i, queues, stack_count);
}

/* The lowest free: what is plugged in again has its old name, and its address from the command line. */
static void name_locked(struct net_device *d)
{
    struct net_device *other;
    bool taken = true;
    for (unsigned n = 0; taken; n++) {
        taken = false;
        snprintf(d->name, sizeof(d->name), "eth%u", n);
        list_for_each_entry(other, &devices, link)
            taken = taken || !strcmp(other->name, d->name);
    }
}

int net_device_register(struct net_device *d)
{
    mutex_lock(&devices_lock);
    start_stacks_locked();
    name_locked(d);
    if (!state_make(d)) {
        state_free(d);
        mutex_unlock(&devices_lock);
        return -ENOMEM;
    }
    list_add_tail(&devices, &d->link);
    bool now = addresses_configured;
    mutex_unlock(&devices_lock);
    log_info("net: %s: %02x:%02x:%02x:%02x:%02x:%02x, MTU %u, %u receive and %u transmit queues%s%s, link %s", d->name,
             d->mac[0], d->mac[1], d->mac[2], d->mac[3], d->mac[4], d->mac[5], d->mtu, d->rx_queues, d->tx_queues,
             d->tx_csum ? ", checksums" : "", d->tso4 ? ", TSO" : "", d->link_up ? "up" : "down");
    if (now)
        configure(d);
    return 0;
}

void net_device_unregister(struct net_device *d)
{
    mutex_lock(&devices_lock);
    list_del(&d->link);
    state_free(d);
    mutex_unlock(&devices_lock);
    log_info("net: %s is gone", d->name);
}

void net_device_link_changed(struct net_device *d)
{
    struct device_state *state = state_of(d);
    if (!state)
        return;
    log_info("net: %s: link %s", d->name, d->link_up ? "up" : "down");
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        stack_lock(st);
        st->ops->netif_link(state->netifs[i], atomic_load_relaxed(&d->link_up));
        stack_unlock(st);
    }
}

void net_device_announce(struct net_device *d)
{
    struct device_state *state = state_of(d);
    struct stack *st = stack_by_index(0);
    if (!state)
        return;
    stack_lock(st);
    st->ops->netif_announce(state->netifs[0]);
    stack_unlock(st);
}

size_t device_print(char *buf, size_t size)
{
    struct net_device *d;
    size_t n = 0;
    mutex_lock(&devices_lock);
    list_for_each_entry(d, &devices, link) {
        n += (size_t)scnprintf(buf + n, size - n, "%s mtu %u link %u ", d->name, d->mtu, atomic_load_relaxed(&d->link_up));
        n += d->ops->print(d, buf + n, size - n);
        n += (size_t)scnprintf(buf + n, size - n, "\n");
    }
    mutex_unlock(&devices_lock);
    return n;
}

static bool all_addressed(void)
{
    struct net_device *d;
    list_for_each_entry(d, &devices, link) {
        if (atomic_load_relaxed(&d->link_up) && !atomic_load_relaxed(&state_of(d)->ip))
            return false;
    }
    return true;
}

/* Addresses; waits a little for DHCP, so that programs usually find one, and goes on in any case. */
static void net_addresses_init(void)
{
    struct net_device *d;
    mutex_lock(&devices_lock);
    start_stacks_locked();
    addresses_configured = true;
    list_for_each_entry(d, &devices, link)
        configure(d);
    mutex_unlock(&devices_lock);
    if (list_empty(&devices)) {
        log_info("net: no device; loopback only");
        return;
    }
    if (!wait_event_timeout(&address_wait, all_addressed(), clock_monotonic_ns() + DHCP_WAIT_NS))
        return;
    list_for_each_entry(d, &devices, link) {
        if (!state_of(d)->ip)
            log_warn("net: %s: no answer from a DHCP server yet (link %s); going on, a late answer will be used", d->name, d->link_up ? "up" : "down");
    }
}
INIT_CALL(INIT_NET, net_addresses_init);
