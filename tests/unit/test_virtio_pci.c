/* PCI capabilities, MSI-X and the modern transport over a made-up configuration space. Numbers are those of
 * docs/virtio-rules.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/errno.h>
#include <weir/string.h>

#include "drivers/pci/pci_internal.h"
#include "drivers/virtio/transport.h"
#include "drivers/virtio/virtio_wire.h"

static uint8_t config[256];
static _Alignas(4096) uint8_t bar[65536];
static struct pci_device P;
const struct pci_access *pci_access;

static uint32_t read_config(unsigned s, unsigned b, unsigned f, unsigned offset, unsigned width)
{
    uint32_t v = 0;
    assert_true(offset + width <= 256 && offset % width == 0);
    memcpy(&v, config + offset, width);
    return v;
}
static void write_config(unsigned s, unsigned b, unsigned f, unsigned offset, unsigned width, uint32_t v) { memcpy(config + offset, &v, width); }
static const struct pci_access access_fake = { read_config, write_config };
/* As in access.c, without ports. */
uint8_t pci_read8(const struct pci_device *d, unsigned o) { return (uint8_t)pci_access->read(0, 0, 0, o, 1); }
uint16_t pci_read16(const struct pci_device *d, unsigned o) { return (uint16_t)pci_access->read(0, 0, 0, o, 2); }
uint32_t pci_read32(const struct pci_device *d, unsigned o) { return pci_access->read(0, 0, 0, o, 4); }
void pci_write16(const struct pci_device *d, unsigned o, uint16_t v) { pci_access->write(0, 0, 0, o, 2, v); }
void pci_hotplug_wake(void) { }
struct irq_device *irq_demand(const struct irq_demand *d, const struct irq_device_ops *o, void *x) { return NULL; }

static unsigned last;
static void put32(unsigned at, uint32_t v) { memcpy(config + at, &v, 4); }
static void capability(unsigned at, uint8_t id)
{
    config[last ? last + 1 : PCI_CAPABILITIES] = (uint8_t)at;
    config[at] = id;
    last = at;
}
static void region(unsigned at, uint8_t type, uint8_t bar_index, uint32_t offset, uint32_t length)
{
    capability(at, 9);
    config[at + 2] = 20;
    config[at + 3] = type;
    config[at + 4] = bar_index;
    put32(at + 8, offset);
    put32(at + 12, length);
    put32(at + 16, 4);
}
static int setup(void **state)
{
    memset(config, 0, sizeof(config));
    memset(bar, 0, sizeof(bar));
    last = 0;
    pci_access = &access_fake;
    config[PCI_STATUS] = PCI_STATUS_CAPABILITIES;
    P = (struct pci_device){ .vendor = 0x1af4, .device = 0x1042, .refs = 1, .name = "0000:00:01.0" };
    P.bar[4] = (struct pci_bar){ .base = (uint64_t)bar, .size = sizeof(bar), .is64 = true, .mapped = bar };
    return 0;
}
static void good(void)
{
    region(0x40, VIRTIO_PCI_CAP_COMMON, 4, 0, 0x1000);
    region(0x60, VIRTIO_PCI_CAP_NOTIFY, 4, 0x3000, 64);
    region(0x80, VIRTIO_PCI_CAP_DEVICE, 4, 0x2000, 60);
}

static void rule01_modern_and_transitional_ids(void **s)
{
    P.revision = 7; /* rule 2: any */
    assert_true(virtio_pci_match(&P, 2));
    assert_false(virtio_pci_match(&P, 1));
    P.device = 0x1001;
    assert_true(virtio_pci_match(&P, 2));
    P.device = 0x1000;
    assert_true(virtio_pci_match(&P, 1));
    P.device = 0x1080;
    assert_false(virtio_pci_match(&P, 0x40));
    P.vendor = 0x8086;
    assert_false(virtio_pci_match(&P, 1));
}
static void rule03_reserved_types_and_bars_are_ignored_and_the_first_usable_taken(void **s)
{
    region(0x40, 99, 4, 0, 0x1000);
    region(0x54, VIRTIO_PCI_CAP_COMMON, 7, 0, 0x1000);
    region(0x68, VIRTIO_PCI_CAP_COMMON, 4, 0x100, 0x1000);
    region(0x7c, VIRTIO_PCI_CAP_COMMON, 4, 0x8000, 0x1000);
    region(0x90, VIRTIO_PCI_CAP_NOTIFY, 4, 0x3000, 64);
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    assert_non_null(d);
    bar[0x100 + COMMON_STATUS] = 0x5a;
    assert_int_equal(d->transport->status_read(d), 0x5a);
    assert_int_equal(d->transport->config_size(d), 0);
    virtio_pci_destroy(d);
}
static void rule05_regions_outside_the_bar_are_not_used(void **s)
{
    region(0x40, VIRTIO_PCI_CAP_COMMON, 4, 0xff00, 0x1000);
    region(0x60, VIRTIO_PCI_CAP_NOTIFY, 4, 0x3000, 64);
    assert_null(virtio_pci_create(&P, "virtio-blk"));
    put32(0x48, 0xffffffff); /* offset plus length wraps in 32 bits */
    assert_null(virtio_pci_create(&P, "virtio-blk"));
    put32(0x48, 0);
    put32(0x4c, 8); /* too short for the registers */
    assert_null(virtio_pci_create(&P, "virtio-blk"));
}
static void rule05_a_loop_of_capabilities_ends(void **s)
{
    good();
    config[0x81] = 0x40;
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    assert_non_null(d);
    virtio_pci_destroy(d);
    assert_int_equal(pci_find_capability(&P, 0x77, 0), 0);
    config[0x81] = 0xfc;
    config[0xfd] = 0xfc; /* the last one points at itself */
    assert_int_equal(pci_find_capability(&P, 0x77, 0), 0);
}
static void rule05_a_capability_that_leaves_configuration_space_is_not_used(void **s)
{
    good();
    capability(0xfc, 9);
    config[0xfe] = 20;
    config[0xff] = VIRTIO_PCI_CAP_ISR;
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    assert_non_null(d); /* what lies in it is */
    virtio_pci_destroy(d);
    config[0xfc] = PCI_CAP_MSIX;
    pci_probe_msix(&P);
    assert_int_equal(P.msix_entries, 0);
}
static void rule06_unaligned_regions_and_doorbells_are_not_used(void **s)
{
    good();
    put32(0x48, 2); /* common fields of four bytes */
    assert_null(virtio_pci_create(&P, "virtio-blk"));
    put32(0x48, 0);
    put32(0x70, 3); /* an odd multiplier */
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    bar[COMMON_QUEUE_NOTIFY_OFFSET] = 1;
    assert_null(d->transport->queue_doorbell(d, 0));
    bar[COMMON_QUEUE_NOTIFY_OFFSET] = 2;
    assert_ptr_equal(d->transport->queue_doorbell(d, 0), bar + 0x3000 + 6);
    virtio_pci_destroy(d);
}
static void rule06_64_bit_fields_are_written_in_halves(void **s)
{
    good();
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    struct virtio_queue_setup q = { 16, 0x123456789abc0000, 0x1111222233334444, 0x5555666677778888 };
    d->transport->queue_setup(d, 3, &q);
    assert_int_equal(bar[COMMON_QUEUE_SELECT], 3);
    assert_int_equal(memcmp(bar + COMMON_QUEUE_DESCRIPTORS, &q.descriptors, 24), 0);
    virtio_pci_destroy(d);
}
static void rule04_longer_capabilities_and_regions_are_fine(void **s)
{
    region(0x40, VIRTIO_PCI_CAP_COMMON, 4, 0, 0x3000);
    region(0x60, VIRTIO_PCI_CAP_NOTIFY, 4, 0x3000, 0x2000);
    region(0x80, VIRTIO_PCI_CAP_DEVICE, 4, 0x8000, 0x8000);
    config[0x42] = config[0x62] = config[0x82] = 32;
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    assert_non_null(d);
    assert_int_equal(d->transport->config_size(d), 0x8000);
    bar[0xffff] = 0x42;
    assert_int_equal(d->transport->config_read(d, 0x7fff, 1), 0x42);
    virtio_pci_destroy(d);
}
/* The fields that the device alone writes, in every call that the transport has. */
static void rule07_read_only_fields_are_never_written(void **s)
{
    static const struct { unsigned at, bytes; } fields[] = { { COMMON_DEVICE_FEATURE, 4 }, { COMMON_QUEUE_COUNT, 2 },
        { COMMON_GENERATION, 1 }, { COMMON_QUEUE_NOTIFY_OFFSET, 2 } };
    good();
    memset(bar, 0xa5, COMMON_BYTES);
    bar[COMMON_QUEUE_NOTIFY_OFFSET] = 3;
    bar[COMMON_QUEUE_NOTIFY_OFFSET + 1] = 0;
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    const struct virtio_transport_ops *t = d->transport;
    struct virtio_queue_setup q = { 16, 1, 2, 3 };
    t->status_write(d, 0);
    (void)t->status_read(d);
    for (unsigned word = 0; word < 2; word++) {
        assert_true(t->features_read(d, word) == 0xa5a5a5a5);
        t->features_write(d, word, 0);
    }
    (void)t->generation(d);
    (void)t->config_vector(d, 0);
    assert_int_equal(t->queue_count(d), 0xa5a5);
    for (unsigned i = 0; i < 3; i++) {
        (void)t->queue_size(d, i);
        t->queue_setup(d, i, &q);
        (void)t->queue_vector(d, i, 0);
        assert_non_null(t->queue_doorbell(d, i));
        t->queue_enable(d, i);
    }
    t->config_write8(d, 0, 0);
    for (unsigned i = 0; i < ARRAY_SIZE(fields); i++) {
        for (unsigned k = 0; k < fields[i].bytes; k++) {
            bool notify = fields[i].at == COMMON_QUEUE_NOTIFY_OFFSET;
            assert_int_equal(bar[fields[i].at + k], notify ? 3 * !k : 0xa5);
        }
    }
    virtio_pci_destroy(d);
}
static void rule62_the_reset_register_is_used_if_the_region_has_it(void **s)
{
    good();
    struct virtio_device *d = virtio_pci_create(&P, "virtio-net");
    assert_true(d->queue_reset);
    assert_true(d->transport->queue_reset(d, 5, true)); /* memory: the 1 stays there */
    assert_int_equal(bar[COMMON_QUEUE_SELECT], 5);
    assert_int_equal(bar[COMMON_QUEUE_RESET], 1);
    bar[COMMON_QUEUE_RESET] = 0;
    assert_false(d->transport->queue_reset(d, 5, false));
    virtio_pci_destroy(d);
    put32(0x4c, COMMON_BYTES); /* a device from before it */
    d = virtio_pci_create(&P, "virtio-net");
    assert_false(d->queue_reset);
    virtio_pci_destroy(d);
}
static void rule08_the_doorbell_lies_in_its_region_or_nowhere(void **s)
{
    good();
    struct virtio_device *d = virtio_pci_create(&P, "virtio-blk");
    bar[COMMON_QUEUE_NOTIFY_OFFSET] = 15;
    assert_ptr_equal(d->transport->queue_doorbell(d, 0), bar + 0x3000 + 60);
    bar[COMMON_QUEUE_NOTIFY_OFFSET] = 16;
    assert_null(d->transport->queue_doorbell(d, 0));
    virtio_pci_destroy(d);
    put32(0x70, 0); /* multiplier 0: one doorbell for all */
    d = virtio_pci_create(&P, "virtio-blk");
    bar[COMMON_QUEUE_NOTIFY_OFFSET] = 200;
    assert_ptr_equal(d->transport->queue_doorbell(d, 0), bar + 0x3000);
    virtio_pci_destroy(d);
}
static void msix(unsigned entries, uint32_t offset)
{
    capability(0xa0, PCI_CAP_MSIX);
    uint16_t control = (uint16_t)(entries - 1);
    memcpy(config + 0xa2, &control, 2);
    put32(0xa4, offset | 4);
    P.msix_entries = 0;
    pci_probe_msix(&P);
}
static void rule56_tables_of_1_to_2048_entries(void **s)
{
    unsigned sizes[] = { 1, 2, 3, 64, 2048 };
    for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
        setup(NULL);
        memset(bar, 0x55, sizeof(bar));
        msix(sizes[i], 0x4000);
        assert_int_equal(P.msix_entries, sizes[i]);
        assert_int_equal(pci_msix_enable(&P), 0);
        for (unsigned e = 0; e < sizes[i]; e++)
            assert_int_equal(bar[0x4000 + e * 16 + 12], 1); /* all masked */
        assert_int_equal(bar[0x3fff], 0x55);
        assert_int_equal(bar[0x4000 + sizes[i] * 16], 0x55); /* and nothing beyond */
        assert_int_equal(pci_msix_write(&P, sizes[i], 0, 0), -EINVAL);
        assert_int_equal(pci_msix_write(&P, sizes[i] - 1, 0xfee03000, 99), 0);
        assert_int_equal(bar[0x4000 + (sizes[i] - 1) * 16 + 12], 0);
        pci_msix_disable(&P);
    }
}
static void rule56_a_table_outside_its_bar_is_not_used(void **s)
{
    msix(2048, 0xf000);
    assert_int_equal(P.msix_entries, 0);
    assert_int_equal(pci_msix_enable(&P), -ENOENT);
}

#define T(f) cmocka_unit_test_setup(f, setup)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(rule01_modern_and_transitional_ids), T(rule03_reserved_types_and_bars_are_ignored_and_the_first_usable_taken),
        T(rule05_regions_outside_the_bar_are_not_used), T(rule05_a_loop_of_capabilities_ends),
        T(rule04_longer_capabilities_and_regions_are_fine),
        T(rule62_the_reset_register_is_used_if_the_region_has_it),
        T(rule05_a_capability_that_leaves_configuration_space_is_not_used), T(rule06_unaligned_regions_and_doorbells_are_not_used),
        T(rule06_64_bit_fields_are_written_in_halves), T(rule07_read_only_fields_are_never_written), T(rule08_the_doorbell_lies_in_its_region_or_nowhere),
        T(rule56_tables_of_1_to_2048_entries), T(rule56_a_table_outside_its_bar_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
