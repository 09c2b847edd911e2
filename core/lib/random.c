/*
 * ChaCha20 generator with fast key erasure: each CPU has a 32-byte key; a request makes one block whose
 * first half replaces the key and whose second half is output. Keys are derived from one pool, which takes
 * RDSEED/RDRAND (if CPUID offers them) and time-stamp jitter.
 */
#include <weir/cpu.h>
#include <weir/random.h>
#include <weir/spinlock.h>
#include <weir/string.h>
#include <weir/time.h>

/* Key: o owner CPU with interrupts off */
struct random_cpu {
    uint32_t key[8];     /* o */
    uint64_t counter;    /* o blocks since the key was seeded */
} __cacheline;
static struct random_cpu states[CPU_MAX];
static spinlock_t pool_lock = SPINLOCK_INIT;
static uint32_t pool[8];   /* pool_lock */
static uint64_t pool_uses; /* pool_lock */

#define RESEED_BLOCKS (1u << 16)

static uint32_t rotate(uint32_t v, unsigned n) { return v << n | v >> (32 - n); }
static void quarter(uint32_t *s, unsigned a, unsigned b, unsigned c, unsigned d)
{
    s[a] += s[b]; s[d] = rotate(s[d] ^ s[a], 16);
    s[c] += s[d]; s[b] = rotate(s[b] ^ s[c], 12);
    s[a] += s[b]; s[d] = rotate(s[d] ^ s[a], 8);
    s[c] += s[d]; s[b] = rotate(s[b] ^ s[c], 7);
}
/* RFC 8439 block function; nonce zero, 64-bit counter. */
static void chacha_block(const uint32_t key[8], uint64_t counter, uint32_t out[16])
{
    const uint32_t start[16] = { 0x61707865, 0x3320646e, 0x79622d32, 0x6b206574,
                                 key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7],
                                 (uint32_t)counter, (uint32_t)(counter >> 32), 0, 0 };
    memcpy(out, start, sizeof start);
    for (int i = 0; i < 10; i++) {
        quarter(out, 0, 4, 8, 12); quarter(out, 1, 5, 9, 13); quarter(out, 2, 6, 10, 14); quarter(out, 3, 7, 11, 15);
        quarter(out, 0, 5, 10, 15); quarter(out, 1, 6, 11, 12); quarter(out, 2, 7, 8, 13); quarter(out, 3, 4, 9, 14);
    }
    for (int i = 0; i < 16; i++)
        out[i] += start[i];
}

static void cpuid(uint32_t leaf, uint32_t *b, uint32_t *c)
{
    uint32_t a = leaf, d;
    *c = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(*b), "+c"(*c), "=d"(d));
}
static uint64_t hardware_word(void)
{
    static int kinds = -1; /* bit 0 RDRAND, bit 1 RDSEED; every CPU computes the same */
    uint64_t v = 0;
    uint8_t ok = 0;
    if (atomic_load_relaxed(&kinds) < 0) {
        uint32_t b, c, b7, c7;
        cpuid(1, &b, &c);
        cpuid(7, &b7, &c7);
        atomic_store_relaxed(&kinds, (int)((c >> 30 & 1) | (b7 >> 18 & 1) << 1));
    }
    int have = atomic_load_relaxed(&kinds);
    for (int tries = 0; have & 2 && !ok && tries < 8; tries++)
        __asm__ volatile("rdseed %0; setc %1" : "=r"(v), "=qm"(ok) : : "cc");
    for (int tries = 0; have & 1 && !ok && tries < 8; tries++)
        __asm__ volatile("rdrand %0; setc %1" : "=r"(v), "=qm"(ok) : : "cc");
    return ok ? v : 0;
}
static uint64_t timestamp(void)
{
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return (uint64_t)hi << 32 | lo;
}

static void mix(uint64_t word)
{
    uint32_t out[16];
    pool[0] ^= (uint32_t)word;
    pool[1] ^= (uint32_t)(word >> 32);
    chacha_block(pool, ++pool_uses, out);
    memcpy(pool, out, sizeof pool);
}
static void seed(struct random_cpu *s)
{
    uint32_t out[16];
    spin_lock(&pool_lock);
    /* 16 rounds: enough jitter to start from even where no instruction helps. */
    for (int i = 0; i < 16; i++) {
        mix(hardware_word());
        mix(timestamp());
    }
    mix(clock_realtime_ns());
    mix((uint64_t)(uintptr_t)&out);
    chacha_block(pool, ++pool_uses, out);
    memcpy(pool, out, sizeof pool);
    spin_unlock(&pool_lock);
    memcpy(s->key, out + 8, sizeof s->key);
    s->counter = 1;
}

void random_bytes(void *buf, size_t len)
{
    uint8_t *dst = buf;
    while (len) {
        uint32_t out[16];
        size_t n = MIN(len, sizeof out / 2);
        uint64_t flags = irq_save();
        struct random_cpu *s = &states[this_cpu()->id];
        if (!s->counter || s->counter > RESEED_BLOCKS)
            seed(s);
        chacha_block(s->key, s->counter++, out);
        memcpy(s->key, out, sizeof s->key);
        irq_restore(flags);
        memcpy(dst, out + 8, n);
        dst += n;
        len -= n;
    }
}
