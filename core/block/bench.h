/* Private to bench=blk: options (pure), data patterns (pure), lanes (threads that do I/O), the run. */
#ifndef WEIR_BLOCK_BENCH_H
#define WEIR_BLOCK_BENCH_H
#include <weir/block.h>

/* ---- options: `key=value,key=value`, each optional ---- */
enum bench_verify {
    BENCH_UNVERIFIED,
    BENCH_VERIFY_WRITTEN, /* read what was written back from the device, and seal it */
    BENCH_VERIFY_CHECK,   /* no load: read what an earlier, sealed run has left, after a restart */
};
struct bench_options {
    bool reads, writes, random;
    uint32_t block_bytes;
    uint32_t depth;       /* requests that each job keeps in flight */
    uint32_t jobs;        /* threads of each disk, job i on CPU i mod CPUs */
    uint32_t secs;
    uint64_t ios;         /* of each job; 0 = no limit but the time */
    uint64_t size_bytes;  /* part of each disk that is used; 0 = all */
    bool poll;
    enum bench_verify verify;
    char dev[64];         /* "all", or names with `+` between them */
};
/* 0, or -EINVAL and the reason in `why`. */
int bench_options_parse(const char *text, struct bench_options *out, char *why, size_t why_size) __must_check;
/* Is the disk meant by o->dev? */
bool bench_options_name(const struct bench_options *o, const char *name);
/* "randwrite" etc. */
const char *bench_options_rw(const struct bench_options *o);

/* ---- what is written: each sector says what it is ---- */
struct bench_stamp {
    uint64_t run;         /* of the benchmark's run, never 0 */
    uint64_t sector;
    uint32_t device;      /* bench_device_id */
    uint32_t generation;  /* how many times this run wrote the block, from 1 */
};
enum bench_match {
    BENCH_SAME,           /* exactly what the stamp says */
    BENCH_FOREIGN,        /* nothing that this run has written */
    BENCH_DIFFERENT,      /* this run's, but damaged, misplaced or stale */
};
uint32_t bench_device_id(const char *serial_or_name);
/* One number for the whole sector; sums of it do not depend on the order. */
uint64_t bench_stamp_checksum(const struct bench_stamp *s);
void bench_sector_fill(void *sector, const struct bench_stamp *s);
/* Compare; s->generation 0 = any, and then set to what was found. */
enum bench_match bench_sector_check(const void *sector, struct bench_stamp *s);

/* What a sealed run leaves in the first block of the disk's area, so that lost and stale sectors show after a
 * restart as well. */
struct bench_seal {
    uint64_t magic, run, area_sectors, sectors, sum, checksum;
};
void bench_seal_make(struct bench_seal *seal);
bool bench_seal_valid(const struct bench_seal *seal);

/* ---- latencies: a histogram whose buckets are 1/16 of their value wide ---- */
#define BENCH_BUCKETS (61 * 16)
struct bench_histogram {
    uint64_t count[BENCH_BUCKETS];
    uint64_t total, sum_ns, max_ns;
    uint64_t last_ns;    /* the last one added, and its bucket: 0 and 0 at first */
    unsigned last_bucket;
};
void bench_histogram_add(struct bench_histogram *h, uint64_t ns);
void bench_histogram_merge(struct bench_histogram *into, const struct bench_histogram *from);
/* The value that `per_mille` of 1000 do not exceed, at most 1/16 too large; 0 when empty. */
uint64_t bench_histogram_at(const struct bench_histogram *h, unsigned per_mille);

/* ---- lanes ---- */
struct bench_lane;
/* Counts of one lane, read when it has ended. */
struct bench_totals {
    uint64_t ios, bytes, errors, empty_polls;
    uint64_t verified, mismatches; /* sectors */
    uint64_t sum;                  /* of the checksums of the verified sectors */
};
/* Lanes do the load together, and when all have ended, the verification. */
enum bench_phase { BENCH_SETUP, BENCH_LOAD, BENCH_VERIFY };
/* What all lanes of a run share. Key: I immutable while lanes run, a atomic. */
struct bench_run {
    struct bench_options o;        /* I */
    uint64_t run;                  /* I its number in the stamps */
    uint64_t end_ns;               /* I from BENCH_LOAD on: end of the load */
    unsigned phase;                /* a enum bench_phase, moved on by the run */
    unsigned loaded, verified;     /* a lanes that are through with the load, and with the verification */
    struct wait_queue wait;
};
struct bench_area { uint64_t first_sector, sectors; }; /* a lane's own part of its disk */
/* NULL: no memory. */
struct bench_lane *bench_lane_create(struct bench_run *run, struct block_device *d, unsigned job,
                                     struct bench_area area, uint64_t stamp_run) __must_check;
int bench_lane_start(struct bench_lane *l) __must_check;
void bench_lane_totals(const struct bench_lane *l, struct bench_totals *sum, struct bench_histogram *latencies);
void bench_lane_destroy(struct bench_lane *l); /* it has ended */
#endif
