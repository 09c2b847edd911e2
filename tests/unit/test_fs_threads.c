/* Many threads on one file system, completions from other threads, reclaim and write-back in the background. */
#include "fs_util.h"

#define THREADS 6
/*
 * Meant to race: the unlocked look at a wait queue after a full barrier (TSan knows no fences); a page that is changed
 * while it is on its way to the disk (it is dirty again); times in a commit while a writer sets them (the inode is dirty
 * again); counts that are read as a hint.
 */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:wait_queue_active\nrace:list_insert_between\nrace:perform\nrace:uio_copy_in\nrace:time_extra\nrace:encode\n"
           "race:time_now\nrace:pagecache_mark_dirty\nrace:collect_dirty\nrace:filemap_write\n";
}
static struct disk disk;
static unsigned rounds = 150;
static uint32_t stop;

struct rng { uint64_t s; };
static uint32_t below(struct rng *r, uint32_t n)
{
    r->s = r->s * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)((r->s >> 33) % n);
}
/* A block of the shared file: its number and a version all over. Each thread writes blocks of its own. */
static void shared_worker(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg;
    struct rng r = { me + 1 };
    uint32_t buf[2048], back[2048];
    uint32_t versions[64] = { 0 };
    struct file *f = open_file("/shared", O_RDWR);
    for (unsigned n = 0; n < rounds; n++) {
        unsigned k = below(&r, 64), block = k * THREADS + me;
        for (unsigned w = 0; w < 2048; w++)
            buf[w] = block << 16 | (n + 1);
        if (put_at(f, buf, sizeof buf, (uint64_t)block * sizeof buf) != sizeof buf)
            abort();
        versions[k] = n + 1;
        if (n % 8 == 0 && file_sync(f, n % 16 == 0))
            abort();
        k = below(&r, 64);
        block = k * THREADS + me;
        if (versions[k]) {
            if (get_at(f, back, sizeof back, (uint64_t)block * sizeof back) != sizeof back)
                abort();
            for (unsigned w = 0; w < 2048; w++) {
                if (back[w] != (block << 16 | versions[k]))
                    abort();
            }
        }
    }
    file_put(f);
}
static void names_worker(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg;
    struct rng r = { me + 77 };
    char path[64], to[64], text[3000], back[3000];
    for (unsigned n = 0; n < rounds; n++) {
        snprintf(path, sizeof path, "/dir/t%u-%u", me, n);
        snprintf(to, sizeof to, "/dir/final%u", me);
        memset(text, (int)('a' + n % 26), sizeof text);
        struct file *f = open_file(path, O_RDWR | O_CREAT | O_EXCL);
        if (put_at(f, text, sizeof text, 0) != sizeof text || (n % 4 == 0 && file_sync(f, false)))
            abort();
        if (vfs_rename(NULL, path, NULL, to, &kernel_cred))
            abort();
        if (get_at(f, back, sizeof back, 0) != sizeof back || memcmp(text, back, sizeof back))
            abort();
        file_put(f);
        if (below(&r, 3) == 0 && vfs_unlink(NULL, to, &kernel_cred))
            abort();
        struct stat_weir st;
        int e = vfs_stat(NULL, "/dir/final0", 0, &kernel_cred, &st);
        if (e && e != -ENOENT)
            abort();
    }
}
static void shrinker(void *arg)
{
    while (!atomic_load_relaxed(&stop)) {
        host_shrink(64);
        super_commit_all();
        sleep_until_ns(clock_monotonic_ns() + 2 * NSEC_PER_MSEC);
    }
}
static void threads_on_one_file_system_agree(void **state)
{
    disk_make(&disk, 32, "-O ^has_journal", NULL);
    disk.threads = true;
    host_set_cpu_count(64);
    mount_fs(&disk);
    writeback_start();
    put_file("/shared", "x");
    assert_int_equal(vfs_mkdir(NULL, "/dir", 0755, &kernel_cred), 0);
    struct thread *s = thread_create("shrink", shrinker, NULL);
    thread_start(s);
    struct thread *t[2 * THREADS];
    for (unsigned n = 0; n < 2 * THREADS; n++) {
        t[n] = thread_create("worker", n < THREADS ? shared_worker : names_worker, (void *)(uintptr_t)(n % THREADS));
        thread_start(t[n]);
    }
    for (unsigned n = 0; n < 2 * THREADS; n++)
        host_join_thread(t[n]);
    atomic_store_relaxed(&stop, 1);
    writeback_stop();
    host_join_threads();
    assert_int_equal(unmount_fs(), 0);
    assert_int_equal(disk_fsck(&disk, "-fn"), 0);
    disk_close(&disk);
}
int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(threads_on_one_file_system_agree) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
