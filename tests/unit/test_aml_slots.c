/* Buses of QEMU's hot-plug registers in a DSDT: found by bytes, whatever else the table holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/string.h>

#include "drivers/pci/aml_slots.h"

static uint8_t aml[512];
static size_t length;

static void bytes(const void *p, size_t n)
{
    memcpy(aml + length, p, n);
    length += n;
}

/* Device(name) with a two-byte package length, closed by device_end. */
static size_t device(const char *name)
{
    bytes("\x5b\x82\x40\x00", 4);
    bytes(name, 4);
    return length - 6;
}

static void device_end(size_t at)
{
    size_t n = length - at;
    aml[at] = (uint8_t)(0x40 | (n & 15));
    aml[at + 1] = (uint8_t)(n >> 4);
}

static int begin(void **state)
{
    memset(aml, 0, sizeof(aml));
    length = 36;
    return 0;
}

static void the_root_bus_and_a_bus_behind_two_bridges(void **state)
{
    struct aml_slots s[4];
    size_t host = device("PCI0");
    bytes("\x08" "BSEL\x00", 6);
    size_t outer = device("S28_"), inner = device("SF8_");
    bytes("\x08" "BSEL\x0a\x07", 7);
    device_end(inner);
    device_end(outer);
    size_t slot = device("S30_"); /* beside, not around */
    device_end(slot);
    device_end(host);
    assert_int_equal(aml_slots_find(aml, length, s, 4), 2);
    assert_true(s[0].selector == 0 && s[0].depth == 0);
    assert_true(s[1].selector == 7 && s[1].depth == 2 && s[1].path[0] == 0x28 && s[1].path[1] == 0xf8);
}

static void a_use_of_the_name_is_not_its_definition(void **state)
{
    struct aml_slots s[4];
    bytes("\x12\x0a\x02" "BSEL" "ASUN", 11);
    assert_int_equal(aml_slots_find(aml, length, s, 4), 0);
}

static void what_ends_too_early_is_not_read(void **state)
{
    struct aml_slots s[4];
    bytes("\x08" "BSEL\x0c\x01\x02", 8); /* a constant of four bytes with two */
    assert_int_equal(aml_slots_find(aml, length, s, 4), 0);
    begin(state);
    bytes("\x5b\x82\x7f\xffS08_\x08" "BSEL\x01", 14); /* a device longer than the table */
    assert_int_equal(aml_slots_find(aml, length, s, 4), 1);
    assert_int_equal(s[0].depth, 0);
    for (size_t n = 0; n < length; n++)
        (void)aml_slots_find(aml, n, s, 4);
}

static void no_more_than_there_is_room_for_and_no_deeper(void **state)
{
    struct aml_slots s[2];
    for (unsigned i = 0; i < 3; i++)
        bytes("\x08" "BSEL\x01", 6);
    assert_int_equal(aml_slots_find(aml, length, s, 2), 2);
    begin(state);
    size_t at[AML_PATH_MAX + 1];
    for (unsigned i = 0; i <= AML_PATH_MAX; i++)
        at[i] = device("S08_");
    bytes("\x08" "BSEL\x01", 6);
    for (unsigned i = AML_PATH_MAX + 1; i > 0; i--)
        device_end(at[i - 1]);
    assert_int_equal(aml_slots_find(aml, length, s, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_root_bus_and_a_bus_behind_two_bridges, begin),
        cmocka_unit_test_setup(a_use_of_the_name_is_not_its_definition, begin),
        cmocka_unit_test_setup(what_ends_too_early_is_not_read, begin),
        cmocka_unit_test_setup(no_more_than_there_is_room_for_and_no_deeper, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
