/* What lwIP asks of its compiler and platform. Included by every lwIP file. */
#ifndef LWIP_ARCH_CC_H
#define LWIP_ARCH_CC_H
#include "weir_module.h"

#define LWIP_NO_STDINT_H     0
#define LWIP_NO_INTTYPES_H   1
#define LWIP_NO_LIMITS_H     0
#define LWIP_NO_CTYPE_H      1
#define LWIP_NO_UNISTD_H     1
#define SSIZE_MAX            INT64_MAX
#define LWIP_ERRNO_STDINCLUDE 0

#define U8_F  "u"
#define U16_F "u"
#define S16_F "d"
#define X16_F "x"
#define X8_F  "02x"
#define U32_F "u"
#define S32_F "d"
#define X32_F "x"
#define SZT_F "zu"

#define BYTE_ORDER LITTLE_ENDIAN
#define LWIP_RAND() ((u32_t)module_random())
#define LWIP_PLATFORM_DIAG(x)   do { } while (0)
/* lwIP's assertions are on in every build: a broken invariant of a protocol stack must stop the machine. */
#define LWIP_PLATFORM_ASSERT(x) module_assert_failed(x, __FILE__, __LINE__)
#define lwip_htons(x) __builtin_bswap16(x)
#define lwip_htonl(x) __builtin_bswap32(x)
#endif
