/* AF_INET sockets: addresses in Linux's layout, everything else is core/net's. */
#include "socket_file.h"

#define IPPROTO_TCP      6
#define IPPROTO_UDP      17
#define SOCKADDR_IN_LEN  16u
#define SOCKADDR_IN6_LEN 28u

static int address_in(const struct sockaddr_buf *from, struct socket_address *to)
{
    *to = (struct socket_address){.family = sockaddr_family(from)};
    if (to->family == AF_UNSPEC_WEIR)
        return 0;
    if (to->family != AF_INET_WEIR && to->family != AF_INET6_WEIR)
        return -EAFNOSUPPORT;
    if (from->len < (to->family == AF_INET_WEIR ? SOCKADDR_IN_LEN : SOCKADDR_IN6_LEN - 4))
        return -EINVAL;
    to->port = (uint16_t)(from->bytes[2] << 8 | from->bytes[3]);
    if (to->family == AF_INET_WEIR)
        memcpy(to->addr, from->bytes + 4, 4);
    else
        memcpy(to->addr, from->bytes + 8, 16);
    return 0;
}

static void address_out(const struct socket_address *from, struct sockaddr_buf *to)
{
    uint16_t family = from->family;

    memset(to->bytes, 0, SOCKADDR_IN6_LEN);
    to->len = 0;
    if (family == AF_UNSPEC_WEIR)
        return;
    memcpy(to->bytes, &family, sizeof(family));
    to->bytes[2] = (uint8_t)(from->port >> 8);
    to->bytes[3] = (uint8_t)from->port;
    to->len = family == AF_INET_WEIR ? SOCKADDR_IN_LEN : SOCKADDR_IN6_LEN;
    memcpy(to->bytes + (family == AF_INET_WEIR ? 4 : 8), from->addr,
           family == AF_INET_WEIR ? 4 : 16);
}

static int inet_bind(struct socket_file *s, const struct sockaddr_buf *a)
{
    struct socket_address addr;
    int error = address_in(a, &addr);

    return error ? error : socket_bind(s->private, &addr);
}

static int inet_listen(struct socket_file *s, int backlog)
{
    return socket_listen(s->private, backlog);
}

static int inet_accept(struct socket_file *s, struct socket_file *out, struct sockaddr_buf *peer)
{
    struct socket_address addr;
    struct socket *c;
    int error = socket_accept(s->private, &c, &addr);

    if (error)
        return error;
    out->private = c;
    address_out(&addr, peer);
    return 0;
}

static int inet_connect(struct socket_file *s, const struct sockaddr_buf *a)
{
    struct socket_address addr;
    int error = address_in(a, &addr);

    return error ? error : socket_connect(s->private, &addr);
}

static ssize_t inet_send(struct socket_file *s, struct socket_message *m)
{
    struct socket_address addr;

    if (m->files)
        return -EINVAL;
    if (m->address && m->address->len) {
        int error = address_in(m->address, &addr);

        if (error)
            return error;
        return socket_send(s->private, m->uio, m->flags, s->type == SOCK_DGRAM_WEIR ? &addr : NULL);
    }
    return socket_send(s->private, m->uio, m->flags, NULL);
}

static ssize_t inet_receive(struct socket_file *s, struct socket_message *m)
{
    struct socket_address addr = {.family = AF_UNSPEC_WEIR};
    size_t room = m->uio->resid;
    ssize_t n;

    if (!m->address)
        return socket_receive(s->private, m->uio, m->flags, NULL);
    /* The true length tells whether a datagram was cut. */
    n = socket_receive(s->private, m->uio, m->flags | (s->type == SOCK_DGRAM_WEIR ? MSG_TRUNC : 0),
                       &addr);
    address_out(&addr, m->address);
    if (s->type == SOCK_DGRAM_WEIR && n >= 0) {
        bool wanted = m->flags & MSG_TRUNC;

        m->flags = (size_t)n > room ? MSG_TRUNC : 0;
        return wanted ? n : MIN(n, (ssize_t)room);
    }
    m->flags = 0;
    return n;
}

static int inet_shutdown(struct socket_file *s, int how)
{
    return socket_shutdown(s->private, how);
}

static int inet_name(struct socket_file *s, bool peer, struct sockaddr_buf *out)
{
    struct socket_address addr;
    int error = socket_name(s->private, peer, &addr);

    if (!error)
        address_out(&addr, out);
    return error;
}

static int inet_set_option(struct socket_file *s, int level, int name, const void *value,
                           size_t len)
{
    return socket_set_option(s->private, level, name, value, len);
}

static int inet_get_option(struct socket_file *s, int level, int name, void *value, size_t *len)
{
    return socket_get_option(s->private, level, name, value, len);
}

static unsigned inet_poll(struct socket_file *s)
{
    return socket_poll(s->private);
}

static struct wait_queue *inet_wait_queue(struct socket_file *s)
{
    return socket_wait_queue(s->private);
}

static size_t inet_readable_bytes(struct socket_file *s)
{
    return socket_readable_bytes(s->private);
}

static void inet_release(struct socket_file *s)
{
    socket_close(s->private);
}

const struct socket_family_ops inet_socket_ops = {
    .bind = inet_bind,
    .listen = inet_listen,
    .accept = inet_accept,
    .connect = inet_connect,
    .send = inet_send,
    .receive = inet_receive,
    .shutdown = inet_shutdown,
    .name = inet_name,
    .set_option = inet_set_option,
    .get_option = inet_get_option,
    .poll = inet_poll,
    .wait_queue = inet_wait_queue,
    .readable_bytes = inet_readable_bytes,
    .release = inet_release,
};

int inet_socket_create(struct socket_file *s, int protocol)
{
    struct socket *inet;
    int error;

    if (protocol && protocol != (s->type == SOCK_STREAM_WEIR ? IPPROTO_TCP : IPPROTO_UDP))
        return -EPROTONOSUPPORT;
    error = socket_create(s->family, s->type, &inet);
    if (!error)
        s->private = inet;
    return error;
}
