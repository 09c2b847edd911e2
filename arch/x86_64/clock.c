/*
 * Clocks. Time is the TSC scaled; its rate comes from CPUID where a leaf tells exactly, from KVM's clock page, from the
 * HPET, the ACPI timer or the PIT, or is the nominal one. Where nobody promises that the TSC is the same on all CPUs,
 * KVM's page is read instead where there is one, and readings are held monotonic by a shared maximum.
 */
#include <weir/printk.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"

#define CALIBRATE_PART 100   /* of a second: 10 ms */
#define CALIBRATE_AGREE 1000 /* to one part in so many */
#define CALIBRATE_TRIES 10
#define NAP_FIRST (1u << 16) /* of the local APIC's timer: short at any rate, then twice that */
#define GIVE_UP_CYCLES 20000000000UL /* some seconds at any rate */
#define PM_TIMER_HZ 3579545UL
#define PIT_HZ 1193182UL
#define DEADLINE_MAX_NS (NSEC_PER_SEC << 28) /* eight years: keeps mul_div's quotient in range */
#define FEMTO 1000000000000000UL

static uint64_t tsc_hz;          /* I */
static uint64_t tsc_base;        /* I */
static uint32_t mult, shift;     /* I ns = ticks * mult >> shift */
/* The same factor for a shift that the compiler knows: exactly mult << (SCALE_SHIFT - shift). A clock is read
 * several times in each wake-up. 0 until clock_init and where the TSC alone is not the time. */
#define SCALE_SHIFT 48
static uint64_t scale;           /* I */
static uint64_t last_ns;         /* a only where the TSC is not reliable */
static uint64_t realtime_offset; /* a ns */
static bool use_pvclock;         /* I the TSC alone will not do, KVM's page will */
static bool pvclock_stable;      /* I the host keeps all CPUs' pages in step */
static uint64_t pvclock_base_ns; /* I */

uint64_t clock_tsc_hz(void)
{
    return tsc_hz;
}

/* Of this CPU's page: the kernel is not preempted in between, and the host writes it only while this CPU does
 * not run. */
static uint64_t pvclock_read(void)
{
    const struct pvclock *p = &arch_of(this_cpu())->pvclock;
    for (;;) {
        uint32_t version = atomic_load_acquire(&p->version); /* before the values */
        uint64_t ns = pvclock_ns(p, rdtsc_ordered());
        barrier_read(); /* the values before the second look at the version */
        if (likely(!(version & 1) && atomic_load_relaxed(&p->version) == version))
            return ns;
        cpu_relax();
    }
}

static __attribute__((noinline)) uint64_t monotonic_slow(uint64_t tsc)
{
    if (unlikely(!mult))
        return 0; /* a message before clock_init */
    uint64_t delta = tsc > tsc_base ? tsc - tsc_base : 0;
    uint64_t ns = (uint64_t)((__uint128_t)delta * mult >> shift);
    if (cpu_features.tsc_reliable)
        return ns;
    if (use_pvclock) {
        ns = pvclock_read() - pvclock_base_ns;
        if (pvclock_stable)
            return ns;
    }
    uint64_t last = atomic_load_relaxed(&last_ns);
    while (ns > last) {
        if (atomic_cas(&last_ns, &last, ns))
            return ns;
    }
    return last;
}

uint64_t clock_monotonic_ns(void)
{
    uint64_t tsc = rdtsc_ordered();
    if (unlikely(!scale))
        return monotonic_slow(tsc);
    uint64_t delta = tsc > tsc_base ? tsc - tsc_base : 0;
    return (uint64_t)((__uint128_t)delta * scale >> SCALE_SHIFT);
}

/* Rounded up: at the TSC value returned, clock_monotonic_ns has reached deadline_ns. */
uint64_t clock_ns_to_tsc(uint64_t deadline_ns)
{
    deadline_ns = MIN(deadline_ns, DEADLINE_MAX_NS);
    if (use_pvclock) { /* the page may be rescaled: relative to now, and an early interrupt arms the rest */
        uint64_t now = clock_monotonic_ns();
        return rdtsc() + (deadline_ns > now ? mul_div(deadline_ns - now, tsc_hz, NSEC_PER_SEC) : 0) + 1;
    }
    return tsc_base + mul_div(deadline_ns, 1UL << shift, mult) + 1;
}

uint64_t clock_realtime_ns(void)
{
    return clock_monotonic_ns() + atomic_load_relaxed(&realtime_offset);
}

void clock_set_realtime_ns(uint64_t now_ns)
{
    atomic_store_relaxed(&realtime_offset, now_ns - clock_monotonic_ns());
}

void clock_tsc_params(struct clock_tsc_params *out)
{
    *out = (struct clock_tsc_params){
        .usable = cpu_features.tsc_reliable,
        .tsc_base = tsc_base,
        .realtime_offset_ns = atomic_load_relaxed(&realtime_offset),
        .mult = mult,
        .shift = shift,
    };
}

void clock_delay_ns(uint64_t ns)
{
    uint64_t end = clock_monotonic_ns() + ns;
    while (clock_monotonic_ns() < end)
        cpu_relax();
}

/* ---- rate of the TSC ---- */

struct reference {
    const char *name;
    uint64_t hz;
    uint32_t mask;         /* the counter wraps beyond it */
    uint32_t (*read)(void);/* counts up */
};

static volatile uint32_t *hpet;

static uint32_t hpet_read(void)
{
    return hpet[0xf0 / 4];
}

static uint32_t pm_timer_read(void)
{
    return inl((uint16_t)fadt.pm_timer);
}

static uint32_t pit_read(void)
{
    outb(0x43, 0x00); /* latch channel 0 */
    uint32_t low = inb(0x40);
    return 0xffff - (low | (uint32_t)inb(0x40) << 8);
}

static bool hpet_open(struct reference *r)
{
    const uint8_t *table = acpi_table("HPET");
    uint64_t phys;
    if (!table)
        return false;
    memcpy(&phys, table + 44, sizeof phys);
    hpet = vmap_phys(phys, PAGE_SIZE, VMAP_UNCACHED);
    uint32_t period_fs = hpet ? hpet[1] : 0;
    if (!period_fs || period_fs > 100000000)
        return false;
    hpet[0x10 / 4] |= 1;
    *r = (struct reference){ "HPET", FEMTO / period_fs, 0xffffffff, hpet_read };
    return true;
}

static void reference_open(struct reference *r)
{
    if (hpet_open(r))
        return;
    if (fadt.present && fadt.pm_timer) {
        *r = (struct reference){ "ACPI timer", PM_TIMER_HZ, 0xffffff, pm_timer_read };
        return;
    }
    outb(0x43, 0x34); /* channel 0, both bytes, rate generator */
    outb(0x40, 0);
    outb(0x40, 0);
    *r = (struct reference){ "PIT", PIT_HZ, 0xffff, pit_read };
}

/* TSC and reference at one moment. A vCPU that is preempted between the readings stretches the bracket, so the
 * tightest of several counts. */
static uint32_t sample(const struct reference *r, uint64_t *tsc)
{
    uint64_t best = UINT64_MAX;
    uint32_t value = 0;
    for (unsigned i = 0; i < 8; i++) {
        uint64_t before = rdtsc_ordered();
        uint32_t v = r->read();
        uint64_t after = rdtsc_ordered();
        if (after - before < best) {
            best = after - before;
            value = v;
            *tsc = before + (after - before) / 2;
        }
    }
    return value;
}

/* One measurement, 10 to 20 ms long, asleep: the reference is read at both ends only. 0 if it stands still. */
static uint64_t measure(const struct reference *r)
{
    for (uint32_t nap = NAP_FIRST; nap; nap *= 2) {
        uint64_t start_tsc, end_tsc;
        uint32_t start = sample(r, &start_tsc);
        apic_timer_nap(nap);
        uint32_t ticks = (sample(r, &end_tsc) - start) & r->mask;
        if (ticks >= r->hz / CALIBRATE_PART)
            return mul_div(end_tsc - start_tsc, r->hz, ticks);
        if (end_tsc - start_tsc > GIVE_UP_CYCLES)
            break;
    }
    return 0;
}

/* A vCPU that does not run for a while can make a short counter go round unseen, or stretch a reading: two measurements
 * that agree are believed. */
static uint64_t calibrate(void)
{
    struct reference r;
    reference_open(&r);
    uint64_t last = measure(&r), hz = last;
    for (unsigned tries = 0; hz && tries < CALIBRATE_TRIES; tries++) {
        hz = measure(&r);
        uint64_t difference = hz > last ? hz - last : last - hz;
        if (difference <= hz / CALIBRATE_AGREE)
            break;
        last = hz;
    }
    if (hz)
        log_debug("clock: TSC measured against the %s", r.name);
    return hz;
}

/* Exact: a hypervisor's word, or a crystal that is named. */
static uint64_t rate_from_cpuid(void)
{
    if (cpu_features.max_hypervisor >= 0x40000010) {
        uint32_t khz = cpuid(0x40000010, 0).a;
        if (khz)
            return khz * 1000UL;
    }
    if (cpu_features.max_leaf >= 0x15) {
        struct cpuid c = cpuid(0x15, 0);
        if (c.a && c.b && c.c)
            return (uint64_t)c.c * c.b / c.a;
    }
    return 0;
}

/* The processor's nominal frequency, in whole steps of its multiplier: up to 1 % beside the truth. */
static uint64_t rate_nominal(void)
{
    return cpu_features.max_leaf >= 0x16 ? (cpuid(0x16, 0).a & 0xffff) * 1000000UL : 0;
}

/* ---- KVM's clock page ---- */

#define KVM_FEATURE_CLOCKSOURCE (1u << 0)
#define KVM_FEATURE_CLOCKSOURCE2 (1u << 3)
#define KVM_FEATURE_STABLE (1u << 24)
#define PVCLOCK_STABLE 1
#define MSR_KVM_SYSTEM_TIME 0x12
#define MSR_KVM_SYSTEM_TIME_NEW 0x4b564d01

static bool pvclock_offered(void)
{
    return cpu_features.kvm_features & (KVM_FEATURE_CLOCKSOURCE | KVM_FEATURE_CLOCKSOURCE2);
}

void clock_enable_cpu(void)
{
    if (!pvclock_offered())
        return;
    uint32_t msr = cpu_features.kvm_features & KVM_FEATURE_CLOCKSOURCE2 ? MSR_KVM_SYSTEM_TIME_NEW
                                                                        : MSR_KVM_SYSTEM_TIME;
    wrmsr(msr, virt_to_phys(&arch_of(this_cpu())->pvclock) | 1);
}

/* ---- date ---- */

static uint8_t cmos_read(uint8_t reg)
{
    outb(0x70, reg);
    return inb(0x71);
}

/* Days since 1970-01-01 of a date of the Gregorian calendar. */
static uint64_t days_from_date(unsigned year, unsigned month, unsigned day)
{
    /* Years from March on, so that the leap day is a year's last. */
    if (month <= 2)
        year--;
    unsigned from_march = (month + 9) % 12;
    return 365UL * year + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + day - 1 - 719468;
}

/* Seconds since the epoch by the clock chip, read until two readings agree (it may tick in between). */
static uint64_t cmos_seconds(void)
{
    static const uint8_t regs[6] = { 0, 2, 4, 7, 8, 9 };
    uint8_t now[6], before[6] = { 0 };
    for (unsigned tries = 0; tries < 10; tries++) {
        for (unsigned polls = 0; (cmos_read(0x0a) & 0x80) && polls < 100000; polls++)
            cpu_relax();
        for (unsigned i = 0; i < 6; i++)
            now[i] = cmos_read(regs[i]);
        if (!memcmp(now, before, sizeof now))
            break;
        memcpy(before, now, sizeof now);
    }
    uint8_t mode = cmos_read(0x0b);
    bool pm = now[2] & 0x80;
    now[2] &= 0x7f;
    for (unsigned i = 0; i < 6 && !(mode & 4); i++)
        now[i] = (uint8_t)((now[i] >> 4) * 10 + (now[i] & 15));
    if (!(mode & 2))
        now[2] = (uint8_t)(now[2] % 12 + (pm ? 12 : 0));
    /* The century register is not standard; this code is younger than 2000. */
    return days_from_date(2000u + now[5], now[4], now[3]) * 86400 + now[2] * 3600u + now[1] * 60u + now[0];
}

void clock_init(void)
{
    clock_enable_cpu();
    tsc_hz = rate_from_cpuid();
    if (!tsc_hz && pvclock_offered())
        tsc_hz = pvclock_tsc_hz(&arch_of(this_cpu())->pvclock);
    if (!tsc_hz)
        tsc_hz = calibrate();
    if (!tsc_hz) {
        tsc_hz = rate_nominal() ? rate_nominal() : NSEC_PER_SEC;
        log_warn("clock: no HPET, ACPI timer or PIT counts; taking the TSC for %lu MHz",
                 (unsigned long)(tsc_hz / 1000000));
    }
    if (!cpu_features.tsc_reliable && pvclock_offered() && arch_of(this_cpu())->pvclock.mult) {
        pvclock_base_ns = pvclock_read();
        pvclock_stable = (cpu_features.kvm_features & KVM_FEATURE_STABLE) &&
                         (arch_of(this_cpu())->pvclock.flags & PVCLOCK_STABLE);
        use_pvclock = true;
    }
    /* The largest multiplier of 32 bits: the rate is kept to one part in 2^31. */
    shift = 32;
    while (mul_div(NSEC_PER_SEC, 1UL << shift, tsc_hz) > UINT32_MAX)
        shift--;
    while (mul_div(NSEC_PER_SEC, 1UL << (shift + 1), tsc_hz) <= UINT32_MAX)
        shift++;
    tsc_base = rdtsc_ordered();
    mult = (uint32_t)mul_div(NSEC_PER_SEC, 1UL << shift, tsc_hz);
    if (cpu_features.tsc_reliable && shift <= SCALE_SHIFT && SCALE_SHIFT - shift <= 32)
        scale = (uint64_t)mult << (SCALE_SHIFT - shift);
    atomic_store_relaxed(&realtime_offset, cmos_seconds() * NSEC_PER_SEC - clock_monotonic_ns());
    log_debug("clock: TSC %lu kHz%s", (unsigned long)(tsc_hz / 1000),
              cpu_features.tsc_reliable ? "" : ", not promised to be the same on all CPUs");
}
