/* Between core/mm and the boot code of the architecture. */
#ifndef WEIR_MM_PRIVATE_H
#define WEIR_MM_PRIVATE_H
#include <weir/mm.h>
#include <weir/bitmap.h>

/* The struct page of frame n is page_array[n]. The array is mapped only where there is RAM, in whole chunks
 * of 4 MiB of frames. */
#define PAGE_CHUNK_ORDER 10
#define PAGE_CHUNK_PAGES (1UL << PAGE_CHUNK_ORDER)
#define PAGE_CHUNK_SIZE (PAGE_CHUNK_PAGES << PAGE_SHIFT)
/* RAM above it is left out. A guest of any size can have RAM above 1 TiB: QEMU moves what does not fit below 4 GiB there
 * when its address space would reach AMD's reserved range below 1 TiB. */
#define PAGE_PHYS_LIMIT (2UL << 40)
#if !__STDC_HOSTED__
#define PAGE_ARRAY_BASE 0xffffea0000000000UL
#define page_array ((struct page *)PAGE_ARRAY_BASE)
#define VMAP_BASE 0xffffc90000000000UL
#define VMAP_END  (VMAP_BASE + (1UL << 39))
#endif

/* ---- buddy.c: pure, no lock, no hardware ---- */
#define BUDDY_ORDERS (PAGE_CHUNK_ORDER + 1)
/* Free blocks of one page array. A free block's first page has refcount 0, flags 0, order set and `private`
 * pointing to the buddy; every other page in it has `private` different from that. */
struct buddy {
    struct list free[BUDDY_ORDERS];
    uint64_t free_pages;
    struct page *pages;
};
void buddy_init(struct buddy *b, struct page *pages);
/* Free frames [first, last) into the lists, in largest aligned blocks. */
void buddy_add(struct buddy *b, uint64_t first, uint64_t last);
/* A block whose frames all lie below `limit` (a frame number); NULL. */
struct page *buddy_alloc(struct buddy *b, unsigned order, uint64_t limit) __must_check;
void buddy_free(struct buddy *b, struct page *p, unsigned order);

/* ---- page.c ---- */
struct memmap;
/* ram: everything that is RAM; free: the part of it nobody has taken. */
void page_init(const struct memmap *ram, const struct memmap *free);
/* ---- vmap.c ---- */
void vmap_init(void);
bool vmap_contains(const void *v);
/* Pages mapped at the range that starts at v, which kmalloc made: unmap and free them. */
void vmap_free_with_pages(void *v);
/* ---- slab.c ---- */
void slab_init(unsigned cpus);

/* ---- supplied by arch ---- */
/* Entry of a kernel address at level 1; NULL if absent and !create, or no memory. */
uint64_t *kernel_pte(uint64_t va, bool create);
uint64_t kernel_pte_bits(unsigned vmap_prot);
/* No CPU holds an old translation of the vmap area any more when it returns. Thread context, or before smp_init. */
void kernel_tlb_flush_all(void);
void kernel_tlb_flush_local(uint64_t va);
bool kernel_can_flush(void); /* this context may call kernel_tlb_flush_all */
#endif
