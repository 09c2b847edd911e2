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

/*
 * The hash is Toeplitz's, which devices compute as well, with a key of these 16 bits over and over: then it is the same for
 * both directions, and the sum of all 16-bit words of addresses and ports is all that counts. An odd number of ones: no two
 * ports of one peer have the same hash.
 */
#define KEY_WORD 0x6d5au

static inline uint16_t rotate_right(uint16_t x, unsigned n)
{
    return (uint16_t)(x >> n | x << (16 - n));
}

void steer_key(uint8_t key[STEER_KEY_BYTES])
{
    for (unsigned i = 0; i < STEER_KEY_BYTES; i++)
        key[i] = (uint8_t)(i % 2 ? KEY_WORD : KEY_WORD >> 8);
}

uint32_t steer_hash(uint32_t ip_a, uint32_t ip_b, uint16_t port_a, uint16_t port_b)
{
    /* What the four lowest bits of the sum add; the other twelve add the same, turned. */
#define BIT_ADDS(n, bit) ((n) & 1u << (bit) ? (uint16_t)(KEY_WORD << (15 - (bit)) | KEY_WORD >> (1 + (bit))) : 0)
#define ADDS(n) (BIT_ADDS(n, 0) ^ BIT_ADDS(n, 1) ^ BIT_ADDS(n, 2) ^ BIT_ADDS(n, 3))
    static const uint16_t adds[16] = {
        ADDS(0), ADDS(1), ADDS(2), ADDS(3), ADDS(4), ADDS(5), ADDS(6), ADDS(7),
        ADDS(8), ADDS(9), ADDS(10), ADDS(11), ADDS(12), ADDS(13), ADDS(14), ADDS(15),
    };
    uint32_t ips = ip_a ^ ip_b;
    uint16_t sum = (uint16_t)(ips ^ ips >> 16 ^ port_a ^ port_b);
    uint32_t half = (uint16_t)(adds[sum & 15] ^ rotate_right(adds[sum >> 4 & 15], 4) ^ rotate_right(adds[sum >> 8 & 15], 8) ^
                               rotate_right(adds[sum >> 12], 12));
    return half << 16 | half;
}

unsigned steer_stack(uint32_t hash, unsigned stacks)
{
    return hash % STEER_BUCKETS % stacks;
}

unsigned steer_queue(uint32_t hash, unsigned queues, unsigned stacks)
{
    unsigned bucket = hash % STEER_BUCKETS, stack = bucket % stacks;
    if (queues <= stacks)
        return stack % queues;
    /* Its queues are stack, stack + stacks, ...: none of another's. */
    unsigned own = (queues - stack + stacks - 1) / stacks;
    return stack + stacks * (bucket / stacks % own);
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

uint32_t steer_toeplitz(const uint8_t key[STEER_KEY_BYTES], const uint8_t *data, unsigned len)
{
    uint32_t result = 0;
    uint32_t window = read_be32(key);
    for (unsigned i = 0; i < len; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            if (data[i] & (0x80u >> bit))
                result ^= window;
            uint8_t next = i + 4 < STEER_KEY_BYTES ? key[i + 4] : 0;
            window = window << 1 | ((next >> (7 - bit)) & 1);
        }
    }
    return result;
}
