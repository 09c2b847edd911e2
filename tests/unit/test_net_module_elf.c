/* The module loader's view of a shared object: right for ours, and nothing outside the file for any other. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>
#include "core/net/module_elf.h"

static uint8_t *module;
static size_t module_size;

static int read_module(void **state)
{
    FILE *f = fopen(MODULE_FILE, "rb");
    if (!f)
        return -1;
    fseek(f, 0, SEEK_END);
    module_size = (size_t)ftell(f);
    rewind(f);
    module = malloc(module_size);
    size_t n = fread(module, 1, module_size, f);
    fclose(f);
    return n == module_size ? 0 : -1;
}

/* Everything the loader would do with it; 0 if it would load. */
static int load(const uint8_t *file, size_t size)
{
    struct module_elf m;
    const char *why = NULL;
    uint64_t entry;
    if (module_elf_parse(file, size, &m, &why)) {
        assert_non_null(why);
        return -1;
    }
    for (unsigned i = 0; i < m.segment_count; i++) {
        const struct module_segment *s = &m.segments[i];
        assert_true(s->offset + s->file_size <= size && s->file_size <= s->memory_size);
        assert_true(s->address + s->memory_size <= m.memory_size);
        assert_false(s->write && s->execute);
    }
    for (uint64_t i = 0; i < m.relocation_count; i++) {
        struct module_relocation r;
        if (module_elf_relocation(&m, i, &r, &why))
            return -1;
        assert_true(r.address + 8 <= m.memory_size);
        if (r.symbol)
            assert_true(strlen(r.symbol) < size);
        else
            assert_true(r.addend < m.memory_size);
    }
    return module_elf_symbol(&m, "lwip_module_ops", &entry);
}

static void the_module_is_understood(void **state)
{
    struct module_elf m;
    const char *why;
    assert_int_equal(load(module, module_size), 0);
    assert_int_equal(module_elf_parse(module, module_size, &m, &why), 0);
    assert_in_range(m.segment_count, 2, MODULE_SEGMENTS);
    assert_in_range(m.relocation_count, 10, 1000);
    uint64_t address;
    assert_int_not_equal(module_elf_symbol(&m, "no_such_symbol", &address), 0);
}

static void a_module_that_is_cut_off_is_refused(void **state)
{
    /* Segments end long before the file does: sections and debug information are not read. */
    struct module_elf m;
    const char *why;
    assert_int_equal(module_elf_parse(module, module_size, &m, &why), 0);
    const struct module_segment *last = &m.segments[m.segment_count - 1];
    size_t needed = last->offset + last->file_size;
    for (size_t size = 0; size < needed; size += 1 + size / 16) {
        uint8_t *cut = malloc(size ? size : 1);
        memcpy(cut, module, size);
        assert_int_not_equal(load(cut, size), 0);
        free(cut);
    }
}

static void damage_is_refused_or_harmless(void **state)
{
    srand(7);
    size_t interesting = 8192; /* headers, symbols, strings, relocations */
    uint8_t *copy = malloc(module_size);
    for (unsigned round = 0; round < 3000; round++) {
        memcpy(copy, module, module_size);
        unsigned hits = 1 + (unsigned)rand() % 4;
        for (unsigned i = 0; i < hits; i++)
            copy[(size_t)rand() % interesting] = (uint8_t)(rand() % 3 ? rand() : 0xff);
        (void)load(copy, module_size); /* ASan and the assertions in load() judge */
    }
    free(copy);
}

static void the_dynamic_section_damaged_is_refused_or_harmless(void **state)
{
    struct module_elf m;
    const char *why;
    assert_int_equal(module_elf_parse(module, module_size, &m, &why), 0);
    const struct module_segment *data = &m.segments[m.segment_count - 1];
    uint8_t *copy = malloc(module_size);
    srand(11);
    for (unsigned round = 0; round < 3000; round++) {
        memcpy(copy, module, module_size);
        for (unsigned i = 0; i < 3; i++)
            copy[data->offset + (size_t)rand() % data->file_size] = (uint8_t)(rand() % 2 ? rand() : 0xff);
        (void)load(copy, module_size);
    }
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_module_is_understood),
        cmocka_unit_test(a_module_that_is_cut_off_is_refused),
        cmocka_unit_test(damage_is_refused_or_harmless),
        cmocka_unit_test(the_dynamic_section_damaged_is_refused_or_harmless),
    };
    return cmocka_run_group_tests(tests, read_module, NULL);
}
