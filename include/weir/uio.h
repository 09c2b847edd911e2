/* Scatter lists of kernel or program memory, consumed front to back by read and write paths. */
#ifndef WEIR_UIO_H
#define WEIR_UIO_H
#include <weir/compiler.h>

struct iovec_weir { uint64_t base; uint64_t len; }; /* same layout as Linux's struct iovec */
struct uio {
    const struct iovec_weir *iov; unsigned count; /* remaining vectors */
    size_t offset;                                /* into iov[0] */
    size_t resid;                                 /* bytes left */
    bool user;                                    /* addresses are the current program's */
};
void uio_init_kernel(struct uio *u, struct iovec_weir *one, void *buf, size_t len);
void uio_init_user(struct uio *u, struct iovec_weir *one, uint64_t addr, size_t len);
/* Copy n <= resid bytes and advance. Returns bytes copied; fewer than n only on a fault. May block on a
 * page fault when user: no spinlock, and no lock that the fault path takes (inode page locks). */
size_t uio_copy_out(struct uio *u, const void *src, size_t n); /* kernel -> uio (a read) */
size_t uio_copy_in(struct uio *u, void *dst, size_t n);        /* uio -> kernel (a write) */
size_t uio_zero_out(struct uio *u, size_t n);
/* Fault the next n bytes in (for writing them if write), so that a copy under a lock rarely faults. 0 or -EFAULT. */
int uio_prefault(struct uio *u, size_t n, bool write) __must_check;
#endif
