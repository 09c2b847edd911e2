/*
 * The vector planner: which device gets how many interrupt vectors. Pure: no hardware, no locks, no
 * allocation beyond the arrays that the caller gives. The plan depends on the set of demands and the
 * pool only, not on their order.
 *
 * Units that need service are the devices with MSI-X, and the interrupt lines (INTx) of those
 * without. In this order:
 *   1. Floors: one vector for each unit while there are enough. Else one vector is the system-wide
 *      shared one (and one is shared by all lines), and what is left goes to units in the order
 *      block, net, other.
 *   2. One vector that carries the configuration changes of all devices, so that they do not cost
 *      each of them one, nor burden a queue's interrupt.
 *   3. The rest is filled like water: always to the device with the fewest vectors for its class
 *      weight that can use another.
 */
#ifndef WEIR_IRQ_PLANNER_H
#define WEIR_IRQ_PLANNER_H
#include <weir/irq.h>

struct plan_demand {
    const char *name;      /* unique; breaks ties */
    enum irq_class class;
    unsigned sources;
    bool config_change;
    unsigned msix_entries;
    int line;              /* GSI, -1 = none; only without MSI-X */
};
struct plan_grant {
    enum irq_grant rung;   /* of the queues */
    unsigned vectors;      /* of its own; 0 on the two lowest rungs and for lines */
    unsigned queue_entries;/* MSI-X entries that queues use: config_entries .. + queue_entries - 1 */
    unsigned config_entries; /* 1 = entry 0 is for configuration changes alone */
    bool line_own;         /* its line has a vector to itself (and the line's other devices) */
};
struct plan {
    unsigned pool, used;   /* used <= pool always */
    bool system_shared;    /* one vector of the pool is the system-wide shared one */
    bool line_shared;      /* one vector of the pool is shared by lines without their own */
    bool config_shared;    /* one vector of the pool carries configuration changes */
    unsigned lines;        /* lines with a vector of their own */
};

/* Plan `n` demands over `pool` vectors. `order` is scratch of n indices. */
void plan_make(const struct plan_demand *demands, unsigned n, unsigned pool, unsigned *order,
               struct plan_grant *grants, struct plan *plan);

/* Neighbouring sources share: source -> MSI-X entry -> vector of the device. */
static inline unsigned plan_entry(const struct plan_grant *g, unsigned sources, unsigned source)
{
    return g->config_entries + (unsigned)((uint64_t)source * g->queue_entries / sources);
}
static inline unsigned plan_vector(const struct plan_grant *g, unsigned entry)
{
    return (unsigned)((uint64_t)(entry - g->config_entries) * g->vectors / g->queue_entries);
}
#endif
