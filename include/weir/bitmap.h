/* Fixed-size bitmaps of 64-bit words, and CPU masks. Plain operations are not atomic unless named so. */
#ifndef WEIR_BITMAP_H
#define WEIR_BITMAP_H
#include <weir/atomic.h>

#define BITMAP_WORDS(bits) (((bits) + 63) / 64)

static inline bool bitmap_test(const uint64_t *m, unsigned bit) { return (atomic_load_relaxed(&m[bit / 64]) >> (bit % 64)) & 1; }
static inline void bitmap_set(uint64_t *m, unsigned bit) { m[bit / 64] |= 1ULL << (bit % 64); }
static inline void bitmap_clear(uint64_t *m, unsigned bit) { m[bit / 64] &= ~(1ULL << (bit % 64)); }
/* Atomic, full barrier; return the old value of the bit. */
static inline bool bitmap_test_and_set_atomic(uint64_t *m, unsigned bit) { return (atomic_fetch_or(&m[bit / 64], 1ULL << (bit % 64)) >> (bit % 64)) & 1; }
static inline bool bitmap_test_and_clear_atomic(uint64_t *m, unsigned bit) { return (atomic_fetch_and(&m[bit / 64], ~(1ULL << (bit % 64))) >> (bit % 64)) & 1; }
/* First set / clear bit at or after `from`, or `bits` if none. */
unsigned bitmap_next_set(const uint64_t *m, unsigned bits, unsigned from);
unsigned bitmap_next_clear(const uint64_t *m, unsigned bits, unsigned from);
unsigned bitmap_weight(const uint64_t *m, unsigned bits);

#define CPU_MAX 256 /* logical CPUs; ids are dense 0..cpu_count()-1 whatever the APIC ids are */
struct cpumask {
    uint64_t bits[BITMAP_WORDS(CPU_MAX)];
};
#endif
