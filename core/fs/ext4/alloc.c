/*
 * Blocks and inode numbers. The bitmaps in the buffers are what the allocator believes; a block that was freed stays
 * set in them until the commit that removed the last reference from the disk is done (fs->pending).
 */
#include "ext4.h"
#include <weir/bitmap.h>

#define META_RESERVE 64u /* blocks kept for extent-tree and directory blocks when data would take the last */

static bool power_of(uint32_t n, uint32_t base)
{
    while (n > 1 && n % base == 0)
        n /= base;
    return n == 1;
}
static bool group_has_super(const struct ext4_fs *fs, uint32_t g)
{
    if (g <= 1)
        return true;
    if (fs->super->feature_compat & EXT4_COMPAT_SPARSE_SUPER2)
        return g == fs->super->backup_bgs[0] || g == fs->super->backup_bgs[1];
    if (!(fs->super->feature_ro_compat & EXT4_RO_SPARSE_SUPER))
        return true;
    return (g & 1) && (power_of(g, 3) || power_of(g, 5) || power_of(g, 7));
}
static uint32_t blocks_in_group(const struct ext4_fs *fs, uint32_t g)
{
    uint64_t first = (uint64_t)g * fs->blocks_per_group;
    return (uint32_t)MIN(fs->blocks_per_group, fs->block_count - first);
}
bool ext4_block_ok(const struct ext4_fs *fs, uint64_t first, uint64_t count)
{
    return first > 0 && count && first < fs->block_count && count <= fs->block_count - first;
}

/* ---- descriptors ---- */
static void group_decode(struct ext4_fs *fs, const struct ext4_group_disk *d, struct ext4_group *g)
{
    bool wide = fs->desc_size >= 64;
    g->block_bitmap = d->block_bitmap_lo | (wide ? (uint64_t)d->block_bitmap_hi << 32 : 0);
    g->inode_bitmap = d->inode_bitmap_lo | (wide ? (uint64_t)d->inode_bitmap_hi << 32 : 0);
    g->inode_table = d->inode_table_lo | (wide ? (uint64_t)d->inode_table_hi << 32 : 0);
    g->free_blocks = d->free_blocks_lo | (wide ? (uint32_t)d->free_blocks_hi << 16 : 0);
    g->free_inodes = d->free_inodes_lo | (wide ? (uint32_t)d->free_inodes_hi << 16 : 0);
    g->used_dirs = d->used_dirs_lo | (wide ? (uint32_t)d->used_dirs_hi << 16 : 0);
    g->itable_unused = d->itable_unused_lo | (wide ? (uint32_t)d->itable_unused_hi << 16 : 0);
    g->block_csum = d->block_csum_lo | (wide ? (uint32_t)d->block_csum_hi << 16 : 0);
    g->inode_csum = d->inode_csum_lo | (wide ? (uint32_t)d->inode_csum_hi << 16 : 0);
    g->flags = fs->metadata_csum || fs->gdt_csum ? d->flags : 0;
    if (!(fs->metadata_csum || fs->gdt_csum))
        g->itable_unused = 0;
}
static void group_encode(const struct ext4_fs *fs, const struct ext4_group *g, struct ext4_group_disk *d)
{
    d->free_blocks_lo = (uint16_t)g->free_blocks;
    d->free_inodes_lo = (uint16_t)g->free_inodes;
    d->used_dirs_lo = (uint16_t)g->used_dirs;
    if (fs->metadata_csum || fs->gdt_csum) {
        d->itable_unused_lo = (uint16_t)g->itable_unused;
        d->flags = g->flags;
    }
    if (fs->metadata_csum) {
        d->block_csum_lo = (uint16_t)g->block_csum;
        d->inode_csum_lo = (uint16_t)g->inode_csum;
    }
    if (fs->desc_size >= 64) {
        d->free_blocks_hi = (uint16_t)(g->free_blocks >> 16);
        d->free_inodes_hi = (uint16_t)(g->free_inodes >> 16);
        d->used_dirs_hi = (uint16_t)(g->used_dirs >> 16);
        if (fs->metadata_csum || fs->gdt_csum)
            d->itable_unused_hi = (uint16_t)(g->itable_unused >> 16);
        if (fs->metadata_csum) {
            d->block_csum_hi = (uint16_t)(g->block_csum >> 16);
            d->inode_csum_hi = (uint16_t)(g->inode_csum >> 16);
        }
    }
}
static int desc_buffer(struct ext4_fs *fs, uint32_t group, struct ext4_buffer **out, char **desc)
{
    uint32_t per_block = EXT4_BLOCK_SIZE / fs->desc_size;
    int r = ext4_buffer_read(fs, 1 + group / per_block, PHASE_BITMAP, out);
    if (!r)
        *desc = (*out)->data + (size_t)(group % per_block) * fs->desc_size;
    return r;
}
static uint32_t table_blocks(const struct ext4_fs *fs) { return DIV_ROUND_UP(fs->inodes_per_group, fs->inodes_per_block); }

int ext4_groups_load(struct ext4_fs *fs)
{
    fs->groups = kcalloc(fs->group_count, sizeof *fs->groups);
    if (!fs->groups)
        return -ENOMEM;
    for (uint32_t n = 0; n < fs->group_count; n++) {
        struct ext4_group *g = &fs->groups[n];
        struct ext4_buffer *b;
        char *desc;
        int r = desc_buffer(fs, n, &b, &desc);
        if (r)
            return r;
        struct ext4_group_disk *d = (void *)desc;
        bool ok = !(fs->metadata_csum || fs->gdt_csum) || d->checksum == ext4_group_csum(fs, n, desc);
        group_decode(fs, d, g);
        ext4_buffer_put(fs, b);
        ok = ok && ext4_block_ok(fs, g->block_bitmap, 1) && ext4_block_ok(fs, g->inode_bitmap, 1) &&
             ext4_block_ok(fs, g->inode_table, table_blocks(fs)) && g->free_blocks <= blocks_in_group(fs, n) &&
             g->free_inodes <= fs->inodes_per_group && g->itable_unused <= fs->inodes_per_group;
        if (!ok) {
            log_error("%s: group descriptor %u is damaged; run e2fsck", fs->sb->source, n);
            return -EUCLEAN;
        }
        fs->free_blocks += g->free_blocks;
        fs->free_inodes += g->free_inodes;
    }
    return 0;
}

static uint32_t bitmap_csum(const struct ext4_fs *fs, const char *data, uint32_t bits)
{
    uint32_t crc = ext4_block_csum(fs->csum_seed, data, bits / 8);
    return fs->desc_size >= 64 ? crc : crc & 0xffff;
}
/* Descriptors whose group changed, with the checksums of the bitmaps as they are now. */
int ext4_groups_store(struct ext4_fs *fs)
{
    for (uint32_t n = 0; n < fs->group_count; n++) {
        struct ext4_group *g = &fs->groups[n];
        struct ext4_buffer *b;
        char *desc;
        if (!g->dirty)
            continue;
        int r = 0;
        if (fs->metadata_csum && !(g->flags & EXT4_BG_BLOCK_UNINIT) && !g->bad) {
            r = ext4_buffer_read(fs, g->block_bitmap, PHASE_BITMAP, &b);
            if (r)
                return r;
            g->block_csum = bitmap_csum(fs, b->data, fs->blocks_per_group);
            ext4_buffer_put(fs, b);
        }
        if (fs->metadata_csum && !(g->flags & EXT4_BG_INODE_UNINIT) && !g->bad) {
            r = ext4_buffer_read(fs, g->inode_bitmap, PHASE_BITMAP, &b);
            if (r)
                return r;
            g->inode_csum = bitmap_csum(fs, b->data, fs->inodes_per_group);
            ext4_buffer_put(fs, b);
        }
        r = desc_buffer(fs, n, &b, &desc);
        if (r)
            return r;
        group_encode(fs, g, (void *)desc);
        if (fs->metadata_csum || fs->gdt_csum)
            ((struct ext4_group_disk *)(void *)desc)->checksum = ext4_group_csum(fs, n, desc);
        ext4_buffer_dirty(fs, b);
        ext4_buffer_put(fs, b);
        g->dirty = false;
    }
    return 0;
}

/* ---- bitmaps ---- */
static void mark_if_inside(uint64_t *map, uint64_t start, uint32_t size, uint64_t block, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        if (block + k >= start && block + k < start + size)
            bitmap_set(map, (unsigned)(block + k - start));
    }
}
/* What mke2fs left unwritten: only the group's own metadata are in use. */
static void init_block_bitmap(struct ext4_fs *fs, uint32_t n, uint64_t *map)
{
    uint64_t start = (uint64_t)n * fs->blocks_per_group;
    uint32_t size = blocks_in_group(fs, n);
    memset(map, 0, EXT4_BLOCK_SIZE);
    if (group_has_super(fs, n))
        mark_if_inside(map, start, size, start, 1 + fs->gdt_blocks + fs->super->reserved_gdt_blocks);
    for (uint32_t k = 0; k < fs->group_count; k++) {
        const struct ext4_group *g = &fs->groups[k];
        mark_if_inside(map, start, size, g->block_bitmap, 1);
        mark_if_inside(map, start, size, g->inode_bitmap, 1);
        if (g->inode_table < start + size && g->inode_table + table_blocks(fs) > start)
            mark_if_inside(map, start, size, g->inode_table, table_blocks(fs));
    }
    for (uint32_t k = size; k < EXT4_BLOCK_BITS; k++)
        bitmap_set(map, k);
}
static int group_is_bad(struct ext4_fs *fs, uint32_t n, const char *which)
{
    struct ext4_group *g = &fs->groups[n];
    log_error("%s: %s bitmap of group %u is damaged; the group is left alone, run e2fsck", fs->sb->source, which, n);
    g->bad = true;
    atomic_fetch_sub(&fs->free_blocks, g->free_blocks);
    atomic_fetch_sub(&fs->free_inodes, g->free_inodes);
    return -EUCLEAN;
}
/*
 * After a crash the bitmap may be newer than its descriptor (one phase writes both). The bitmap is the one to believe:
 * bits are set on disk before anything points to the blocks, and cleared only after nothing does.
 */
static bool adopt(struct ext4_fs *fs, uint32_t n, const char *which, uint32_t *count, uint64_t *total, uint32_t actual)
{
    if (fs->mount_state & EXT4_STATE_VALID)
        return false;
    log_warn("%s: %s bitmap of group %u is newer than its descriptor: taken as it is", fs->sb->source, which, n);
    atomic_fetch_add(total, (uint64_t)actual - *count);
    *count = actual;
    fs->groups[n].dirty = true;
    return true;
}
static int block_bitmap(struct ext4_fs *fs, uint32_t n, struct ext4_buffer **out)
{
    struct ext4_group *g = &fs->groups[n];
    if (g->bad)
        return -EUCLEAN;
    if (g->flags & EXT4_BG_BLOCK_UNINIT) {
        int r = ext4_buffer_new(fs, g->block_bitmap, PHASE_BITMAP, out);
        if (r)
            return r;
        init_block_bitmap(fs, n, (void *)(*out)->data);
        g->flags &= (uint16_t)~EXT4_BG_BLOCK_UNINIT;
        g->dirty = true;
        ext4_buffer_dirty(fs, *out);
        return 0;
    }
    int r = ext4_buffer_read(fs, g->block_bitmap, PHASE_BITMAP, out);
    if (r || (*out)->checked)
        return r;
    const uint64_t *map = (void *)(*out)->data;
    uint32_t size = blocks_in_group(fs, n);
    bool ok = !fs->metadata_csum || bitmap_csum(fs, (*out)->data, fs->blocks_per_group) == g->block_csum;
    uint32_t unused = size - bitmap_weight(map, size);
    ok = ok && unused == g->free_blocks;
    if (!ok && !adopt(fs, n, "block", &g->free_blocks, &fs->free_blocks, unused)) {
        ext4_buffer_put(fs, *out);
        return group_is_bad(fs, n, "block");
    }
    (*out)->checked = true;
    return 0;
}
static int inode_bitmap(struct ext4_fs *fs, uint32_t n, struct ext4_buffer **out)
{
    struct ext4_group *g = &fs->groups[n];
    if (g->bad)
        return -EUCLEAN;
    if (g->flags & EXT4_BG_INODE_UNINIT) {
        int r = ext4_buffer_new(fs, g->inode_bitmap, PHASE_BITMAP, out);
        if (r)
            return r;
        for (uint32_t k = fs->inodes_per_group; k < EXT4_BLOCK_BITS; k++)
            bitmap_set((void *)(*out)->data, k);
        g->flags &= (uint16_t)~EXT4_BG_INODE_UNINIT;
        g->dirty = true;
        ext4_buffer_dirty(fs, *out);
        return 0;
    }
    int r = ext4_buffer_read(fs, g->inode_bitmap, PHASE_BITMAP, out);
    if (r || (*out)->checked)
        return r;
    bool ok = !fs->metadata_csum || bitmap_csum(fs, (*out)->data, fs->inodes_per_group) == g->inode_csum;
    uint32_t unused = fs->inodes_per_group - bitmap_weight((void *)(*out)->data, fs->inodes_per_group);
    ok = ok && unused == g->free_inodes;
    if (!ok && !adopt(fs, n, "inode", &g->free_inodes, &fs->free_inodes, unused)) {
        ext4_buffer_put(fs, *out);
        return group_is_bad(fs, n, "inode");
    }
    (*out)->checked = true;
    return 0;
}

/* ---- blocks ---- */
bool ext4_reserve(struct ext4_fs *fs, uint32_t count)
{
    uint64_t promised = atomic_fetch_add(&fs->reserved, count) + count;
    if (atomic_load_relaxed(&fs->free_blocks) >= promised + promised / 64 + META_RESERVE)
        return true;
    atomic_fetch_sub(&fs->reserved, count);
    return false;
}
void ext4_unreserve(struct ext4_fs *fs, uint32_t count) { atomic_fetch_sub(&fs->reserved, count); }

/* First run of free bits of at least `least` at or after `from`, at most `want` long. */
static bool find_run(const uint64_t *map, uint32_t size, uint32_t from, uint32_t least, uint32_t want, uint32_t *at, uint32_t *len)
{
    while (from < size) {
        uint32_t first = bitmap_next_clear(map, size, from);
        if (first >= size)
            return false;
        uint32_t end = bitmap_next_set(map, MIN(size, first + want), first);
        if (end - first >= least) {
            *at = first;
            *len = end - first;
            return true;
        }
        from = end;
    }
    return false;
}
static bool alloc_in_group(struct ext4_fs *fs, uint32_t n, uint32_t from, uint32_t least, uint32_t want, uint64_t *first, uint32_t *got)
{
    struct ext4_group *g = &fs->groups[n];
    struct ext4_buffer *b;
    uint32_t at, len, size = blocks_in_group(fs, n);
    if (g->bad || g->free_blocks < least || block_bitmap(fs, n, &b))
        return false;
    uint64_t *map = (void *)b->data;
    bool found = find_run(map, size, from, least, want, &at, &len) || (from && find_run(map, size, 0, least, want, &at, &len));
    if (found) {
        for (uint32_t k = 0; k < len; k++)
            bitmap_set(map, at + k);
        ext4_buffer_dirty(fs, b);
        g->free_blocks -= len;
        g->dirty = true;
        atomic_fetch_sub(&fs->free_blocks, len);
        *first = (uint64_t)n * fs->blocks_per_group + at;
        *got = len;
    }
    ext4_buffer_put(fs, b);
    return found;
}
int ext4_blocks_alloc(struct ext4_fs *fs, uint64_t goal, uint32_t want, bool meta, uint64_t *first, uint32_t *got)
{
    uint64_t unused = atomic_load_relaxed(&fs->free_blocks);
    if (!unused || (!meta && unused <= META_RESERVE))
        return -ENOSPC;
    if (!meta)
        want = (uint32_t)MIN(want, unused - META_RESERVE);
    if (goal >= fs->block_count)
        goal = 0;
    uint32_t home = (uint32_t)(goal / fs->blocks_per_group), bit = (uint32_t)(goal % fs->blocks_per_group);
    /* The goal itself; then a good run anywhere; then anything. */
    static const uint32_t least[] = { 64, 8, 1 };
    if (alloc_in_group(fs, home, bit, MIN(want, 8), want, first, got))
        return 0;
    for (unsigned pass = 0; pass < ARRAY_SIZE(least); pass++) {
        for (uint32_t k = 0; k < fs->group_count; k++) {
            uint32_t n = (home + k) % fs->group_count;
            if (alloc_in_group(fs, n, k ? 0 : bit, MIN(want, least[pass]), want, first, got))
                return 0;
        }
    }
    return -ENOSPC;
}
void ext4_blocks_free_now(struct ext4_fs *fs, uint64_t first, uint32_t count)
{
    while (count) {
        uint32_t n = (uint32_t)(first / fs->blocks_per_group), bit = (uint32_t)(first % fs->blocks_per_group);
        uint32_t here = MIN(count, fs->blocks_per_group - bit);
        struct ext4_group *g = &fs->groups[n];
        struct ext4_buffer *b;
        if (!block_bitmap(fs, n, &b)) {
            uint32_t freed = 0;
            for (uint32_t k = 0; k < here; k++) {
                if (bitmap_test((void *)b->data, bit + k)) {
                    bitmap_clear((void *)b->data, bit + k);
                    freed++;
                }
                ext4_buffer_forget(fs, first + k);
            }
            if (freed != here)
                log_error("%s: freeing blocks from %lu that are free already", fs->sb->source, (unsigned long)first);
            ext4_buffer_dirty(fs, b);
            ext4_buffer_put(fs, b);
            g->free_blocks += freed;
            g->dirty = true;
            atomic_fetch_add(&fs->free_blocks, freed);
        }
        first += here;
        count -= here;
    }
}

static void add_pending(struct ext4_fs *fs, uint64_t first, uint32_t count, bool is_inode, bool is_dir)
{
    if (!is_inode && !list_empty(&fs->pending)) {
        struct ext4_pending *last = list_last(&fs->pending, struct ext4_pending, link);
        if (!last->is_inode && last->seq == fs->running_seq && last->first + last->count == first && last->count + count > count) {
            last->count += count;
            return;
        }
    }
    struct ext4_pending *p = kzalloc(sizeof *p);
    if (!p) {
        /* Better a leak that e2fsck finds than a block with two owners. */
        log_error("%s: no memory to remember %u freed blocks; e2fsck will find them", fs->sb->source, count);
        return;
    }
    p->seq = fs->running_seq;
    p->first = first;
    p->count = count;
    p->is_inode = is_inode;
    p->is_dir = is_dir;
    list_add_tail(&fs->pending, &p->link);
    writeback_metadata_dirtied();
}
void ext4_blocks_free_later(struct ext4_fs *fs, uint64_t first, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++)
        ext4_buffer_forget(fs, first + k);
    add_pending(fs, first, count, false, false);
}

/* ---- inode numbers ---- */
/* Inodes past the part of the table that was ever used may hold garbage: clear the slots up to and with `index`. */
static int use_table(struct ext4_fs *fs, uint32_t n, uint32_t index)
{
    struct ext4_group *g = &fs->groups[n];
    uint32_t used = fs->inodes_per_group - g->itable_unused;
    while (used <= index) {
        uint32_t in_block = used % fs->inodes_per_block;
        struct ext4_buffer *b;
        uint64_t block = g->inode_table + used / fs->inodes_per_block;
        int r = in_block ? ext4_buffer_read(fs, block, PHASE_INODE, &b) : ext4_buffer_new(fs, block, PHASE_INODE, &b);
        if (r)
            return r;
        if (in_block)
            memset(b->data + (size_t)in_block * fs->inode_size, 0, fs->inode_size);
        ext4_buffer_dirty(fs, b);
        ext4_buffer_put(fs, b);
        used++;
        g->itable_unused--;
        g->dirty = true;
    }
    return 0;
}
int ext4_ino_alloc(struct ext4_fs *fs, uint32_t parent, bool directory, uint32_t *ino)
{
    uint32_t home = (parent - 1) / fs->inodes_per_group;
    for (uint32_t k = 0; k < fs->group_count; k++) {
        uint32_t n = (home + k) % fs->group_count;
        struct ext4_group *g = &fs->groups[n];
        struct ext4_buffer *b;
        if (g->bad || !g->free_inodes || inode_bitmap(fs, n, &b))
            continue;
        uint32_t bit = bitmap_next_clear((void *)b->data, fs->inodes_per_group, n ? 0 : fs->first_ino - 1);
        int r = bit < fs->inodes_per_group ? use_table(fs, n, bit) : -ENOSPC;
        if (!r) {
            bitmap_set((void *)b->data, bit);
            ext4_buffer_dirty(fs, b);
            g->free_inodes--;
            g->used_dirs += directory;
            g->dirty = true;
            atomic_fetch_sub(&fs->free_inodes, 1);
            *ino = n * fs->inodes_per_group + bit + 1;
        }
        ext4_buffer_put(fs, b);
        if (r != -ENOSPC)
            return r;
    }
    return -ENOSPC;
}
void ext4_ino_free_now(struct ext4_fs *fs, uint32_t ino, bool directory)
{
    uint32_t n = (ino - 1) / fs->inodes_per_group, bit = (ino - 1) % fs->inodes_per_group;
    struct ext4_group *g = &fs->groups[n];
    struct ext4_buffer *b;
    if (inode_bitmap(fs, n, &b))
        return;
    if (bitmap_test((void *)b->data, bit)) {
        bitmap_clear((void *)b->data, bit);
        ext4_buffer_dirty(fs, b);
        g->free_inodes++;
        if (directory && g->used_dirs)
            g->used_dirs--;
        g->dirty = true;
        atomic_fetch_add(&fs->free_inodes, 1);
    }
    ext4_buffer_put(fs, b);
}
void ext4_ino_free_later(struct ext4_fs *fs, uint32_t ino, bool directory) { add_pending(fs, ino, 1, true, directory); }
