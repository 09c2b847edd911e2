/* ext4 through the VFS on images of mke2fs; e2fsck judges. */
#include "fs_util.h"

static const char *const variants[] = {
    "-O ^has_journal",
    "-O ^has_journal,^metadata_csum,uninit_bg",
    "-O ^has_journal,^metadata_csum,^uninit_bg,^64bit",
    "-O ^has_journal,^flex_bg,^64bit -g 2048 -N 512",
    "-O ^has_journal -I 128 -g 4096",
    "",
};
static struct disk disk;

static void start(unsigned variant, const char *populate)
{
    disk_make(&disk, 32, variants[variant], populate);
    mount_fs(&disk);
}
static void finish(void)
{
    assert_int_equal(unmount_fs(), 0);
    assert_int_equal(disk_fsck(&disk, "-fn"), 0);
    disk_close(&disk);
}
static void remount(void)
{
    assert_int_equal(unmount_fs(), 0);
    assert_int_equal(disk_fsck(&disk, "-fn"), 0);
    mount_fs(&disk);
}

static void mounting_and_unmounting_leaves_every_variant_clean(void **state)
{
    for (unsigned v = 0; v < ARRAY_SIZE(variants); v++) {
        start(v, NULL);
        finish();
    }
}
static void files_of_mke2fs_are_read_back(void **state)
{
    assert_int_equal(disk_run("rm -rf /tmp/fs-pop && mkdir -p /tmp/fs-pop/a/b && seq 1 100000 > /tmp/fs-pop/a/numbers && "
                              "ln -s a/numbers /tmp/fs-pop/link && echo hi > /tmp/fs-pop/a/b/hi"), 0);
    start(0, "/tmp/fs-pop");
    char *data;
    size_t len;
    assert_int_equal(vfs_read_file("/link", 1 << 20, &data, &len), 0);
    assert_int_equal(len, 588895);
    assert_memory_equal(data, "1\n2\n3\n4\n", 8);
    assert_memory_equal(data + len - 7, "100000\n", 7);
    kfree(data);
    assert_int_equal(size_of("/a/b/hi"), 3);
    assert_int_equal(size_of("/a/./b/../b/hi"), 3);
    assert_int_equal(exists("/a/b/none"), -ENOENT);
    assert_int_equal(exists("/a/b/hi/x"), -ENOTDIR);
    finish();
}
static void written_data_survive_a_remount(void **state)
{
    for (unsigned v = 0; v < ARRAY_SIZE(variants); v++) {
        start(v, NULL);
        assert_int_equal(vfs_mkdir(NULL, "/d", 0755, &kernel_cred), 0);
        char buf[10000], back[10000];
        for (unsigned n = 0; n < sizeof buf; n++)
            buf[n] = (char)(n * 7 + v);
        struct file *f = open_file("/d/f", O_RDWR | O_CREAT | O_EXCL);
        assert_int_equal(put_at(f, buf, sizeof buf, 0), sizeof buf);
        assert_int_equal(put_at(f, buf, sizeof buf, 3000000), sizeof buf);
        assert_int_equal(file_sync(f, false), 0);
        assert_int_equal(put_at(f, "xyz", 3, 5), 3);
        file_put(f);
        remount();
        memcpy(buf + 5, "xyz", 3);
        f = open_file("/d/f", O_RDONLY);
        assert_int_equal(get_at(f, back, sizeof back, 0), sizeof back);
        assert_memory_equal(buf, back, sizeof back);
        assert_int_equal(get_at(f, back, 100, 1000000), 100);
        for (unsigned n = 0; n < 100; n++)
            assert_int_equal(back[n], 0);
        assert_int_equal(size_of("/d/f"), 3010000);
        assert_int_equal(file_seek(f, 0, 2), 3010000);
        file_put(f);
        finish();
    }
}
static void names_come_and_go(void **state)
{
    char path[64], to[64];
    for (unsigned v = 0; v < ARRAY_SIZE(variants); v++) {
        start(v, NULL);
        struct stat_weir st;
        for (int n = 0; n < 300; n++) {
            snprintf(path, sizeof path, "/a-rather-long-file-name-%d", n);
            put_file(path, path);
        }
        for (int n = 0; n < 300; n += 2) {
            snprintf(path, sizeof path, "/a-rather-long-file-name-%d", n);
            assert_int_equal(vfs_unlink(NULL, path, &kernel_cred), 0);
        }
        for (int n = 1; n < 300; n += 4) {
            snprintf(path, sizeof path, "/a-rather-long-file-name-%d", n);
            snprintf(to, sizeof to, "/a-rather-long-file-name-%d", n + 2);
            assert_int_equal(vfs_rename(NULL, path, NULL, to, &kernel_cred), 0);
            assert_int_equal(exists(path), -ENOENT);
        }
        remount();
        for (int n = 3; n < 300; n += 4) {
            char *data;
            size_t len;
            snprintf(path, sizeof path, "/a-rather-long-file-name-%d", n);
            assert_int_equal(vfs_read_file(path, 100, &data, &len), 0);
            snprintf(to, sizeof to, "/a-rather-long-file-name-%d", n - 2);
            assert_string_equal(data, to);
            kfree(data);
        }
        assert_int_equal(vfs_mkdir(NULL, "/x", 0700, &kernel_cred), 0);
        assert_int_equal(vfs_mkdir(NULL, "/x/y", 0700, &kernel_cred), 0);
        assert_int_equal(vfs_mkdir(NULL, "/z", 0700, &kernel_cred), 0);
        assert_int_equal(vfs_rmdir(NULL, "/x", &kernel_cred), -ENOTEMPTY);
        assert_int_equal(vfs_rename(NULL, "/x", NULL, "/x/y/w", &kernel_cred), -EINVAL);
        assert_int_equal(vfs_rename(NULL, "/x/y", NULL, "/z/y", &kernel_cred), 0);
        assert_int_equal(vfs_stat(NULL, "/z", 0, &kernel_cred, &st), 0);
        assert_int_equal(st.st_nlink, 3);
        assert_int_equal(vfs_rmdir(NULL, "/x", &kernel_cred), 0);
        assert_int_equal(vfs_link(NULL, "/a-rather-long-file-name-3", NULL, "/z/y/hard", 0, &kernel_cred), 0);
        assert_int_equal(vfs_stat(NULL, "/z/y/hard", 0, &kernel_cred, &st), 0);
        assert_int_equal(st.st_nlink, 2);
        assert_int_equal(vfs_symlink(NULL, "../y/hard", "/z/short", &kernel_cred), 0);
        char target[200];
        memset(target, 'q', sizeof target);
        target[199] = 0;
        assert_int_equal(vfs_symlink(NULL, target, "/z/long", &kernel_cred), 0);
        assert_int_equal(vfs_symlink(NULL, "loop", "/z/loop", &kernel_cred), 0);
        assert_int_equal(vfs_stat(NULL, "/z/loop", 0, &kernel_cred, &st), -ELOOP);
        remount();
        char back[300];
        assert_int_equal(vfs_readlink(NULL, "/z/long", back, sizeof back, &kernel_cred), 199);
        assert_memory_equal(back, target, 199);
        assert_int_equal(vfs_readlink(NULL, "/z/short", back, sizeof back, &kernel_cred), 9);
        finish();
    }
}
static void an_open_file_outlives_its_name(void **state)
{
    start(0, NULL);
    struct statfs_weir before, after;
    assert_int_equal(vfs_sync(), 0);
    assert_int_equal(vfs_statfs(NULL, "/", &before), 0);
    struct file *f = open_file("/gone", O_RDWR | O_CREAT);
    char *big = calloc(1, 1 << 20);
    memset(big, 'g', 1 << 20);
    assert_int_equal(put_at(f, big, 1 << 20, 0), 1 << 20);
    assert_int_equal(file_sync(f, false), 0);
    assert_int_equal(vfs_unlink(NULL, "/gone", &kernel_cred), 0);
    assert_int_equal(vfs_sync(), 0);
    char c;
    assert_int_equal(get_at(f, &c, 1, 777777), 1);
    assert_int_equal(c, 'g');
    assert_int_equal(put_at(f, "h", 1, 1 << 20), 1);
    file_put(f);
    assert_int_equal(ext4_release_space(mounted->private), 0);
    assert_int_equal(vfs_statfs(NULL, "/", &after), 0);
    assert_int_equal(after.f_bfree, before.f_bfree);
    assert_int_equal(after.f_ffree, before.f_ffree);
    free(big);
    finish();
}
static void truncation_clears_what_it_cuts(void **state)
{
    start(0, NULL);
    char buf[20000], back[20000];
    memset(buf, 'x', sizeof buf);
    struct file *f = open_file("/t", O_RDWR | O_CREAT);
    assert_int_equal(put_at(f, buf, sizeof buf, 0), sizeof buf);
    assert_int_equal(file_sync(f, true), 0);
    assert_int_equal(file_truncate(f, 5000), 0);
    assert_int_equal(file_truncate(f, 15000), 0);
    file_put(f);
    remount();
    f = open_file("/t", O_RDWR);
    assert_int_equal(get_at(f, back, sizeof back, 0), 15000);
    for (unsigned n = 0; n < 15000; n++)
        assert_int_equal(back[n], n < 5000 ? 'x' : 0);
    /* A gap behind a partial page reads as zeroes too. */
    assert_int_equal(put_at(f, "end", 3, 18000), 3);
    assert_int_equal(get_at(f, back, sizeof back, 0), 18003);
    assert_int_equal(back[17999], 0);
    file_put(f);
    finish();
}
static void a_scattered_file_has_a_deep_tree(void **state)
{
    start(0, NULL);
    struct file *f = open_file("/holes", O_RDWR | O_CREAT);
    for (unsigned n = 0; n < 3000; n++) {
        unsigned at = (n * 1237) % 3000;
        char text[16];
        int len = snprintf(text, sizeof text, "<%u>", at);
        assert_int_equal(put_at(f, text, (size_t)len, (uint64_t)at * 8192), len);
        if (n % 100 == 0)
            assert_int_equal(file_sync(f, true), 0);
    }
    assert_int_equal(file_sync(f, true), 0);
    file_put(f);
    remount();
    f = open_file("/holes", O_RDWR);
    for (unsigned at = 0; at < 3000; at++) {
        char text[16] = { 0 }, want[16];
        snprintf(want, sizeof want, "<%u>", at);
        assert_int_equal(get_at(f, text, strlen(want), (uint64_t)at * 8192), strlen(want));
        assert_string_equal(text, want);
    }
    assert_int_equal(file_truncate(f, 8192 * 700), 0);
    file_put(f);
    remount();
    f = open_file("/holes", O_RDWR);
    assert_int_equal(file_truncate(f, 0), 0);
    file_put(f);
    finish();
}
static void preallocated_blocks_read_as_zero(void **state)
{
    start(0, NULL);
    struct file *f = open_file("/p", O_RDWR | O_CREAT);
    char back[5000];
    assert_int_equal(file_fallocate(f, 0, 0, 1 << 20), 0);
    assert_int_equal(size_of("/p"), 1 << 20);
    assert_int_equal(put_at(f, "middle", 6, 400000), 6);
    assert_int_equal(file_fallocate(f, 1, 1 << 20, 1 << 20), 0);
    assert_int_equal(size_of("/p"), 1 << 20);
    assert_int_equal(file_sync(f, true), 0);
    file_put(f);
    assert_int_equal(unmount_fs(), 0);
    mount_fs(&disk);
    f = open_file("/p", O_RDWR);
    assert_int_equal(get_at(f, back, 5000, 398000), 5000);
    assert_int_equal(back[0], 0);
    assert_memory_equal(back + 2000, "middle", 6);
    assert_int_equal(back[2006], 0);
    file_put(f);
    finish();
}
static void a_full_disk_says_so_and_recovers(void **state)
{
    start(0, NULL);
    char *big = calloc(1, 1 << 20);
    struct file *f = open_file("/full", O_RDWR | O_CREAT);
    uint64_t at = 0;
    ssize_t n;
    while ((n = put_at(f, big, 1 << 20, at)) > 0)
        at += (uint64_t)n;
    assert_int_equal(n, -ENOSPC);
    assert_true(at > 20 << 20);
    assert_int_equal(file_sync(f, false), 0);
    file_put(f);
    assert_int_equal(vfs_unlink(NULL, "/full", &kernel_cred), 0);
    f = open_file("/again", O_RDWR | O_CREAT);
    for (uint64_t k = 0; k < 20; k++)
        assert_int_equal(put_at(f, big, 1 << 20, k << 20), 1 << 20);
    file_put(f);
    free(big);
    finish();
}
static void fdatasync_of_allocated_blocks_costs_one_write_and_one_flush(void **state)
{
    start(0, NULL);
    char buf[8192] = { 1 };
    struct file *f = open_file("/wal", O_RDWR | O_CREAT);
    for (unsigned n = 0; n < 64; n++)
        assert_int_equal(put_at(f, buf, sizeof buf, n * sizeof buf), sizeof buf);
    assert_int_equal(file_sync(f, false), 0);
    unsigned writes = disk.writes, flushes = disk.flushes;
    buf[0] = 2;
    assert_int_equal(put_at(f, buf, sizeof buf, 8192 * 5), sizeof buf);
    assert_int_equal(file_sync(f, true), 0);
    assert_int_equal(disk.writes - writes, 1);
    assert_int_equal(disk.flushes - flushes, 1);
    file_put(f);
    finish();
}
static void a_write_error_is_reported_once_to_each_description(void **state)
{
    start(0, NULL);
    char buf[8192] = { 1 };
    struct file *f = open_file("/e", O_RDWR | O_CREAT), *g;
    assert_int_equal(put_at(f, buf, sizeof buf, 0), sizeof buf);
    assert_int_equal(file_sync(f, false), 0);
    g = open_file("/e", O_RDWR);
    assert_int_equal(put_at(f, buf, sizeof buf, 0), sizeof buf);
    disk.fail_writes_after = 0;
    assert_int_equal(pagecache_write_and_wait(&f->inode->cache, 0, 100), -EIO);
    disk.fail_writes_after = -1;
    assert_int_equal(file_sync(g, true), -EIO);
    assert_int_equal(file_sync(g, true), 0);
    assert_int_equal(file_sync(f, true), -EIO);
    assert_int_equal(file_sync(f, true), 0);
    file_put(f);
    file_put(g);
    finish();
}
static bool count_entry(struct dir_sink *s, const char *name, size_t len, uint64_t ino, unsigned type, uint64_t next);
struct counter { struct dir_sink sink; unsigned entries, limit, sum; };
static bool count_entry(struct dir_sink *s, const char *name, size_t len, uint64_t ino, unsigned type, uint64_t next)
{
    struct counter *c = (struct counter *)s;
    if (c->limit-- == 0)
        return false;
    c->entries++;
    return true;
}
static void a_big_directory_is_listed_in_pieces(void **state)
{
    start(0, NULL);
    char path[64];
    assert_int_equal(vfs_mkdir(NULL, "/big", 0755, &kernel_cred), 0);
    for (int n = 0; n < 2000; n++) {
        snprintf(path, sizeof path, "/big/entry-%d", n);
        file_put(open_file(path, O_RDWR | O_CREAT | O_EXCL));
    }
    struct file *f = open_file("/big", O_RDONLY | O_DIRECTORY);
    struct counter c = { .sink.emit = count_entry };
    for (;;) {
        unsigned before = c.entries;
        c.limit = 100;
        assert_int_equal(file_readdir(f, &c.sink), 0);
        if (c.entries == before)
            break;
    }
    assert_int_equal(c.entries, 2002);
    file_put(f);
    finish();
}
static void a_hashed_directory_of_e2fsck_takes_new_names(void **state)
{
    assert_int_equal(disk_run("rm -rf /tmp/fs-pop && mkdir -p /tmp/fs-pop/h && cd /tmp/fs-pop/h && for i in $(seq 1 1500); do : > some-long-name-$i; done"), 0);
    disk_make(&disk, 32, variants[0], "/tmp/fs-pop");
    assert_true(disk_fsck(&disk, "-fyD") <= 1);
    mount_fs(&disk);
    assert_int_equal(exists("/h/some-long-name-777"), 0);
    put_file("/h/new", "new");
    assert_int_equal(vfs_unlink(NULL, "/h/some-long-name-3", &kernel_cred), 0);
    remount();
    assert_int_equal(exists("/h/some-long-name-1500"), 0);
    assert_int_equal(exists("/h/some-long-name-3"), -ENOENT);
    assert_int_equal(size_of("/h/new"), 3);
    finish();
}

static void a_journal_that_must_be_replayed_makes_it_read_only(void **state)
{
    /* needs_recovery, set by hand: without metadata_csum the super block has no checksum. */
    disk_make(&disk, 32, "-O ^metadata_csum", NULL);
    disk.image[1024 + 0x60] |= 4;
    mount_fs(&disk);
    struct file *f;
    assert_int_equal(vfs_open(NULL, "/x", O_RDWR | O_CREAT, 0644, &kernel_cred, &f), -EROFS);
    assert_int_equal(vfs_mkdir(NULL, "/y", 0755, &kernel_cred), -EROFS);
    assert_int_equal(unmount_fs(), 0);
    assert_int_equal(disk.writes, 0);
    disk_close(&disk);
}
static void a_failed_metadata_write_stops_all_changes(void **state)
{
    start(0, NULL);
    struct file *f = open_file("/a", O_RDWR | O_CREAT), *g;
    assert_int_equal(put_at(f, "data", 4, 0), 4);
    assert_int_equal(file_sync(f, false), 0);
    assert_int_equal(vfs_mkdir(NULL, "/d", 0755, &kernel_cred), 0);
    disk.fail_writes_after = 0;
    g = open_file("/", O_RDONLY);
    assert_int_equal(file_sync(g, false), -EIO);
    disk.fail_writes_after = -1;
    assert_int_equal(file_sync(g, false), -EIO);
    assert_int_equal(vfs_mkdir(NULL, "/e", 0755, &kernel_cred), -EROFS);
    assert_int_equal(file_sync(f, false), -EIO);
    file_put(f);
    file_put(g);
    assert_int_equal(unmount_fs(), -EIO);
    assert_true(disk_fsck(&disk, "-fy") <= 1);
    disk_close(&disk);
}
static void a_failed_flush_is_never_forgotten(void **state)
{
    start(0, NULL);
    struct file *f = open_file("/a", O_RDWR | O_CREAT);
    assert_int_equal(put_at(f, "data", 4, 0), 4);
    assert_int_equal(file_sync(f, false), 0);
    disk.fail_flush = true;
    assert_int_equal(file_sync(f, true), -EIO);
    disk.fail_flush = false;
    assert_int_equal(file_sync(f, true), -EIO);
    file_put(f);
    assert_int_equal(unmount_fs(), -EIO);
    disk_close(&disk);
}
static void a_commit_without_memory_is_made_up_for_by_the_next(void **state)
{
    start(0, NULL);
    put_file("/one", "1");
    struct file *f = open_file("/one", O_RDWR);
    assert_int_equal(pagecache_write_and_wait(&f->inode->cache, 0, 10), 0);
    unsigned failed = 0;
    for (long n = 0; n < 12; n++) {
        assert_int_equal(vfs_chmod(NULL, "/one", 0600 + (mode_t)n, &kernel_cred), 0);
        host_fail_allocations_after(n);
        int r = ext4_commit(mounted->private);
        host_fail_allocations_after(-1);
        assert_true(!r || r == -ENOMEM);
        failed += r != 0;
        assert_int_equal(file_sync(f, false), 0);
    }
    assert_true(failed > 0);
    file_put(f);
    remount();
    struct stat_weir st;
    assert_int_equal(vfs_stat(NULL, "/one", 0, &kernel_cred, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600 + 11);
    finish();
}
static void access_follows_owner_group_and_mode(void **state)
{
    start(0, NULL);
    const struct cred user = { 1000, 1000 }, other = { 2000, 2000 };
    struct file *f;
    assert_int_equal(vfs_mkdir(NULL, "/home", 0777, &kernel_cred), 0);
    assert_int_equal(vfs_open(NULL, "/home/f", O_RDWR | O_CREAT, 0600, &user, &f), 0);
    file_put(f);
    assert_int_equal(vfs_open(NULL, "/home/f", O_RDONLY, 0, &other, &f), -EACCES);
    assert_int_equal(vfs_access(NULL, "/home/f", 4, &other), -EACCES);
    assert_int_equal(vfs_chmod(NULL, "/home/f", 0644, &other), -EPERM);
    assert_int_equal(vfs_chmod(NULL, "/home/f", 0644, &user), 0);
    assert_int_equal(vfs_access(NULL, "/home/f", 4, &other), 0);
    assert_int_equal(vfs_access(NULL, "/home/f", 2, &other), -EACCES);
    assert_int_equal(vfs_chmod(NULL, "/home", 01777, &kernel_cred), 0);
    assert_int_equal(vfs_unlink(NULL, "/home/f", &other), -EPERM);
    assert_int_equal(vfs_open(NULL, "/root-only", O_RDWR | O_CREAT, 0644, &user, &f), -EACCES);
    assert_int_equal(vfs_open(NULL, "/home/f", O_RDWR | O_CREAT | O_EXCL, 0600, &user, &f), -EEXIST);
    assert_int_equal(vfs_open(NULL, "/home/f", O_RDONLY | O_DIRECTORY, 0, &user, &f), -ENOTDIR);
    assert_int_equal(vfs_open(NULL, "/home", O_RDWR, 0, &user, &f), -EISDIR);
    assert_int_equal(vfs_symlink(NULL, "f", "/home/l", &user), 0);
    assert_int_equal(vfs_open(NULL, "/home/l", O_RDONLY | O_NOFOLLOW, 0, &user, &f), -ELOOP);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mounting_and_unmounting_leaves_every_variant_clean),
        cmocka_unit_test(files_of_mke2fs_are_read_back),
        cmocka_unit_test(written_data_survive_a_remount),
        cmocka_unit_test(names_come_and_go),
        cmocka_unit_test(an_open_file_outlives_its_name),
        cmocka_unit_test(truncation_clears_what_it_cuts),
        cmocka_unit_test(a_scattered_file_has_a_deep_tree),
        cmocka_unit_test(preallocated_blocks_read_as_zero),
        cmocka_unit_test(a_full_disk_says_so_and_recovers),
        cmocka_unit_test(fdatasync_of_allocated_blocks_costs_one_write_and_one_flush),
        cmocka_unit_test(a_write_error_is_reported_once_to_each_description),
        cmocka_unit_test(a_big_directory_is_listed_in_pieces),
        cmocka_unit_test(a_hashed_directory_of_e2fsck_takes_new_names),
        cmocka_unit_test(a_journal_that_must_be_replayed_makes_it_read_only),
        cmocka_unit_test(a_failed_metadata_write_stops_all_changes),
        cmocka_unit_test(a_failed_flush_is_never_forgotten),
        cmocka_unit_test(a_commit_without_memory_is_made_up_for_by_the_next),
        cmocka_unit_test(access_follows_owner_group_and_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
