/* Range checks around usercopy.S. */
#include <weir/errno.h>
#include <weir/pagetable.h>
#include <weir/string.h>
#include <weir/usercopy.h>
#include "arch/x86_64/arch.h"

#define REP_MIN 512

size_t usercopy_move(void *dst, const void *src, size_t n);
size_t usercopy_move_rep(void *dst, const void *src, size_t n);
size_t usercopy_zero(uint64_t dst, size_t n);
int usercopy_get32(uint32_t *dst, uint64_t src);
int usercopy_cas32(uint32_t expected, uint32_t desired, uint64_t address, uint32_t *old);

static size_t move(void *dst, const void *src, size_t n)
{
    if (n >= REP_MIN && cpu_features.erms)
        return usercopy_move_rep(dst, src, n);
    return usercopy_move(dst, src, n);
}

/* Bytes of [addr, addr+n) that lie below the end of program memory. */
static size_t allowed(uint64_t addr, size_t n)
{
    return addr >= USER_TOP ? 0 : MIN(n, USER_TOP - addr);
}

size_t copy_from_user_partial(void *dst, uint64_t src, size_t n)
{
    size_t can = allowed(src, n);
    return can - move(dst, (const void *)src, can);
}

size_t copy_to_user_partial(uint64_t dst, const void *src, size_t n)
{
    size_t can = allowed(dst, n);
    return can - move((void *)dst, src, can);
}

int copy_from_user(void *dst, uint64_t src, size_t n)
{
    return allowed(src, n) == n && !move(dst, (const void *)src, n) ? 0 : -EFAULT;
}

int copy_to_user(uint64_t dst, const void *src, size_t n)
{
    return allowed(dst, n) == n && !move((void *)dst, src, n) ? 0 : -EFAULT;
}

int zero_user(uint64_t dst, size_t n)
{
    return allowed(dst, n) == n && !usercopy_zero(dst, n) ? 0 : -EFAULT;
}

/* In pieces that do not cross a page, for what follows the string may not be mapped. */
ssize_t copy_string_from_user(char *dst, uint64_t src, size_t size)
{
    size_t done = 0;
    while (done < size) {
        size_t piece = MIN(size - done, PAGE_SIZE - ((src + done) & PAGE_MASK));
        piece = MIN(piece, (size_t)64);
        size_t got = copy_from_user_partial(dst + done, src + done, piece);
        const char *end = memchr(dst + done, 0, got);
        if (end)
            return end - dst;
        if (got < piece)
            return -EFAULT;
        done += piece;
    }
    return -ENAMETOOLONG;
}

int get_user_u32(uint32_t *dst, uint64_t src)
{
    return allowed(src, sizeof *dst) == sizeof *dst ? usercopy_get32(dst, src) : -EFAULT;
}

int cas_user_u32(uint64_t addr, uint32_t expected, uint32_t desired, uint32_t *old)
{
    if (allowed(addr, sizeof *old) != sizeof *old)
        return -EFAULT;
    return usercopy_cas32(expected, desired, addr, old);
}
