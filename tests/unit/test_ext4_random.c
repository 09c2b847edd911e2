/* Random operations against a model in memory; e2fsck judges after each remount. SEEDS=first-last OPS=n for more. */
#include "fs_util.h"

#define FILES 40
#define MAX_SIZE 300000u
struct model { bool exists; char path[48]; char *data; size_t size; };
static struct model files[FILES];
static struct disk disk;
static uint64_t rng;
static uint32_t random_below(uint32_t n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)((rng >> 33) % n);
}
static void new_path(struct model *m)
{
    static unsigned serial;
    snprintf(m->path, sizeof m->path, "%s/%s%u", random_below(3) ? "" : random_below(2) ? "/d1" : "/d1/d2",
             random_below(2) ? "f" : "a-much-longer-name-", serial++);
}
static void check(struct model *m)
{
    static char back[MAX_SIZE + 10];
    if (!m->exists) {
        if (m->path[0])
            assert_int_equal(exists(m->path), -ENOENT);
        return;
    }
    assert_int_equal(size_of(m->path), m->size);
    struct file *f = open_file(m->path, O_RDONLY);
    assert_int_equal(get_at(f, back, sizeof back, 0), m->size);
    assert_memory_equal(back, m->data, m->size);
    file_put(f);
}
static void check_all(void)
{
    for (unsigned n = 0; n < FILES; n++)
        check(&files[n]);
}
static void do_write(struct model *m)
{
    static char buf[40000];
    uint32_t at = random_below(3) ? random_below((uint32_t)m->size + 1) : random_below(MAX_SIZE - 40000);
    uint32_t len = random_below(2) ? random_below(40000) : (random_below(3) + 1) * 8192;
    if (!random_below(3))
        at &= ~4095u;
    at = (uint32_t)MIN(at, MAX_SIZE - 40000);
    for (uint32_t n = 0; n < len; n += 64)
        memset(buf + n, (int)random_below(256), MIN(64u, len - n));
    struct file *f = open_file(m->path, O_RDWR);
    assert_int_equal(put_at(f, buf, len, at), len);
    if (!random_below(8))
        assert_int_equal(file_sync(f, random_below(2)), 0);
    file_put(f);
    if (len && at > m->size)
        memset(m->data + m->size, 0, at - m->size);
    memcpy(m->data + at, buf, len);
    if (len)
        m->size = MAX(m->size, at + len);
}
static void do_truncate(struct model *m)
{
    uint32_t size = random_below(MAX_SIZE);
    assert_int_equal(vfs_truncate(NULL, m->path, size, &kernel_cred), 0);
    if (size > m->size)
        memset(m->data + m->size, 0, size - m->size);
    m->size = size;
}
static void do_fallocate(struct model *m)
{
    uint32_t at = random_below(MAX_SIZE / 2), len = 1 + random_below(MAX_SIZE / 2);
    bool keep = random_below(2);
    struct file *f = open_file(m->path, O_RDWR);
    assert_int_equal(file_fallocate(f, keep, at, len), 0);
    file_put(f);
    if (!keep && at + len > m->size) {
        memset(m->data + m->size, 0, at + len - m->size);
        m->size = at + len;
    }
}
static void do_rename(struct model *m, struct model *other)
{
    struct model before = *m;
    if (m == other)
        return;
    if (other->exists && random_below(2)) { /* over another */
        assert_int_equal(vfs_rename(NULL, m->path, NULL, other->path, &kernel_cred), 0);
        other->exists = false;
        strcpy(m->path, other->path);
        other->path[0] = 0;
    } else {
        new_path(m);
        assert_int_equal(vfs_rename(NULL, before.path, NULL, m->path, &kernel_cred), 0);
    }
    assert_int_equal(exists(before.path), -ENOENT);
}
static void step(void)
{
    struct model *m = &files[random_below(FILES)];
    if (!m->exists) {
        new_path(m);
        file_put(open_file(m->path, O_RDWR | O_CREAT | O_EXCL));
        m->exists = true;
        m->size = 0;
        return;
    }
    switch (random_below(16)) {
    case 0: case 1:
        assert_int_equal(vfs_unlink(NULL, m->path, &kernel_cred), 0);
        m->exists = false;
        break;
    case 2: do_truncate(m); break;
    case 3: do_rename(m, &files[random_below(FILES)]); break;
    case 4: check(m); break;
    case 5: do_fallocate(m); break;
    case 6: host_shrink(random_below(200)); break;
    case 7:
        if (!random_below(4))
            super_commit_all();
        break;
    default: do_write(m);
    }
}
static void run(const char *options, uint64_t seed, unsigned ops)
{
    disk_make(&disk, 24, options, NULL);
    disk.threads = getenv("THREADS") != NULL;
    mount_fs(&disk);
    rng = seed;
    for (unsigned n = 0; n < FILES; n++)
        files[n] = (struct model){ .data = calloc(1, MAX_SIZE + 1) };
    assert_int_equal(vfs_mkdir(NULL, "/d1", 0755, &kernel_cred), 0);
    assert_int_equal(vfs_mkdir(NULL, "/d1/d2", 0755, &kernel_cred), 0);
    for (unsigned n = 1; n <= ops; n++) {
        step();
        if (n % 400 == 0) {
            check_all();
            assert_int_equal(unmount_fs(), 0);
            if (disk_fsck(&disk, "-fn"))
                fail_msg("e2fsck, seed %lu, after %u operations", (unsigned long)seed, n);
            mount_fs(&disk);
            check_all();
        }
    }
    assert_int_equal(unmount_fs(), 0);
    assert_int_equal(disk_fsck(&disk, "-fn"), 0);
    disk_close(&disk);
    for (unsigned n = 0; n < FILES; n++)
        free(files[n].data);
}
static const char *const variants[] = {
    "-O ^has_journal", "-O ^has_journal,^metadata_csum,uninit_bg", "-O ^has_journal,^flex_bg,^64bit -g 1024 -N 512",
};
static void random_operations_match_the_model(void **state)
{
    unsigned first = 1, last = 4, ops = 2000;
    if (getenv("SEEDS"))
        sscanf(getenv("SEEDS"), "%u-%u", &first, &last);
    if (getenv("OPS"))
        ops = (unsigned)atoi(getenv("OPS"));
    for (unsigned seed = first; seed <= last; seed++)
        run(variants[seed % ARRAY_SIZE(variants)], seed, ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_operations_match_the_model) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
