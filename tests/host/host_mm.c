/* Pages, heap, kernel virtual mappings, program memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <weir/mm.h>
#include <weir/errno.h>
#include <weir/usercopy.h>
#include "host.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__has_feature)
#if defined(__SANITIZE_ADDRESS__)
#define HOST_ASAN 1
#elif __has_feature(address_sanitizer)
#define HOST_ASAN 1
#endif
#endif
#ifdef HOST_ASAN
#include <sanitizer/asan_interface.h>
#define poison(p, n) __asan_poison_memory_region(p, n)
#define unpoison(p, n) __asan_unpoison_memory_region(p, n)
#else
#define poison(p, n) ((void)(p), (void)(n))
#define unpoison(p, n) ((void)(p), (void)(n))
#endif

size_t host_ram_pages = 65536;
static char *ram;
static int ram_fd;
static struct page *pages;
static size_t free_count, rover;
static pthread_mutex_t ram_lock = PTHREAD_MUTEX_INITIALIZER;
static long allocations_left = -1;
static uint64_t (*shrinker)(uint64_t);

void host_fail_allocations_after(long n) { __atomic_store_n(&allocations_left, n, __ATOMIC_SEQ_CST); }
static bool allocation_fails(void)
{
    if (__atomic_load_n(&allocations_left, __ATOMIC_RELAXED) < 0)
        return false;
    if (__atomic_load_n(&allocations_left, __ATOMIC_RELAXED) == 0)
        return true;
    __atomic_fetch_sub(&allocations_left, 1, __ATOMIC_RELAXED);
    return false;
}

static void ram_init_locked(void)
{
    if (ram)
        return;
    size_t bytes = host_ram_pages * PAGE_SIZE;
    ram_fd = memfd_create("ram", 0);
    if (ram_fd < 0 || ftruncate(ram_fd, (off_t)bytes))
        abort();
    char *area = mmap(NULL, bytes + HUGE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ram = (char *)ALIGN_UP((uintptr_t)area, HUGE_SIZE);
    if (mmap(ram, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ram_fd, 0) != ram)
        abort();
    pages = calloc(host_ram_pages, sizeof *pages);
    free_count = host_ram_pages;
    poison(ram, bytes);
}
static bool run_is_free(size_t at, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (atomic_load_relaxed(&pages[at + i].refcount))
            return false;
    }
    return true;
}
static struct page *take_run_locked(unsigned order)
{
    size_t count = (size_t)1 << order;
    for (size_t tries = 0; tries < host_ram_pages / count; tries++) {
        size_t at = ALIGN_UP(rover, count);
        if (at + count > host_ram_pages)
            at = 0;
        rover = at + count;
        if (!run_is_free(at, count))
            continue;
        for (size_t i = 0; i < count; i++) {
            pages[at + i] = (struct page){ .refcount = 1, .flags = order && i ? PAGE_TAIL : order ? PAGE_HEAD : 0 };
            pages[at + i].private = i ? &pages[at] : NULL;
            list_init(&pages[at + i].link);
        }
        pages[at].order = order;
        free_count -= count;
        return &pages[at];
    }
    return NULL;
}
struct page *page_alloc(unsigned order, unsigned mm_flags)
{
    if (allocation_fails())
        return NULL;
    for (int attempt = 0;; attempt++) {
        pthread_mutex_lock(&ram_lock);
        ram_init_locked();
        struct page *p = take_run_locked(order);
        pthread_mutex_unlock(&ram_lock);
        if (p) {
            unpoison(page_virt(p), PAGE_SIZE << order);
            if (mm_flags & MM_ZERO)
                memset(page_virt(p), 0, PAGE_SIZE << order);
            else
                memset(page_virt(p), 0xa5, PAGE_SIZE << order);
            return p;
        }
        if (!(mm_flags & MM_RECLAIM) || !shrinker || attempt > 8 || !shrinker(64u << order))
            return NULL;
    }
}
struct page *page_alloc_below(unsigned order, unsigned mm_flags, uint64_t phys_limit) { return page_alloc(order, mm_flags); }
void page_get(struct page *p)
{
    if (atomic_load_relaxed(&p->flags) & PAGE_TAIL)
        p = p->private;
    if (!atomic_fetch_add(&p->refcount, 1))
        abort();
}
void page_put(struct page *p)
{
    if (atomic_load_relaxed(&p->flags) & PAGE_TAIL)
        p = p->private;
    size_t count = (size_t)1 << p->order;
    uint32_t old = atomic_load_relaxed(&p->refcount);
    do {
        if (!old)
            abort();
        if (old == 1)
            break;
    } while (!atomic_cas(&p->refcount, &old, old - 1));
    if (old > 1)
        return;
    pthread_mutex_lock(&ram_lock);
    poison(page_virt(p), count * PAGE_SIZE);
    for (size_t i = 0; i < count; i++)
        atomic_store_relaxed(&p[i].refcount, 0);
    free_count += count;
    pthread_mutex_unlock(&ram_lock);
}
static bool in_ram(uint64_t phys)
{
    return ram && phys >= (uintptr_t)ram && phys < (uintptr_t)ram + host_ram_pages * PAGE_SIZE;
}
struct page *page_of_phys(uint64_t phys) { return in_ram(phys) ? &pages[(phys - (uintptr_t)ram) >> PAGE_SHIFT] : NULL; }
uint64_t page_phys(const struct page *p) { return (uintptr_t)ram + ((uint64_t)(p - pages) << PAGE_SHIFT); }
uint64_t mm_free_pages(void)
{
    pthread_mutex_lock(&ram_lock);
    ram_init_locked();
    uint64_t n = free_count;
    pthread_mutex_unlock(&ram_lock);
    return n;
}
uint64_t mm_total_pages(void) { return host_ram_pages; }
void mm_register_shrinker(uint64_t (*fn)(uint64_t)) { shrinker = fn; }
uint64_t host_shrink(uint64_t wanted) { return shrinker ? shrinker(wanted) : 0; }

/* ---- heap ---- */
void *kmalloc(size_t size)
{
    if (allocation_fails())
        return NULL;
    size_t align = 16;
    if (size > 16 && !(size & (size - 1)))
        align = MIN(size, PAGE_SIZE);
    void *p = NULL;
    if (posix_memalign(&p, align, size ? size : 1))
        return NULL;
    memset(p, 0xa5, size);
    return p;
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
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : kzalloc(bytes);
}
void *krealloc(void *p, size_t old_size, size_t new_size)
{
    void *q = kmalloc(new_size);
    if (q && p) {
        memcpy(q, p, MIN(old_size, new_size));
        free(p);
    }
    return q;
}
void kfree(void *p) { free(p); }
struct slab_cache { size_t size, align; };
struct slab_cache *slab_create(const char *name, size_t size, size_t align)
{
    struct slab_cache *c = malloc(sizeof *c);
    *c = (struct slab_cache){ size, MAX(align, (size_t)16) };
    return c;
}
void *slab_alloc(struct slab_cache *c)
{
    void *p = NULL;
    if (allocation_fails() || posix_memalign(&p, c->align, c->size))
        return NULL;
    memset(p, 0xa5, c->size);
    return p;
}
void slab_free(struct slab_cache *c, void *obj) { free(obj); }

/* ---- kernel virtual area ---- */
struct host_vmap { char *base; size_t size; struct page **pages; struct host_vmap *next; };
static struct host_vmap *vmaps;
void *vmap_reserve(size_t size)
{
    struct host_vmap *v = calloc(1, sizeof *v);
    v->size = ALIGN_UP(size, PAGE_SIZE);
    v->pages = calloc(v->size / PAGE_SIZE, sizeof *v->pages);
    v->base = mmap(NULL, v->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (v->base == MAP_FAILED)
        abort();
    pthread_mutex_lock(&ram_lock);
    v->next = vmaps;
    vmaps = v;
    pthread_mutex_unlock(&ram_lock);
    return v->base;
}
static struct host_vmap *vmap_find(const void *at)
{
    for (struct host_vmap *v = vmaps; v; v = v->next) {
        if ((const char *)at >= v->base && (const char *)at < v->base + v->size)
            return v;
    }
    return NULL;
}
int vmap_install(void *at, struct page *page, unsigned vmap_prot)
{
    int prot = vmap_prot & VMAP_RO ? PROT_READ : vmap_prot & VMAP_RX ? PROT_READ | PROT_EXEC : PROT_READ | PROT_WRITE;
    off_t offset = (off_t)(page_phys(page) - (uintptr_t)ram);
    if (mmap(at, PAGE_SIZE, prot, MAP_SHARED | MAP_FIXED, ram_fd, offset) != at)
        return -ENOMEM;
    pthread_mutex_lock(&ram_lock);
    struct host_vmap *v = vmap_find(at);
    if (v)
        v->pages[(size_t)((char *)at - v->base) / PAGE_SIZE] = page;
    pthread_mutex_unlock(&ram_lock);
    return 0;
}
void *vmap(struct page *const *list, size_t count, unsigned vmap_prot)
{
    char *base = vmap_reserve(count * PAGE_SIZE);
    for (size_t i = 0; i < count; i++) {
        if (vmap_install(base + i * PAGE_SIZE, list[i], vmap_prot))
            abort();
    }
    return base;
}
void *vmap_phys(uint64_t phys, size_t size, unsigned vmap_prot) { return phys_to_virt(phys); }
void vunmap(void *addr)
{
    pthread_mutex_lock(&ram_lock);
    for (struct host_vmap **link = &vmaps; *link; link = &(*link)->next) {
        struct host_vmap *v = *link;
        if (v->base == addr) {
            *link = v->next;
            munmap(v->base, v->size);
            free(v->pages);
            free(v);
            break;
        }
    }
    pthread_mutex_unlock(&ram_lock);
}
uint64_t virt_to_phys(const void *at)
{
    uint64_t phys = (uintptr_t)at;
    if (in_ram(phys))
        return phys;
    pthread_mutex_lock(&ram_lock);
    struct host_vmap *v = vmap_find(at);
    if (v) {
        size_t offset = (size_t)((const char *)at - v->base);
        phys = page_phys(v->pages[offset / PAGE_SIZE]) + offset % PAGE_SIZE;
    }
    pthread_mutex_unlock(&ram_lock);
    return phys;
}

/* ---- program memory ---- */
static uint64_t hole_start, hole_end;
void host_user_hole(uint64_t start, uint64_t end)
{
    hole_start = start;
    hole_end = end;
}
static size_t user_reach(uint64_t at, size_t n)
{
    if (hole_start == hole_end || at + n <= hole_start || at >= hole_end)
        return n;
    return at >= hole_start ? 0 : (size_t)(hole_start - at);
}
size_t copy_from_user_partial(void *dst, uint64_t src, size_t n)
{
    n = user_reach(src, n);
    memcpy(dst, (void *)(uintptr_t)src, n);
    return n;
}
size_t copy_to_user_partial(uint64_t dst, const void *src, size_t n)
{
    n = user_reach(dst, n);
    memcpy((void *)(uintptr_t)dst, src, n);
    return n;
}
int copy_from_user(void *dst, uint64_t src, size_t n) { return copy_from_user_partial(dst, src, n) == n ? 0 : -EFAULT; }
int copy_to_user(uint64_t dst, const void *src, size_t n) { return copy_to_user_partial(dst, src, n) == n ? 0 : -EFAULT; }
int zero_user(uint64_t dst, size_t n)
{
    size_t reach = user_reach(dst, n);
    memset((void *)(uintptr_t)dst, 0, reach);
    return reach == n ? 0 : -EFAULT;
}
ssize_t copy_string_from_user(char *dst, uint64_t src, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (copy_from_user(dst + i, src + i, 1))
            return -EFAULT;
        if (!dst[i])
            return (ssize_t)i;
    }
    return -ENAMETOOLONG;
}
int get_user_u32(uint32_t *dst, uint64_t src) { return copy_from_user(dst, src, 4); }
