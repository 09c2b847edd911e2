/*
 * Reading an ELF executable's headers: pure, bounds-checked, no allocation. The bytes come from a file that may be
 * anything. Segments come out in ascending order without overlap, inside the program half.
 */
#ifndef WEIR_LINUX_ELF_H
#define WEIR_LINUX_ELF_H
#include <weir/compiler.h>

#define ELF_HEADER_SIZE   64u
#define ELF_PHDR_SIZE     56u
#define ELF_PHDRS_MAX     128u /* program headers of a file */
#define ELF_SEGMENTS_MAX  32u  /* of these, to be loaded */

enum { ELF_PROT_READ = 1, ELF_PROT_WRITE = 2, ELF_PROT_EXEC = 4 }; /* as PROT_* */

struct elf_segment {
    uint64_t vaddr, offset; /* congruent modulo the page size */
    uint64_t file_size, mem_size;
    unsigned prot;
};

struct elf_image {
    bool relocatable;          /* ET_DYN: may be loaded anywhere */
    bool exec_stack;
    uint64_t entry;            /* before relocation, as all addresses here */
    uint64_t phdr_offset;      /* of the program headers in the file */
    unsigned phdr_count;
    uint64_t phdr_vaddr;       /* where they are in memory; 0 = in no segment */
    uint64_t low, high;        /* span of all segments, page-aligned */
    uint64_t align;            /* greatest alignment asked for, at least a page */
    uint64_t interp_offset, interp_size; /* path of the interpreter in the file, size with NUL; 0 = none */
    unsigned segment_count;
    struct elf_segment segments[ELF_SEGMENTS_MAX];
};

/* File header in data[0..len): fills entry, phdr_*, relocatable. -ENOEXEC. */
int elf_parse_header(const void *data, size_t len, struct elf_image *image) __must_check;
/* Program headers, phdr_count * ELF_PHDR_SIZE bytes, of a file of file_size bytes: the rest. -ENOEXEC. */
int elf_parse_segments(const void *phdrs, size_t len, uint64_t file_size, struct elf_image *image) __must_check;
#endif
