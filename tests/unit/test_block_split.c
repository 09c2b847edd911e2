/* Cutting requests: for every request and every limit the parts cover it exactly, in order, within the limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/block.h>
#include <weir/errno.h>
#include <weir/string.h>

static unsigned seed;
static unsigned rnd(unsigned n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 9) % n;
}
static void begin(struct block_request *r)
{
    r->pieces = 1;
    r->status = 0;
    r->cursor = (struct block_cursor){ 0, 0, r->sector };
}

/* The address of byte `at` of a scatter list. */
static uint64_t byte_at(const struct block_segment *s, unsigned n, uint64_t at)
{
    for (unsigned i = 0; i < n; i++) {
        if (at < s[i].len)
            return s[i].phys + at;
        at -= s[i].len;
    }
    fail();
    return 0;
}

static void rule79_80_86_parts_cover_the_request_within_the_limits(void **state)
{
    static struct block_segment in[64], out[64];
    seed = 7;
    for (unsigned round = 0; round < 20000; round++) {
        struct block_device d = { .name = "t", .logical_block = rnd(3) ? 512 : 4096 };
        d.limits = (struct block_limits){ .max_segments = 8 + rnd(24), .max_segment_bytes = 512u << rnd(6),
                                          .max_bytes = 4096u * (1 + rnd(16)) };
        struct block_request r = { .device = &d, .op = rnd(2) ? BLOCK_READ : BLOCK_WRITE, .sector = rnd(1000) * 8,
                                   .segments = in, .segment_count = 1 + rnd(64) };
        uint64_t total = 0, phys = 0x100000000;
        for (unsigned i = 0; i < r.segment_count; i++) {
            in[i] = (struct block_segment){ phys, 512 * (1 + rnd(16)) };
            if (d.logical_block == 4096 || rnd(4) == 0)
                in[i].len = 4096 * (1 + rnd(3));
            phys += in[i].len + (rnd(2) ? 0 : 512 * rnd(5)); /* some neighbours touch */
            total += in[i].len;
        }
        r.sector_count = total >> SECTOR_SHIFT;
        begin(&r);
        uint64_t done = 0, sector, sectors;
        unsigned count, parts = 0;
        while (block_split_next(&r, out, &count, &sector, &sectors)) {
            uint64_t bytes = 0;
            assert_true(count >= 1 && count <= d.limits.max_segments);
            assert_true(sector == r.sector + (done >> SECTOR_SHIFT));
            for (unsigned i = 0; i < count; i++) {
                assert_true(out[i].len && out[i].len <= d.limits.max_segment_bytes);
                assert_true(out[i].phys == byte_at(in, r.segment_count, done + bytes));
                assert_true(out[i].phys + out[i].len - 1 == byte_at(in, r.segment_count, done + bytes + out[i].len - 1));
                bytes += out[i].len;
            }
            assert_true(bytes == sectors << SECTOR_SHIFT && bytes <= d.limits.max_bytes && bytes % d.logical_block == 0);
            done += bytes;
            parts++;
        }
        assert_true(done == total && r.status == 0);
        assert_int_equal(r.pieces, parts); /* the last took over from the splitting */
    }
}
static void rule81_a_flush_is_one_part_without_data(void **state)
{
    struct block_device d = { .name = "t", .logical_block = 512 };
    struct block_request r = { .device = &d, .op = BLOCK_FLUSH };
    uint64_t sector, sectors;
    unsigned count;
    begin(&r);
    assert_true(block_split_next(&r, NULL, &count, &sector, &sectors));
    assert_true(count == 0 && sector == 0 && sectors == 0);
    assert_false(block_split_next(&r, NULL, &count, &sector, &sectors));
}
static void rule83_discards_are_cut_to_the_device_s_limit(void **state)
{
    struct block_device d = { .name = "t", .logical_block = 4096, .limits = { .max_discard_sectors = 24 } };
    struct block_request r = { .device = &d, .op = BLOCK_DISCARD, .sector = 80, .sector_count = 64 };
    uint64_t sector, sectors, next = 80;
    unsigned count;
    begin(&r);
    while (block_split_next(&r, NULL, &count, &sector, &sectors)) {
        assert_true(sector == next && sectors <= 24 && count == 0);
        next += sectors;
    }
    assert_int_equal(next, 144);
}
static void what_the_device_can_never_take_ends_with_einval(void **state)
{
    struct block_device d = { .name = "t", .logical_block = 4096,
                              .limits = { .max_segments = 2, .max_segment_bytes = 4096, .max_bytes = 65536 } };
    struct block_segment tiny[8], out[2];
    for (unsigned i = 0; i < 8; i++)
        tiny[i] = (struct block_segment){ i * 8192, 512 };
    struct block_request r = { .device = &d, .op = BLOCK_WRITE, .segments = tiny, .segment_count = 8, .sector_count = 8 };
    uint64_t sector, sectors;
    unsigned count;
    begin(&r);
    assert_false(block_split_next(&r, out, &count, &sector, &sectors));
    assert_int_equal(r.status, -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule79_80_86_parts_cover_the_request_within_the_limits),
        cmocka_unit_test(rule81_a_flush_is_one_part_without_data),
        cmocka_unit_test(rule83_discards_are_cut_to_the_device_s_limit),
        cmocka_unit_test(what_the_device_can_never_take_ends_with_einval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
