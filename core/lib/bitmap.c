#include <weir/bitmap.h>

static unsigned next_bit(const uint64_t *m, unsigned bits, unsigned from, uint64_t invert)
{
    if (from >= bits)
        return bits;
    unsigned word = from / 64;
    uint64_t w = (atomic_load_relaxed(&m[word]) ^ invert) & (~0ULL << (from % 64));
    for (;;) {
        if (w) {
            unsigned bit = word * 64 + (unsigned)__builtin_ctzll(w);
            return MIN(bit, bits);
        }
        if (++word >= BITMAP_WORDS(bits))
            return bits;
        w = atomic_load_relaxed(&m[word]) ^ invert;
    }
}

unsigned bitmap_next_set(const uint64_t *m, unsigned bits, unsigned from)
{
    return next_bit(m, bits, from, 0);
}

unsigned bitmap_next_clear(const uint64_t *m, unsigned bits, unsigned from)
{
    return next_bit(m, bits, from, ~0ULL);
}

/* Without the POPCNT instruction, which CPUID may not offer. */
static unsigned count_ones(uint64_t w)
{
    unsigned n = 0;
    for (; w; w &= w - 1)
        n++;
    return n;
}

unsigned bitmap_weight(const uint64_t *m, unsigned bits)
{
    unsigned n = 0;
    for (unsigned word = 0; word < bits / 64; word++)
        n += count_ones(m[word]);
    if (bits % 64)
        n += count_ones(m[bits / 64] & ((1ULL << (bits % 64)) - 1));
    return n;
}
