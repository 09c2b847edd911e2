/* Inodes: from their slot in the table to memory and back. */
#include "ext4.h"
#include <weir/random.h>

#define LINK_MAX 65000u

static int slot(struct ext4_fs *fs, uint32_t ino, struct ext4_buffer **out, char **raw)
{
    uint32_t g = (ino - 1) / fs->inodes_per_group, index = (ino - 1) % fs->inodes_per_group;
    int r = ext4_buffer_read(fs, fs->groups[g].inode_table + index / fs->inodes_per_block, PHASE_INODE, out);
    if (!r)
        *raw = (*out)->data + (size_t)(index % fs->inodes_per_block) * fs->inode_size;
    return r;
}
/* Does the inode's extra part reach past the field? */
#define HAS_EXTRA(fs, d, field) \
    ((fs)->inode_size > 128 && 128u + (d)->extra_isize >= offsetof(struct ext4_inode_disk, field) + sizeof((d)->field))

static struct timespec_weir get_time(uint32_t sec, uint32_t extra)
{
    return (struct timespec_weir){ (int64_t)(int32_t)sec + ((int64_t)(extra & 3) << 32), (int64_t)MIN(extra >> 2, 999999999u) };
}
static uint32_t time_extra(const struct timespec_weir *t)
{
    return (uint32_t)(((uint64_t)(t->sec - (int32_t)t->sec) >> 32) & 3) | (uint32_t)t->nsec << 2;
}

static struct ext4_inode *ei_new(struct ext4_fs *fs, uint32_t ino, uint32_t generation)
{
    struct ext4_inode *ei = kzalloc(sizeof *ei);
    if (!ei)
        return NULL;
    ei->fs = fs;
    ei->ino = ino;
    ei->generation = generation;
    ei->seed = ext4_inode_seed(fs, ino, generation);
    rw_mutex_init(&ei->map_lock);
    list_init(&ei->free_link);
    return ei;
}
void ext4_inode_free(struct ext4_inode *ei)
{
    ext4_map_destroy(ei);
    kfree(ei);
}
static void set_operations(struct inode *i)
{
    i->ops = &ext4_inode_ops;
    i->file_ops = S_ISREG(i->mode) ? &ext4_file_ops : S_ISDIR(i->mode) ? &ext4_dir_ops : NULL;
}
static bool is_device(mode_t mode) { return (mode & S_IFMT) == S_IFCHR || (mode & S_IFMT) == S_IFBLK; }
static bool is_fast_symlink(const struct ext4_inode *ei, mode_t mode) { return S_ISLNK(mode) && !(ei->flags & EXT4_EXTENTS_FL); }

static int check_raw(struct ext4_fs *fs, uint32_t ino, const struct ext4_inode_disk *d, uint32_t seed)
{
    uint64_t size = d->size_lo | (uint64_t)d->size_hi << 32;
    const char *what = NULL;
    uint32_t kind = d->mode & S_IFMT;
    if (!ext4_inode_csum_ok(fs, seed, (const void *)d))
        what = "wrong checksum";
    else if (!d->links_count)
        what = "deleted, but it has a name";
    else if (kind != S_IFREG && kind != S_IFDIR && kind != S_IFLNK && kind != S_IFCHR && kind != S_IFBLK && kind != S_IFIFO && kind != S_IFSOCK)
        what = "unknown type";
    else if (size > (uint64_t)INT64_MAX || (kind == S_IFDIR && (!size || size % EXT4_BLOCK_SIZE || size > 1ULL << 32)))
        what = "impossible size";
    else if (kind == S_IFLNK && (!size || size >= EXT4_BLOCK_SIZE || (!(d->flags & EXT4_EXTENTS_FL) && size >= 60)))
        what = "impossible link";
    else if (fs->inode_size > 128 && (d->extra_isize > fs->inode_size - 128u || d->extra_isize % 4))
        what = "bad extra size";
    if (what) {
        log_error("%s: inode %u: %s; run e2fsck", fs->sb->source, ino, what);
        return -EUCLEAN;
    }
    bool empty = true;
    for (unsigned n = 0; n < 15; n++)
        empty = empty && !d->block[n];
    bool wants_map = kind == S_IFREG || kind == S_IFDIR;
    if ((d->flags & EXT4_FL_REFUSED) || (wants_map && !(d->flags & EXT4_EXTENTS_FL) && !empty)) {
        log_error("%s: inode %u uses a feature that is not supported (flags %#x)", fs->sb->source, ino, d->flags);
        return -EOPNOTSUPP;
    }
    return 0;
}
static void decode(struct ext4_fs *fs, const struct ext4_inode_disk *d, struct inode *i, struct ext4_inode *ei)
{
    i->mode = d->mode;
    i->uid = d->uid_lo | (uint32_t)d->uid_hi << 16;
    i->gid = d->gid_lo | (uint32_t)d->gid_hi << 16;
    i->nlink = d->links_count;
    i->size = d->size_lo | (uint64_t)d->size_hi << 32;
    i->atime = get_time(d->atime, HAS_EXTRA(fs, d, atime_extra) ? d->atime_extra : 0);
    i->mtime = get_time(d->mtime, HAS_EXTRA(fs, d, mtime_extra) ? d->mtime_extra : 0);
    i->ctime = get_time(d->ctime, HAS_EXTRA(fs, d, ctime_extra) ? d->ctime_extra : 0);
    ei->flags = d->flags;
    ei->disk_size = i->size;
    ei->blocks = d->blocks_lo | (uint64_t)d->blocks_hi << 32;
    if (!(d->flags & EXT4_HUGE_FILE_FL))
        ei->blocks /= EXT4_BLOCK_SIZE / 512;
    ei->xattr_block = d->file_acl_lo | (uint64_t)d->file_acl_hi << 32;
    memcpy(ei->root, d->block, sizeof ei->root);
    if (is_device(i->mode))
        i->rdev = d->block[0] ? ((uint64_t)(d->block[0] >> 8 & 0xff) << 8 | (d->block[0] & 0xff))
                              : ((uint64_t)(d->block[1] >> 8 & 0xfff) << 8 | (d->block[1] & 0xff));
    if ((S_ISREG(i->mode) || S_ISDIR(i->mode)) && !(ei->flags & EXT4_EXTENTS_FL)) {
        ei->flags |= EXT4_EXTENTS_FL; /* an empty file made without extents */
        ext4_map_init_empty(ei);
    }
    if (!(ei->flags & EXT4_EXTENTS_FL))
        ext4_map_init_empty(ei);
}

int ext4_inode_get(struct ext4_fs *fs, uint32_t ino, struct inode **out)
{
    assert(mutex_is_mine(&fs->lock));
    if (!ino || ino > fs->inodes_count || (ino < fs->first_ino && ino != EXT4_ROOT_INO)) {
        log_error("%s: a name points to inode %u, which cannot be; run e2fsck", fs->sb->source, ino);
        return -EUCLEAN;
    }
    *out = inode_find(fs->sb, ino);
    if (*out)
        return 0;
    struct ext4_buffer *b;
    char *raw;
    int r = slot(fs, ino, &b, &raw);
    if (r)
        return r;
    const struct ext4_inode_disk *d = (void *)raw;
    r = check_raw(fs, ino, d, ext4_inode_seed(fs, ino, d->generation));
    struct ext4_inode *ei = r ? NULL : ei_new(fs, ino, d->generation);
    struct inode *i = ei ? inode_new(fs->sb, ino, S_ISREG(d->mode) ? &ext4_pagecache_ops : NULL) : NULL;
    if (i) {
        decode(fs, d, i, ei);
        i->private = ei;
        ei->vfs = i;
        ei->is_dir = S_ISDIR(i->mode);
        set_operations(i);
        inode_publish(i);
    } else {
        kfree(ei);
        r = r ? r : -ENOMEM;
    }
    ext4_buffer_put(fs, b);
    *out = i;
    return r;
}

int ext4_inode_make(struct inode *dir, mode_t mode, const struct cred *c, struct inode **out)
{
    struct ext4_fs *fs = ext4_fs_of(dir);
    uint32_t ino, generation;
    int r = ext4_ino_alloc(fs, (uint32_t)dir->ino, S_ISDIR(mode), &ino);
    if (r)
        return r;
    random_bytes(&generation, sizeof generation);
    struct ext4_inode *ei = ei_new(fs, ino, generation);
    struct inode *i = ei ? inode_new(fs->sb, ino, S_ISREG(mode) ? &ext4_pagecache_ops : NULL) : NULL;
    if (!i) {
        kfree(ei);
        ext4_ino_free_now(fs, ino, S_ISDIR(mode));
        return -ENOMEM;
    }
    i->private = ei;
    ei->vfs = i;
    ei->is_dir = S_ISDIR(mode);
    ei->fresh = true;
    i->mode = mode;
    i->uid = c->uid;
    i->gid = dir->mode & 02000 ? dir->gid : c->gid;
    if ((dir->mode & 02000) && S_ISDIR(mode))
        i->mode |= 02000;
    i->atime = i->mtime = i->ctime = time_now();
    ei->crtime = (uint32_t)i->ctime.sec;
    ei->crtime_extra = time_extra(&i->ctime);
    if (S_ISREG(mode) || S_ISDIR(mode))
        ei->flags = EXT4_EXTENTS_FL;
    ext4_map_init_empty(ei);
    set_operations(i);
    inode_publish(i);
    *out = i;
    return 0;
}
/* It never had a name: evicted without a trace on the disk, once the next commit is over. */
void ext4_inode_abandon(struct inode *i)
{
    atomic_store_relaxed(&i->nlink, 0);
    ext4_i(i)->unlink_seq = 0;
}

static void encode(const struct ext4_inode *ei, const struct inode *i, uint16_t links, struct ext4_inode_disk *d)
{
    const struct ext4_fs *fs = ei->fs;
    uint64_t blocks = ei->blocks * (EXT4_BLOCK_SIZE / 512), size = S_ISREG(i->mode) ? ei->disk_size : i->size;
    d->mode = (uint16_t)i->mode;
    d->uid_lo = (uint16_t)i->uid;
    d->uid_hi = (uint16_t)(i->uid >> 16);
    d->gid_lo = (uint16_t)i->gid;
    d->gid_hi = (uint16_t)(i->gid >> 16);
    d->links_count = links;
    d->size_lo = (uint32_t)size;
    d->size_hi = (uint32_t)(size >> 32);
    d->atime = (uint32_t)i->atime.sec;
    d->mtime = (uint32_t)i->mtime.sec;
    d->ctime = (uint32_t)i->ctime.sec;
    d->blocks_lo = (uint32_t)blocks;
    d->blocks_hi = (uint16_t)(blocks >> 32);
    d->flags = ei->flags & ~EXT4_HUGE_FILE_FL;
    d->generation = ei->generation;
    d->file_acl_lo = (uint32_t)ei->xattr_block;
    d->file_acl_hi = (uint16_t)(ei->xattr_block >> 32);
    memcpy(d->block, ei->root, sizeof d->block);
    if (is_device(i->mode)) {
        d->block[0] = 0;
        d->block[1] = (uint32_t)((i->rdev >> 8 & 0xfff) << 8 | (i->rdev & 0xff));
    }
    if (HAS_EXTRA(fs, d, ctime_extra))
        d->ctime_extra = time_extra(&i->ctime);
    if (HAS_EXTRA(fs, d, mtime_extra))
        d->mtime_extra = time_extra(&i->mtime);
    if (HAS_EXTRA(fs, d, atime_extra))
        d->atime_extra = time_extra(&i->atime);
}
int ext4_inode_store(struct ext4_inode *ei, uint64_t seq)
{
    struct ext4_fs *fs = ei->fs;
    struct inode *i = ei->vfs;
    struct ext4_buffer *b;
    char *raw;
    int r = 0;
    if (ei->flags & EXT4_EXTENTS_FL) {
        rw_write_lock(&ei->map_lock);
        r = ext4_map_store(ei, ei->root);
        rw_write_unlock(&ei->map_lock);
    }
    if (r)
        return r;
    r = slot(fs, ei->ino, &b, &raw);
    if (r)
        return r;
    struct ext4_inode_disk *d = (void *)raw;
    if (ei->fresh) {
        memset(raw, 0, fs->inode_size);
        if (fs->inode_size > 128) {
            d->extra_isize = (uint16_t)MIN(MAX(fs->super->want_extra_isize, 32u), fs->inode_size - 128u);
            if (HAS_EXTRA(fs, d, crtime_extra)) {
                d->crtime = ei->crtime;
                d->crtime_extra = ei->crtime_extra;
            }
        }
        ei->fresh = false;
    }
    /* Its last name may still be on the disk: it keeps a link until that commit is done. */
    uint32_t links = i->nlink;
    bool name_gone = !links && ei->unlink_seq < seq;
    if (!links && !name_gone) {
        links = S_ISDIR(i->mode) ? 2 : 1;
        ext4_mark_inode(ei, false);
    }
    encode(ei, i, (uint16_t)links, d);
    d->dtime = name_gone ? (uint32_t)time_now().sec : 0;
    ext4_inode_csum_set(fs, ei->seed, raw);
    ext4_buffer_dirty(fs, b);
    ext4_buffer_put(fs, b);
    return 0;
}

static void free_xattr_block(struct ext4_inode *ei)
{
    struct ext4_fs *fs = ei->fs;
    struct ext4_buffer *b;
    if (!ei->xattr_block || !ext4_block_ok(fs, ei->xattr_block, 1) || ext4_buffer_read(fs, ei->xattr_block, PHASE_INODE, &b))
        return;
    uint32_t *h = (void *)b->data; /* magic, reference count, blocks, hash, checksum */
    bool last = h[0] == 0xea020000 && h[1] <= 1;
    if (h[0] == 0xea020000 && h[1] > 1) {
        h[1]--;
        if (fs->metadata_csum) {
            h[4] = 0;
            uint32_t crc = ext4_block_csum(fs->csum_seed, (const char *)&b->block, 8);
            h[4] = ext4_block_csum(crc, b->data, EXT4_BLOCK_SIZE);
        }
        ext4_buffer_dirty(fs, b);
    }
    ext4_buffer_put(fs, b);
    if (last)
        ext4_blocks_free_later(fs, ei->xattr_block, 1);
    ei->xattr_block = 0;
}
int ext4_inode_clear(struct ext4_inode *ei)
{
    struct ext4_fs *fs = ei->fs;
    struct ext4_buffer *b;
    char *raw;
    /* An extent tree that cannot be read: its blocks leak, e2fsck finds them. */
    int r = ei->flags & EXT4_EXTENTS_FL ? ext4_map_load(ei) : 0;
    if (!r)
        ext4_map_free_all(ei);
    free_xattr_block(ei);
    r = slot(fs, ei->ino, &b, &raw);
    if (r)
        return r;
    struct ext4_inode_disk *d = (void *)raw;
    if (ei->fresh) { /* it never reached the table */
        memset(raw, 0, fs->inode_size);
    } else {
        d->links_count = 0;
        d->size_lo = d->size_hi = 0;
        d->blocks_lo = d->blocks_hi = 0;
        d->file_acl_lo = d->file_acl_hi = 0;
        d->dtime = (uint32_t)time_now().sec;
        memset(d->block, 0, sizeof d->block);
        if (ei->flags & EXT4_EXTENTS_FL)
            *(struct ext4_extent_header *)(void *)d->block = (struct ext4_extent_header){ EXT4_EXTENT_MAGIC, 0, EXT4_EXTENTS_INLINE, 0, 0 };
        ext4_inode_csum_set(fs, ei->seed, raw);
    }
    ext4_buffer_dirty(fs, b);
    ext4_buffer_put(fs, b);
    ext4_ino_free_later(fs, ei->ino, ei->is_dir);
    return 0;
}

/* ---- inode operations ---- */
static void ext4_evict(struct inode *i)
{
    struct ext4_inode *ei = ext4_i(i);
    struct ext4_fs *fs = ei->fs;
    i->private = NULL;
    if (i->nlink || atomic_load_relaxed(&fs->sb->read_only)) {
        ext4_inode_free(ei);
        return;
    }
    mutex_lock(&fs->lock);
    ei->vfs = NULL;
    list_add_tail(&fs->to_free, &ei->free_link);
    mutex_unlock(&fs->lock);
    writeback_metadata_dirtied();
}
static int ext4_set_attributes(struct inode *i)
{
    ext4_mark_inode(ext4_i(i), false);
    return 0;
}
static void ext4_touched(struct inode *i, bool size_changed) { ext4_mark_inode(ext4_i(i), false); }
static uint64_t ext4_inode_blocks(struct inode *i) { return ext4_i(i)->blocks * (EXT4_BLOCK_SIZE / 512); }

static int ext4_readlink(struct inode *i, char *buf, size_t size)
{
    struct ext4_inode *ei = ext4_i(i);
    struct ext4_fs *fs = ei->fs;
    size_t n = MIN(size, (size_t)i->size);
    if (is_fast_symlink(ei, i->mode)) {
        memcpy(buf, ei->root, n);
        return (int)n;
    }
    struct ext4_mapping at;
    struct ext4_buffer *b;
    mutex_lock(&fs->lock);
    int r = ext4_map_load(ei);
    if (!r) {
        ext4_map_find(ei, 0, &at);
        r = at.mapped && !at.unwritten ? ext4_buffer_read(fs, at.first, PHASE_EXTENT, &b) : -EUCLEAN;
    }
    if (!r) {
        memcpy(buf, b->data, n);
        ext4_buffer_put(fs, b);
        r = (int)n;
    }
    mutex_unlock(&fs->lock);
    return r;
}

/* ---- names ---- */
static void directory_changed(struct inode *dir)
{
    dir->mtime = dir->ctime = time_now();
    ext4_mark_inode(ext4_i(dir), true);
}
static int ext4_lookup(struct inode *dir, const char *name, size_t len, struct inode **out)
{
    struct ext4_fs *fs = ext4_fs_of(dir);
    struct ext4_place p;
    mutex_lock(&fs->lock);
    int r = ext4_dir_find(ext4_i(dir), name, len, &p);
    if (!r)
        r = ext4_inode_get(fs, p.ino, out);
    mutex_unlock(&fs->lock);
    return r;
}

static int start_change(struct ext4_fs *fs)
{
    /* Much dirty metadata: write it before there is more. */
    if (atomic_load_relaxed(&fs->dirty_count) > fs->buffer_limit / 2) {
        int r = ext4_commit(fs);
        if (r)
            return r;
    }
    return atomic_load_relaxed(&fs->error) ? -EROFS : 0;
}
/* Long targets go into a block of their own. */
static int store_target(struct ext4_inode *ei, const char *target, size_t len)
{
    struct ext4_fs *fs = ei->fs;
    struct ext4_buffer *b;
    uint64_t block;
    uint32_t got;
    if (len < 60) {
        memcpy(ei->root, target, len);
        return 0;
    }
    if (len >= EXT4_BLOCK_SIZE)
        return -ENAMETOOLONG;
    int r = ext4_blocks_alloc(fs, ext4_map_goal(ei, 0), 1, true, &block, &got);
    if (r)
        return r;
    ei->flags |= EXT4_EXTENTS_FL;
    r = ext4_buffer_new(fs, block, PHASE_EXTENT, &b);
    if (!r) {
        memcpy(b->data, target, len);
        ext4_buffer_dirty(fs, b);
        ext4_buffer_put(fs, b);
        rw_write_lock(&ei->map_lock);
        r = ext4_map_set(ei, 0, block, 1, false);
        rw_write_unlock(&ei->map_lock);
    }
    if (r)
        ext4_blocks_free_now(fs, block, 1);
    return r;
}
static int make_node_locked(struct inode *dir, const char *name, size_t len, mode_t mode, const char *target, const struct cred *c,
                            struct inode **out)
{
    uint64_t block;
    if (S_ISDIR(mode) && dir->nlink >= LINK_MAX)
        return -EMLINK;
    int r = ext4_inode_make(dir, mode, c, out);
    if (r)
        return r;
    struct ext4_inode *ei = ext4_i(*out);
    if (S_ISDIR(mode)) {
        r = ext4_dir_init(ei, (uint32_t)dir->ino);
        (*out)->nlink = 2;
    } else if (target) {
        (*out)->size = ei->disk_size = strlen(target);
        r = store_target(ei, target, strlen(target));
    }
    if (!r)
        r = ext4_dir_add(ext4_i(dir), name, len, ei->ino, ext4_dir_type(mode), &block);
    if (r) {
        ext4_inode_abandon(*out);
        return r;
    }
    if (S_ISDIR(mode))
        dir->nlink++;
    ext4_mark_inode(ei, true);
    directory_changed(dir);
    return 0;
}
static int make_node(struct inode *dir, const char *name, size_t len, mode_t mode, const char *target, const struct cred *c,
                     struct inode **out)
{
    struct ext4_fs *fs = ext4_fs_of(dir);
    int r = start_change(fs);
    for (int attempt = 0; !r; attempt++) {
        *out = NULL;
        mutex_lock(&fs->lock);
        r = make_node_locked(dir, name, len, mode, target, c, out);
        mutex_unlock(&fs->lock);
        if (!r)
            return 0;
        if (*out)
            inode_put(*out);
        *out = NULL;
        if (r != -ENOSPC || attempt)
            break;
        r = ext4_release_space(fs);
    }
    return r;
}
static int ext4_create(struct inode *dir, const char *name, size_t len, mode_t mode, const struct cred *c, struct inode **out)
{
    return make_node(dir, name, len, mode, NULL, c, out);
}
static int ext4_symlink(struct inode *dir, const char *name, size_t len, const char *target, const struct cred *c, struct inode **out)
{
    return make_node(dir, name, len, S_IFLNK | 0777, target, c, out);
}
static int ext4_link(struct inode *dir, const char *name, size_t len, struct inode *target)
{
    struct ext4_fs *fs = ext4_fs_of(dir);
    struct ext4_inode *ei = ext4_i(target);
    uint64_t block;
    int r = start_change(fs);
    if (r)
        return r;
    mutex_lock(&fs->lock);
    r = !target->nlink ? -ENOENT : target->nlink >= LINK_MAX ? -EMLINK : 0;
    if (!r)
        r = ext4_dir_add(ext4_i(dir), name, len, ei->ino, ext4_dir_type(target->mode), &block);
    if (!r) {
        target->nlink++;
        target->ctime = time_now();
        ext4_mark_inode(ei, true);
        directory_changed(dir);
    }
    mutex_unlock(&fs->lock);
    return r;
}

/* One name of victim is gone from memory. F held. */
static void lost_name(struct inode *victim)
{
    struct ext4_inode *ei = ext4_i(victim);
    uint32_t left = S_ISDIR(victim->mode) || !victim->nlink ? 0 : victim->nlink - 1;
    ei->unlink_seq = ei->fs->running_seq;
    atomic_store_relaxed(&victim->nlink, left);
    victim->ctime = time_now();
    ext4_mark_inode(ei, true);
}
static int remove_entry(struct inode *dir, const char *name, size_t len, struct inode *victim)
{
    struct ext4_fs *fs = ext4_fs_of(dir);
    struct ext4_place p;
    int r = start_change(fs);
    if (r)
        return r;
    mutex_lock(&fs->lock);
    r = ext4_dir_find(ext4_i(dir), name, len, &p);
    if (!r && p.ino != victim->ino)
        r = -EUCLEAN;
    if (!r && S_ISDIR(victim->mode))
        r = ext4_dir_is_empty(ext4_i(victim));
    if (!r)
        r = ext4_dir_remove(ext4_i(dir), &p);
    if (!r) {
        lost_name(victim);
        if (S_ISDIR(victim->mode) && dir->nlink > 2)
            dir->nlink--;
        directory_changed(dir);
    }
    mutex_unlock(&fs->lock);
    return r;
}

struct rename { struct inode *from_dir, *node, *to_dir, *replaced; const char *from, *to; size_t from_len, to_len; };
/* The new name is there. F held. */
static int rename_linked(struct rename *n)
{
    bool directory = S_ISDIR(n->node->mode);
    if (n->replaced) {
        lost_name(n->replaced);
        if (directory)
            n->to_dir->nlink--;
    }
    if (directory && n->from_dir != n->to_dir) {
        int r = ext4_dir_set_parent(ext4_i(n->node), (uint32_t)n->to_dir->ino);
        if (r)
            return r;
        n->from_dir->nlink--;
        n->to_dir->nlink++;
    }
    n->node->ctime = time_now();
    ext4_mark_inode(ext4_i(n->node), true);
    directory_changed(n->to_dir);
    return 0;
}
/* Old and new name in one directory block: one atomic change. -ENOSPC = it does not fit. F held. */
static int rename_in_block(struct rename *n, const struct ext4_place *from, const struct ext4_place *to, bool exists)
{
    struct ext4_inode *dir = ext4_i(n->from_dir);
    uint8_t type = ext4_dir_type(n->node->mode);
    uint32_t ino = (uint32_t)n->node->ino;
    struct ext4_place p;
    if (exists) {
        int r = ext4_dir_set(dir, to, ino, type);
        if (!r)
            r = ext4_dir_find(dir, n->from, n->from_len, &p);
        return r ? r : ext4_dir_remove(dir, &p);
    }
    /* Out and in again: the freed room may be what the new name needs. */
    int r = ext4_dir_remove(dir, from);
    if (!r)
        r = ext4_dir_add_in(dir, from, n->to, n->to_len, ino, type);
    if (r == -ENOSPC) {
        int back = ext4_dir_add_in(dir, from, n->from, n->from_len, ino, type);
        if (back)
            return back == -ENOSPC ? -EIO : back;
    }
    return r;
}
static int rename_locked(struct rename *n, bool *remove_later)
{
    struct ext4_inode *from_dir = ext4_i(n->from_dir), *to_dir = ext4_i(n->to_dir);
    struct ext4_place from, to = { 0 };
    uint64_t block;
    *remove_later = false;
    int r = ext4_dir_find(from_dir, n->from, n->from_len, &from);
    if (r)
        return r;
    bool exists = n->replaced != NULL;
    if (exists)
        r = ext4_dir_find(to_dir, n->to, n->to_len, &to);
    if (!r && exists && S_ISDIR(n->replaced->mode))
        r = ext4_dir_is_empty(ext4_i(n->replaced));
    if (!r && S_ISDIR(n->node->mode) && n->from_dir != n->to_dir && !exists && n->to_dir->nlink >= LINK_MAX)
        r = -EMLINK;
    if (r)
        return r;
    if (from_dir == to_dir && (!exists || to.block == from.block)) {
        r = rename_in_block(n, &from, &to, exists);
        if (r != -ENOSPC || exists)
            return r ? r : rename_linked(n);
    }
    uint8_t type = ext4_dir_type(n->node->mode);
    r = exists ? ext4_dir_set(to_dir, &to, (uint32_t)n->node->ino, type)
               : ext4_dir_add(to_dir, n->to, n->to_len, (uint32_t)n->node->ino, type, &block);
    if (!r)
        r = rename_linked(n);
    *remove_later = !r;
    return r;
}
/*
 * Never without a name on disk: where the two names are in different blocks, the new one is committed before the old
 * one goes. Both directories are locked by the VFS, so nobody sees both.
 */
static int ext4_rename(struct inode *from_dir, const char *from, size_t from_len, struct inode *node, struct inode *to_dir,
                       const char *to, size_t to_len, struct inode *replaced)
{
    struct ext4_fs *fs = ext4_fs_of(from_dir);
    struct rename n = { from_dir, node, to_dir, replaced, from, to, from_len, to_len };
    bool remove_later;
    int r = start_change(fs);
    if (r)
        return r;
    mutex_lock(&fs->lock);
    r = rename_locked(&n, &remove_later);
    mutex_unlock(&fs->lock);
    if (!r && remove_later)
        r = ext4_commit(fs);
    mutex_lock(&fs->lock);
    struct ext4_place p;
    if (!r && remove_later)
        r = ext4_dir_find(ext4_i(from_dir), from, from_len, &p);
    if (!r && remove_later)
        r = ext4_dir_remove(ext4_i(from_dir), &p);
    if (!r)
        directory_changed(from_dir);
    mutex_unlock(&fs->lock);
    return r;
}

const struct inode_ops ext4_inode_ops = {
    .lookup = ext4_lookup, .create = ext4_create, .mkdir = ext4_create, .symlink = ext4_symlink, .link = ext4_link,
    .unlink = remove_entry, .rmdir = remove_entry, .rename = ext4_rename, .readlink = ext4_readlink,
    .reserve = ext4_reserve_page, .touched = ext4_touched, .truncate = ext4_truncate, .blocks = ext4_inode_blocks,
    .fallocate = ext4_fallocate, .sync = ext4_sync_inode, .set_attributes = ext4_set_attributes, .evict = ext4_evict,
};
