/* TCP sockets: connection life, and what lwIP tells (called under the stack's lock). */
#include "core/net/net_internal.h"

#define PORT_FIRST 32768u
#define PORT_COUNT 28000u
#define PORT_TRIES 64u /* for each stack */
#define BACKLOG_CAP 4096u
#define HALF_OPEN_CAP 256u /* lwIP looks its connections up one by one */

/* ---- connecting ---- */

void tcp_options_apply_locked(struct socket *s)
{
    if (!s->tcp)
        return;
    s->stack->ops->tcp_no_delay(s->tcp, s->options.no_delay);
    s->stack->ops->tcp_keepalive(s->tcp, &s->options.keepalive);
}

/* A connection to elsewhere from one of several stacks: its answers must be steered to this one, so its port
 * is chosen by the hash. 0, or -EADDRNOTAVAIL. */
static int bind_at_home_locked(struct socket *s, uint32_t source, const struct stack_address *to)
{
    static uint32_t next; /* a */
    struct stack *st = s->stack;
    for (unsigned i = 0; i < PORT_TRIES * stack_count; i++) {
        uint32_t x = atomic_fetch_add(&next, 1) * 2654435761u + (uint32_t)clock_monotonic_ns();
        struct stack_address local = { 0, (uint16_t)(PORT_FIRST + (x >> 8) % PORT_COUNT) };
        uint32_t hash = steer_hash(__builtin_bswap32(source), __builtin_bswap32(to->ip), local.port, to->port);
        if (steer_stack(hash, stack_count) == st->index && !st->ops->tcp_bind(s->tcp, &local, false))
            return 0;
    }
    return -EADDRNOTAVAIL;
}

static int connect_locked(struct socket *s, const struct stack_address *a, uint32_t source)
{
    struct stack *st = s->stack;
    if (!s->tcp) {
        s->tcp = st->ops->tcp_new(s);
        if (!s->tcp)
            return -ENOMEM;
        s->attached = true;
        socket_get(s);
    }
    tcp_options_apply_locked(s);
    int r = source && !s->bound ? bind_at_home_locked(s, source, a) : 0;
    if (r)
        return r;
    spin_lock(&s->lock);
    s->state = SOCKET_CONNECTING;
    spin_unlock(&s->lock);
    r = st->ops->tcp_connect(s->tcp, a);
    struct stack_address local, remote;
    if (!r)
        st->ops->tcp_names(s->tcp, &local, &remote);
    spin_lock(&s->lock);
    if (r) {
        s->state = SOCKET_NEW;
    } else {
        s->local = local;
        s->remote = remote;
    }
    spin_unlock(&s->lock);
    return r;
}

int tcp_socket_connect(struct socket *s, const struct stack_address *a)
{
    int r = 0;
    uint32_t source = stack_count > 1 && !device_owns_address(a->ip) ? device_source_address(a->ip) : 0;
    stack_lock(s->stack);
    spin_lock(&s->lock);
    enum socket_state state = s->state;
    if (state == SOCKET_CONNECTED) {
        r = s->connect_done ? -EISCONN : 0;
        s->connect_done = true;
    } else if (state == SOCKET_CONNECTING) {
        r = -EALREADY;
    } else if (state == SOCKET_LISTENING) {
        r = -EISCONN;
    } else if (state == SOCKET_CLOSED) {
        r = s->error ? -s->error : -ECONNABORTED;
        s->error = 0;
        if (!s->attached) {
            s->state = SOCKET_NEW; /* as on Linux, it may be tried again */
            s->eof = s->no_send = s->fin_sent = s->bound = false;
        }
    }
    spin_unlock(&s->lock);
    if (state == SOCKET_NEW)
        r = connect_locked(s, a, source);
    stack_unlock(s->stack);
    if (state != SOCKET_NEW || r)
        return r;
    /* To this machine itself it is done, or refused, by now. */
    spin_lock(&s->lock);
    if (s->state == SOCKET_CONNECTED) {
        s->connect_done = true;
    } else if (s->state == SOCKET_CLOSED) {
        r = s->error ? -s->error : -ECONNREFUSED;
        s->error = 0;
    } else {
        r = -EINPROGRESS;
    }
    spin_unlock(&s->lock);
    return r;
}

void socket_tcp_connected(struct socket *s)
{
    struct stack *st = s->stack;
    size_t window = st->ops->tcp_window(s->tcp, RECEIVE_WINDOW_FIRST);
    struct stack_address local, remote;
    st->ops->tcp_names(s->tcp, &local, &remote);
    spin_lock(&s->lock);
    s->state = SOCKET_CONNECTED;
    s->rx_window = window;
    s->local = local;
    spin_unlock(&s->lock);
    stack_add_pending(st, s); /* what was noted meanwhile: shutdown, close */
    socket_wake(s, POLLOUT | POLLWRNORM);
}

/* ---- listening ---- */

static void listeners_close(struct socket *s)
{
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        stack_lock(st);
        if (s->listeners[i])
            st->ops->tcp_listen_close(s->listeners[i]);
        s->listeners[i] = NULL;
        stack_unlock(st);
    }
}

/* The listener in one more stack than its home. */
static int listen_in(struct socket *s, struct stack *st)
{
    int r = 0;
    stack_lock(st);
    struct tcp_handle *t = st->ops->tcp_new(NULL);
    if (!t) {
        r = -ENOMEM;
    } else {
        r = st->ops->tcp_bind(t, &s->local, s->options.reuse_address);
        if (!r) {
            s->listeners[st->index] = st->ops->tcp_listen(t, s);
            r = s->listeners[st->index] ? 0 : -EADDRINUSE;
        }
        if (r)
            st->ops->tcp_abort(t);
    }
    stack_unlock(st);
    return r;
}

int tcp_socket_listen(struct socket *s, int backlog)
{
    unsigned limit = backlog < 0 ? BACKLOG_CAP : MIN((unsigned)backlog, BACKLOG_CAP);
    limit = MAX(limit, 1u);
    if (atomic_load_relaxed(&s->state) == SOCKET_LISTENING) {
        spin_lock(&s->lock);
        s->backlog = limit;
        spin_unlock(&s->lock);
        return 0;
    }
    struct stack *st = s->stack;
    if (!s->bound) {
        int r = socket_bind(s, &(struct socket_address){ .family = AF_INET_WEIR });
        if (r)
            return r;
    }
    struct tcp_listener **listeners = kcalloc(stack_count, sizeof(*listeners));
    if (!listeners)
        return -ENOMEM;
    stack_lock(st);
    int r = 0;
    if (s->state != SOCKET_NEW || !s->tcp) {
        r = -EINVAL;
        kfree(listeners);
    } else {
        s->listeners = listeners;
        s->backlog = limit;
        /* The connection that bind made becomes the listener; lwIP's reference to it ends. */
        s->listeners[st->index] = st->ops->tcp_listen(s->tcp, s);
        if (!s->listeners[st->index]) {
            s->listeners = NULL;
            kfree(listeners);
            r = -EADDRINUSE;
        } else {
            s->tcp = NULL;
            s->attached = false;
            spin_lock(&s->lock);
            s->state = SOCKET_LISTENING;
            spin_unlock(&s->lock);
        }
    }
    stack_unlock(st);
    if (r)
        return r;
    socket_put(s); /* the reference of the connection; the file's remains */
    for (unsigned i = 0; i < stack_count && !r; i++) {
        if (i != st->index)
            r = listen_in(s, stack_by_index(i));
    }
    if (r)
        listeners_close(s);
    return r;
}

bool socket_tcp_syn(struct socket *l)
{
    bool admit;
    spin_lock(&l->lock);
    /* One more than the backlog, as Linux counts. Handshakes under way have their place already: a client that
     * has seen our answer is connected, and must not be turned away afterwards. */
    admit = !l->closed && l->accept_count + l->half_open <= l->backlog && l->half_open < HALF_OPEN_CAP;
    if (admit)
        l->half_open++;
    spin_unlock(&l->lock);
    if (admit)
        socket_get(l); /* until accepted or dropped */
    else
        NET_COUNT(syn_dropped, 1);
    return admit;
}

void socket_tcp_syn_dropped(struct socket *l)
{
    spin_lock(&l->lock);
    l->half_open--;
    spin_unlock(&l->lock);
    socket_put(l);
}

struct socket *socket_tcp_accepted(struct stack *st, struct socket *l, struct tcp_handle *t)
{
    struct socket *s = socket_alloc(SOCK_STREAM_WEIR, st);
    bool refused = !s;
    st->flows++;
    if (s) {
        s->options = l->options;
        s->tcp = t;
        s->attached = true;
        s->state = SOCKET_CONNECTED;
        s->connect_done = true;
        s->bound = true;
        s->refcount = 2; /* lwIP's and the accept queue's */
        s->rx_window = st->ops->tcp_window(t, RECEIVE_WINDOW_FIRST);
        st->ops->tcp_names(t, &s->local, &s->remote);
        tcp_options_apply_locked(s);
    }
    spin_lock(&l->lock);
    l->half_open--;
    refused = refused || l->closed || l->accept_count > l->backlog;
    if (!refused) {
        list_add_tail(&l->accept_queue, &s->accept_link);
        l->accept_count++;
    }
    spin_unlock(&l->lock);
    if (refused) {
        NET_COUNT(accept_overflow, 1);
        if (s) {
            s->refcount = 1;
            socket_put(s);
        }
        s = NULL;
    } else {
        socket_wake(l, POLLIN | POLLRDNORM);
    }
    socket_put(l);
    return s;
}

/* ---- what lwIP tells about a connection ---- */

void socket_tcp_eof(struct socket *s)
{
    spin_lock(&s->lock);
    s->eof = true;
    spin_unlock(&s->lock);
    socket_wake(s, POLLIN | POLLRDNORM | POLLRDHUP);
}

/* The connection is over, whether an error says so or its last state has passed. */
static void ended(struct socket *s, int error)
{
    spin_lock(&s->lock);
    bool first = s->state == SOCKET_CONNECTED || s->state == SOCKET_CONNECTING;
    if (first) {
        if (error == -ECONNRESET && s->state == SOCKET_CONNECTING)
            error = -ECONNREFUSED;
        else if (error == -ECONNRESET && s->eof)
            error = -EPIPE; /* as Linux after the peer's FIN */
        s->state = SOCKET_CLOSED;
    }
    if (error && !s->error)
        s->error = -error;
    s->eof = true;
    s->no_send = true;
    spin_unlock(&s->lock);
    socket_wake(s, POLLIN | POLLRDNORM | POLLRDHUP | POLLOUT | POLLWRNORM | POLLHUP | (error ? POLLERR : 0));
}

void socket_tcp_error(struct socket *s, int error)
{
    s->tcp = NULL;
    ended(s, error);
}

void socket_tcp_gone(struct socket *s)
{
    s->tcp = NULL;
    s->attached = false;
    /* lwIP may still report an error in this very call: the reference goes when the stack is left. */
    list_add_tail(&s->stack->gone, &s->gone_link);
}

void socket_gone_drain_locked(struct stack *st)
{
    while (!list_empty(&st->gone)) {
        struct socket *s = list_first(&st->gone, struct socket, gone_link);
        list_del(&s->gone_link);
        struct list chunks = LIST_INIT(chunks);
        spin_lock(&s->lock);
        list_splice_tail(&chunks, &s->tx);
        s->tx_next = NULL;
        s->tx_acked = s->tx_queued;
        spin_unlock(&s->lock);
        tx_chunks_free(&chunks);
        ended(s, 0);
        socket_put(s);
    }
}

/* ---- closing ---- */

static void accept_queue_abort(struct socket *l)
{
    for (;;) {
        struct socket *c = NULL;
        spin_lock(&l->lock);
        if (!list_empty(&l->accept_queue)) {
            c = list_first(&l->accept_queue, struct socket, accept_link);
            list_del(&c->accept_link);
            l->accept_count--;
        }
        spin_unlock(&l->lock);
        if (!c)
            return;
        spin_lock(&c->lock);
        c->abort = true;
        spin_unlock(&c->lock);
        socket_close(c);
    }
}

void tcp_socket_close(struct socket *s)
{
    struct list unread = LIST_INIT(unread);
    spin_lock(&s->lock);
    enum socket_state state = s->state;
    s->closed = true;
    list_splice_tail(&unread, &s->rx);
    /* What was sent to us and not read is lost: the peer must learn that (RFC 1122 4.2.2.13). */
    if (s->rx_bytes || (s->options.linger_on && !s->options.linger_s))
        s->abort = true;
    s->rx_bytes = 0;
    spin_unlock(&s->lock);
    rx_items_free(s, &unread);
    if (state == SOCKET_LISTENING) {
        listeners_close(s);
        accept_queue_abort(s);
        return;
    }
    stack_kick(s->stack, s);
}

unsigned tcp_socket_poll(struct socket *s)
{
    unsigned events = 0;
    spin_lock(&s->lock);
    bool eof = s->eof || s->no_receive;
    if (s->state == SOCKET_LISTENING) {
        if (!list_empty(&s->accept_queue))
            events = POLLIN | POLLRDNORM;
        spin_unlock(&s->lock);
        return events;
    }
    if (s->state == SOCKET_NEW || s->state == SOCKET_CLOSED || (eof && s->no_send))
        events |= POLLHUP;
    if (eof && s->state != SOCKET_NEW)
        events |= POLLIN | POLLRDNORM | POLLRDHUP;
    if (s->state != SOCKET_CONNECTING) {
        if (s->rx_bytes)
            events |= POLLIN | POLLRDNORM;
        uint64_t used = s->tx_queued - s->tx_acked;
        if (s->no_send || used * 3 <= (uint64_t)s->options.send_buffer * 2)
            events |= POLLOUT | POLLWRNORM;
    }
    if (s->error)
        events |= POLLERR;
    spin_unlock(&s->lock);
    return events;
}
