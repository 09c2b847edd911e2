/* The MADT (ACPI 6.4 section 5.2.12) as data. Pure parser, unit-tested on the host. */
#ifndef WEIR_ARCH_MADT_H
#define WEIR_ARCH_MADT_H
#include <weir/bitmap.h>

#define MADT_IOAPIC_MAX 16
#define ISA_IRQS 16

struct madt_info {
    unsigned cpu_count;             /* enabled CPUs recorded, at most CPU_MAX */
    unsigned cpu_left_out;          /* enabled CPUs beyond that */
    uint32_t apic_ids[CPU_MAX];     /* in table order, no duplicates */
    unsigned ioapic_count;
    struct madt_ioapic {
        uint64_t phys;
        uint32_t gsi_base;
    } ioapics[MADT_IOAPIC_MAX];
    struct madt_override {
        uint32_t gsi;
        bool level, active_low, listed;
    } isa[ISA_IRQS];                /* identity, edge, active high where the table says nothing */
    uint64_t lapic_phys;
    bool has_8259;
};
/* table: the whole MADT, header included; length: bytes that can be read there. False if it is no MADT or too short for its fixed
 * part. Entries that run past the end, and unknown ones, are skipped. */
bool madt_parse(const void *table, size_t length, struct madt_info *out);
#endif
