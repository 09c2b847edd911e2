/* Raw block devices as files (/dev/vda): private = struct block_device. */
#ifndef FS_BLOCKDEV_H
#define FS_BLOCKDEV_H
#include <weir/vfs.h>
extern const struct file_ops blockdev_ops;
#endif
