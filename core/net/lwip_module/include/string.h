/* The part of <string.h> that lwIP uses; the kernel provides it. */
#ifndef LWIP_MODULE_STRING_H
#define LWIP_MODULE_STRING_H
#if __STDC_HOSTED__
#include_next <string.h>
#else
#include <stddef.h>
void *memcpy(void *dst, const void *src, size_t n);
void *memmove(void *dst, const void *src, size_t n);
void *memset(void *dst, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);
int strncmp(const char *a, const char *b, size_t n);
#endif
#endif
