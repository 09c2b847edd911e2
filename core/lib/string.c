/* Memory and string functions. Word-at-a-time where it pays without vector registers. */
#include <weir/errno.h>
#include <weir/string.h>

#if !__STDC_HOSTED__
/* The compiler must not turn these loops into calls to themselves. */
#ifdef __clang__
#define NO_LIBCALL __attribute__((no_builtin))
#else
#define NO_LIBCALL __attribute__((optimize("no-tree-loop-distribute-patterns")))
#endif

void *memcpy(void *dst, const void *src, size_t n)
{
    void *d = dst;
    size_t words = n / 8;
    __asm__ volatile("rep movsq" : "+D"(d), "+S"(src), "+c"(words) : : "memory");
    n &= 7;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(src), "+c"(n) : : "memory");
    return dst;
}

void *memmove(void *dst, const void *src, size_t n)
{
    if ((uintptr_t)dst - (uintptr_t)src >= n)
        return memcpy(dst, src, n);
    unsigned char *d = (unsigned char *)dst + n;
    const unsigned char *s = (const unsigned char *)src + n;
    while (n >= 8) {
        uint64_t word;
        d -= 8;
        s -= 8;
        n -= 8;
        __builtin_memcpy(&word, s, 8);
        __builtin_memcpy(d, &word, 8);
    }
    while (n--) {
        d--;
        s--;
        __asm__ volatile("" : : : "memory");
        *d = *s;
    }
    return dst;
}

void *memset(void *dst, int c, size_t n)
{
    void *d = dst;
    uint64_t pattern = 0x0101010101010101ULL * (unsigned char)c;
    size_t words = n / 8;
    __asm__ volatile("rep stosq" : "+D"(d), "+c"(words) : "a"(pattern) : "memory");
    n &= 7;
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(pattern) : "memory");
    return dst;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *p = a, *q = b;
    for (; n >= 8; p += 8, q += 8, n -= 8) {
        uint64_t x, y;
        __builtin_memcpy(&x, p, 8);
        __builtin_memcpy(&y, q, 8);
        if (x != y)
            break;
    }
    for (; n; p++, q++, n--)
        if (*p != *q)
            return *p - *q;
    return 0;
}

NO_LIBCALL void *memchr(const void *s, int c, size_t n)
{
    for (const unsigned char *p = s; n--; p++)
        if (*p == (unsigned char)c)
            return (void *)(uintptr_t)p;
    return NULL;
}

NO_LIBCALL size_t strlen(const char *s)
{
    const char *p = s;
    while (*p)
        p++;
    return (size_t)(p - s);
}

size_t strnlen(const char *s, size_t max)
{
    const char *end = memchr(s, 0, max);
    return end ? (size_t)(end - s) : max;
}

int strcmp(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return (unsigned char)*a - (unsigned char)*b;
}

int strncmp(const char *a, const char *b, size_t n)
{
    for (; n; a++, b++, n--)
        if (*a != *b || !*a)
            return (unsigned char)*a - (unsigned char)*b;
    return 0;
}

char *strchr(const char *s, int c)
{
    for (;; s++) {
        if (*s == (char)c)
            return (char *)(uintptr_t)s;
        if (!*s)
            return NULL;
    }
}

char *strrchr(const char *s, int c)
{
    const char *found = NULL;
    for (;; s++) {
        if (*s == (char)c)
            found = s;
        if (!*s)
            return (char *)(uintptr_t)found;
    }
}

char *strstr(const char *haystack, const char *needle)
{
    size_t n = strlen(needle);
    for (;; haystack++) {
        if (!strncmp(haystack, needle, n))
            return (char *)(uintptr_t)haystack;
        if (!*haystack)
            return NULL;
    }
}
#endif

size_t str_copy(char *dst, const char *src, size_t size)
{
    size_t len = strlen(src);
    if (size) {
        size_t n = MIN(len, size - 1);
        memcpy(dst, src, n);
        dst[n] = 0;
    }
    return len;
}

int scnprintf(char *buf, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, size, fmt, ap);
    va_end(ap);
    if (!size)
        return 0;
    return n < (int)size ? n : (int)size - 1;
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return 99;
}

int parse_u64(const char *s, bool suffix, uint64_t *out)
{
    int base = 10;
    uint64_t value = 0;
    if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        base = 16;
        s += 2;
    }
    if (digit_value(*s) >= base)
        return -EINVAL;
    for (; digit_value(*s) < base; s++)
        if (__builtin_mul_overflow(value, (uint64_t)base, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit_value(*s), &value))
            return -EINVAL;
    if (suffix && *s) {
        static const char units[] = "KMGT";
        const char *unit = strchr(units, *s & ~0x20);
        if (!unit)
            return -EINVAL;
        unsigned shift = 10 * (unsigned)(unit - units + 1);
        if (value >> (64 - shift))
            return -EINVAL;
        value <<= shift;
        s++;
    }
    if (*s)
        return -EINVAL;
    *out = value;
    return 0;
}
