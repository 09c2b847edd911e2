/* bench=blk: what its options mean, that a sector that is not what was written shows, and that percentiles are right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/errno.h>
#include <weir/string.h>

#include "core/block/bench.h"

static struct bench_options o;
static char why[160];

static void takes(const char *text)
{
    why[0] = '\0';
    if (bench_options_parse(text, &o, why, sizeof(why)))
        fail_msg("%s: %s", text, why);
}

static void refuses(const char *text, const char *reason)
{
    assert_int_equal(bench_options_parse(text, &o, why, sizeof(why)), -EINVAL);
    if (!strstr(why, reason))
        fail_msg("%s: `%s` does not say `%s`", text, why, reason);
}

static void every_key_is_optional(void **state)
{
    takes("");
    assert_string_equal(bench_options_rw(&o), "randread");
    assert_int_equal(o.block_bytes, 4096);
    assert_int_equal(o.verify, BENCH_UNVERIFIED);
    takes("rw=randwrite,bs=4k,depth=32,jobs=8,secs=10,dev=all,poll=0,verify=1");
    assert_string_equal(bench_options_rw(&o), "randwrite");
    assert_int_equal(o.block_bytes, 4096);
    assert_int_equal(o.depth, 32);
    assert_int_equal(o.jobs, 8);
    assert_int_equal(o.secs, 10);
    assert_false(o.poll);
    assert_int_equal(o.verify, BENCH_VERIFY_WRITTEN);
    takes("bs=512,poll=1,ios=20000,size=64M,verify=check");
    assert_true(o.poll && o.ios == 20000 && o.size_bytes == 64 << 20 && o.verify == BENCH_VERIFY_CHECK);
}

static void all_kinds_of_load_have_a_name(void **state)
{
    static const char *const names[] = { "read", "write", "rw", "randread", "randwrite", "randrw" };
    for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
        char text[32];
        snprintf(text, sizeof(text), "rw=%s", names[i]);
        takes(text);
        assert_string_equal(bench_options_rw(&o), names[i]);
        assert_int_equal(o.random, !strncmp(names[i], "rand", 4));
        assert_int_equal(o.reads, strstr(names[i], "read") || strstr(names[i], "rw"));
        assert_int_equal(o.writes, strstr(names[i], "write") || strstr(names[i], "rw"));
    }
}

static void nonsense_is_named(void **state)
{
    refuses("size", "size= is not possible");
    refuses("deep=4", "no key `deep`");
    refuses("depth=4,jobs=x", "jobs=x is not possible");
    refuses("depth=0", "depth=0");
    refuses("bs=100", "bs=100");
    refuses("bs=2M", "bs=2M");
    refuses("rw=sideways", "rw=sideways");
    refuses("poll=2", "poll=2");
    refuses("verify=yes", "verify=yes");
    refuses("rw=randread,verify=1", "wants an rw that writes");
    refuses("dev=", "dev=");
    refuses("secs=99999999999999999999", "secs=");
    char text[400] = "dev=";
    memset(text + 4, 'a', 300);
    refuses(text, "is not possible");
}

static void disks_are_named_whole(void **state)
{
    takes("dev=vda+vdab");
    assert_true(bench_options_name(&o, "vda"));
    assert_true(bench_options_name(&o, "vdab"));
    assert_false(bench_options_name(&o, "vdb"));
    assert_false(bench_options_name(&o, "vd"));
    takes("dev=all");
    assert_true(bench_options_name(&o, "vdz"));
}

static const struct bench_stamp stamp = { .run = 77, .sector = 123456, .device = 9, .generation = 3 };

static enum bench_match check(const void *sector, struct bench_stamp expected)
{
    return bench_sector_check(sector, &expected);
}

static void every_damaged_bit_shows(void **state)
{
    uint8_t sector[512];
    bench_sector_fill(sector, &stamp);
    assert_int_equal(check(sector, stamp), BENCH_SAME);
    for (unsigned bit = 0; bit < 8 * sizeof(sector); bit++) {
        sector[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(check(sector, stamp), BENCH_SAME);
        struct bench_stamp any = stamp;
        any.generation = 0; /* as after a restart, when nobody knows it */
        assert_int_not_equal(bench_sector_check(sector, &any), BENCH_SAME);
        sector[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void stale_misplaced_and_foreign_sectors_show(void **state)
{
    uint8_t sector[512];
    struct bench_stamp s = stamp;
    bench_sector_fill(sector, &stamp);
    s.generation = 4;
    assert_int_equal(check(sector, s), BENCH_DIFFERENT);
    s = stamp;
    s.sector++;
    assert_int_equal(check(sector, s), BENCH_DIFFERENT);
    s = stamp;
    s.device++;
    assert_int_equal(check(sector, s), BENCH_DIFFERENT);
    s = stamp;
    s.run++;
    assert_int_equal(check(sector, s), BENCH_FOREIGN);
    memset(sector, 0, sizeof(sector));
    assert_int_equal(check(sector, stamp), BENCH_FOREIGN);
}

static void the_generation_is_found_when_it_is_not_known(void **state)
{
    uint8_t sector[512];
    struct bench_stamp s = stamp;
    bench_sector_fill(sector, &stamp);
    s.generation = 0;
    assert_int_equal(bench_sector_check(sector, &s), BENCH_SAME);
    assert_int_equal(s.generation, 3);
    assert_true(bench_stamp_checksum(&s) == bench_stamp_checksum(&stamp));
}

static void a_seal_is_valid_only_as_it_was_made(void **state)
{
    struct bench_seal seal = { .run = 5, .area_sectors = 1000, .sectors = 10, .sum = 99 };
    bench_seal_make(&seal);
    assert_true(bench_seal_valid(&seal));
    for (unsigned bit = 0; bit < 8 * sizeof(seal); bit++) {
        ((uint8_t *)&seal)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(bench_seal_valid(&seal));
        ((uint8_t *)&seal)[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    memset(&seal, 0, sizeof(seal));
    assert_false(bench_seal_valid(&seal));
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void percentiles_are_at_most_a_sixteenth_too_large(void **state)
{
    enum { N = 20000 };
    static uint64_t values[N];
    static struct bench_histogram h, half, empty;
    uint64_t x = 88172645463325252ull;
    for (unsigned i = 0; i < N; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        values[i] = i < 4 ? (uint64_t[]){ 0, 1, 15, UINT64_MAX }[i] : x >> (x % 60);
        bench_histogram_add(i % 2 ? &h : &half, values[i]);
    }
    bench_histogram_merge(&h, &half);
    qsort(values, N, sizeof(values[0]), by_size);
    static const unsigned wanted[] = { 1, 500, 990, 999, 1000 };
    for (unsigned i = 0; i < ARRAY_SIZE(wanted); i++) {
        uint64_t exact = values[N * wanted[i] / 1000 - 1], got = bench_histogram_at(&h, wanted[i]);
        assert_true(got >= exact && got - exact <= exact / 16);
    }
    assert_true(bench_histogram_at(&h, 1000) == h.max_ns);
    assert_true(bench_histogram_at(&empty, 990) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_optional),
        cmocka_unit_test(all_kinds_of_load_have_a_name),
        cmocka_unit_test(nonsense_is_named),
        cmocka_unit_test(disks_are_named_whole),
        cmocka_unit_test(every_damaged_bit_shows),
        cmocka_unit_test(stale_misplaced_and_foreign_sectors_show),
        cmocka_unit_test(the_generation_is_found_when_it_is_not_known),
        cmocka_unit_test(a_seal_is_valid_only_as_it_was_made),
        cmocka_unit_test(percentiles_are_at_most_a_sixteenth_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
