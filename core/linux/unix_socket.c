/* AF_UNIX sockets: names, connections, options, the end. Data: unix_message.c. */
#include "unix_internal.h"
#include <weir/init.h>

#define SOL_SOCKET   1
#define PATH_OFFSET  2u /* sun_path behind the family */
#define SUN_PATH_MAX 108u
#define NAME_BUCKETS 64u

static spinlock_t unix_lock = SPINLOCK_INIT;
static struct list names[NAME_BUCKETS]; /* u */

static struct unix_socket *unix_new(int type)
{
    struct unix_socket *u = kzalloc(sizeof(*u));

    if (!u)
        return NULL;
    u->refcount = 1;
    u->type = type;
    u->cred = current_process()->cred;
    u->pid = current_process()->pid;
    list_init(&u->name_link);
    list_init(&u->queue);
    list_init(&u->accept_link);
    spin_init(&u->lock);
    wait_queue_init(&u->wait);
    return u;
}

void unix_get(struct unix_socket *u)
{
    atomic_fetch_add(&u->refcount, 1);
}

static void queue_free(struct unix_socket *u)
{
    while (!list_empty(&u->queue)) {
        struct unix_message *m = list_first(&u->queue, struct unix_message, link);

        list_del(&m->link);
        unix_message_free(m);
    }
}

void unix_put(struct unix_socket *u)
{
    if (atomic_fetch_sub(&u->refcount, 1) != 1)
        return;
    queue_free(u);
    kfree(u);
}

void unix_wake(struct unix_socket *u, unsigned events)
{
    if (wait_queue_active(&u->wait))
        wake_events(&u->wait, events, 1);
}

struct unix_socket *unix_peer_get(struct unix_socket *u)
{
    struct unix_socket *peer;

    spin_lock(&unix_lock);
    peer = u->peer;
    if (peer)
        unix_get(peer);
    spin_unlock(&unix_lock);
    return peer;
}

/* ---- names ---- */

static struct list *bucket_of_inode(const struct inode *i)
{
    return &names[((uint64_t)i >> 6) % NAME_BUCKETS];
}

static struct list *bucket_of_abstract(const struct sockaddr_buf *a)
{
    uint32_t h = 2166136261u;

    for (uint32_t i = 0; i < a->len; i++)
        h = (h ^ a->bytes[i]) * 16777619u;
    return &names[h % NAME_BUCKETS];
}

static bool abstract(const struct sockaddr_buf *a)
{
    return a->len > PATH_OFFSET && !a->bytes[PATH_OFFSET];
}

/* Path of the address with its NUL. */
static int path_of(const struct sockaddr_buf *a, char path[SUN_PATH_MAX + 1])
{
    size_t len = a->len - PATH_OFFSET;

    if (a->len <= PATH_OFFSET || len > SUN_PATH_MAX || sockaddr_family(a) != AF_UNIX_WEIR)
        return -EINVAL;
    memcpy(path, a->bytes + PATH_OFFSET, len);
    path[len] = 0;
    return 0;
}

static struct unix_socket *find_abstract_locked(const struct sockaddr_buf *a)
{
    struct unix_socket *u;

    list_for_each_entry (u, bucket_of_abstract(a), name_link) {
        if (!u->inode && u->name.len == a->len && !memcmp(u->name.bytes, a->bytes, a->len))
            return u;
    }
    return NULL;
}

static struct unix_socket *find_inode_locked(const struct inode *i)
{
    struct unix_socket *u;

    list_for_each_entry (u, bucket_of_inode(i), name_link) {
        if (u->inode == i)
            return u;
    }
    return NULL;
}

int unix_find(const struct sockaddr_buf *a, struct unix_socket **out)
{
    const struct cred *c = &current_process()->cred;
    char path[SUN_PATH_MAX + 1];
    struct dentry *base, *d;
    struct inode *i;
    int error = path_of(a, path);

    if (error)
        return error;
    if (abstract(a)) {
        spin_lock(&unix_lock);
        *out = find_abstract_locked(a);
        if (*out)
            unix_get(*out);
        spin_unlock(&unix_lock);
        return *out ? 0 : -ECONNREFUSED;
    }
    base = path_base(AT_FDCWD_WEIR);
    error = vfs_lookup(base, path, 0, c, &d);
    dentry_put(base);
    if (error)
        return error;
    i = dentry_inode(d);
    error = vfs_permission(i, 2, c);
    *out = NULL;
    if (!error) {
        spin_lock(&unix_lock);
        *out = find_inode_locked(i);
        if (*out)
            unix_get(*out);
        spin_unlock(&unix_lock);
        error = *out ? 0 : -ECONNREFUSED;
    }
    dentry_put(d);
    return error;
}

/* Make the socket's inode; it stays in the file system until somebody unlinks it. */
static int make_inode(const struct sockaddr_buf *a, struct inode **out)
{
    const struct cred *c = &current_process()->cred;
    char path[SUN_PATH_MAX + 1];
    struct dentry *base, *d;
    int error = path_of(a, path);

    if (error)
        return error;
    base = path_base(AT_FDCWD_WEIR);
    error = vfs_mknod(base, path,
                      S_IFSOCK | (0777 & ~atomic_load_relaxed(&current_process()->umask)), c);
    if (!error)
        error = vfs_lookup(base, path, VFS_NOFOLLOW, c, &d);
    else if (error == -EEXIST)
        error = -EADDRINUSE;
    dentry_put(base);
    if (error)
        return error;
    *out = dentry_inode(d);
    inode_get(*out);
    dentry_put(d);
    return 0;
}

/* bind without a name chooses an abstract one. */
static void autobind_name(struct sockaddr_buf *a)
{
    static uint32_t serial;
    uint16_t family = AF_UNIX_WEIR;
    char digits[8];

    snprintf(digits, sizeof(digits), "%05x", atomic_fetch_add(&serial, 1) & 0xfffff);
    memcpy(a->bytes, &family, sizeof(family));
    a->bytes[PATH_OFFSET] = 0;
    memcpy(a->bytes + PATH_OFFSET + 1, digits, 5);
    a->len = PATH_OFFSET + 6;
}

static int unix_bind(struct socket_file *s, const struct sockaddr_buf *wanted)
{
    struct unix_socket *u = s->private;
    struct sockaddr_buf a = *wanted;
    struct inode *i = NULL;
    int error = 0;

    if (sockaddr_family(&a) != AF_UNIX_WEIR)
        return -EINVAL;
    if (a.len == PATH_OFFSET)
        autobind_name(&a);
    if (u->name.len)
        return -EINVAL;
    if (!abstract(&a)) {
        error = make_inode(&a, &i);
        if (error)
            return error;
    }
    spin_lock(&unix_lock);
    if (u->name.len) {
        error = -EINVAL;
    } else if (!i && find_abstract_locked(&a)) {
        error = -EADDRINUSE;
    } else {
        u->name = a;
        u->inode = i;
        list_add_tail(i ? bucket_of_inode(i) : bucket_of_abstract(&a), &u->name_link);
        i = NULL;
    }
    spin_unlock(&unix_lock);
    if (i)
        inode_put(i);
    return error;
}

static int unix_name(struct socket_file *s, bool peer, struct sockaddr_buf *out)
{
    struct unix_socket *u = s->private;
    uint16_t family = AF_UNIX_WEIR;
    int error = 0;

    memcpy(out->bytes, &family, sizeof(family));
    out->len = PATH_OFFSET;
    spin_lock(&unix_lock);
    if (peer && !u->peer)
        error = -ENOTCONN;
    else if ((peer ? u->peer : u)->name.len)
        *out = (peer ? u->peer : u)->name;
    spin_unlock(&unix_lock);
    return error;
}

/* ---- connecting ---- */

static int unix_listen(struct socket_file *s, int backlog)
{
    struct unix_socket *u = s->private;
    int error = 0;

    if (u->type == SOCK_DGRAM)
        return -EOPNOTSUPP;
    spin_lock(&unix_lock);
    if (!u->name.len || (u->state != UNIX_NEW && u->state != UNIX_LISTENING)) {
        error = -EINVAL;
    } else {
        u->state = UNIX_LISTENING;
        u->backlog = (unsigned)MIN(MAX(backlog, 0), 4096);
    }
    spin_unlock(&unix_lock);
    return error;
}

/* unix_lock held. */
static void tie_locked(struct unix_socket *a, struct unix_socket *b)
{
    unix_get(a);
    unix_get(b);
    a->peer = b;
    b->peer = a;
    a->peer_cred = b->cred;
    a->peer_pid = b->pid;
    b->peer_cred = a->cred;
    b->peer_pid = a->pid;
    atomic_store_release(&a->state, UNIX_CONNECTED);
    atomic_store_release(&b->state, UNIX_CONNECTED);
}

static int connect_stream(struct unix_socket *u, struct unix_socket *listener)
{
    struct unix_socket *served = unix_new(u->type);
    int error = 0;

    if (!served)
        return -ENOMEM;
    spin_lock(&unix_lock);
    if (u->state != UNIX_NEW) {
        error = u->state == UNIX_CONNECTED ? -EISCONN : -EINVAL;
    } else if (listener->state != UNIX_LISTENING || listener->type != u->type) {
        error = listener->type != u->type ? -EPROTOTYPE : -ECONNREFUSED;
    } else if (listener->queued_count > listener->backlog) {
        error = -EAGAIN;
    } else {
        served->name = listener->name; /* shown, not found: it is in no bucket */
        served->cred = listener->cred;
        served->pid = listener->pid;
        tie_locked(u, served);
        spin_lock(&listener->lock);
        list_add_tail(&listener->queue, &served->accept_link);
        listener->queued_count++;
        spin_unlock(&listener->lock);
        served = NULL;
    }
    spin_unlock(&unix_lock);
    if (served)
        unix_put(served);
    else
        unix_wake(listener, POLLIN | POLLRDNORM);
    return error;
}

static int connect_dgram(struct unix_socket *u, struct unix_socket *to)
{
    struct unix_socket *old;

    if (to && to->type != SOCK_DGRAM)
        return -EPROTOTYPE;
    spin_lock(&unix_lock);
    old = u->peer;
    u->peer = to;
    if (to)
        unix_get(to);
    atomic_store_release(&u->state, to ? UNIX_CONNECTED : UNIX_NEW);
    spin_unlock(&unix_lock);
    if (old)
        unix_put(old);
    return 0;
}

static int unix_connect(struct socket_file *s, const struct sockaddr_buf *a)
{
    struct unix_socket *u = s->private, *to = NULL;
    int error;

    if (u->type == SOCK_DGRAM && sockaddr_family(a) == AF_UNSPEC_WEIR)
        return connect_dgram(u, NULL);
    error = unix_find(a, &to);
    if (error)
        return error;
    error = u->type == SOCK_DGRAM ? connect_dgram(u, to) : connect_stream(u, to);
    if (error == -EAGAIN && !(atomic_load_relaxed(&to->state) == UNIX_LISTENING))
        error = -ECONNREFUSED;
    unix_put(to);
    return error;
}

static int unix_accept(struct socket_file *s, struct socket_file *out, struct sockaddr_buf *peer)
{
    struct unix_socket *u = s->private, *served = NULL;
    uint16_t family = AF_UNIX_WEIR;

    if (u->type == SOCK_DGRAM)
        return -EOPNOTSUPP;
    if (atomic_load_acquire(&u->state) != UNIX_LISTENING)
        return -EINVAL;
    spin_lock(&u->lock);
    if (!list_empty(&u->queue)) {
        served = list_first(&u->queue, struct unix_socket, accept_link);
        list_del(&served->accept_link);
        u->queued_count--;
    }
    spin_unlock(&u->lock);
    if (!served)
        return -EAGAIN;
    out->private = served;
    memcpy(peer->bytes, &family, sizeof(family));
    peer->len = PATH_OFFSET;
    spin_lock(&unix_lock);
    if (served->peer && served->peer->name.len)
        *peer = served->peer->name;
    spin_unlock(&unix_lock);
    unix_wake(u, POLLOUT | POLLWRNORM); /* room in the backlog */
    return 0;
}

static bool backlog_has_room(const struct unix_socket *listener)
{
    return atomic_load_acquire(&listener->state) != UNIX_LISTENING ||
           atomic_load_acquire(&listener->queued_count) <= listener->backlog;
}

static int unix_wait_to_connect(struct socket_file *s, const struct sockaddr_buf *a,
                                uint64_t deadline_ns)
{
    struct unix_socket *listener;
    int error = unix_find(a, &listener);

    if (error)
        return error;
    error =
        wait_event_interruptible_timeout(&listener->wait, backlog_has_room(listener), deadline_ns);
    unix_put(listener);
    return error;
}

/* ---- the rest ---- */

static int unix_shutdown(struct socket_file *s, int how)
{
    struct unix_socket *u = s->private, *peer = unix_peer_get(u);

    if (!peer)
        return -ENOTCONN;
    if (how != 1) {
        atomic_store_release(&u->no_receive, true);
        unix_wake(peer, POLLOUT | POLLERR);
    }
    if (how != 0) {
        atomic_store_release(&u->no_send, true);
        if (u->type != SOCK_DGRAM)
            atomic_store_release(&peer->no_receive, true);
        unix_wake(peer, POLLIN | POLLRDNORM | POLLRDHUP | POLLHUP);
    }
    unix_put(peer);
    unix_wake(u, ~0u);
    return 0;
}

static unsigned unix_poll(struct socket_file *s)
{
    struct unix_socket *u = s->private, *peer;
    bool gone = atomic_load_acquire(&u->peer_gone), room = true;
    unsigned events = 0;

    if (atomic_load_acquire(&u->state) == UNIX_LISTENING)
        return atomic_load_acquire(&u->queued_count) ? POLLIN | POLLRDNORM : 0;
    if (atomic_load_acquire(&u->queued_count) || atomic_load_acquire(&u->no_receive) || gone)
        events |= POLLIN | POLLRDNORM;
    if (atomic_load_acquire(&u->no_receive) || gone)
        events |= POLLRDHUP;
    if (gone || (atomic_load_acquire(&u->no_receive) && atomic_load_acquire(&u->no_send)) ||
        (u->type != SOCK_DGRAM && atomic_load_acquire(&u->state) == UNIX_NEW))
        events |= POLLHUP;
    peer = unix_peer_get(u);
    if (peer) {
        room = unix_has_room(peer);
        unix_put(peer);
    }
    if (room)
        events |= POLLOUT | POLLWRNORM;
    return events;
}

static struct wait_queue *unix_wait_queue(struct socket_file *s)
{
    return &((struct unix_socket *)s->private)->wait;
}

static size_t unix_readable_bytes(struct socket_file *s)
{
    struct unix_socket *u = s->private;
    size_t n = u->queued_bytes;

    if (u->type == SOCK_STREAM)
        return n;
    spin_lock(&u->lock);
    n = list_empty(&u->queue) ? 0 : list_first(&u->queue, struct unix_message, link)->len;
    spin_unlock(&u->lock);
    return n;
}

/* The peer sees the end: EOF for a reader, EPIPE for a writer, a reset if unread data are thrown
 * away. */
static void part_from_peer(struct unix_socket *u, bool unread)
{
    struct unix_socket *peer;

    spin_lock(&unix_lock);
    peer = u->peer;
    u->peer = NULL;
    spin_unlock(&unix_lock);
    if (!peer)
        return;
    if (u->type != SOCK_DGRAM) {
        if (unread)
            atomic_store_release(&peer->reset, true);
        atomic_store_release(&peer->peer_gone, true);
        unix_wake(peer, ~0u);
    }
    unix_put(peer);
}

static void unix_close(struct unix_socket *u)
{
    struct list left;
    struct inode *i;
    bool listening, unread;

    list_init(&left);
    spin_lock(&unix_lock);
    listening = u->state == UNIX_LISTENING;
    i = u->inode;
    u->inode = NULL;
    list_del(&u->name_link);
    spin_lock(&u->lock);
    atomic_store_release(&u->state, UNIX_CLOSED);
    list_splice_tail(&left, &u->queue);
    u->queued_count = u->queued_bytes = 0;
    spin_unlock(&u->lock);
    spin_unlock(&unix_lock);
    unread = !listening && !list_empty(&left);
    while (!list_empty(&left)) {
        struct list *first = left.next;

        list_del(first);
        if (listening)
            unix_close(list_entry(first, struct unix_socket, accept_link)); /* at most this deep */
        else
            unix_message_free(list_entry(first, struct unix_message, link));
    }
    part_from_peer(u, unread);
    if (i)
        inode_put(i);
    unix_wake(u, ~0u);
    unix_put(u);
}

static void unix_release(struct socket_file *s)
{
    unix_close(s->private);
}

enum {
    SO_REUSEADDR = 2,
    SO_TYPE = 3,
    SO_ERROR = 4,
    SO_SNDBUF = 7,
    SO_RCVBUF = 8,
    SO_PASSCRED = 16,
    SO_PEERCRED = 17,
    SO_ACCEPTCONN = 30,
    SO_PROTOCOL = 38,
    SO_DOMAIN = 39
};

static int unix_set_option(struct socket_file *s, int level, int name, const void *value,
                           size_t len)
{
    return level == SOL_SOCKET ? 0 : -EOPNOTSUPP;
}

static int unix_get_option(struct socket_file *s, int level, int name, void *value, size_t *len)
{
    struct unix_socket *u = s->private;
    struct {
        int pid;
        uint32_t uid, gid;
    } cred = {u->peer_pid, u->peer_cred.uid, u->peer_cred.gid};
    int v = 0;

    if (level != SOL_SOCKET)
        return -EOPNOTSUPP;
    if (name == SO_PEERCRED) {
        *len = MIN(*len, sizeof(cred));
        memcpy(value, &cred, *len);
        return 0;
    }
    if (name == SO_TYPE)
        v = u->type;
    else if (name == SO_DOMAIN)
        v = AF_UNIX_WEIR;
    else if (name == SO_SNDBUF || name == SO_RCVBUF)
        v = QUEUE_BYTES;
    else if (name == SO_ACCEPTCONN)
        v = u->state == UNIX_LISTENING;
    else if (name != SO_ERROR && name != SO_PASSCRED && name != SO_PROTOCOL && name != SO_REUSEADDR)
        return -ENOPROTOOPT;
    *len = MIN(*len, sizeof(v));
    memcpy(value, &v, *len);
    return 0;
}

const struct socket_family_ops unix_socket_ops = {
    .bind = unix_bind,
    .listen = unix_listen,
    .accept = unix_accept,
    .connect = unix_connect,
    .send = unix_send,
    .receive = unix_receive,
    .shutdown = unix_shutdown,
    .name = unix_name,
    .set_option = unix_set_option,
    .get_option = unix_get_option,
    .poll = unix_poll,
    .wait_queue = unix_wait_queue,
    .wait_to_send = unix_wait_to_send,
    .wait_to_connect = unix_wait_to_connect,
    .readable_bytes = unix_readable_bytes,
    .release = unix_release,
};

int unix_socket_create(struct socket_file *s, int protocol)
{
    if (s->type != SOCK_STREAM && s->type != SOCK_DGRAM && s->type != SOCK_SEQPACKET)
        return -ESOCKTNOSUPPORT;
    if (protocol && protocol != AF_UNIX_WEIR)
        return -EPROTONOSUPPORT;
    s->private = unix_new(s->type);
    return s->private ? 0 : -ENOMEM;
}

int unix_socket_pair(struct socket_file *a, struct socket_file *b)
{
    int error = unix_socket_create(a, 0);

    if (!error)
        error = unix_socket_create(b, 0);
    if (error) {
        if (a->private)
            unix_put(a->private);
        return error;
    }
    spin_lock(&unix_lock);
    tie_locked(a->private, b->private);
    spin_unlock(&unix_lock);
    return 0;
}

static void unix_init(void)
{
    for (unsigned i = 0; i < NAME_BUCKETS; i++)
        list_init(&names[i]);
}
INIT_CALL(INIT_CORE, unix_init);
