#include <weir/errno.h>
#include <weir/string.h>
#include "core/net/module_elf.h"

struct elf_header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
};
struct elf_program_header {
    uint32_t type, flags;
    uint64_t offset, vaddr, paddr, filesz, memsz, align;
};
struct elf_dynamic {
    int64_t tag;
    uint64_t value;
};
struct elf_symbol {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, size;
};
struct elf_rela {
    uint64_t offset, info;
    int64_t addend;
};

enum { ET_DYN = 3, EM_X86_64 = 62, PT_LOAD = 1, PT_DYNAMIC = 2, PF_X = 1, PF_W = 2 };
enum { DT_NULL = 0, DT_PLTRELSZ = 2, DT_HASH = 4, DT_STRTAB = 5, DT_SYMTAB = 6, DT_RELA = 7, DT_RELASZ = 8, DT_STRSZ = 10,
       DT_TEXTREL = 22, DT_JMPREL = 23 };
enum { R_X86_64_64 = 1, R_X86_64_GLOB_DAT = 6, R_X86_64_JUMP_SLOT = 7, R_X86_64_RELATIVE = 8 };

#define PAGE 4096UL
#define MEMORY_MAX (16UL << 20)

#define REFUSE(text) \
    do { \
        *why = (text); \
        return -ENOEXEC; \
    } while (0)

static bool inside(uint64_t offset, uint64_t len, uint64_t size)
{
    return offset <= size && len <= size - offset;
}

/* File offset of [address, address + len), which must lie in one segment's file part. */
static bool file_offset(const struct module_elf *m, uint64_t address, uint64_t len, uint64_t *offset)
{
    for (unsigned i = 0; i < m->segment_count; i++) {
        const struct module_segment *s = &m->segments[i];
        if (address >= s->address && inside(address - s->address, len, s->file_size)) {
            *offset = s->offset + (address - s->address);
            return true;
        }
    }
    return false;
}

static int add_segment(struct module_elf *m, const struct elf_program_header *p, const char **why)
{
    if (m->segment_count == MODULE_SEGMENTS)
        REFUSE("too many segments");
    if (!inside(p->offset, p->filesz, m->size) || p->filesz > p->memsz)
        REFUSE("segment outside the file");
    if (!inside(p->vaddr, p->memsz, MEMORY_MAX))
        REFUSE("segment outside the address range");
    if ((p->flags & PF_W) && (p->flags & PF_X))
        REFUSE("segment is writable and executable");
    if (m->segment_count) {
        const struct module_segment *last = &m->segments[m->segment_count - 1];
        /* No page belongs to two segments: their protection differs. */
        if (p->vaddr / PAGE < (last->address + last->memory_size + PAGE - 1) / PAGE)
            REFUSE("segments overlap");
    }
    m->segments[m->segment_count++] = (struct module_segment){ p->offset, p->vaddr, p->filesz, p->memsz, p->flags & PF_W, p->flags & PF_X };
    m->memory_size = (p->vaddr + p->memsz + PAGE - 1) & ~(PAGE - 1);
    return 0;
}

static int parse_dynamic(struct module_elf *m, uint64_t offset, uint64_t len, const char **why)
{
    uint64_t hash = 0, symtab = 0, strtab = 0, rela = 0, rela_size = 0;
    bool end = false;
    for (uint64_t i = 0; i < len / sizeof(struct elf_dynamic) && !end; i++) {
        struct elf_dynamic d;
        memcpy(&d, m->file + offset + i * sizeof(d), sizeof(d));
        switch (d.tag) {
        case DT_NULL: end = true; break;
        case DT_HASH: hash = d.value; break;
        case DT_SYMTAB: symtab = d.value; break;
        case DT_STRTAB: strtab = d.value; break;
        case DT_STRSZ: m->strings_size = d.value; break;
        case DT_RELA: rela = d.value; break;
        case DT_RELASZ: rela_size = d.value; break;
        case DT_TEXTREL: REFUSE("relocations in read-only segments");
        case DT_JMPREL: REFUSE("lazy relocations");
        default: break;
        }
    }
    uint64_t at;
    uint32_t counts[2];
    if (!file_offset(m, hash, sizeof(counts), &at))
        REFUSE("no symbol hash table");
    memcpy(counts, m->file + at, sizeof(counts));
    m->symbol_count = counts[1]; /* nchain = number of symbols */
    if (!file_offset(m, symtab, m->symbol_count * sizeof(struct elf_symbol), &m->symbols))
        REFUSE("symbol table outside the file");
    if (!m->strings_size || !file_offset(m, strtab, m->strings_size, &m->strings) || m->file[m->strings + m->strings_size - 1])
        REFUSE("string table outside the file or not terminated");
    if (rela_size % sizeof(struct elf_rela))
        REFUSE("relocation table is cut off");
    m->relocation_count = rela_size / sizeof(struct elf_rela);
    if (rela_size && !file_offset(m, rela, rela_size, &m->relocations))
        REFUSE("relocation table outside the file");
    return 0;
}

int module_elf_parse(const void *file, size_t size, struct module_elf *m, const char **why)
{
    struct elf_header h;
    *m = (struct module_elf){ .file = file, .size = size };
    if (size < sizeof(h))
        REFUSE("shorter than its header");
    memcpy(&h, file, sizeof(h));
    if (memcmp(h.ident, "\177ELF\2\1\1", 7) || h.type != ET_DYN || h.machine != EM_X86_64)
        REFUSE("not a shared object for x86-64");
    if (h.phentsize != sizeof(struct elf_program_header) || !inside(h.phoff, (uint64_t)h.phnum * h.phentsize, size))
        REFUSE("program headers outside the file");
    uint64_t dynamic = 0, dynamic_size = 0;
    for (unsigned i = 0; i < h.phnum; i++) {
        struct elf_program_header p;
        memcpy(&p, m->file + h.phoff + (uint64_t)i * sizeof(p), sizeof(p));
        if (p.type == PT_LOAD && p.memsz) {
            int r = add_segment(m, &p, why);
            if (r)
                return r;
        } else if (p.type == PT_DYNAMIC) {
            dynamic = p.vaddr;
            dynamic_size = p.filesz;
        }
    }
    uint64_t offset;
    if (!dynamic_size || !file_offset(m, dynamic, dynamic_size, &offset))
        REFUSE("no dynamic section");
    return parse_dynamic(m, offset, dynamic_size, why);
}

static int symbol_at(const struct module_elf *m, uint64_t index, struct elf_symbol *s, const char **name)
{
    if (index >= m->symbol_count)
        return -ENOEXEC;
    memcpy(s, m->file + m->symbols + index * sizeof(*s), sizeof(*s));
    if (s->name >= m->strings_size)
        return -ENOEXEC;
    *name = (const char *)m->file + m->strings + s->name; /* the table ends with a NUL */
    return 0;
}

int module_elf_relocation(const struct module_elf *m, uint64_t index, struct module_relocation *out, const char **why)
{
    struct elf_rela r;
    if (index >= m->relocation_count)
        REFUSE("no such relocation");
    memcpy(&r, m->file + m->relocations + index * sizeof(r), sizeof(r));
    bool placed = false;
    for (unsigned i = 0; i < m->segment_count; i++) {
        const struct module_segment *s = &m->segments[i];
        placed = placed || (s->write && r.offset >= s->address && inside(r.offset - s->address, 8, s->memory_size));
    }
    if (!placed)
        REFUSE("relocation outside the writable segments");
    *out = (struct module_relocation){ .address = r.offset, .addend = (uint64_t)r.addend };
    uint32_t type = (uint32_t)r.info;
    if (type == R_X86_64_RELATIVE) {
        if (out->addend >= m->memory_size)
            REFUSE("relative relocation points outside the module");
        out->relative = true;
        return 0;
    }
    if (type != R_X86_64_64 && type != R_X86_64_GLOB_DAT && type != R_X86_64_JUMP_SLOT)
        REFUSE("unknown relocation type");
    if (type != R_X86_64_64)
        out->addend = 0;
    struct elf_symbol s;
    const char *name;
    if (symbol_at(m, r.info >> 32, &s, &name))
        REFUSE("relocation names no symbol");
    if (s.section) { /* defined here */
        if (s.value >= m->memory_size)
            REFUSE("symbol outside the module");
        out->relative = true;
        out->addend += s.value;
        if (out->addend >= m->memory_size)
            REFUSE("relocation points outside the module");
        return 0;
    }
    out->symbol = name;
    return 0;
}

int module_elf_symbol(const struct module_elf *m, const char *wanted, uint64_t *address)
{
    for (uint64_t i = 1; i < m->symbol_count; i++) {
        struct elf_symbol s;
        const char *name;
        if (symbol_at(m, i, &s, &name))
            return -ENOENT;
        if (s.section && s.value < m->memory_size && !strcmp(name, wanted)) {
            *address = s.value;
            return 0;
        }
    }
    return -ENOENT;
}
