/* The DSDT's bytes: what QEMU's tables state, other encodings of it, and tables that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "arch/x86_64/aml.h"

#define HEADER 36

static struct aml_facts scan(const void *body, size_t length)
{
    struct aml_facts facts;
    uint8_t *table = calloc(1, HEADER + length); /* exact: a read beyond the end is caught */
    memcpy(table + HEADER, body, length);
    aml_scan(table, HEADER + length, &facts);
    free(table);
    return facts;
}
#define SCAN(text) scan(text, sizeof(text) - 1)

static const char q35_crs[] = "\x87\x17\0\0\x0c\x03\0\0\0\0\0\0\x0a\0\xff\xff\x0b\0\0\0\0\0\0\0\x02\0"
                              "\x87\x17\0\0\x0c\x01\0\0\0\0\0\0\0\xe0\xff\xff\xbf\xfe\0\0\0\0\0\0\xc0\x1e";

static void soft_off_is_found_in_both_encodings(void **state)
{
    struct aml_facts f = SCAN("\x08_S5_\x12\x06\x04\x0a\x05\x0a\x03\0\0");
    assert_int_equal(f.s5_a, 5);
    assert_int_equal(f.s5_b, 3);
    f = SCAN("\x08_S5_\x12\x06\x04\0\x01\0\0");
    assert_int_equal(f.s5_a, 0);
    assert_int_equal(f.s5_b, 1);
    f = SCAN("\x08_S5_\x12\x46\x01\x04\x01\0\0\0"); /* a length of two bytes */
    assert_int_equal(f.s5_a, 1);
    f = SCAN("\x08_S5_\x12\x06\x04\x0a\x55\0\0\0"); /* three bits exist */
    assert_int_equal(f.s5_a, -1);
    f = SCAN("\x08_S5_\x11\x06\x04\0\x01\0\0");
    assert_int_equal(f.s5_a, -1);
}

static void the_ecam_base_is_a_name_or_a_method(void **state)
{
    assert_int_equal(SCAN("\x14\x0c_CBA\0\xa4\x0c\0\0\0\xe0").ecam_base, 0xe0000000);
    assert_int_equal(SCAN("\x14\x10_CBA\0\xa4\x0e\0\0\0\0\xc0\0\0\0").ecam_base, 0xc000000000);
    assert_int_equal(SCAN("\x08_CBA\x0c\0\0\0\xe0").ecam_base, 0xe0000000);
    assert_int_equal(SCAN("\x14\x0c_CBA\0\x70\x0c\0\0\0\xe0").ecam_base, 0); /* computed */
    assert_int_equal(SCAN("\x08_CBA\x0c\0\x10\0\xe0").ecam_base, 0);         /* not on a bus */
    assert_int_equal(SCAN("____CBA\x0c\0\0\0\xe0").ecam_base, 0);
}

static void the_largest_memory_window_counts(void **state)
{
    struct aml_facts f = scan(q35_crs, sizeof(q35_crs) - 1);
    assert_int_equal(f.window_start, 0xe0000000);
    assert_int_equal(f.window_end, 0xfec00000);
    char wrong[sizeof(q35_crs)];
    memcpy(wrong, q35_crs, sizeof(wrong));
    wrong[26 + 3] = 1; /* I/O */
    assert_int_equal(scan(wrong, sizeof(wrong) - 1).window_end, 0);
    memcpy(wrong, q35_crs, sizeof(wrong));
    wrong[26 + 25] ^= 1; /* a length that does not fit */
    assert_int_equal(scan(wrong, sizeof(wrong) - 1).window_end, 0);
}

/* Cut anywhere, and with any byte changed: ASan watches. */
static void no_table_does_harm(void **state)
{
    static const char all[] = "\x08_S5_\x12\x06\x04\x0a\x05\x0a\x03\0\0\x14\x10_CBA\0\xa4\x0e\0\0\0\0\xc0\0\0\0"
                              "\x87\x17\0\0\x0c\x01\0\0\0\0\0\0\0\xe0\xff\xff\xbf\xfe\0\0\0\0\0\0\xc0\x1e";
    for (size_t length = 0; length < sizeof(all); length++)
        (void)scan(all, length);
    for (size_t at = 0; at < sizeof(all) - 1; at++) {
        for (unsigned v = 0; v < 256; v++) {
            char changed[sizeof(all)];
            memcpy(changed, all, sizeof(all));
            changed[at] = (char)v;
            struct aml_facts f = scan(changed, sizeof(all) - 1);
            assert_true(f.s5_a >= -1 && f.s5_a <= 7 && f.window_start <= f.window_end);
            (void)scan(changed, at + 1);
        }
    }
    for (size_t header = 0; header < HEADER; header++) {
        struct aml_facts f;
        uint8_t *table = calloc(1, header + 1);
        aml_scan(table, header, &f);
        free(table);
        assert_int_equal(f.s5_a, -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soft_off_is_found_in_both_encodings),
        cmocka_unit_test(the_ecam_base_is_a_name_or_a_method),
        cmocka_unit_test(the_largest_memory_window_counts),
        cmocka_unit_test(no_table_does_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
