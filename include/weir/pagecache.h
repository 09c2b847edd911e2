/*
 * Page cache of one inode: pages by index, filled and written back by the file system. Also the memory
 * object behind MAP_SHARED and MAP_PRIVATE file mappings.
 */
#ifndef WEIR_PAGECACHE_H
#define WEIR_PAGECACHE_H
#include <weir/mm.h>
#include <weir/spinlock.h>

struct pagecache_ops {
    /* Fill locked page (not up to date). Beyond the end: zeroes. 0 or -errno. */
    int (*read_page)(struct pagecache *c, struct page *p);
    /* Read a run of absent pages with few requests (read-ahead); may be NULL. */
    int (*read_pages)(struct pagecache *c, struct page **pages, unsigned count);
    /* Start writing pages (ascending, dirty bit cleared, PAGE_WRITEBACK set); ends through
     * pagecache_end_writeback from a completion. */
    int (*write_pages)(struct pagecache *c, struct page **pages, unsigned count);
};
struct pagecache {
    spinlock_t lock;               /* P */
    void *tree;                    /* P radix tree of struct page *, private to pagecache.c */
    uint64_t page_count, dirty_count; /* P */
    const struct pagecache_ops *ops;/* I NULL: memory only (tmpfs, shared anonymous) */
    void *owner;                   /* I struct inode * */
    uint32_t error_sequence;       /* a bumped on each write-back error (Linux errseq) */
    int error;                     /* a latest write-back error */
};

void pagecache_init(struct pagecache *c, const struct pagecache_ops *ops, void *owner);
void pagecache_destroy(struct pagecache *c);   /* all pages dropped, dirty ones too */
/* The page at index, up to date, with a reference. Reads it (blocks) or, without ops, makes a zero page.
 * -EIO, -ENOMEM. The caller checks the end of file. */
int pagecache_get_page(struct pagecache *c, uint64_t index, struct page **out) __must_check;
struct page *pagecache_find(struct pagecache *c, uint64_t index); /* referenced if present and up to date, else NULL */
void pagecache_mark_dirty(struct page *p);
/* A writable shared mapping of the page was made / removed (keeps it dirty meanwhile). */
void pagecache_map_writable(struct page *p);
void pagecache_unmap_writable(struct page *p);
/* Drop pages from first on (truncate); a partial last page is the file system's business. Existing
 * mappings are removed by the caller through pagecache_set_unmap_hook's function. */
void pagecache_truncate(struct pagecache *c, uint64_t first_index);
void pagecache_set_unmap_hook(void (*fn)(struct pagecache *c, uint64_t first_index));
/* Write back dirty pages in [first, last] and wait. 0 or first error. */
int pagecache_write_and_wait(struct pagecache *c, uint64_t first, uint64_t last) __must_check;
int pagecache_start_write(struct pagecache *c, uint64_t first, uint64_t last) __must_check; /* no wait */
void pagecache_end_writeback(struct page *p, int status); /* any context */
#endif
