#include <weir/string.h>
#include "arch/x86_64/madt.h"

#define HEADER_SIZE 36
#define FIXED_SIZE 44
#define CPU_ENABLED 1u
enum { LOCAL_APIC = 0, IO_APIC = 1, OVERRIDE = 2, LOCAL_APIC_ADDRESS = 5, LOCAL_X2APIC = 9 };

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void cpu_add(struct madt_info *m, uint32_t apic_id, uint32_t flags)
{
    if (!(flags & CPU_ENABLED))
        return;
    for (unsigned i = 0; i < m->cpu_count; i++) {
        if (m->apic_ids[i] == apic_id)
            return; /* listed as xAPIC and as x2APIC */
    }
    if (m->cpu_count == CPU_MAX)
        m->cpu_left_out++;
    else
        m->apic_ids[m->cpu_count++] = apic_id;
}

static void override_add(struct madt_info *m, const uint8_t *e)
{
    unsigned flags = e[8] | (unsigned)e[9] << 8;
    if (e[2] != 0 || e[3] >= ISA_IRQS)
        return;
    struct madt_override *o = &m->isa[e[3]];
    o->listed = true;
    o->gsi = get32(e + 4);
    /* 0 = as the bus has it: ISA is edge, active high. */
    o->active_low = (flags & 3) == 3;
    o->level = ((flags >> 2) & 3) == 3;
}

static void entry_parse(struct madt_info *m, const uint8_t *e, unsigned len)
{
    switch (e[0]) {
    case LOCAL_APIC:
        if (len >= 8 && e[3] != 0xff)
            cpu_add(m, e[3], get32(e + 4));
        break;
    case LOCAL_X2APIC:
        if (len >= 16 && get32(e + 4) != 0xffffffff)
            cpu_add(m, get32(e + 4), get32(e + 8));
        break;
    case IO_APIC:
        if (len >= 12 && m->ioapic_count < MADT_IOAPIC_MAX) {
            m->ioapics[m->ioapic_count].phys = get32(e + 4);
            m->ioapics[m->ioapic_count++].gsi_base = get32(e + 8);
        }
        break;
    case OVERRIDE:
        if (len >= 10)
            override_add(m, e);
        break;
    case LOCAL_APIC_ADDRESS:
        if (len >= 12)
            memcpy(&m->lapic_phys, e + 4, 8);
        break;
    default:
        break;
    }
}

bool madt_parse(const void *table, size_t length, struct madt_info *out)
{
    const uint8_t *t = table;
    memset(out, 0, sizeof *out);
    for (unsigned i = 0; i < ISA_IRQS; i++)
        out->isa[i].gsi = i;
    if (length < FIXED_SIZE || memcmp(t, "APIC", 4))
        return false;
    size_t end = MIN((size_t)get32(t + 4), length);
    if (end < FIXED_SIZE)
        return false;
    out->lapic_phys = get32(t + HEADER_SIZE);
    out->has_8259 = get32(t + HEADER_SIZE + 4) & 1;
    for (size_t at = FIXED_SIZE; at + 2 <= end;) {
        unsigned len = t[at + 1];
        if (len < 2 || at + len > end)
            break;
        entry_parse(out, t + at, len);
        at += len;
    }
    return true;
}
