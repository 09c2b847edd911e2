/* See planner.h for the rules. */
#include <weir/string.h>

#include "planner.h"

/* A disk and a NIC count the same; anything else half. */
static const unsigned class_weight[] = {
    [IRQ_CLASS_BLOCK] = 2,
    [IRQ_CLASS_NET] = 2,
    [IRQ_CLASS_OTHER] = 1,
};

static bool has_msix(const struct plan_demand *d)
{
    return d->msix_entries > 0;
}

static bool has_line(const struct plan_demand *d)
{
    return !has_msix(d) && d->line >= 0;
}

/* Who is served first when not all can be. */
static bool goes_before(const struct plan_demand *a, const struct plan_demand *b)
{
    if (a->class != b->class)
        return a->class < b->class;
    return strcmp(a->name, b->name) < 0;
}

static void sort(const struct plan_demand *demands, unsigned n, unsigned *order)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned at = i;
        for (; at > 0 && goes_before(&demands[i], &demands[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* How the MSI-X entries are divided: the configuration change has its own when there are two. */
static void divide_entries(const struct plan_demand *d, struct plan_grant *g)
{
    *g = (struct plan_grant){ .rung = IRQ_GRANT_POLLED };
    if (!has_msix(d))
        return;
    g->config_entries = d->config_change && d->msix_entries > 1;
    g->queue_entries = MAX(MIN(d->sources, d->msix_entries - g->config_entries), 1u);
}

/* The first device in order that is on the line stands for it. */
static bool first_of_line(const struct plan_demand *demands, const unsigned *order, unsigned at)
{
    for (unsigned i = 0; i < at; i++) {
        const struct plan_demand *o = &demands[order[i]];
        if (has_line(o) && o->line == demands[order[at]].line)
            return false;
    }
    return true;
}

struct units {
    unsigned msix, lines;
};

/* Hand out one vector each in order, `budget` at most; what stays without is counted in `left`. */
static void give_floors(const struct plan_demand *demands, unsigned n, const unsigned *order,
                        unsigned budget, struct plan_grant *grants, struct units *left)
{
    *left = (struct units){ 0, 0 };
    for (unsigned i = 0; i < n; i++) {
        const struct plan_demand *d = &demands[order[i]];
        struct plan_grant *g = &grants[order[i]];
        g->vectors = 0;
        g->line_own = false;
        bool is_unit = has_msix(d) || (has_line(d) && first_of_line(demands, order, i));
        if (!is_unit)
            continue;
        if (budget == 0) {
            left->msix += has_msix(d);
            left->lines += has_line(d);
            continue;
        }
        budget--;
        g->vectors = has_msix(d);
        g->line_own = has_line(d);
    }
}

/* Floors, with as few shared vectors taken off the pool as serve everybody. With one vector for both
 * kinds the lines are polled: a vector must not be edge- and level-triggered at once. */
static void plan_floors(const struct plan_demand *demands, unsigned n, const unsigned *order,
                        struct plan_grant *grants, struct plan *plan)
{
    for (unsigned shared = 0; shared < 4; shared++) {
        bool system = shared & 2, lines = shared & 1;
        unsigned reserve = (unsigned)system + lines;
        if (reserve > plan->pool)
            continue;
        struct units left;
        give_floors(demands, n, order, plan->pool - reserve, grants, &left);
        bool last_resort = plan->pool == 1 && shared == 2;
        if ((left.msix && !system) || (left.lines && !lines && !last_resort))
            continue;
        plan->system_shared = left.msix != 0;
        plan->line_shared = left.lines != 0 && lines;
        break;
    }
    plan->used = (unsigned)plan->system_shared + plan->line_shared;
    for (unsigned i = 0; i < n; i++) {
        plan->used += grants[i].vectors + grants[i].line_own;
        plan->lines += grants[i].line_own;
    }
}

static bool wants_config(const struct plan_demand *demands, unsigned n,
                         const struct plan_grant *grants)
{
    for (unsigned i = 0; i < n; i++) {
        if (grants[i].config_entries)
            return true;
    }
    return false;
}

/* Fewest vectors for its weight. A device that has no floor has no part in the rest. */
static const unsigned *neediest(const struct plan_demand *demands, unsigned n,
                                const unsigned *order, const struct plan_grant *grants)
{
    const unsigned *best = NULL;
    for (unsigned i = 0; i < n; i++) {
        const struct plan_grant *g = &grants[order[i]];
        if (g->vectors == 0 || g->vectors >= g->queue_entries)
            continue;
        if (best) {
            unsigned mine = g->vectors * class_weight[demands[*best].class];
            unsigned its = grants[*best].vectors * class_weight[demands[order[i]].class];
            if (mine >= its)
                continue;
        }
        best = &order[i];
    }
    return best;
}

static enum irq_grant rung_of(const struct plan_demand *d, const struct plan_grant *g,
                              const struct plan *plan)
{
    if (g->vectors == 0)
        return has_msix(d) && plan->system_shared ? IRQ_GRANT_SYSTEM_SHARED : IRQ_GRANT_POLLED;
    if (g->vectors >= d->sources)
        return IRQ_GRANT_OWN;
    return g->vectors > 1 ? IRQ_GRANT_DEVICE_SHARED : IRQ_GRANT_DEVICE_ONE;
}

static enum irq_grant line_rung(const struct plan_demand *demands, unsigned n,
                                const struct plan_demand *d, const struct plan_grant *grants,
                                const struct plan *plan)
{
    for (unsigned i = 0; i < n; i++) {
        if (grants[i].line_own && demands[i].line == d->line)
            return IRQ_GRANT_DEVICE_ONE;
    }
    return plan->line_shared ? IRQ_GRANT_SYSTEM_SHARED : IRQ_GRANT_POLLED;
}

void plan_make(const struct plan_demand *demands, unsigned n, unsigned pool, unsigned *order,
               struct plan_grant *grants, struct plan *plan)
{
    *plan = (struct plan){ .pool = pool };
    sort(demands, n, order);
    for (unsigned i = 0; i < n; i++)
        divide_entries(&demands[i], &grants[i]);
    if (pool)
        plan_floors(demands, n, order, grants, plan);

    plan->config_shared = plan->used < pool && wants_config(demands, n, grants);
    plan->used += plan->config_shared;
    const unsigned *next;
    while (plan->used < pool && (next = neediest(demands, n, order, grants))) {
        grants[*next].vectors++;
        plan->used++;
    }
    for (unsigned i = 0; i < n; i++) {
        const struct plan_demand *d = &demands[i];
        if (has_line(d))
            grants[i].rung = line_rung(demands, n, d, grants, plan);
        else
            grants[i].rung = rung_of(d, &grants[i], plan);
    }
}
