#include "radix.h"
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/string.h>

#define SHIFT 6
#define SLOTS 64

/* Key: all under the lock of the tree's owner. */
struct radix_node {
    uint8_t shift;              /* of the index bits that choose a slot here; 0 = leaf */
    uint8_t slot;               /* in the parent */
    uint16_t count;
    struct radix_node *parent;
    uint64_t tags[RADIX_TAGS];  /* bit per slot: it, or something below it, is tagged */
    void *slots[SLOTS];
};

static struct radix_node *node_new(unsigned shift)
{
    struct radix_node *n = kzalloc(sizeof *n);
    if (n)
        n->shift = (uint8_t)shift;
    return n;
}
static unsigned slot_of(const struct radix_node *n, uint64_t index) { return (index >> n->shift) & (SLOTS - 1); }
static bool covers(const struct radix_node *root, uint64_t index)
{
    return root->shift + SHIFT >= 64 || !(index >> (root->shift + SHIFT));
}

static struct radix_node *leaf_of(void *root, uint64_t index)
{
    struct radix_node *n = root;
    if (!n || !covers(n, index))
        return NULL;
    while (n && n->shift)
        n = n->slots[slot_of(n, index)];
    return n;
}

void *radix_get(void *root, uint64_t index)
{
    struct radix_node *leaf = leaf_of(root, index);
    return leaf ? leaf->slots[index & (SLOTS - 1)] : NULL;
}

/* Put a node above the root until it covers index. */
static int grow(struct radix_node **root, uint64_t index)
{
    while (!covers(*root, index)) {
        if (!(*root)->count) { /* new: it may as well be higher */
            (*root)->shift = (uint8_t)((*root)->shift + SHIFT);
            continue;
        }
        struct radix_node *top = node_new((*root)->shift + SHIFT);
        if (!top)
            return -ENOMEM;
        top->slots[0] = *root;
        top->count = 1;
        for (unsigned t = 0; t < RADIX_TAGS; t++)
            top->tags[t] = (*root)->tags[t] ? 1 : 0;
        (*root)->parent = top;
        (*root)->slot = 0;
        *root = top;
    }
    return 0;
}

/* Free empty nodes upwards; a root whose only child is in slot 0 stays (it may be needed again soon). */
static void prune(void **root, struct radix_node *n)
{
    while (n && !n->count) {
        struct radix_node *parent = n->parent;
        if (parent) {
            parent->slots[n->slot] = NULL;
            parent->count--;
        } else {
            *root = NULL;
        }
        kfree(n);
        n = parent;
    }
}

int radix_insert(void **root, uint64_t index, void *item)
{
    struct radix_node *top = *root;
    if (!top && !(*root = top = node_new(0)))
        return -ENOMEM;
    int r = grow(&top, index);
    *root = top;
    if (r) {
        prune(root, leaf_of(*root, 0));
        return r;
    }
    struct radix_node *n = top;
    while (n->shift) {
        unsigned slot = slot_of(n, index);
        struct radix_node *child = n->slots[slot];
        if (!child) {
            child = node_new(n->shift - SHIFT);
            if (!child) {
                prune(root, n);
                return -ENOMEM;
            }
            child->parent = n;
            child->slot = (uint8_t)slot;
            n->slots[slot] = child;
            n->count++;
        }
        n = child;
    }
    void **slot = &n->slots[index & (SLOTS - 1)];
    if (*slot)
        return -EEXIST;
    *slot = item;
    n->count++;
    return 0;
}

void radix_tag_clear(void *root, uint64_t index, enum radix_tag tag)
{
    for (struct radix_node *n = leaf_of(root, index); n; n = n->parent) {
        n->tags[tag] &= ~(1ULL << slot_of(n, index));
        if (n->tags[tag])
            break;
    }
}
void radix_tag_set(void *root, uint64_t index, enum radix_tag tag)
{
    for (struct radix_node *n = leaf_of(root, index); n; n = n->parent)
        n->tags[tag] |= 1ULL << slot_of(n, index);
}

void *radix_remove(void **root, uint64_t index)
{
    struct radix_node *leaf = leaf_of(*root, index);
    void *item = leaf ? leaf->slots[index & (SLOTS - 1)] : NULL;
    if (!item)
        return NULL;
    for (unsigned t = 0; t < RADIX_TAGS; t++)
        radix_tag_clear(*root, index, t);
    leaf->slots[index & (SLOTS - 1)] = NULL;
    leaf->count--;
    prune(root, leaf);
    return item;
}

/* First used (or tagged) slot at or after `from`, SLOTS if none. */
static unsigned next_slot(const struct radix_node *n, unsigned from, int tag)
{
    if (tag >= 0) {
        uint64_t left = from < SLOTS ? n->tags[tag] >> from << from : 0;
        return left ? (unsigned)__builtin_ctzll(left) : SLOTS;
    }
    while (from < SLOTS && !n->slots[from])
        from++;
    return from;
}

static void *search(void *root, uint64_t *index, uint64_t last, int tag)
{
    struct radix_node *n = root;
    uint64_t at = *index;
    if (!n || at > last || !covers(n, at))
        return NULL;
    for (;;) {
        unsigned want = slot_of(n, at);
        unsigned slot = next_slot(n, want, tag);
        if (slot == SLOTS) {
            /* Nothing here: on to the next slot of the nearest ancestor that has one. */
            uint64_t region = 1ULL << (n->shift + SHIFT);
            uint64_t next = ALIGN_DOWN(at, region) + region;
            do {
                n = n->parent;
            } while (n && slot_of(n, next) == 0);
            if (!n || next < at)
                return NULL;
            at = next;
            if (at > last)
                return NULL;
            continue;
        }
        if (slot != want)
            at = (((at >> n->shift) & ~(uint64_t)(SLOTS - 1)) | slot) << n->shift;
        if (at > last)
            return NULL;
        if (!n->shift) {
            *index = at;
            return n->slots[slot];
        }
        n = n->slots[slot];
    }
}
void *radix_next(void *root, uint64_t *index, uint64_t last) { return search(root, index, last, -1); }
void *radix_next_tagged(void *root, uint64_t *index, uint64_t last, enum radix_tag tag)
{
    return search(root, index, last, (int)tag);
}
