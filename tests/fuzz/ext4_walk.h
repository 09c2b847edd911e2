/* What a hostile image is put through: mount, walk, read, change, unmount. Nothing may crash; errors are fine. */
#ifndef EXT4_WALK_H
#define EXT4_WALK_H
#include "tests/unit/fs_util.h"

struct walk_state { struct dir_sink sink; char names[64][64]; unsigned types[64], count; };
static inline bool walk_emit(struct dir_sink *s, const char *name, size_t len, uint64_t ino, unsigned type, uint64_t next)
{
    struct walk_state *w = (struct walk_state *)s;
    if (w->count == 64)
        return false;
    if (len < 60 && name[0] != '.') {
        memcpy(w->names[w->count], name, len);
        w->names[w->count][len] = 0;
        w->types[w->count++] = type;
    }
    return true;
}
static inline void walk_file(const char *path, unsigned flags, unsigned *budget)
{
    static char buf[65536];
    struct file *f;
    if (vfs_open(NULL, path, flags, 0, &kernel_cred, &f))
        return;
    for (uint64_t at = 0; at < 1 << 20; at += sizeof buf) {
        if (get_at(f, buf, sizeof buf, at) <= 0 || !*budget)
            break;
        (*budget)--;
    }
    if (flags == O_RDWR) {
        ssize_t n = put_at(f, buf, 9000, 5000);
        int r = file_sync(f, false);
        (void)n;
        (void)r;
    }
    file_put(f);
}
static inline void walk_directory(const char *path, unsigned depth, unsigned *budget)
{
    struct walk_state *w = calloc(1, sizeof *w);
    struct file *f;
    char child[256], target[256];
    w->sink.emit = walk_emit;
    if (!vfs_open(NULL, path, O_RDONLY | O_DIRECTORY, 0, &kernel_cred, &f)) {
        int r = file_readdir(f, &w->sink);
        (void)r;
        file_put(f);
    }
    for (unsigned n = 0; n < w->count && *budget; n++) {
        struct stat_weir st;
        (*budget)--;
        snprintf(child, sizeof child, "%s/%s", strcmp(path, "/") ? path : "", w->names[n]);
        int r = vfs_readlink(NULL, child, target, sizeof target, &kernel_cred);
        r = vfs_stat(NULL, child, VFS_NOFOLLOW, &kernel_cred, &st);
        if (!r && S_ISDIR(st.st_mode) && depth < 6)
            walk_directory(child, depth + 1, budget);
        else if (!r)
            walk_file(child, n % 3 ? O_RDONLY : O_RDWR, budget);
        if (n % 5 == 4)
            r = vfs_truncate(NULL, child, 3000, &kernel_cred);
        if (n % 7 == 6)
            r = vfs_unlink(NULL, child, &kernel_cred);
    }
    snprintf(child, sizeof child, "%s/new-name-%u", strcmp(path, "/") ? path : "", depth);
    if (!vfs_open(NULL, child, O_RDWR | O_CREAT, 0644, &kernel_cred, &f)) {
        ssize_t n = put_at(f, child, sizeof child, 100000);
        (void)n;
        file_put(f);
        snprintf(target, sizeof target, "/moved-%u", depth);
        int r = vfs_rename(NULL, child, NULL, target, &kernel_cred);
        r = vfs_mkdir(NULL, child, 0755, &kernel_cred);
        (void)r;
    }
    free(w);
}
static inline void walk_image(struct disk *d)
{
    unsigned budget = 400;
    if (ext4_mount(&d->device, false, &mounted))
        return;
    int r = super_mount_at(mounted, "/");
    if (!r)
        walk_directory("/", 0, &budget);
    r = unmount_fs();
    (void)r;
}
#endif
