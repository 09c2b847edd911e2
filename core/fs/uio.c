#include <weir/uio.h>
#include <weir/errno.h>
#include <weir/string.h>
#include <weir/usercopy.h>

void uio_init_kernel(struct uio *u, struct iovec_weir *one, void *buf, size_t len)
{
    *one = (struct iovec_weir){ (uint64_t)buf, len };
    *u = (struct uio){ .iov = one, .count = 1, .resid = len };
}
void uio_init_user(struct uio *u, struct iovec_weir *one, uint64_t addr, size_t len)
{
    *one = (struct iovec_weir){ addr, len };
    *u = (struct uio){ .iov = one, .count = 1, .resid = len, .user = true };
}

/* The present piece, at most n bytes; skips empty vectors. 0 = nothing left. */
static size_t piece(struct uio *u, size_t n, uint64_t *at)
{
    while (u->count && u->offset >= u->iov->len) {
        u->iov++;
        u->count--;
        u->offset = 0;
    }
    if (!u->count)
        return 0;
    *at = u->iov->base + u->offset;
    return MIN(n, u->iov->len - u->offset);
}
static void advance(struct uio *u, size_t n)
{
    u->offset += n;
    u->resid -= n;
}

size_t uio_copy_out(struct uio *u, const void *src, size_t n)
{
    size_t done = 0;
    n = MIN(n, u->resid);
    while (done < n) {
        uint64_t at;
        size_t len = piece(u, n - done, &at), copied = len;
        if (!len)
            break;
        if (u->user)
            copied = copy_to_user_partial(at, (const char *)src + done, len);
        else
            memcpy((void *)at, (const char *)src + done, len);
        advance(u, copied);
        done += copied;
        if (copied < len)
            break;
    }
    return done;
}
size_t uio_copy_in(struct uio *u, void *dst, size_t n)
{
    size_t done = 0;
    n = MIN(n, u->resid);
    while (done < n) {
        uint64_t at;
        size_t len = piece(u, n - done, &at), copied = len;
        if (!len)
            break;
        if (u->user)
            copied = copy_from_user_partial((char *)dst + done, at, len);
        else
            memcpy((char *)dst + done, (const void *)at, len);
        advance(u, copied);
        done += copied;
        if (copied < len)
            break;
    }
    return done;
}
size_t uio_zero_out(struct uio *u, size_t n)
{
    size_t done = 0;
    n = MIN(n, u->resid);
    while (done < n) {
        uint64_t at;
        size_t len = piece(u, n - done, &at);
        if (!len)
            break;
        if (!u->user)
            memset((void *)at, 0, len);
        else if (zero_user(at, len))
            break;
        advance(u, len);
        done += len;
    }
    return done;
}

int uio_prefault(struct uio *u, size_t n, bool write)
{
    if (!u->user)
        return 0;
    struct uio ahead = *u;
    n = MIN(n, u->resid);
    for (size_t done = 0; done < n;) {
        uint64_t at;
        size_t len = piece(&ahead, n - done, &at);
        if (!len)
            break;
        for (uint64_t page = at; page < at + len; page = ALIGN_DOWN(page, 4096ULL) + 4096) {
            char byte;
            if (copy_from_user(&byte, page, 1))
                return -EFAULT;
            /* Writing the byte back breaks copy-on-write; another thread that stores to it at this very
             * moment races with its own read(), whose outcome it cannot foresee anyway. */
            if (write && copy_to_user(page, &byte, 1))
                return -EFAULT;
        }
        advance(&ahead, len);
        done += len;
    }
    return 0;
}
