/*
 * Slab caches and kmalloc. A slab is a block of 1 to 8 pages cut into equal objects; free objects are chained
 * through their first word. Each CPU keeps a magazine of objects, so the usual allocation takes no lock.
 *
 * The struct page of a slab's first page: private = cache, index = first free object, map_writable =
 * objects handed out (magazines included), link = partial list.
 */
#include <weir/cpu.h>
#include <weir/printk.h>
#include <weir/spinlock.h>
#include <weir/string.h>
#include "core/mm/mm_private.h"

#define MAGAZINE_SIZE 30
#define MAGAZINE_BATCH 15
#define OBJECTS_WANTED 8
#define SLAB_ORDER_MAX 3
#define KMALLOC_SLAB_MAX 3072

/* Key: o owner CPU, interrupts off */
struct magazine {
    uint32_t count;                  /* o */
    void *objects[MAGAZINE_SIZE];    /* o */
} __cacheline;

/* Key: I immutable, s lock */
struct slab_cache {
    spinlock_t lock;                 /* s: before the page allocator's; interrupts off */
    struct list partial;             /* s slabs with a free object */
    uint64_t handed_out;             /* s objects that are in magazines or in use */
    uint32_t size, order;            /* I */
    const char *name;                /* I */
    struct slab_cache *next;         /* I the cache made before it */
    struct magazine *magazines;      /* I one for each possible CPU */
};

static const uint16_t class_sizes[] = { 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072 };
static struct slab_cache classes[ARRAY_SIZE(class_sizes)];
static uint8_t class_of_16[KMALLOC_SLAB_MAX / 16 + 1]; /* by size in units of 16, rounded up */
static unsigned cpus_possible;
static struct slab_cache cache_of_caches;
static struct slab_cache *all_caches; /* a newest first; caches stay for ever */
static uint64_t large;                /* a allocations that are no slab's */

static bool cache_setup(struct slab_cache *c, const char *name, size_t size, size_t align)
{
    spin_init(&c->lock);
    list_init(&c->partial);
    c->name = name;
    c->size = (uint32_t)ALIGN_UP(MAX(size, (size_t)16), MAX(align, (size_t)16));
    c->order = 0;
    while (c->order < SLAB_ORDER_MAX && (PAGE_SIZE << c->order) / c->size < OBJECTS_WANTED)
        c->order++;
    unsigned order = 0;
    while ((PAGE_SIZE << order) < cpus_possible * sizeof(struct magazine))
        order++;
    struct page *p = page_alloc(order, MM_ZERO);
    if (!p)
        return false;
    c->magazines = page_virt(p);
    c->next = atomic_load_relaxed(&all_caches);
    /* Release: whoever finds the cache finds it complete. */
    while (!atomic_cas(&all_caches, &c->next, c))
        ;
    return true;
}

void slab_init(unsigned cpus)
{
    cpus_possible = cpus;
    bool ok = cache_setup(&cache_of_caches, "slab_cache", sizeof(struct slab_cache), 64);
    for (unsigned i = 0, units = 0; i < ARRAY_SIZE(class_sizes); i++) {
        ok = ok && cache_setup(&classes[i], "kmalloc", class_sizes[i], 16);
        for (; units <= class_sizes[i] / 16; units++)
            class_of_16[units] = (uint8_t)i;
    }
    if (!ok)
        panic("no memory for the heap of %u CPUs", cpus);
}

struct slab_cache *slab_create(const char *name, size_t size, size_t align)
{
    if (size > PAGE_SIZE << SLAB_ORDER_MAX)
        return NULL;
    struct slab_cache *c = slab_alloc(&cache_of_caches);
    if (c && !cache_setup(c, name, size, align)) {
        slab_free(&cache_of_caches, c);
        c = NULL;
    }
    return c;
}

static struct page *slab_grow(struct slab_cache *c)
{
    struct page *p = page_alloc(c->order, 0);
    for (unsigned order = 0; !p && order < c->order; order++) {
        /* Memory in small pieces: the smallest that holds an object. */
        if ((PAGE_SIZE << order) >= c->size)
            p = page_alloc(order, 0);
    }
    if (!p)
        return NULL;
    char *base = page_virt(p);
    size_t n = (PAGE_SIZE << p->order) / c->size;
    for (size_t i = 0; i < n; i++)
        *(void **)(base + i * c->size) = i + 1 < n ? base + (i + 1) * c->size : NULL;
    p->flags |= PAGE_SLAB;
    p->private = c;
    p->index = (uint64_t)base;
    p->map_writable = 0;
    return p;
}

static void magazine_fill(struct slab_cache *c, struct magazine *m)
{
    spin_lock(&c->lock);
    while (m->count < MAGAZINE_BATCH) {
        if (list_empty(&c->partial)) {
            if (m->count)
                break; /* enough for now; growing is for the empty-handed */
            struct page *fresh = slab_grow(c);
            if (!fresh)
                break;
            list_add(&c->partial, &fresh->link);
        }
        struct page *p = list_first(&c->partial, struct page, link);
        void *object = (void *)p->index;
        p->index = (uint64_t) * (void **)object;
        p->map_writable++;
        if (!p->index)
            list_del(&p->link);
        m->objects[m->count++] = object;
        c->handed_out++;
    }
    spin_unlock(&c->lock);
}

static struct page *slab_page(const void *object)
{
    struct page *p = page_of_phys(direct_to_phys(object));
    if (!p)
        panic("heap: %p is not in memory", object);
    return p->flags & PAGE_TAIL ? p->private : p;
}

static void object_return_locked(struct slab_cache *c, void *object)
{
    struct page *p = slab_page(object);
    bool was_full = !p->index;
    *(void **)object = (void *)p->index;
    p->index = (uint64_t)object;
    p->map_writable--;
    c->handed_out--;
    if (was_full)
        list_add_tail(&c->partial, &p->link);
    /* An empty slab goes back unless it is the only one with room. */
    if (!p->map_writable && c->partial.next != c->partial.prev) {
        list_del(&p->link);
        p->flags &= ~(uint32_t)PAGE_SLAB;
        page_put(p);
    }
}

void *slab_alloc(struct slab_cache *c)
{
    uint64_t flags = irq_save();
    struct magazine *m = &c->magazines[this_cpu()->id];
    if (unlikely(!m->count))
        magazine_fill(c, m);
    void *object = m->count ? m->objects[--m->count] : NULL;
    irq_restore(flags);
    return object;
}

void slab_free(struct slab_cache *c, void *object)
{
    if (!object)
        return;
    uint64_t flags = irq_save();
    struct magazine *m = &c->magazines[this_cpu()->id];
    if (unlikely(m->count == MAGAZINE_SIZE)) {
        spin_lock(&c->lock);
        while (m->count > MAGAZINE_SIZE - MAGAZINE_BATCH)
            object_return_locked(c, m->objects[--m->count]);
        spin_unlock(&c->lock);
    }
    m->objects[m->count++] = object;
    irq_restore(flags);
}

static void *kmalloc_pages(size_t size)
{
    size_t count = ALIGN_UP(size, PAGE_SIZE) >> PAGE_SHIFT;
    char *va = vmap_reserve(size);
    for (size_t i = 0; va && i < count; i++) {
        struct page *p = page_alloc(0, 0);
        if (!p) {
            vmap_free_with_pages(va);
            return NULL;
        }
        /* The range was reserved with its tables: installing cannot fail. */
        if (vmap_install(va + (i << PAGE_SHIFT), p, VMAP_RW))
            panic("vmap: no table for %p", (void *)va);
    }
    return va;
}

void *kmalloc(size_t size)
{
    if (likely(size <= KMALLOC_SLAB_MAX))
        return slab_alloc(&classes[class_of_16[(size + 15) / 16]]);
    if (size > SIZE_MAX / 2)
        return NULL;
    void *object;
    if (size <= 2 * PAGE_SIZE) {
        struct page *p = page_alloc(size > PAGE_SIZE, 0);
        object = p ? page_virt(p) : NULL;
    } else {
        object = kmalloc_pages(size);
    }
    if (object)
        atomic_fetch_add(&large, 1);
    return object;
}

void *kzalloc(size_t size)
{
    void *p = kmalloc(size);
    if (p)
        memset(p, 0, size);
    return p;
}

void *kcalloc(size_t n, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(n, size, &total))
        return NULL;
    return kzalloc(total);
}

void *krealloc(void *p, size_t old_size, size_t new_size)
{
    void *fresh = kmalloc(new_size);
    if (!fresh || !p)
        return fresh;
    memcpy(fresh, p, MIN(old_size, new_size));
    kfree(p);
    return fresh;
}

void kfree(void *object)
{
    if (!object)
        return;
    struct page *p = vmap_contains(object) ? NULL : slab_page(object);
    if (p && p->flags & PAGE_SLAB) {
        slab_free(p->private, object);
        return;
    }
    if (p)
        page_put(p);
    else
        vmap_free_with_pages(object);
    atomic_fetch_sub(&large, 1);
}

uint64_t heap_live(void)
{
    uint64_t live = atomic_load_relaxed(&large);
    for (struct slab_cache *c = atomic_load_acquire(&all_caches); c; c = c->next) {
        uint64_t flags = spin_lock_irqsave(&c->lock);
        live += c->handed_out;
        for (unsigned i = 0; i < cpus_possible; i++)
            live -= atomic_load_relaxed(&c->magazines[i].count);
        spin_unlock_irqrestore(&c->lock, flags);
    }
    return live;
}
