/* Threads: birth, stacks, death, the list of all. */
#include "sched_private.h"
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

static spinlock_t list_lock;                    /* guards all_link; interrupts off; last in the order */
static struct list all_threads = LIST_INIT(all_threads);
static uint32_t next_tid = 1;

/* ---- kernel stacks: mapped pages with a guard page on each side ---- */

/* A mapping and its removal cost a TLB flush on all CPUs, so stacks are kept. A free stack holds its link
 * in its first bytes. */
struct free_stack {
    struct free_stack *next;
};
static spinlock_t stack_lock; /* guards the two below; interrupts off */
static struct free_stack *free_stacks;
static unsigned free_stack_count;

#define STACK_PAGES (KSTACK_SIZE / PAGE_SIZE)
/* As many as a burst of forks and exits on all CPUs turns over. */
static unsigned free_stack_limit(void) { return 32 + 4 * cpu_count(); }

static void stack_cache_put(void *stack)
{
    struct free_stack *s = stack;
    uint64_t flags = spin_lock_irqsave(&stack_lock);
    s->next = free_stacks;
    free_stacks = s;
    free_stack_count++;
    spin_unlock_irqrestore(&stack_lock, flags);
}

static void *stack_cache_get(unsigned only_above)
{
    uint64_t flags = spin_lock_irqsave(&stack_lock);
    struct free_stack *s = free_stack_count > only_above ? free_stacks : NULL;
    if (s) {
        free_stacks = s->next;
        free_stack_count--;
    }
    spin_unlock_irqrestore(&stack_lock, flags);
    return s;
}

static void *stack_create(void)
{
    struct page *pages[STACK_PAGES];
    unsigned n = 0;
    /* The boot CPU makes its first thread before interrupts are on; nothing to reclaim then. */
    unsigned how = irq_enabled() ? MM_RECLAIM : 0;
    while (n < STACK_PAGES && (pages[n] = page_alloc(0, how)))
        n++;
    void *stack = n == STACK_PAGES ? vmap(pages, n, VMAP_RW) : NULL;
    while (!stack && n)
        page_put(pages[--n]);
    return stack;
}

static void stack_destroy(void *stack)
{
    struct page *pages[STACK_PAGES];
    for (unsigned i = 0; i < STACK_PAGES; i++)
        pages[i] = page_of_phys(virt_to_phys((char *)stack + i * PAGE_SIZE));
    vunmap(stack);
    for (unsigned i = 0; i < STACK_PAGES; i++)
        page_put(pages[i]);
}

static void stack_cache_trim(void)
{
    void *stack;
    while ((stack = stack_cache_get(free_stack_limit())))
        stack_destroy(stack);
}

/* ---- birth ---- */

static struct slab_cache *thread_cache; /* I made with the first thread, by the boot CPU alone */

static struct thread *thread_alloc(const char *name)
{
    if (!thread_cache)
        thread_cache = slab_create("thread", sizeof(struct thread), 64);
    struct thread *t = thread_cache ? slab_alloc(thread_cache) : NULL;
    if (!t)
        return NULL;
    memset(t, 0, sizeof(*t));
    policy_entity_init(&t->entity, 0);
    t->state = THREAD_NEW;
    t->refcount = 1;
    memset(&t->affinity, 0xff, sizeof(t->affinity));
    t->cpu = this_cpu()->id;
    str_copy(t->name, name, sizeof(t->name));
    return t;
}

static void thread_list_add(struct thread *t)
{
    uint64_t flags = spin_lock_irqsave(&list_lock);
    list_add_tail(&all_threads, &t->all_link);
    spin_unlock_irqrestore(&list_lock, flags);
}

static struct thread *thread_new(const char *name)
{
    stack_cache_trim();
    struct thread *t = thread_alloc(name);
    void *stack = t ? stack_cache_get(0) : NULL;
    if (t && !stack)
        stack = stack_create();
    if (!stack) {
        if (t)
            slab_free(thread_cache, t);
        return NULL;
    }
    t->tid = (int)atomic_fetch_add(&next_tid, 1);
    t->kstack = stack;
    t->kstack_top = (uint64_t)stack + KSTACK_SIZE;
    return t;
}

/* First code of a kernel thread, on its own stack, still inside the switch. */
static void thread_main(void)
{
    sched_switched_in();
    irq_enable();
    current->fn(current->arg);
    thread_exit();
}

struct thread *thread_create(const char *name, void (*fn)(void *), void *arg)
{
    struct thread *t = thread_new(name);
    if (!t)
        return NULL;
    t->fn = fn;
    t->arg = arg;
    arch_thread_init(t, thread_main);
    thread_list_add(t);
    return t;
}

struct thread *thread_create_user(const char *name, const struct trapframe *regs, struct pagetable *pt, void *fpu,
                                  uint64_t fs_base, void *task)
{
    struct thread *t = thread_new(name);
    if (!t)
        return NULL;
    t->pagetable = pt;
    t->fpu = fpu;
    t->fs_base = fs_base;
    t->task = task;
    arch_thread_init_user(t, regs);
    thread_list_add(t);
    return t;
}

/* The context that calls sched_cpu_start becomes this thread; it runs on the stack that arch gave it. */
struct thread *thread_create_idle(unsigned cpu)
{
    char name[16];
    snprintf(name, sizeof(name), "idle/%u", cpu);
    struct thread *t = thread_alloc(name);
    if (!t)
        panic("no memory for the idle thread of CPU %u", cpu);
    t->tid = -1 - (int)cpu; /* not one that a program could name */
    t->cpu = cpu;
    t->state = THREAD_RUNNABLE;
    t->on_cpu = true;
    thread_list_add(t);
    return t;
}

/* ---- death ---- */

void thread_exit(void)
{
    stack_cache_trim(); /* here, since the last steps run where nothing may block */
    irq_disable();      /* no interrupt of a dying thread: it would find the state below */
    atomic_exchange(&current->state, THREAD_DEAD);
    schedule();
    panic("dead thread %d runs", current->tid);
}

void thread_release_dead(struct thread *t)
{
    void *stack = t->kstack;
    t->kstack = NULL;
    stack_cache_put(stack);
    thread_put(t);
}

void thread_get(struct thread *t)
{
    atomic_fetch_add(&t->refcount, 1);
}

void thread_put(struct thread *t)
{
    /* Full barrier: what other holders did to t is done before it is freed. */
    if (atomic_fetch_sub(&t->refcount, 1) != 1)
        return;
    uint64_t flags = spin_lock_irqsave(&list_lock);
    list_del(&t->all_link);
    spin_unlock_irqrestore(&list_lock, flags);
    if (t->kstack)
        stack_cache_put(t->kstack); /* never started */
    if (t->fpu)
        fpu_free(t->fpu);
    slab_free(thread_cache, t);
}

void thread_for_each(void (*fn)(struct thread *, void *), void *arg)
{
    uint64_t flags = spin_lock_irqsave(&list_lock);
    struct thread *t;
    list_for_each_entry(t, &all_threads, all_link)
        fn(t, arg);
    spin_unlock_irqrestore(&list_lock, flags);
}
