/* The socket system calls: waiting, addresses in and out, EINTR and SIGPIPE. Families do the rest.
 */
#include "socket_file.h"

#define SOCK_TYPE_MASK  15u
#define SOL_SOCKET      1
#define SO_RCVTIMEO     20
#define SO_SNDTIMEO     21
#define SO_RCVTIMEO_NEW 66
#define SO_SNDTIMEO_NEW 67
#define SO_ERROR        4
#define FIONREAD_WEIR   0x541bu
#define READABLE        (POLLIN | POLLRDHUP | POLLHUP | POLLERR)
#define WRITABLE        (POLLOUT | POLLHUP | POLLERR)

/* ---- as a file ---- */

/* Result of a wait as a call reports it. With a timeout a restart would start the time anew. */
static int wait_result(int error, uint64_t deadline_ns)
{
    if (error == -ETIMEDOUT)
        return -EAGAIN;
    return error == -EINTR && deadline_ns == TIME_FOREVER ? -ERESTARTSYS : error;
}

/* Sleep until one of the events is there. 0 = look again, -EAGAIN at the timeout, -ERESTARTSYS or
 * -EINTR. */
static int socket_wait(struct socket_file *s, unsigned events, uint64_t deadline_ns)
{
    struct wait_queue *q = s->ops->wait_queue(s);

    return wait_result(wait_event_interruptible_timeout(q, s->ops->poll(s) & events, deadline_ns),
                       deadline_ns);
}

static int wait_to_send(struct socket_file *s, struct socket_message *m, uint64_t deadline_ns)
{
    if (!s->ops->wait_to_send)
        return socket_wait(s, WRITABLE, deadline_ns);
    return wait_result(s->ops->wait_to_send(s, m, deadline_ns), deadline_ns);
}

static int wait_to_connect(struct socket_file *s, const struct sockaddr_buf *a,
                           uint64_t deadline_ns)
{
    if (!s->ops->wait_to_connect)
        return socket_wait(s, WRITABLE, deadline_ns);
    return wait_result(s->ops->wait_to_connect(s, a, deadline_ns), deadline_ns);
}

static uint64_t socket_deadline(const uint64_t *timeout_ns)
{
    uint64_t ns = atomic_load_relaxed(timeout_ns);

    return likely(!ns) ? TIME_FOREVER : deadline_after(ns);
}

ssize_t socket_receive_message(struct file *f, struct socket_message *m)
{
    struct socket_file *s = f->private;
    bool wait = !(m->flags & MSG_DONTWAIT) && !file_nonblocking(f);
    bool all = (m->flags & (MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL && s->type == SOCK_STREAM_WEIR;
    unsigned flags = m->flags;
    uint64_t deadline_ns = 0;
    ssize_t done = 0;

    for (;;) {
        ssize_t n;
        int error;

        m->flags = flags;
        n = s->ops->receive(s, m);
        if (n > 0) {
            done += n;
            if (!all || !m->uio->resid || m->files)
                return done;
            continue;
        }
        if (n != -EAGAIN || !wait)
            return done ? done : n;
        if (!deadline_ns)
            deadline_ns = socket_deadline(&s->receive_timeout_ns);
        error = socket_wait(s, READABLE, deadline_ns);
        if (error)
            return done ? done : error;
    }
}

ssize_t socket_send_message(struct file *f, struct socket_message *m)
{
    struct socket_file *s = f->private;
    bool wait = !(m->flags & MSG_DONTWAIT) && !file_nonblocking(f);
    uint64_t deadline_ns = 0;
    ssize_t done = 0, n;

    for (;;) {
        n = s->ops->send(s, m);
        if (n >= 0) {
            done += n;
            if (!m->uio->resid || !wait || s->type != SOCK_STREAM_WEIR)
                return done;
            continue;
        }
        if (n != -EAGAIN || !wait)
            break;
        if (!deadline_ns)
            deadline_ns = socket_deadline(&s->send_timeout_ns);
        n = wait_to_send(s, m, deadline_ns);
        if (n)
            break;
    }
    if (done)
        return done;
    if (n == -EPIPE && !(m->flags & MSG_NOSIGNAL) && s->type != SOCK_DGRAM_WEIR)
        signal_raise(SIGPIPE);
    return n;
}

static ssize_t socket_read(struct file *f, struct uio *u, uint64_t *offset)
{
    struct socket_message m = {.uio = u};
    ssize_t n;

    if (!u->resid)
        return 0;
    n = socket_receive_message(f, &m);
    passed_files_free(m.files);
    return n;
}

static ssize_t socket_write(struct file *f, struct uio *u, uint64_t *offset)
{
    struct socket_message m = {.uio = u};

    return socket_send_message(f, &m);
}

static unsigned socket_file_poll(struct file *f, struct poll_table *pt)
{
    struct socket_file *s = f->private;

    poll_wait(pt, s->ops->wait_queue(s));
    return s->ops->poll(s);
}

static long socket_ioctl(struct file *f, unsigned cmd, uint64_t arg)
{
    struct socket_file *s = f->private;
    int32_t n;

    if (cmd != FIONREAD_WEIR)
        return -ENOTTY;
    n = (int32_t)s->ops->readable_bytes(s);
    return copy_to_user(arg, &n, sizeof(n));
}

static void socket_file_release(struct file *f)
{
    struct socket_file *s = f->private;

    s->ops->release(s);
    kfree(s);
}

const struct file_ops socket_ops = {
    .read = socket_read,
    .write = socket_write,
    .poll = socket_file_poll,
    .ioctl = socket_ioctl,
    .release = socket_file_release,
};

/* The socket behind a descriptor: r->file stays NULL on error, and *error says which. */
static struct socket_file *socket_ref(uint64_t fd, struct file_ref *r, long *error)
{
    *r = file_ref_get(fd);
    *error = -EBADF;
    if (unlikely(!r->file))
        return NULL;
    if (unlikely(r->file->ops != &socket_ops)) {
        file_ref_put(*r);
        *error = -ENOTSOCK;
        return NULL;
    }
    return r->file->private;
}

static long address_from_user(struct sockaddr_buf *a, uint64_t addr, uint64_t len)
{
    if ((int)len < 0 || (uint32_t)len > SOCKADDR_MAX)
        return -EINVAL;
    a->len = (uint32_t)len;
    return len && copy_from_user(a->bytes, addr, a->len) ? -EFAULT : 0;
}

/* As much as the program has room for; the length that it would have been goes back. */
static long address_to_user(const struct sockaddr_buf *a, uint64_t addr, uint64_t len_addr)
{
    uint32_t room;

    if (!addr)
        return 0;
    if (get_user_u32(&room, len_addr))
        return -EFAULT;
    if ((int32_t)room < 0)
        return -EINVAL;
    if (copy_to_user(addr, a->bytes, MIN(room, a->len)))
        return -EFAULT;
    return copy_to_user(len_addr, &a->len, sizeof(a->len));
}

/* ---- making ---- */

static struct socket_file *socket_file_new(int family, int type)
{
    struct socket_file *s = kzalloc(sizeof(*s));

    if (s) {
        s->family = family;
        s->type = type;
        s->ops = family == AF_UNIX_WEIR ? &unix_socket_ops : &inet_socket_ops;
    }
    return s;
}

/* s->private is set: from here on the file owns it. */
static struct file *socket_file_wrap(struct socket_file *s, unsigned flags)
{
    struct file *f = file_alloc(&socket_ops, s, O_RDWR | (flags & O_NONBLOCK));

    if (!f) {
        s->ops->release(s);
        kfree(s);
    }
    return f;
}

static int type_from_user(uint64_t arg, int *type, unsigned *flags)
{
    *type = (int)(arg & SOCK_TYPE_MASK);
    *flags = (unsigned)arg & ~SOCK_TYPE_MASK;
    return *flags & ~(unsigned)(O_NONBLOCK | O_CLOEXEC) ? -EINVAL : 0;
}

long sys_socket(const uint64_t a[6])
{
    struct socket_file *s;
    struct file *f;
    unsigned flags;
    int type, error = type_from_user(a[1], &type, &flags);

    if (error)
        return error;
    s = socket_file_new((int)a[0], type);
    if (!s)
        return -ENOMEM;
    error = s->family == AF_UNIX_WEIR ? unix_socket_create(s, (int)a[2])
                                      : inet_socket_create(s, (int)a[2]);
    if (error) {
        kfree(s);
        return error;
    }
    f = socket_file_wrap(s, flags);
    return f ? fd_install(f, 0, flags & O_CLOEXEC) : -ENOMEM;
}

static int make_pair(int type, unsigned flags, struct file *out[2])
{
    struct socket_file *s = socket_file_new(AF_UNIX_WEIR, type),
                       *t = socket_file_new(AF_UNIX_WEIR, type);
    int error = s && t ? unix_socket_pair(s, t) : -ENOMEM;

    if (error) {
        kfree(s);
        kfree(t);
        return error;
    }
    out[0] = socket_file_wrap(s, flags);
    out[1] = socket_file_wrap(t, flags);
    if (out[0] && out[1])
        return 0;
    for (int i = 0; i < 2; i++) {
        if (out[i])
            file_put(out[i]);
    }
    return -ENOMEM;
}

long sys_socketpair(const uint64_t a[6])
{
    struct file *pair[2];
    unsigned flags;
    int type, fds[2], error = type_from_user(a[1], &type, &flags);

    if (error)
        return error;
    if (a[0] != AF_UNIX_WEIR)
        return a[0] == AF_INET_WEIR ? -EOPNOTSUPP : -EAFNOSUPPORT;
    error = make_pair(type, flags, pair);
    if (error)
        return error;
    fds[0] = fd_install(pair[0], 0, flags & O_CLOEXEC);
    if (fds[0] < 0) {
        file_put(pair[1]);
        return fds[0];
    }
    fds[1] = fd_install(pair[1], 0, flags & O_CLOEXEC);
    if (fds[1] >= 0 && !copy_to_user(a[3], fds, sizeof(fds)))
        return 0;
    error = fds[1] < 0 ? fds[1] : -EFAULT;
    (void)!fd_close(fds[0]);
    if (fds[1] >= 0)
        (void)!fd_close(fds[1]);
    return error;
}

/* ---- names and connections ---- */

long sys_bind(const uint64_t a[6])
{
    struct sockaddr_buf address;
    struct file_ref r;
    long result;
    struct socket_file *s = socket_ref(a[0], &r, &result);

    if (!s)
        return result;
    result = address_from_user(&address, a[1], a[2]);
    if (!result)
        result = s->ops->bind(s, &address);
    file_ref_put(r);
    return result;
}

long sys_listen(const uint64_t a[6])
{
    struct file_ref r;
    long result;
    struct socket_file *s = socket_ref(a[0], &r, &result);

    if (!s)
        return result;
    result = s->ops->listen(s, (int)a[1]);
    file_ref_put(r);
    return result;
}

static long accept_wait(struct file *f, struct socket_file *out, struct sockaddr_buf *peer)
{
    struct socket_file *s = f->private;
    uint64_t deadline_ns = socket_deadline(&s->receive_timeout_ns);
    long result;

    for (;;) {
        result = s->ops->accept(s, out, peer);
        if (result != -EAGAIN || file_nonblocking(f))
            return result;
        result = socket_wait(s, READABLE, deadline_ns);
        if (result)
            return result;
    }
}

/* The number is reserved first: a connection is not taken off the queue for nothing. */
static long accept_into(struct file *f, int fd, unsigned flags, struct sockaddr_buf *peer)
{
    struct socket_file *s = f->private, *out = socket_file_new(s->family, s->type);
    struct file *accepted;
    long result;

    if (!out)
        return -ENOMEM;
    result = accept_wait(f, out, peer);
    if (result) {
        kfree(out);
        return result;
    }
    accepted = socket_file_wrap(out, flags);
    if (!accepted)
        return -ENOMEM;
    fd_set_file(fd, accepted);
    return 0;
}

static long do_accept(uint64_t fd, uint64_t addr, uint64_t len_addr, unsigned flags)
{
    struct sockaddr_buf peer = {.len = 0};
    struct file_ref r;
    long result;
    int new_fd;

    if (flags & ~(unsigned)(O_NONBLOCK | O_CLOEXEC))
        return -EINVAL;
    if (!socket_ref(fd, &r, &result))
        return result;
    new_fd = fd_reserve(0, flags & O_CLOEXEC);
    result = new_fd;
    if (new_fd >= 0) {
        result = accept_into(r.file, new_fd, flags, &peer);
        if (result)
            fd_unreserve(new_fd);
        else if ((result = address_to_user(&peer, addr, len_addr)) != 0)
            (void)!fd_close(new_fd);
        else
            result = new_fd;
    }
    file_ref_put(r);
    return result;
}

long sys_accept(const uint64_t a[6])
{
    return do_accept(a[0], a[1], a[2], 0);
}

long sys_accept4(const uint64_t a[6])
{
    return do_accept(a[0], a[1], a[2], (unsigned)a[3]);
}

static int socket_error_take(struct socket_file *s)
{
    int error = 0;
    size_t len = sizeof(error);

    if (s->ops->get_option(s, SOL_SOCKET, SO_ERROR, &error, &len))
        return 0;
    return -error;
}

static long do_connect(struct file *f, const struct sockaddr_buf *a)
{
    struct socket_file *s = f->private;
    uint64_t deadline_ns = socket_deadline(&s->send_timeout_ns);

    for (;;) {
        long result = s->ops->connect(s, a);
        bool under_way = result == -EINPROGRESS || result == -EALREADY;
        int error;

        /* The end of a connect that was under way is told once as success, as by Linux. */
        if (result == -EISCONN && atomic_exchange(&s->connecting, false))
            return 0;
        if (under_way)
            atomic_store_relaxed(&s->connecting, true);
        if ((!under_way && result != -EAGAIN) || file_nonblocking(f))
            return result;
        error = wait_to_connect(s, a, deadline_ns);
        if (error)
            return error == -EAGAIN ? -EINPROGRESS : error;
        if (!under_way)
            continue;
        error = socket_error_take(s);
        atomic_store_relaxed(&s->connecting, false);
        return error;
    }
}

long sys_connect(const uint64_t a[6])
{
    struct sockaddr_buf address;
    struct file_ref r;
    long result;

    if (!socket_ref(a[0], &r, &result))
        return result;
    result = address_from_user(&address, a[1], a[2]);
    if (!result)
        result = do_connect(r.file, &address);
    file_ref_put(r);
    return result;
}

long sys_shutdown(const uint64_t a[6])
{
    struct file_ref r;
    long result;
    struct socket_file *s = socket_ref(a[0], &r, &result);

    if (!s)
        return result;
    result = a[1] > 2 ? -EINVAL : s->ops->shutdown(s, (int)a[1]);
    file_ref_put(r);
    return result;
}

static long get_name(const uint64_t a[6], bool peer)
{
    struct sockaddr_buf address;
    struct file_ref r;
    long result;
    struct socket_file *s = socket_ref(a[0], &r, &result);

    if (!s)
        return result;
    result = s->ops->name(s, peer, &address);
    file_ref_put(r);
    return result ? result : address_to_user(&address, a[1], a[2]);
}

long sys_getsockname(const uint64_t a[6])
{
    return get_name(a, false);
}

long sys_getpeername(const uint64_t a[6])
{
    return get_name(a, true);
}

/* ---- options ---- */

static uint64_t *timeout_option(struct socket_file *s, int level, int name)
{
    if (level != SOL_SOCKET)
        return NULL;
    if (name == SO_RCVTIMEO || name == SO_RCVTIMEO_NEW)
        return &s->receive_timeout_ns;
    return name == SO_SNDTIMEO || name == SO_SNDTIMEO_NEW ? &s->send_timeout_ns : NULL;
}

static long set_timeout(uint64_t *timeout_ns, const void *value, size_t len)
{
    struct timeval_weir tv;

    if (len < sizeof(tv))
        return -EINVAL;
    memcpy(&tv, value, sizeof(tv));
    if (tv.usec < 0 || tv.usec >= 1000000)
        return -EDOM;
    if (tv.sec < 0)
        tv.sec = tv.usec = 0;
    atomic_store_relaxed(timeout_ns, (uint64_t)MIN(tv.sec, 1000000000L) * NSEC_PER_SEC +
                                         (uint64_t)tv.usec * NSEC_PER_USEC);
    return 0;
}

#define OPTION_MAX 256u

long sys_setsockopt(const uint64_t a[6])
{
    uint8_t value[OPTION_MAX];
    size_t len = (uint32_t)a[4];
    struct file_ref r;
    uint64_t *timeout;
    long result;
    struct socket_file *s = socket_ref(a[0], &r, &result);

    if (!s)
        return result;
    timeout = timeout_option(s, (int)a[1], (int)a[2]);
    if ((int32_t)len < 0)
        result = -EINVAL;
    else if (copy_from_user(value, a[3], MIN(len, sizeof(value))))
        result = -EFAULT;
    else if (timeout)
        result = set_timeout(timeout, value, len);
    else
        result = s->ops->set_option(s, (int)a[1], (int)a[2], value, MIN(len, sizeof(value)));
    file_ref_put(r);
    return result;
}

static long get_option(struct socket_file *s, int level, int name, void *value, size_t *len)
{
    uint64_t *timeout = timeout_option(s, level, name);
    struct timeval_weir tv;

    if (!timeout)
        return s->ops->get_option(s, level, name, value, len);
    tv = (struct timeval_weir){(int64_t)(*timeout / NSEC_PER_SEC),
                               (int64_t)(*timeout % NSEC_PER_SEC / NSEC_PER_USEC)};
    *len = MIN(*len, sizeof(tv));
    memcpy(value, &tv, *len);
    return 0;
}

long sys_getsockopt(const uint64_t a[6])
{
    uint8_t value[OPTION_MAX];
    uint32_t room;
    size_t len;
    struct file_ref r;
    long result;
    struct socket_file *s = socket_ref(a[0], &r, &result);

    if (!s)
        return result;
    if (get_user_u32(&room, a[4])) {
        result = -EFAULT;
    } else if ((int32_t)room < 0) {
        result = -EINVAL;
    } else {
        len = MIN(room, OPTION_MAX);
        result = get_option(s, (int)a[1], (int)a[2], value, &len);
        room = (uint32_t)len;
        if (!result && (copy_to_user(a[3], value, len) || copy_to_user(a[4], &room, sizeof(room))))
            result = -EFAULT;
    }
    file_ref_put(r);
    return result;
}

/* ---- data without control messages ---- */

long sys_sendto(const uint64_t a[6])
{
    struct sockaddr_buf address;
    struct socket_message m = {.flags = (unsigned)a[3]};
    struct iovec_weir one;
    struct uio u;
    struct file_ref r;
    long result;

    if (!socket_ref(a[0], &r, &result))
        return result;
    uio_init_user(&u, &one, a[1], MIN(a[2], IO_MAX));
    m.uio = &u;
    result = 0;
    if (unlikely(a[4] != 0)) {
        m.address = &address;
        result = address_from_user(&address, a[4], a[5]);
    }
    if (!result)
        result = socket_send_message(r.file, &m);
    file_ref_put(r);
    return result;
}

long sys_recvfrom(const uint64_t a[6])
{
    struct sockaddr_buf address = {.len = 0};
    struct socket_message m = {.flags = (unsigned)a[3], .address = a[4] ? &address : NULL};
    struct iovec_weir one;
    struct uio u;
    struct file_ref r;
    long result;

    if (!socket_ref(a[0], &r, &result))
        return result;
    uio_init_user(&u, &one, a[1], MIN(a[2], IO_MAX));
    m.uio = &u;
    result = socket_receive_message(r.file, &m);
    file_ref_put(r);
    passed_files_free(m.files);
    if (result >= 0 && unlikely(a[4] != 0)) {
        long error = address_to_user(&address, a[4], a[5]);

        result = error ? error : result;
    }
    return result;
}
