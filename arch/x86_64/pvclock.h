/*
 * KVM's clock page (Linux's Documentation/virt/kvm/x86/msr.rst describes the layout): system time at a TSC value, and
 * how to scale what has passed since. Pure arithmetic; unit-tested on the host.
 *
 * The host rewrites the page only while the vCPU that owns it does not run, and makes `version` odd meanwhile; so
 * a reader on that vCPU that finds the same even version before and after has read one state.
 */
#ifndef WEIR_ARCH_PVCLOCK_H
#define WEIR_ARCH_PVCLOCK_H
#include <weir/compiler.h>

struct pvclock {
    uint32_t version, pad;
    uint64_t tsc_timestamp, system_time_ns;
    uint32_t mult; /* ns per (shifted) tick, 32-bit fraction */
    int8_t shift;  /* ticks are shifted left by it first, right if negative */
    uint8_t flags, pad2[2];
};
_Static_assert(sizeof(struct pvclock) == 32, "layout is the host's");

static inline uint64_t pvclock_ns(const struct pvclock *p, uint64_t tsc)
{
    /* A TSC that lags behind the stamp by a few ticks is not a very late one. */
    uint64_t delta = tsc > p->tsc_timestamp ? tsc - p->tsc_timestamp : 0;
    delta = p->shift >= 0 ? delta << p->shift : delta >> -p->shift;
    return p->system_time_ns + (uint64_t)(((__uint128_t)delta * p->mult) >> 32);
}

/* Rate of the TSC that the page implies; 0 if it says nothing yet. */
static inline uint64_t pvclock_tsc_hz(const struct pvclock *p)
{
    if (!p->mult)
        return 0;
    uint64_t khz = (1000000UL << 32) / p->mult;
    khz = p->shift >= 0 ? khz >> p->shift : khz << -p->shift;
    return khz * 1000;
}
#endif
