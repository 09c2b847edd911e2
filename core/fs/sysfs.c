/* The few files of /sys that programs read: a tmpfs with fixed text. */
#include "fs.h"
#include <weir/cpu.h>

static int make_directory(struct inode *dir, const char *name, struct inode **out)
{
    int r = dir->ops->lookup(dir, name, strlen(name), out);
    return r == -ENOENT ? dir->ops->mkdir(dir, name, strlen(name), S_IFDIR | 0555, &kernel_cred, out) : r;
}
/* Below root; missing directories are made. */
static int put_text(struct inode *root, const char *path, const char *text)
{
    char name[32];
    struct inode *dir = root, *next;
    inode_get(dir);
    for (const char *slash; (slash = strchr(path, '/')); path = slash + 1) {
        str_copy(name, path, MIN(sizeof name, (size_t)(slash - path) + 1));
        int r = make_directory(dir, name, &next);
        inode_put(dir);
        if (r)
            return r;
        dir = next;
    }
    struct page *p;
    int r = dir->ops->create(dir, path, strlen(path), S_IFREG | 0444, &kernel_cred, &next);
    inode_put(dir);
    if (r)
        return r;
    r = pagecache_get_page(&next->cache, 0, &p);
    if (!r) {
        memcpy(page_virt(p), text, strlen(text));
        next->size = strlen(text);
        page_put(p);
    }
    inode_put(next);
    return r;
}

int sysfs_mount(struct super_block **out)
{
    int r = tmpfs_mount(0555, out);
    if (r)
        return r;
    struct super_block *sb = *out;
    sb->type = "sysfs";
    str_copy(sb->source, "sysfs", sizeof sb->source);
    char cpus[32], memory[64];
    scnprintf(cpus, sizeof cpus, cpu_count() > 1 ? "0-%u\n" : "%u\n", cpu_count() - 1);
    scnprintf(memory, sizeof memory, "Node 0 MemTotal:       %8lu kB\n", (unsigned long)mm_total_pages() * 4);
    static const char *const cpu_files[] = { "online", "possible", "present" };
    for (unsigned i = 0; !r && i < ARRAY_SIZE(cpu_files); i++) {
        char path[64];
        scnprintf(path, sizeof path, "devices/system/cpu/%s", cpu_files[i]);
        r = put_text(sb->root->inode, path, cpus);
    }
    if (!r)
        r = put_text(sb->root->inode, "devices/system/node/node0/meminfo", memory);
    if (!r)
        r = put_text(sb->root->inode, "devices/system/node/online", "0\n");
    return r;
}
