/* virtio-blk on the wire (virtio 1.2 section 5.2). */
#ifndef WEIR_BLK_WIRE_H
#define WEIR_BLK_WIRE_H
#include <weir/compiler.h>

#define BLK_TYPE 2u /* virtio device type */

enum blk_feature {
    BLK_F_SIZE_MAX = 1,
    BLK_F_SEG_MAX = 2,
    BLK_F_RO = 5,
    BLK_F_BLK_SIZE = 6,
    BLK_F_FLUSH = 9,
    BLK_F_TOPOLOGY = 10,
    BLK_F_CONFIG_WCE = 11,
    BLK_F_MQ = 12,
    BLK_F_DISCARD = 13,
    BLK_F_WRITE_ZEROES = 14,
};

/* Offsets in the device configuration; a field is there only with its feature. */
enum blk_config {
    BLK_CONFIG_CAPACITY = 0,             /* 64 bits, sectors of 512 */
    BLK_CONFIG_SIZE_MAX = 8,
    BLK_CONFIG_SEG_MAX = 12,
    BLK_CONFIG_BLK_SIZE = 20,
    BLK_CONFIG_PHYSICAL_EXP = 24,        /* 8 bits */
    BLK_CONFIG_WRITEBACK = 32,           /* 8 bits */
    BLK_CONFIG_NUM_QUEUES = 34,          /* 16 bits */
    BLK_CONFIG_MAX_DISCARD_SECTORS = 36,
    BLK_CONFIG_MAX_DISCARD_SEG = 40,
    BLK_CONFIG_MAX_WRITE_ZEROES_SECTORS = 48,
};

enum blk_request_type {
    BLK_T_IN = 0,
    BLK_T_OUT = 1,
    BLK_T_FLUSH = 4,
    BLK_T_GET_ID = 8,
    BLK_T_DISCARD = 11,
    BLK_T_WRITE_ZEROES = 13,
};
#define BLK_ID_BYTES 20u

struct blk_header { /* device reads */
    uint32_t type;
    uint32_t reserved;
    uint64_t sector;
};
struct blk_range {  /* the data of a discard or write-zeroes; device reads */
    uint64_t sector;
    uint32_t sectors;
    uint32_t flags; /* bit 0: may unmap, write zeroes only */
};
enum blk_status { /* one byte, device writes, last */
    BLK_S_OK = 0,
    BLK_S_IOERR = 1,
    BLK_S_UNSUPP = 2,
    BLK_S_PRESET = 0xff, /* no device writes this: it did not write at all */
};
#endif
