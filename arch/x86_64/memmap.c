#include "arch/x86_64/memmap.h"

#define PAGE 4096UL

static void memmap_insert(struct memmap *m, uint64_t start, uint64_t end)
{
    unsigned at = 0;
    if (start >= end)
        return;
    while (at < m->count && m->ranges[at].end < start)
        at++;
    if (at < m->count && m->ranges[at].start <= end) { /* touches: join, then swallow followers */
        struct memmap_range *r = &m->ranges[at];
        r->start = MIN(r->start, start);
        r->end = MAX(r->end, end);
        while (at + 1 < m->count && m->ranges[at + 1].start <= r->end) {
            r->end = MAX(r->end, m->ranges[at + 1].end);
            for (unsigned i = at + 1; i + 1 < m->count; i++)
                m->ranges[i] = m->ranges[i + 1];
            m->count--;
        }
        return;
    }
    if (m->count == MEMMAP_MAX)
        return;
    for (unsigned i = m->count++; i > at; i--)
        m->ranges[i] = m->ranges[i - 1];
    m->ranges[at] = (struct memmap_range){ start, end };
}

void memmap_remove(struct memmap *m, uint64_t start, uint64_t end)
{
    start = ALIGN_DOWN(start, PAGE);
    end = end > UINT64_MAX - PAGE ? ALIGN_DOWN(UINT64_MAX, PAGE) : ALIGN_UP(end, PAGE);
    for (unsigned i = 0; i < m->count;) {
        struct memmap_range r = m->ranges[i];
        if (r.end <= start || r.start >= end) {
            i++;
            continue;
        }
        for (unsigned j = i; j + 1 < m->count; j++)
            m->ranges[j] = m->ranges[j + 1];
        m->count--;
        /* What is left on each side goes back in; a full map loses the upper one. */
        memmap_insert(m, r.start, MIN(r.end, start));
        memmap_insert(m, MAX(r.start, end), r.end);
        i = 0;
    }
}

void memmap_build(struct memmap *m, const struct memmap_entry *entries, unsigned count, uint64_t phys_limit)
{
    m->count = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct memmap_entry *e = &entries[i];
        uint64_t end;
        if (e->type != MEMMAP_TYPE_RAM || __builtin_add_overflow(e->start, e->size, &end) ||
            e->start > UINT64_MAX - PAGE)
            continue;
        memmap_insert(m, ALIGN_UP(e->start, PAGE), ALIGN_DOWN(MIN(end, phys_limit), PAGE));
    }
    for (unsigned i = 0; i < count; i++) {
        const struct memmap_entry *e = &entries[i];
        uint64_t end;
        if (e->type == MEMMAP_TYPE_RAM || !e->size)
            continue;
        if (__builtin_add_overflow(e->start, e->size, &end))
            end = UINT64_MAX;
        memmap_remove(m, e->start, end);
    }
}

uint64_t memmap_take(struct memmap *m, uint64_t size, uint64_t align, uint64_t limit)
{
    for (unsigned i = m->count; i-- > 0;) {
        uint64_t end = MIN(m->ranges[i].end, limit);
        if (end < size)
            continue;
        uint64_t start = ALIGN_DOWN(end - size, align);
        if (start >= m->ranges[i].start && start) {
            memmap_remove(m, start, start + size);
            return start;
        }
    }
    return 0;
}

bool memmap_contains(const struct memmap *m, uint64_t start, uint64_t end)
{
    for (unsigned i = 0; i < m->count; i++) {
        if (start >= m->ranges[i].start && end <= m->ranges[i].end)
            return true;
    }
    return false;
}

uint64_t memmap_total(const struct memmap *m)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < m->count; i++)
        sum += m->ranges[i].end - m->ranges[i].start;
    return sum;
}
