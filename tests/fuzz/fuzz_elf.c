/* Any bytes as an executable: what the reader accepts keeps its promises, the rest is refused. */
#include <stdlib.h>
#include <string.h>

#include "core/linux/elf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct elf_image image;
    uint8_t header[ELF_HEADER_SIZE];

    if (size < sizeof header)
        return elf_parse_header(data, size, &image) < 0 ? 0 : (abort(), 0);
    /* Nine bytes that random input would hardly find: class, byte order, version, machine. */
    memcpy(header, data, sizeof header);
    memcpy(header, "\x7f" "ELF\2\1\1", 7);
    memcpy(header + 18, "\x3e", 2);
    if (elf_parse_header(header, sizeof header, &image))
        return 0;
    size_t room = (size - sizeof header) / ELF_PHDR_SIZE;
    if (image.phdr_count > ELF_PHDRS_MAX)
        abort();
    if (image.phdr_count > room || elf_parse_segments(data + sizeof header, image.phdr_count * ELF_PHDR_SIZE, size, &image))
        return 0;
    uint64_t end = 0;
    if (!image.segment_count || image.segment_count > ELF_SEGMENTS_MAX || image.low > image.high)
        abort();
    for (unsigned i = 0; i < image.segment_count; i++) {
        const struct elf_segment *s = &image.segments[i];
        if (s->vaddr < end || s->mem_size < s->file_size || s->vaddr + s->mem_size < s->vaddr ||
            s->offset + s->file_size > size || s->offset + s->file_size < s->offset || s->vaddr < image.low ||
            s->vaddr + s->mem_size > image.high)
            abort();
        end = s->vaddr + s->mem_size;
    }
    return 0;
}
