/*
 * Buddy lists. Blocks never grow beyond a chunk (4 MiB), so merging looks only at pages of the same chunk, all
 * of which are initialised when the first of them is freed.
 */
#include <weir/string.h>
#include "core/mm/mm_private.h"

void buddy_init(struct buddy *b, struct page *pages)
{
    for (unsigned i = 0; i < BUDDY_ORDERS; i++)
        list_init(&b->free[i]);
    b->free_pages = 0;
    b->pages = pages;
}

static void block_insert(struct buddy *b, struct page *p, unsigned order)
{
    p->order = order;
    p->private = b;
    list_add(&b->free[order], &p->link);
}

static void block_remove(struct page *p)
{
    list_del(&p->link);
    p->private = NULL;
}

void buddy_free(struct buddy *b, struct page *p, unsigned order)
{
    uint64_t frame = (uint64_t)(p - b->pages);
    b->free_pages += 1UL << order;
    while (order < PAGE_CHUNK_ORDER) {
        struct page *other = &b->pages[frame ^ (1UL << order)];
        if (other->private != b || other->refcount || other->order != order)
            break;
        block_remove(other);
        frame &= ~(1UL << order);
        order++;
    }
    block_insert(b, &b->pages[frame], order);
}

void buddy_add(struct buddy *b, uint64_t first, uint64_t last)
{
    while (first < last) {
        unsigned order = first ? (unsigned)__builtin_ctzl(first) : PAGE_CHUNK_ORDER;
        order = MIN(order, (unsigned)PAGE_CHUNK_ORDER);
        while (first + (1UL << order) > last)
            order--;
        buddy_free(b, &b->pages[first], order);
        first += 1UL << order;
    }
}

static struct page *block_find(struct buddy *b, unsigned order, uint64_t last_start)
{
    struct page *p;
    list_for_each_entry(p, &b->free[order], link) {
        if ((uint64_t)(p - b->pages) <= last_start)
            return p;
    }
    return NULL;
}

struct page *buddy_alloc(struct buddy *b, unsigned order, uint64_t limit)
{
    if (order >= BUDDY_ORDERS || limit < (1UL << order))
        return NULL;
    for (unsigned have = order; have < BUDDY_ORDERS; have++) {
        if (list_empty(&b->free[have]))
            continue;
        /* Splitting keeps the lower half, so its start decides. */
        struct page *p = block_find(b, have, limit - (1UL << order));
        if (!p)
            continue;
        block_remove(p);
        while (have > order) {
            have--;
            block_insert(b, p + (1UL << have), have);
        }
        b->free_pages -= 1UL << order;
        return p;
    }
    return NULL;
}
