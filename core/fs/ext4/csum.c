/* Checksums: crc32c with metadata_csum, crc16 for group descriptors with uninit_bg. */
#include "ext4.h"
#include <weir/crc32c.h>

uint32_t ext4_block_csum(uint32_t seed, const char *data, size_t len) { return crc32c(seed, data, len); }
uint32_t ext4_super_csum(const struct ext4_super_disk *s)
{
    return crc32c(~0u, s, offsetof(struct ext4_super_disk, checksum));
}
uint32_t ext4_inode_seed(const struct ext4_fs *fs, uint32_t ino, uint32_t generation)
{
    uint32_t seed = crc32c(fs->csum_seed, &ino, 4);
    return crc32c(seed, &generation, 4);
}

static bool has_high_csum(const struct ext4_fs *fs, const struct ext4_inode_disk *d)
{
    return fs->inode_size > 128 && d->extra_isize >= 4;
}
uint32_t ext4_inode_csum(const struct ext4_fs *fs, uint32_t seed, const char *raw)
{
    static const uint16_t zero;
    const size_t lo = offsetof(struct ext4_inode_disk, checksum_lo), hi = offsetof(struct ext4_inode_disk, checksum_hi);
    uint32_t crc = crc32c(seed, raw, lo);
    crc = crc32c(crc, &zero, 2);
    crc = crc32c(crc, raw + lo + 2, 128 - lo - 2);
    if (fs->inode_size > 128) {
        crc = crc32c(crc, raw + 128, hi - 128);
        if (has_high_csum(fs, (const void *)raw))
            crc = crc32c(crc, &zero, 2);
        else
            crc = crc32c(crc, raw + hi, 2);
        crc = crc32c(crc, raw + hi + 2, fs->inode_size - hi - 2);
    }
    return crc;
}
bool ext4_inode_csum_ok(const struct ext4_fs *fs, uint32_t seed, const char *raw)
{
    const struct ext4_inode_disk *d = (const void *)raw;
    if (!fs->metadata_csum)
        return true;
    uint32_t crc = ext4_inode_csum(fs, seed, raw);
    if (d->checksum_lo != (crc & 0xffff))
        return false;
    return !has_high_csum(fs, d) || d->checksum_hi == crc >> 16;
}
void ext4_inode_csum_set(const struct ext4_fs *fs, uint32_t seed, char *raw)
{
    struct ext4_inode_disk *d = (void *)raw;
    if (!fs->metadata_csum)
        return;
    uint32_t crc = ext4_inode_csum(fs, seed, raw);
    d->checksum_lo = (uint16_t)crc;
    if (has_high_csum(fs, d))
        d->checksum_hi = (uint16_t)(crc >> 16);
}

static uint16_t crc16(uint16_t crc, const void *data, size_t len)
{
    for (const uint8_t *p = data; len; len--, p++) {
        crc ^= *p;
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc >> 1 ^ (crc & 1 ? 0xa001 : 0));
    }
    return crc;
}
uint16_t ext4_group_csum(const struct ext4_fs *fs, uint32_t group, const char *desc)
{
    static const uint16_t zero;
    const size_t at = offsetof(struct ext4_group_disk, checksum);
    if (fs->metadata_csum) {
        uint32_t crc = crc32c(fs->csum_seed, &group, 4);
        crc = crc32c(crc, desc, at);
        crc = crc32c(crc, &zero, 2);
        return (uint16_t)crc32c(crc, desc + at + 2, fs->desc_size - at - 2);
    }
    if (!fs->gdt_csum)
        return 0;
    uint16_t crc = crc16(0xffff, fs->super->uuid, 16);
    crc = crc16(crc, &group, 4);
    crc = crc16(crc, desc, at);
    return fs->desc_size > 32 ? crc16(crc, desc + at + 2, fs->desc_size - at - 2) : crc;
}
