#include "../fs.h"
int ext4_mount(struct block_device *device, bool read_only, struct super_block **out) { return -ENODEV; }
