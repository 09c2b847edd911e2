/*
 * Kernel address space. Built once at boot: RAM (and only RAM) at PHYS_MAP_BASE with the largest pages that
 * fit, the array of struct page, the image with each section's own rights, and one empty top-level slot for
 * vmap. The image's text and read-only data are read-only in the direct map too.
 */
#include <weir/pagetable.h>
#include <weir/printk.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"
#include "arch/x86_64/memmap.h"
#include "arch/x86_64/boot.h"
#include "core/mm/mm_private.h"

#define GIB (1UL << 30)
#define EARLY_MAPPED GIB /* what boot.S maps */
#define LOW_MEMORY (1UL << 20)
#define INDEX(va, level) (((va) >> (PAGE_SHIFT + 9 * ((level) - 1))) & 511)
#define KERNEL_RW (PTE_PRESENT | PTE_WRITE | PTE_ACCESSED | PTE_DIRTY)
#define KERNEL_RO (PTE_PRESENT | PTE_ACCESSED)

uint64_t *kernel_pml4;
static struct memmap ram, available;
static bool allocator_ready;
static uint64_t trampoline;
static uint64_t global, nx;

static uint64_t table_alloc(void)
{
    uint64_t phys;
    if (allocator_ready) {
        struct page *p = page_alloc(0, MM_ZERO);
        return p ? page_phys(p) : 0;
    }
    phys = memmap_take(&available, PAGE_SIZE, PAGE_SIZE, EARLY_MAPPED);
    if (!phys)
        panic("no memory below 1 GiB for page tables");
    memset(phys_to_virt(phys), 0, PAGE_SIZE);
    return phys;
}

/* The entry at `level` for va, making the tables above it; NULL without memory. */
static uint64_t *walk(uint64_t va, unsigned level, bool create)
{
    uint64_t *table = kernel_pml4;
    for (unsigned l = 4; l > level; l--) {
        uint64_t *e = &table[INDEX(va, l)];
        if (!(*e & PTE_PRESENT)) {
            uint64_t phys = create ? table_alloc() : 0;
            if (!phys)
                return NULL;
            *e = phys | KERNEL_RW;
        }
        table = phys_to_virt(*e & PTE_ADDR);
    }
    return &table[INDEX(va, level)];
}

/* Map [va, va+size) to phys; all multiples of 4 KiB. */
static void map_range(uint64_t va, uint64_t phys, uint64_t size, uint64_t bits)
{
    while (size) {
        unsigned level = 1;
        if (cpu_features.huge_1g && IS_ALIGNED(va | phys, GIB) && size >= GIB)
            level = 3;
        else if (IS_ALIGNED(va | phys, HUGE_SIZE) && size >= HUGE_SIZE)
            level = 2;
        uint64_t step = 1UL << (PAGE_SHIFT + 9 * (level - 1));
        *walk(va, level, true) = phys | bits | (level > 1 ? PTE_HUGE : 0);
        va += step;
        phys += step;
        size -= step;
    }
}

static void map_direct(uint64_t start, uint64_t end, uint64_t bits)
{
    if (start < end)
        map_range(PHYS_MAP_BASE + start, start, end - start, bits);
}

static void map_ram(void)
{
    uint64_t ro_start = (uint64_t)text_start - KERNEL_BASE, ro_end = (uint64_t)rodata_end - KERNEL_BASE;
    uint64_t rw = KERNEL_RW | nx | global, ro = KERNEL_RO | nx | global;
    for (unsigned i = 0; i < ram.count; i++) {
        uint64_t start = ram.ranges[i].start, end = ram.ranges[i].end;
        map_direct(start, MIN(end, ro_start), rw);
        map_direct(MAX(start, ro_start), MIN(end, ro_end), ro);
        map_direct(MAX(start, ro_end), end, rw);
    }
}

static void map_image(void)
{
    uint64_t rodata = (uint64_t)rodata_start, data = (uint64_t)data_start, text = (uint64_t)text_start;
    map_range(text, text - KERNEL_BASE, rodata - text, KERNEL_RO | global);
    map_range(rodata, rodata - KERNEL_BASE, (uint64_t)rodata_end - rodata, KERNEL_RO | nx | global);
    map_range(data, data - KERNEL_BASE, (uint64_t)data_end - data, KERNEL_RW | nx | global);
    *walk((uint64_t)boot_stack_guard, 1, false) = 0;
}

/* struct page for each whole chunk that has RAM, in 2 MiB pages; not cleared (page.c does that on demand). */
static void map_page_array(void)
{
    uint64_t done = 0;
    for (unsigned i = 0; i < ram.count; i++) {
        uint64_t first = ALIGN_DOWN(ram.ranges[i].start, PAGE_CHUNK_SIZE) >> PAGE_SHIFT;
        uint64_t last = ALIGN_UP(ram.ranges[i].end, PAGE_CHUNK_SIZE) >> PAGE_SHIFT;
        uint64_t va = MAX(ALIGN_DOWN((uint64_t)&page_array[first], HUGE_SIZE), done);
        for (; va < (uint64_t)&page_array[last]; va += HUGE_SIZE) {
            uint64_t phys = memmap_take(&available, HUGE_SIZE, HUGE_SIZE, UINT64_MAX);
            if (!phys)
                panic("no memory for the page array");
            *walk(va, 2, true) = phys | KERNEL_RW | PTE_HUGE | nx | global;
        }
        done = MAX(done, va);
    }
}

uint64_t paging_kernel_root_phys(void)
{
    return direct_to_phys(kernel_pml4);
}

void paging_load_kernel(void)
{
    write_cr3(paging_kernel_root_phys());
}

uint64_t trampoline_phys(void)
{
    return trampoline;
}

void paging_init(void)
{
    global = cpu_features.pge ? PTE_GLOBAL : 0;
    nx = cpu_features.nx ? PTE_NX : 0;
    unsigned n;
    const struct memmap_entry *entries = boot_memory_map(&n);
    memmap_build(&ram, entries, n, UINT64_MAX);
    uint64_t all = memmap_total(&ram);
    memmap_build(&ram, entries, n, PAGE_PHYS_LIMIT);
    if (memmap_total(&ram) < all)
        log_warn("mm: %lu MiB of memory above %lu GiB are left out", (unsigned long)((all - memmap_total(&ram)) >> 20),
                 PAGE_PHYS_LIMIT / GIB);
    available = ram;
    memmap_remove(&available, (uint64_t)image_start - KERNEL_BASE, (uint64_t)image_end - KERNEL_BASE);
    trampoline = memmap_take(&available, PAGE_SIZE, PAGE_SIZE, 0x9f000);
    memmap_remove(&available, 0, LOW_MEMORY);

    uint64_t root = table_alloc();
    kernel_pml4 = phys_to_virt(root);
    map_ram();
    map_image();
    map_page_array();
    (void)walk(VMAP_BASE, 3, true); /* the top level never changes after boot */
    paging_load_kernel();
    page_init(&ram, &available);
    allocator_ready = true;
}

uint64_t *kernel_pte(uint64_t va, bool create)
{
    return walk(va, 1, create);
}

uint64_t kernel_pte_bits(unsigned vmap_prot)
{
    uint64_t bits = vmap_prot & (VMAP_RO | VMAP_RX) ? KERNEL_RO : KERNEL_RW;
    if (!(vmap_prot & VMAP_RX))
        bits |= nx;
    if (vmap_prot & VMAP_UNCACHED)
        bits |= PTE_PCD | PTE_PWT;
    return bits | global;
}

void kernel_tlb_flush_local(uint64_t va)
{
    invlpg(va);
}

static void flush_global(void *unused)
{
    uint64_t cr4 = read_cr4();
    if (cr4 & (1UL << 7)) { /* toggling PGE drops global entries too */
        write_cr4(cr4 & ~(1UL << 7));
        write_cr4(cr4);
    } else {
        write_cr3(read_cr3());
    }
}

void kernel_tlb_flush_all(void)
{
    uint64_t flags = irq_save();
    flush_global(NULL);
    irq_restore(flags);
    if (cpu_count() == 1)
        return;
    struct cpumask all = { { 0 } };
    for (unsigned i = 0; i < cpu_count(); i++)
        bitmap_set(all.bits, i);
    cpu_call(&all, flush_global, NULL);
}

bool kernel_can_flush(void)
{
    return cpu_count() == 1 || (irq_enabled() && !this_cpu()->irq_depth);
}

uint64_t virt_to_phys(const void *v)
{
    uint64_t va = (uint64_t)v;
    if (va >= (uint64_t)image_start && va < (uint64_t)image_end)
        return va - KERNEL_BASE;
    if (va >= PHYS_MAP_BASE && va < VMAP_BASE)
        return va - PHYS_MAP_BASE;
    uint64_t *pte = vmap_contains(v) ? walk(va, 1, false) : NULL;
    if (!pte || !(*pte & PTE_PRESENT))
        panic("virt_to_phys: %#lx is not mapped", (unsigned long)va);
    return (*pte & PTE_ADDR) | (va & PAGE_MASK);
}
