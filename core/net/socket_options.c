/* Socket options, by Linux's levels and names: what PostgreSQL, redis, nginx, memcached and their clients set. */
#include "core/net/net_internal.h"

#define SOL_IP 0
#define SOL_SOCKET 1
#define SOL_TCP 6

enum {
    SO_REUSEADDR = 2, SO_TYPE = 3, SO_ERROR = 4, SO_DONTROUTE = 5, SO_BROADCAST = 6, SO_SNDBUF = 7, SO_RCVBUF = 8,
    SO_KEEPALIVE = 9, SO_OOBINLINE = 10, SO_PRIORITY = 12, SO_LINGER = 13, SO_REUSEPORT = 15, SO_RCVLOWAT = 18,
    SO_ACCEPTCONN = 30, SO_SNDBUFFORCE = 32, SO_RCVBUFFORCE = 33, SO_PROTOCOL = 38, SO_DOMAIN = 39, SO_BUSY_POLL = 46,
    SO_INCOMING_CPU = 49,
};
enum {
    TCP_NODELAY = 1, TCP_MAXSEG = 2, TCP_CORK = 3, TCP_KEEPIDLE = 4, TCP_KEEPINTVL = 5, TCP_KEEPCNT = 6,
    TCP_SYNCNT = 7, TCP_LINGER2 = 8, TCP_DEFER_ACCEPT = 9, TCP_WINDOW_CLAMP = 10, TCP_INFO = 11, TCP_QUICKACK = 12,
    TCP_CONGESTION = 13, TCP_USER_TIMEOUT = 18, TCP_FASTOPEN = 23,
};
enum { IP_TOS = 1, IP_TTL = 2, IP_MTU_DISCOVER = 10 };

#define BUFFER_MIN 4096u
#define BUFFER_MAX (1024u * 1024)

static int read_int(const void *value, size_t len, int *out)
{
    if (len < sizeof(int))
        return -EINVAL;
    memcpy(out, value, sizeof(int));
    return 0;
}

/* Linux doubles what is asked for, to account for its own overhead, and shows the doubled number. */
static uint32_t buffer_size(int v)
{
    uint64_t bytes = v < 0 ? BUFFER_MIN : 2 * (uint64_t)v;
    return (uint32_t)MAX(MIN(bytes, (uint64_t)BUFFER_MAX), (uint64_t)BUFFER_MIN);
}

static int set_socket_level(struct socket *s, int name, int v, const void *value, size_t len)
{
    switch (name) {
    case SO_REUSEADDR:
        s->options.reuse_address = v != 0;
        return 0;
    case SO_BROADCAST:
        s->options.broadcast = v != 0;
        return 0;
    case SO_KEEPALIVE:
        s->options.keepalive.on = v != 0;
        return 1;
    case SO_SNDBUF:
    case SO_SNDBUFFORCE:
        s->options.send_buffer = buffer_size(v);
        return 0;
    case SO_RCVBUF:
    case SO_RCVBUFFORCE:
        s->options.receive_buffer = buffer_size(v);
        return 0;
    case SO_LINGER:
        if (len < 8)
            return -EINVAL;
        s->options.linger_on = v != 0;
        memcpy(&s->options.linger_s, (const uint8_t *)value + 4, 4);
        return 0;
    case SO_REUSEPORT: /* one listener in all stacks gives what this is used for */
    case SO_DONTROUTE:
    case SO_OOBINLINE:
    case SO_PRIORITY:
    case SO_BUSY_POLL:
    case SO_INCOMING_CPU:
        return 0;
    case SO_RCVLOWAT:
        return v <= 1 ? 0 : -ENOPROTOOPT;
    default:
        return -ENOPROTOOPT;
    }
}

static int set_tcp_level(struct socket *s, int name, int v)
{
    struct stack_keepalive *k = &s->options.keepalive;
    switch (name) {
    case TCP_NODELAY:
        s->options.no_delay = v != 0;
        return 1;
    case TCP_CORK:
        s->options.cork = v != 0;
        return 1;
    case TCP_KEEPIDLE:
        if (v < 1 || v > 32767)
            return -EINVAL;
        k->idle_ms = (uint32_t)v * 1000;
        return 1;
    case TCP_KEEPINTVL:
        if (v < 1 || v > 32767)
            return -EINVAL;
        k->interval_ms = (uint32_t)v * 1000;
        return 1;
    case TCP_KEEPCNT:
        if (v < 1 || v > 127)
            return -EINVAL;
        k->count = (uint32_t)v;
        return 1;
    case TCP_USER_TIMEOUT:
        if (v < 0)
            return -EINVAL;
        s->options.user_timeout_ms = (uint32_t)v;
        return 1;
    case TCP_QUICKACK:
    case TCP_DEFER_ACCEPT:
    case TCP_SYNCNT:
    case TCP_LINGER2:
    case TCP_MAXSEG:
    case TCP_WINDOW_CLAMP:
        return 0;
    default:
        return -ENOPROTOOPT;
    }
}

int socket_set_option(struct socket *s, int level, int name, const void *value, size_t len)
{
    int v = 0;
    if (read_int(value, len, &v))
        return -EINVAL;
    int r = -ENOPROTOOPT;
    spin_lock(&s->lock);
    if (level == SOL_SOCKET)
        r = set_socket_level(s, name, v, value, len);
    else if (level == SOL_TCP && s->type == SOCK_STREAM_WEIR)
        r = set_tcp_level(s, name, v);
    else if (level == SOL_IP)
        r = name == IP_TOS || name == IP_TTL || name == IP_MTU_DISCOVER ? 0 : -ENOPROTOOPT;
    spin_unlock(&s->lock);
    if (r != 1)
        return r;
    /* lwIP wants to know. */
    stack_lock(s->stack);
    tcp_options_apply_locked(s);
    stack_unlock(s->stack);
    return 0;
}

static int get_tcp_info(struct socket *s, void *value, size_t *len)
{
    /* The head of Linux's struct tcp_info: eight bytes, then 32-bit numbers. */
    struct { uint8_t state, ca_state, retransmits, probes, backoff, options, scale, flags; uint32_t v[24]; } info = { 0 };
    struct stack_tcp_info i = { .state = 7 };
    stack_lock(s->stack);
    if (s->tcp)
        s->stack->ops->tcp_info(s->tcp, &i);
    stack_unlock(s->stack);
    info.state = s->state == SOCKET_LISTENING ? 10 : i.state;
    info.retransmits = (uint8_t)i.retransmits;
    info.v[0] = i.rto_ms * 1000;
    info.v[2] = i.snd_mss;
    info.v[3] = i.snd_mss;
    info.v[18] = i.snd_cwnd / MAX(i.snd_mss, 1u);
    *len = MIN(*len, sizeof(info));
    memcpy(value, &info, *len);
    return 0;
}

static int get_socket_level(struct socket *s, int name, int *v)
{
    switch (name) {
    case SO_REUSEADDR: *v = s->options.reuse_address; return 0;
    case SO_TYPE: *v = s->type; return 0;
    case SO_ERROR:
        *v = s->error;
        s->error = 0;
        return 0;
    case SO_BROADCAST: *v = s->options.broadcast; return 0;
    case SO_SNDBUF: *v = (int)s->options.send_buffer; return 0;
    case SO_RCVBUF: *v = (int)s->options.receive_buffer; return 0;
    case SO_KEEPALIVE: *v = s->options.keepalive.on; return 0;
    case SO_LINGER: *v = s->options.linger_on; return 0;
    case SO_ACCEPTCONN: *v = s->state == SOCKET_LISTENING; return 0;
    case SO_PROTOCOL: *v = s->type == SOCK_STREAM_WEIR ? 6 : 17; return 0;
    case SO_DOMAIN: *v = AF_INET_WEIR; return 0;
    case SO_RCVLOWAT: *v = 1; return 0;
    case SO_REUSEPORT:
    case SO_DONTROUTE:
    case SO_OOBINLINE:
    case SO_PRIORITY:
        *v = 0;
        return 0;
    default:
        return -ENOPROTOOPT;
    }
}

static int get_tcp_level(struct socket *s, int name, int *v)
{
    switch (name) {
    case TCP_NODELAY: *v = s->options.no_delay; return 0;
    case TCP_CORK: *v = s->options.cork; return 0;
    case TCP_MAXSEG: *v = 1460; return 0;
    case TCP_KEEPIDLE: *v = (int)(s->options.keepalive.idle_ms / 1000); return 0;
    case TCP_KEEPINTVL: *v = (int)(s->options.keepalive.interval_ms / 1000); return 0;
    case TCP_KEEPCNT: *v = (int)s->options.keepalive.count; return 0;
    case TCP_USER_TIMEOUT: *v = (int)s->options.user_timeout_ms; return 0;
    case TCP_QUICKACK: *v = 1; return 0;
    case TCP_DEFER_ACCEPT: *v = 0; return 0;
    default: return -ENOPROTOOPT;
    }
}

int socket_get_option(struct socket *s, int level, int name, void *value, size_t *len)
{
    int v = 0, r = -ENOPROTOOPT;
    if (level == SOL_TCP && name == TCP_INFO && s->type == SOCK_STREAM_WEIR)
        return get_tcp_info(s, value, len);
    spin_lock(&s->lock);
    if (level == SOL_SOCKET)
        r = get_socket_level(s, name, &v);
    else if (level == SOL_TCP && s->type == SOCK_STREAM_WEIR)
        r = get_tcp_level(s, name, &v);
    else if (level == SOL_IP && (name == IP_TOS || name == IP_TTL || name == IP_MTU_DISCOVER))
        r = 0;
    struct { int on; uint32_t seconds; } linger = { v, s->options.linger_s };
    spin_unlock(&s->lock);
    if (r)
        return r;
    if (level == SOL_SOCKET && name == SO_LINGER) {
        *len = MIN(*len, sizeof(linger));
        memcpy(value, &linger, *len);
        return 0;
    }
    *len = MIN(*len, sizeof(v));
    memcpy(value, &v, *len);
    return 0;
}
