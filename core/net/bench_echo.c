/*
 * `bench=echo`: TCP echo on port 7, sink on 9, daytime on 13, source on 19, served by kernel threads, so that the path from the
 * wire to a socket can be driven from outside without any program. Ends with the power button.
 */
#include <weir/bench.h>
#include <weir/cmdline.h>
#include "core/net/net_internal.h"

#define BUFFER_BYTES 16384
#define REPORT_NS (10 * NSEC_PER_SEC)

struct service {
    const char *name;
    uint16_t port;
    void (*serve)(struct socket *s, uint8_t *buffer);
};
struct connection {
    const struct service *service;
    struct socket *socket;
};
static uint32_t connections;

static void wait_for(struct socket *s, unsigned events)
{
    wait_event(socket_wait_queue(s), socket_poll(s) & (events | POLLERR | POLLHUP));
}

static ssize_t receive(struct socket *s, void *buffer, size_t len)
{
    for (;;) {
        struct iovec_weir iov;
        struct uio u;
        uio_init_kernel(&u, &iov, buffer, len);
        ssize_t n = socket_receive(s, &u, 0, NULL);
        if (n != -EAGAIN)
            return n;
        wait_for(s, POLLIN | POLLRDHUP);
    }
}

static bool send_all(struct socket *s, const void *buffer, size_t len)
{
    struct iovec_weir iov;
    struct uio u;
    uio_init_kernel(&u, &iov, (void *)(uintptr_t)buffer, len);
    while (u.resid) {
        ssize_t n = socket_send(s, &u, 0, NULL);
        if (n == -EAGAIN)
            wait_for(s, POLLOUT);
        else if (n < 0)
            return false;
    }
    return true;
}

static void serve_echo(struct socket *s, uint8_t *buffer)
{
    ssize_t n;
    while ((n = receive(s, buffer, BUFFER_BYTES)) > 0 && send_all(s, buffer, (size_t)n))
        cond_resched();
}

static void serve_sink(struct socket *s, uint8_t *buffer)
{
    while (receive(s, buffer, BUFFER_BYTES) > 0)
        cond_resched();
}

static void serve_source(struct socket *s, uint8_t *buffer)
{
    /* A pattern with a long period, so that a lost, doubled or swapped piece shows in a hash. */
    for (uint32_t block = 0;; block++) {
        for (unsigned i = 0; i < BUFFER_BYTES / 4; i++) {
            uint32_t v = block * (BUFFER_BYTES / 4) + i;
            memcpy(buffer + 4 * i, &v, 4);
        }
        if (!send_all(s, buffer, BUFFER_BYTES))
            return;
        cond_resched();
    }
}

/* One short answer, and we close first: our side keeps the TIME_WAIT. */
static void serve_daytime(struct socket *s, uint8_t *buffer)
{
    int n = scnprintf((char *)buffer, BUFFER_BYTES, "%lu\n", (unsigned long)(clock_realtime_ns() / NSEC_PER_SEC));
    (void)send_all(s, buffer, (size_t)n);
}

static const struct service services[] = {
    { "echo", 7, serve_echo }, { "sink", 9, serve_sink }, { "daytime", 13, serve_daytime }, { "source", 19, serve_source },
};

static void connection_thread(void *arg)
{
    struct connection *c = arg;
    uint8_t *buffer = kmalloc(BUFFER_BYTES);
    int one = 1;
    if (buffer && !socket_set_option(c->socket, 6, 1, &one, sizeof(one)))
        c->service->serve(c->socket, buffer);
    kfree(buffer);
    socket_close(c->socket);
    kfree(c);
    atomic_fetch_sub(&connections, 1);
    thread_exit();
}

static void start_connection(const struct service *service, struct socket *s)
{
    struct connection *c = kmalloc(sizeof(*c));
    struct thread *t = NULL;
    if (c) {
        *c = (struct connection){ service, s };
        t = thread_create(service->name, connection_thread, c);
    }
    if (!t) {
        kfree(c);
        socket_close(s);
        return;
    }
    atomic_fetch_add(&connections, 1);
    thread_start(t);
    thread_put(t);
}

static void listen_thread(void *arg)
{
    const struct service *service = arg;
    struct socket *l, *s;
    struct socket_address a = { .family = AF_INET_WEIR, .port = service->port };
    int one = 1;
    if (socket_create(AF_INET_WEIR, SOCK_STREAM_WEIR, &l) || socket_set_option(l, 1, 2, &one, sizeof(one)) ||
        socket_bind(l, &a) || socket_listen(l, 4096)) {
        log_error("bench: port %u cannot be served", service->port);
        thread_exit();
    }
    static unsigned listening; /* a */
    if (atomic_fetch_add(&listening, 1) + 1 == ARRAY_SIZE(services))
        log_info("bench: echo on port 7, sink on 9, source on 19"); /* who waits for this line may connect now */
    for (;;) {
        int r = socket_accept(l, &s, NULL);
        if (r == -EAGAIN)
            wait_for(l, POLLIN);
        else if (!r)
            start_connection(service, s);
    }
}

/* Counters to the console in one line when they have moved: leak tests read them. */
static void report_thread(void *arg)
{
    static char text[4096];
    uint64_t before = 0;
    uint64_t period = cmdline_u64("bench.report_ms", 0) * NSEC_PER_MSEC;
    if (!period)
        period = REPORT_NS;
    for (;;) {
        sleep_until_ns(clock_monotonic_ns() + period);
        uint64_t now = net_counters.rx_frames;
        if (now == before)
            continue;
        before = now;
        size_t n = (size_t)scnprintf(text, sizeof(text), "bench: connections %u; ", atomic_load_relaxed(&connections));
        n += net_print_counters(text + n, sizeof(text) - n);
        char *each_stack = strstr(text, "\nstack ");
        if (each_stack)
            n = (size_t)(each_stack - text) + 1; /* their sums are enough */
        for (size_t i = 0; i + 1 < n; i++)
            text[i] = text[i] == '\n' ? ';' : text[i];
        console_write(text, n);
    }
}

static void start_thread(const char *name, void (*fn)(void *), const void *arg)
{
    struct thread *t = thread_create(name, fn, (void *)(uintptr_t)arg);
    if (!t)
        panic("bench: no memory for thread %s", name);
    thread_start(t);
    thread_put(t);
}

int bench_echo_start(const char *options)
{
    if (*options) {
        log_error("bench=echo:%s: it takes no options", options);
        return -EINVAL;
    }
    for (size_t i = 0; i < ARRAY_SIZE(services); i++)
        start_thread(services[i].name, listen_thread, &services[i]);
    start_thread("report", report_thread, NULL);
    return 0;
}
