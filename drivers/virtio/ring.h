/*
 * A virtqueue's ring in memory (virtio 1.2 sections 2.6 to 2.8): descriptors out, completions in.
 * It knows no transport, no PCI, no device type; the split and the packed layout stand behind the
 * same functions.
 *
 * The caller allocates the shared memory, makes the ring over it, tells the device the addresses,
 * and destroys the ring after the device (or the queue) was reset. A ring has no lock: its owner
 * serialises every call except ring_has_used, which may be called at any time as a hint.
 *
 * Nothing that the device writes is trusted. A completion with an id that is not outstanding, a
 * length larger than what was posted, or an index that ran ahead breaks the ring: from then on
 * ring_add gives -EIO and ring_get NULL, and ring_fault says why.
 */
#ifndef WEIR_VIRTIO_RING_H
#define WEIR_VIRTIO_RING_H
#include <weir/compiler.h>
#include <weir/virtio.h>

#define RING_SIZE_MAX 32768u

/* What is common: which layout it is. The rest is ring_split.c's or ring_packed.c's. */
struct ring {
    bool packed; /* I */
};

/* Physically contiguous, zeroed, page-aligned memory that driver and device share. */
struct ring_memory {
    void *virt;
    uint64_t phys;
    size_t bytes;
};
struct ring_config {
    unsigned size;               /* descriptors; split: a power of two */
    bool event_index;            /* VIRTIO_F_EVENT_IDX was negotiated */
    bool page_aligned;           /* split: the used ring starts a page, as legacy devices have it */
    bool strong_barriers;        /* VIRTIO_F_ORDER_PLATFORM: the device is not one of our CPUs */
    struct ring_memory parts;    /* at least ring_split_bytes(size) */
    struct ring_memory tables;   /* for indirect tables; bytes 0 = not negotiated, or no memory */
    unsigned table_entries;      /* entries of one table, 2..size */
};
struct ring_addresses {
    uint64_t descriptors, driver, device;
};
enum ring_fault {
    RING_OK,
    RING_FAULT_INDEX,            /* used index ahead by more than is outstanding */
    RING_FAULT_ID,               /* id not below the size */
    RING_FAULT_NOT_OUTSTANDING,  /* id in range, but not given to the device */
    RING_FAULT_LENGTH,           /* more written than was writable */
};

/* Bytes of shared memory that a split ring of `size` descriptors needs. */
size_t ring_split_bytes(unsigned size, bool page_aligned);
/* NULL: no memory, or the configuration is impossible (size not a power of two or over 32768, parts
 * too small). Thread context. The shared memory stays the caller's. */
struct ring *ring_split_create(const struct ring_config *config) __must_check;
/* The same for a packed ring; its size need not be a power of two. */
size_t ring_packed_bytes(unsigned size);
struct ring *ring_packed_create(const struct ring_config *config) __must_check;
const char *ring_fault_text(enum ring_fault fault);

/*
 * The rest is one function for both layouts: RING_CALLS names them, and each is a branch to the layout's own.
 * Any context, unless stated otherwise.
 *
 * destroy             after the device or the queue was reset. Thread context.
 * addresses           what the device is to be told
 * size, free          descriptors; those free now
 * in_flight           chains that the device has
 * fault               why the ring is broken
 * add                 Give the device a chain: `out` readable buffers, then `in` writable ones. The cookie (not
 *                     NULL) comes back from get. 0; -ENOSPC full now; -E2BIG never fits (more than `size`
 *                     buffers, or over 4 GiB); -EINVAL nothing to add, or an empty buffer; -EIO broken.
 * kick_prepare        True if the device asked for a doorbell for anything added since the last call.
 * get                 Next completion: its cookie and the bytes written. NULL: none, or the ring is broken.
 * interrupts_enable   Ask for an interrupt with the next completion; true if one is there already.
 * detach              The device is reset: take back any chain still outstanding. NULL = none left.
 * reset               The device (or the queue) is reset and nothing is outstanding: as new, fault included.
 */
#define RING_CALLS(CALL)                                                                            \
    CALL(void, destroy, (struct ring *r), (r))                                                      \
    CALL(struct ring_addresses, addresses, (const struct ring *r), (r))                             \
    CALL(unsigned, size, (const struct ring *r), (r))                                               \
    CALL(unsigned, free, (const struct ring *r), (r))                                               \
    CALL(unsigned, in_flight, (const struct ring *r), (r))                                          \
    CALL(enum ring_fault, fault, (const struct ring *r), (r))                                       \
    CALL(int, add, (struct ring *r, const struct virtio_buffer *bufs, unsigned out, unsigned in,    \
                    void *cookie), (r, bufs, out, in, cookie))                                      \
    CALL(bool, kick_prepare, (struct ring *r), (r))                                                 \
    CALL(void *, get, (struct ring *r, uint32_t *len), (r, len))                                    \
    CALL(bool, has_used, (const struct ring *r), (r))                                               \
    CALL(void, interrupts_disable, (struct ring *r), (r))                                           \
    CALL(bool, interrupts_enable, (struct ring *r), (r))                                            \
    CALL(void *, detach, (struct ring *r), (r))                                                     \
    CALL(void, reset, (struct ring *r), (r))

#define RING_DISPATCH(type, name, parameters, arguments)                                            \
    type split_##name parameters;                                                                   \
    type packed_##name parameters;                                                                  \
    static inline type ring_##name parameters                                 \
    {                                                                                               \
        return r->packed ? packed_##name arguments : split_##name arguments;                        \
    }
RING_CALLS(RING_DISPATCH)
#undef RING_DISPATCH
#endif
