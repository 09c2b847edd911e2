/*
 * Loaded by GRUB, which knows multiboot but not PVH: puts the kernel, which came as a module, where its ELF headers say,
 * and starts it as QEMU would. For tests on machines that QEMU is not.
 */
#include <stdint.h>

#define MULTIBOOT_MAGIC 0x2badb002
#define START_INFO_MAGIC 0x336ec578
#define PT_LOAD 1
#define PT_NOTE 4
#define NOTE_PHYS32_ENTRY 18
#define E820_MAX 64
#define ASIDE 0x4000000u

struct multiboot {
    uint32_t flags, mem_lower, mem_upper, boot_device, cmdline, module_count, modules, syms[4], mmap_length, mmap;
};
struct module { uint32_t start, end, cmdline, reserved; };
struct mmap_entry { uint32_t size; uint64_t base, length; uint32_t type; } __attribute__((packed));
struct elf64 {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum;
} __attribute__((packed));
struct phdr { uint32_t type, flags; uint64_t offset, vaddr, paddr, filesz, memsz, align; } __attribute__((packed));
struct start_info {
    uint32_t magic, version, flags, module_count;
    uint64_t modules, cmdline, rsdp, memory_map;
    uint32_t memory_map_entries, reserved;
};
struct map_entry { uint64_t base, length; uint32_t type, reserved; };

static struct start_info info;
static struct map_entry map[E820_MAX];

uint64_t shim(uint32_t magic, const struct multiboot *mb);

static void copy(uint32_t to, uint32_t from, uint32_t n)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static void clear(uint32_t to, uint32_t n)
{
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(0) : "memory");
}

static uint32_t entry_from_notes(uint32_t at, uint32_t end)
{
    while (at + 12 <= end) {
        const uint32_t *note = (const uint32_t *)at;
        uint32_t desc = at + 12 + ((note[0] + 3) & ~3u);
        if (note[2] == NOTE_PHYS32_ENTRY)
            return *(const uint32_t *)desc;
        at = desc + ((note[1] + 3) & ~3u);
    }
    return 0;
}

/* EAX: entry, EDX: start info. */
uint64_t shim(uint32_t magic, const struct multiboot *mb)
{
    if (magic != MULTIBOOT_MAGIC || mb->module_count != 1)
        return 0;
    const struct module *module = (const struct module *)mb->modules;
    const struct elf64 *elf = (const struct elf64 *)ASIDE; /* GRUB may have put the module where the kernel goes */
    copy(ASIDE, module->start, module->end - module->start);
    uint32_t entry = 0;
    for (unsigned i = 0; i < elf->phnum; i++) {
        const struct phdr *p = (const struct phdr *)(ASIDE + (uint32_t)elf->phoff + i * elf->phentsize);
        if (p->type == PT_NOTE)
            entry = entry_from_notes(ASIDE + (uint32_t)p->offset, ASIDE + (uint32_t)(p->offset + p->filesz));
        if (p->type != PT_LOAD)
            continue;
        copy((uint32_t)p->paddr, ASIDE + (uint32_t)p->offset, (uint32_t)p->filesz);
        clear((uint32_t)(p->paddr + p->filesz), (uint32_t)(p->memsz - p->filesz));
    }
    unsigned n = 0;
    for (uint32_t at = mb->mmap; at < mb->mmap + mb->mmap_length && n < E820_MAX; n++) {
        const struct mmap_entry *e = (const struct mmap_entry *)at;
        map[n] = (struct map_entry){ e->base, e->length, e->type, 0 };
        at += e->size + sizeof(e->size);
    }
    info = (struct start_info){ .magic = START_INFO_MAGIC, .version = 1, .cmdline = module->cmdline,
                                .memory_map = (uint32_t)map, .memory_map_entries = n };
    return (uint64_t)(uint32_t)&info << 32 | entry;
}
