/* Damaged images: bits flipped and words replaced at random where the metadata are. ROUNDS=n for more. */
#include "tests/fuzz/ext4_walk.h"

static uint64_t rng;
static uint32_t random_below(uint32_t n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)((rng >> 33) % n);
}
static void damage(struct disk *d, unsigned metadata_blocks)
{
    static const uint32_t nasty[] = { 0, 1, 0xffffffff, 0x7fffffff, 0x80000000, 0xffff, 0x8000, 12, 4096 };
    for (unsigned n = 1 + random_below(12); n > 0; n--) {
        /* Super block, descriptors, tables and directories, in turn. */
        uint32_t where = random_below(8), at = where == 0 ? 1024 + random_below(1024) : where == 1 ? 4096 + random_below(256) : random_below(metadata_blocks * 4096);
        at &= ~3u;
        if (random_below(2))
            d->image[at] ^= (char)(1 << random_below(8));
        else
            memcpy(d->image + at, &nasty[random_below(ARRAY_SIZE(nasty))], 4);
    }
}
static void damaged_images_are_refused_or_read_as_far_as_they_go(void **state)
{
    static const char *const variants[] = {
        "-O ^has_journal,^metadata_csum,^uninit_bg,^resize_inode -N 320 -I 256",
        "-O ^has_journal,^resize_inode -N 320",
        "-O ^has_journal,^metadata_csum,^64bit,uninit_bg,^resize_inode -N 320 -g 1024",
    };
    unsigned rounds = getenv("ROUNDS") ? (unsigned)atoi(getenv("ROUNDS")) : 150;
    assert_int_equal(disk_run("rm -rf /tmp/fs-pop && mkdir -p /tmp/fs-pop/a/b/c && cd /tmp/fs-pop && seq 1 20000 > numbers && seq 1 300 > a/short "
                              "&& ln -s a/short link && ln -s /%0100d long && for i in $(seq 1 200); do : > a/b/some-name-$i; done", 7), 0);
    for (unsigned v = 0; v < ARRAY_SIZE(variants); v++) {
        struct disk d;
        disk_make(&d, 8, variants[v], "/tmp/fs-pop");
        char *base = malloc(d.size);
        memcpy(base, d.image, d.size);
        for (unsigned n = 0; n < rounds; n++) {
            rng = v * 1000003 + n;
            memcpy(d.image, base, d.size);
            damage(&d, 64);
            walk_image(&d);
        }
        free(base);
        disk_close(&d);
    }
}
int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(damaged_images_are_refused_or_read_as_far_as_they_go) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
