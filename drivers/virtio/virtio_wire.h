/* Layouts and numbers of virtio 1.2 that driver and device share. All fields are little-endian. */
#ifndef WEIR_VIRTIO_WIRE_H
#define WEIR_VIRTIO_WIRE_H
#include <weir/compiler.h>

/* Device status, section 2.1. */
#define VIRTIO_STATUS_ACKNOWLEDGE 1u
#define VIRTIO_STATUS_DRIVER      2u
#define VIRTIO_STATUS_DRIVER_OK   4u
#define VIRTIO_STATUS_FEATURES_OK 8u
#define VIRTIO_STATUS_NEEDS_RESET 64u
#define VIRTIO_STATUS_FAILED      128u

#define VIRTIO_NO_VECTOR 0xffffu

/* Interrupt status, section 4.1.4.5. */
#define VIRTIO_ISR_QUEUE  1u
#define VIRTIO_ISR_CONFIG 2u

/* Split ring, section 2.7:
 *
 *   descriptors [size] 16 bytes each      driver writes, device reads
 *   available: flags idx ring[size] used_event    driver writes
 *   used:      flags idx {id len}[size] avail_event   device writes
 */
struct wire_descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags;
    uint16_t next;
};
#define WIRE_DESC_NEXT     1u
#define WIRE_DESC_WRITE    2u
#define WIRE_DESC_INDIRECT 4u

struct wire_available {
    uint16_t flags;
    uint16_t index;
    uint16_t ring[];     /* [size], then used_event */
};
#define WIRE_AVAIL_NO_INTERRUPT 1u

struct wire_used_element {
    uint32_t id;
    uint32_t length;
};
struct wire_used {
    uint16_t flags;
    uint16_t index;
    struct wire_used_element ring[]; /* [size], then avail_event */
};
#define WIRE_USED_NO_NOTIFY 1u

/* Packed ring, section 2.8: descriptors that both sides write, and who wants to hear of what. */
struct wire_packed {
    uint64_t address;
    uint32_t length;
    uint16_t id;
    uint16_t flags;      /* WIRE_DESC_*, and: */
};
#define WIRE_PACKED_AVAIL 0x0080u
#define WIRE_PACKED_USED  0x8000u
struct wire_event {
    uint16_t offset_wrap; /* descriptor; bit 15: the wrap counter there */
    uint16_t flags;
};
#define WIRE_EVENT_ENABLE     0u
#define WIRE_EVENT_DISABLE    1u
#define WIRE_EVENT_DESCRIPTOR 2u
#define WIRE_EVENT_MASK       3u

/* PCI vendor capability, section 4.1.4. */
#define VIRTIO_PCI_VENDOR             0x1af4u
#define VIRTIO_PCI_CAP_COMMON         1u
#define VIRTIO_PCI_CAP_NOTIFY         2u
#define VIRTIO_PCI_CAP_ISR            3u
#define VIRTIO_PCI_CAP_DEVICE         4u
#define VIRTIO_PCI_CAP_PCI            5u
#define VIRTIO_PCI_CAP_BYTES          16u
#define VIRTIO_PCI_CAP_NOTIFY_BYTES   20u

/* Offsets in the common configuration, section 4.1.4.3. */
enum virtio_common {
    COMMON_DEVICE_FEATURE_SELECT = 0,
    COMMON_DEVICE_FEATURE = 4,
    COMMON_DRIVER_FEATURE_SELECT = 8,
    COMMON_DRIVER_FEATURE = 12,
    COMMON_CONFIG_VECTOR = 16,
    COMMON_QUEUE_COUNT = 18,
    COMMON_STATUS = 20,
    COMMON_GENERATION = 21,
    COMMON_QUEUE_SELECT = 22,
    COMMON_QUEUE_SIZE = 24,
    COMMON_QUEUE_VECTOR = 26,
    COMMON_QUEUE_ENABLE = 28,
    COMMON_QUEUE_NOTIFY_OFFSET = 30,
    COMMON_QUEUE_DESCRIPTORS = 32,
    COMMON_QUEUE_DRIVER = 40,
    COMMON_QUEUE_DEVICE = 48,
    COMMON_BYTES = 56,
    COMMON_QUEUE_RESET = 58,
};
#endif
