/* ACPI tables: found, mapped for good, checked. No AML is run: _S5 is found by its bytes. */
#include <weir/printk.h>
#include <weir/string.h>
#include "arch/x86_64/aml.h"
#include "arch/x86_64/arch.h"
#include "arch/x86_64/madt.h"

#define TABLES_MAX 32
#define HEADER_SIZE 36
#define TABLE_SIZE_MAX (4u << 20)
#define GAS_MEMORY 0

static struct {
    char signature[4];
    const uint8_t *data;
    uint32_t length;
} tables[TABLES_MAX];
static unsigned table_count;
static struct madt_info madt;
struct fadt_info fadt;
static struct aml_facts facts = { .s5_a = -1, .s5_b = -1 };

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static bool checksum_ok(const uint8_t *p, size_t n)
{
    uint8_t sum = 0;
    while (n--)
        sum += *p++;
    return !sum;
}

/* Map a table and remember it; NULL if it is not one. */
static const uint8_t *table_add(uint64_t phys)
{
    const uint8_t *header = phys ? vmap_phys(phys, HEADER_SIZE, VMAP_RO) : NULL;
    if (!header || table_count == TABLES_MAX)
        return NULL;
    uint32_t length = get32(header + 4);
    vunmap((void *)(uintptr_t)header);
    if (length < HEADER_SIZE || length > TABLE_SIZE_MAX)
        return NULL;
    const uint8_t *data = vmap_phys(phys, length, VMAP_RO);
    if (!data)
        return NULL;
    if (memcmp(data, "DSDT", 4) && !checksum_ok(data, length)) {
        log_warn("acpi: table %.4s at %#lx has a bad checksum", (const char *)data, (unsigned long)phys);
        return NULL;
    }
    memcpy(tables[table_count].signature, data, 4);
    tables[table_count].length = length;
    tables[table_count++].data = data;
    return data;
}

static const uint8_t *table_find(const char *signature, uint32_t *length)
{
    for (unsigned i = 0; i < table_count; i++) {
        if (!memcmp(tables[i].signature, signature, 4)) {
            *length = tables[i].length;
            return tables[i].data;
        }
    }
    return NULL;
}

const void *acpi_table(const char signature[4])
{
    uint32_t length;
    return table_find(signature, &length);
}

/* Firmware without a pointer in the start info: the areas of ACPI 6.4 section 5.2.5.1. */
static uint64_t rsdp_scan(void)
{
    static const struct { uint64_t start, size; } areas[] = { { 0xe0000, 0x20000 }, { 0x9fc00, 0x400 } };
    for (unsigned i = 0; i < ARRAY_SIZE(areas); i++) {
        const uint8_t *p = vmap_phys(areas[i].start, areas[i].size, VMAP_RO);
        uint64_t found = 0;
        for (uint64_t at = 0; p && !found && at + 20 <= areas[i].size; at += 16) {
            if (!memcmp(p + at, "RSD PTR ", 8) && checksum_ok(p + at, 20))
                found = areas[i].start + at;
        }
        vunmap((void *)(uintptr_t)p);
        if (found)
            return found;
    }
    return 0;
}

static void root_walk(uint64_t rsdp_phys)
{
    const uint8_t *rsdp = vmap_phys(rsdp_phys, HEADER_SIZE, VMAP_RO);
    if (!rsdp)
        return;
    uint64_t xsdt = rsdp[15] >= 2 ? get64(rsdp + 24) : 0;
    const uint8_t *root = table_add(xsdt ? xsdt : get32(rsdp + 16));
    unsigned width = xsdt ? 8 : 4;
    for (uint32_t at = HEADER_SIZE; root && at + width <= get32(root + 4); at += width)
        (void)table_add(width == 8 ? get64(root + at) : get32(root + at));
    vunmap((void *)(uintptr_t)rsdp);
}

static void fadt_read(void)
{
    uint32_t length = 0, dsdt_length;
    const uint8_t *f = table_find("FACP", &length);
    if (!f || length < 116)
        return;
    fadt.present = true;
    fadt.sci_irq = (uint16_t)(f[46] | f[47] << 8);
    fadt.smi_cmd = get32(f + 48);
    fadt.acpi_enable = f[52];
    fadt.pm1a_event = get32(f + 56);
    fadt.pm1b_event = get32(f + 60);
    fadt.pm1a_control = get32(f + 64);
    fadt.pm1b_control = get32(f + 68);
    fadt.pm_timer = get32(f + 76);
    fadt.pm1_event_len = f[88];
    fadt.gpe0 = get32(f + 80);
    fadt.gpe0_len = f[92];
    fadt.pm_timer_32bit = get32(f + 112) & (1u << 8);
    /* Hardware-reduced (ACPI 6.4 section 4.8.3.7): one register, here in memory, in place of the PM1 blocks. */
    if ((get32(f + 112) & (1u << 20)) && length >= 256 && f[244] == GAS_MEMORY)
        fadt.sleep_control = get64(f + 248);
    uint64_t dsdt = get32(f + 40);
    if (length >= 148 && get64(f + 140))
        dsdt = get64(f + 140);
    (void)table_add(dsdt);
    const uint8_t *aml = table_find("DSDT", &dsdt_length);
    if (aml)
        aml_scan(aml, dsdt_length, &facts);
}

const struct aml_facts *acpi_aml(void)
{
    return &facts;
}

void acpi_pci_host(struct acpi_pci_host *out)
{
    *out = (struct acpi_pci_host){ facts.ecam_base, facts.window_start, facts.window_end };
}

const struct madt_info *acpi_madt(void)
{
    return &madt;
}

unsigned cpu_possible_count(void)
{
    return MAX(madt.cpu_count, 1u);
}

void acpi_init(uint64_t rsdp_phys)
{
    if (!rsdp_phys)
        rsdp_phys = rsdp_scan();
    if (rsdp_phys)
        root_walk(rsdp_phys);
    fadt_read();
    uint32_t length = 0;
    const uint8_t *table = table_find("APIC", &length);
    if (!table || !madt_parse(table, length, &madt)) {
        log_warn("acpi: no usable MADT: one CPU, no I/O APIC");
        (void)madt_parse("", 0, &madt);
    }
    if (madt.cpu_left_out)
        log_warn("smp: %u CPUs beyond the %u supported are left out", madt.cpu_left_out, CPU_MAX);
}
