/* Sockets inside the machine: 127.0.0.1 with many connections, and what Linux promises about their ends. */
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/mm.h>
#include <weir/net.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"
#include "core/net/net_internal.h"

#define PORT 7000
#define LIMIT_NS (30 * NSEC_PER_SEC)
static const struct socket_address home = { .family = AF_INET_WEIR, .port = PORT, .addr = { 127, 0, 0, 1 } };

static bool wait_for(struct socket *s, unsigned events)
{
    return !wait_event_timeout(socket_wait_queue(s), socket_poll(s) & (events | POLLERR | POLLHUP),
                               clock_monotonic_ns() + LIMIT_NS);
}

static ssize_t receive_flags(struct socket *s, void *buffer, size_t len, unsigned flags)
{
    for (;;) {
        struct iovec_weir iov;
        struct uio u;
        uio_init_kernel(&u, &iov, buffer, len);
        ssize_t n = socket_receive(s, &u, flags, NULL);
        if (n != -EAGAIN)
            return n;
        if (!wait_for(s, POLLIN))
            return -ETIMEDOUT;
    }
}

static ssize_t receive(struct socket *s, void *buffer, size_t len)
{
    return receive_flags(s, buffer, len, 0);
}

static ssize_t send_some(struct socket *s, const void *buffer, size_t len)
{
    struct iovec_weir iov;
    struct uio u;
    uio_init_kernel(&u, &iov, (void *)(uintptr_t)buffer, len);
    return socket_send(s, &u, 0, NULL);
}

static bool send_all(struct socket *s, const uint8_t *buffer, size_t len)
{
    while (len) {
        ssize_t n = send_some(s, buffer, len);
        if (n == -EAGAIN) {
            if (!wait_for(s, POLLOUT))
                return false;
        } else if (n <= 0) {
            return false;
        } else {
            buffer += n;
            len -= (size_t)n;
        }
    }
    return true;
}

static struct socket *listener(int backlog)
{
    struct socket *l;
    int one = 1;
    if (socket_create(AF_INET_WEIR, SOCK_STREAM_WEIR, &l))
        return NULL;
    if (socket_set_option(l, 1, 2, &one, sizeof(one)) || socket_bind(l, &home) || socket_listen(l, backlog)) {
        socket_close(l);
        return NULL;
    }
    return l;
}

static struct socket *client(int *error)
{
    struct socket *c;
    *error = socket_create(AF_INET_WEIR, SOCK_STREAM_WEIR, &c);
    if (*error)
        return NULL;
    *error = socket_connect(c, &home);
    if (*error == -EINPROGRESS) {
        int so_error = 0;
        size_t len = sizeof(so_error);
        if (!wait_for(c, POLLOUT))
            *error = -ETIMEDOUT;
        else if (!socket_get_option(c, 1, 4, &so_error, &len))
            *error = -so_error;
    }
    if (!*error)
        return c;
    socket_close(c);
    return NULL;
}

static struct socket *accept_one(struct socket *l)
{
    struct socket *s;
    struct socket_address peer;
    int r;
    while ((r = socket_accept(l, &s, &peer)) == -EAGAIN) {
        if (!wait_for(l, POLLIN))
            return NULL;
    }
    return r ? NULL : s;
}

/* What is alive, when all is quiet: lwIP's last states take a moment. */
static bool counters_return_to(const struct net_counters *before)
{
    uint64_t end = clock_monotonic_ns() + LIMIT_NS;
    while (clock_monotonic_ns() < end) {
        const struct net_counters *c = &net_counters;
        if (c->sockets == before->sockets && c->rx_items == before->rx_items && c->tx_chunks == before->tx_chunks)
            return true;
        sleep_until_ns(clock_monotonic_ns() + 10 * NSEC_PER_MSEC);
    }
    log_error("net: left over: %ld sockets, %ld received pieces, %ld chunks to send",
              (long)(net_counters.sockets - before->sockets), (long)(net_counters.rx_items - before->rx_items),
              (long)(net_counters.tx_chunks - before->tx_chunks));
    return false;
}

/* ---- many connections at once ---- */

struct echo_run {
    struct socket *l;
    unsigned connections, rounds;
    uint32_t bad, left; /* a */
    struct completion done;
};

static void leave(struct echo_run *run)
{
    if (atomic_fetch_sub(&run->left, 1) == 1)
        completion_complete(&run->done);
    thread_exit();
}

struct echo_server {
    struct echo_run *run;
    struct socket *s;
};

static void serve(void *arg)
{
    struct echo_server *e = arg;
    struct echo_run *run = e->run;
    uint8_t *buffer = kmalloc(8192);
    ssize_t n = 0;
    while (buffer && (n = receive(e->s, buffer, 8192)) > 0) {
        if (!send_all(e->s, buffer, (size_t)n)) {
            n = -EIO;
            break;
        }
    }
    if (n)
        atomic_fetch_add(&run->bad, 1);
    kfree(buffer);
    socket_close(e->s);
    kfree(e);
    leave(run);
}

static void ask(void *arg)
{
    struct echo_run *run = arg;
    static uint32_t seeds;
    uint32_t x = atomic_fetch_add(&seeds, 1) * 2654435761u + 1;
    int error;
    struct socket *c = client(&error);
    uint8_t *out = kmalloc(20000), *in = kmalloc(20000);
    bool good = c && out && in;
    for (unsigned i = 0; good && i < run->rounds; i++) {
        x = x * 1664525u + 1013904223u;
        size_t len = i % 4 ? 1 + x % 200 : 1 + x % 20000, got = 0;
        for (size_t k = 0; k < len; k++)
            out[k] = (uint8_t)(x + k * 7);
        good = send_all(c, out, len);
        while (good && got < len) {
            ssize_t n = receive(c, in + got, len - got);
            good = n > 0;
            got += good ? (size_t)n : 0;
        }
        good = good && !memcmp(in, out, len);
    }
    if (!good) {
        log_error("net: a client failed, connect said %d", error);
        atomic_fetch_add(&run->bad, 1);
    }
    kfree(out);
    kfree(in);
    if (c)
        socket_close(c);
    leave(run);
}

static bool start(const char *name, void (*fn)(void *), void *arg)
{
    struct thread *t = thread_create(name, fn, arg);
    if (!t)
        return false;
    thread_start(t);
    thread_put(t);
    return true;
}

GUEST_TEST(net_loopback_echo)
{
    struct net_counters before = net_counters;
    struct echo_run run = { .connections = 64, .rounds = 40 };
    run.l = listener(128);
    GUEST_CHECK(run.l);
    completion_init(&run.done);
    run.left = 2 * run.connections;
    for (unsigned i = 0; i < run.connections; i++)
        GUEST_CHECK(start("ask", ask, &run));
    for (unsigned i = 0; i < run.connections; i++) {
        struct echo_server *e = kmalloc(sizeof(*e));
        GUEST_CHECK(e);
        e->run = &run;
        e->s = accept_one(run.l);
        GUEST_CHECK(e->s && start("serve", serve, e));
    }
    completion_wait(&run.done);
    socket_close(run.l);
    GUEST_CHECK(!run.bad);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

/* ---- ends of connections ---- */

struct pair {
    struct socket *l, *c, *s;
};

static bool pair_make(struct pair *p)
{
    int error;
    p->l = listener(8);
    p->c = p->l ? client(&error) : NULL;
    p->s = p->c ? accept_one(p->l) : NULL;
    return p->s != NULL;
}

static int error_of(struct socket *s)
{
    int v = 0;
    size_t len = sizeof(v);
    return socket_get_option(s, 1, 4, &v, &len) ? -1 : v;
}

GUEST_TEST(net_half_close)
{
    struct net_counters before = net_counters;
    struct pair p;
    char b[16];
    GUEST_CHECK(pair_make(&p));
    GUEST_CHECK(send_some(p.c, "question", 8) == 8);
    GUEST_CHECK(!socket_shutdown(p.c, 1));
    GUEST_CHECK(send_some(p.c, "x", 1) == -EPIPE);
    GUEST_CHECK(receive(p.s, b, sizeof(b)) == 8 && !memcmp(b, "question", 8));
    GUEST_CHECK(receive(p.s, b, sizeof(b)) == 0);
    GUEST_CHECK((socket_poll(p.s) & (POLLIN | POLLRDHUP | POLLOUT | POLLHUP)) == (POLLIN | POLLRDHUP | POLLOUT));
    GUEST_CHECK(send_some(p.s, "answer", 6) == 6);
    GUEST_CHECK(receive(p.c, b, sizeof(b)) == 6 && !memcmp(b, "answer", 6));
    socket_close(p.s);
    GUEST_CHECK(receive(p.c, b, sizeof(b)) == 0);
    socket_close(p.c);
    socket_close(p.l);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

GUEST_TEST(net_close_with_unread_data_resets)
{
    struct net_counters before = net_counters;
    struct pair p;
    char b[16];
    GUEST_CHECK(pair_make(&p));
    GUEST_CHECK(send_some(p.c, "unread", 6) == 6);
    GUEST_CHECK(wait_for(p.s, POLLIN));
    socket_close(p.s);
    GUEST_CHECK(receive(p.c, b, sizeof(b)) == -ECONNRESET);
    GUEST_CHECK(receive(p.c, b, sizeof(b)) == 0);
    GUEST_CHECK(send_some(p.c, "x", 1) == -EPIPE);
    GUEST_CHECK((socket_poll(p.c) & (POLLHUP | POLLIN | POLLOUT)) == (POLLHUP | POLLIN | POLLOUT));
    socket_close(p.c);
    socket_close(p.l);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

GUEST_TEST(net_write_after_peer_closed)
{
    struct net_counters before = net_counters;
    struct pair p;
    char b[4];
    GUEST_CHECK(pair_make(&p));
    socket_close(p.s);
    GUEST_CHECK(receive(p.c, b, sizeof(b)) == 0);
    GUEST_CHECK(send_some(p.c, "first", 5) == 5); /* nobody knows yet */
    GUEST_CHECK(wait_for(p.c, POLLHUP));
    GUEST_CHECK(send_some(p.c, "second", 6) == -EPIPE);
    socket_close(p.c);
    socket_close(p.l);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

GUEST_TEST(net_reset_before_accept)
{
    struct net_counters before = net_counters;
    int error;
    struct { int on, seconds; } linger = { 1, 0 };
    struct socket *l = listener(8);
    GUEST_CHECK(l);
    struct socket *c = client(&error);
    GUEST_CHECK(c && !socket_set_option(c, 1, 13, &linger, sizeof(linger)));
    socket_close(c);
    struct socket *s = accept_one(l);
    GUEST_CHECK(s);
    char b[4];
    GUEST_CHECK(receive(s, b, sizeof(b)) == -ECONNRESET);
    socket_close(s);
    /* The listener is none the worse. */
    c = client(&error);
    s = c ? accept_one(l) : NULL;
    GUEST_CHECK(s && send_some(c, "ok", 2) == 2 && receive(s, b, sizeof(b)) == 2);
    socket_close(s);
    socket_close(c);
    socket_close(l);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

GUEST_TEST(net_connect_refused)
{
    struct net_counters before = net_counters;
    int error;
    GUEST_CHECK(!client(&error) && error == -ECONNREFUSED);
    struct socket *l = listener(8);
    GUEST_CHECK(l);
    struct socket *c = client(&error);
    GUEST_CHECK(c);
    socket_close(l); /* what was not accepted is reset */
    char b[4];
    GUEST_CHECK(receive(c, b, sizeof(b)) == -ECONNRESET);
    socket_close(c);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

GUEST_TEST(net_backlog)
{
    struct net_counters before = net_counters;
    enum { BACKLOG = 4, TRIES = 12 };
    struct socket *l = listener(BACKLOG), *c[TRIES];
    unsigned connected = 0;
    GUEST_CHECK(l);
    for (unsigned i = 0; i < TRIES; i++) {
        GUEST_CHECK(!socket_create(AF_INET_WEIR, SOCK_STREAM_WEIR, &c[i]));
        int r = socket_connect(c[i], &home);
        GUEST_CHECK(r == 0 || r == -EINPROGRESS);
    }
    for (unsigned i = 0; i < TRIES; i++)
        connected += (socket_poll(c[i]) & (POLLOUT | POLLHUP)) == POLLOUT;
    GUEST_CHECK(connected == BACKLOG + 1); /* as Linux counts */
    /* The others come in as room is made: their requests are repeated. */
    for (unsigned i = 0; i < TRIES; i++) {
        struct socket *s = accept_one(l);
        GUEST_CHECK(s);
        socket_close(s);
    }
    for (unsigned i = 0; i < TRIES; i++)
        socket_close(c[i]);
    socket_close(l);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

/* A reader that does not read stops its own sender, bounded, and nobody else. */
GUEST_TEST(net_slow_reader)
{
    struct net_counters before = net_counters;
    struct pair p;
    GUEST_CHECK(pair_make(&p));
    uint8_t *block = kzalloc(65536), *in = kmalloc(65536);
    GUEST_CHECK(block && in);
    uint64_t sent = 0, got = 0;
    for (unsigned quiet = 0; quiet < 20;) {
        for (unsigned i = 0; i < 65536; i++)
            block[i] = (uint8_t)((sent + i) * 31 >> 3);
        ssize_t n = send_some(p.c, block, 65536);
        GUEST_CHECK(n > 0 || n == -EAGAIN);
        sent += n > 0 ? (uint64_t)n : 0;
        quiet = n > 0 ? 0 : quiet + 1;
        if (n < 0)
            sleep_until_ns(clock_monotonic_ns() + 10 * NSEC_PER_MSEC);
    }
    GUEST_CHECK(sent < 4u << 20);
    int error;
    struct socket *other = client(&error);
    struct socket *other_s = other ? accept_one(p.l) : NULL;
    char b[4];
    GUEST_CHECK(other_s && send_some(other, "ok", 2) == 2 && receive(other_s, b, sizeof(b)) == 2);
    while (got < sent) {
        ssize_t n = receive(p.s, in, 65536);
        GUEST_CHECK(n > 0);
        for (ssize_t i = 0; i < n; i++)
            GUEST_CHECK(in[i] == (uint8_t)((got + (uint64_t)i) * 31 >> 3));
        got += (uint64_t)n;
    }
    socket_close(other);
    socket_close(other_s);
    socket_close(p.c);
    socket_close(p.s);
    socket_close(p.l);
    kfree(block);
    kfree(in);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

GUEST_TEST(net_options)
{
    struct pair p;
    int one = 1, v = 0, idle = 30;
    size_t len = sizeof(v);
    char b[8];
    GUEST_CHECK(pair_make(&p));
    GUEST_CHECK(!socket_set_option(p.s, 6, 1, &one, sizeof(one)) && !socket_get_option(p.s, 6, 1, &v, &len) && v == 1);
    GUEST_CHECK(!socket_set_option(p.s, 1, 9, &one, sizeof(one)) && !socket_set_option(p.s, 6, 4, &idle, sizeof(idle)));
    GUEST_CHECK(!socket_get_option(p.s, 6, 4, &v, &len) && v == 30);
    GUEST_CHECK(socket_set_option(p.s, 6, 99, &one, sizeof(one)) == -ENOPROTOOPT);
    GUEST_CHECK(error_of(p.s) == 0);
    GUEST_CHECK(send_some(p.c, "peek", 4) == 4);
    GUEST_CHECK(receive_flags(p.s, b, sizeof(b), 2) == 4 && !memcmp(b, "peek", 4));
    GUEST_CHECK(socket_readable_bytes(p.s) == 4);
    GUEST_CHECK(receive(p.s, b, sizeof(b)) == 4);
    struct socket_address a, peer;
    GUEST_CHECK(!socket_name(p.s, false, &a) && a.port == PORT && !socket_name(p.c, true, &peer) && peer.port == PORT);
    GUEST_CHECK(!socket_name(p.c, false, &a) && !socket_name(p.s, true, &peer) && peer.port == a.port && a.port);
    GUEST_CHECK(socket_bind(p.c, &home) == -EINVAL);
    struct socket *second;
    GUEST_CHECK(!socket_create(AF_INET_WEIR, SOCK_STREAM_WEIR, &second));
    GUEST_CHECK(socket_bind(second, &home) == -EADDRINUSE);
    GUEST_CHECK(socket_shutdown(second, 1) == -ENOTCONN);
    socket_close(second);
    socket_close(p.s);
    socket_close(p.c);
    socket_close(p.l);
    return 0;
}

GUEST_TEST(net_udp_loopback)
{
    struct net_counters before = net_counters;
    struct socket *a, *b;
    struct socket_address to = home, from;
    struct iovec_weir iov;
    struct uio u;
    char text[32];
    GUEST_CHECK(!socket_create(AF_INET_WEIR, SOCK_DGRAM_WEIR, &a) && !socket_create(AF_INET_WEIR, SOCK_DGRAM_WEIR, &b));
    GUEST_CHECK(!socket_bind(a, &to));
    uio_init_kernel(&u, &iov, (void *)(uintptr_t) "datagram", 8);
    GUEST_CHECK(socket_send(b, &u, 0, &to) == 8);
    GUEST_CHECK(wait_for(a, POLLIN));
    uio_init_kernel(&u, &iov, text, sizeof(text));
    GUEST_CHECK(socket_receive(a, &u, 0, &from) == 8 && !memcmp(text, "datagram", 8) && from.port);
    GUEST_CHECK(!socket_connect(a, &from));
    uio_init_kernel(&u, &iov, (void *)(uintptr_t) "back", 4);
    GUEST_CHECK(socket_send(a, &u, 0, NULL) == 4 && wait_for(b, POLLIN));
    /* More than the receiver may keep is dropped, not kept. */
    for (unsigned i = 0; i < 2000; i++) {
        uio_init_kernel(&u, &iov, text, sizeof(text));
        GUEST_CHECK(socket_send(a, &u, 0, NULL) == sizeof(text));
    }
    GUEST_CHECK(net_counters.rx_items - before.rx_items <= 600);
    socket_close(a);
    socket_close(b);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

/* Accepting still works after very many connections, and nothing is left of them. */
GUEST_TEST(net_connection_storm)
{
    struct net_counters before = net_counters;
    struct socket *l = listener(16);
    GUEST_CHECK(l);
    char b[4];
    uint64_t end = clock_monotonic_ns() + 8 * NSEC_PER_SEC;
    unsigned count = 0;
    for (; count < 100000 && clock_monotonic_ns() < end; count++) {
        int error;
        struct socket *c = client(&error);
        GUEST_CHECK(c);
        struct socket *s = accept_one(l);
        GUEST_CHECK(s && send_some(c, "x", 1) == 1 && receive(s, b, 1) == 1);
        socket_close(count % 2 ? c : s);
        socket_close(count % 2 ? s : c);
        cond_resched();
    }
    log_info("net: %u connections made and closed", count);
    socket_close(l);
    GUEST_CHECK(counters_return_to(&before));
    return 0;
}

/* A backtrace through a protocol stack has names. */
GUEST_TEST(net_backtraces_name_the_module)
{
    char name[128];
    for (unsigned i = 0; i < stack_count; i++) {
        symbol_format((uint64_t)stack_by_index(i)->ops->run_timers + 1, name, sizeof(name));
        GUEST_CHECK(!strncmp(name, "module_run_timers+0x1 ", 22));
    }
    return 0;
}

/* A connection in TIME_WAIT is an object that stays for a while, and may. */
static uint64_t heap_objects(void) { return heap_live() - net_time_waits(); }
static uint64_t connections(void) { return net_connections(); }

GUEST_BALANCE("heap objects", heap_objects);
GUEST_BALANCE("connections", connections);
