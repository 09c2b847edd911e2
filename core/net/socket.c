/* Sockets: what is common to TCP and UDP, and the calls of <weir/net.h>. */
#include <weir/cmdline.h>
#include "core/net/net_internal.h"

/* Linux's numbers, as programs pass them. */
#define SHUT_RD 0
#define SHUT_WR 1
#define SHUT_RDWR 2

struct socket *socket_alloc(int type, struct stack *st)
{
    struct socket *s = kzalloc(sizeof(*s));
    if (!s)
        return NULL;
    s->refcount = 1;
    s->type = type;
    s->stack = st;
    spin_init(&s->lock);
    wait_queue_init(&s->wait);
    mutex_init(&s->read_mutex);
    mutex_init(&s->write_mutex);
    list_init(&s->pending_link);
    list_init(&s->gone_link);
    list_init(&s->rx);
    list_init(&s->tx);
    list_init(&s->accept_queue);
    list_init(&s->accept_link);
    s->rx_window = RECEIVE_WINDOW_FIRST;
    s->options.send_buffer = SEND_BUFFER_DEFAULT;
    s->options.receive_buffer = RECEIVE_BUFFER_DEFAULT;
    s->options.keepalive = (struct stack_keepalive){ false, 7200 * 1000, 75 * 1000, 9 };
    NET_COUNT(sockets, 1);
    return s;
}

void socket_get(struct socket *s)
{
    atomic_fetch_add(&s->refcount, 1);
}

void socket_put(struct socket *s)
{
    if (atomic_fetch_sub(&s->refcount, 1) != 1)
        return;
    rx_items_free(s, &s->rx);
    tx_chunks_free(&s->tx);
    kfree(s->rx_spare);
    kfree(s->listeners);
    kfree(s->udp);
    kfree(s);
    NET_COUNT(sockets, -1);
}

void socket_wake(struct socket *s, unsigned events)
{
    /* The change that is told is visible before the list of waiters is read (in wait_queue_active). */
    if (wait_queue_active(&s->wait))
        wake_events(&s->wait, events, 1);
}

void rx_item_free(struct socket *s, struct rx_item *item)
{
    if (item->pbuf)
        s->stack->ops->pbuf_free(item->pbuf);
    kfree(item);
    NET_COUNT(rx_items, -1);
}

void rx_items_free(struct socket *s, struct list *items)
{
    while (!list_empty(items)) {
        struct rx_item *item = list_first(items, struct rx_item, link);
        list_del(&item->link);
        rx_item_free(s, item);
    }
}

static bool address_from(const struct socket_address *a, struct stack_address *out)
{
    if (a->family != AF_INET_WEIR)
        return false;
    memcpy(&out->ip, a->addr, 4);
    out->port = a->port;
    return true;
}

static void address_to(const struct stack_address *a, struct socket_address *out)
{
    *out = (struct socket_address){ .family = AF_INET_WEIR, .port = a->port };
    memcpy(out->addr, &a->ip, 4);
}

int socket_create(int family, int type, struct socket **out)
{
    if (family != AF_INET_WEIR)
        return -EAFNOSUPPORT;
    if (type != SOCK_STREAM_WEIR && type != SOCK_DGRAM_WEIR)
        return -ESOCKTNOSUPPORT;
    if (!stack_count)
        return -EAFNOSUPPORT;
    /* A socket that will connect is at home where its creator runs; a listener is in all stacks. */
    struct socket *s = socket_alloc(type, stack_by_index(this_cpu()->id % stack_count));
    if (!s)
        return -ENOMEM;
    if (type == SOCK_DGRAM_WEIR) {
        int r = udp_socket_setup(s);
        if (r) {
            socket_put(s);
            return r;
        }
    }
    *out = s;
    return 0;
}

void socket_close(struct socket *s)
{
    if (s->type == SOCK_STREAM_WEIR)
        tcp_socket_close(s);
    else
        udp_socket_close(s);
    socket_put(s);
}

int socket_bind(struct socket *s, const struct socket_address *a)
{
    struct stack_address local;
    if (!address_from(a, &local))
        return a->family == AF_UNSPEC_WEIR ? -EAFNOSUPPORT : -EINVAL;
    if (!device_owns_address(local.ip))
        return -EADDRNOTAVAIL;
    if (s->type == SOCK_DGRAM_WEIR)
        return udp_socket_bind(s, &local);
    struct stack *st = s->stack;
    int r = 0;
    stack_lock(st);
    if (s->state != SOCKET_NEW || s->bound) {
        r = -EINVAL;
    } else {
        if (!s->tcp) {
            s->tcp = st->ops->tcp_new(s);
            if (s->tcp) {
                s->attached = true;
                socket_get(s);
            }
        }
        r = s->tcp ? st->ops->tcp_bind(s->tcp, &local, s->options.reuse_address) : -ENOMEM;
        if (!r) {
            struct stack_address l, remote;
            s->bound = true;
            st->ops->tcp_names(s->tcp, &l, &remote);
            spin_lock(&s->lock);
            s->local = (struct stack_address){ local.ip, l.port };
            spin_unlock(&s->lock);
        }
    }
    stack_unlock(st);
    return r;
}

int socket_listen(struct socket *s, int backlog)
{
    if (s->type != SOCK_STREAM_WEIR)
        return -EOPNOTSUPP;
    return tcp_socket_listen(s, backlog);
}

int socket_accept(struct socket *s, struct socket **out, struct socket_address *peer)
{
    if (s->type != SOCK_STREAM_WEIR)
        return -EOPNOTSUPP;
    int r = 0;
    struct socket *c = NULL;
    spin_lock(&s->lock);
    if (s->state != SOCKET_LISTENING) {
        r = -EINVAL;
    } else if (list_empty(&s->accept_queue)) {
        r = -EAGAIN;
    } else {
        c = list_first(&s->accept_queue, struct socket, accept_link);
        list_del(&c->accept_link);
        s->accept_count--;
    }
    spin_unlock(&s->lock);
    if (r)
        return r;
    NET_COUNT(accepts, 1);
    if (peer)
        address_to(&c->remote, peer);
    *out = c;
    return 0;
}

int socket_connect(struct socket *s, const struct socket_address *a)
{
    struct stack_address remote;
    if (a->family == AF_UNSPEC_WEIR && s->type == SOCK_DGRAM_WEIR)
        return udp_socket_connect(s, &(struct stack_address){ 0 }, true);
    if (!address_from(a, &remote))
        return -EAFNOSUPPORT;
    if (!remote.ip)
        remote.ip = __builtin_bswap32(0x7f000001); /* Linux: any means this machine */
    if (s->type == SOCK_DGRAM_WEIR)
        return udp_socket_connect(s, &remote, false);
    return tcp_socket_connect(s, &remote);
}

ssize_t socket_send(struct socket *s, struct uio *u, unsigned msg_flags, const struct socket_address *to)
{
    if (s->type == SOCK_STREAM_WEIR)
        return tcp_socket_send(s, u, msg_flags);
    struct stack_address remote;
    if (to && !address_from(to, &remote))
        return -EAFNOSUPPORT;
    return udp_socket_send(s, u, to ? &remote : NULL);
}

ssize_t socket_receive(struct socket *s, struct uio *u, unsigned msg_flags, struct socket_address *from)
{
    struct stack_address remote = { 0 };
    ssize_t n = s->type == SOCK_STREAM_WEIR ? tcp_socket_receive(s, u, msg_flags) : udp_socket_receive(s, u, msg_flags, &remote);
    if (n >= 0 && from) {
        if (s->type == SOCK_DGRAM_WEIR)
            address_to(&remote, from);
        else
            from->family = AF_UNSPEC_WEIR; /* a stream names no sender */
    }
    return n;
}

int socket_shutdown(struct socket *s, int how)
{
    if (how < SHUT_RD || how > SHUT_RDWR)
        return -EINVAL;
    int r = 0;
    spin_lock(&s->lock);
    if (s->type == SOCK_STREAM_WEIR && s->state != SOCKET_CONNECTED && s->state != SOCKET_LISTENING) {
        r = -ENOTCONN;
    } else if (s->type == SOCK_DGRAM_WEIR && !s->remote.port) {
        r = -ENOTCONN;
    } else {
        if (how != SHUT_WR)
            s->no_receive = true;
        if (how != SHUT_RD)
            s->no_send = true;
    }
    spin_unlock(&s->lock);
    if (r)
        return r;
    if (s->type == SOCK_STREAM_WEIR && how != SHUT_RD)
        stack_kick(s->stack, s); /* the service sends FIN once all is written */
    socket_wake(s, POLLIN | POLLRDNORM | POLLRDHUP | POLLOUT | POLLWRNORM | POLLHUP);
    return 0;
}

int socket_name(struct socket *s, bool peer, struct socket_address *out)
{
    int r = 0;
    spin_lock(&s->lock);
    if (peer && (s->type == SOCK_STREAM_WEIR ? s->state != SOCKET_CONNECTED : !s->remote.port))
        r = -ENOTCONN;
    else
        address_to(peer ? &s->remote : &s->local, out);
    spin_unlock(&s->lock);
    return r;
}

unsigned socket_poll(struct socket *s)
{
    if (s->type == SOCK_STREAM_WEIR)
        return tcp_socket_poll(s);
    unsigned events = POLLOUT | POLLWRNORM;
    spin_lock(&s->lock);
    if (!list_empty(&s->rx) || s->no_receive)
        events |= POLLIN | POLLRDNORM;
    if (s->no_receive)
        events |= POLLRDHUP;
    if (s->no_receive && s->no_send)
        events |= POLLHUP;
    if (s->error)
        events |= POLLERR;
    spin_unlock(&s->lock);
    return events;
}

struct wait_queue *socket_wait_queue(struct socket *s)
{
    return &s->wait;
}

size_t socket_readable_bytes(struct socket *s)
{
    size_t n;
    spin_lock(&s->lock);
    if (s->type == SOCK_STREAM_WEIR)
        n = s->rx_bytes;
    else
        n = list_empty(&s->rx) ? 0 : list_first(&s->rx, struct rx_item, link)->len;
    spin_unlock(&s->lock);
    return n;
}

static void read_stack(struct stack *st, struct stack_counters *k)
{
    stack_lock(st);
    st->ops->counters(k);
    stack_unlock(st);
}

static struct stack_counters sum_stacks(void)
{
    struct stack_counters sum = { 0 };
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack_counters k;
        read_stack(stack_by_index(i), &k);
        sum.ip_dropped += k.ip_dropped;
        sum.tcp_dropped += k.tcp_dropped;
        sum.tcp_checksum += k.tcp_checksum;
        sum.tcp_memory += k.tcp_memory;
        sum.tcp_active += k.tcp_active;
        sum.tcp_time_wait += k.tcp_time_wait;
    }
    return sum;
}

unsigned net_connections(void) { return sum_stacks().tcp_active; }
unsigned net_time_waits(void) { return sum_stacks().tcp_time_wait; }

size_t net_print_counters(char *buf, size_t size)
{
    const struct net_counters *c = &net_counters;
    size_t n = 0;
    n += (size_t)scnprintf(buf + n, size - n,
        "rx_frames %lu\nrx_bytes %lu\nrx_dropped %lu\ntx_frames %lu\ntx_bytes %lu\ntx_tso %lu\ntx_waited %lu\ntx_dropped %lu\n"
        "rx_hashed %lu\nrx_astray %lu\nsockets %lu\nrx_items %lu\ntx_chunks %lu\ntx_packets %lu\naccepts %lu\nsyn_dropped %lu\naccept_overflow %lu\n",
        (unsigned long)c->rx_frames, (unsigned long)c->rx_bytes, (unsigned long)c->rx_dropped, (unsigned long)c->tx_frames,
        (unsigned long)c->tx_bytes, (unsigned long)c->tx_tso, (unsigned long)c->tx_waited, (unsigned long)c->tx_dropped, (unsigned long)c->rx_hashed,
        (unsigned long)c->rx_astray, (unsigned long)c->sockets,
        (unsigned long)c->rx_items, (unsigned long)c->tx_chunks, (unsigned long)c->tx_packets, (unsigned long)c->accepts,
        (unsigned long)c->syn_dropped, (unsigned long)c->accept_overflow);
    n += device_print(buf + n, size - n);
    unsigned used = 0;
    for (unsigned i = 0; i < stack_count; i++)
        used += atomic_load_relaxed(&stack_by_index(i)->flows) != 0;
    struct stack_counters sum = sum_stacks();
    n += (size_t)scnprintf(buf + n, size - n,
        "stacks %u with_flows %u\nip_dropped %lu\ntcp_dropped %lu\ntcp_checksum %lu\ntcp_memory %lu\nactive %u\ntime_wait %u\n", stack_count, used,
        (unsigned long)sum.ip_dropped, (unsigned long)sum.tcp_dropped, (unsigned long)sum.tcp_checksum, (unsigned long)sum.tcp_memory,
        sum.tcp_active, sum.tcp_time_wait);
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        struct stack_counters k;
        read_stack(st, &k);
        n += (size_t)scnprintf(buf + n, size - n,
            "stack %u base %p ip_in %lu ip_dropped %lu tcp_in %lu tcp_out %lu tcp_dropped %lu tcp_checksum %lu tcp_memory %lu "
            "udp_in %lu udp_dropped %lu icmp_in %lu arp_in %lu active %u time_wait %u listening %u\n",
            i, st->module_base, (unsigned long)k.ip_in, (unsigned long)k.ip_dropped, (unsigned long)k.tcp_in,
            (unsigned long)k.tcp_out, (unsigned long)k.tcp_dropped, (unsigned long)k.tcp_checksum, (unsigned long)k.tcp_memory,
            (unsigned long)k.udp_in, (unsigned long)k.udp_dropped, (unsigned long)k.icmp_in, (unsigned long)k.arp_in,
            k.tcp_active, k.tcp_time_wait, k.tcp_listening);
    }
    return n;
}
