/*
 * Frames out: from a stack to a device's transmit queue.
 *
 * The first bytes of a frame (all headers) are copied, what lies in send buffers is referenced by page. So a
 * frame in a device's ring needs nothing of lwIP, whatever happens to its connection meanwhile.
 * Consecutive full segments of one connection are joined to one large packet where the device segments
 * (TSO). What finds the ring full waits in a bounded queue; beyond that lwIP is told, and asked again later.
 */
#include <weir/net.h>
#include "core/net/net_internal.h"
#include "core/net/device.h"

#define INLINE_BYTES 320   /* headers, and small frames whole */
#define REFERENCE_MIN 128u /* shorter pieces are copied if they fit */
#define TX_SEGMENTS 20
#define BACKLOG_MAX 512u
#define TSO_MAX_BYTES 65000u

/* Owned by the stack that builds it, then by its queue, then by the device until packet_done. */
struct tx_packet {
    struct tx_packet *next;
    struct net_device *device;
    struct tx_queue *queue;
    unsigned segment_count, page_count;
    uint32_t inline_len, total;
    struct net_tx_info info;
    uint32_t tso_next_sequence; /* 0 = cannot grow */
    uint32_t tso_payload;
    struct net_segment segments[TX_SEGMENTS]; /* [0] is inline_data */
    struct page *pages[TX_SEGMENTS];
    struct page *copy;          /* what had to be copied and did not fit inline */
    uint8_t headroom[NET_TX_HEADROOM];
    uint8_t inline_data[INLINE_BYTES];
} __attribute__((aligned(16)));

static struct slab_cache *packets;

void transmit_init(void)
{
    packets = slab_create("tx_packet", sizeof(struct tx_packet), 64);
    if (!packets)
        panic("net: no memory for transmit packets");
}

static void packet_done(void *cookie)
{
    struct tx_packet *p = cookie;
    for (unsigned i = 0; i < p->page_count; i++)
        page_put(p->pages[i]);
    if (p->copy)
        page_put(p->copy);
    slab_free(packets, p);
    NET_COUNT(tx_packets, -1);
}

static inline uint16_t read_be16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t read_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void write_be16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* What the headers at the start of the frame say. */
struct frame_headers {
    unsigned ip_len, l4_len; /* 0 = not TCP or UDP over IPv4, or a fragment */
    uint8_t protocol;
    uint32_t hash;
};

static void parse_headers(const struct tx_packet *p, struct frame_headers *h)
{
    const uint8_t *f = p->inline_data;
    *h = (struct frame_headers){ 0 };
    if (p->inline_len < 34 || f[12] != 0x08 || f[13] != 0x00)
        return;
    unsigned ip_len = (f[14] & 15) * 4U;
    if ((f[23] != 6 && f[23] != 17) || (read_be16(f + 20) & 0x3fff) || 14 + ip_len + 8 > p->inline_len)
        return;
    const uint8_t *l4 = f + 14 + ip_len;
    unsigned l4_len = f[23] == 6 ? (l4[12] >> 4) * 4U : 8;
    if (14 + ip_len + l4_len > p->inline_len)
        return;
    h->ip_len = ip_len;
    h->l4_len = l4_len;
    h->protocol = f[23];
    h->hash = steer_hash(read_be32(f + 26), read_be32(f + 30), read_be16(l4), read_be16(l4 + 2));
}

/* The device completes the sum: the field holds the sum of the pseudo-header, not inverted. */
static void set_partial_checksum(struct tx_packet *p, const struct frame_headers *h)
{
    uint8_t *f = p->inline_data;
    uint32_t sum = h->protocol + (p->total - 14 - h->ip_len);
    for (unsigned i = 26; i < 34; i += 2)
        sum += read_be16(f + i);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    unsigned offset = h->protocol == 6 ? 16 : 6;
    write_be16(f + 14 + h->ip_len + offset, (uint16_t)sum);
    p->info.needs_csum = true;
    p->info.csum_start = (uint16_t)(14 + h->ip_len);
    p->info.csum_offset = (uint16_t)offset;
}

static bool add_reference(struct tx_packet *p, const void *data, uint32_t len)
{
    uint64_t phys = virt_to_phys(data);
    struct page *page = page_of_phys(phys);
    struct net_segment *last = &p->segments[p->segment_count - 1];
    bool follows = p->segment_count > 1 && last->phys + last->len == phys;
    bool referenced = p->page_count && p->pages[p->page_count - 1] == page;
    if ((!follows && p->segment_count == TX_SEGMENTS) || (!referenced && p->page_count == TX_SEGMENTS))
        return false;
    if (!referenced) {
        /* A reference to any page of an allocation keeps all of it. */
        page_get(page);
        p->pages[p->page_count++] = page;
    }
    if (follows)
        last->len += len;
    else
        p->segments[p->segment_count++] = (struct net_segment){ phys, data, len };
    p->total += len;
    return true;
}

static bool add_copy(struct tx_packet *p, const struct stack_tx_piece *pieces, unsigned count)
{
    uint32_t len = 0;
    for (unsigned i = 0; i < count; i++)
        len += pieces[i].len;
    p->copy = page_alloc(len > PAGE_SIZE ? 4 : 0, 0);
    if (!p->copy)
        return false;
    uint8_t *to = page_virt(p->copy);
    for (unsigned i = 0; i < count; i++) {
        memcpy(to, pieces[i].data, pieces[i].len);
        to += pieces[i].len;
    }
    p->segments[p->segment_count++] = (struct net_segment){ page_phys(p->copy), page_virt(p->copy), len };
    p->total += len;
    return true;
}

static struct tx_packet *packet_build(struct net_device *d, const struct stack_tx_piece *pieces, unsigned count)
{
    struct tx_packet *p = slab_alloc(packets);
    if (!p)
        return NULL;
    NET_COUNT(tx_packets, 1);
    p->next = NULL;
    p->device = d;
    p->segment_count = 1;
    p->page_count = 0;
    p->inline_len = 0;
    p->info = (struct net_tx_info){ 0 };
    p->tso_next_sequence = 0;
    p->copy = NULL;
    unsigned i = 0;
    while (i < count && pieces[i].len <= INLINE_BYTES - p->inline_len && (!pieces[i].pages || pieces[i].len < REFERENCE_MIN)) {
        memcpy(p->inline_data + p->inline_len, pieces[i].data, pieces[i].len);
        p->inline_len += pieces[i++].len;
    }
    p->total = p->inline_len;
    p->segments[0] = (struct net_segment){ virt_to_phys(p->inline_data), p->inline_data, p->inline_len };
    bool all_pages = true;
    for (unsigned j = i; j < count; j++)
        all_pages = all_pages && pieces[j].pages;
    if (i == 0) {
        /* Headers are always first and short, except where a packet lies in one piece: split it. */
        uint32_t first = MIN(pieces[0].len, (uint32_t)INLINE_BYTES);
        struct stack_tx_piece rest[STACK_TX_PIECES];
        unsigned n = 0;
        memcpy(p->inline_data, pieces[0].data, first);
        p->inline_len = p->total = p->segments[0].len = first;
        if (pieces[0].len > first)
            rest[n++] = (struct stack_tx_piece){ (const uint8_t *)pieces[0].data + first, pieces[0].len - first, false };
        for (unsigned j = 1; j < count; j++)
            rest[n++] = pieces[j];
        if (n && !add_copy(p, rest, n))
            goto fail;
        return p;
    }
    if (i == count)
        return p;
    if (!all_pages) {
        if (!add_copy(p, pieces + i, count - i))
            goto fail;
        return p;
    }
    for (; i < count; i++) {
        if (!add_reference(p, pieces[i].data, pieces[i].len))
            goto fail;
    }
    return p;
fail:
    packet_done(p);
    return NULL;
}

/* ---- queues ---- */

static int queue_push(struct stack *st, struct tx_packet *p)
{
    struct net_device *d = p->device;
    struct tx_queue *q = p->queue;
    spin_lock(&q->lock);
    int r = -EAGAIN;
    if (!q->head)
        r = d->ops->transmit(d, q->index, p->segments, p->segment_count, &p->info, packet_done, p, true);
    if (r == -EAGAIN && q->count < BACKLOG_MAX) {
        p->next = NULL;
        if (q->tail)
            q->tail->next = p;
        else
            q->head = p;
        q->tail = p;
        q->count++;
        NET_COUNT(tx_waited, 1);
        r = 1;
    }
    spin_unlock(&q->lock);
    if (r < 0) {
        packet_done(p);
        NET_COUNT(tx_dropped, 1);
        st->output_stalled = true;
        return -ENOBUFS;
    }
    NET_COUNT(tx_frames, 1);
    if (r == 0 && list_empty(&q->flush_link[st->index]))
        list_add_tail(&st->flush, &q->flush_link[st->index]);
    return 0;
}

void transmit_flush_tso_locked(struct stack *st)
{
    struct tx_packet *p = st->tso;
    if (!p)
        return;
    st->tso = NULL;
    if (p->tso_payload > p->info.gso_size) {
        struct frame_headers h;
        parse_headers(p, &h);
        p->info.gso_type = NET_GSO_TCPV4;
        p->info.header_len = (uint16_t)(14 + h.ip_len + h.l4_len);
        uint8_t *ip = p->inline_data + 14;
        write_be16(ip + 2, (uint16_t)(p->total - 14));
        /* The header's sum again: length has changed. */
        write_be16(ip + 10, 0);
        uint32_t sum = 0;
        for (unsigned i = 0; i < h.ip_len; i += 2)
            sum += read_be16(ip + i);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        write_be16(ip + 10, (uint16_t)~sum);
        set_partial_checksum(p, &h);
        NET_COUNT(tx_tso, 1);
    } else {
        p->info.gso_size = 0;
    }
    (void)queue_push(st, p); /* refused: as if lost on the wire */
}

/* May p, a TCP segment with data, follow what is in st->tso as one large packet? */
static bool tso_append(struct stack *st, struct tx_packet *p, const struct frame_headers *h, uint32_t sequence, uint32_t payload)
{
    struct tx_packet *t = st->tso;
    if (!t || t->device != p->device || t->queue != p->queue || t->tso_next_sequence != sequence || payload > t->info.gso_size ||
        t->inline_len != p->inline_len || t->total + payload > TSO_MAX_BYTES ||
        t->segment_count + p->segment_count - 1 > TX_SEGMENTS || t->page_count + p->page_count > TX_SEGMENTS)
        return false;
    const unsigned tcp = 14 + h->ip_len;
    const uint8_t *a = t->inline_data, *b = p->inline_data;
    /* Addresses, ports, acknowledgement, window, options and flags but PSH must agree. */
    if (memcmp(a + 26, b + 26, 8) || memcmp(a + tcp, b + tcp, 4) || memcmp(a + tcp + 8, b + tcp + 8, 5) ||
        (a[tcp + 13] | 8) != (b[tcp + 13] | 8) || memcmp(a + tcp + 14, b + tcp + 14, 2) ||
        memcmp(a + tcp + 20, b + tcp + 20, h->l4_len - 20))
        return false;
    for (unsigned i = 1; i < p->segment_count; i++) {
        if (!add_reference(t, p->segments[i].virt, p->segments[i].len))
            return false; /* cannot be: room was checked */
    }
    t->inline_data[tcp + 13] |= b[tcp + 13] & 8;
    t->tso_next_sequence += payload;
    t->tso_payload += payload;
    packet_done(p);
    return true;
}

int stack_transmit(struct stack *st, struct net_device *d, const struct stack_tx_piece *pieces, unsigned count)
{
    struct tx_packet *p = packet_build(d, pieces, count);
    if (!p) {
        transmit_flush_tso_locked(st);
        st->output_stalled = true;
        NET_COUNT(tx_dropped, 1);
        return -ENOBUFS;
    }
    NET_COUNT(tx_bytes, p->total);
    struct frame_headers h;
    parse_headers(p, &h);
    p->queue = device_tx_queue(d, h.l4_len ? h.hash : st->index);
    if (!h.l4_len || !d->tx_csum) {
        transmit_flush_tso_locked(st);
        return queue_push(st, p);
    }
    const uint8_t *tcp = p->inline_data + 14 + h.ip_len;
    uint32_t headers = 14 + h.ip_len + h.l4_len;
    uint32_t payload = p->total - headers;
    /* All data by reference and a plain data segment: a candidate. */
    if (d->tso4 && h.protocol == 6 && payload && p->inline_len == headers && !p->copy && !(tcp[13] & ~0x18u)) {
        uint32_t sequence = read_be32(tcp + 4);
        if (tso_append(st, p, &h, sequence, payload)) {
            if (payload < st->tso->info.gso_size)
                transmit_flush_tso_locked(st); /* a short segment ends the train */
            return 0;
        }
        transmit_flush_tso_locked(st);
        set_partial_checksum(p, &h);
        if (!device_queue_full(p->queue)) {
            p->info.gso_size = (uint16_t)payload;
            p->tso_next_sequence = sequence + payload;
            p->tso_payload = payload;
            st->tso = p;
            return 0;
        }
        return queue_push(st, p);
    }
    transmit_flush_tso_locked(st);
    set_partial_checksum(p, &h);
    return queue_push(st, p);
}

bool device_queue_full(struct tx_queue *q)
{
    return atomic_load_relaxed(&q->count) >= BACKLOG_MAX / 2;
}

/* The driver has room: what waits goes first, then the stacks are asked for what they held back. */
void net_device_tx_wake(struct net_device *d, unsigned queue)
{
    struct tx_queue *q = device_tx_queue_at(d, queue);
    bool sent = false;
    spin_lock(&q->lock);
    while (q->head) {
        struct tx_packet *p = q->head;
        struct tx_packet *next = p->next;
        if (d->ops->transmit(d, q->index, p->segments, p->segment_count, &p->info, packet_done, p, true) == -EAGAIN)
            break;
        q->head = next;
        if (!next)
            q->tail = NULL;
        q->count--;
        sent = true;
    }
    bool drained = !q->head;
    spin_unlock(&q->lock);
    if (sent)
        d->ops->flush(d, queue);
    if (!drained)
        return;
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        if (atomic_load_relaxed(&st->output_stalled)) {
            atomic_store_release(&st->room_again, true);
            stack_wake_thread(st);
        }
    }
}

void transmit_drop_queue(struct tx_queue *q)
{
    spin_lock(&q->lock);
    struct tx_packet *p = q->head;
    q->head = q->tail = NULL;
    q->count = 0;
    spin_unlock(&q->lock);
    while (p) {
        struct tx_packet *next = p->next;
        packet_done(p);
        p = next;
    }
}
