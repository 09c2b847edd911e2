/* Memory and string functions with their C library meaning, plus bounded helpers. Any context. */
#ifndef WEIR_STRING_H
#define WEIR_STRING_H
#include <weir/compiler.h>
#if __STDC_HOSTED__
#include <string.h>
#include <stdio.h>
#include <stdarg.h>
#include <stdarg.h>
#else
#include <stdarg.h>
void *memcpy(void *dst, const void *src, size_t n);
void *memmove(void *dst, const void *src, size_t n);
void *memset(void *dst, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);
void *memchr(const void *s, int c, size_t n);
size_t strlen(const char *s);
size_t strnlen(const char *s, size_t max);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t n);
char *strchr(const char *s, int c);
char *strrchr(const char *s, int c);
char *strstr(const char *haystack, const char *needle);
/* printf subset: flags - 0 + space #, width, precision, hh h l ll z j t, d i u x X o c s p %. */
int snprintf(char *buf, size_t size, const char *fmt, ...) __printf(3, 4);
int vsnprintf(char *buf, size_t size, const char *fmt, va_list ap);
#endif
/* Copy at most size-1 characters and always terminate; returns strlen(src). */
size_t str_copy(char *dst, const char *src, size_t size);
/* snprintf that returns the characters really written (0..size-1), so calls can be chained. */
int scnprintf(char *buf, size_t size, const char *fmt, ...) __printf(3, 4);
/* Parse an unsigned number (0x prefix allowed, suffix K M G T allowed when suffix is true).
 * The whole string must be consumed. Returns 0 or -EINVAL. */
int parse_u64(const char *s, bool suffix, uint64_t *out) __must_check;
#endif
