/*
 * Self-describing sectors, the seal, and the latency histogram of bench=blk. Pure.
 *
 * A sector is 64 words: magic, run, device and generation, sector, checksum of those, and 59 words that follow
 * from the checksum. So every bit of it is known from the stamp alone, and a sector that is damaged, stale, or
 * another disk's shows.
 */
#include <weir/string.h>

#include "bench.h"

#define SECTOR_MAGIC 0x526f746365537772UL
#define SEAL_MAGIC   0x6c6165536b6c6277UL
#define GOLDEN       0x9e3779b97f4a7c15UL
#define WORDS        (SECTOR_SIZE / 8)

enum word { W_MAGIC, W_RUN, W_DEVICE, W_SECTOR, W_CHECKSUM, W_FILL };

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= GOLDEN;
    return x ^ x >> 29;
}

uint32_t bench_device_id(const char *serial_or_name)
{
    uint32_t hash = 2166136261u;
    for (const char *p = serial_or_name; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619u;
    return hash;
}

static uint64_t device_word(const struct bench_stamp *s)
{
    return (uint64_t)s->device << 32 | s->generation;
}

uint64_t bench_stamp_checksum(const struct bench_stamp *s)
{
    return mix(mix(mix(s->run) + device_word(s)) + s->sector);
}

void bench_sector_fill(void *sector, const struct bench_stamp *s)
{
    uint64_t *w = sector, sum = bench_stamp_checksum(s);
    w[W_MAGIC] = SECTOR_MAGIC;
    w[W_RUN] = s->run;
    w[W_DEVICE] = device_word(s);
    w[W_SECTOR] = s->sector;
    w[W_CHECKSUM] = sum;
    for (unsigned i = W_FILL; i < WORDS; i++)
        w[i] = sum += GOLDEN;
}

enum bench_match bench_sector_check(const void *sector, struct bench_stamp *s)
{
    const uint64_t *w = sector;
    if (w[W_MAGIC] != SECTOR_MAGIC || w[W_RUN] != s->run)
        return BENCH_FOREIGN;
    if (s->generation == 0)
        s->generation = (uint32_t)w[W_DEVICE];
    uint64_t sum = bench_stamp_checksum(s);
    if (w[W_DEVICE] != device_word(s) || w[W_SECTOR] != s->sector || w[W_CHECKSUM] != sum)
        return BENCH_DIFFERENT;
    uint64_t wrong = 0;
    for (unsigned i = W_FILL; i < WORDS; i++)
        wrong |= w[i] ^ (sum += GOLDEN);
    return wrong ? BENCH_DIFFERENT : BENCH_SAME;
}

static uint64_t seal_checksum(const struct bench_seal *s)
{
    return mix(mix(mix(s->run) + s->area_sectors) + mix(s->sectors) + s->sum);
}

void bench_seal_make(struct bench_seal *seal)
{
    seal->magic = SEAL_MAGIC;
    seal->checksum = seal_checksum(seal);
}

bool bench_seal_valid(const struct bench_seal *seal)
{
    return seal->magic == SEAL_MAGIC && seal->run && seal->checksum == seal_checksum(seal);
}

/* ---- latencies ---- */

/* Below 16 the value itself; above, 16 buckets for each power of two. */
static unsigned bucket_of(uint64_t ns)
{
    if (ns < 16)
        return (unsigned)ns;
    unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - 4;
    return (shift + 1) * 16 + (unsigned)(ns >> shift & 15);
}

static uint64_t bucket_end(unsigned bucket)
{
    if (bucket < 16)
        return bucket;
    unsigned shift = bucket / 16 - 1;
    return ((uint64_t)(16 + bucket % 16) << shift) + (1UL << shift) - 1;
}

void bench_histogram_add(struct bench_histogram *h, uint64_t ns)
{
    if (ns != h->last_ns) { /* requests of a batch mostly take equally long */
        h->last_ns = ns;
        h->last_bucket = bucket_of(ns);
    }
    h->count[h->last_bucket]++;
    h->total++;
    h->sum_ns += ns;
    h->max_ns = MAX(h->max_ns, ns);
}

void bench_histogram_merge(struct bench_histogram *into, const struct bench_histogram *from)
{
    for (unsigned i = 0; i < BENCH_BUCKETS; i++)
        into->count[i] += from->count[i];
    into->total += from->total;
    into->sum_ns += from->sum_ns;
    into->max_ns = MAX(into->max_ns, from->max_ns);
}

uint64_t bench_histogram_at(const struct bench_histogram *h, unsigned per_mille)
{
    uint64_t wanted = DIV_ROUND_UP(h->total * per_mille, 1000), seen = 0;
    if (h->total == 0)
        return 0;
    for (unsigned i = 0; i < BENCH_BUCKETS; i++) {
        seen += h->count[i];
        if (seen >= wanted)
            return MIN(bucket_end(i), h->max_ns);
    }
    return h->max_ns;
}
