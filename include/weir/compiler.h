/* Compiler attributes and small helpers. Usable in the kernel and in host tests. */
#ifndef WEIR_COMPILER_H
#define WEIR_COMPILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define __must_check    __attribute__((warn_unused_result))
#define __noreturn      __attribute__((noreturn))
#define __packed        __attribute__((packed))
#define __weak          __attribute__((weak))
#define __printf(f, a)  __attribute__((format(printf, f, a)))
#define __cacheline     __attribute__((aligned(64)))
#define __section(name) __attribute__((section(name), used))

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define ARRAY_SIZE(a)          (sizeof(a) / sizeof((a)[0]))
#define ALIGN_UP(x, a)         (((x) + ((a) - 1)) & ~((__typeof__(x))(a) - 1))
#define ALIGN_DOWN(x, a)       ((x) & ~((__typeof__(x))(a) - 1))
#define IS_ALIGNED(x, a)       (((x) & ((a) - 1)) == 0)
#define DIV_ROUND_UP(x, d)     (((x) + (d) - 1) / (d))
#define MIN(a, b)              ((a) < (b) ? (a) : (b))
#define MAX(a, b)              ((a) > (b) ? (a) : (b))
#define container_of(p, T, m)  ((T *)((char *)(p) - offsetof(T, m)))
#define BIT(n)                 (1UL << (n))

#if !__STDC_HOSTED__
typedef int64_t ssize_t;
typedef int64_t off_t;
typedef uint32_t mode_t;
#else
#include <sys/types.h>
#endif

#define NSEC_PER_SEC  1000000000ULL
#define NSEC_PER_MSEC 1000000ULL
#define NSEC_PER_USEC 1000ULL

#endif
