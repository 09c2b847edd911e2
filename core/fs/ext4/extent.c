/*
 * A file's extent tree in memory: an array of leaves, entries in disk format. A leaf that changes is written in place
 * (one block, atomic). Where leaves are split or merged the new ones get new blocks, and the old blocks are freed after
 * the commit, so the tree on disk is whole at every moment. Index blocks are built from the array of leaves and written in
 * place: with more than 340 leaves (115,600 extents) a split in the middle rewrites several of them, which is not atomic.
 */
#include "ext4.h"

static inline uint64_t start_of(const struct ext4_extent *e) { return (uint64_t)e->start_hi << 32 | e->start_lo; }
static inline bool is_unwritten(const struct ext4_extent *e) { return e->len > EXT4_EXTENT_MAX_LEN; }
static inline uint32_t len_of(const struct ext4_extent *e) { return is_unwritten(e) ? e->len - EXT4_EXTENT_MAX_LEN : e->len; }
static inline uint64_t end_of(const struct ext4_extent *e) { return (uint64_t)e->block + len_of(e); }
static void set_extent(struct ext4_extent *e, uint32_t block, uint64_t first, uint32_t len, bool unwritten)
{
    *e = (struct ext4_extent){ block, (uint16_t)(len + (unwritten ? EXT4_EXTENT_MAX_LEN : 0)), (uint16_t)(first >> 32), (uint32_t)first };
}
static uint32_t max_len(bool unwritten) { return unwritten ? EXT4_EXTENT_MAX_LEN - 1 : EXT4_EXTENT_MAX_LEN; }

/* ---- arrays ---- */
static struct ext4_leaf *leaf_new(uint32_t capacity)
{
    struct ext4_leaf *l = kzalloc(sizeof *l);
    if (!l)
        return NULL;
    l->e = kmalloc(capacity * sizeof *l->e);
    l->capacity = capacity;
    l->dirty = true;
    if (!l->e) {
        kfree(l);
        return NULL;
    }
    return l;
}
static void leaf_free(struct ext4_leaf *l)
{
    kfree(l->e);
    kfree(l);
}
static int leaf_grow(struct ext4_leaf *l, uint32_t capacity)
{
    struct ext4_extent *e = krealloc(l->e, l->capacity * sizeof *e, capacity * sizeof *e);
    if (!e)
        return -ENOMEM;
    l->e = e;
    l->capacity = capacity;
    return 0;
}
static int insert_leaf(struct ext4_map *m, uint32_t at, struct ext4_leaf *l)
{
    if (m->leaf_count == m->leaf_capacity) {
        uint32_t capacity = m->leaf_capacity ? m->leaf_capacity * 2 : 4;
        struct ext4_leaf **leaves = krealloc(m->leaves, m->leaf_capacity * sizeof *leaves, capacity * sizeof *leaves);
        if (!leaves)
            return -ENOMEM;
        m->leaves = leaves;
        m->leaf_capacity = capacity;
    }
    memmove(m->leaves + at + 1, m->leaves + at, (m->leaf_count - at) * sizeof *m->leaves);
    m->leaves[at] = l;
    m->leaf_count++;
    return 0;
}
static void remove_leaf(struct ext4_map *m, uint32_t at)
{
    leaf_free(m->leaves[at]);
    m->leaf_count--;
    memmove(m->leaves + at, m->leaves + at + 1, (m->leaf_count - at) * sizeof *m->leaves);
}
void ext4_map_destroy(struct ext4_inode *ei)
{
    struct ext4_map *m = &ei->map;
    for (uint32_t n = 0; n < m->leaf_count; n++)
        leaf_free(m->leaves[n]);
    kfree(m->leaves);
    kfree(m->index_blocks);
    memset(m, 0, sizeof *m);
}
void ext4_map_init_empty(struct ext4_inode *ei) { ei->map.loaded = true; }

/* ---- loading ---- */
struct load { struct ext4_inode *ei; uint64_t next_block; };

static int damaged(struct ext4_inode *ei, const char *what)
{
    log_error("%s: inode %u: %s; run e2fsck", ei->fs->sb->source, ei->ino, what);
    return -EUCLEAN;
}
static int add_loaded_leaf(struct load *s, const struct ext4_extent_header *h, uint64_t block)
{
    struct ext4_inode *ei = s->ei;
    const struct ext4_extent *e = (const void *)(h + 1);
    struct ext4_leaf *l = leaf_new(block ? EXT4_EXTENTS_BLOCK : EXT4_EXTENTS_INLINE);
    if (!l)
        return -ENOMEM;
    l->block = block;
    l->count = h->entries;
    l->dirty = false;
    memcpy(l->e, e, l->count * sizeof *e);
    for (uint32_t n = 0; n < l->count; n++) {
        if (l->e[n].block < s->next_block || !len_of(&l->e[n]) || end_of(&l->e[n]) > 1ULL << 32 ||
            !ext4_block_ok(ei->fs, start_of(&l->e[n]), len_of(&l->e[n]))) {
            leaf_free(l);
            return damaged(ei, "extent out of order or outside the file system");
        }
        s->next_block = end_of(&l->e[n]);
    }
    int r = insert_leaf(&ei->map, ei->map.leaf_count, l);
    if (r)
        leaf_free(l);
    return r;
}
static bool header_ok(const struct ext4_extent_header *h, uint32_t max, uint32_t depth)
{
    return h->magic == EXT4_EXTENT_MAGIC && h->max <= max && h->entries <= h->max && h->depth == depth;
}
static int load_node(struct load *s, const struct ext4_extent_header *h, uint64_t block);
static int load_child(struct load *s, uint64_t block, uint32_t depth)
{
    struct ext4_inode *ei = s->ei;
    struct ext4_fs *fs = ei->fs;
    struct ext4_buffer *b;
    int r = ext4_buffer_read(fs, block, depth ? PHASE_INDEX : PHASE_EXTENT, &b);
    if (r)
        return r;
    const struct ext4_extent_header *h = (const void *)b->data;
    uint32_t at = (uint32_t)sizeof *h + h->max * 12u;
    if (!header_ok(h, EXT4_EXTENTS_BLOCK, depth) || !h->entries)
        r = damaged(ei, "bad extent block");
    else if (fs->metadata_csum && !b->checked && ext4_block_csum(ei->seed, b->data, at) != *(const uint32_t *)(const void *)(b->data + at))
        r = damaged(ei, "extent block with a wrong checksum");
    if (!r) {
        b->checked = true;
        r = load_node(s, h, block);
    }
    ext4_buffer_put(fs, b);
    return r;
}
static int load_node(struct load *s, const struct ext4_extent_header *h, uint64_t block)
{
    struct ext4_map *m = &s->ei->map;
    if (!h->depth)
        return add_loaded_leaf(s, h, block);
    if (block) { /* an index block: remembered, to be reused or freed */
        uint64_t *blocks = krealloc(m->index_blocks, m->index_count * 8, (m->index_count + 1) * 8);
        if (!blocks)
            return -ENOMEM;
        m->index_blocks = blocks;
        m->index_blocks[m->index_count++] = block;
    }
    const struct ext4_extent_index *x = (const void *)(h + 1);
    uint64_t before = 0;
    for (uint32_t n = 0; n < h->entries; n++) {
        if (x[n].block < before || x[n].block < (n ? s->next_block : 0))
            return damaged(s->ei, "extent index out of order");
        before = x[n].block + 1ULL;
        int r = load_child(s, (uint64_t)x[n].leaf_hi << 32 | x[n].leaf_lo, h->depth - 1u);
        if (r)
            return r;
        if (m->leaf_count > s->ei->fs->block_count)
            return damaged(s->ei, "endless extent tree");
    }
    return 0;
}
static int map_load_locked(struct ext4_inode *ei)
{
    const struct ext4_extent_header *h = (const void *)ei->root;
    struct load s = { .ei = ei };
    if (ei->map.loaded)
        return 0;
    if (!header_ok(h, EXT4_EXTENTS_INLINE, h->depth) || h->depth > 5)
        return damaged(ei, "bad extent header");
    int r = h->entries ? load_node(&s, h, 0) : 0;
    if (r) {
        ext4_map_destroy(ei);
        return r;
    }
    ei->map.depth = h->depth;
    ei->map.loaded = true;
    return 0;
}
int ext4_map_load(struct ext4_inode *ei)
{
    assert(mutex_is_mine(&ei->fs->lock));
    if (ei->map.loaded)
        return 0;
    rw_write_lock(&ei->map_lock);
    int r = map_load_locked(ei);
    rw_write_unlock(&ei->map_lock);
    return r;
}

/* ---- searching ---- */
/* Leaf that holds block or would: the last one that begins at or before it (0 if none does). */
static uint32_t leaf_for(const struct ext4_map *m, uint32_t block)
{
    uint32_t low = 0, high = m->leaf_count;
    while (low + 1 < high) {
        uint32_t mid = (low + high) / 2;
        if (m->leaves[mid]->e[0].block <= block)
            low = mid;
        else
            high = mid;
    }
    return low;
}
/* First entry that ends after block; count if none. */
static uint32_t entry_for(const struct ext4_leaf *l, uint32_t block)
{
    uint32_t low = 0, high = l->count;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (end_of(&l->e[mid]) > block)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}
/* First extent that ends after block, NULL if none. */
static struct ext4_extent *next_extent(struct ext4_map *m, uint32_t block, uint32_t *leaf, uint32_t *entry)
{
    if (!m->leaf_count)
        return NULL;
    *leaf = leaf_for(m, block);
    *entry = entry_for(m->leaves[*leaf], block);
    if (*entry == m->leaves[*leaf]->count) {
        if (++*leaf == m->leaf_count)
            return NULL;
        *entry = 0;
    }
    return &m->leaves[*leaf]->e[*entry];
}
void ext4_map_find(struct ext4_inode *ei, uint32_t block, struct ext4_mapping *out)
{
    uint32_t leaf, entry;
    const struct ext4_extent *e = next_extent(&ei->map, block, &leaf, &entry);
    *out = (struct ext4_mapping){ .count = UINT32_MAX - block };
    if (e && e->block > block) {
        out->count = e->block - block;
    } else if (e) {
        out->mapped = true;
        out->unwritten = is_unwritten(e);
        out->first = start_of(e) + (block - e->block);
        out->count = (uint32_t)(end_of(e) - block);
    }
}
int ext4_map_lookup(struct ext4_inode *ei, uint32_t block, struct ext4_mapping *out)
{
    if (!atomic_load_acquire(&ei->map.loaded)) {
        mutex_lock(&ei->fs->lock);
        int r = ext4_map_load(ei);
        mutex_unlock(&ei->fs->lock);
        if (r)
            return r;
    }
    rw_read_lock(&ei->map_lock);
    ext4_map_find(ei, block, out);
    rw_read_unlock(&ei->map_lock);
    return 0;
}
uint64_t ext4_map_goal(struct ext4_inode *ei, uint32_t block)
{
    struct ext4_map *m = &ei->map;
    for (uint32_t n = m->leaf_count ? leaf_for(m, block) + 1 : 0; n-- > 0;) {
        const struct ext4_leaf *l = m->leaves[n];
        uint32_t at = entry_for(l, block);
        if (at) {
            const struct ext4_extent *e = &l->e[at - 1];
            return start_of(e) + (block - e->block);
        }
    }
    return (uint64_t)((ei->ino - 1) / ei->fs->inodes_per_group) * ei->fs->blocks_per_group;
}

/* ---- tree blocks ---- */
static int tree_block(struct ext4_inode *ei, uint64_t *block)
{
    uint32_t got;
    int r = ext4_blocks_alloc(ei->fs, ext4_map_goal(ei, 0), 1, true, block, &got);
    if (!r)
        ei->blocks++;
    return r;
}
static void free_tree_block(struct ext4_inode *ei, uint64_t block)
{
    ext4_blocks_free_later(ei->fs, block, 1);
    ei->blocks--;
}
/* As many index blocks as the leaves need. Called after the number of leaves changed; a failure leaves too few, and the
 * caller undoes its change. */
static int want_index_blocks(struct ext4_inode *ei)
{
    struct ext4_map *m = &ei->map;
    uint32_t need = m->leaf_count <= EXT4_EXTENTS_INLINE ? 0 : DIV_ROUND_UP(m->leaf_count, EXT4_EXTENTS_BLOCK);
    m->index_dirty = true;
    if (need > EXT4_EXTENTS_INLINE) {
        log_error("%s: inode %u is too fragmented", ei->fs->sb->source, ei->ino);
        return -EFBIG;
    }
    while (m->index_count > need)
        free_tree_block(ei, m->index_blocks[--m->index_count]);
    if (m->index_count < need) {
        uint64_t *blocks = krealloc(m->index_blocks, m->index_count * 8, need * 8);
        if (!blocks)
            return -ENOMEM;
        m->index_blocks = blocks;
    }
    while (m->index_count < need) {
        int r = tree_block(ei, &m->index_blocks[m->index_count]);
        if (r)
            return r;
        m->index_count++;
    }
    return 0;
}

/* Make room for one more entry at (leaf, entry); both may move. */
static int make_room(struct ext4_inode *ei, uint32_t *leaf, uint32_t *entry)
{
    struct ext4_map *m = &ei->map;
    if (!m->leaf_count) {
        struct ext4_leaf *l = leaf_new(EXT4_EXTENTS_INLINE);
        int r = l ? insert_leaf(m, 0, l) : -ENOMEM;
        if (r && l)
            leaf_free(l);
        *leaf = *entry = 0;
        return r;
    }
    struct ext4_leaf *l = m->leaves[*leaf];
    if (l->count < (l->block ? EXT4_EXTENTS_BLOCK : EXT4_EXTENTS_INLINE))
        return 0;
    uint64_t block;
    int r;
    if (!l->block) { /* out of the inode into a block of its own */
        r = l->capacity < EXT4_EXTENTS_BLOCK ? leaf_grow(l, EXT4_EXTENTS_BLOCK) : 0;
        if (!r)
            r = tree_block(ei, &block);
        if (!r) {
            l->block = block;
            l->dirty = m->index_dirty = true;
        }
        return r;
    }
    struct ext4_leaf *right = leaf_new(EXT4_EXTENTS_BLOCK);
    if (!right)
        return -ENOMEM;
    bool at_end = *entry == l->count;
    uint64_t left_block = 0;
    r = tree_block(ei, &right->block);
    if (!r && !at_end)
        r = tree_block(ei, &left_block);
    if (!r)
        r = insert_leaf(m, *leaf + 1, right);
    if (r) {
        if (right->block) {
            ext4_blocks_free_now(ei->fs, right->block, 1);
            ei->blocks--;
        }
        if (left_block) {
            ext4_blocks_free_now(ei->fs, left_block, 1);
            ei->blocks--;
        }
        leaf_free(right);
        return r;
    }
    if (!at_end) { /* both halves in new blocks: the old one stays whole until nothing points to it */
        uint32_t keep = l->count / 2;
        right->count = l->count - keep;
        memcpy(right->e, l->e + keep, right->count * sizeof *l->e);
        l->count = keep;
        free_tree_block(ei, l->block);
        l->block = left_block;
        l->dirty = true;
    }
    r = want_index_blocks(ei);
    if (r && !at_end) {
        /* Cannot happen by halves: the leaves are as good as before, only the index is short. Join them again. */
        memcpy(l->e + l->count, right->e, right->count * sizeof *l->e);
        l->count += right->count;
    }
    if (r) {
        ext4_blocks_free_now(ei->fs, right->block, 1);
        ei->blocks--;
        remove_leaf(m, *leaf + 1);
        return r;
    }
    if (at_end || *entry > l->count) {
        *entry -= l->count;
        (*leaf)++;
    }
    return 0;
}

static void leaf_changed(struct ext4_map *m, uint32_t leaf, uint32_t entry)
{
    m->leaves[leaf]->dirty = true;
    if (!entry)
        m->index_dirty = true; /* the key in the index is the first block of the leaf */
}
static void erase_entry(struct ext4_inode *ei, uint32_t leaf, uint32_t entry)
{
    struct ext4_map *m = &ei->map;
    struct ext4_leaf *l = m->leaves[leaf];
    memmove(l->e + entry, l->e + entry + 1, (l->count - entry - 1) * sizeof *l->e);
    l->count--;
    leaf_changed(m, leaf, entry);
    if (l->count)
        return;
    if (l->block)
        free_tree_block(ei, l->block);
    remove_leaf(m, leaf);
    int r = want_index_blocks(ei); /* fewer: cannot fail for space */
    if (r)
        log_error("%s: inode %u: index blocks: error %d", ei->fs->sb->source, ei->ino, -r);
}

/* The range is a hole. Joins with its neighbours where it can. count <= max_len. */
static int insert_extent(struct ext4_inode *ei, uint32_t block, uint64_t first, uint32_t count, bool unwritten)
{
    struct ext4_map *m = &ei->map;
    uint32_t leaf = 0, entry = 0;
    if (m->leaf_count) {
        leaf = leaf_for(m, block);
        entry = entry_for(m->leaves[leaf], block);
    }
    struct ext4_leaf *l = m->leaf_count ? m->leaves[leaf] : NULL;
    struct ext4_extent *before = l && entry ? &l->e[entry - 1] : NULL, *after = l && entry < l->count ? &l->e[entry] : NULL;
    if (before && is_unwritten(before) == unwritten && end_of(before) == block && start_of(before) + len_of(before) == first &&
        len_of(before) + count <= max_len(unwritten)) {
        set_extent(before, before->block, start_of(before), len_of(before) + count, unwritten);
        leaf_changed(m, leaf, entry); /* the first block of the leaf stays: entry > 0 */
        if (after && is_unwritten(after) == unwritten && end_of(before) == after->block &&
            start_of(before) + len_of(before) == start_of(after) && len_of(before) + len_of(after) <= max_len(unwritten)) {
            set_extent(before, before->block, start_of(before), len_of(before) + len_of(after), unwritten);
            erase_entry(ei, leaf, entry);
        }
        return 0;
    }
    if (after && is_unwritten(after) == unwritten && (uint64_t)block + count == after->block && first + count == start_of(after) &&
        len_of(after) + count <= max_len(unwritten)) {
        set_extent(after, block, first, len_of(after) + count, unwritten);
        leaf_changed(m, leaf, entry);
        return 0;
    }
    int r = make_room(ei, &leaf, &entry);
    if (r)
        return r;
    l = m->leaves[leaf];
    memmove(l->e + entry + 1, l->e + entry, (l->count - entry) * sizeof *l->e);
    set_extent(&l->e[entry], block, first, count, unwritten);
    l->count++;
    leaf_changed(m, leaf, entry);
    return 0;
}

/* Take [from, last] out of the map; blocks are freed later if `release`. */
static int cut(struct ext4_inode *ei, uint32_t from, uint32_t last, bool release)
{
    struct ext4_map *m = &ei->map;
    uint32_t leaf, entry;
    struct ext4_extent *e;
    while ((e = next_extent(m, from, &leaf, &entry)) && e->block <= last) {
        struct ext4_extent old = *e;
        bool unwritten = is_unwritten(&old);
        uint32_t lo = MAX(old.block, from), hi = (uint32_t)MIN(end_of(&old) - 1, last);
        uint32_t left = lo - old.block, right = (uint32_t)(end_of(&old) - 1 - hi), gone = hi - lo + 1;
        if (left && right) {
            /* The right part first: it may need room in the tree, and nothing is lost if there is none. */
            set_extent(e, old.block, start_of(&old), left, unwritten);
            leaf_changed(m, leaf, entry + 1);
            int r = insert_extent(ei, hi + 1, start_of(&old) + left + gone, right, unwritten);
            if (r) {
                e = next_extent(m, old.block, &leaf, &entry);
                if (e)
                    *e = old;
                return r;
            }
        } else if (left) {
            set_extent(e, old.block, start_of(&old), left, unwritten);
            leaf_changed(m, leaf, entry + 1);
        } else if (right) {
            set_extent(e, hi + 1, start_of(&old) + gone, right, unwritten);
            leaf_changed(m, leaf, entry);
        } else {
            erase_entry(ei, leaf, entry);
        }
        if (release) {
            ext4_blocks_free_later(ei->fs, start_of(&old) + left, gone);
            ei->blocks -= gone;
        }
        if (hi == UINT32_MAX || hi >= last)
            break;
        from = hi + 1;
        cond_resched();
    }
    return 0;
}
int ext4_map_remove(struct ext4_inode *ei, uint32_t from, uint32_t last) { return cut(ei, from, last, true); }

int ext4_map_set(struct ext4_inode *ei, uint32_t block, uint64_t first, uint32_t count, bool unwritten)
{
    int r = cut(ei, block, block + count - 1, true);
    while (!r && count) {
        uint32_t n = MIN(count, max_len(unwritten));
        r = insert_extent(ei, block, first, n, unwritten);
        if (!r)
            ei->blocks += n;
        block += n;
        first += n;
        count -= n;
    }
    return r;
}
int ext4_map_written(struct ext4_inode *ei, uint32_t block, uint32_t count)
{
    while (count) {
        struct ext4_mapping at;
        ext4_map_find(ei, block, &at);
        uint32_t n = MIN(count, at.count);
        if (at.mapped && at.unwritten) {
            int r = cut(ei, block, block + n - 1, false);
            if (!r) {
                r = insert_extent(ei, block, at.first, n, false);
                if (r) { /* no room in the tree: what was cut out must not be lost as a leak */
                    ext4_blocks_free_later(ei->fs, at.first, n);
                    ei->blocks -= n;
                }
            }
            if (r)
                return r;
        }
        block += n;
        count -= n;
    }
    return 0;
}
void ext4_map_free_all(struct ext4_inode *ei)
{
    struct ext4_map *m = &ei->map;
    for (uint32_t n = 0; n < m->leaf_count; n++) {
        const struct ext4_leaf *l = m->leaves[n];
        for (uint32_t k = 0; k < l->count; k++)
            ext4_blocks_free_later(ei->fs, start_of(&l->e[k]), len_of(&l->e[k]));
        if (l->block)
            ext4_blocks_free_later(ei->fs, l->block, 1);
    }
    for (uint32_t n = 0; n < m->index_count; n++)
        ext4_blocks_free_later(ei->fs, m->index_blocks[n], 1);
    ext4_map_destroy(ei);
    ext4_map_init_empty(ei);
    ei->blocks = 0;
}

/* ---- storing ---- */
static struct ext4_extent_header *header(void *at, uint32_t entries, uint32_t max, uint32_t depth)
{
    struct ext4_extent_header *h = at;
    *h = (struct ext4_extent_header){ EXT4_EXTENT_MAGIC, (uint16_t)entries, (uint16_t)max, (uint16_t)depth, 0 };
    return h;
}
static void seal(struct ext4_inode *ei, struct ext4_buffer *b)
{
    if (ei->fs->metadata_csum)
        *(uint32_t *)(void *)(b->data + EXT4_BLOCK_SIZE - 4) = ext4_block_csum(ei->seed, b->data, EXT4_BLOCK_SIZE - 4);
    ext4_buffer_dirty(ei->fs, b);
    ext4_buffer_put(ei->fs, b);
}
static int store_leaf(struct ext4_inode *ei, struct ext4_leaf *l)
{
    struct ext4_buffer *b;
    int r = ext4_buffer_new(ei->fs, l->block, PHASE_EXTENT, &b);
    if (r)
        return r;
    memcpy(header(b->data, l->count, EXT4_EXTENTS_BLOCK, 0) + 1, l->e, l->count * sizeof *l->e);
    seal(ei, b);
    l->dirty = false;
    return 0;
}
static void fill_index(struct ext4_extent_index *x, uint32_t block, uint64_t child)
{
    *x = (struct ext4_extent_index){ block, (uint32_t)child, (uint16_t)(child >> 32), 0 };
}
static int store_index_blocks(struct ext4_inode *ei)
{
    struct ext4_map *m = &ei->map;
    for (uint32_t n = 0; n < m->index_count; n++) {
        struct ext4_buffer *b;
        int r = ext4_buffer_new(ei->fs, m->index_blocks[n], PHASE_INDEX, &b);
        if (r)
            return r;
        uint32_t first = n * EXT4_EXTENTS_BLOCK, count = MIN(m->leaf_count - first, EXT4_EXTENTS_BLOCK);
        struct ext4_extent_index *x = (void *)(header(b->data, count, EXT4_EXTENTS_BLOCK, 1) + 1);
        for (uint32_t k = 0; k < count; k++)
            fill_index(&x[k], m->leaves[first + k]->e[0].block, m->leaves[first + k]->block);
        seal(ei, b);
    }
    return 0;
}
static int store_root(struct ext4_inode *ei, uint32_t root[15])
{
    struct ext4_map *m = &ei->map;
    /* A tree that another system built may have more index blocks, or more levels, than ours would. */
    int r = want_index_blocks(ei);
    if (!r)
        r = store_index_blocks(ei);
    if (r)
        return r;
    m->index_dirty = false;
    m->depth = m->index_count ? 2 : 1;
    uint32_t count = m->index_count ? m->index_count : m->leaf_count;
    memset(root, 0, 60);
    struct ext4_extent_index *x = (void *)(header(root, count, EXT4_EXTENTS_INLINE, m->depth) + 1);
    for (uint32_t n = 0; n < count; n++) {
        const struct ext4_leaf *l = m->leaves[m->index_count ? n * EXT4_EXTENTS_BLOCK : n];
        fill_index(&x[n], l->e[0].block, m->index_count ? m->index_blocks[n] : l->block);
    }
    return 0;
}
/* root holds what was read or stored last. */
int ext4_map_store(struct ext4_inode *ei, uint32_t root[15])
{
    struct ext4_map *m = &ei->map;
    if (!m->loaded)
        return 0;
    if (m->leaf_count && m->leaves[0]->block) {
        for (uint32_t n = 0; n < m->leaf_count; n++) {
            int r = m->leaves[n]->dirty ? store_leaf(ei, m->leaves[n]) : 0;
            if (r)
                return r;
        }
        return m->index_dirty ? store_root(ei, root) : 0;
    }
    while (m->index_count)
        free_tree_block(ei, m->index_blocks[--m->index_count]);
    uint32_t count = m->leaf_count ? m->leaves[0]->count : 0;
    memset(root, 0, 60);
    void *e = header(root, count, EXT4_EXTENTS_INLINE, 0) + 1;
    if (count) {
        memcpy(e, m->leaves[0]->e, count * sizeof(struct ext4_extent));
        m->leaves[0]->dirty = false;
    }
    m->depth = 0;
    m->index_dirty = false;
    return 0;
}
