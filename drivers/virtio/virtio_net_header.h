/* Rules of virtio-net that need no device: features, header, what a received header may say. Pure. */
#ifndef DRIVERS_VIRTIO_NET_HEADER_H
#define DRIVERS_VIRTIO_NET_HEADER_H
#include <weir/compiler.h>

enum {
    NET_F_CSUM = 0, NET_F_GUEST_CSUM = 1, NET_F_MTU = 3, NET_F_MAC = 5, NET_F_GUEST_TSO4 = 7, NET_F_GUEST_TSO6 = 8,
    NET_F_GUEST_ECN = 9, NET_F_GUEST_UFO = 10, NET_F_HOST_TSO4 = 11, NET_F_HOST_TSO6 = 12, NET_F_HOST_ECN = 13,
    NET_F_HOST_UFO = 14, NET_F_MRG_RXBUF = 15, NET_F_STATUS = 16, NET_F_CTRL_VQ = 17, NET_F_CTRL_RX = 18,
    NET_F_GUEST_ANNOUNCE = 21, NET_F_MQ = 22, NET_F_CTRL_MAC_ADDR = 23, NET_F_HASH_REPORT = 57, NET_F_RSS = 60,
};

enum { NET_HDR_NEEDS_CSUM = 1, NET_HDR_DATA_VALID = 2 };
enum { NET_HDR_GSO_NONE = 0, NET_HDR_GSO_TCPV4 = 1, NET_HDR_GSO_UDP = 3, NET_HDR_GSO_TCPV6 = 4, NET_HDR_GSO_ECN = 0x80 };

struct virtio_net_header {
    uint8_t flags, gso_type;
    uint16_t header_len, gso_size, csum_start, csum_offset, num_buffers; /* little endian, as x86 */
    uint32_t hash_value;       /* from here on with HASH_REPORT only */
    uint16_t hash_report, padding;
} __packed;
#define NET_HDR_SIZE_MAX 20u
#define NET_HASH_REPORT_TCPV4 2

/* Data of the control command RSS_CONFIG (5.1.6.5.7.1), little endian: which frames are hashed, queue by hash, pairs. */
#define NET_RSS_KEY 40u
#define NET_RSS_TABLE 128u
struct virtio_net_rss_command {
    uint32_t hash_types;
    uint16_t mask, unclassified_queue;
    uint16_t table[NET_RSS_TABLE];
    uint16_t max_tx;
    uint8_t key_bytes;
    uint8_t key[NET_RSS_KEY];
} __packed;
enum { NET_HASH_TCPV4 = 1 << 1, NET_HASH_UDPV4 = 1 << 4 };
/* Hash types to ask a device with these limits for; 0 = its RSS cannot be used. */
uint32_t virtio_net_hash_types(unsigned max_key, unsigned max_table, uint32_t supported);
/* The queues of `table` are receive queues below `pairs`; else the command is not to be sent: false. */
bool virtio_net_rss_command(struct virtio_net_rss_command *c, uint32_t hash_types, const uint8_t key[NET_RSS_KEY],
                            const uint16_t table[NET_RSS_TABLE], unsigned pairs);

/* Which of the offered features to ask for: only known ones, each only with what it needs. */
uint64_t virtio_net_choose_features(uint64_t offered);
/* Bytes of the header with these accepted features (version_1: modern device). */
unsigned virtio_net_header_size(uint64_t features, bool version_1);
/* Index of the control queue. */
unsigned virtio_net_control_index(uint64_t features, unsigned max_pairs);
/* Pairs to use: what the device has, CPUs, wish (0 = none). At least 1. */
unsigned virtio_net_pairs(uint64_t features, unsigned max_pairs, unsigned cpus, unsigned wish);
/* A receive buffer: bytes that the device must find behind the headroom. */
unsigned virtio_net_buffer_size(uint64_t features, unsigned header_size, unsigned mtu, unsigned headroom);
/* Buffers of the frame whose first buffer holds `len` bytes; 0 = the header lies: drop the buffer. */
unsigned virtio_net_rx_buffers(const struct virtio_net_header *h, bool mergeable, uint32_t len, unsigned header_size,
                               unsigned buffers_max);
#endif
