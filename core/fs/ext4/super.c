/* Mounting and unmounting. */
#include "ext4.h"
#include <weir/crc32c.h>

static int read_super(struct block_device *device, struct ext4_super_disk **out)
{
    struct ext4_super_disk *s = kmalloc(sizeof *s);
    if (!s)
        return -ENOMEM;
    int r = device->capacity_sectors < 8 ? -EINVAL : block_read(device, EXT4_SUPER_OFFSET, s, sizeof *s);
    if (r) {
        kfree(s);
        return r;
    }
    *out = s;
    return 0;
}
static uint64_t wide(uint32_t lo, uint32_t hi, const struct ext4_super_disk *s)
{
    return lo | (s->feature_incompat & EXT4_INCOMPAT_64BIT ? (uint64_t)hi << 32 : 0);
}

/* NULL, or why it cannot be mounted. */
static const char *check_super(const struct ext4_super_disk *s, const struct block_device *device)
{
    if (s->magic != EXT4_MAGIC)
        return "not an ext4 file system";
    if ((s->feature_ro_compat & EXT4_RO_METADATA_CSUM) && (s->checksum_type != 1 || s->checksum != ext4_super_csum(s)))
        return "super block with a wrong checksum";
    if (s->log_block_size != 2)
        return "block size is not 4096 (make it with mke2fs -b 4096)";
    if (s->rev_level < 1)
        return "revision 0";
    uint32_t unknown = s->feature_incompat & ~EXT4_INCOMPAT_KNOWN;
    if (unknown || !(s->feature_incompat & EXT4_INCOMPAT_EXTENTS) || !(s->feature_incompat & EXT4_INCOMPAT_FILETYPE))
        return "features that are not supported, or no extents (make it with mke2fs -t ext4)";
    if (s->feature_ro_compat & EXT4_RO_BIGALLOC)
        return "bigalloc is not supported";
    uint64_t blocks = wide(s->blocks_count_lo, s->blocks_count_hi, s);
    uint32_t desc_size = s->feature_incompat & EXT4_INCOMPAT_64BIT ? s->desc_size : 32;
    if (s->inode_size < 128 || s->inode_size > EXT4_BLOCK_SIZE || (s->inode_size & (s->inode_size - 1)) || desc_size < 32 ||
        desc_size > 1024 || (desc_size & (desc_size - 1)) || (desc_size > 32 && desc_size < 64))
        return "impossible inode or descriptor size";
    if (s->first_data_block || !s->blocks_per_group || s->blocks_per_group > EXT4_BLOCK_BITS || s->blocks_per_group % 8 ||
        !s->inodes_per_group || s->inodes_per_group > EXT4_BLOCK_BITS || s->inodes_per_group % 8 || blocks < 8 || blocks >> 48)
        return "impossible geometry";
    uint64_t groups = DIV_ROUND_UP(blocks, s->blocks_per_group);
    if (groups > UINT32_MAX / EXT4_BLOCK_BITS || groups * s->inodes_per_group != s->inodes_count || s->first_ino < 11 ||
        s->first_ino > s->inodes_per_group || 1 + DIV_ROUND_UP(groups * desc_size, EXT4_BLOCK_SIZE) >= blocks)
        return "impossible number of groups or inodes";
    if (blocks > device->capacity_sectors / 8)
        return "larger than its disk";
    return NULL;
}

static int write_super(struct ext4_fs *fs)
{
    struct ext4_super_disk *s = fs->super;
    uint64_t unused = atomic_load_relaxed(&fs->free_blocks);
    s->free_blocks_lo = (uint32_t)unused;
    if (s->feature_incompat & EXT4_INCOMPAT_64BIT)
        s->free_blocks_hi = (uint32_t)(unused >> 32);
    s->free_inodes = (uint32_t)atomic_load_relaxed(&fs->free_inodes);
    s->wtime = (uint32_t)(clock_realtime_ns() / NSEC_PER_SEC);
    if (fs->metadata_csum)
        s->checksum = ext4_super_csum(s);
    int r = block_write(fs->device, EXT4_SUPER_OFFSET, s, sizeof *s);
    return r ? r : block_flush(fs->device);
}

static int super_commit(struct super_block *sb)
{
    struct ext4_fs *fs = sb->private;
    return atomic_load_relaxed(&sb->read_only) ? 0 : ext4_commit(fs);
}
static int super_sync(struct super_block *sb)
{
    struct ext4_fs *fs = sb->private;
    int r = super_commit(sb);
    int flushed = atomic_load_relaxed(&sb->read_only) ? atomic_load_relaxed(&fs->error) : ext4_flush(fs);
    return r ? r : flushed;
}
/* Open files may still be there (the machine is going down): they lose nothing, everything has been synced. */
static int super_unmount(struct super_block *sb)
{
    struct ext4_fs *fs = sb->private;
    if (atomic_load_relaxed(&sb->read_only))
        return atomic_load_relaxed(&fs->error);
    int r = ext4_release_space(fs);
    if (!r)
        r = ext4_commit(fs);
    if (!r)
        r = ext4_flush(fs);
    if (r)
        return r;
    /* A file system that was found dirty stays so until e2fsck has seen it. Bitmaps that did not fit, too. */
    bool bad = false;
    for (uint32_t n = 0; n < fs->group_count; n++)
        bad = bad || fs->groups[n].bad;
    fs->super->state = fs->mount_state | (bad ? EXT4_STATE_ERROR : 0);
    r = write_super(fs);
    atomic_store_relaxed(&sb->read_only, true);
    return r;
}
static void super_statfs(struct super_block *sb, struct statfs_weir *out)
{
    struct ext4_fs *fs = sb->private;
    const struct ext4_super_disk *s = fs->super;
    uint64_t unused = atomic_load_relaxed(&fs->free_blocks), promised = atomic_load_relaxed(&fs->reserved);
    uint64_t root_only = wide(s->r_blocks_count_lo, s->r_blocks_count_hi, s);
    out->f_type = 0xef53;
    out->f_blocks = fs->block_count;
    out->f_bfree = unused - MIN(unused, promised);
    out->f_bavail = out->f_bfree - MIN(out->f_bfree, root_only);
    out->f_files = fs->inodes_count;
    out->f_ffree = atomic_load_relaxed(&fs->free_inodes);
}
static const struct super_ops ext4_super_ops = {
    .commit = super_commit, .sync = super_sync, .unmount = super_unmount, .statfs = super_statfs,
};

static struct ext4_fs *fs_new(struct block_device *device, struct ext4_super_disk *s, struct super_block *sb)
{
    struct ext4_fs *fs = kzalloc(sizeof *fs);
    if (!fs)
        return NULL;
    fs->sb = sb;
    fs->device = device;
    fs->super = s;
    fs->inodes_count = s->inodes_count;
    fs->blocks_per_group = s->blocks_per_group;
    fs->inodes_per_group = s->inodes_per_group;
    fs->block_count = wide(s->blocks_count_lo, s->blocks_count_hi, s);
    fs->group_count = (uint32_t)DIV_ROUND_UP(fs->block_count, fs->blocks_per_group);
    fs->inode_size = s->inode_size;
    fs->inodes_per_block = EXT4_BLOCK_SIZE / s->inode_size;
    fs->desc_size = s->feature_incompat & EXT4_INCOMPAT_64BIT ? s->desc_size : 32;
    fs->gdt_blocks = (uint32_t)DIV_ROUND_UP((uint64_t)fs->group_count * fs->desc_size, EXT4_BLOCK_SIZE);
    fs->first_ino = s->first_ino;
    fs->metadata_csum = s->feature_ro_compat & EXT4_RO_METADATA_CSUM;
    fs->gdt_csum = s->feature_ro_compat & EXT4_RO_GDT_CSUM;
    fs->csum_seed = s->feature_incompat & EXT4_INCOMPAT_CSUM_SEED ? s->checksum_seed : crc32c(~0u, s->uuid, 16);
    fs->mount_state = s->state;
    fs->running_seq = 1;
    mutex_init(&fs->lock);
    mutex_init(&fs->commit_lock);
    mutex_init(&fs->flush_lock);
    wait_queue_init(&fs->flush_wait);
    list_init(&fs->lru);
    list_init(&fs->dirty);
    list_init(&fs->dirty_inodes);
    list_init(&fs->pending);
    list_init(&fs->to_free);
    sb->private = fs;
    return fs;
}
static void fs_free(struct ext4_fs *fs)
{
    if (fs->buckets)
        ext4_buffers_destroy(fs);
    kfree(fs->groups);
    kfree(fs);
}

/* Read-only, whatever was asked for, when writing could do harm. */
static bool must_stay_read_only(const struct ext4_super_disk *s, const char *name)
{
    if (s->feature_incompat & EXT4_INCOMPAT_RECOVER) {
        log_warn("%s: its journal must be replayed first (run e2fsck): mounted read-only", name);
        return true;
    }
    if (s->feature_ro_compat & ~EXT4_RO_KNOWN) {
        log_warn("%s: features %#x are not supported for writing: mounted read-only", name, s->feature_ro_compat & ~EXT4_RO_KNOWN);
        return true;
    }
    if (!(s->state & EXT4_STATE_VALID) || (s->state & EXT4_STATE_ERROR))
        log_warn("%s: was not unmounted cleanly; e2fsck would find leaked blocks", name);
    if (s->last_orphan)
        log_warn("%s: has an orphan list, which only e2fsck clears", name);
    if (s->feature_compat & EXT4_COMPAT_HAS_JOURNAL)
        log_info("%s: the journal is clean and is not used", name);
    return false;
}

static int mount_root(struct ext4_fs *fs)
{
    struct inode *i = NULL;
    mutex_lock(&fs->lock);
    int r = ext4_buffers_init(fs);
    if (!r)
        r = ext4_groups_load(fs);
    if (!r)
        r = ext4_inode_get(fs, EXT4_ROOT_INO, &i);
    mutex_unlock(&fs->lock);
    if (!r && !S_ISDIR(i->mode)) {
        log_error("%s: the root is not a directory", fs->sb->source);
        r = -EUCLEAN;
    }
    if (!r) {
        fs->sb->root = dentry_new_root(fs->sb, i);
        return fs->sb->root ? 0 : -ENOMEM;
    }
    if (i)
        inode_put(i);
    return r;
}

int ext4_mount(struct block_device *device, bool read_only, struct super_block **out)
{
    struct ext4_super_disk *s;
    int r = read_super(device, &s);
    if (r)
        return r;
    const char *why = check_super(s, device);
    if (why) {
        log_error("%s: %s", device->name, why);
        r = s->magic == EXT4_MAGIC ? -EUCLEAN : -EINVAL;
        kfree(s);
        return r;
    }
    struct super_block *sb = kzalloc(sizeof *sb);
    struct ext4_fs *fs = sb ? fs_new(device, s, sb) : NULL;
    if (!fs) {
        kfree(sb);
        kfree(s);
        return -ENOMEM;
    }
    sb->ops = &ext4_super_ops;
    sb->type = "ext4";
    str_copy(sb->source, device->name, sizeof sb->source);
    sb->dev = super_new_dev();
    sb->read_only = read_only;
    if (!read_only)
        sb->read_only = must_stay_read_only(s, device->name);
    r = mount_root(fs);
    if (!r && !sb->read_only) {
        s->state = fs->mount_state & (uint16_t)~EXT4_STATE_VALID;
        s->mnt_count++;
        s->mtime = (uint32_t)(clock_realtime_ns() / NSEC_PER_SEC);
        r = write_super(fs);
        if (r)
            dentry_put(sb->root);
    }
    if (r) {
        fs_free(fs);
        kfree(sb);
        kfree(s);
        return r;
    }
    log_info("%s: ext4, %lu MiB, %lu MiB free%s", device->name, (unsigned long)(fs->block_count >> 8),
             (unsigned long)(fs->free_blocks >> 8), sb->read_only ? ", read-only" : "");
    *out = sb;
    return 0;
}
/* For tests: everything that the mount holds. Nothing may be open. */
void ext4_destroy(struct super_block *sb)
{
    struct ext4_fs *fs = sb->private;
    struct ext4_super_disk *s = fs->super;
    while (!list_empty(&fs->to_free)) {
        struct ext4_inode *ei = list_first(&fs->to_free, struct ext4_inode, free_link);
        list_del(&ei->free_link);
        ext4_inode_free(ei);
    }
    while (!list_empty(&fs->pending)) {
        struct ext4_pending *p = list_first(&fs->pending, struct ext4_pending, link);
        list_del(&p->link);
        kfree(p);
    }
    fs_free(fs);
    kfree(s);
    kfree(sb);
}
