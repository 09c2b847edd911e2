/* For the block self-tests: disks that may be overwritten, and threads that work on them at once. */
#ifndef BLOCK_UTIL_H
#define BLOCK_UTIL_H
#include <weir/block.h>

/* The next disk whose serial starts with `scratch` (with test.scratch=1: any after vda); NULL at the end. */
struct block_device *scratch_next(struct block_device *after);
unsigned scratch_count(void);
/* What a test returns whose disk is not there: a failure if the test was named, or `test.disks=` says that there is such
 * a disk; else (test=all on any machine) a message and 0. */
int disk_absent(const char *serial);
/* Contents that depend on the disk, the sector and the round, so that a stale or misplaced sector shows. */
void pattern_fill(void *buf, size_t len, struct block_device *d, uint64_t sector, unsigned round);
/* True if buf holds that; else reports the first sector that differs. */
bool pattern_check(const void *buf, size_t len, struct block_device *d, uint64_t sector, unsigned round);
struct crowd_member {
    int (*work)(struct crowd_member *m); /* 0 or an error */
    struct block_device *disk;
    unsigned cpu, id;
    struct crowd *crowd;
};
struct crowd {
    unsigned running, failed; /* a */
    struct wait_queue done;
};
/* Run work on every scratch disk, by `per_disk` threads each, thread i on CPU i mod count. Returns the
 * number of failures; a member that does not end within 120 s is reported and counted. */
unsigned crowd_run(int (*work)(struct crowd_member *m), unsigned per_disk);
#endif
