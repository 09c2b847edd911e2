/*
 * Directories: linear blocks of entries. A hashed directory (dx tree) can be read as a linear one, since its index blocks
 * look like empty entries; before the first change it is turned into a linear one: index blocks become empty leaves.
 */
#include "ext4.h"

#define TAIL_SIZE 12u

uint8_t ext4_dir_type(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return 1;
    case S_IFDIR: return 2;
    case S_IFCHR: return 3;
    case S_IFBLK: return 4;
    case S_IFIFO: return 5;
    case S_IFSOCK: return 6;
    case S_IFLNK: return 7;
    default: return 0;
    }
}
static uint32_t entry_size(size_t name_len) { return ALIGN_UP((uint32_t)(8 + name_len), 4u); }
/* Where entries end: a checksum sits behind them. */
static uint32_t room(const struct ext4_fs *fs) { return EXT4_BLOCK_SIZE - (fs->metadata_csum ? TAIL_SIZE : 0); }
static uint32_t block_count(const struct ext4_inode *dir) { return (uint32_t)(dir->vfs->size / EXT4_BLOCK_SIZE); }

static int damaged(const struct ext4_inode *dir, uint32_t index, const char *what)
{
    log_error("%s: directory %u, block %u: %s; run e2fsck", dir->fs->sb->source, dir->ino, index, what);
    return -EUCLEAN;
}

static bool has_tail(const char *data)
{
    const struct ext4_dirent_tail *t = (const void *)(data + EXT4_BLOCK_SIZE - TAIL_SIZE);
    return !t->inode && t->rec_len == TAIL_SIZE && !t->name_len && t->file_type == EXT4_DIRENT_TAIL_TYPE;
}
static void seal(const struct ext4_fs *fs, uint32_t seed, char *data)
{
    if (!fs->metadata_csum)
        return;
    struct ext4_dirent_tail *t = (void *)(data + EXT4_BLOCK_SIZE - TAIL_SIZE);
    *t = (struct ext4_dirent_tail){ 0, TAIL_SIZE, 0, EXT4_DIRENT_TAIL_TYPE, 0 };
    t->checksum = ext4_block_csum(seed, data, EXT4_BLOCK_SIZE - TAIL_SIZE);
}
/* Every entry lies in the block, so that nobody else needs to check. An index block of a hashed directory has no tail, and
 * its only entries are one that covers it all, or "." and "..". */
static int check_block(const struct ext4_inode *dir, uint32_t index, const char *data)
{
    const struct ext4_fs *fs = dir->fs;
    bool hashed = dir->flags & EXT4_INDEX_FL, tail = fs->metadata_csum && has_tail(data);
    if (fs->metadata_csum && !tail && !hashed)
        return damaged(dir, index, "no checksum");
    if (tail && ((const struct ext4_dirent_tail *)(const void *)(data + EXT4_BLOCK_SIZE - TAIL_SIZE))->checksum !=
                    ext4_block_csum(dir->seed, data, EXT4_BLOCK_SIZE - TAIL_SIZE))
        return damaged(dir, index, "wrong checksum");
    for (uint32_t at = 0; at < EXT4_BLOCK_SIZE;) {
        const struct ext4_dirent *e = (const void *)(data + at);
        if (at + 8 > EXT4_BLOCK_SIZE || e->rec_len < 8 || e->rec_len % 4 || at + e->rec_len > EXT4_BLOCK_SIZE ||
            (e->inode && (entry_size(e->name_len) > e->rec_len || !e->name_len)) || e->inode > fs->inodes_count)
            return damaged(dir, index, "bad entry");
        at += e->rec_len;
    }
    return 0;
}
static int dir_block(struct ext4_inode *dir, uint32_t index, struct ext4_buffer **out)
{
    struct ext4_mapping at;
    int r = ext4_map_load(dir);
    if (r)
        return r;
    ext4_map_find(dir, index, &at);
    if (!at.mapped || at.unwritten)
        return damaged(dir, index, "hole");
    r = ext4_buffer_read(dir->fs, at.first, PHASE_DIRECTORY, out);
    if (r || (*out)->checked)
        return r;
    r = check_block(dir, index, (*out)->data);
    if (r)
        ext4_buffer_put(dir->fs, *out);
    else
        (*out)->checked = true;
    return r;
}
static void changed(struct ext4_inode *dir, struct ext4_buffer *b)
{
    seal(dir->fs, dir->seed, b->data);
    b->owner_seed = dir->seed;
    ext4_buffer_dirty(dir->fs, b);
}
static bool is_tail(const struct ext4_dirent *e) { return !e->inode && !e->name_len && e->file_type == EXT4_DIRENT_TAIL_TYPE && e->rec_len == TAIL_SIZE; }

int ext4_dir_find(struct ext4_inode *dir, const char *name, size_t len, struct ext4_place *out)
{
    for (uint32_t index = 0; index < block_count(dir); index++) {
        struct ext4_buffer *b;
        int r = dir_block(dir, index, &b);
        if (r)
            return r;
        for (uint32_t at = 0, before = 0; at < EXT4_BLOCK_SIZE;) {
            const struct ext4_dirent *e = (const void *)(b->data + at);
            if (e->inode && e->name_len == len && !memcmp(e->name, name, len)) {
                *out = (struct ext4_place){ index, at, before, b->block, e->inode, e->file_type };
                ext4_buffer_put(dir->fs, b);
                return 0;
            }
            before = at;
            at += e->rec_len;
        }
        ext4_buffer_put(dir->fs, b);
    }
    return -ENOENT;
}

/* ---- changes ---- */
/* Index blocks of a hashed directory become ordinary ones. */
static int make_linear(struct ext4_inode *dir)
{
    if (!(dir->flags & EXT4_INDEX_FL))
        return 0;
    for (uint32_t index = 0; index < block_count(dir); index++) {
        struct ext4_buffer *b;
        int r = dir_block(dir, index, &b);
        if (r)
            return r;
        struct ext4_dirent *e = (void *)b->data;
        struct ext4_dirent *second = (void *)(b->data + e->rec_len);
        bool root = index == 0 && e->rec_len == 12 && second->rec_len == EXT4_BLOCK_SIZE - 12;
        bool inner = !e->inode && e->rec_len == EXT4_BLOCK_SIZE;
        if (root)
            second->rec_len = (uint16_t)(room(dir->fs) - 12);
        else if (inner)
            e->rec_len = (uint16_t)room(dir->fs);
        if (root || inner) {
            char *rest = b->data + (root ? 24 : 8);
            memset(rest, 0, (size_t)(b->data + EXT4_BLOCK_SIZE - rest));
            changed(dir, b);
        }
        ext4_buffer_put(dir->fs, b);
    }
    dir->flags &= ~EXT4_INDEX_FL;
    ext4_mark_inode(dir, true);
    return 0;
}

static void fill(struct ext4_dirent *e, const char *name, size_t len, uint32_t ino, uint8_t type)
{
    e->inode = ino;
    e->name_len = (uint8_t)len;
    e->file_type = type;
    memcpy(e->name, name, len);
}
static bool add_in(struct ext4_inode *dir, struct ext4_buffer *b, const char *name, size_t len, uint32_t ino, uint8_t type)
{
    uint32_t need = entry_size(len);
    for (uint32_t at = 0; at < EXT4_BLOCK_SIZE;) {
        struct ext4_dirent *e = (void *)(b->data + at);
        uint32_t used = e->inode ? entry_size(e->name_len) : 0;
        if (!is_tail(e) && e->rec_len >= used + need) {
            uint16_t whole = e->rec_len;
            if (used) {
                e->rec_len = (uint16_t)used;
                e = (void *)(b->data + at + used);
            }
            e->rec_len = (uint16_t)(whole - used);
            fill(e, name, len, ino, type);
            changed(dir, b);
            return true;
        }
        at += e->rec_len;
    }
    return false;
}
/* A new, empty block at the end. */
static int grow(struct ext4_inode *dir, struct ext4_buffer **out)
{
    struct ext4_fs *fs = dir->fs;
    uint32_t index = block_count(dir), got;
    uint64_t block;
    if (index >= 1u << 20)
        return -ENOSPC;
    int r = ext4_map_load(dir);
    if (!r)
        r = ext4_blocks_alloc(fs, ext4_map_goal(dir, index), 1, true, &block, &got);
    if (r)
        return r;
    r = ext4_buffer_new(fs, block, PHASE_DIRECTORY, out);
    if (!r) {
        rw_write_lock(&dir->map_lock);
        r = ext4_map_set(dir, index, block, 1, false);
        rw_write_unlock(&dir->map_lock);
        if (r)
            ext4_buffer_put(fs, *out);
    }
    if (r) {
        ext4_blocks_free_now(fs, block, 1);
        return r;
    }
    (*out)->fresh = true;
    ((struct ext4_dirent *)(void *)(*out)->data)->rec_len = (uint16_t)room(fs);
    changed(dir, *out);
    dir->vfs->size += EXT4_BLOCK_SIZE;
    dir->disk_size = dir->vfs->size;
    ext4_mark_inode(dir, true);
    return 0;
}
int ext4_dir_add(struct ext4_inode *dir, const char *name, size_t len, uint32_t ino, uint8_t type, uint64_t *block)
{
    struct ext4_buffer *b;
    int r = make_linear(dir);
    if (r)
        return r;
    /* Blocks before the hint were full; removals move it back. */
    for (uint32_t index = dir->free_hint; index < block_count(dir); index++) {
        r = dir_block(dir, index, &b);
        if (r)
            return r;
        bool done = add_in(dir, b, name, len, ino, type);
        *block = b->block;
        ext4_buffer_put(dir->fs, b);
        if (done)
            return 0;
        /* A short name may still fit where a long one did not: only full blocks are skipped for good. */
        if (index == dir->free_hint && len <= 16)
            dir->free_hint++;
    }
    r = grow(dir, &b);
    if (r)
        return r;
    bool done = add_in(dir, b, name, len, ino, type);
    *block = b->block;
    ext4_buffer_put(dir->fs, b);
    return done ? 0 : -EIO;
}
int ext4_dir_add_in(struct ext4_inode *dir, const struct ext4_place *in, const char *name, size_t len, uint32_t ino, uint8_t type)
{
    struct ext4_buffer *b;
    int r = make_linear(dir);
    if (!r)
        r = dir_block(dir, in->index, &b);
    if (r)
        return r;
    bool done = add_in(dir, b, name, len, ino, type);
    ext4_buffer_put(dir->fs, b);
    return done ? 0 : -ENOSPC;
}
int ext4_dir_remove(struct ext4_inode *dir, const struct ext4_place *p)
{
    struct ext4_buffer *b;
    int r = make_linear(dir);
    if (!r)
        r = dir_block(dir, p->index, &b);
    if (r)
        return r;
    struct ext4_dirent *e = (void *)(b->data + p->offset);
    if (p->offset != p->previous) { /* the entry before takes the room */
        struct ext4_dirent *before = (void *)(b->data + p->previous);
        before->rec_len = (uint16_t)(before->rec_len + e->rec_len);
    }
    e->inode = 0;
    changed(dir, b);
    ext4_buffer_put(dir->fs, b);
    dir->free_hint = MIN(dir->free_hint, p->index);
    return 0;
}
int ext4_dir_set(struct ext4_inode *dir, const struct ext4_place *p, uint32_t ino, uint8_t type)
{
    struct ext4_buffer *b;
    int r = make_linear(dir);
    if (!r)
        r = dir_block(dir, p->index, &b);
    if (r)
        return r;
    struct ext4_dirent *e = (void *)(b->data + p->offset);
    e->inode = ino;
    e->file_type = type;
    changed(dir, b);
    ext4_buffer_put(dir->fs, b);
    return 0;
}
static bool is_dots(const struct ext4_dirent *e)
{
    return e->name[0] == '.' && (e->name_len == 1 || (e->name_len == 2 && e->name[1] == '.'));
}
int ext4_dir_is_empty(struct ext4_inode *dir)
{
    for (uint32_t index = 0; index < block_count(dir); index++) {
        struct ext4_buffer *b;
        int r = dir_block(dir, index, &b);
        if (r)
            return r;
        for (uint32_t at = 0; at < EXT4_BLOCK_SIZE && !r;) {
            const struct ext4_dirent *e = (const void *)(b->data + at);
            if (e->inode && !is_dots(e))
                r = -ENOTEMPTY;
            at += e->rec_len;
        }
        ext4_buffer_put(dir->fs, b);
        if (r)
            return r;
    }
    return 0;
}
int ext4_dir_init(struct ext4_inode *dir, uint32_t parent)
{
    struct ext4_buffer *b;
    int r = grow(dir, &b);
    if (r)
        return r;
    struct ext4_dirent *e = (void *)b->data;
    fill(e, ".", 1, dir->ino, 2);
    e->rec_len = 12;
    e = (void *)(b->data + 12);
    fill(e, "..", 2, parent, 2);
    e->rec_len = (uint16_t)(room(dir->fs) - 12);
    changed(dir, b);
    ext4_buffer_put(dir->fs, b);
    return 0;
}
int ext4_dir_set_parent(struct ext4_inode *dir, uint32_t parent)
{
    struct ext4_place p;
    int r = ext4_dir_find(dir, "..", 2, &p);
    if (!r)
        r = ext4_dir_set(dir, &p, parent, 2);
    if (!r)
        ext4_mark_inode(dir, true);
    return r == -ENOENT ? damaged(dir, 0, "no entry \"..\"") : r;
}
/* What a new block is on disk before the inodes that its names point to: its "." and ".." only. */
void ext4_dir_skeleton(struct ext4_fs *fs, uint32_t seed, const char *data, char *out)
{
    const struct ext4_dirent *first = (const void *)data;
    memset(out, 0, EXT4_BLOCK_SIZE);
    if (first->inode && is_dots(first) && first->name_len == 1 && first->rec_len == 12) {
        memcpy(out, data, 24);
        ((struct ext4_dirent *)(void *)(out + 12))->rec_len = (uint16_t)(room(fs) - 12);
    } else {
        ((struct ext4_dirent *)(void *)out)->rec_len = (uint16_t)room(fs);
    }
    seal(fs, seed, out);
}

/* ---- reading ---- */
/* Position = byte offset of the next entry. A block that changed meanwhile: go on with the first entry at or after it. */
int ext4_readdir(struct file *f, struct dir_sink *sink, uint64_t *offset)
{
    static const uint8_t types[] = { 0, 8, 4, 2, 6, 1, 12, 10 }; /* DT_* */
    struct ext4_inode *dir = ext4_i(f->inode);
    struct ext4_fs *fs = dir->fs;
    char *copy = kmalloc(EXT4_BLOCK_SIZE);
    int r = 0;
    if (!copy)
        return -ENOMEM;
    while (!r && *offset < f->inode->size) {
        uint32_t index = (uint32_t)(*offset / EXT4_BLOCK_SIZE);
        struct ext4_buffer *b;
        mutex_lock(&fs->lock);
        r = dir_block(dir, index, &b);
        if (!r) {
            memcpy(copy, b->data, EXT4_BLOCK_SIZE); /* emit() touches program memory */
            ext4_buffer_put(fs, b);
        }
        mutex_unlock(&fs->lock);
        for (uint32_t at = 0; !r && at < EXT4_BLOCK_SIZE;) {
            const struct ext4_dirent *e = (const void *)(copy + at);
            uint64_t here = (uint64_t)index * EXT4_BLOCK_SIZE + at, next = here + e->rec_len;
            if (here >= *offset && e->inode) {
                uint8_t type = e->file_type < ARRAY_SIZE(types) ? types[e->file_type] : 0;
                if (!sink->emit(sink, e->name, e->name_len, e->inode, type, next)) {
                    kfree(copy);
                    return 0;
                }
            }
            if (next > *offset)
                *offset = next;
            at += e->rec_len;
        }
    }
    kfree(copy);
    return r;
}
