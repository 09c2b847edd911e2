/* virtio-blk: finding, negotiating and starting disks; resize; fencing. The data path is blk_queue.c. */
#include <weir/atomic.h>
#include <weir/cmdline.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "virtio_blk.h"

/* More segments than this in one device request gain nothing and cost table memory. */
#define SEGMENTS_MAX    62u
#define REQUEST_BYTES_MAX (4u << 20)

#define WANTED                                                                                   \
    (1ULL << BLK_F_SIZE_MAX | 1ULL << BLK_F_SEG_MAX | 1ULL << BLK_F_RO | 1ULL << BLK_F_BLK_SIZE |  \
     1ULL << BLK_F_FLUSH | 1ULL << BLK_F_TOPOLOGY | 1ULL << BLK_F_CONFIG_WCE | 1ULL << BLK_F_MQ | \
     1ULL << BLK_F_DISCARD | 1ULL << BLK_F_WRITE_ZEROES)

/* ---- what the device says about itself ---- */

/* One queue for each CPU, and blk.poll_queues=M more for polled requests; of fewer, one at least has interrupts. */
static void divide_queues(struct blk_disk *disk)
{
    struct virtio_device *v = disk->virtio;
    unsigned offered = 1, wanted = (unsigned)MIN(cmdline_u64("blk.poll_queues", 0), (uint64_t)CPU_MAX);
    if (virtio_has(v, BLK_F_MQ))
        offered = MAX(virtio_config_read16(v, BLK_CONFIG_NUM_QUEUES), 1u);
    offered = MAX(MIN(offered, virtio_queue_count(v)), 1u);
    disk->block.poll_queue_count = MIN(MIN(wanted, cpu_count()), offered - 1);
    disk->block.queue_count = MIN(offered, cpu_count() + disk->block.poll_queue_count);
}

static bool valid_block_size(uint32_t bytes)
{
    return bytes >= SECTOR_SIZE && bytes <= 65536 && (bytes & (bytes - 1)) == 0;
}

static int read_geometry(struct blk_disk *disk)
{
    struct virtio_device *v = disk->virtio;
    struct block_device *b = &disk->block;
    b->capacity_sectors = virtio_config_read64(v, BLK_CONFIG_CAPACITY);
    b->logical_block = SECTOR_SIZE;
    if (virtio_has(v, BLK_F_BLK_SIZE))
        b->logical_block = virtio_config_read32(v, BLK_CONFIG_BLK_SIZE);
    if (!valid_block_size(b->logical_block)) {
        log_error("%s: block size of %u bytes cannot be used", v->name, b->logical_block);
        return -EINVAL;
    }
    b->physical_block = b->logical_block;
    if (virtio_has(v, BLK_F_TOPOLOGY))
        b->physical_block <<= virtio_config_read8(v, BLK_CONFIG_PHYSICAL_EXP) & 7;
    b->read_only = virtio_has(v, BLK_F_RO);
    /* Without FLUSH there is no volatile cache to speak of; with it, assume one, unless the device says that it
     * writes through now. Only we could change that, and we do not. */
    b->has_flush = virtio_has(v, BLK_F_FLUSH);
    if (virtio_has(v, BLK_F_CONFIG_WCE))
        b->has_flush &= virtio_config_read8(v, BLK_CONFIG_WRITEBACK) != 0;
    return 0;
}

static int read_limits(struct blk_disk *disk)
{
    struct virtio_device *v = disk->virtio;
    struct block_limits *l = &disk->block.limits;
    /* Header and status are not segments for seg_max, but take ring descriptors. */
    l->max_segments = virtio_has(v, BLK_F_SEG_MAX) ? virtio_config_read32(v, BLK_CONFIG_SEG_MAX) : 1;
    l->max_segments = MAX(MIN(l->max_segments, SEGMENTS_MAX), 1u);
    uint32_t size_max = UINT32_MAX;
    if (virtio_has(v, BLK_F_SIZE_MAX))
        size_max = virtio_config_read32(v, BLK_CONFIG_SIZE_MAX);
    l->max_segment_bytes = ALIGN_DOWN(MIN(size_max, REQUEST_BYTES_MAX), SECTOR_SIZE);
    if (l->max_segment_bytes == 0) {
        log_error("%s: segments of at most %u bytes cannot be used", v->name, size_max);
        return -EINVAL;
    }
    l->max_bytes = REQUEST_BYTES_MAX;
    if (virtio_has(v, BLK_F_DISCARD) && virtio_config_read32(v, BLK_CONFIG_MAX_DISCARD_SEG)) {
        l->max_discard_sectors = virtio_config_read32(v, BLK_CONFIG_MAX_DISCARD_SECTORS);
    }
    if (virtio_has(v, BLK_F_WRITE_ZEROES))
        l->max_write_zeroes_sectors = virtio_config_read32(v, BLK_CONFIG_MAX_WRITE_ZEROES_SECTORS);
    unsigned block_sectors = disk->block.logical_block >> SECTOR_SHIFT;
    l->max_discard_sectors = ALIGN_DOWN(l->max_discard_sectors, (uint64_t)block_sectors);
    l->max_write_zeroes_sectors = ALIGN_DOWN(l->max_write_zeroes_sectors, (uint64_t)block_sectors);
    disk->block.has_discard = l->max_discard_sectors != 0;
    disk->block.has_write_zeroes = l->max_write_zeroes_sectors != 0;
    return 0;
}

/* ---- life ---- */

static void blk_free(struct blk_disk *disk)
{
    if (disk->virtio) {
        virtio_stop(disk->virtio);
        for (unsigned i = 0; disk->queues && i < disk->block.queue_count; i++) {
            kfree(disk->queues[i].slots);
            kfree(disk->queues[i].buffers);
        }
        virtio_shutdown(disk->virtio);
        virtio_pci_destroy(disk->virtio);
    }
    kfree(disk->queues);
    kfree(disk);
}

void blk_release(struct block_device *d)
{
    blk_free(d->driver_data);
}

/* Requests in flight end with -ENODEV, sleepers for room included. The memory stays until the last user
 * of the block device lets go. */
static void blk_remove(struct pci_device *pci, bool surprise)
{
    struct blk_disk *disk = pci->driver_data;
    block_unregister(&disk->block);
    virtio_stop(disk->virtio);
    for (unsigned i = 0; i < disk->block.queue_count; i++)
        blk_queue_abort(&disk->queues[i], -ENODEV);
    log_info("%s: %s", disk->block.name, surprise ? "has vanished" : "unplugged");
    block_put(&disk->block);
}

static void blk_fenced(struct virtio_device *v);

static int negotiate(struct blk_disk *disk)
{
    int error = virtio_reset(disk->virtio);
    if (!error)
        error = virtio_negotiate(disk->virtio, WANTED, 0);
    if (!error)
        error = read_geometry(disk);
    if (!error)
        error = read_limits(disk);
    if (error)
        return error;
    divide_queues(disk);
    disk->batch = (unsigned)MAX(MIN(cmdline_u64("blk.batch", UINT32_MAX), (uint64_t)UINT32_MAX), 1UL);
    unsigned served = disk->block.queue_count - disk->block.poll_queue_count;
    return virtio_demand(disk->virtio, IRQ_CLASS_BLOCK, served, true);
}

static int blk_probe(struct pci_device *pci)
{
    struct blk_disk *disk = kzalloc(sizeof(*disk));
    if (!disk)
        return -ENOMEM;
    disk->virtio = virtio_pci_create(pci, "virtio-blk");
    if (!disk->virtio) {
        kfree(disk);
        return -ENODEV;
    }
    disk->virtio->driver_data = disk;
    disk->virtio->on_fenced = blk_fenced;
    disk->block.driver_data = disk;
    disk->block.ops = &blk_block_ops;
    int error = negotiate(disk);
    if (error) {
        blk_free(disk);
        return error;
    }
    pci->driver_data = disk;
    return 0;
}

/* Configuration interrupt: the only thing that changes is the size. */
static bool config_changed(void *arg)
{
    struct blk_disk *disk = arg;
    uint64_t sectors = virtio_config_read64(disk->virtio, BLK_CONFIG_CAPACITY);
    uint64_t before = atomic_load_relaxed(&disk->block.capacity_sectors);
    if (sectors == before)
        return false;
    atomic_store_relaxed(&disk->block.capacity_sectors, sectors);
    log_info("%s: resized from %lu to %lu MiB", disk->block.name, (unsigned long)(before >> 11),
             (unsigned long)(sectors >> 11));
    return true;
}

static const struct irq_service config_service = { .serve = config_changed };

/* What was in flight ends with an error: whether the device did it nobody knows, and to say so is the one honest answer
 * (rule 20). What comes after the recovery finds a working disk. */
static void blk_fenced(struct virtio_device *v)
{
    struct blk_disk *disk = v->driver_data;
    unsigned count = disk->block.queue_count;
    for (unsigned i = 0; i < count; i++)
        blk_queue_abort(&disk->queues[i], atomic_load_relaxed(&v->vanished) ? -ENODEV : -EIO);
    if (virtio_recover(v))
        return;
    for (unsigned i = 0; i < count; i++) {
        if (blk_queue_restart(&disk->queues[i])) {
            virtio_give_up(v, "it does not take its queues back");
            return;
        }
    }
    if (!virtio_resume(v))
        return;
    (void)config_changed(disk);
    for (unsigned i = 0; i < count; i++) /* arms the interrupts */
        (void)blk_queue_service.serve(&disk->queues[i]);
}

/* Rings first, then who serves them, then DRIVER_OK; interrupts are armed by the first serve. */
static int start_queues(struct blk_disk *disk)
{
    unsigned count = disk->block.queue_count;
    disk->queues = kcalloc(count, sizeof(disk->queues[0]));
    if (!disk->queues)
        return -ENOMEM;
    for (unsigned i = 0; i < count; i++) {
        int error = blk_queue_start(disk, i);
        if (error)
            return error;
        struct block_limits *l = &disk->block.limits;
        unsigned ring = virtqueue_max_segments(disk->queues[i].vq);
        if (ring < 3) {
            log_error("%s: a ring of %u entries holds no request", disk->virtio->name, ring);
            return -EINVAL;
        }
        l->max_segments = MIN(l->max_segments, ring - 2);
    }
    for (unsigned i = 0; i < count - disk->block.poll_queue_count; i++) {
        struct blk_queue *q = &disk->queues[i];
        q->interrupts = irq_grant_of(disk->virtio->irq, i) != IRQ_GRANT_POLLED;
        enum irq_grant grant = irq_bind(disk->virtio->irq, i, i, &blk_queue_service, q);
        q->interrupts = grant != IRQ_GRANT_POLLED;
    }
    return virtio_config_start(disk->virtio, 0, &config_service, disk);
}

/* The device's id, 20 bytes that need not be terminated. */
static void read_serial(struct blk_disk *disk)
{
    char *id = kzalloc(BLK_ID_BYTES + 1);
    if (!id)
        return;
    struct block_segment segment = { virt_to_phys(id), BLK_ID_BYTES };
    struct block_request r = {
        .device = &disk->block,
        .op = BLOCK_DRIVER_PRIVATE,
        .segments = &segment,
        .segment_count = 1,
    };
    if (block_submit_wait(&r) == 0)
        str_copy(disk->block.serial, id, sizeof(disk->block.serial));
    kfree(id);
}

static int blk_start(struct pci_device *pci)
{
    struct blk_disk *disk = pci->driver_data;
    int error = start_queues(disk);
    if (error) {
        log_error("%s: does not start: error %d", disk->virtio->name, -error);
        blk_free(disk);
        return error;
    }
    virtio_driver_ok(disk->virtio);
    error = block_register(&disk->block);
    if (error) {
        blk_free(disk);
        return error;
    }
    read_serial(disk);
    struct block_device *b = &disk->block;
    char polled[32] = "";
    if (b->poll_queue_count)
        snprintf(polled, sizeof(polled), " (%u polled)", b->poll_queue_count);
    log_info("%s: %s, %lu MiB, blocks of %u, %u queues%s of %u%s%s%s%s", b->name, disk->virtio->name,
             (unsigned long)(b->capacity_sectors >> 11), b->logical_block, b->queue_count, polled,
             virtqueue_size(disk->queues[0].vq), b->read_only ? ", read-only" : "",
             b->has_flush ? ", flush" : "", *b->serial ? ", serial " : "", b->serial);
    return 0;
}

static bool blk_match(const struct pci_device *pci)
{
    return virtio_pci_match(pci, BLK_TYPE);
}

static const struct pci_driver virtio_blk_driver = {
    .name = "virtio-blk",
    .match = blk_match,
    .probe = blk_probe,
    .start = blk_start,
    .remove = blk_remove,
};
PCI_DRIVER(virtio_blk_driver);
