/* The vector planner: what must hold for every set of demands and every pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/string.h>

#include "core/irq/planner.h"

#define MAX_DEVICES 24
static const unsigned weight[] = { 2, 2, 1 };

struct scene {
    unsigned n, pool;
    struct plan_demand d[MAX_DEVICES];
    char names[MAX_DEVICES][32];
    struct plan_grant g[MAX_DEVICES];
    struct plan plan;
};

static unsigned seed;
static unsigned rnd(unsigned n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 9) % n;
}

static void make(struct scene *s)
{
    unsigned order[MAX_DEVICES];
    memset(s->g, 0xee, sizeof(s->g));
    plan_make(s->d, s->n, s->pool, order, s->g, &s->plan);
}

static void random_scene(struct scene *s)
{
    static const unsigned counts[] = { 1, 1, 2, 3, 4, 8, 16, 48, 64, 256 };
    s->n = rnd(MAX_DEVICES + 1);
    s->pool = rnd(4) ? rnd(224) : rnd(12);
    for (unsigned i = 0; i < s->n; i++) {
        snprintf(s->names[i], sizeof(s->names[i]), "dev%04u-%u", rnd(10000), i);
        unsigned sources = counts[rnd(ARRAY_SIZE(counts))];
        unsigned entries = rnd(8) == 0 ? 0 : rnd(3) ? sources + 1 : 1 + rnd(sources + 2);
        s->d[i] = (struct plan_demand){ s->names[i], rnd(3), sources, rnd(4) != 0, entries,
                                        entries == 0 && rnd(3) ? (int)(10 + rnd(3)) : -1 };
    }
}

static bool is_line(const struct plan_demand *d) { return d->msix_entries == 0 && d->line >= 0; }

/* Units that want a floor: MSI-X devices and distinct lines. */
static unsigned units(const struct scene *s)
{
    unsigned n = 0;
    uint64_t lines = 0;
    for (unsigned i = 0; i < s->n; i++) {
        n += s->d[i].msix_entries > 0;
        if (is_line(&s->d[i]))
            lines |= 1UL << s->d[i].line;
    }
    return n + (unsigned)__builtin_popcountl(lines);
}

static void check_total(const struct scene *s)
{
    unsigned total = (unsigned)s->plan.system_shared + s->plan.line_shared + s->plan.config_shared;
    for (unsigned i = 0; i < s->n; i++)
        total += s->g[i].vectors + s->g[i].line_own;
    assert_int_equal(total, s->plan.used);
    assert_true(s->plan.used <= s->pool);
}
/* Every device is served by something, and by something that exists. */
static void check_served(const struct scene *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        const struct plan_grant *g = &s->g[i];
        const struct plan_demand *d = &s->d[i];
        switch (g->rung) {
        case IRQ_GRANT_OWN:
            assert_true(g->vectors >= d->sources);
            break;
        case IRQ_GRANT_DEVICE_SHARED:
            assert_true(g->vectors > 1 && g->vectors < d->sources);
            break;
        case IRQ_GRANT_DEVICE_ONE:
            assert_true(is_line(d) || g->vectors == 1);
            break;
        case IRQ_GRANT_SYSTEM_SHARED:
            assert_true(is_line(d) ? s->plan.line_shared : s->plan.system_shared);
            assert_int_equal(g->vectors, 0);
            break;
        case IRQ_GRANT_POLLED:
            /* Only without a pool, without anything to interrupt with, or a line beside messages in a pool of one. */
            assert_true(s->pool == 0 || (d->msix_entries == 0 && d->line < 0) || (is_line(d) && s->pool == 1));
            break;
        default:
            fail();
        }
        if (d->msix_entries) {
            assert_true(g->config_entries + g->queue_entries <= d->msix_entries);
            assert_true(g->queue_entries >= 1 && g->vectors <= g->queue_entries);
            unsigned last = 0;
            for (unsigned q = 0; q < d->sources; q++) {
                unsigned e = plan_entry(g, d->sources, q);
                assert_true(e >= g->config_entries && e < g->config_entries + g->queue_entries);
                assert_true(e >= last && e <= last + 1 + g->config_entries);
                last = e;
                if (g->vectors)
                    assert_true(plan_vector(g, e) < g->vectors);
            }
        }
    }
}
static void check_floors(const struct scene *s)
{
    if (s->pool >= units(s)) {
        for (unsigned i = 0; i < s->n; i++)
            assert_true(!s->d[i].msix_entries || s->g[i].vectors >= 1);
        assert_false(s->plan.system_shared || s->plan.line_shared);
        return;
    }
    /* Too few: a disk is never without its own while a NIC has one. */
    for (unsigned i = 0; i < s->n; i++) {
        for (unsigned k = 0; k < s->n; k++) {
            if (s->d[i].msix_entries && s->d[k].msix_entries && s->d[i].class < s->d[k].class && s->g[k].vectors)
                assert_true(s->g[i].vectors >= 1);
        }
    }
}
/* Nobody could give a vector to a needier one: water level, by weight. */
static void check_fair(const struct scene *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        const struct plan_grant *g = &s->g[i];
        if (!g->vectors || g->vectors >= g->queue_entries)
            continue;
        assert_int_equal(s->plan.used, s->pool); /* someone wants more: nothing may be left over */
        for (unsigned k = 0; k < s->n; k++) {
            if (s->g[k].vectors > 1)
                assert_true((s->g[k].vectors - 1) * weight[s->d[i].class] <= g->vectors * weight[s->d[k].class]);
            /* and the odd one went to the disk */
            if (s->g[k].vectors > 1 && s->d[i].class < s->d[k].class)
                assert_true((s->g[k].vectors - 1) * weight[s->d[i].class] < g->vectors * weight[s->d[k].class]);
        }
    }
}
static void check_order_independent(const struct scene *s)
{
    static struct scene t;
    t = *s;
    for (unsigned i = t.n; i > 1; i--) {
        unsigned k = rnd(i);
        struct plan_demand swap = t.d[i - 1];
        t.d[i - 1] = t.d[k];
        t.d[k] = swap;
    }
    make(&t);
    for (unsigned i = 0; i < s->n; i++) {
        for (unsigned k = 0; k < t.n; k++) {
            if (s->d[i].name == t.d[k].name) {
                struct plan_grant a = s->g[i], b = t.g[k];
                /* Which of a line's devices stands for it is the order's business inside one class only. */
                assert_int_equal(a.rung, b.rung);
                assert_int_equal(a.vectors, b.vectors);
                assert_int_equal(a.line_own, b.line_own);
                assert_int_equal(a.queue_entries, b.queue_entries);
            }
        }
    }
    assert_int_equal(s->plan.used, t.plan.used);
}
static void check_all(struct scene *s)
{
    make(s);
    check_total(s);
    check_served(s);
    check_floors(s);
    check_fair(s);
    check_order_independent(s);
}

static void holds_for_100000_random_machines(void **state)
{
    static struct scene s;
    seed = 20260;
    for (unsigned i = 0; i < 100000; i++) {
        random_scene(&s);
        check_all(&s);
    }
}
/* Devices come and go in any order; each plan is a good one, and those that were there before get back what they had. */
static void unplugged_devices_give_back_what_they_took(void **state)
{
    static struct scene before, s;
    seed = 1202;
    for (unsigned i = 0; i < 20000; i++) {
        random_scene(&before);
        make(&before);
        random_scene(&s); /* what is plugged in; then all that was there before, somewhere in between */
        unsigned plugged = MIN(s.n, MAX_DEVICES - before.n), at = rnd(plugged + 1);
        memmove(&s.d[at + before.n], &s.d[at], (plugged - at) * sizeof(s.d[0]));
        memcpy(&s.d[at], before.d, before.n * sizeof(s.d[0]));
        s.n = before.n + plugged;
        s.pool = before.pool;
        check_all(&s);
        for (unsigned gone = 0; gone < plugged; gone++) {
            unsigned k = at && rnd(2) ? --at : at + before.n;
            if (k >= s.n)
                k = --at;
            memmove(&s.d[k], &s.d[k + 1], (s.n - k - 1) * sizeof(s.d[0]));
            s.n--;
            make(&s);
            check_total(&s);
            check_served(&s);
        }
        assert_int_equal(s.n, before.n);
        assert_memory_equal(s.g, before.g, s.n * sizeof(s.g[0]));
        assert_memory_equal(&s.plan, &before.plan, sizeof(s.plan));
    }
}
/* Every combination of three devices out of nine kinds, with every pool from 0 to 14. */
static void holds_for_all_small_machines(void **state)
{
    static struct scene s;
    static const struct plan_demand kinds[] = {
        { "", IRQ_CLASS_BLOCK, 1, true, 2, -1 },  { "", IRQ_CLASS_BLOCK, 4, true, 5, -1 }, { "", IRQ_CLASS_BLOCK, 4, true, 1, -1 },
        { "", IRQ_CLASS_NET, 4, true, 5, -1 },    { "", IRQ_CLASS_NET, 2, false, 2, -1 },  { "", IRQ_CLASS_OTHER, 3, true, 3, -1 },
        { "", IRQ_CLASS_BLOCK, 2, true, 0, 10 },  { "", IRQ_CLASS_NET, 2, true, 0, 11 },   { "", IRQ_CLASS_NET, 1, true, 0, -1 },
    };
    unsigned k = ARRAY_SIZE(kinds);
    for (unsigned i = 0; i < k * k * k * 15; i++) {
        unsigned pick[3] = { i % k, i / k % k, i / k / k % k };
        s.n = 3;
        s.pool = i / k / k / k;
        for (unsigned j = 0; j < 3; j++) {
            snprintf(s.names[j], sizeof(s.names[j]), "dev%u", j);
            s.d[j] = kinds[pick[j]];
            s.d[j].name = s.names[j];
        }
        check_all(&s);
    }
}
/* The machine that names us: eight disks of 48 queues and a NIC of 16 pairs. */
static void eight_disks_and_a_nic_at_48(void **state)
{
    static struct scene s;
    s.n = 9;
    for (unsigned i = 0; i < 9; i++) {
        snprintf(s.names[i], sizeof(s.names[i]), "dev%u", i);
        s.d[i] = (struct plan_demand){ s.names[i], i ? IRQ_CLASS_BLOCK : IRQ_CLASS_NET, i ? 48 : 16, true, i ? 49 : 34, -1 };
    }
    s.pool = 217;
    make(&s);
    assert_int_equal(s.g[0].rung, IRQ_GRANT_OWN);
    for (unsigned i = 1; i < 9; i++)
        assert_int_equal(s.g[i].vectors, 25);
    s.pool = 8;
    make(&s); /* one is shared: seven disks have their own, the eighth and the NIC share */
    assert_int_equal(s.g[0].rung, IRQ_GRANT_SYSTEM_SHARED);
    assert_int_equal(s.g[7].rung, IRQ_GRANT_DEVICE_ONE);
    assert_int_equal(s.g[8].rung, IRQ_GRANT_SYSTEM_SHARED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_for_100000_random_machines),
        cmocka_unit_test(unplugged_devices_give_back_what_they_took),
        cmocka_unit_test(holds_for_all_small_machines),
        cmocka_unit_test(eight_disks_and_a_nic_at_48),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
