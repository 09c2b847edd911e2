/* AF_UNIX data: messages from a sender to the receiver's queue, and out of it. */
#include "unix_internal.h"

#define CHUNK_MAX        32768u /* most of a stream write in one message */
#define DGRAM_QUEUE_MOST 64u

void unix_message_free(struct unix_message *m)
{
    passed_files_free(m->files);
    kfree(m->from);
    kfree(m);
}

/* ---- sending ---- */

bool unix_has_room(const struct unix_socket *to)
{
    if (to->type == SOCK_DGRAM)
        return atomic_load_acquire(&to->queued_count) < DGRAM_QUEUE_MOST &&
               atomic_load_acquire(&to->queued_bytes) < QUEUE_BYTES;
    return atomic_load_acquire(&to->queued_bytes) < QUEUE_BYTES;
}

static int message_make(struct unix_socket *u, struct socket_message *m, struct unix_message **out)
{
    size_t len = u->type == SOCK_STREAM ? MIN(m->uio->resid, (size_t)CHUNK_MAX) : m->uio->resid;
    struct unix_message *msg;

    if (len > QUEUE_BYTES)
        return -EMSGSIZE;
    msg = kmalloc(sizeof(*msg) + len);
    if (!msg)
        return -ENOBUFS;
    *msg = (struct unix_message){.len = (uint32_t)len};
    list_init(&msg->link);
    if (uio_copy_in(m->uio, msg->data, len) < len) {
        kfree(msg);
        return -EFAULT;
    }
    if (u->type == SOCK_DGRAM && u->name.len) {
        msg->from = kmalloc(sizeof(*msg->from));
        if (msg->from)
            *msg->from = u->name;
    }
    *out = msg;
    return 0;
}

/* The socket to send to, referenced: the given address's, or the peer. */
static int unix_target(struct unix_socket *u, struct socket_message *m, struct unix_socket **to)
{
    if (u->type == SOCK_DGRAM && m->address && m->address->len)
        return unix_find(m->address, to);
    if (m->address && m->address->len && u->type == SOCK_STREAM)
        return u->state == UNIX_CONNECTED ? -EISCONN : -EOPNOTSUPP;
    *to = unix_peer_get(u);
    if (!*to)
        return -ENOTCONN;
    return 0;
}

static int send_allowed(const struct unix_socket *u, const struct unix_socket *to)
{
    if (atomic_load_acquire(&u->no_send))
        return -EPIPE;
    if (u->type == SOCK_DGRAM)
        return to->type != SOCK_DGRAM                           ? -EPROTOTYPE
               : atomic_load_acquire(&to->state) == UNIX_CLOSED ? -ECONNREFUSED
               : atomic_load_acquire(&to->no_receive)           ? -EPIPE
                                                                : 0;
    return atomic_load_acquire(&u->peer_gone) || atomic_load_acquire(&to->no_receive) ? -EPIPE : 0;
}

static ssize_t unix_send_to(struct unix_socket *u, struct unix_socket *to, struct socket_message *m)
{
    struct unix_message *msg;
    int error = send_allowed(u, to);
    ssize_t len;

    if (error)
        return error;
    if (u->type == SOCK_STREAM && !m->uio->resid)
        return 0;
    if (!unix_has_room(to))
        return -EAGAIN;
    error = message_make(u, m, &msg);
    if (error)
        return error;
    len = msg->len; /* once queued it is the receiver's */
    spin_lock(&to->lock);
    if (atomic_load_relaxed(&to->state) == UNIX_CLOSED) {
        error = u->type == SOCK_DGRAM ? -ECONNREFUSED : -EPIPE;
    } else {
        msg->files = m->files;
        m->files = NULL;
        list_add_tail(&to->queue, &msg->link);
        to->queued_bytes += msg->len;
        to->queued_count++;
    }
    spin_unlock(&to->lock);
    if (error) {
        unix_message_free(msg);
        return error;
    }
    unix_wake(to, POLLIN | POLLRDNORM);
    return len;
}

ssize_t unix_send(struct socket_file *s, struct socket_message *m)
{
    struct unix_socket *u = s->private, *to;
    ssize_t result;

    if (m->flags & MSG_OOB)
        return -EOPNOTSUPP;
    result = unix_target(u, m, &to);
    if (result)
        return result;
    result = unix_send_to(u, to, m);
    unix_put(to);
    return result;
}

/* A stream's reader wakes its peer; a datagram's reader knows no sender, so senders wait on its own
 * queue. */
int unix_wait_to_send(struct socket_file *s, struct socket_message *m, uint64_t deadline_ns)
{
    struct unix_socket *u = s->private, *to;
    struct wait_queue *q;
    int error = (int)unix_target(u, m, &to);

    if (error)
        return error;
    q = u->type == SOCK_DGRAM ? &to->wait : &u->wait;
    error =
        wait_event_interruptible_timeout(q, unix_has_room(to) || send_allowed(u, to), deadline_ns);
    unix_put(to);
    return error;
}

/* ---- receiving ---- */

/* Take the first message off. A peek puts it back. */
static struct unix_message *message_next(struct unix_socket *u)
{
    struct unix_message *m = NULL;

    spin_lock(&u->lock);
    if (!list_empty(&u->queue)) {
        m = list_first(&u->queue, struct unix_message, link);
        list_del(&m->link);
        u->queued_count--;
    }
    spin_unlock(&u->lock);
    return m;
}

static void message_back(struct unix_socket *u, struct unix_message *m)
{
    spin_lock(&u->lock);
    list_add(&u->queue, &m->link);
    u->queued_count++;
    spin_unlock(&u->lock);
}

static void bytes_taken(struct unix_socket *u, uint32_t n)
{
    spin_lock(&u->lock);
    u->queued_bytes -= n;
    spin_unlock(&u->lock);
}

/* What an empty queue means. */
static ssize_t nothing_to_read(struct unix_socket *u)
{
    if (atomic_load_acquire(&u->no_receive))
        return 0;
    if (u->type == SOCK_DGRAM)
        return -EAGAIN;
    if (atomic_load_acquire(&u->state) != UNIX_CONNECTED)
        return u->type == SOCK_STREAM ? -EINVAL : -ENOTCONN;
    if (atomic_exchange(&u->reset, false))
        return -ECONNRESET;
    return atomic_load_acquire(&u->peer_gone) ? 0 : -EAGAIN;
}

/* Copy from one message taken off the queue. Bytes, or -EFAULT. */
static ssize_t message_copy(struct unix_message *m, struct socket_message *to)
{
    size_t n = MIN((size_t)(m->len - m->taken), to->uio->resid);

    return uio_copy_out(to->uio, m->data + m->taken, n) < n ? -EFAULT : (ssize_t)n;
}

static ssize_t receive_datagram(struct unix_socket *u, struct unix_message *msg,
                                struct socket_message *m)
{
    bool cut = msg->len > m->uio->resid, whole = m->flags & MSG_TRUNC;
    ssize_t n = message_copy(msg, m);

    if (m->address && msg->from)
        *m->address = *msg->from;
    if (m->flags & MSG_PEEK) {
        message_back(u, msg);
    } else {
        bytes_taken(u, msg->len);
        m->files = msg->files;
        msg->files = NULL;
    }
    if (n >= 0 && whole)
        n = msg->len;
    m->flags = (cut ? MSG_TRUNC : 0) | (u->type == SOCK_SEQPACKET ? MSG_EOR : 0);
    return n;
}

/* As much as there is, across messages, but not across descriptors. */
static ssize_t receive_stream(struct unix_socket *u, struct unix_message *msg,
                              struct socket_message *m)
{
    ssize_t done = 0, n;

    if (m->flags & MSG_PEEK) {
        n = message_copy(msg, m);
        message_back(u, msg);
        return n;
    }
    for (;;) {
        n = message_copy(msg, m);
        if (n < 0) {
            message_back(u, msg);
            return done ? done : n;
        }
        done += n;
        msg->taken += (uint32_t)n;
        bytes_taken(u, (uint32_t)n);
        if (msg->files) {
            m->files = msg->files;
            msg->files = NULL;
        }
        if (msg->taken < msg->len) {
            message_back(u, msg);
            return done;
        }
        unix_message_free(msg);
        if (m->files || !m->uio->resid)
            return done;
        msg = message_next(u);
        if (!msg)
            return done;
        if (msg->files) { /* begins a read of its own */
            message_back(u, msg);
            return done;
        }
    }
}

ssize_t unix_receive(struct socket_file *s, struct socket_message *m)
{
    struct unix_socket *u = s->private, *peer;
    struct unix_message *msg;
    ssize_t n;

    if (m->flags & MSG_OOB)
        return -EOPNOTSUPP;
    if (m->address)
        m->address->len = 0;
    msg = message_next(u);
    if (!msg) {
        m->flags = 0;
        return nothing_to_read(u);
    }
    if (u->type == SOCK_STREAM) {
        n = receive_stream(u, msg, m);
        m->flags = 0;
    } else {
        bool peek = m->flags & MSG_PEEK;

        n = receive_datagram(u, msg, m);
        if (!peek)
            unix_message_free(msg);
    }
    peer = unix_peer_get(u);
    if (peer) {
        unix_wake(peer, POLLOUT | POLLWRNORM);
        unix_put(peer);
    }
    if (u->type == SOCK_DGRAM)
        unix_wake(u, POLLOUT | POLLWRNORM); /* senders without a connection wait here */
    return n;
}
