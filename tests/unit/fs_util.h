/* Shorthand for tests on the mounted file system, all as root. */
#ifndef FS_UTIL_H
#define FS_UTIL_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>
#include "core/fs/fs.h"
#include "core/fs/ext4/ext4.h"
#include "fs_disk.h"
#include "host.h"

static struct super_block *mounted;
static inline void mount_fs(struct disk *d)
{
    assert_int_equal(ext4_mount(&d->device, false, &mounted), 0);
    assert_int_equal(super_mount_at(mounted, "/"), 0);
}
static inline int unmount_fs(void)
{
    int r = super_unmount_last(mounted);
    dentry_put(mounted->root);
    ext4_destroy(mounted);
    return r;
}
static inline struct file *open_file(const char *path, unsigned flags)
{
    struct file *f = NULL;
    int r = vfs_open(NULL, path, flags, 0644, &kernel_cred, &f);
    if (r)
        fail_msg("open %s: %d", path, r);
    return f;
}
static inline ssize_t put_at(struct file *f, const void *data, size_t len, uint64_t at)
{
    struct iovec_weir one;
    struct uio u;
    uio_init_kernel(&u, &one, (void *)data, len);
    return file_pwrite(f, &u, at);
}
static inline ssize_t get_at(struct file *f, void *data, size_t len, uint64_t at)
{
    return file_read_kernel(f, data, len, at);
}
static inline void put_file(const char *path, const char *text)
{
    struct file *f = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
    assert_int_equal(put_at(f, text, strlen(text), 0), strlen(text));
    file_put(f);
}
static inline uint64_t size_of(const char *path)
{
    struct stat_weir st;
    assert_int_equal(vfs_stat(NULL, path, 0, &kernel_cred, &st), 0);
    return (uint64_t)st.st_size;
}
static inline int exists(const char *path)
{
    struct stat_weir st;
    return vfs_stat(NULL, path, VFS_NOFOLLOW, &kernel_cred, &st);
}
#endif
