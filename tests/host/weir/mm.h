/* Host wrapper: physical addresses are addresses of this process. */
#ifndef HOST_WEIR_MM_H
#define HOST_WEIR_MM_H
#include_next <weir/mm.h>
static inline void *phys_to_virt(uint64_t phys) { return (void *)(uintptr_t)phys; }
static inline uint64_t direct_to_phys(const void *v) { return (uint64_t)(uintptr_t)v; }
static inline void *page_virt(const struct page *p) { return phys_to_virt(page_phys(p)); }
#endif
