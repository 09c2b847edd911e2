/* Page allocator, heap, vmap, TLB coherence. */
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/mm.h>
#include <weir/pagetable.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include <weir/usercopy.h>
#include "arch/x86_64/arch.h"
#include "tests/guest/on_each_cpu.h"

/* Takes all memory: the list of pages must come back whole. */
GUEST_TEST(memory_exhaustion_gives_null_and_recovers)
{
    struct list taken = LIST_INIT(taken);
    uint64_t before = mm_free_pages(), count = 0;
    struct page *p, *next;
    bool aligned = true;
    for (unsigned order = 9;; order--) {
        while ((p = page_alloc(order, 0))) {
            aligned = aligned && IS_ALIGNED(page_phys(p), PAGE_SIZE << order) && p->refcount == 1;
            list_add(&taken, &p->link);
            count += 1UL << order;
            if (count % (1UL << 14) == 0)
                cond_resched();
        }
        if (!order)
            break;
    }
    bool null_again = !page_alloc(0, 0) && !page_alloc(4, 0) && !kmalloc(1 << 20) && !kmalloc(8192);
    list_for_each_entry_safe(p, next, &taken, link) {
        list_del(&p->link);
        page_put(p);
    }
    GUEST_CHECK(aligned && null_again);
    /* What other CPUs keep in their caches was out of reach. */
    GUEST_CHECK(count + 64 * cpu_count() + 1024 > before);
    GUEST_CHECK(mm_free_pages() + 1024 > before);
    p = page_alloc(9, MM_ZERO);
    GUEST_CHECK(p != NULL);
    page_put(p);
    return 0;
}

GUEST_TEST(page_below_a_limit_lies_below_it)
{
    struct page *p = page_alloc_below(2, 0, 64UL << 20);
    GUEST_CHECK(p && page_phys(p) + 4 * PAGE_SIZE <= 64UL << 20);
    page_put(p);
    GUEST_CHECK(!page_alloc_below(0, 0, 4096));
    GUEST_CHECK(!page_alloc(11, 0));
    GUEST_CHECK(!page_of_phys(1UL << 45));
    return 0;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Blocks of mixed sizes come and go on all CPUs; each carries its owner's mark at both ends. */
static int churn_pages(unsigned cpu, void *arg)
{
    struct page *held[24] = { 0 };
    uint32_t state = cpu + 1;
    for (unsigned i = 0; i < 600; i++) {
        unsigned at = next_random(&state) % ARRAY_SIZE(held);
        if (held[at]) {
            uint64_t size = PAGE_SIZE << held[at]->order;
            uint64_t *mark = page_virt(held[at]);
            GUEST_CHECK(mark[0] == page_phys(held[at]) + cpu && mark[size / 8 - 1] == mark[0]);
            page_put(held[at]);
            held[at] = NULL;
            continue;
        }
        unsigned order = next_random(&state) % 5;
        held[at] = page_alloc(order, 0);
        if (held[at]) {
            uint64_t *mark = page_virt(held[at]);
            mark[0] = mark[(PAGE_SIZE << order) / 8 - 1] = page_phys(held[at]) + cpu;
            if (order)
                GUEST_CHECK(held[at][1].private == held[at]);
        }
        cond_resched();
    }
    for (unsigned i = 0; i < ARRAY_SIZE(held); i++) {
        if (held[i])
            page_put(held[i]);
    }
    return 0;
}

GUEST_TEST(pages_belong_to_one_owner_on_all_cpus)
{
    uint64_t before = mm_free_pages();
    GUEST_CHECK(on_each_cpu(churn_pages, NULL) == 0);
    GUEST_CHECK(mm_free_pages() + 2048 > before);
    return 0;
}

/* Freed by another CPU than the one that allocated: objects pass through a shared table. */
static void *shared_objects[256]; /* a */

static int churn_heap(unsigned cpu, void *arg)
{
    uint32_t state = cpu * 77 + 5;
    for (unsigned i = 0; i < 1500; i++) {
        size_t size = 16 + next_random(&state) % (i % 50 ? 3000 : 40000);
        uint32_t *o = kmalloc(size);
        GUEST_CHECK(o && IS_ALIGNED((uint64_t)o, 16));
        o[0] = (uint32_t)size;
        o[size / 4 - 1] = (uint32_t)size;
        uint32_t *other = atomic_exchange(&shared_objects[next_random(&state) % ARRAY_SIZE(shared_objects)], o);
        if (other) {
            GUEST_CHECK(other[0] >= 16 && other[other[0] / 4 - 1] == other[0]);
            kfree(other);
        }
        cond_resched();
    }
    return 0;
}

GUEST_TEST(heap_objects_do_not_overlap)
{
    int failures = on_each_cpu(churn_heap, NULL);
    for (unsigned i = 0; i < ARRAY_SIZE(shared_objects); i++)
        kfree(atomic_exchange(&shared_objects[i], NULL));
    GUEST_CHECK(failures == 0);
    return 0;
}

GUEST_TEST(heap_alignment_and_overflow)
{
    for (size_t size = 16; size <= PAGE_SIZE; size *= 2) {
        void *p = kmalloc(size);
        GUEST_CHECK(p && IS_ALIGNED((uint64_t)p, size));
        kfree(p);
    }
    GUEST_CHECK(!kcalloc(SIZE_MAX / 2, 3) && !kmalloc(SIZE_MAX - 4096));
    char *p = krealloc(NULL, 0, 10);
    GUEST_CHECK(p);
    memcpy(p, "123456789", 10);
    p = krealloc(p, 10, 100000);
    GUEST_CHECK(p && !strcmp(p, "123456789"));
    p = krealloc(p, 100000, 10);
    GUEST_CHECK(p && !memcmp(p, "123456789", 10));
    kfree(p);
    return 0;
}

GUEST_TEST(vmap_ranges_have_guard_pages)
{
    uint64_t value;
    for (unsigned round = 0; round < 200; round++) {
        char *a = kmalloc(20000), *b = kmalloc(20000);
        uint64_t size = ALIGN_UP(20000UL, PAGE_SIZE);
        GUEST_CHECK(a && b);
        memset(a, 1, size);
        memset(b, 2, size);
        GUEST_CHECK(!kernel_read_safe((uint64_t)a - 8, &value) && !kernel_read_safe((uint64_t)a + size, &value));
        GUEST_CHECK(kernel_read_safe((uint64_t)a + size - 8, &value) && value == 0x0101010101010101);
        GUEST_CHECK(virt_to_phys(a + 5) == (virt_to_phys(a) | 5));
        kfree(a);
        GUEST_CHECK(kernel_read_safe((uint64_t)b, &value) && value == 0x0202020202020202);
        kfree(b);
    }
    uint64_t stack = current->kstack_top - KSTACK_SIZE;
    GUEST_CHECK(!kernel_read_safe(stack - 8, &value) && kernel_read_safe(stack, &value));
    return 0;
}

/* 8,000 ranges of some 1 MiB one after the other, and what of it is used at a time is a few dozen: freed ranges come back. */
GUEST_TEST(vmap_long_ranges_are_used_again)
{
    uint64_t first = 0, last = 0;
    for (unsigned i = 0; i < 8000; i++) {
        size_t size = (200 + i % 50) * PAGE_SIZE;
        char *a = vmap_reserve(size);
        GUEST_CHECK(a);
        struct page *page = page_alloc(0, 0);
        GUEST_CHECK(page);
        GUEST_CHECK(!vmap_install(a + size - PAGE_SIZE, page, VMAP_RW));
        a[size - 1] = (char)i;
        GUEST_CHECK(a[size - 1] == (char)i);
        vunmap(a);
        page_put(page);
        first = i ? MIN(first, (uint64_t)a) : (uint64_t)a;
        last = MAX(last, (uint64_t)a);
    }
    GUEST_CHECK(last - first < 128UL << 20);
    return 0;
}

GUEST_TEST(kernel_image_is_write_xor_execute)
{
    struct { const void *at; bool write, execute; } spots[] = {
        { text_start, false, true }, { rodata_start, false, false }, { data_start, true, false },
        { phys_to_virt(virt_to_phys(text_start)), false, false },
    };
    for (unsigned i = 0; i < ARRAY_SIZE(spots); i++) {
        uint64_t *table = kernel_pml4, va = (uint64_t)spots[i].at, entry = 0;
        for (unsigned level = 4; level; level--) {
            entry = table[(va >> (3 + 9 * level)) & 511];
            GUEST_CHECK(entry & PTE_PRESENT);
            if (entry & PTE_HUGE)
                break;
            table = phys_to_virt(entry & PTE_ADDR);
        }
        GUEST_CHECK(!!(entry & PTE_WRITE) == spots[i].write);
        GUEST_CHECK(!cpu_features.nx || !(entry & PTE_NX) == spots[i].execute);
    }
    return 0;
}

/* Readers on every CPU look at one program address while it is moved between two pages. After the flush the
 * old page is poisoned: whoever still reads the poison used a stale translation. */
#define SHOOT_VA 0x10000000UL
#define SHOOT_ROUNDS 20
#define POISON 0xdeadbeefu
static struct pagetable shoot_table;
static bool shoot_stop;           /* a */
static unsigned shoot_readers;    /* a */

static int read_always(unsigned cpu, void *arg)
{
    int result = 0;
    current->pagetable = &shoot_table;
    uint64_t flags = irq_save();
    pagetable_load(&shoot_table);
    irq_restore(flags);
    atomic_fetch_add(&shoot_readers, 1);
    while (!atomic_load_acquire(&shoot_stop) && !result) {
        for (unsigned i = 0; i < 100 && !result; i++) {
            uint32_t value = 0;
            if (get_user_u32(&value, SHOOT_VA) || value == POISON)
                result = 1;
        }
        cond_resched();
    }
    current->pagetable = NULL;
    flags = irq_save();
    pagetable_load(NULL);
    irq_restore(flags);
    return result;
}

static void shooter(void *arg)
{
    struct page **pages = arg;
    uint64_t *pte = pagetable_entry(&shoot_table, SHOOT_VA, 1, false);
    while (atomic_load_acquire(&shoot_readers) < cpu_count())
        thread_yield();
    for (unsigned round = 0; round < SHOOT_ROUNDS; round++) {
        struct page *fresh = pages[(round + 1) % 2], *old = pages[round % 2];
        *(uint32_t *)page_virt(fresh) = round + 1;
        atomic_store_relaxed(pte, page_phys(fresh) | PTE_PRESENT | PTE_USER);
        pagetable_flush(&shoot_table, SHOOT_VA, SHOOT_VA + (round % 2 ? PAGE_SIZE : 64 * PAGE_SIZE));
        *(uint32_t *)page_virt(old) = POISON;
        cond_resched();
    }
    atomic_store_release(&shoot_stop, true);
}

GUEST_TEST(shoot_down_leaves_no_stale_translation)
{
    struct page *pages[2] = { page_alloc(0, MM_ZERO), page_alloc(0, MM_ZERO) };
    GUEST_CHECK(pages[0] && pages[1]);
    GUEST_CHECK(!pagetable_init(&shoot_table));
    uint64_t *pte = pagetable_entry(&shoot_table, SHOOT_VA, 1, true);
    GUEST_CHECK(pte);
    *pte = page_phys(pages[0]) | PTE_PRESENT | PTE_USER;
    atomic_store_relaxed(&shoot_stop, false);
    atomic_store_relaxed(&shoot_readers, 0);
    struct thread *t = thread_create("shooter", shooter, pages);
    GUEST_CHECK(t);
    thread_start(t);
    int failures = on_each_cpu(read_always, NULL);
    GUEST_CHECK(failures == 0);
    thread_put(t);
    for (unsigned i = 0; i < cpu_count(); i++)
        GUEST_CHECK(!bitmap_test(shoot_table.active.bits, i));
    *pte = 0;
    pagetable_prune(&shoot_table, SHOOT_VA, SHOOT_VA + PAGE_SIZE);
    GUEST_CHECK(!pagetable_entry(&shoot_table, SHOOT_VA, 1, false));
    pagetable_destroy(&shoot_table);
    page_put(pages[0]);
    page_put(pages[1]);
    return 0;
}

/* A CPU that went from a program to a kernel thread keeps the program's table, is not told of flushes, and yet uses
 * nothing old when it comes back; it leaves when tables are freed. */
struct lazy_case {
    struct pagetable table;
    struct completion seen_first, go, seen_second;
    uint32_t first, second;
};

static void read_before_and_after(void *arg)
{
    struct lazy_case *l = arg;
    current->pagetable = &l->table;
    uint64_t flags = irq_save();
    pagetable_load(&l->table);
    irq_restore(flags);
    bool bad = get_user_u32(&l->first, SHOOT_VA);
    completion_complete(&l->seen_first);
    completion_wait(&l->go);
    bad = get_user_u32(&l->second, SHOOT_VA) || bad;
    if (bad)
        l->second = 0;
    current->pagetable = NULL;
    flags = irq_save();
    pagetable_switch(NULL);
    irq_restore(flags);
    completion_complete(&l->seen_second);
}

GUEST_TEST(a_lazily_held_table_is_followed)
{
    static struct lazy_case l;
    unsigned cpu = cpu_count() - 1;
    struct page *pages[2] = { page_alloc(0, MM_ZERO), page_alloc(0, MM_ZERO) };
    if (!cpu)
        return 0;
    GUEST_CHECK(pages[0] && pages[1] && !pagetable_init(&l.table));
    completion_init(&l.seen_first);
    completion_init(&l.go);
    completion_init(&l.seen_second);
    uint64_t *pte = pagetable_entry(&l.table, SHOOT_VA, 1, true);
    GUEST_CHECK(pte);
    *(uint32_t *)page_virt(pages[0]) = 1;
    *(uint32_t *)page_virt(pages[1]) = 2;
    *pte = page_phys(pages[0]) | PTE_PRESENT | PTE_USER;
    struct cpumask there = { 0 }, here = { 0 };
    bitmap_set(there.bits, cpu);
    bitmap_set(here.bits, 0);
    thread_set_affinity(current, &here);
    struct thread *t = thread_create("lazy", read_before_and_after, &l);
    GUEST_CHECK(t);
    thread_set_affinity(t, &there);
    thread_start(t);
    completion_wait(&l.seen_first);
    while (atomic_load_relaxed((volatile uint64_t *)&l.table.active.bits[cpu / 64]))
        thread_yield();
    GUEST_CHECK(l.first == 1);
    GUEST_CHECK(bitmap_test(l.table.loaded.bits, cpu));
    atomic_store_relaxed(pte, page_phys(pages[1]) | PTE_PRESENT | PTE_USER);
    pagetable_flush(&l.table, SHOOT_VA, SHOOT_VA + PAGE_SIZE);
    GUEST_CHECK(bitmap_test(l.table.loaded.bits, cpu)); /* it was not called */
    completion_complete(&l.go);
    completion_wait(&l.seen_second);
    GUEST_CHECK(l.second == 2);
    *pte = 0;
    pagetable_prune(&l.table, SHOOT_VA, SHOOT_VA + PAGE_SIZE);
    GUEST_CHECK(!bitmap_test(l.table.loaded.bits, cpu));
    pagetable_destroy(&l.table);
    memset(&here, 0xff, sizeof here);
    thread_set_affinity(current, &here);
    thread_put(t);
    page_put(pages[0]);
    page_put(pages[1]);
    return 0;
}

GUEST_TEST(copies_stop_where_nothing_is_mapped)
{
    struct pagetable pt;
    struct page *p = page_alloc(0, MM_ZERO);
    static char buffer[700]; /* longer than where REP MOVSB begins */
    uint32_t value;
    GUEST_CHECK(p && !pagetable_init(&pt));
    uint64_t va = 0x20000000, *pte = pagetable_entry(&pt, va, 1, true);
    GUEST_CHECK(pte);
    *pte = page_phys(p) | PTE_PRESENT | PTE_USER | PTE_WRITE;
    current->pagetable = &pt;
    /* With interrupts off a fault goes to no handler, only to its fix-up: the table belongs to no program. */
    uint64_t flags = irq_save();
    pagetable_load(&pt);
    memset(buffer, 'x', sizeof buffer);
    bool ok = true;
    for (unsigned n = 0; n < 650; n += n < 150 ? 1 : 37) {
        ok = ok && copy_to_user_partial(va + PAGE_SIZE - n, buffer, sizeof buffer) == n;
        ok = ok && copy_from_user_partial(buffer, va + PAGE_SIZE - n, sizeof buffer) == n;
    }
    ok = ok && copy_to_user(va + PAGE_SIZE - 8, buffer, 9) == -EFAULT && !copy_to_user(va, "text", 5);
    ok = ok && copy_string_from_user(buffer, va, sizeof buffer) == 4 && !strcmp(buffer, "text");
    ok = ok && copy_string_from_user(buffer, va, 4) == -ENAMETOOLONG;
    ok = ok && copy_string_from_user(buffer, va + PAGE_SIZE - 3, sizeof buffer) == -EFAULT;
    ok = ok && zero_user(va, PAGE_SIZE) == 0 && zero_user(va + 100, PAGE_SIZE) == -EFAULT;
    ok = ok && cas_user_u32(va, 0, 7, &value) == 0 && value == 0 && cas_user_u32(va, 0, 9, &value) == 0 && value == 7;
    ok = ok && get_user_u32(&value, va) == 0 && value == 7 && get_user_u32(&value, va + PAGE_SIZE) == -EFAULT;
    ok = ok && copy_from_user(buffer, PHYS_MAP_BASE, 8) == -EFAULT && copy_from_user(buffer, USER_TOP - 4, 8) == -EFAULT;
    current->pagetable = NULL;
    pagetable_load(NULL);
    irq_restore(flags);
    *pte = 0;
    pagetable_destroy(&pt);
    page_put(p);
    GUEST_CHECK(ok);
    return 0;
}
