/*
 * CPUs: per-CPU block, interrupt flag, cross calls. Implemented by arch/x86_64.
 *
 * The kernel is not preemptible in ring 0: a thread in the kernel gives up its CPU only by blocking,
 * by cond_resched(), or on the way back to ring 3. So this_cpu() stays valid until one of those, and
 * per-CPU data that interrupt handlers do not touch needs no protection at all.
 */
#ifndef WEIR_CPU_H
#define WEIR_CPU_H
#include <weir/bitmap.h>

struct thread;
struct pagetable;
struct run_queue;

/* Lock key: I immutable after the CPU is up, o owner CPU only, a atomic.
 * The first four members have fixed offsets that entry.S knows (see arch/x86_64/asm_offsets.h). */
struct cpu {
    struct cpu *self;            /* I gs:0 */
    struct thread *running;      /* o gs:8: what `current` reads */
    uint64_t kernel_rsp;         /* o gs:16 top of current's kernel stack, for SYSCALL */
    uint64_t user_rsp;           /* o gs:24 scratch for SYSCALL entry */
    unsigned id;                 /* I dense logical id */
    uint32_t apic_id;            /* I */
    unsigned irq_depth;          /* o >0 inside a hard interrupt handler */
    bool need_resched;           /* a set by wake-ups and the tick; cleared by schedule() */
    bool online;                 /* a */
    struct pagetable *pagetable; /* o the running thread's; NULL = a kernel thread */
    struct thread *idle;         /* I */
    struct run_queue *rq;        /* I */
    void *arch;                  /* I TSS, GDT, stacks: private to arch */
} __cacheline;

#if !__STDC_HOSTED__
static inline struct cpu *this_cpu(void)
{
    struct cpu *c;
    __asm__ volatile("movq %%gs:0, %0" : "=r"(c));
    return c;
}
static inline struct thread *current_thread(void)
{
    struct thread *t;
    __asm__ volatile("movq %%gs:8, %0" : "=r"(t));
    return t;
}
#define current current_thread()
static inline uint64_t irq_save(void)
{
    uint64_t flags;
    __asm__ volatile("pushfq; popq %0; cli" : "=r"(flags) : : "memory");
    return flags;
}
static inline void irq_restore(uint64_t flags)
{
    if (flags & 0x200)
        __asm__ volatile("sti" : : : "memory");
}
static inline void irq_enable(void) { __asm__ volatile("sti" : : : "memory"); }
static inline void irq_disable(void) { __asm__ volatile("cli" : : : "memory"); }
static inline bool irq_enabled(void)
{
    uint64_t flags;
    __asm__ volatile("pushfq; popq %0" : "=r"(flags));
    return flags & 0x200;
}
#endif

unsigned cpu_count(void);              /* CPUs that are up; constant after smp_init() */
unsigned cpu_possible_count(void);     /* enabled in firmware's tables, at most CPU_MAX; constant, >= cpu_count() */
struct cpu *cpu_by_id(unsigned id);    /* id < cpu_count() */

/* Bring up every enabled CPU of the MADT (bounded wait, one retry; names those that did not come up).
 * Each runs sched_cpu_start() on its idle stack. Boot CPU, thread context, interrupts on. */
void smp_init(void);

/* Run fn(arg) on every CPU in mask except the caller's, in interrupt context with interrupts off.
 * Returns when all have finished. The waiter serves requests addressed to itself; a wait over 5 s is
 * reported and goes on. Thread context, interrupts on, no spinlock held. */
void cpu_call(const struct cpumask *mask, void (*fn)(void *), void *arg);
/* Reschedule IPI: makes the target look at need_resched. Any context. Never sent to self. */
void cpu_kick(unsigned id);
/* Halt until an interrupt, unless need_resched is set. Called by the idle thread with interrupts
 * off; returns with interrupts on. The check and the halt are atomic against interrupts. */
void cpu_halt(void);

/* Interrupt vectors above the exceptions. Handler runs with interrupts off on the CPU that took it;
 * arch sends EOI after it. Replacing a handler with NULL makes the vector spurious (counted, EOI,
 * dropped). Any context. */
typedef void (*vector_handler)(unsigned vector, void *arg);
#define VECTOR_FIRST 32
#define VECTOR_COUNT 256
void vector_set_handler(unsigned vector, vector_handler fn, void *arg);
vector_handler vector_get_handler(unsigned vector); /* NULL = spurious */
/* Vectors that arch keeps for itself (timer, reschedule, call, error, spurious): set bits. */
void vector_reserved(uint64_t mask[4]);
uint64_t vector_spurious_count(void);
/* Has this CPU an interrupt of the vector that it has not taken yet? Interrupts off. */
bool vector_pending(unsigned vector);

/* Route a level-triggered legacy interrupt line (ACPI GSI) to a vector on a CPU, or mask it. 0 or -ENODEV. */
int ioapic_route(unsigned gsi, unsigned vector, unsigned cpu, bool level, bool active_low) __must_check;
void ioapic_mask(unsigned gsi, bool masked);

/* MSI message that raises `vector` on CPU `cpu` (Intel SDM 3A 11.11). -ERANGE if the APIC id does not fit. */
int msi_message(unsigned cpu, unsigned vector, uint64_t *address, uint32_t *data) __must_check;

/* Leave the machine: flush nothing, tell QEMU `status` (isa-debug-exit, else ACPI S5). */
__noreturn void machine_exit(int status);
/* Called in interrupt context when the ACPI power button is pressed or Ctrl-C arrives on the serial
 * console; NULL = power off at once. */
void machine_set_power_button(void (*fn)(void *), void *arg);
/* Enable an ACPI general-purpose event of block 0; fn runs in interrupt context each time it is raised, after
 * the event was cleared. One event at a time. -ENODEV: this machine has no such event. Thread context. */
int acpi_gpe_enable(unsigned gpe, void (*fn)(void *), void *arg) __must_check;
/* Serial console input: called in interrupt context for each byte received (Ctrl-C excepted). */
void console_set_input(void (*fn)(char c));
/* Physical address of the ACPI RSDP (0 if none) and of a table by signature (NULL if absent). */
const void *acpi_table(const char signature[4]);
/* What the DSDT says of the PCI host bridge, where it states it plainly; zeros where it does not. */
struct acpi_pci_host {
    uint64_t ecam_base;                /* of bus 0 of segment 0 */
    uint64_t window_start, window_end; /* memory below 4 GiB that reaches the bus, end exclusive */
};
void acpi_pci_host(struct acpi_pci_host *out);
#endif
