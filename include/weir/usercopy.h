/*
 * Access to program memory. Faults are served (may block); what cannot be served returns an error.
 * Thread context of the program's thread, no spinlock held. Addresses at or above USER_TOP fail.
 */
#ifndef WEIR_USERCOPY_H
#define WEIR_USERCOPY_H
#include <weir/compiler.h>

int copy_from_user(void *dst, uint64_t user_src, size_t n) __must_check; /* 0 or -EFAULT */
int copy_to_user(uint64_t user_dst, const void *src, size_t n) __must_check;
int zero_user(uint64_t user_dst, size_t n) __must_check;
/* Bytes copied before the fault (n = all). */
size_t copy_from_user_partial(void *dst, uint64_t user_src, size_t n) __must_check;
size_t copy_to_user_partial(uint64_t user_dst, const void *src, size_t n) __must_check;
/* String with its NUL into dst: length without NUL, -EFAULT, or -ENAMETOOLONG if size is too small. */
ssize_t copy_string_from_user(char *dst, uint64_t user_src, size_t size) __must_check;
/* Atomic 32-bit read for futex: 0 or -EFAULT. */
int get_user_u32(uint32_t *dst, uint64_t user_src) __must_check;
/* Compare and swap for robust futexes; *old gets the value found. 0 or -EFAULT. */
int cas_user_u32(uint64_t user_addr, uint32_t expected, uint32_t desired, uint32_t *old) __must_check;
#endif
