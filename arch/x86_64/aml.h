/*
 * What is needed of the DSDT without running AML: names and resource descriptors are found by their bytes. A table that
 * computes these values instead of stating them is not understood; then they count as absent. Pure; any table is safe.
 * ACPI 6.4: 20.2 (encoding), 7.4.2.5 (_S5), 6.4.3.5.2 (DWord address space descriptor); PCI Firmware 3.3: 4.1.3 (_CBA).
 */
#ifndef WEIR_AML_H
#define WEIR_AML_H
#include <weir/bitmap.h>

struct aml_facts {
    int s5_a, s5_b;                    /* SLP_TYP of soft-off for PM1a and PM1b; -1 = absent */
    uint64_t ecam_base;                /* of the PCI host bridge's bus 0; 0 = not named */
    uint64_t window_start, window_end; /* its largest memory window below 4 GiB, end exclusive; 0, 0 = not named */
};

/* aml: a table with its header, of length bytes. */
void aml_scan(const uint8_t *aml, size_t length, struct aml_facts *facts);
#endif
