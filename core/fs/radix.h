/*
 * Radix tree of pointers by 64-bit index, 64 slots a node, with two tags for each item that can be searched for.
 * The root is a void * (NULL = empty). Locking is the caller's. Nodes come from slab; any context.
 */
#ifndef FS_RADIX_H
#define FS_RADIX_H
#include <weir/compiler.h>

enum radix_tag { RADIX_DIRTY, RADIX_WRITEBACK, RADIX_TAGS };

void *radix_get(void *root, uint64_t index);
int radix_insert(void **root, uint64_t index, void *item) __must_check; /* -EEXIST, -ENOMEM */
void *radix_remove(void **root, uint64_t index);                        /* the item, NULL if none */
void radix_tag_set(void *root, uint64_t index, enum radix_tag tag);     /* the item must be there */
void radix_tag_clear(void *root, uint64_t index, enum radix_tag tag);
/* First item at or after *index and not after last; *index becomes its index. NULL if none. */
void *radix_next(void *root, uint64_t *index, uint64_t last);
void *radix_next_tagged(void *root, uint64_t *index, uint64_t last, enum radix_tag tag);
#endif
