/* Cutting a request into parts that the device takes. Pure: looks at the request and the limits. */
#include <weir/atomic.h>
#include <weir/block.h>
#include <weir/errno.h>
#include <weir/printk.h>

static uint64_t sectors_left(const struct block_request *r)
{
    return r->sector + r->sector_count - r->cursor.sector;
}

/* Discard and write zeroes: only a range. */
static uint64_t cut_range(const struct block_request *r)
{
    const struct block_limits *l = &r->device->limits;
    uint64_t max = r->op == BLOCK_DISCARD ? l->max_discard_sectors : l->max_write_zeroes_sectors;
    return MIN(sectors_left(r), max);
}

/* Fill `out` from the cursor on; neighbours in memory become one. Returns the bytes taken. */
static uint64_t gather(struct block_request *r, struct block_segment *out, unsigned *count)
{
    const struct block_limits *l = &r->device->limits;
    uint64_t bytes = 0;
    *count = 0;
    while (r->cursor.segment < r->segment_count && bytes < l->max_bytes) {
        const struct block_segment *s = &r->segments[r->cursor.segment];
        uint64_t phys = s->phys + r->cursor.offset;
        uint32_t left = s->len - r->cursor.offset;
        struct block_segment *last = *count ? &out[*count - 1] : NULL;
        uint32_t room = l->max_segment_bytes;
        bool joins = last && last->phys + last->len == phys && last->len < room;
        if (!joins && *count == l->max_segments)
            break;
        if (joins)
            room -= last->len;
        uint32_t take = (uint32_t)MIN(MIN((uint64_t)left, (uint64_t)room), l->max_bytes - bytes);
        if (joins)
            last->len += take;
        else if (take)
            out[(*count)++] = (struct block_segment){ phys, take };
        bytes += take;
        r->cursor.offset += take;
        if (r->cursor.offset == s->len) {
            r->cursor.segment++;
            r->cursor.offset = 0;
        }
    }
    return bytes;
}

/* Give `excess` bytes back, from the end. */
static void give_back(struct block_request *r, struct block_segment *out, unsigned *count,
                      uint64_t excess)
{
    for (uint64_t left = excess; left;) {
        struct block_segment *last = &out[*count - 1];
        uint32_t take = (uint32_t)MIN(left, (uint64_t)last->len);
        last->len -= take;
        left -= take;
        if (last->len == 0)
            (*count)--;
    }
    while (excess) {
        if (r->cursor.offset == 0)
            r->cursor.offset = r->segments[--r->cursor.segment].len;
        uint32_t take = (uint32_t)MIN(excess, (uint64_t)r->cursor.offset);
        r->cursor.offset -= take;
        excess -= take;
    }
}

/* A flush, or a driver's own: one part, whatever it carries. */
static uint64_t whole(struct block_request *r, struct block_segment *out, unsigned *count)
{
    *count = r->segment_count;
    for (unsigned i = 0; i < r->segment_count; i++)
        out[i] = r->segments[i];
    r->cursor.last = true;
    return 0;
}

static uint64_t cut_data(struct block_request *r, struct block_segment *out, unsigned *count)
{
    uint64_t bytes = gather(r, out, count), excess = bytes % r->device->logical_block;
    /* The total is a multiple, so something odd is left only where a limit cut. */
    give_back(r, out, count, excess);
    return (bytes - excess) >> SECTOR_SHIFT;
}

static bool __attribute__((noinline)) cut(struct block_request *r, struct block_segment *out, unsigned *count,
                                          uint64_t *sectors)
{
    *count = 0;
    if (r->cursor.last)
        return false;
    if (r->op == BLOCK_FLUSH || r->op == BLOCK_DRIVER_PRIVATE) {
        *sectors = whole(r, out, count);
        return true;
    }
    if (r->op == BLOCK_DISCARD || r->op == BLOCK_WRITE_ZEROES)
        *sectors = cut_range(r);
    else
        *sectors = cut_data(r, out, count);
    if (*sectors == 0) {
        log_warn("%s: %u segments cannot hold a block of %u bytes", r->device->name,
                 r->device->limits.max_segments, r->device->logical_block);
        int32_t none = 0;
        (void)atomic_cas(&r->status, &none, -EINVAL);
        return false;
    }
    r->cursor.sector += *sectors;
    r->cursor.last = sectors_left(r) == 0;
    if (!r->cursor.last)
        atomic_fetch_add(&r->pieces, 1);
    return true;
}

/* One segment that fits as it is: what nearly all reads and writes of pages are. */
static bool is_plain(const struct block_request *r)
{
    const struct block_limits *l = &r->device->limits;
    return r->op <= BLOCK_WRITE && r->segment_count == 1 && !r->cursor.last && r->cursor.sector == r->sector &&
           r->segments[0].len <= l->max_segment_bytes && r->segments[0].len <= l->max_bytes;
}

bool block_split_next(struct block_request *r, struct block_segment *out, unsigned *count,
                      uint64_t *sector, uint64_t *sectors)
{
    *sector = r->cursor.sector;
    if (!is_plain(r))
        return cut(r, out, count, sectors);
    out[0] = r->segments[0];
    *count = 1;
    *sectors = r->sector_count;
    r->cursor.sector += r->sector_count;
    r->cursor.last = true;
    return true;
}

void block_split_undo(struct block_request *r, const struct block_cursor *before)
{
    if (!r->cursor.last)
        atomic_fetch_sub(&r->pieces, 1); /* never the last: the splitting counts too */
    r->cursor = *before;
}
