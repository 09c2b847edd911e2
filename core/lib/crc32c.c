/* Table of eight slices, computed once: eight bytes a step. */
#include <weir/atomic.h>
#include <weir/crc32c.h>

static uint32_t table[8][256];
static bool ready;

static void fill_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        atomic_store_relaxed(&table[0][i], crc);
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (unsigned k = 1; k < 8; k++)
            atomic_store_relaxed(&table[k][i], table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255]);
    }
    /* Release: the table is seen whole by whoever sees ready. Two CPUs may fill it at once, with the same values. */
    atomic_store_release(&ready, true);
}

uint32_t crc32c(uint32_t seed, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint32_t crc = seed;
    if (!atomic_load_acquire(&ready))
        fill_table();
    for (; len && (uintptr_t)p % 8; len--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
    for (; len >= 8; len -= 8, p += 8) {
        uint64_t v = *(const uint64_t *)(const void *)p ^ crc;
        crc = table[7][v & 255] ^ table[6][v >> 8 & 255] ^ table[5][v >> 16 & 255] ^ table[4][v >> 24 & 255] ^
              table[3][v >> 32 & 255] ^ table[2][v >> 40 & 255] ^ table[1][v >> 48 & 255] ^ table[0][v >> 56];
    }
    for (; len; len--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
    return crc;
}
