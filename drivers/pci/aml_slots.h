/*
 * Which bus a slot selector of QEMU's ACPI hot-plug registers means, read from the DSDT's bytes. No AML is
 * run: a bus that can be hot-plugged has Name(BSEL, n) in the Device of its bridge, and a Device below
 * another is called Sxx by its slot and function in hexadecimal. Pure.
 */
#ifndef WEIR_PCI_AML_SLOTS_H
#define WEIR_PCI_AML_SLOTS_H
#include <weir/compiler.h>

#define AML_PATH_MAX 8u

struct aml_slots {
    uint32_t selector;
    unsigned depth;               /* bridges between the root bus and this bus */
    uint8_t path[AML_PATH_MAX];   /* their slot << 3 | function, from the root bus on */
};
/* Fills at most `max`; returns how many there are in `out`. Trusts nothing in the table. */
unsigned aml_slots_find(const uint8_t *aml, size_t length, struct aml_slots *out, unsigned max);
#endif
