/* ELF headers (System V gABI 4.1; AMD64 supplement). */
#include "elf.h"
#include <weir/errno.h>
#include <weir/string.h>

#define PAGE 4096ULL
#define ADDRESS_LIMIT 0x00007ffffffff000ULL
#define ALIGN_LIMIT (1ULL << 30)
#define INTERP_PATH_MAX 4096ULL

struct elf_file_header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
};
struct elf_program_header {
    uint32_t type, flags;
    uint64_t offset, vaddr, paddr, file_size, mem_size, align;
};

enum { CLASS_64 = 2, DATA_LITTLE = 1, TYPE_EXEC = 2, TYPE_DYN = 3, MACHINE_X86_64 = 62 };
enum { SEGMENT_LOAD = 1, SEGMENT_INTERP = 3, SEGMENT_PHDR = 6, SEGMENT_GNU_STACK = 0x6474e551 };
enum { FLAG_EXEC = 1, FLAG_WRITE = 2, FLAG_READ = 4 };

int elf_parse_header(const void *data, size_t len, struct elf_image *image)
{
    struct elf_file_header h;

    memset(image, 0, sizeof(*image));
    if (len < sizeof(h))
        return -ENOEXEC;
    memcpy(&h, data, sizeof(h));
    if (memcmp(h.ident, "\177ELF", 4) || h.ident[4] != CLASS_64 || h.ident[5] != DATA_LITTLE ||
        h.machine != MACHINE_X86_64 || (h.type != TYPE_EXEC && h.type != TYPE_DYN))
        return -ENOEXEC;
    if (h.phentsize != ELF_PHDR_SIZE || !h.phnum || h.phnum > ELF_PHDRS_MAX || h.phoff > (1ULL << 62))
        return -ENOEXEC;
    image->relocatable = h.type == TYPE_DYN;
    image->entry = h.entry;
    image->phdr_offset = h.phoff;
    image->phdr_count = h.phnum;
    image->align = PAGE;
    return 0;
}

static bool span_ok(uint64_t start, uint64_t size, uint64_t limit)
{
    return start <= limit && size <= limit - start;
}

static int add_segment(const struct elf_program_header *p, uint64_t file_size,
                       struct elf_image *image)
{
    struct elf_segment *s = &image->segments[image->segment_count];

    if (!p->mem_size)
        return 0;
    if (image->segment_count == ELF_SEGMENTS_MAX || p->file_size > p->mem_size ||
        !span_ok(p->offset, p->file_size, file_size) ||
        !span_ok(p->vaddr, p->mem_size, ADDRESS_LIMIT - PAGE) ||
        (p->vaddr - p->offset) % PAGE)
        return -ENOEXEC;
    if (p->align > PAGE) {
        if ((p->align & (p->align - 1)) || p->align > ALIGN_LIMIT)
            return -ENOEXEC;
        image->align = MAX(image->align, p->align);
    }
    /* Ascending, and no page in two segments. */
    if (image->segment_count && ALIGN_DOWN(p->vaddr, PAGE) < image->high)
        return -ENOEXEC;
    s->vaddr = p->vaddr;
    s->offset = p->offset;
    s->file_size = p->file_size;
    s->mem_size = p->mem_size;
    s->prot = (p->flags & FLAG_READ ? ELF_PROT_READ : 0) |
              (p->flags & FLAG_WRITE ? ELF_PROT_WRITE : 0) |
              (p->flags & FLAG_EXEC ? ELF_PROT_EXEC : 0);
    if (!image->segment_count)
        image->low = ALIGN_DOWN(p->vaddr, PAGE);
    image->high = ALIGN_UP(p->vaddr + p->mem_size, PAGE);
    /* The program finds its own headers through the auxiliary vector. */
    if (!image->phdr_vaddr && image->phdr_offset >= p->offset &&
        span_ok(image->phdr_offset - p->offset, image->phdr_count * ELF_PHDR_SIZE, p->file_size))
        image->phdr_vaddr = p->vaddr + (image->phdr_offset - p->offset);
    image->segment_count++;
    return 0;
}

int elf_parse_segments(const void *phdrs, size_t len, uint64_t file_size, struct elf_image *image)
{
    if (len < (size_t)image->phdr_count * ELF_PHDR_SIZE)
        return -ENOEXEC;
    for (unsigned i = 0; i < image->phdr_count; i++) {
        struct elf_program_header p;
        int r = 0;

        memcpy(&p, (const char *)phdrs + (size_t)i * ELF_PHDR_SIZE, sizeof(p));
        if (p.type == SEGMENT_LOAD) {
            r = add_segment(&p, file_size, image);
        } else if (p.type == SEGMENT_INTERP && !image->interp_size) {
            if (p.file_size < 2 || p.file_size > INTERP_PATH_MAX ||
                !span_ok(p.offset, p.file_size, file_size))
                r = -ENOEXEC;
            image->interp_offset = p.offset;
            image->interp_size = p.file_size;
        } else if (p.type == SEGMENT_GNU_STACK) {
            image->exec_stack = p.flags & FLAG_EXEC;
        }
        if (r)
            return r;
    }
    if (!image->segment_count)
        return -ENOEXEC;
    /* An executable at a fixed place must leave the lowest addresses alone. */
    if (!image->relocatable && image->low < 0x10000)
        return -ENOEXEC;
    return image->entry < ADDRESS_LIMIT ? 0 : -ENOEXEC;
}
