/*
 * TCP data: from lwIP to readers, from writers to lwIP.
 *
 * Receiving: lwIP's pieces become items of socket->rx, long ones by reference, short ones copied together.
 * Readers take from its head under the socket's own lock; the window is given back to lwIP in batches.
 * Sending: writers append chunks to socket->tx; socket_service hands them to lwIP, long ones by reference
 * (their pages stay until acknowledged), short ones copied.
 */
#include "core/net/net_internal.h"

#define MSG_PEEK 0x02u
#define MSG_TRUNC 0x20u
#define MSG_MORE 0x8000u
#define MSG_OOB 0x01u

#define TX_COPY_MAX 1024u     /* shorter writes are copied by lwIP */
#define TX_CHUNK_ORDER 2
#define DIRECT_MAX 512u       /* on the stack of whoever sends */
#define RX_ITEM_SMALL 464u    /* with its header half a KiB */
#define RX_ITEM_LARGE 4032u

/* ---- receiving, stack's side ---- */

static struct rx_item *item_new(uint32_t capacity)
{
    struct rx_item *item = kmalloc(sizeof(*item) + capacity);
    if (!item)
        return NULL;
    item->data = item->buffer;
    item->offset = item->len = 0;
    item->capacity = capacity;
    item->pbuf = NULL;
    NET_COUNT(rx_items, 1);
    return item;
}

static bool append_copy_locked(struct socket *s, const uint8_t *data, uint32_t len)
{
    if (!list_empty(&s->rx)) {
        struct rx_item *tail = list_last(&s->rx, struct rx_item, link);
        uint32_t n = MIN(len, tail->capacity > tail->len ? tail->capacity - tail->len : 0u);
        memcpy(tail->buffer + (n ? tail->len : 0), data, n);
        tail->len += n;
        data += n;
        len -= n;
    }
    if (!len)
        return true;
    struct rx_item *item;
    if (s->rx_spare && len <= RX_ITEM_SMALL) {
        item = s->rx_spare;
        s->rx_spare = NULL;
        item->offset = item->len = 0;
        NET_COUNT(rx_items, 1);
    } else {
        item = item_new(list_empty(&s->rx) && len <= RX_ITEM_SMALL ? RX_ITEM_SMALL : RX_ITEM_LARGE);
    }
    if (!item)
        return false;
    memcpy(item->buffer, data, len);
    item->len = len;
    list_add_tail(&s->rx, &item->link);
    return true;
}

bool socket_tcp_data(struct socket *s, const void *data, uint32_t len, void *pbuf)
{
    struct rx_item *item = NULL;
    if (len >= RX_COPY_BELOW) {
        item = item_new(0);
        if (item) {
            item->data = data;
            item->len = len;
            item->pbuf = pbuf;
        }
    }
    spin_lock(&s->lock);
    bool wanted = !s->closed && s->state != SOCKET_CLOSED;
    if (!wanted) {
        s->abort = true; /* data for a socket that is gone: the peer must learn that nobody reads it */
    } else if (item) {
        list_add_tail(&s->rx, &item->link);
        s->rx_bytes += len;
    } else if (len < RX_COPY_BELOW && append_copy_locked(s, data, len)) {
        s->rx_bytes += len;
    } else {
        /* No memory, and lwIP has accepted the data: a hole in the stream must not be read over. */
        s->abort = true;
        s->error = ENOMEM;
        wanted = false;
    }
    spin_unlock(&s->lock);
    if (!wanted && item) {
        item->pbuf = NULL;
        rx_item_free(s, item);
        item = NULL;
    }
    if (!wanted)
        stack_add_pending(s->stack, s);
    return item != NULL;
}

void socket_tcp_data_end(struct socket *s)
{
    socket_wake(s, POLLIN | POLLRDNORM);
}

/* ---- receiving, reader's side ---- */

/* Window that readers have freed is worth telling now? Grows the window of a reader that keeps up. */
static bool account_consumed_locked(struct socket *s, size_t n)
{
    s->rx_consumed += n;
    s->rx_since_growth += n;
    size_t limit = s->options.receive_buffer;
    if (s->rx_since_growth >= 2 * s->rx_window && s->rx_window < limit) {
        size_t grow = MIN(s->rx_window, limit - s->rx_window);
        s->rx_grow += grow;
        s->rx_window += grow;
        s->rx_since_growth = 0;
    }
    return s->rx_consumed >= CONSUMED_BATCH;
}

static size_t peek(struct socket *s, struct uio *u, bool *fault)
{
    size_t done = 0;
    struct rx_item *item = NULL;
    for (;;) {
        spin_lock(&s->lock);
        /* Only readers remove items, and we hold the readers' mutex. */
        struct list *next = item ? item->link.next : s->rx.next;
        item = next == &s->rx ? NULL : list_entry(next, struct rx_item, link);
        size_t n = item ? MIN((size_t)(item->len - item->offset), u->resid) : 0;
        spin_unlock(&s->lock);
        if (!item || !u->resid)
            return done;
        size_t copied = uio_copy_out(u, item->data + item->offset, n);
        done += copied;
        if (copied < n) {
            *fault = true;
            return done;
        }
    }
}

static size_t consume(struct socket *s, struct uio *u, bool discard, bool *fault)
{
    size_t done = 0;
    while (u->resid) {
        spin_lock(&s->lock);
        struct rx_item *item = list_empty(&s->rx) ? NULL : list_first(&s->rx, struct rx_item, link);
        size_t n = item ? MIN((size_t)(item->len - item->offset), u->resid) : 0;
        spin_unlock(&s->lock);
        if (!item)
            break;
        size_t copied = n;
        if (discard)
            u->resid -= n;
        else
            copied = uio_copy_out(u, item->data + item->offset, n);
        spin_lock(&s->lock);
        item->offset += (uint32_t)copied;
        s->rx_bytes -= copied;
        /* lwIP's side may have appended to it meanwhile. */
        bool empty = item->offset == item->len;
        if (empty)
            list_del(&item->link);
        if (empty && item->capacity == RX_ITEM_SMALL && !s->rx_spare) {
            s->rx_spare = item;
            NET_COUNT(rx_items, -1);
            empty = false;
        }
        bool kick = account_consumed_locked(s, copied);
        spin_unlock(&s->lock);
        if (empty)
            rx_item_free(s, item);
        done += copied;
        if (kick)
            stack_kick(s->stack, s);
        if (copied < n) {
            *fault = true;
            break;
        }
    }
    return done;
}

ssize_t tcp_socket_receive(struct socket *s, struct uio *u, unsigned msg_flags)
{
    if (msg_flags & MSG_OOB)
        return -EINVAL;
    bool fault = false;
    size_t wanted = u->resid;
    /* Nothing there, and nothing to be told: what comes now wakes who looks before it sleeps. */
    if (wanted && !atomic_load_relaxed(&s->rx_bytes) && atomic_load_relaxed(&s->state) == SOCKET_CONNECTED &&
        !atomic_load_relaxed(&s->eof) && !atomic_load_relaxed(&s->error) && !atomic_load_relaxed(&s->no_receive))
        return -EAGAIN;
    mutex_lock(&s->read_mutex);
    size_t n = msg_flags & MSG_PEEK ? peek(s, u, &fault) : consume(s, u, msg_flags & MSG_TRUNC, &fault);
    ssize_t r = (ssize_t)n;
    if (!n) {
        spin_lock(&s->lock);
        if (fault) {
            r = -EFAULT;
        } else if (!wanted) {
            r = 0;
        } else if (s->rx_bytes) {
            r = -EAGAIN; /* arrived after we looked: look again */
        } else if (s->error) {
            r = -s->error;
            s->error = 0;
        } else if (s->state == SOCKET_NEW || s->state == SOCKET_LISTENING) {
            r = -ENOTCONN;
        } else if (s->eof || s->no_receive) {
            r = 0;
        } else {
            r = -EAGAIN;
        }
        spin_unlock(&s->lock);
    }
    mutex_unlock(&s->read_mutex);
    return r;
}

/* ---- sending, writer's side ---- */

static void chunk_free(struct tx_chunk *c)
{
    if (c->page)
        page_put(c->page);
    kfree(c);
    NET_COUNT(tx_chunks, -1);
}

void tx_chunks_free(struct list *chunks)
{
    while (!list_empty(chunks)) {
        struct tx_chunk *c = list_first(chunks, struct tx_chunk, link);
        list_del(&c->link);
        chunk_free(c);
    }
}

static struct tx_chunk *chunk_new(size_t wanted)
{
    struct tx_chunk *c;
    if (wanted <= TX_COPY_MAX) {
        uint32_t capacity = (uint32_t)MAX(wanted, (size_t)64);
        c = kmalloc(sizeof(*c) + capacity);
        if (!c)
            return NULL;
        c->page = NULL;
        c->data = c->buffer;
        c->capacity = capacity;
    } else {
        c = kmalloc(sizeof(*c));
        if (!c)
            return NULL;
        unsigned order = wanted > PAGE_SIZE ? TX_CHUNK_ORDER : 0;
        c->page = page_alloc(order, 0);
        if (!c->page && order) {
            order = 0;
            c->page = page_alloc(0, MM_RECLAIM);
        }
        if (!c->page) {
            kfree(c);
            return NULL;
        }
        c->data = page_virt(c->page);
        c->capacity = (uint32_t)(PAGE_SIZE << order);
    }
    c->len = c->written = 0;
    NET_COUNT(tx_chunks, 1);
    return c;
}

/* How much may be queued now; or why nothing. */
static ssize_t send_space_locked(struct socket *s)
{
    if (s->error) {
        int error = s->error;
        s->error = 0;
        return -error;
    }
    if (s->no_send || s->state == SOCKET_CLOSED)
        return -EPIPE;
    if (s->state == SOCKET_CONNECTING)
        return -EAGAIN;
    if (s->state != SOCKET_CONNECTED)
        return -EPIPE; /* Linux says EPIPE for a stream that was never connected */
    uint64_t used = s->tx_queued - s->tx_acked;
    return used < s->options.send_buffer ? (ssize_t)(s->options.send_buffer - used) : -EAGAIN;
}

/* The last chunk, if it is a copied one with room and lwIP has not taken all of it. */
static struct tx_chunk *tail_with_room_locked(struct socket *s)
{
    if (list_empty(&s->tx))
        return NULL;
    struct tx_chunk *c = list_last(&s->tx, struct tx_chunk, link);
    return !c->page && c->written < c->len && c->len < c->capacity ? c : NULL;
}

/* While nothing waits and nobody is in the stack, a short piece goes straight to lwIP, which copies it. Bytes taken. */
static size_t send_direct(struct socket *s, const uint8_t *data, size_t len)
{
    struct stack *st = s->stack;
    if (!mutex_try_lock(&st->lock))
        return 0;
    long n = 0;
    spin_lock(&s->lock);
    bool ready = s->state == SOCKET_CONNECTED && !s->no_send && !s->closed && !s->abort && s->tx_written == s->tx_queued;
    spin_unlock(&s->lock);
    if (ready && s->tcp)
        n = st->ops->tcp_write(s->tcp, data, len, true, false);
    if (n > 0) {
        spin_lock(&s->lock);
        s->tx_queued += (uint64_t)n;
        s->tx_written += (uint64_t)n;
        spin_unlock(&s->lock);
        st->ops->tcp_output(s->tcp);
    }
    stack_unlock(st);
    return n > 0 ? (size_t)n : 0;
}

/* One chunk's worth from u into the queue. Bytes queued, 0 = fault, or -errno. */
static ssize_t queue_some(struct socket *s, struct uio *u, size_t space)
{
    size_t wanted = MIN(u->resid, space), copied = 0, taken = 0;
    uint8_t direct[DIRECT_MAX];
    struct uio before = *u;
    if (wanted <= DIRECT_MAX && atomic_load_relaxed(&s->tx_written) == s->tx_queued) {
        copied = uio_copy_in(u, direct, wanted);
        taken = copied ? send_direct(s, direct, copied) : 0;
        if (taken == copied)
            return (ssize_t)taken;
    }
    spin_lock(&s->lock);
    bool behind = !list_empty(&s->tx) && list_last(&s->tx, struct tx_chunk, link)->written < list_last(&s->tx, struct tx_chunk, link)->len;
    spin_unlock(&s->lock);
    /* While others wait in front, small writes gather in one chunk. */
    struct tx_chunk *c = chunk_new(behind && wanted < TX_COPY_MAX ? TX_COPY_MAX : wanted);
    if (!c) {
        *u = before;
        (void)uio_copy_in(u, direct, taken); /* only what went is consumed */
        return taken ? (ssize_t)taken : -ENOMEM;
    }
    size_t n = copied - taken;
    if (copied)
        memcpy(c->data, direct + taken, n);
    else
        n = uio_copy_in(u, c->data, MIN(wanted, (size_t)c->capacity));
    if (!n) {
        chunk_free(c);
        return 0;
    }
    c->len = (uint32_t)n;
    struct tx_chunk *spare = NULL;
    spin_lock(&s->lock);
    struct tx_chunk *tail = n <= TX_COPY_MAX && !c->page ? tail_with_room_locked(s) : NULL;
    if (s->state != SOCKET_CONNECTED) {
        spare = c; /* ended meanwhile: as if sent and lost with the connection */
    } else if (tail && tail->capacity - tail->len >= n) {
        memcpy(tail->data + tail->len, c->data, n);
        tail->len += (uint32_t)n;
        s->tx_queued += n;
        tail->end = s->tx_queued;
        spare = c;
    } else {
        s->tx_queued += n;
        c->end = s->tx_queued;
        list_add_tail(&s->tx, &c->link);
    }
    spin_unlock(&s->lock);
    if (spare)
        chunk_free(spare);
    stack_kick(s->stack, s);
    return (ssize_t)(taken + n);
}

ssize_t tcp_socket_send(struct socket *s, struct uio *u, unsigned msg_flags)
{
    if (msg_flags & MSG_OOB)
        return -EOPNOTSUPP;
    size_t done = 0;
    ssize_t r = 0;
    mutex_lock(&s->write_mutex);
    do {
        spin_lock(&s->lock);
        r = send_space_locked(s);
        spin_unlock(&s->lock);
        if (r <= 0)
            break;
        if (!u->resid) {
            r = 0;
            break;
        }
        r = queue_some(s, u, (size_t)r);
        if (r == 0)
            r = -EFAULT;
        if (r < 0)
            break;
        done += (size_t)r;
    } while (u->resid);
    mutex_unlock(&s->write_mutex);
    if (done)
        return (ssize_t)done;
    return r;
}

/* ---- sending, stack's side ---- */

void socket_tcp_acked(struct socket *s, uint32_t len)
{
    struct list freed = LIST_INIT(freed);
    spin_lock(&s->lock);
    s->tx_acked = MIN(s->tx_acked + len, s->tx_written); /* a FIN counts one too */
    while (!list_empty(&s->tx)) {
        struct tx_chunk *c = list_first(&s->tx, struct tx_chunk, link);
        if (c->written < c->len || c->end > s->tx_acked)
            break;
        list_del(&c->link);
        if (s->tx_next == c)
            s->tx_next = NULL;
        list_add_tail(&freed, &c->link);
    }
    bool more = s->tx_written < s->tx_queued;
    bool writable = (s->tx_queued - s->tx_acked) * 3 <= (uint64_t)s->options.send_buffer * 2;
    spin_unlock(&s->lock);
    tx_chunks_free(&freed);
    if (more || s->abort || (s->closed && s->tcp))
        stack_add_pending(s->stack, s);
    if (writable && len)
        socket_wake(s, POLLOUT | POLLWRNORM);
}

/* Hand queued bytes to lwIP; true if any went. */
static bool push_locked(struct socket *s)
{
    const struct module_ops *ops = s->stack->ops;
    bool pushed = false;
    while (s->tcp) {
        struct tx_chunk *c = NULL;
        uint32_t len = 0;
        bool more = false;
        spin_lock(&s->lock);
        if (s->tx_next)
            c = s->tx_next;
        else if (s->tx_written < s->tx_queued)
            c = list_first(&s->tx, struct tx_chunk, link);
        while (c && c->written == c->len)
            c = c->link.next == &s->tx ? NULL : list_entry(c->link.next, struct tx_chunk, link);
        s->tx_next = c;
        if (c) {
            len = c->len - c->written;
            more = c->link.next != &s->tx;
        }
        spin_unlock(&s->lock);
        if (!c)
            break;
        long n = ops->tcp_write(s->tcp, c->data + c->written, len, !c->page, more);
        if (n <= 0)
            break; /* full: the next acknowledgement, or lwIP's poll, brings us back */
        pushed = true;
        struct tx_chunk *copied = NULL;
        spin_lock(&s->lock);
        c->written += (uint32_t)n;
        s->tx_written += (uint64_t)n;
        if (c->written == c->len) {
            s->tx_next = c->link.next == &s->tx ? NULL : list_entry(c->link.next, struct tx_chunk, link);
            if (!c->page) {
                list_del(&c->link);
                copied = c;
            }
        }
        spin_unlock(&s->lock);
        if (copied)
            chunk_free(copied);
        if ((uint32_t)n < len)
            break;
    }
    return pushed;
}

void socket_service(struct socket *s)
{
    const struct module_ops *ops = s->stack->ops;
    if (s->type != SOCK_STREAM_WEIR || !s->tcp)
        return;
    spin_lock(&s->lock);
    /* Window is told in pieces that are worth it; less waits for more. */
    size_t grow = s->rx_grow, consumed = grow || s->rx_consumed >= CONSUMED_BATCH / 2 ? s->rx_consumed : 0;
    bool abort = s->abort, closed = s->closed, connected = s->state == SOCKET_CONNECTED;
    s->rx_consumed -= consumed;
    s->rx_grow = 0;
    spin_unlock(&s->lock);
    if (abort) {
        struct tcp_handle *t = s->tcp;
        s->tcp = NULL;
        ops->tcp_abort(t);
        return;
    }
    if (consumed || grow)
        ops->tcp_consumed(s->tcp, consumed, grow);
    bool pushed = connected && push_locked(s);
    if (!s->tcp)
        return;
    spin_lock(&s->lock);
    bool all = s->tx_written == s->tx_queued;
    bool no_send = s->no_send;
    spin_unlock(&s->lock);
    if (closed && (all || !connected)) {
        struct tcp_handle *t = s->tcp;
        s->tcp = NULL; /* lwIP finishes alone; socket_tcp_gone tells when */
        ops->tcp_close(t);
        return;
    }
    if (connected && no_send && all && !s->fin_sent) {
        s->fin_sent = ops->tcp_shutdown_send(s->tcp) == 0;
        if (!s->tcp)
            return;
    }
    if (pushed)
        ops->tcp_output(s->tcp);
}
