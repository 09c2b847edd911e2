/*
 * A damaged ext4 image is mounted, walked, changed and unmounted. The input is a list of changes to the metadata of a good
 * image: its first byte chooses the image, then come 8 bytes each: where (24 bits), how, and 4 bytes of what.
 */
#include <stdio.h>

#include "tests/fuzz/ext4_walk.h"

#define METADATA (64u * 4096)

static struct disk disks[2];
static char *good[ARRAY_SIZE(disks)];

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const options[] = {
        "-O ^has_journal,^metadata_csum,^uninit_bg,^resize_inode -N 320 -I 256",
        "-O ^has_journal,^metadata_csum,^64bit,uninit_bg,^resize_inode -N 320 -g 1024",
    };
    if (disk_run("rm -rf fuzz-tree && mkdir -p fuzz-tree/a/b/c && cd fuzz-tree && seq 1 20000 > numbers && seq 1 300 > a/short "
                 "&& ln -s a/short link && ln -s /%0100d long && for i in $(seq 1 200); do : > a/b/some-name-$i; done", 7))
        abort();
    for (unsigned n = 0; n < ARRAY_SIZE(disks); n++) {
        disk_make(&disks[n], 4, options[n], "fuzz-tree");
        remove(disks[n].path);
        good[n] = malloc(disks[n].size);
        memcpy(good[n], disks[n].image, disks[n].size);
    }
    return disk_run("rm -rf fuzz-tree");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    unsigned which = data[0] % ARRAY_SIZE(disks);
    struct disk *d = &disks[which];
    memcpy(d->image, good[which], d->size);
    for (const uint8_t *p = data + 1; p + 8 <= data + size; p += 8) {
        uint32_t at, what;
        memcpy(&at, p, 4);
        memcpy(&what, p + 4, 4);
        unsigned how = at >> 24;
        at = (at & 0xffffff) % METADATA;
        if (how & 1)
            at = 1024 + at % 1024; /* the super block is small and counts much */
        else if (how & 2)
            at = 4096 + at % 64; /* and so is the first descriptor */
        memcpy(d->image + at, &what, 1u << (how >> 2) % 3);
    }
    walk_image(d);
    return 0;
}
