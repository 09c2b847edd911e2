/* The physical memory map against a model of one flag per page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "arch/x86_64/memmap.h"

#define K4 4096UL
#define MIB (1UL << 20)
#define GIB (1UL << 30)
static struct memmap map;

static void well_formed(void)
{
    for (unsigned i = 0; i < map.count; i++) {
        assert_true(map.ranges[i].start < map.ranges[i].end);
        assert_true(!i || map.ranges[i - 1].end < map.ranges[i].start);
        assert_int_equal((map.ranges[i].start | map.ranges[i].end) % K4, 0);
    }
}

static void a_pc_with_holes(void **state)
{
    const struct memmap_entry e[] = {
        { 0x100000000, 5 * GIB, 1, 0 }, { 0, 0x9fc00, 1, 0 }, { 0x9fc00, 0x400, 2, 0 }, { 0xf0000, 0x10000, 2, 0 },
        { MIB, 0xbfee0000 - MIB, 1, 0 }, { 0xbffe0000, 0x20000, 2, 0 }, { 0xfd00000000, 0x300000000, 2, 0 },
    };
    memmap_build(&map, e, 7, UINT64_MAX);
    well_formed();
    assert_int_equal(map.count, 3);
    assert_int_equal(map.ranges[0].end, 0x9f000);
    assert_int_equal(map.ranges[2].end, 0x100000000 + 5 * GIB);
    assert_int_equal(memmap_total(&map), 0x9f000 + 0xbfee0000 - MIB + 5 * GIB);
    assert_true(memmap_contains(&map, MIB, 2 * MIB));
    assert_false(memmap_contains(&map, 0, 2 * MIB));
}

static void reserved_wins_over_ram(void **state)
{
    const struct memmap_entry e[] = { { 0, 16 * MIB, 1, 0 }, { 4 * MIB + 100, 50, 2, 0 }, { 8 * MIB, 20 * MIB, 3, 0 } };
    memmap_build(&map, e, 3, UINT64_MAX);
    well_formed();
    assert_int_equal(map.count, 2);
    assert_int_equal(map.ranges[0].end, 4 * MIB);
    assert_int_equal(map.ranges[1].start, 4 * MIB + K4);
    assert_int_equal(map.ranges[1].end, 8 * MIB);
}

static void malformed_entries_are_skipped(void **state)
{
    const struct memmap_entry e[] = {
        { UINT64_MAX - 100, 4096, 1, 0 }, { UINT64_MAX, 0, 1, 0 }, { 5000, 0, 1, 0 }, { 4097, 4094, 1, 0 },
        { 8 * MIB, 4 * MIB, 1, 0 }, { 9 * MIB, UINT64_MAX, 2, 0 },
    };
    memmap_build(&map, e, 6, UINT64_MAX);
    well_formed();
    assert_int_equal(map.count, 1);
    assert_int_equal(map.ranges[0].end, 9 * MIB);
}

static void memory_beyond_the_limit_is_cut(void **state)
{
    const struct memmap_entry e[] = { { 0, 64 * GIB, 1, 0 } };
    memmap_build(&map, e, 1, 4 * GIB);
    assert_int_equal(memmap_total(&map), 4 * GIB);
}

static void taking_respects_size_alignment_and_limit(void **state)
{
    const struct memmap_entry e[] = { { K4, 10 * MIB - K4, 1, 0 }, { 20 * MIB, 3 * MIB + K4, 1, 0 } };
    memmap_build(&map, e, 2, UINT64_MAX);
    assert_int_equal(memmap_take(&map, 2 * MIB, 2 * MIB, UINT64_MAX), 20 * MIB);
    assert_int_equal(memmap_take(&map, K4, K4, 5 * MIB), 5 * MIB - K4);
    assert_int_equal(memmap_take(&map, 2 * MIB, 2 * MIB, 5 * MIB), 2 * MIB);
    assert_int_equal(memmap_take(&map, 100 * MIB, K4, UINT64_MAX), 0);
    well_formed();
    /* Page 0 is never given: 0 means none. */
    memmap_build(&map, &(struct memmap_entry){ 0, K4, 1, 0 }, 1, UINT64_MAX);
    assert_int_equal(memmap_take(&map, K4, K4, UINT64_MAX), 0);
}

static void random_maps_agree_with_a_model(void **state)
{
    enum { PAGES = 256 };
    srand(2);
    for (unsigned round = 0; round < 3000; round++) {
        struct memmap_entry e[12];
        bool model[PAGES] = { false };
        for (unsigned i = 0; i < 12; i++) {
            unsigned first = (unsigned)rand() % PAGES, n = (unsigned)rand() % 40;
            e[i] = (struct memmap_entry){ first * K4, MIN(n, PAGES - first) * K4, rand() % 3 ? 1 : 2, 0 };
            for (unsigned p = first; e[i].type == 1 && p < MIN(first + n, (unsigned)PAGES); p++)
                model[p] = true;
        }
        for (unsigned i = 0; i < 12; i++) {
            for (uint64_t p = e[i].start / K4; e[i].type == 2 && p < (e[i].start + e[i].size) / K4; p++)
                model[p] = false;
        }
        memmap_build(&map, e, 12, UINT64_MAX);
        well_formed();
        for (unsigned p = 0; p < PAGES; p++)
            assert_int_equal(memmap_contains(&map, p * K4, (p + 1) * K4), model[p]);
    }
}

static void full_map_loses_ranges_but_stays_valid(void **state)
{
    struct memmap_entry e[MEMMAP_MAX + 20];
    for (unsigned i = 0; i < MEMMAP_MAX + 20; i++)
        e[i] = (struct memmap_entry){ i * 2 * K4, K4, 1, 0 };
    memmap_build(&map, e, MEMMAP_MAX + 20, UINT64_MAX);
    assert_int_equal(map.count, MEMMAP_MAX);
    well_formed();
    memmap_remove(&map, 0, UINT64_MAX);
    assert_int_equal(map.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pc_with_holes),
        cmocka_unit_test(reserved_wins_over_ram),
        cmocka_unit_test(malformed_entries_are_skipped),
        cmocka_unit_test(memory_beyond_the_limit_is_cut),
        cmocka_unit_test(taking_respects_size_alignment_and_limit),
        cmocka_unit_test(random_maps_agree_with_a_model),
        cmocka_unit_test(full_map_loses_ranges_but_stays_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
