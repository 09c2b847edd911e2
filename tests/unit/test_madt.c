/* The MADT parser: what QEMU writes, gaps, both entry types, and tables that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "arch/x86_64/madt.h"

#define FIXED 44
static uint8_t *table;
static size_t used;
static struct madt_info info;

static void put(size_t at, uint32_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        table[at + i] = (uint8_t)(v >> (8 * i));
}

static void begin(void)
{
    used = FIXED;
    table = realloc(table, used);
    memset(table, 0, used);
    memcpy(table, "APIC", 4);
    put(36, 0xfee00000, 4);
    put(40, 1, 4);
}

static size_t entry(unsigned type, unsigned length)
{
    size_t at = used;
    used += length;
    table = realloc(table, used); /* exact: a read beyond the end is caught */
    memset(table + at, 0, length);
    if (length > 0)
        table[at] = (uint8_t)type;
    if (length > 1)
        table[at + 1] = (uint8_t)length;
    return at;
}

static void xapic(unsigned id, unsigned flags)
{
    size_t at = entry(0, 8);
    table[at + 3] = (uint8_t)id;
    put(at + 4, flags, 4);
}

static void x2apic(uint32_t id, unsigned flags)
{
    size_t at = entry(9, 16);
    put(at + 4, id, 4);
    put(at + 8, flags, 4);
}

static bool parse(void)
{
    put(4, (uint32_t)used, 4);
    return madt_parse(table, used, &info);
}

static void ids_with_gaps_keep_table_order(void **state)
{
    begin();
    for (unsigned i = 0; i < 48; i++)
        xapic(i / 3 * 4 + i % 3, 1);
    assert_true(parse());
    assert_int_equal(info.cpu_count, 48);
    assert_int_equal(info.apic_ids[3], 4);
    assert_int_equal(info.apic_ids[47], 62);
    assert_true(info.has_8259);
    assert_int_equal(info.lapic_phys, 0xfee00000);
}

static void disabled_and_invalid_entries_are_skipped(void **state)
{
    begin();
    xapic(0, 1);
    xapic(1, 0);
    xapic(2, 2); /* may be enabled later: not now */
    xapic(255, 1);
    x2apic(0xffffffff, 1);
    x2apic(300, 0);
    assert_true(parse());
    assert_int_equal(info.cpu_count, 1);
}

static void cpu_listed_in_both_forms_counts_once(void **state)
{
    begin();
    xapic(7, 1);
    x2apic(7, 1);
    x2apic(256, 1);
    x2apic(70000, 1);
    assert_true(parse());
    assert_int_equal(info.cpu_count, 3);
    assert_int_equal(info.apic_ids[1], 256);
    assert_int_equal(info.apic_ids[2], 70000);
}

static void more_cpus_than_supported_are_counted_not_stored(void **state)
{
    begin();
    for (unsigned i = 0; i < CPU_MAX + 10; i++)
        x2apic(i, 1);
    assert_true(parse());
    assert_int_equal(info.cpu_count, CPU_MAX);
    assert_int_equal(info.cpu_left_out, 10);
}

static void overrides_and_ioapics(void **state)
{
    begin();
    size_t at = entry(1, 12);
    table[at + 2] = 0;
    put(at + 4, 0xfec00000, 4);
    put(at + 8, 24, 4);
    at = entry(2, 10);
    table[at + 3] = 0;
    put(at + 4, 2, 4);
    at = entry(2, 10);
    table[at + 3] = 9;
    put(at + 4, 9, 4);
    put(at + 8, 0xd, 2);
    at = entry(2, 10);
    table[at + 3] = 11;
    put(at + 4, 20, 4);
    put(at + 8, 0xf, 2);
    at = entry(2, 10); /* no such ISA line */
    table[at + 3] = 16;
    put(at + 4, 99, 4);
    at = entry(5, 12);
    put(at + 4, 0xfee01000, 4);
    put(at + 8, 1, 4);
    assert_true(parse());
    assert_int_equal(info.ioapic_count, 1);
    assert_int_equal(info.ioapics[0].gsi_base, 24);
    assert_int_equal(info.isa[0].gsi, 2);
    assert_false(info.isa[0].level);
    assert_true(info.isa[9].level && !info.isa[9].active_low && info.isa[9].listed);
    assert_true(info.isa[11].level && info.isa[11].active_low);
    assert_int_equal(info.isa[4].gsi, 4);
    assert_false(info.isa[4].listed);
    assert_int_equal(info.lapic_phys, 0x1fee01000);
}

static void malformed_tables_are_survived(void **state)
{
    size_t at;
    begin();
    assert_false(madt_parse(table, 0, &info));
    put(4, 20, 4); /* says it is shorter than its fixed part */
    assert_false(madt_parse(table, used, &info));
    put(4, 0xffffffff, 4); /* longer than what can be read */
    assert_true(madt_parse(table, used, &info));
    assert_int_equal(info.cpu_count, 0);
    memcpy(table, "FACP", 4);
    assert_false(madt_parse(table, used, &info));

    begin();
    xapic(0, 1);
    at = entry(0, 8);
    table[at + 1] = 0; /* an entry of length 0 must not loop */
    assert_true(parse());
    assert_int_equal(info.cpu_count, 1);

    begin();
    xapic(0, 1);
    at = entry(9, 3);
    table[at + 1] = 16; /* runs past the end */
    assert_true(parse());
    assert_int_equal(info.cpu_count, 1);

    begin();
    entry(0, 2); /* too short for their kind */
    entry(9, 4);
    entry(1, 2);
    entry(2, 3);
    entry(5, 2);
    entry(0x80, 200);
    xapic(3, 1);
    entry(0, 1);
    assert_true(parse());
    assert_int_equal(info.cpu_count, 1);
    assert_int_equal(info.ioapic_count, 0);
}

static void random_tables_stay_in_bounds(void **state)
{
    srand(1);
    for (unsigned round = 0; round < 20000; round++) {
        begin();
        entry(0, (unsigned)(rand() % 64));
        for (size_t i = FIXED; i < used; i++)
            table[i] = (uint8_t)(rand() % 18);
        (void)parse();
        assert_true(info.cpu_count <= CPU_MAX && info.ioapic_count <= MADT_IOAPIC_MAX);
    }
    free(table);
    table = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_with_gaps_keep_table_order),
        cmocka_unit_test(disabled_and_invalid_entries_are_skipped),
        cmocka_unit_test(cpu_listed_in_both_forms_counts_once),
        cmocka_unit_test(more_cpus_than_supported_are_counted_not_stored),
        cmocka_unit_test(overrides_and_ioapics),
        cmocka_unit_test(malformed_tables_are_survived),
        cmocka_unit_test(random_tables_stay_in_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
