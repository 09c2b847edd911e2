/*
 * Page cache of one inode: pages by index, filled and written back by the file system. Also the memory
 * object behind MAP_SHARED and MAP_PRIVATE file mappings.
 */
#ifndef WEIR_PAGECACHE_H
#define WEIR_PAGECACHE_H
#include <weir/mm.h>
#include <weir/spinlock.h>

struct pagecache_ops {
    /* Fill locked page (not up to date). Beyond the end: zeroes. 0 or -errno. Thread context, waits. */
    int (*read_page)(struct pagecache *c, struct page *p);
    /* Start reading a run of locked pages, consecutive indexes, with few requests (read-ahead). Each page ends
     * through pagecache_end_read, on failure too. May be NULL. */
    void (*read_pages)(struct pagecache *c, struct page **pages, unsigned count);
    /* Start writing pages (ascending, dirty bit cleared, PAGE_WRITEBACK set). Each page ends through
     * pagecache_end_writeback, on failure too; may wait where blocks must be allocated. */
    void (*write_pages)(struct pagecache *c, struct page **pages, unsigned count);
    /* Page leaves the cache (truncate, reclaim, destroy). Spinlocks held: must not block. May be NULL. */
    void (*drop_page)(struct pagecache *c, struct page *p, bool dirty);
    /* Keep the owner while it has dirty pages. release may block. */
    void (*hold)(struct pagecache *c);
    void (*release)(struct pagecache *c);
};
/* Key: P lock, I immutable, a atomic, D the dirty list's lock (writeback.c) */
struct pagecache {
    spinlock_t lock;               /* P not for interrupt context; order: before the LRU locks */
    void *tree;                    /* P radix tree of struct page *, private to pagecache.c */
    uint64_t page_count, dirty_count; /* P */
    const struct pagecache_ops *ops;/* I NULL: memory only (tmpfs, shared anonymous) */
    void *owner;                   /* I struct inode * */
    uint32_t error_sequence;       /* a bumped on each write-back error (Linux errseq) */
    int error;                     /* a latest write-back error */
    struct list dirty_link;        /* D */
    uint64_t dirtied_ns;           /* D when it became dirty */
    bool listed;                   /* D on the dirty list; a reference of the owner is held */
};

void pagecache_init(struct pagecache *c, const struct pagecache_ops *ops, void *owner);
void pagecache_destroy(struct pagecache *c);   /* all pages dropped, dirty ones too */
/* The page at index, up to date, with a reference. Reads it (blocks) or, without ops, makes a zero page.
 * -EIO, -ENOMEM. The caller checks the end of file. Takes page locks only, never an inode lock: safe in the
 * page-fault path even when the faulting thread is inside write() of the same file. */
int pagecache_get_page(struct pagecache *c, uint64_t index, struct page **out) __must_check;
struct page *pagecache_find(struct pagecache *c, uint64_t index); /* referenced if present and up to date, else NULL */
/* Put an up-to-date page, not in any cache, at index; the cache takes a reference of its own. -EEXIST, -ENOMEM. */
int pagecache_add_page(struct pagecache *c, uint64_t index, struct page *p) __must_check;
/* Start reading the absent pages of [first, first + count); does not wait. */
void pagecache_readahead(struct pagecache *c, uint64_t first, unsigned count);
void pagecache_mark_dirty(struct page *p);
/* A writable shared mapping of the page was made / removed (keeps it dirty meanwhile). */
void pagecache_map_writable(struct page *p);
void pagecache_unmap_writable(struct page *p);
/* Drop pages from first on (truncate); a partial last page is the file system's business. Existing
 * mappings are removed through the unmap hook, before and after. Waits for I/O on the pages. */
void pagecache_truncate(struct pagecache *c, uint64_t first_index);
void pagecache_set_unmap_hook(void (*fn)(struct pagecache *c, uint64_t first_index));
/* Drop clean, unused pages of [first, last] (POSIX_FADV_DONTNEED); returns how many went. */
uint64_t pagecache_drop_clean(struct pagecache *c, uint64_t first, uint64_t last);
/* Write back dirty pages in [first, last] and wait. 0 or first error. */
int pagecache_write_and_wait(struct pagecache *c, uint64_t first, uint64_t last) __must_check;
int pagecache_start_write(struct pagecache *c, uint64_t first, uint64_t last) __must_check; /* no wait */
int pagecache_wait(struct pagecache *c, uint64_t first, uint64_t last) __must_check; /* write-back under way; 0 or error seen */
void pagecache_end_read(struct page *p, int status);      /* any context */
void pagecache_end_writeback(struct page *p, int status); /* any context */
/* errseq: *seen is the sequence that an open file description saw last. 0, or the error once. */
int pagecache_check_error(struct pagecache *c, uint32_t *seen);
/* Called by writers after dirtying, no lock held: waits while too much of memory is dirty. */
void pagecache_throttle(void);
/* Pages; for /proc/meminfo. */
struct pagecache_counts { uint64_t cached, dirty, writeback, shmem; };
void pagecache_counts(struct pagecache_counts *out);
#endif
