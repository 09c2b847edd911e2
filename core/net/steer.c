/* Which stack and which transmit queue a frame belongs to. Pure: no state, no locks. */
#include "core/net/net_internal.h"

static inline uint32_t read_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint16_t read_be16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

uint32_t steer_hash(uint32_t ip_a, uint32_t ip_b, uint16_t port_a, uint16_t port_b)
{
    /* The same for both directions, so that a sender finds the queue that its answers come by. */
    uint64_t x = (uint64_t)(ip_a ^ ip_b) << 32 | ((uint32_t)(port_a ^ port_b) << 16 | (uint16_t)(port_a + port_b));
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdUL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53UL;
    return (uint32_t)(x >> 32);
}

enum steer_kind steer_frame(const uint8_t *frame, uint32_t len, uint32_t *hash)
{
    *hash = 0;
    if (len < 14)
        return STEER_FIRST;
    if (frame[12] == 0x08 && frame[13] == 0x06 && len >= 42) {
        /* ARP: each stack has a table of its own, so each hears answers and announcements (sender and target
         * are the same). Questions are answered by one. */
        bool announcement = !memcmp(frame + 28, frame + 38, 4);
        return frame[21] == 2 || announcement ? STEER_ALL : STEER_FIRST;
    }
    if (len < 34 || frame[12] != 0x08 || frame[13] != 0x00)
        return STEER_FIRST;
    const uint8_t *ip = frame + 14;
    unsigned ip_len = (ip[0] & 15) * 4U;
    bool fragment = (read_be16(ip + 6) & 0x3fff) != 0;
    if ((ip[9] != 6 && ip[9] != 17) || fragment || ip_len < 20 || 14 + ip_len + 4 > len)
        return STEER_FIRST;
    const uint8_t *ports = ip + ip_len;
    *hash = steer_hash(read_be32(ip + 12), read_be32(ip + 16), read_be16(ports), read_be16(ports + 2));
    if (ip[9] == 17 && read_be16(ports + 2) == 68)
        return STEER_FIRST; /* DHCP */
    return STEER_FLOW;
}

uint32_t steer_toeplitz(const uint8_t key[40], const uint8_t *data, unsigned len)
{
    uint32_t result = 0;
    uint32_t window = read_be32(key);
    for (unsigned i = 0; i < len; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            if (data[i] & (0x80u >> bit))
                result ^= window;
            uint8_t next = i + 4 < 40 ? key[i + 4] : 0;
            window = window << 1 | ((next >> (7 - bit)) & 1);
        }
    }
    return result;
}
