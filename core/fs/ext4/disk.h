/* ext4 on disk, little endian, 4 KiB blocks. Offsets as in the kernel documentation "ext4 Data Structures". */
#ifndef EXT4_DISK_H
#define EXT4_DISK_H
#include <weir/compiler.h>

#define EXT4_BLOCK_SIZE 4096u
#define EXT4_SUPER_OFFSET 1024u
#define EXT4_MAGIC 0xef53
#define EXT4_ROOT_INO 2u
#define EXT4_BLOCK_BITS (EXT4_BLOCK_SIZE * 8)

#define EXT4_COMPAT_HAS_JOURNAL 0x4u
#define EXT4_INCOMPAT_FILETYPE 0x2u
#define EXT4_INCOMPAT_RECOVER 0x4u
#define EXT4_INCOMPAT_EXTENTS 0x40u
#define EXT4_INCOMPAT_64BIT 0x80u
#define EXT4_INCOMPAT_FLEX_BG 0x200u
#define EXT4_INCOMPAT_CSUM_SEED 0x2000u
#define EXT4_INCOMPAT_KNOWN (EXT4_INCOMPAT_FILETYPE | EXT4_INCOMPAT_RECOVER | EXT4_INCOMPAT_EXTENTS | EXT4_INCOMPAT_64BIT | \
                             EXT4_INCOMPAT_FLEX_BG | EXT4_INCOMPAT_CSUM_SEED)
#define EXT4_RO_SPARSE_SUPER 0x1u
#define EXT4_RO_LARGE_FILE 0x2u
#define EXT4_RO_HUGE_FILE 0x8u
#define EXT4_RO_GDT_CSUM 0x10u
#define EXT4_RO_DIR_NLINK 0x20u
#define EXT4_RO_EXTRA_ISIZE 0x40u
#define EXT4_RO_METADATA_CSUM 0x400u
#define EXT4_RO_KNOWN (EXT4_RO_SPARSE_SUPER | EXT4_RO_LARGE_FILE | EXT4_RO_HUGE_FILE | EXT4_RO_GDT_CSUM | EXT4_RO_DIR_NLINK | \
                       EXT4_RO_EXTRA_ISIZE | EXT4_RO_METADATA_CSUM)
#define EXT4_RO_BIGALLOC 0x200u
#define EXT4_COMPAT_SPARSE_SUPER2 0x200u
#define EXT4_STATE_VALID 1u
#define EXT4_STATE_ERROR 2u

struct ext4_super_disk {
    uint32_t inodes_count, blocks_count_lo, r_blocks_count_lo, free_blocks_lo, free_inodes, first_data_block, log_block_size,
             log_cluster_size, blocks_per_group, clusters_per_group, inodes_per_group, mtime, wtime;
    uint16_t mnt_count, max_mnt_count, magic, state, errors, minor_rev;
    uint32_t lastcheck, checkinterval, creator_os, rev_level;
    uint16_t def_resuid, def_resgid;
    uint32_t first_ino;
    uint16_t inode_size, block_group_nr;
    uint32_t feature_compat, feature_incompat, feature_ro_compat;
    uint8_t uuid[16];
    char volume_name[16], last_mounted[64];
    uint32_t algorithm_usage;
    uint8_t prealloc_blocks, prealloc_dir_blocks;
    uint16_t reserved_gdt_blocks;
    uint8_t journal_uuid[16];
    uint32_t journal_inum, journal_dev, last_orphan, hash_seed[4];
    uint8_t def_hash_version, jnl_backup_type;
    uint16_t desc_size;
    uint32_t default_mount_opts, first_meta_bg, mkfs_time, jnl_blocks[17], blocks_count_hi, r_blocks_count_hi, free_blocks_hi;
    uint16_t min_extra_isize, want_extra_isize;
    uint32_t flags;
    uint16_t raid_stride, mmp_interval;
    uint64_t mmp_block;
    uint32_t raid_stripe_width;
    uint8_t log_groups_per_flex, checksum_type;
    uint16_t reserved_pad;
    uint64_t kbytes_written;
    uint32_t snapshot[5], error_count, first_error[13], last_error[13];
    char mount_opts[64];
    uint32_t usr_quota_inum, grp_quota_inum, overhead_blocks, backup_bgs[2];
    uint8_t encrypt_algos[4], encrypt_pw_salt[16];
    uint32_t lpf_ino, prj_quota_inum, checksum_seed, reserved[98], checksum;
} __packed;
_Static_assert(sizeof(struct ext4_super_disk) == 1024, "super block");
_Static_assert(offsetof(struct ext4_super_disk, desc_size) == 0xfe, "super block");
_Static_assert(offsetof(struct ext4_super_disk, checksum_seed) == 0x270, "super block");

#define EXT4_BG_INODE_UNINIT 1u
#define EXT4_BG_BLOCK_UNINIT 2u
struct ext4_group_disk {
    uint32_t block_bitmap_lo, inode_bitmap_lo, inode_table_lo;
    uint16_t free_blocks_lo, free_inodes_lo, used_dirs_lo, flags;
    uint32_t exclude_lo;
    uint16_t block_csum_lo, inode_csum_lo, itable_unused_lo, checksum;
    /* with 64bit */
    uint32_t block_bitmap_hi, inode_bitmap_hi, inode_table_hi;
    uint16_t free_blocks_hi, free_inodes_hi, used_dirs_hi, itable_unused_hi;
    uint32_t exclude_hi;
    uint16_t block_csum_hi, inode_csum_hi;
    uint32_t reserved;
} __packed;
_Static_assert(sizeof(struct ext4_group_disk) == 64, "group descriptor");

#define EXT4_INDEX_FL 0x1000u
#define EXT4_HUGE_FILE_FL 0x40000u
#define EXT4_EXTENTS_FL 0x80000u
#define EXT4_IMMUTABLE_FL 0x10u
#define EXT4_APPEND_FL 0x20u
/* No inline data, encryption, verity, casefold. */
#define EXT4_FL_REFUSED (0x10000000u | 0x800u | 0x100000u | 0x40000000u | 0x200000u)
struct ext4_inode_disk {
    uint16_t mode, uid_lo;
    uint32_t size_lo, atime, ctime, mtime, dtime;
    uint16_t gid_lo, links_count;
    uint32_t blocks_lo, flags, version_lo;
    uint32_t block[15];
    uint32_t generation, file_acl_lo, size_hi, obso_faddr;
    uint16_t blocks_hi, file_acl_hi, uid_hi, gid_hi, checksum_lo, reserved;
    /* from byte 128 */
    uint16_t extra_isize, checksum_hi;
    uint32_t ctime_extra, mtime_extra, atime_extra, crtime, crtime_extra, version_hi, projid;
} __packed;
_Static_assert(offsetof(struct ext4_inode_disk, extra_isize) == 128, "inode");

#define EXT4_EXTENT_MAGIC 0xf30a
#define EXT4_EXTENT_MAX_LEN 32768u
#define EXT4_EXTENTS_INLINE 4u
#define EXT4_EXTENTS_BLOCK 340u
struct ext4_extent_header { uint16_t magic, entries, max, depth; uint32_t generation; } __packed;
struct ext4_extent { uint32_t block; uint16_t len, start_hi; uint32_t start_lo; } __packed;
struct ext4_extent_index { uint32_t block, leaf_lo; uint16_t leaf_hi, unused; } __packed;

struct ext4_dirent { uint32_t inode; uint16_t rec_len; uint8_t name_len, file_type; char name[]; } __packed;
struct ext4_dirent_tail { uint32_t inode; uint16_t rec_len; uint8_t name_len, file_type; uint32_t checksum; } __packed;
#define EXT4_DIRENT_TAIL_TYPE 0xde
#endif
