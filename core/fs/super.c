/* Mounted file systems: boot-time mounts, sync, shutdown. */
#include "fs.h"
#include <weir/atomic.h>
#include <weir/block.h>
#include <weir/cmdline.h>
#include <weir/init.h>
#include <weir/printk.h>

static struct mutex mount_lock = MUTEX_INIT(mount_lock);
static struct list supers = LIST_INIT(supers); /* mount_lock: in order of mounting */
static struct dentry *root;                    /* a */
static uint64_t next_dev = 0x0800;             /* a */

uint64_t super_new_dev(void) { return atomic_fetch_add(&next_dev, 1); }
struct dentry *root_dentry(void) { return atomic_load_acquire(&root); }
struct dentry *vfs_root(void)
{
    struct dentry *d = root_dentry();
    if (d)
        dentry_get(d);
    return d;
}

void super_register(struct super_block *sb, const char *source, const char *target)
{
    str_copy(sb->source, source, sizeof sb->source);
    str_copy(sb->target, target, sizeof sb->target);
    mutex_lock(&mount_lock);
    list_add_tail(&supers, &sb->link);
    mutex_unlock(&mount_lock);
}
void super_for_each(void (*fn)(struct super_block *sb, void *arg), void *arg)
{
    struct super_block *sb;
    mutex_lock(&mount_lock);
    list_for_each_entry(sb, &supers, link)
        fn(sb, arg);
    mutex_unlock(&mount_lock);
}
static void commit_one(struct super_block *sb, void *arg)
{
    int r = sb->ops->commit ? sb->ops->commit(sb) : 0;
    if (r)
        log_error("%s: writing metadata: error %d", sb->source, -r);
}
void super_commit_all(void) { super_for_each(commit_one, NULL); }
static void sync_one(struct super_block *sb, void *arg)
{
    int r = sb->ops->sync ? sb->ops->sync(sb) : 0;
    if (r && !*(int *)arg)
        *(int *)arg = r;
}
int vfs_sync(void)
{
    int r = 0;
    writeback_all();
    super_for_each(sync_one, &r);
    return r;
}

/* sb's root becomes the root, or covers the directory at path. */
int super_mount_at(struct super_block *sb, const char *path)
{
    if (!strcmp(path, "/")) {
        atomic_store_release(&root, sb->root);
        super_register(sb, sb->source, path);
        return 0;
    }
    struct dentry *at;
    int r = path_walk(NULL, path, WALK_FOLLOW | WALK_DIRECTORY, &kernel_cred, &at);
    if (r)
        return r;
    dentry_set_mounted(at, sb->root);
    dentry_put(at);
    super_register(sb, sb->source, path);
    return 0;
}

static void mount_memory(int (*mount)(struct super_block **), const char *path)
{
    struct super_block *sb;
    int r = vfs_mkdir(NULL, path, 0755, &kernel_cred); /* an image made by hand may lack it */
    if (r && r != -EEXIST && r != -EROFS)
        log_warn("mkdir %s: error %d", path, -r);
    r = mount(&sb);
    if (!r)
        r = super_mount_at(sb, path);
    if (r)
        log_warn("%s is not mounted: error %d%s", path, -r, r == -ENOENT ? " (not in the root image, which is read-only)" : "");
}
static int mount_tmp(struct super_block **out) { return tmpfs_mount(01777, out); }

static int mount_disk(const char *device, const char *path)
{
    struct super_block *sb;
    struct block_device *d = block_find(device);
    if (!d)
        return -ENODEV;
    int r = ext4_mount(d, d->read_only || cmdline_bool("ro", false), &sb);
    if (!r)
        atomic_store_relaxed(&d->mounted, true);
    else
        block_put(d); /* a mounted one keeps its reference for ever */
    return r ? r : super_mount_at(sb, path);
}

/* `mount=vdb:/data` (one further disk; several: mount=vdb:/a,vdc:/b). */
static void mount_more(const char *wishes)
{
    char device[16], path[64];
    while (wishes && *wishes) {
        const char *colon = strchr(wishes, ':'), *end = strchr(wishes, ',');
        size_t len = end ? (size_t)(end - wishes) : strlen(wishes);
        int r = -EINVAL;
        if (colon && colon < wishes + len && (size_t)(colon - wishes) < sizeof device && len < sizeof path) {
            scnprintf(device, sizeof device, "%.*s", (int)(colon - wishes), wishes);
            scnprintf(path, sizeof path, "%.*s", (int)(len - (size_t)(colon + 1 - wishes)), colon + 1);
            r = mount_disk(device, path);
        }
        if (r)
            log_error("mount=%.*s: error %d", (int)len, wishes, -r);
        wishes = end ? end + 1 : NULL;
    }
}

static void mount_all(void)
{
    const char *wish = cmdline_get("root"), *device = wish && *wish ? wish : "vda";
    writeback_start();
    struct block_device *disk = block_find(device);
    if (!disk) {
        if (wish)
            log_error("root=%s: no such disk", device);
        else
            log_info("fs: no disk, no root file system");
        return;
    }
    block_put(disk);
    int r = mount_disk(device, "/");
    if (r) {
        log_error("root on %s is not mounted: error %d", device, -r);
        return;
    }
    mount_memory(devfs_mount, "/dev");
    mount_memory(mount_tmp, "/dev/shm");
    mount_memory(mount_tmp, "/tmp");
    mount_memory(procfs_mount, "/proc");
    mount_memory(sysfs_mount, "/sys");
    mount_more(cmdline_get("mount"));
}
INIT_CALL(INIT_FS, mount_all);

static void unmount_one(struct super_block *sb, void *arg)
{
    dentry_drop_unused(sb);
    int r = sb->ops->unmount ? sb->ops->unmount(sb) : 0;
    if (r) {
        log_error("%s: not clean at shutdown: error %d", sb->source, -r);
        if (!*(int *)arg)
            *(int *)arg = r;
    }
}
/* One file system off the list, clean; its root dentry is the caller's. Nothing in it may be open. */
int super_unmount_last(struct super_block *sb)
{
    int r = 0;
    writeback_all();
    dentry_drop_unused(sb);
    sync_one(sb, &r);
    unmount_one(sb, &r);
    mutex_lock(&mount_lock);
    list_del(&sb->link);
    mutex_unlock(&mount_lock);
    return r;
}
int vfs_shutdown(void)
{
    writeback_stop();
    int r = vfs_sync(), unmounted = 0;
    super_for_each(unmount_one, &unmounted);
    return r ? r : unmounted;
}
