/* What can be seen of interrupts: the plan (/proc/weir/vectors) and counts (/proc/interrupts). */
#include <weir/cpu.h>
#include <weir/string.h>

#include "irq_internal.h"

static const char *const rung_names[] = {
    [IRQ_GRANT_OWN] = "own",
    [IRQ_GRANT_DEVICE_SHARED] = "shared in the device",
    [IRQ_GRANT_DEVICE_ONE] = "one for the device",
    [IRQ_GRANT_SYSTEM_SHARED] = "system-wide shared",
    [IRQ_GRANT_POLLED] = "polled",
};

static size_t print_device(char *buf, size_t size, const struct irq_device *d)
{
    size_t n = (size_t)scnprintf(buf, size, "irq: %s: %u queue%s, ", d->name,
                                  d->demand.sources, d->demand.sources == 1 ? "" : "s");
    if (d->demand.msix_entries)
        n += (size_t)scnprintf(buf + n, size - n, "%u MSI-X entr%s, ", d->demand.msix_entries,
                               d->demand.msix_entries == 1 ? "y" : "ies");
    else if (d->demand.intx_gsi >= 0)
        n += (size_t)scnprintf(buf + n, size - n, "line %d, ", d->demand.intx_gsi);
    if (d->grant.vectors)
        n += (size_t)scnprintf(buf + n, size - n, "%u vector%s, ", d->grant.vectors,
                               d->grant.vectors == 1 ? "" : "s");
    n += (size_t)scnprintf(buf + n, size - n, "%s\n", rung_names[d->grant.rung]);
    return n;
}

/* What a re-plan did: how often, and how many useful serves there were on each rung. */
static size_t print_moves(char *buf, size_t size, const struct irq_device *d)
{
    if (!d->demotions && !d->promotions)
        return 0;
    size_t n = (size_t)scnprintf(buf, size, "irq: %s: %u demotions, %u promotions, served", d->name,
                                  d->demotions, d->promotions);
    for (unsigned rung = 0; rung < IRQ_GRANTS; rung++) {
        uint64_t count = irq_served_on(d, rung);
        if (count)
            n += (size_t)scnprintf(buf + n, size - n, " %lu %s,", (unsigned long)count,
                                   rung_names[rung]);
    }
    if (buf[n - 1] == ',')
        n--;
    return n + (size_t)scnprintf(buf + n, size - n, "\n");
}

size_t irq_plan_print(char *buf, size_t size)
{
    mutex_lock(&irq_mutex);
    size_t n = (size_t)scnprintf(
        buf, size, "irq: %u of %u vectors planned%s%s%s\n", irq_plan.used, irq_plan.pool,
        irq_plan.config_shared ? ", 1 for configuration changes" : "",
        irq_plan.system_shared ? ", 1 shared by devices" : "",
        irq_plan.line_shared ? ", 1 shared by lines" : "");
    const struct irq_device *d;
    list_for_each_entry(d, &irq_devices, link)
        n += print_device(buf + n, size - n, d);
    list_for_each_entry(d, &irq_devices, link)
        n += print_moves(buf + n, size - n, d);
    mutex_unlock(&irq_mutex);
    return n;
}

/* The name of the first listener, and how many more there are. */
static size_t print_listeners(char *buf, size_t size, const struct irq_vector *v)
{
    if (v->set->count == 0)
        return (size_t)scnprintf(buf, size, "\n");
    size_t n;
    if (v->is_line) {
        const struct irq_device *d = v->set->members[0];
        n = (size_t)scnprintf(buf, size, "%s", d->name);
    } else {
        const struct irq_source *s = v->set->members[0];
        n = s->index == IRQ_CONFIG
                ? (size_t)scnprintf(buf, size, "%s-config", s->device->name)
                : (size_t)scnprintf(buf, size, "%s-%u", s->device->name, s->index);
    }
    if (v->set->count > 1)
        n += (size_t)scnprintf(buf + n, size - n, " and %u more", v->set->count - 1);
    return n + (size_t)scnprintf(buf + n, size - n, "\n");
}

size_t irq_interrupts_print(char *buf, size_t size)
{
    size_t n = (size_t)scnprintf(buf, size, "    ");
    for (unsigned c = 0; c < cpu_count(); c++)
        n += (size_t)scnprintf(buf + n, size - n, "       CPU%-3u", c);
    n += (size_t)scnprintf(buf + n, size - n, "\n");
    mutex_lock(&irq_mutex);
    const struct irq_vector *v;
    list_for_each_entry(v, &irq_vectors, link)
    {
        n += (size_t)scnprintf(buf + n, size - n, "%3u:", v->number);
        for (unsigned c = 0; c < cpu_count(); c++)
            n += (size_t)scnprintf(buf + n, size - n, " %10lu ",
                                   (unsigned long)irq_vector_count(v, c));
        n += (size_t)scnprintf(buf + n, size - n, " %s  ", v->label);
        n += print_listeners(buf + n, size - n, v);
    }
    mutex_unlock(&irq_mutex);
    n += (size_t)scnprintf(buf + n, size - n, "SPU: %10lu   spurious interrupts\n",
                           (unsigned long)vector_spurious_count());
    n += (size_t)scnprintf(buf + n, size - n, "RSC: %10lu   watchdog rescues\n",
                           (unsigned long)irq_watchdog_rescues());
    return n;
}
