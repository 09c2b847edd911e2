/*
 * Bringing up the other CPUs: all are started together, each takes a stack, reports that it has arrived, and
 * sleeps; when all have arrived (or the wait is over) the ids are made dense and all are released.
 *
 * A CPU that answers too late finds its place closed and halts for good: it has touched nothing by then. So it is when
 * start-up is tried again: INIT goes only to a CPU whose place is closed, so it never resets one that has arrived.
 */
#include <weir/cmdline.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"
#include "arch/x86_64/madt.h"

#define WAIT_NS (3 * NSEC_PER_SEC)
#define INIT_DELAY_NS (200 * NSEC_PER_USEC)
#define STARTUP_DELAY_NS (1 * NSEC_PER_MSEC)
#define ATTEMPTS 2
#define ONLINE_NS (60 * NSEC_PER_SEC) /* a host may be busy; a CPU that has arrived is only ever slow */

enum ap_state { AP_WAITING, AP_ARRIVED, AP_CLOSED };

/* One for each CPU of the table but the boot CPU. */
struct ap {
    uint32_t apic_id;   /* I */
    uint32_t state;     /* a enum ap_state */
    uint32_t deaf;      /* a arrivals that fail, for tests: smp.deaf */
    struct cpu *cpu;    /* I before start */
};

extern char trampoline_start[], trampoline_end[], trampoline_far[], trampoline_gdt_base[],
    trampoline_gdt[], trampoline_long[], trampoline_efer[];
/* Read by trampoline.S: who arrives takes the next stack. */
extern uint64_t *ap_stacks;
extern uint32_t ap_stack_count, ap_next_stack;
extern uint64_t kernel_cr3;
uint64_t *ap_stacks;
uint32_t ap_stack_count, ap_next_stack;
uint64_t kernel_cr3;
void ap_start(void);

static struct ap *aps;
static unsigned ap_count;
static bool released; /* a */

static void trampoline_install(void)
{
    uint64_t phys = trampoline_phys();
    uint8_t *page = phys_to_virt(phys);
    uint32_t v;
    memcpy(page, trampoline_start, (size_t)(trampoline_end - trampoline_start));
    v = (uint32_t)(phys + (uint64_t)(trampoline_long - trampoline_start));
    memcpy(page + (trampoline_far - trampoline_start), &v, sizeof v);
    v = (uint32_t)(phys + (uint64_t)(trampoline_gdt - trampoline_start));
    memcpy(page + (trampoline_gdt_base - trampoline_start), &v, sizeof v);
    v = EFER_LME | EFER_SCE | (cpu_features.nx ? EFER_NXE : 0);
    memcpy(page + (trampoline_efer - trampoline_start), &v, sizeof v);
}

static uint32_t own_apic_id(void)
{
    if (cpu_features.x2apic && cpu_features.max_leaf >= 0xb)
        return cpuid(0xb, 0).d;
    return cpuid(1, 0).b >> 24;
}

/* On the stack of whatever number; GS is not set yet. */
void ap_start(void)
{
    uint32_t id = own_apic_id(), expected = AP_WAITING;
    struct ap *self = NULL;
    for (unsigned i = 0; i < ap_count; i++) {
        if (aps[i].apic_id == id)
            self = &aps[i];
    }
    if (!self || (self->deaf && self->deaf--) || !atomic_cas(&self->state, &expected, AP_ARRIVED))
        cpu_stop();
    struct cpu *c = self->cpu;
    cpu_enable_features();
    cpu_load_tables(c);
    apic_enable_cpu();
    clock_enable_cpu();
    apic_timer_enable_cpu();
    /* Sleep until released; the releasing interrupt stays pending from the look to the HLT. */
    for (;;) {
        irq_disable();
        if (atomic_load_acquire(&released))
            break;
        __asm__ volatile("sti; hlt" : : : "memory");
    }
    atomic_store_release(&c->online, true);
    sched_cpu_start();
}

static unsigned missing(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < ap_count; i++)
        n += atomic_load_acquire(&aps[i].state) == AP_WAITING;
    return n;
}

static void send_startup(void)
{
    uint32_t startup = ICR_STARTUP((uint32_t)(trampoline_phys() >> PAGE_SHIFT));
    for (unsigned i = 0; i < ap_count; i++) {
        if (atomic_load_acquire(&aps[i].state) == AP_WAITING)
            apic_send(aps[i].apic_id, startup);
    }
}

static void send_init(void)
{
    for (unsigned i = 0; i < ap_count; i++) {
        uint32_t expected = AP_WAITING;
        if (atomic_cas(&aps[i].state, &expected, AP_CLOSED))
            apic_send(aps[i].apic_id, ICR_INIT);
    }
    clock_delay_ns(INIT_DELAY_NS);
    for (unsigned i = 0; i < ap_count; i++) {
        uint32_t expected = AP_CLOSED;
        (void)atomic_cas(&aps[i].state, &expected, AP_WAITING);
    }
}

static bool wait_for_all(uint64_t ns)
{
    uint64_t deadline = clock_monotonic_ns() + ns;
    while (missing()) {
        if (clock_monotonic_ns() > deadline)
            return false;
        cpu_relax();
    }
    return true;
}

/* A CPU may have been reset on its way, with a stack taken: one more for each that is tried again. */
static void add_stacks(unsigned n)
{
    for (uint64_t top; n && (top = cpu_stack_create()); n--)
        ap_stacks[ap_stack_count++] = top;
}

static bool start_all(void)
{
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (attempt)
            add_stacks(missing());
        send_init();
        send_startup();
        /* The second STARTUP of the SDM's sequence is for those that did not hear the first. */
        if (wait_for_all(STARTUP_DELAY_NS))
            return true;
        send_startup();
        if (wait_for_all(WAIT_NS))
            return true;
        log_warn("smp: %u CPUs have not started%s", missing(), attempt + 1 < ATTEMPTS ? ", trying again" : "");
    }
    return false;
}

/* Place for each CPU but this one; fewer where memory runs out. */
static bool prepare(const struct madt_info *m)
{
    unsigned wanted = m->cpu_count;
    aps = kcalloc(wanted, sizeof *aps);
    ap_stacks = kcalloc(wanted * ATTEMPTS, sizeof *ap_stacks);
    if (!aps || !ap_stacks)
        return false;
    for (unsigned i = 0; i < wanted; i++) {
        if (m->apic_ids[i] == this_cpu()->apic_id)
            continue;
        if (m->apic_ids[i] > 0xfe && !cpu_features.x2apic) {
            log_warn("smp: APIC id %u is out of reach without x2APIC", m->apic_ids[i]);
            continue;
        }
        struct cpu *c = cpu_create();
        if (!c) {
            log_warn("smp: no memory for more than %u CPUs", ap_count + 1);
            break;
        }
        c->apic_id = m->apic_ids[i];
        aps[ap_count] = (struct ap){ .apic_id = c->apic_id, .cpu = c };
        ap_stacks[ap_count++] = (uint64_t)arch_of(c)->boot_stack;
    }
    ap_stack_count = ap_count;
    return ap_count > 0;
}

/* Dense ids in table order over those that have arrived; they sleep and read theirs after `released`. */
static void number_and_release(void)
{
    unsigned n = 1;
    for (unsigned i = 0; i < ap_count; i++) {
        uint32_t expected = AP_WAITING;
        if (atomic_cas(&aps[i].state, &expected, AP_CLOSED)) {
            log_error("smp: CPU with APIC id %u did not come up", aps[i].apic_id);
            continue;
        }
        aps[i].cpu->id = n;
        cpus[n++] = aps[i].cpu;
    }
    cpu_set_count(n);
    atomic_store_release(&released, true); /* ids and count before it */
    for (unsigned i = 1; i < n; i++)
        cpu_kick(i);
    uint64_t deadline = clock_monotonic_ns() + ONLINE_NS;
    for (unsigned i = 1; i < n; i++) {
        while (!atomic_load_acquire(&cpus[i]->online)) {
            if (clock_monotonic_ns() > deadline)
                panic("smp: CPU %u (APIC id %u) has arrived and does not go on", i, cpus[i]->apic_id);
            cpu_relax();
        }
    }
}

/* `smp.deaf=APICID` (repeated): that CPU does not come up; `APICID:1`: not at the first attempt, which is one arrival,
 * for a second STARTUP does nothing to a CPU that runs. */
static void make_deaf(void)
{
    const char *wish;
    for (unsigned n = 0; (wish = cmdline_get_nth("smp.deaf", n)); n++) {
        const char *colon = strchr(wish, ':');
        uint64_t id = 0;
        for (const char *p = wish; *p >= '0' && *p <= '9'; p++)
            id = id * 10 + (uint64_t)(*p - '0');
        for (unsigned i = 0; i < ap_count; i++) {
            if (aps[i].apic_id == id)
                aps[i].deaf = colon ? 1 : UINT32_MAX;
        }
    }
}

void smp_init(void)
{
    if (!prepare(acpi_madt()))
        return;
    make_deaf();
    trampoline_install();
    kernel_cr3 = paging_kernel_root_phys();
    (void)start_all();
    number_and_release();
}
