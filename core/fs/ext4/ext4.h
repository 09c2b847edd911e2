/*
 * ext4 without journal, ordered writes.
 *
 * All metadata (bitmaps, group descriptors, extent blocks, inode tables, directories) are changed in buffers under
 * fs->lock and reach the disk only through a commit (commit.c). A commit snapshots every dirty buffer and writes the
 * copies in phases, each complete before the next: bitmaps and descriptors; extent leaves and skeletons of new directory
 * blocks; extent indexes; inode tables; directory entries. So nothing on disk points to what is not there yet. File data
 * is written before its extents exist even in memory (delayed allocation, file.c).
 * What a commit removed from the disk becomes free only after that commit (pending lists): freed blocks and inode
 * numbers, and an unlinked inode is cleared only after its name is gone. A crash leaves leaks at worst.
 *
 * Numbered commits: what is changed now belongs to running_seq. fsync waits until committed_seq reaches the number that
 * its inode was changed under, then flushes the device.
 *
 * Locks, in order: commit_lock > lock (F) > inode map_lock > dirty_lock (spin). inode->lock of the VFS comes before all.
 * Page faults and write-back take F and map_lock: never touch program memory with them held.
 */
#ifndef EXT4_H
#define EXT4_H
#include "../fs.h"
#include "disk.h"
#include <weir/block.h>
#include <weir/printk.h>

enum ext4_phase { PHASE_BITMAP, PHASE_EXTENT, PHASE_INDEX, PHASE_INODE, PHASE_DIRECTORY, PHASES };

/* A cached metadata block. Key: F */
struct ext4_buffer {
    uint64_t block;             /* I */
    char *data;                 /* F 4 KiB; the page's memory */
    struct page *page;          /* I */
    uint32_t refcount;          /* F */
    uint8_t phase;              /* F */
    bool dirty, checked;        /* F checked: contents were verified after reading */
    bool fresh;                 /* F directory block not yet on disk */
    uint32_t owner_seed;        /* F checksum seed of the directory, for skeletons */
    struct list hash_link, lru_link, dirty_link; /* F */
};

/* Key: F */
struct ext4_group {
    uint64_t block_bitmap, inode_bitmap, inode_table; /* I */
    uint32_t free_blocks, free_inodes, used_dirs, itable_unused; /* F */
    uint32_t block_csum, inode_csum; /* F as stored */
    uint16_t flags;             /* F */
    bool dirty;                 /* F descriptor differs from its buffer */
    bool bad;                   /* F bitmap not trustworthy: nothing allocated or freed here */
};

/* One leaf of a file's extent tree in memory: entries in disk format. Key: m inode's map_lock (and F to change) */
struct ext4_leaf {
    uint64_t block;             /* m where it is on disk; 0 = in the inode */
    uint32_t count, capacity;   /* m */
    bool dirty;                 /* m */
    struct ext4_extent *e;      /* m */
};
struct ext4_map { /* m */
    bool loaded;
    bool index_dirty;           /* index blocks and root must be written anew */
    uint32_t depth;             /* as on disk */
    uint32_t leaf_count, leaf_capacity;
    struct ext4_leaf **leaves;  /* sorted; none empty, except one in the inode */
    uint32_t index_count;
    uint64_t *index_blocks;     /* level-1 index blocks (depth 2), in order; other levels are rebuilt away */
};

struct ext4_fs;
/* inode->private. Key: I, F, m, d fs->dirty_lock */
struct ext4_inode {
    struct inode *vfs;          /* F NULL once evicted */
    struct ext4_fs *fs;         /* I */
    uint32_t ino, generation;   /* I */
    uint32_t seed;              /* I checksum seed */
    uint32_t flags;             /* F */
    uint32_t root[15];          /* F i_block as read; symlinks, devices; extents until loaded */
    uint64_t disk_size;         /* F size whose data are on disk; looked at without F by fast_run, where too little only costs time */
    uint64_t blocks;            /* F 4 KiB blocks in use, tree blocks included */
    uint64_t xattr_block;       /* F */
    uint32_t crtime, crtime_extra; /* I */
    bool fresh;                 /* F not yet written to its slot: clear it first */
    bool is_dir;                /* I */
    struct rw_mutex map_lock;
    struct ext4_map map;
    bool listed;                /* d dirty; a reference of vfs is held */
    bool committing;            /* d on the list of a commit, which holds the reference */
    uint64_t sync_seq, data_seq;/* d commit that has all / what fdatasync needs */
    uint64_t unlink_seq;        /* F commit that removes the last name */
    uint32_t free_hint;         /* F directories: first block that may have room */
    struct list free_link;      /* F fs->to_free */
};

/* What becomes free once commit `seq` is done. */
struct ext4_pending { struct list link; uint64_t seq; uint64_t first; uint32_t count; bool is_inode, is_dir; };

struct ext4_fs {
    struct super_block *sb;      /* I */
    struct block_device *device; /* I */
    struct ext4_super_disk *super; /* F the 1 KiB as read */
    uint32_t inodes_count, blocks_per_group, inodes_per_group, group_count, inode_size, desc_size, first_ino; /* I */
    uint32_t gdt_blocks, inodes_per_block; /* I */
    uint64_t block_count;        /* I */
    bool metadata_csum, gdt_csum;/* I */
    uint32_t csum_seed;          /* I */
    uint16_t mount_state;        /* I s_state as found */
    struct mutex lock;           /* F */
    struct ext4_group *groups;   /* F */
    uint64_t free_blocks, free_inodes; /* a */
    uint64_t reserved;           /* a blocks promised to dirty pages */
    uint32_t goal_group;         /* F */

    struct list *buckets;        /* F buffer hash */
    struct list lru, dirty;      /* F clean unused buffers; dirty ones */
    uint32_t buffer_count, dirty_count, buffer_limit; /* F */

    spinlock_t dirty_lock;
    struct list dirty_inodes;    /* d through ext4 inode's vfs->dirty_link */
    uint64_t running_seq;        /* d (and F) */
    struct mutex commit_lock;    /* one commit at a time */
    uint64_t committed_seq;      /* a */
    uint64_t clean_seq;          /* a commits up to here had nothing to write */
    struct list pending;         /* F */
    struct list to_free;         /* F unlinked, evicted inodes waiting for their names to be gone */
    int error;                   /* a a metadata write failed: no more changes */

    struct mutex flush_lock;     /* guards the three below */
    uint64_t flush_started, flush_done; int flush_status;
    bool flush_running;
    struct wait_queue flush_wait;
};

static inline struct ext4_inode *ext4_i(const struct inode *i) { return i->private; }
static inline struct ext4_fs *ext4_fs_of(const struct inode *i) { return i->sb->private; }

/* ---- buffer.c: F held ---- */
int ext4_buffers_init(struct ext4_fs *fs) __must_check;
void ext4_buffers_destroy(struct ext4_fs *fs);
/* Contents from disk, referenced. -EIO, -ENOMEM, -EUCLEAN (block number outside the file system). */
int ext4_buffer_read(struct ext4_fs *fs, uint64_t block, enum ext4_phase phase, struct ext4_buffer **out) __must_check;
int ext4_buffer_new(struct ext4_fs *fs, uint64_t block, enum ext4_phase phase, struct ext4_buffer **out) __must_check; /* zeroes */
void ext4_buffer_put(struct ext4_fs *fs, struct ext4_buffer *b);
void ext4_buffer_dirty(struct ext4_fs *fs, struct ext4_buffer *b);
void ext4_buffer_forget(struct ext4_fs *fs, uint64_t block); /* the block was freed: never write it */

/* ---- commit.c ---- */
int ext4_commit(struct ext4_fs *fs) __must_check;                    /* all changes made so far; no flush. No lock held */
int ext4_commit_upto(struct ext4_fs *fs, uint64_t seq) __must_check;
int ext4_flush(struct ext4_fs *fs) __must_check;                     /* device cache; shared by concurrent callers */
void ext4_mark_inode(struct ext4_inode *ei, bool data);              /* any lock held */
int ext4_release_space(struct ext4_fs *fs);                          /* commit until nothing is pending */
void ext4_fail(struct ext4_fs *fs, const char *what, int error);     /* stop changing the file system */

/* ---- csum.c ---- */
uint32_t ext4_inode_seed(const struct ext4_fs *fs, uint32_t ino, uint32_t generation);
uint32_t ext4_inode_csum(const struct ext4_fs *fs, uint32_t seed, const char *raw);
bool ext4_inode_csum_ok(const struct ext4_fs *fs, uint32_t seed, const char *raw);
void ext4_inode_csum_set(const struct ext4_fs *fs, uint32_t seed, char *raw);
uint16_t ext4_group_csum(const struct ext4_fs *fs, uint32_t group, const char *desc);
uint32_t ext4_super_csum(const struct ext4_super_disk *s);
uint32_t ext4_block_csum(uint32_t seed, const char *data, size_t len);

/* ---- alloc.c: F held ---- */
int ext4_groups_load(struct ext4_fs *fs) __must_check;
int ext4_groups_store(struct ext4_fs *fs) __must_check; /* dirty descriptors into their buffers */
/* 1..want consecutive blocks near goal. -ENOSPC (some may be pending), -EIO. `meta` may use the last reserve. */
int ext4_blocks_alloc(struct ext4_fs *fs, uint64_t goal, uint32_t want, bool meta, uint64_t *first, uint32_t *got) __must_check;
void ext4_blocks_free_later(struct ext4_fs *fs, uint64_t first, uint32_t count); /* after the running commit */
void ext4_blocks_free_now(struct ext4_fs *fs, uint64_t first, uint32_t count);   /* never referenced on disk */
int ext4_ino_alloc(struct ext4_fs *fs, uint32_t parent, bool directory, uint32_t *ino) __must_check;
void ext4_ino_free_later(struct ext4_fs *fs, uint32_t ino, bool directory);
void ext4_ino_free_now(struct ext4_fs *fs, uint32_t ino, bool directory);
bool ext4_block_ok(const struct ext4_fs *fs, uint64_t first, uint64_t count);
bool ext4_reserve(struct ext4_fs *fs, uint32_t count);
void ext4_unreserve(struct ext4_fs *fs, uint32_t count);

/* ---- extent.c ---- */
struct ext4_mapping { uint64_t first; uint32_t count; bool mapped, unwritten; };
int ext4_map_load(struct ext4_inode *ei) __must_check;  /* F held; idempotent */
/* What is at `block`, and for how many blocks the same goes on (a hole: up to the next extent). map_lock held. */
void ext4_map_find(struct ext4_inode *ei, uint32_t block, struct ext4_mapping *out);
/* The same for callers without locks; loads the tree. */
int ext4_map_lookup(struct ext4_inode *ei, uint32_t block, struct ext4_mapping *out) __must_check;
/* F and map_lock held for writing, tree loaded. Old mappings of the range are freed. */
int ext4_map_set(struct ext4_inode *ei, uint32_t block, uint64_t first, uint32_t count, bool unwritten) __must_check;
int ext4_map_written(struct ext4_inode *ei, uint32_t block, uint32_t count) __must_check; /* unwritten -> written */
int ext4_map_remove(struct ext4_inode *ei, uint32_t from, uint32_t last) __must_check;    /* frees later */
void ext4_map_free_all(struct ext4_inode *ei);          /* every block, tree blocks too: pending */
int ext4_map_store(struct ext4_inode *ei, uint32_t root[15]) __must_check; /* dirty leaves to buffers, root to `root` */
void ext4_map_init_empty(struct ext4_inode *ei);
void ext4_map_destroy(struct ext4_inode *ei);           /* memory only */
uint64_t ext4_map_goal(struct ext4_inode *ei, uint32_t block);

/* ---- inode.c ---- */
int ext4_inode_get(struct ext4_fs *fs, uint32_t ino, struct inode **out) __must_check;       /* F held */
int ext4_inode_make(struct inode *dir, mode_t mode, const struct cred *c, struct inode **out) __must_check; /* F held; nlink 1 */
void ext4_inode_abandon(struct inode *i);               /* F held: a new inode that got no name; the caller puts it after */
int ext4_inode_store(struct ext4_inode *ei, uint64_t seq) __must_check; /* F held: memory -> buffer */
int ext4_inode_clear(struct ext4_inode *ei) __must_check; /* F held: deleted, its name is gone from the disk */
void ext4_inode_free(struct ext4_inode *ei);            /* memory */
extern const struct inode_ops ext4_inode_ops;

/* ---- dir.c: F held ---- */
struct ext4_place { uint32_t index; uint32_t offset, previous; uint64_t block; uint32_t ino; uint8_t type; };
int ext4_dir_find(struct ext4_inode *dir, const char *name, size_t len, struct ext4_place *out) __must_check; /* -ENOENT */
int ext4_dir_add(struct ext4_inode *dir, const char *name, size_t len, uint32_t ino, uint8_t type, uint64_t *block) __must_check;
/* Only into that block: -ENOSPC if it has no room. */
int ext4_dir_add_in(struct ext4_inode *dir, const struct ext4_place *in, const char *name, size_t len, uint32_t ino, uint8_t type) __must_check;
int ext4_dir_remove(struct ext4_inode *dir, const struct ext4_place *p) __must_check;
int ext4_dir_set(struct ext4_inode *dir, const struct ext4_place *p, uint32_t ino, uint8_t type) __must_check;
int ext4_dir_is_empty(struct ext4_inode *dir) __must_check; /* 0 or -ENOTEMPTY */
int ext4_dir_init(struct ext4_inode *dir, uint32_t parent) __must_check;
int ext4_dir_set_parent(struct ext4_inode *dir, uint32_t parent) __must_check;
int ext4_readdir(struct file *f, struct dir_sink *sink, uint64_t *offset);
void ext4_dir_skeleton(struct ext4_fs *fs, uint32_t seed, const char *data, char *out); /* new block without its names */
uint8_t ext4_dir_type(mode_t mode);

/* ---- file.c ---- */
extern const struct pagecache_ops ext4_pagecache_ops;
extern const struct file_ops ext4_file_ops, ext4_dir_ops;
int ext4_truncate(struct inode *i, uint64_t size);
int ext4_fallocate(struct inode *i, int mode, uint64_t offset, uint64_t len);
int ext4_sync_inode(struct inode *i, bool datasync);
int ext4_reserve_page(struct inode *i, struct page *p);

/* ---- super.c ---- */
void ext4_destroy(struct super_block *sb);
#endif
