/* Random numbers for programs and for the kernel (getrandom, AT_RANDOM, ASLR, sequence numbers). */
#ifndef WEIR_RANDOM_H
#define WEIR_RANDOM_H
#include <weir/compiler.h>

/* Fill buf from a ChaCha20 generator seeded with RDSEED/RDRAND where CPUID offers them, and always with
 * timing jitter. Any context; never fails, never blocks. */
void random_bytes(void *buf, size_t len);
#endif
