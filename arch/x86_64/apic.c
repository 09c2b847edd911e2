/* Local APIC: xAPIC through its page, x2APIC through MSRs where CPUID offers it; IPIs; one-shot timer. */
#include <weir/errno.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include "arch/x86_64/arch.h"

#define MSR_APIC_BASE 0x1b
#define APIC_BASE_ENABLE (1u << 11)
#define APIC_BASE_X2APIC (1u << 10)
#define MSR_X2APIC 0x800
#define MSR_TSC_DEADLINE 0x6e0

#define REG_ID 0x20
#define REG_TPR 0x80
#define REG_EOI 0xb0
#define REG_SVR 0xf0
#define REG_IRR 0x200 /* eight registers of 32 vectors */
#define REG_ESR 0x280
#define REG_ICR_LOW 0x300
#define REG_ICR_HIGH 0x310
#define REG_LVT_TIMER 0x320
#define REG_LVT_LINT0 0x350
#define REG_LVT_LINT1 0x360
#define REG_LVT_ERROR 0x370
#define REG_TIMER_INITIAL 0x380
#define REG_TIMER_CURRENT 0x390
#define REG_TIMER_DIVIDE 0x3e0
#define SVR_ENABLE 0x100
#define LVT_MASKED 0x10000
#define LVT_TSC_DEADLINE 0x40000
#define LVT_NMI 0x400
#define ICR_BUSY 0x1000
#define DIVIDE_BY_1 0xb
#define MEASURE_WIDTHS 2000 /* of a reading: an error of at most one part in so many */
#define MEASURE_PART 50     /* of a second: 20 ms at most */
#define MEASURE_TRIES 10

static volatile uint32_t *page; /* I NULL in x2APIC mode */
static uint64_t timer_hz;       /* I 0 = TSC-deadline */
static uint64_t error_count;    /* a */

static uint32_t reg_read(unsigned reg)
{
    return page ? page[reg / 4] : (uint32_t)rdmsr(MSR_X2APIC + reg / 16);
}

static void reg_write(unsigned reg, uint32_t v)
{
    if (page)
        page[reg / 4] = v;
    else
        wrmsr(MSR_X2APIC + reg / 16, v);
}

void apic_eoi(void)
{
    reg_write(REG_EOI, 0);
}

bool vector_pending(unsigned vector)
{
    return reg_read(REG_IRR + vector / 32 * 16) >> (vector % 32) & 1;
}

uint32_t apic_id(void)
{
    return page ? reg_read(REG_ID) >> 24 : reg_read(REG_ID);
}

void apic_send(uint32_t dest, uint32_t icr_low)
{
    if (!page) {
        /* WRMSR to the x2APIC does not wait for earlier stores: what the target will look at must be
         * visible before the interrupt is. */
        __asm__ volatile("mfence; lfence" : : : "memory");
        wrmsr(MSR_X2APIC + REG_ICR_LOW / 16, (uint64_t)dest << 32 | icr_low);
        return;
    }
    /* Two writes: an interrupt handler's IPI must not come between. */
    uint64_t flags = irq_save();
    while (reg_read(REG_ICR_LOW) & ICR_BUSY)
        cpu_relax();
    reg_write(REG_ICR_HIGH, dest << 24);
    reg_write(REG_ICR_LOW, icr_low);
    irq_restore(flags);
}

void cpu_kick(unsigned id)
{
    apic_send(cpus[id]->apic_id, ICR_FIXED(VECTOR_RESCHEDULE));
}

void cpu_halt(void)
{
    /* STI takes effect after the next instruction: an interrupt that came since the look ends the HLT. */
    if (atomic_load_relaxed(&this_cpu()->need_resched))
        irq_enable();
    else
        __asm__ volatile("sti; hlt" : : : "memory");
}

int msi_message(unsigned cpu, unsigned vector, uint64_t *address, uint32_t *data)
{
    uint32_t id = cpus[cpu]->apic_id;
    /* KVM takes bits 14..8 of the id in address bits 11..5 where it says so (feature 15). */
    bool extended = cpu_features.kvm && (cpu_features.kvm_features & (1u << 15));
    if (id >= (extended ? 0x8000u : 0x100u))
        return -ERANGE;
    *address = 0xfee00000UL | (uint64_t)(id & 0xff) << 12 | (uint64_t)(id & 0x7f00) >> 3;
    *data = vector;
    return 0;
}

/* ---- timer ---- */

static void timer_program(uint64_t deadline)
{
    if (!timer_hz) {
        wrmsr(MSR_TSC_DEADLINE, deadline == TIME_FOREVER ? 0 : MAX(clock_ns_to_tsc(deadline), 1UL));
        return;
    }
    uint64_t ticks = 0, now = clock_monotonic_ns();
    if (deadline != TIME_FOREVER) {
        uint64_t delta = deadline > now ? MIN(deadline - now, NSEC_PER_SEC * 60) : 0;
        ticks = mul_div(delta, timer_hz, NSEC_PER_SEC) + 1;
    }
    /* Later than the counter can say: the interrupt finds that it is early and arms the rest. */
    reg_write(REG_TIMER_INITIAL, (uint32_t)MIN(ticks, 0xffffffffUL));
}

void clock_event_arm(uint64_t deadline_ns)
{
    uint64_t flags = irq_save();
    struct arch_cpu *a = arch_of(this_cpu());
    if (a->timer_deadline != deadline_ns) {
        a->timer_deadline = deadline_ns;
        timer_program(deadline_ns);
    }
    irq_restore(flags);
}

static void timer_interrupt(unsigned vector, void *arg)
{
    struct arch_cpu *a = arch_of(this_cpu());
    if (a->timer_deadline == TIME_FOREVER)
        return; /* disarmed when the interrupt was on its way */
    if (clock_monotonic_ns() < a->timer_deadline) {
        a->timer_early++;
        timer_program(a->timer_deadline);
        return;
    }
    a->timer_deadline = TIME_FOREVER;
    sched_timer_interrupt();
}

static unsigned naps_over; /* boot CPU alone */

static void nap_is_over(unsigned vector, void *arg)
{
    naps_over++;
}

void apic_timer_nap(uint32_t ticks)
{
    naps_over = 0;
    vector_set_handler(VECTOR_TIMER, nap_is_over, NULL);
    reg_write(REG_TIMER_DIVIDE, DIVIDE_BY_1);
    reg_write(REG_LVT_TIMER, VECTOR_TIMER);
    reg_write(REG_TIMER_INITIAL, ticks);
    while (!naps_over)
        __asm__ volatile("sti; hlt; cli" : : : "memory");
    reg_write(REG_LVT_TIMER, LVT_MASKED | VECTOR_TIMER);
    vector_set_handler(VECTOR_TIMER, NULL, NULL);
}

/* The counter at a TSC value, to half of *width. A preempted vCPU stretches a reading: the tightest of some counts. */
static uint32_t counter_sample(uint64_t *tsc, uint64_t *width)
{
    uint32_t value = 0;
    *width = UINT64_MAX;
    for (unsigned i = 0; i < 8; i++) {
        uint64_t before = rdtsc_ordered();
        uint32_t v = reg_read(REG_TIMER_CURRENT);
        uint64_t after = rdtsc_ordered();
        if (after - before < *width) {
            *width = after - before;
            value = v;
            *tsc = before + (after - before) / 2;
        }
    }
    return value;
}

/* Runs down once, awake, and for so long that the width of the readings matters little. Not by counting periods: QEMU's
 * timer reloads as often as it is late, and all those periods are one interrupt. */
static uint64_t timer_rate_measure(void)
{
    uint64_t tsc_hz = clock_tsc_hz(), start_tsc = 0, end_tsc = 0, start_width, end_width;
    for (unsigned tries = 0; tries < MEASURE_TRIES; tries++) {
        reg_write(REG_TIMER_INITIAL, UINT32_MAX);
        uint32_t start = counter_sample(&start_tsc, &start_width);
        uint64_t length = MIN(start_width * MEASURE_WIDTHS, tsc_hz / MEASURE_PART);
        while (rdtsc() - start_tsc < length)
            cpu_relax();
        uint32_t end = counter_sample(&end_tsc, &end_width);
        reg_write(REG_TIMER_INITIAL, 0);
        bool sharp = end_width <= 4 * start_width || tries + 1 == MEASURE_TRIES;
        if (end && end < start && sharp)
            return MAX(mul_div(start - end, tsc_hz, end_tsc - start_tsc), 1000UL);
    }
    panic("apic: the timer's rate cannot be measured");
}

static uint64_t timer_rate(void)
{
    if (cpu_features.max_hypervisor >= 0x40000010) {
        uint32_t khz = cpuid(0x40000010, 0).b;
        if (khz)
            return khz * 1000UL;
    }
    if (cpu_features.max_leaf >= 0x15 && !cpu_features.hypervisor) {
        uint32_t crystal_hz = cpuid(0x15, 0).c;
        if (crystal_hz)
            return crystal_hz;
    }
    return timer_rate_measure();
}

void apic_timer_enable_cpu(void)
{
    if (!timer_hz) {
        reg_write(REG_LVT_TIMER, LVT_TSC_DEADLINE | VECTOR_TIMER);
        /* The mode must be in force before the first deadline is written (SDM 3A 11.5.4.1). */
        __asm__ volatile("mfence" : : : "memory");
        return;
    }
    reg_write(REG_TIMER_DIVIDE, DIVIDE_BY_1);
    reg_write(REG_LVT_TIMER, VECTOR_TIMER);
}

void apic_timer_init(void)
{
    reg_write(REG_TIMER_DIVIDE, DIVIDE_BY_1);
    reg_write(REG_LVT_TIMER, LVT_MASKED | VECTOR_TIMER);
    timer_hz = cpu_features.tsc_deadline ? 0 : timer_rate();
    vector_set_handler(VECTOR_TIMER, timer_interrupt, NULL);
    apic_timer_enable_cpu();
    log_debug("timer: %s, %lu kHz", timer_hz ? "local APIC counter" : "TSC deadline",
              (unsigned long)(timer_hz / 1000));
}

/* ---- set-up ---- */

static void error_interrupt(unsigned vector, void *arg)
{
    reg_write(REG_ESR, 0);
    uint32_t status = reg_read(REG_ESR);
    if (!atomic_fetch_add(&error_count, 1))
        log_warn("apic: error %#x on CPU %u (further ones are not shown)", status, this_cpu()->id);
}

/* A kick's work is done by the flag it came with: an idle CPU wakes up, ring 3 looks on its way back. */
static void reschedule_interrupt(unsigned vector, void *arg)
{
}

static void spurious_interrupt(unsigned vector, void *arg)
{
}

void apic_enable_cpu(void)
{
    uint64_t base = rdmsr(MSR_APIC_BASE) | APIC_BASE_ENABLE;
    wrmsr(MSR_APIC_BASE, base);
    if (!page)
        wrmsr(MSR_APIC_BASE, base | APIC_BASE_X2APIC); /* from xAPIC only, never from disabled */
    reg_write(REG_TPR, 0);
    reg_write(REG_SVR, SVR_ENABLE | VECTOR_SPURIOUS);
    reg_write(REG_LVT_TIMER, LVT_MASKED);
    reg_write(REG_LVT_LINT0, LVT_MASKED);
    reg_write(REG_LVT_LINT1, LVT_NMI);
    reg_write(REG_LVT_ERROR, VECTOR_APIC_ERROR);
    reg_write(REG_ESR, 0);
    apic_eoi();
}

void apic_init(void)
{
    /* The 8259 pair: away from the exceptions, everything masked. */
    outb(0x20, 0x11);
    outb(0xa0, 0x11);
    outb(0x21, 0x20);
    outb(0xa1, 0x28);
    outb(0x21, 4);
    outb(0xa1, 2);
    outb(0x21, 1);
    outb(0xa1, 1);
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
    if (!cpu_features.x2apic) {
        page = vmap_phys(rdmsr(MSR_APIC_BASE) & 0xffffff000UL, PAGE_SIZE, VMAP_UNCACHED);
        if (!page)
            panic("no mapping for the local APIC");
    }
    vector_set_handler(VECTOR_APIC_ERROR, error_interrupt, NULL);
    vector_set_handler(VECTOR_RESCHEDULE, reschedule_interrupt, NULL);
    vector_set_handler(VECTOR_SPURIOUS, spurious_interrupt, NULL);
    apic_enable_cpu();
    this_cpu()->apic_id = apic_id();
    log_debug("apic: %s", page ? "xAPIC" : "x2APIC");
}
