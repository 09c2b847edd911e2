/* sendmsg and recvmsg, one or many, and descriptors in control messages (SCM_RIGHTS). */
#include "socket_file.h"

#define SOL_SOCKET      1
#define SCM_RIGHTS      1
#define SCM_CREDENTIALS 2
#define CONTROL_MAX     20480u

struct msghdr_user {
    uint64_t name;
    uint32_t name_len, pad0;
    uint64_t iov, iov_len, control, control_len;
    uint32_t flags, pad1;
};
struct mmsghdr_user {
    struct msghdr_user hdr;
    uint32_t len, pad;
};
struct cmsghdr_user {
    uint64_t len;
    int32_t level, type;
};
_Static_assert(sizeof(struct msghdr_user) == 56, "Linux struct msghdr");

void passed_files_free(struct passed_files *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->count; i++)
        file_put(p->files[i]);
    kfree(p);
}

/* Add the descriptors of one SCM_RIGHTS message. */
static int files_gather(struct passed_files **list, const int *fds, unsigned count)
{
    unsigned had = *list ? (*list)->count : 0;
    struct passed_files *p;

    if (had + count > SCM_MAX_FD)
        return -EINVAL;
    p = krealloc(*list, *list ? sizeof(*p) + had * sizeof(p->files[0]) : 0,
                 sizeof(*p) + (had + count) * sizeof(p->files[0]));
    if (!p)
        return -ENOMEM;
    p->count = had;
    *list = p;
    for (unsigned i = 0; i < count; i++) {
        struct file *f = fd_get(fds[i]);

        if (!f)
            return -EBADF;
        p->files[p->count++] = f;
    }
    return 0;
}

static int control_parse(const uint8_t *control, size_t len, struct passed_files **files)
{
    size_t at = 0;

    while (len - at >= sizeof(struct cmsghdr_user)) {
        struct cmsghdr_user h;
        int error = 0;

        memcpy(&h, control + at, sizeof(h));
        if (h.len < sizeof(h) || h.len > len - at)
            return -EINVAL;
        if (h.level == SOL_SOCKET && h.type == SCM_RIGHTS)
            error = files_gather(files, (const int *)(control + at + sizeof(h)),
                                 (unsigned)(h.len - sizeof(h)) / 4);
        else if (h.level == SOL_SOCKET && h.type != SCM_CREDENTIALS)
            error = -EINVAL;
        if (error)
            return error;
        at += ALIGN_UP(h.len, 8UL);
        if (at > len)
            break;
    }
    return 0;
}

static int control_from_user(uint64_t addr, uint64_t len, struct passed_files **files)
{
    uint8_t *control;
    int error;

    *files = NULL;
    if (!addr || len < sizeof(struct cmsghdr_user))
        return 0;
    if (len > CONTROL_MAX)
        return -ENOBUFS;
    control = kmalloc(len);
    if (!control)
        return -ENOMEM;
    error = copy_from_user(control, addr, len) ? -EFAULT : control_parse(control, len, files);
    kfree(control);
    if (error) {
        passed_files_free(*files);
        *files = NULL;
    }
    return error;
}

static struct file *message_socket(uint64_t fd, struct file_ref *r, long *error)
{
    *r = file_ref_get(fd);
    *error = -EBADF;
    if (!r->file)
        return NULL;
    if (r->file->ops == &socket_ops)
        return r->file;
    file_ref_put(*r);
    *error = -ENOTSOCK;
    return NULL;
}

/* The address is large beside the frame: on the heap with the list of vectors. */
struct message_buffers {
    struct iovec_list iov;
    struct sockaddr_buf address;
};

static long send_one(struct file *f, const struct msghdr_user *h, unsigned flags)
{
    struct message_buffers *b = kmalloc(sizeof(*b));
    struct socket_message m = {.flags = flags};
    long result;

    if (!b)
        return -ENOMEM;
    b->address.len = h->name ? h->name_len : 0;
    result = -EINVAL;
    if (b->address.len > SOCKADDR_MAX)
        goto out;
    result = -EFAULT;
    if (b->address.len && copy_from_user(b->address.bytes, h->name, b->address.len))
        goto out;
    result = control_from_user(h->control, h->control_len, &m.files);
    if (result)
        goto out;
    result = iovec_get(&b->iov, h->iov, h->iov_len);
    if (!result) {
        m.uio = &b->iov.uio;
        m.address = b->address.len ? &b->address : NULL;
        result = socket_send_message(f, &m);
        iovec_put(&b->iov);
    }
    passed_files_free(m.files);
out:
    kfree(b);
    return result;
}

long sys_sendmsg(const uint64_t a[6])
{
    struct msghdr_user h;
    struct file_ref r;
    long result;
    struct file *f = message_socket(a[0], &r, &result);

    if (!f)
        return result;
    result = copy_from_user(&h, a[1], sizeof(h)) ? -EFAULT : send_one(f, &h, (unsigned)a[2]);
    file_ref_put(r);
    return result;
}

long sys_sendmmsg(const uint64_t a[6])
{
    struct file_ref r;
    long result;
    struct file *f = message_socket(a[0], &r, &result);
    unsigned done = 0, count = MIN((unsigned)a[2], (unsigned)IOV_MAX_WEIR);

    if (!f)
        return result;
    for (result = 0; done < count; done++) {
        uint64_t at = a[1] + done * sizeof(struct mmsghdr_user);
        struct msghdr_user h;
        uint32_t sent;

        result = copy_from_user(&h, at, sizeof(h)) ? -EFAULT : send_one(f, &h, (unsigned)a[3]);
        if (result < 0)
            break;
        sent = (uint32_t)result;
        result = copy_to_user(at + offsetof(struct mmsghdr_user, len), &sent, sizeof(sent));
        if (result)
            break;
    }
    file_ref_put(r);
    return done ? (long)done : result;
}

/* Give the received files numbers and tell them; what has no room is dropped (MSG_CTRUNC). */
static long files_to_user(struct passed_files *p, struct msghdr_user *h, bool cloexec)
{
    struct cmsghdr_user c = {.level = SOL_SOCKET, .type = SCM_RIGHTS};
    uint64_t room = h->control_len > sizeof(c) ? (h->control_len - sizeof(c)) / 4 : 0;
    unsigned given = 0;

    while (h->control && given < p->count && given < room) {
        int fd = fd_reserve(0, cloexec);

        if (fd < 0)
            break;
        if (copy_to_user(h->control + sizeof(c) + given * 4, &fd, sizeof(fd))) {
            fd_unreserve(fd);
            break;
        }
        file_get(p->files[given]);
        fd_set_file(fd, p->files[given++]);
    }
    if (given < p->count)
        h->flags |= MSG_CTRUNC;
    if (!given) {
        h->control_len = 0;
        return 0;
    }
    c.len = sizeof(c) + given * 4;
    if (copy_to_user(h->control, &c, sizeof(c)))
        return -EFAULT;
    h->control_len = MIN(h->control_len, ALIGN_UP(c.len, 8UL));
    return 0;
}

static long message_results(struct msghdr_user *h, struct socket_message *m, unsigned flags)
{
    h->flags = m->flags & (MSG_TRUNC | MSG_EOR);
    if (m->files) {
        long error = files_to_user(m->files, h, flags & MSG_CMSG_CLOEXEC);

        if (error)
            return error;
    } else {
        h->control_len = 0;
    }
    if (h->name) {
        if (copy_to_user(h->name, m->address->bytes, MIN(h->name_len, m->address->len)))
            return -EFAULT;
        h->name_len = m->address->len;
    }
    return 0;
}

/* The header is changed where it is reported: name length, control length, flags. */
static long receive_one(struct file *f, struct msghdr_user *h, unsigned flags)
{
    struct message_buffers *b = kmalloc(sizeof(*b));
    struct socket_message m = {.flags = flags & ~MSG_CMSG_CLOEXEC};
    long result;

    if (!b)
        return -ENOMEM;
    b->address.len = 0;
    m.address = &b->address;
    result = iovec_get(&b->iov, h->iov, h->iov_len);
    if (!result) {
        m.uio = &b->iov.uio;
        result = socket_receive_message(f, &m);
        iovec_put(&b->iov);
        if (result >= 0) {
            long error = message_results(h, &m, flags);

            result = error ? error : result;
        }
        passed_files_free(m.files);
    }
    kfree(b);
    return result;
}

long sys_recvmsg(const uint64_t a[6])
{
    struct msghdr_user h;
    struct file_ref r;
    long result;
    struct file *f = message_socket(a[0], &r, &result);

    if (!f)
        return result;
    result = copy_from_user(&h, a[1], sizeof(h)) ? -EFAULT : receive_one(f, &h, (unsigned)a[2]);
    if (result >= 0 && copy_to_user(a[1], &h, sizeof(h)))
        result = -EFAULT;
    file_ref_put(r);
    return result;
}

long sys_recvmmsg(const uint64_t a[6])
{
    struct file_ref r;
    uint64_t deadline_ns = TIME_FOREVER, ns;
    long result;
    struct file *f;
    unsigned done = 0, count = MIN((unsigned)a[2], (unsigned)IOV_MAX_WEIR), flags = (unsigned)a[3];

    if (a[4]) {
        result = timespec_get(a[4], &ns);
        if (result)
            return result;
        deadline_ns = deadline_after(ns);
    }
    f = message_socket(a[0], &r, &result);
    if (!f)
        return result;
    for (result = 0; done < count; done++) {
        uint64_t at = a[1] + done * sizeof(struct mmsghdr_user);
        struct mmsghdr_user h;

        if (copy_from_user(&h, at, sizeof(h))) {
            result = -EFAULT;
            break;
        }
        result = receive_one(f, &h.hdr, flags & ~MSG_WAITFORONE);
        if (result < 0)
            break;
        h.len = (uint32_t)result;
        result = copy_to_user(at, &h, sizeof(h));
        if (result)
            break;
        if (flags & MSG_WAITFORONE)
            flags |= MSG_DONTWAIT;
        if (clock_monotonic_ns() >= deadline_ns) {
            done++;
            break;
        }
    }
    file_ref_put(r);
    return done ? (long)done : result;
}
