/*
 * Physical memory map: pure list arithmetic over what the loader says. A map is a sorted list of disjoint,
 * page-aligned ranges. Used at boot by one CPU; no locks. Unit-tested on the host.
 */
#ifndef WEIR_ARCH_MEMMAP_H
#define WEIR_ARCH_MEMMAP_H
#include <weir/compiler.h>

#define MEMMAP_MAX 64
#define MEMMAP_TYPE_RAM 1

struct memmap_entry { /* the form of hvm_start_info and e820 */
    uint64_t start, size;
    uint32_t type, reserved;
};
struct memmap_range {
    uint64_t start, end;
};
struct memmap {
    struct memmap_range ranges[MEMMAP_MAX];
    unsigned count;
};

/* RAM of the entries: page-aligned inwards, cut at phys_limit, without anything that an entry of another type
 * also claims. Malformed entries (wrapping, empty) are skipped. When a map is full, what does not fit is lost. */
void memmap_build(struct memmap *m, const struct memmap_entry *entries, unsigned count, uint64_t phys_limit);
void memmap_remove(struct memmap *m, uint64_t start, uint64_t end);
/* Take `size` bytes (multiples of pages), aligned to the power of two `align`, ending at most at `limit`: the
 * highest place. 0 = none. */
uint64_t memmap_take(struct memmap *m, uint64_t size, uint64_t align, uint64_t limit);
/* [start, end) lies wholly inside one range. */
bool memmap_contains(const struct memmap *m, uint64_t start, uint64_t end);
uint64_t memmap_total(const struct memmap *m);
#endif
