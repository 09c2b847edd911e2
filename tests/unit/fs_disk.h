/* A disk for file-system tests: an image file in memory, with a log of writes and failures on request. */
#ifndef FS_DISK_H
#define FS_DISK_H
#include <weir/block.h>

struct disk_write { uint64_t offset; uint32_t len; uint32_t flush_before; char *data; };
struct disk {
    struct block_device device;
    char path[128];
    char *image; size_t size;      /* private mapping: the file is not changed until disk_save */
    bool log_writes;
    struct disk_write *log; size_t log_count, log_capacity;
    unsigned flushes, reads, writes;
    long fail_writes_after;        /* -1 = never: writes from the n-th on end with -EIO */
    bool fail_flush;
    const char *forbidden;         /* grep -E pattern that e2fsck must not print: its status is 100 then */
    bool threads;                  /* complete from another thread, a little later */
};
void disk_make(struct disk *d, size_t mib, const char *mke2fs_options, const char *populate); /* runs mke2fs */
void disk_save(struct disk *d, const char *path);
void disk_close(struct disk *d);
int disk_fsck(struct disk *d, const char *options); /* e2fsck on the present contents: its exit status; output to stdout if not 0 */
int disk_run(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
