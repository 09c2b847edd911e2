#include "drivers/virtio/virtio_net_header.h"

#define BIT64(n) (1ULL << (n))

uint64_t virtio_net_choose_features(uint64_t offered)
{
    uint64_t f = offered & (BIT64(NET_F_CSUM) | BIT64(NET_F_GUEST_CSUM) | BIT64(NET_F_MTU) | BIT64(NET_F_MAC) |
                            BIT64(NET_F_GUEST_TSO4) | BIT64(NET_F_HOST_TSO4) | BIT64(NET_F_MRG_RXBUF) |
                            BIT64(NET_F_STATUS) | BIT64(NET_F_CTRL_VQ) | BIT64(NET_F_GUEST_ANNOUNCE) | BIT64(NET_F_MQ) |
                            BIT64(NET_F_RSS) | BIT64(NET_F_HASH_REPORT));
    /* Large received frames need their sums left to us, and buffers that can be joined: a ring of 64 KiB
     * buffers would cost 16 MiB a queue. */
    if (!(f & BIT64(NET_F_GUEST_CSUM)) || !(f & BIT64(NET_F_MRG_RXBUF)))
        f &= ~BIT64(NET_F_GUEST_TSO4);
    if (!(f & BIT64(NET_F_CSUM)))
        f &= ~BIT64(NET_F_HOST_TSO4);
    if (!(f & BIT64(NET_F_CTRL_VQ)))
        f &= ~(BIT64(NET_F_GUEST_ANNOUNCE) | BIT64(NET_F_MQ) | BIT64(NET_F_RSS));
    if (!(f & BIT64(NET_F_RSS)))
        f &= ~BIT64(NET_F_HASH_REPORT); /* without its own steering a hash tells nothing that the header does not */
    if (!(f & BIT64(NET_F_STATUS)))
        f &= ~BIT64(NET_F_GUEST_ANNOUNCE); /* the request to announce is a bit of the status */
    return f;
}

unsigned virtio_net_header_size(uint64_t features, bool version_1)
{
    if (features & BIT64(NET_F_HASH_REPORT))
        return 20;
    return version_1 || (features & BIT64(NET_F_MRG_RXBUF)) ? 12 : 10;
}

unsigned virtio_net_control_index(uint64_t features, unsigned max_pairs)
{
    return features & (BIT64(NET_F_MQ) | BIT64(NET_F_RSS)) ? 2 * max_pairs : 2;
}

unsigned virtio_net_pairs(uint64_t features, unsigned max_pairs, unsigned cpus, unsigned wish)
{
    unsigned pairs = features & (BIT64(NET_F_MQ) | BIT64(NET_F_RSS)) ? MIN(max_pairs, cpus) : 1;
    if (wish)
        pairs = MIN(pairs, wish);
    return MAX(pairs, 1u);
}

unsigned virtio_net_buffer_size(uint64_t features, unsigned header_size, unsigned mtu, unsigned headroom)
{
    if (features & BIT64(NET_F_MRG_RXBUF))
        return 2048;
    /* One frame in one buffer: header, Ethernet with a VLAN tag, payload. */
    unsigned need = headroom + header_size + 18 + mtu;
    return need <= 2048 ? 2048 : (need + 63) & ~63u;
}

unsigned virtio_net_rx_buffers(const struct virtio_net_header *h, bool mergeable, uint32_t len, unsigned header_size,
                               unsigned buffers_max)
{
    if (len < header_size + 14)
        return 0;
    if (!mergeable)
        return 1;
    return h->num_buffers >= 1 && h->num_buffers <= buffers_max ? h->num_buffers : 0;
}

uint32_t virtio_net_hash_types(unsigned max_key, unsigned max_table, uint32_t supported)
{
    uint32_t types = supported & (NET_HASH_TCPV4 | NET_HASH_UDPV4);
    return max_key >= NET_RSS_KEY && max_table >= NET_RSS_TABLE && (types & NET_HASH_TCPV4) ? types : 0;
}

bool virtio_net_rss_command(struct virtio_net_rss_command *c, uint32_t hash_types, const uint8_t key[NET_RSS_KEY],
                            const uint16_t table[NET_RSS_TABLE], unsigned pairs)
{
    *c = (struct virtio_net_rss_command){ .hash_types = hash_types, .mask = NET_RSS_TABLE - 1, .max_tx = (uint16_t)pairs,
                                          .key_bytes = NET_RSS_KEY };
    for (unsigned i = 0; i < NET_RSS_KEY; i++)
        c->key[i] = key[i];
    for (unsigned i = 0; i < NET_RSS_TABLE; i++) {
        if (table[i] >= pairs)
            return false;
        c->table[i] = table[i];
    }
    return true;
}
