/* What the loader gave (PVH start info), copied out of memory that will be reused. */
#ifndef WEIR_ARCH_BOOT_H
#define WEIR_ARCH_BOOT_H
#include "arch/x86_64/memmap.h"
const struct memmap_entry *boot_memory_map(unsigned *count);
#endif
