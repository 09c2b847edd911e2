/* Interrupt descriptor table (one for all CPUs) and the handlers of vectors above the exceptions. */
#include <weir/printk.h>
#include <weir/spinlock.h>
#include "arch/x86_64/arch.h"

#define STUB_SIZE 16
#define GATE_INTERRUPT 0x8e00UL
#define GATE_DPL3 0x6000UL

static struct {
    uint64_t low, high;
} idt[VECTOR_COUNT] __attribute__((aligned(16)));

/* The pair (fn, arg) changes under `seq`: even = stable. Key: w writer holds set_lock, a atomic. */
static struct vector_slot {
    uint32_t seq;       /* a */
    vector_handler fn;  /* w */
    void *arg;          /* w */
} slots[VECTOR_COUNT];
static spinlock_t set_lock = SPINLOCK_INIT; /* leaf */
static uint64_t spurious; /* a */

void idt_init(void)
{
    for (unsigned v = 0; v < VECTOR_COUNT; v++) {
        uint64_t stub = (uint64_t)vector_stubs + v * STUB_SIZE;
        uint64_t ist = v == 2 ? IST_NMI : v == 8 ? IST_DF : v == 18 ? IST_MC : v == 1 ? IST_DB : 0;
        /* INT3 and INTO are instructions that a program may execute. */
        uint64_t gate = GATE_INTERRUPT | ist | (v == 3 || v == 4 ? GATE_DPL3 : 0);
        idt[v].low = (stub & 0xffff) | (uint64_t)KERNEL_CS << 16 | gate << 32 | ((stub >> 16) & 0xffff) << 48;
        idt[v].high = stub >> 32;
    }
}

void idt_load(void)
{
    struct {
        uint16_t limit;
        uint64_t base;
    } __packed pointer = { sizeof idt - 1, (uint64_t)idt };
    __asm__ volatile("lidt %0" : : "m"(pointer));
}

void vector_set_handler(unsigned vector, vector_handler fn, void *arg)
{
    struct vector_slot *s = &slots[vector];
    uint64_t flags = spin_lock_irqsave(&set_lock);
    atomic_store_relaxed(&s->seq, s->seq + 1);
    barrier_write(); /* odd is seen before either half of the new pair */
    atomic_store_relaxed(&s->fn, fn);
    atomic_store_relaxed(&s->arg, arg);
    atomic_store_release(&s->seq, s->seq + 1); /* both halves are seen before even */
    spin_unlock_irqrestore(&set_lock, flags);
}

vector_handler vector_get_handler(unsigned vector)
{
    return atomic_load_relaxed(&slots[vector].fn);
}

void vector_dispatch(unsigned vector, struct trapframe *tf)
{
    struct cpu *c = this_cpu();
    struct vector_slot *s = &slots[vector];
    vector_handler fn;
    void *arg;
    uint32_t seq;
    c->irq_depth++;
    do {
        seq = atomic_load_acquire(&s->seq); /* before the pair */
        fn = atomic_load_relaxed(&s->fn);
        arg = atomic_load_relaxed(&s->arg);
        barrier_read(); /* the pair before the second look at seq */
    } while (unlikely((seq & 1) || atomic_load_relaxed(&s->seq) != seq));
    if (likely(fn != NULL))
        fn(vector, arg);
    else
        atomic_fetch_add(&spurious, 1);
    /* The local APIC's own spurious vector sets no in-service bit. */
    if (likely(vector != VECTOR_SPURIOUS))
        apic_eoi();
    c->irq_depth--;
}

uint64_t vector_spurious_count(void)
{
    return atomic_load_relaxed(&spurious);
}

void vector_reserved(uint64_t mask[4])
{
    mask[0] = 0xffffffff; /* exceptions */
    mask[1] = mask[2] = 0;
    mask[3] = 0;
    for (unsigned v = VECTOR_LEGACY_SCI; v < VECTOR_COUNT; v++)
        bitmap_set(mask, v);
}
