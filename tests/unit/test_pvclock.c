/* KVM's clock page: values as a host with a 2.1 GHz, a 3 GHz and a 0.5 GHz TSC gives them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include "arch/x86_64/pvclock.h"

/* What the host computes: mult and shift so that mult has its top bit set. */
static struct pvclock page_for(double hz)
{
    struct pvclock p = { .tsc_timestamp = 1000, .system_time_ns = 5000000000 };
    double per_tick = 1e9 / hz;
    while (per_tick < 0.5) {
        per_tick *= 2;
        p.shift--;
    }
    while (per_tick >= 1) {
        per_tick /= 2;
        p.shift++;
    }
    p.mult = (uint32_t)(per_tick * 4294967296.0);
    return p;
}

static void one_second_of_ticks_is_one_second(void **state)
{
    static const double rates[] = { 2.1e9, 3e9, 0.5e9, 1e9, 5.2e9 };
    for (unsigned i = 0; i < ARRAY_SIZE(rates); i++) {
        struct pvclock p = page_for(rates[i]);
        uint64_t ns = pvclock_ns(&p, 1000 + (uint64_t)rates[i]) - p.system_time_ns;
        assert_in_range(ns, 999999900, 1000000100);
        assert_in_range(pvclock_tsc_hz(&p), (uint64_t)(rates[i] * 0.999999), (uint64_t)(rates[i] * 1.000001));
    }
}

static void long_runs_do_not_overflow(void **state)
{
    struct pvclock p = page_for(3e9);
    uint64_t year_s = 365UL * 86400;
    uint64_t ns = pvclock_ns(&p, 1000 + year_s * 3000000000UL) - p.system_time_ns;
    assert_in_range(ns / NSEC_PER_SEC, year_s - 10, year_s + 10);
}

static void tsc_behind_the_stamp_gives_the_stamp(void **state)
{
    struct pvclock p = page_for(2.1e9);
    assert_int_equal(pvclock_ns(&p, 10), p.system_time_ns);
    assert_int_equal(pvclock_tsc_hz(&(struct pvclock){ 0 }), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_second_of_ticks_is_one_second),
        cmocka_unit_test(long_runs_do_not_overflow),
        cmocka_unit_test(tsc_behind_the_stamp_gives_the_stamp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
