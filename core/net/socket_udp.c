/* UDP sockets: one lwIP handle in every stack, so that a datagram finds its socket wherever it arrives. */
#include "core/net/net_internal.h"

#define MSG_PEEK 0x02u
#define MSG_TRUNC 0x20u
#define UDP_MAX 65507u
#define UDP_BYTES_MAX (256u * 1024)
#define UDP_COUNT_MAX 512u

int udp_socket_setup(struct socket *s)
{
    s->udp = kcalloc(stack_count, sizeof(*s->udp));
    if (!s->udp)
        return -ENOMEM;
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        stack_lock(st);
        s->udp[i] = st->ops->udp_new(s);
        stack_unlock(st);
        if (!s->udp[i]) {
            udp_socket_close(s);
            return -ENOMEM;
        }
    }
    return 0;
}

void udp_socket_close(struct socket *s)
{
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        stack_lock(st);
        if (s->udp[i])
            st->ops->udp_close(s->udp[i]);
        s->udp[i] = NULL;
        stack_unlock(st);
    }
}

static void learn_names(struct socket *s)
{
    struct stack_address local, remote;
    struct stack *st = s->stack;
    stack_lock(st);
    st->ops->udp_names(s->udp[st->index], &local, &remote);
    stack_unlock(st);
    spin_lock(&s->lock);
    s->local = local;
    s->remote = remote;
    spin_unlock(&s->lock);
}

int udp_socket_bind(struct socket *s, const struct stack_address *a)
{
    struct stack_address want = *a;
    if (s->bound)
        return -EINVAL;
    /* The home stack chooses the port if none is named; the others follow. */
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index((s->stack->index + i) % stack_count);
        stack_lock(st);
        int r = st->ops->udp_bind(s->udp[st->index], &want, s->options.reuse_address);
        struct stack_address remote;
        if (!r && i == 0) {
            struct stack_address got;
            st->ops->udp_names(s->udp[st->index], &got, &remote);
            want.port = got.port;
        }
        stack_unlock(st);
        if (r)
            return r;
    }
    s->bound = true;
    learn_names(s);
    return 0;
}

int udp_socket_connect(struct socket *s, const struct stack_address *a, bool disconnect)
{
    if (!s->bound) {
        int r = udp_socket_bind(s, &(struct stack_address){ 0 });
        if (r)
            return r;
    }
    for (unsigned i = 0; i < stack_count; i++) {
        struct stack *st = stack_by_index(i);
        int r = 0;
        stack_lock(st);
        if (disconnect)
            st->ops->udp_disconnect(s->udp[i]);
        else
            r = st->ops->udp_connect(s->udp[i], a);
        stack_unlock(st);
        if (r)
            return r;
    }
    learn_names(s);
    return 0;
}

ssize_t udp_socket_send(struct socket *s, struct uio *u, const struct stack_address *to)
{
    size_t len = u->resid;
    if (len > UDP_MAX)
        return -EMSGSIZE;
    if (!to && !s->remote.port)
        return -EDESTADDRREQ;
    if (s->no_send)
        return -EPIPE;
    if (!s->bound) {
        int r = udp_socket_bind(s, &(struct stack_address){ 0 });
        if (r)
            return r;
    }
    uint8_t *copy = kmalloc(MAX(len, (size_t)1));
    if (!copy)
        return -ENOBUFS;
    ssize_t r = uio_copy_in(u, copy, len) == len ? 0 : -EFAULT;
    if (!r) {
        struct stack *st = s->stack;
        stack_lock(st);
        r = st->ops->udp_send(s->udp[st->index], copy, len, to);
        stack_unlock(st);
    }
    kfree(copy);
    return r ? r : (ssize_t)len;
}

void socket_udp_data(struct socket *s, const struct stack_address *from, uint32_t len,
                     void (*copy)(void *pbuf, void *dst, uint32_t len), void *pbuf)
{
    struct rx_item *item = NULL;
    /* Read without the lock: a datagram more or less. */
    if (s->rx_count < UDP_COUNT_MAX && s->rx_bytes + len <= UDP_BYTES_MAX)
        item = kmalloc(sizeof(*item) + len);
    if (!item) {
        NET_COUNT(rx_dropped, 1);
        return;
    }
    NET_COUNT(rx_items, 1);
    item->data = item->buffer;
    item->offset = 0;
    item->len = item->capacity = len;
    item->pbuf = NULL;
    item->from = *from;
    copy(pbuf, item->buffer, len);
    spin_lock(&s->lock);
    list_add_tail(&s->rx, &item->link);
    s->rx_bytes += len;
    s->rx_count++;
    spin_unlock(&s->lock);
    socket_wake(s, POLLIN | POLLRDNORM);
}

ssize_t udp_socket_receive(struct socket *s, struct uio *u, unsigned msg_flags, struct stack_address *from)
{
    ssize_t r = -EAGAIN;
    struct rx_item *item = NULL;
    mutex_lock(&s->read_mutex);
    spin_lock(&s->lock);
    if (!list_empty(&s->rx)) {
        item = list_first(&s->rx, struct rx_item, link);
        if (!(msg_flags & MSG_PEEK)) {
            list_del(&item->link);
            s->rx_bytes -= item->len;
            s->rx_count--;
        }
    } else if (s->error) {
        r = -s->error;
        s->error = 0;
    } else if (s->no_receive) {
        r = 0;
    }
    spin_unlock(&s->lock);
    if (item) {
        size_t n = MIN((size_t)item->len, u->resid);
        size_t copied = uio_copy_out(u, item->data, n);
        *from = item->from;
        r = copied < n ? -EFAULT : (ssize_t)(msg_flags & MSG_TRUNC ? item->len : n);
        if (!(msg_flags & MSG_PEEK))
            rx_item_free(s, item);
    }
    mutex_unlock(&s->read_mutex);
    return r;
}
