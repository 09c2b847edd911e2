/* The ELF reader: what it accepts, and that nothing else gets through. */
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <weir/errno.h>
#include "core/linux/elf.h"

#define FILE_SIZE 0x5000
#define SEGMENTS 4

/* A plausible position-independent program: text, data with bss, interpreter, stack. */
static void make(Elf64_Ehdr *h, Elf64_Phdr p[SEGMENTS])
{
    memset(h, 0, sizeof *h);
    memcpy(h->e_ident, ELFMAG, SELFMAG);
    h->e_ident[EI_CLASS] = ELFCLASS64;
    h->e_ident[EI_DATA] = ELFDATA2LSB;
    h->e_type = ET_DYN;
    h->e_machine = EM_X86_64;
    h->e_entry = 0x1234;
    h->e_phoff = 64;
    h->e_phentsize = sizeof(Elf64_Phdr);
    h->e_phnum = SEGMENTS;
    p[0] = (Elf64_Phdr){.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = 0x2000, .p_memsz = 0x2000, .p_align = 0x1000};
    p[1] = (Elf64_Phdr){.p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_offset = 0x2100, .p_vaddr = 0x3100, .p_filesz = 0x500,
                        .p_memsz = 0x3000, .p_align = 0x1000};
    p[2] = (Elf64_Phdr){.p_type = PT_INTERP, .p_offset = 0x300, .p_filesz = 28, .p_memsz = 28};
    p[3] = (Elf64_Phdr){.p_type = PT_GNU_STACK, .p_flags = PF_R | PF_W};
}

static int parse(const Elf64_Ehdr *h, const Elf64_Phdr *p, struct elf_image *image)
{
    int r = elf_parse_header(h, sizeof *h, image);
    return r ? r : elf_parse_segments(p, SEGMENTS * sizeof *p, FILE_SIZE, image);
}

static void reads_a_plausible_program(void **state)
{
    struct elf_image image;
    Elf64_Ehdr h;
    Elf64_Phdr p[SEGMENTS];
    make(&h, p);
    assert_int_equal(parse(&h, p, &image), 0);
    assert_true(image.relocatable);
    assert_false(image.exec_stack);
    assert_int_equal(image.entry, 0x1234);
    assert_int_equal(image.segment_count, 2);
    assert_int_equal(image.low, 0);
    assert_int_equal(image.high, 0x7000);
    assert_int_equal(image.phdr_vaddr, 64);
    assert_int_equal(image.interp_offset, 0x300);
    assert_int_equal(image.interp_size, 28);
    assert_int_equal(image.segments[0].prot, ELF_PROT_READ | ELF_PROT_EXEC);
    assert_int_equal(image.segments[1].prot, ELF_PROT_READ | ELF_PROT_WRITE);
    assert_int_equal(image.segments[1].mem_size, 0x3000);
}

static void takes_the_greatest_alignment(void **state)
{
    struct elf_image image;
    Elf64_Ehdr h;
    Elf64_Phdr p[SEGMENTS];
    make(&h, p);
    p[0].p_align = 0x200000;
    assert_int_equal(parse(&h, p, &image), 0);
    assert_int_equal(image.align, 0x200000);
    p[0].p_align = 0x3000;
    assert_int_equal(parse(&h, p, &image), -ENOEXEC);
}

/* One field broken at a time. */
#define REFUSED(change)                                                                                        \
    do {                                                                                                       \
        struct elf_image refused_image;                                                                        \
        Elf64_Ehdr h;                                                                                          \
        Elf64_Phdr p[SEGMENTS];                                                                                \
        make(&h, p);                                                                                           \
        change;                                                                                                \
        assert_int_equal(parse(&h, p, &refused_image), -ENOEXEC);                                              \
    } while (0)

static void refuses_what_is_not_for_this_machine(void **state)
{
    REFUSED(h.e_ident[0] = 'x');
    REFUSED(h.e_ident[EI_CLASS] = ELFCLASS32);
    REFUSED(h.e_ident[EI_DATA] = ELFDATA2MSB);
    REFUSED(h.e_machine = EM_AARCH64);
    REFUSED(h.e_type = ET_REL);
    REFUSED(h.e_type = ET_CORE);
}

static void refuses_broken_tables(void **state)
{
    struct elf_image image;
    Elf64_Ehdr header;
    Elf64_Phdr table[SEGMENTS];
    REFUSED(h.e_phentsize = 32);
    REFUSED(h.e_phnum = 0);
    REFUSED(h.e_phnum = 0xffff);
    REFUSED(h.e_phoff = UINT64_MAX - 8);
    make(&header, table);
    assert_int_equal(elf_parse_header(&header, sizeof header - 1, &image), -ENOEXEC);
    assert_int_equal(elf_parse_header(&header, sizeof header, &image), 0);
    assert_int_equal(elf_parse_segments(table, SEGMENTS * sizeof *table - 1, FILE_SIZE, &image), -ENOEXEC);
}

static void refuses_segments_outside_file_or_memory(void **state)
{
    REFUSED(p[0].p_filesz = 0x6000);
    REFUSED(p[1].p_offset = UINT64_MAX & ~0xfffUL);
    REFUSED(p[1].p_memsz = 0x100);
    REFUSED(p[1].p_vaddr = 0x00007fffffffe100);
    REFUSED(p[1].p_memsz = UINT64_MAX - 0x3000);
    REFUSED(p[1].p_vaddr = 0xffff800000000100);
    REFUSED(p[1].p_offset = 0x2200);
    REFUSED(p[2].p_filesz = 0);
    REFUSED(p[2].p_filesz = 0x4fff);
    REFUSED(p[2].p_offset = UINT64_MAX);
}

static void refuses_overlap_and_disorder(void **state)
{
    REFUSED(p[1].p_vaddr = 0x1100);
    REFUSED(p[0].p_vaddr = 0x8000);
    REFUSED(p[0].p_memsz = 0x3001);
}

static void refuses_a_fixed_program_at_the_null_page(void **state)
{
    struct elf_image image;
    Elf64_Ehdr header;
    Elf64_Phdr table[SEGMENTS];
    REFUSED(h.e_type = ET_EXEC);
    make(&header, table);
    header.e_type = ET_EXEC;
    table[0].p_vaddr += 0x400000;
    table[1].p_vaddr += 0x400000;
    assert_int_equal(parse(&header, table, &image), 0);
    assert_false(image.relocatable);
}

static void refuses_a_program_without_segments(void **state)
{
    REFUSED(p[0].p_type = PT_NULL; p[1].p_type = PT_NOTE);
    REFUSED(p[0].p_memsz = p[0].p_filesz = 0; p[1].p_memsz = p[1].p_filesz = 0);
}

/* Whatever comes out has the properties that the loader relies on. */
static void check(const struct elf_image *image)
{
    uint64_t end = 0;
    assert_in_range(image->segment_count, 1, ELF_SEGMENTS_MAX);
    for (unsigned i = 0; i < image->segment_count; i++) {
        const struct elf_segment *s = &image->segments[i];
        assert_true(s->vaddr + s->mem_size > s->vaddr && s->vaddr + s->mem_size < 0x00007ffffffff000);
        assert_true(s->file_size <= s->mem_size && s->offset + s->file_size <= FILE_SIZE);
        assert_true((s->vaddr & ~0xfffUL) >= end && (s->vaddr - s->offset) % 4096 == 0);
        end = (s->vaddr + s->mem_size + 4095) & ~0xfffUL;
    }
    assert_true(image->high == end && image->low <= image->segments[0].vaddr);
    assert_true(image->align >= 4096 && !(image->align & (image->align - 1)));
}

static void random_damage_never_gets_through(void **state)
{
    unsigned accepted = 0;
    srand(7);
    for (unsigned round = 0; round < 200000; round++) {
        struct {
            Elf64_Ehdr h;
            Elf64_Phdr p[SEGMENTS];
        } f;
        struct elf_image image;
        make(&f.h, f.p);
        for (int n = rand() % 4; n >= 0; n--)
            ((uint8_t *)&f)[(size_t)rand() % sizeof f] = (uint8_t)(rand() % 3 ? 1 << rand() % 8 : rand());
        if (!parse(&f.h, f.p, &image)) {
            check(&image);
            accepted++;
        }
    }
    assert_in_range(accepted, 1000, 199000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_plausible_program),
        cmocka_unit_test(takes_the_greatest_alignment),
        cmocka_unit_test(refuses_what_is_not_for_this_machine),
        cmocka_unit_test(refuses_broken_tables),
        cmocka_unit_test(refuses_segments_outside_file_or_memory),
        cmocka_unit_test(refuses_overlap_and_disorder),
        cmocka_unit_test(refuses_a_fixed_program_at_the_null_page),
        cmocka_unit_test(refuses_a_program_without_segments),
        cmocka_unit_test(random_damage_never_gets_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
