/*
 * What the module loader must know of a shared object, found with every offset checked against the file.
 * Pure: no memory is allocated, nothing outside the file is read.
 */
#ifndef CORE_NET_MODULE_ELF_H
#define CORE_NET_MODULE_ELF_H
#include <weir/compiler.h>

#define MODULE_SEGMENTS 8
struct module_segment {
    uint64_t offset, address, file_size, memory_size; /* address is where the link editor placed it, from 0 */
    bool write, execute;
};
struct module_elf {
    const uint8_t *file;
    size_t size;
    struct module_segment segments[MODULE_SEGMENTS];
    unsigned segment_count;
    uint64_t memory_size;        /* from address 0, whole pages */
    /* as offsets into the file */
    uint64_t symbols, symbol_count, strings, strings_size, relocations, relocation_count;
};
struct module_relocation {
    uint64_t address;            /* inside a writable segment, eight bytes */
    bool relative;
    uint64_t addend;             /* relative: added to the base; else to the symbol's address */
    const char *symbol;          /* import by name; NULL for relative */
};

/* 0, or -ENOEXEC with *why. */
int module_elf_parse(const void *file, size_t size, struct module_elf *out, const char **why) __must_check;
int module_elf_relocation(const struct module_elf *m, uint64_t index, struct module_relocation *out, const char **why) __must_check;
/* Address of a defined symbol, from 0. -ENOENT. */
int module_elf_symbol(const struct module_elf *m, const char *name, uint64_t *address) __must_check;
#endif
