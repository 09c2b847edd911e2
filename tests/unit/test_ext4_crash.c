/*
 * Power goes at any moment: a run is recorded as the sequence of block writes; cut after any of them, the image must be
 * repairable by e2fsck -fy, and every file that was fsynced and not changed since is intact.
 */
#include "fs_util.h"

#define FILES 24
#define MAX_SIZE 120000u
/* Key: positions in the disk's write log. */
struct event { size_t from, to; int file; char path[32]; char *data; size_t size; bool durable; };
static struct event *events;
static size_t event_count;
static struct disk disk;
static uint64_t rng;
static uint32_t random_below(uint32_t n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)((rng >> 33) % n);
}
static struct { bool exists; char path[32]; char data[MAX_SIZE]; size_t size; } files[FILES];

/* What happened between two positions of the log: `durable` = the file is now on the disk as data says (NULL: gone). */
static void record(size_t from, int n, bool durable)
{
    events = realloc(events, (event_count + 1) * sizeof *events);
    struct event *e = &events[event_count++];
    *e = (struct event){ .from = from, .to = disk.log_count, .file = n, .durable = durable };
    strcpy(e->path, files[n].path);
    if (durable && files[n].exists) {
        e->size = files[n].size;
        e->data = malloc(e->size + 1);
        memcpy(e->data, files[n].data, e->size);
    }
}
static void sync_file(int n)
{
    size_t from = disk.log_count;
    struct file *f = open_file(files[n].path, O_RDWR);
    assert_int_equal(file_sync(f, random_below(2)), 0);
    file_put(f);
    record(from, n, true);
}
static void step(void)
{
    static unsigned serial;
    static char buf[30000];
    int n = (int)random_below(FILES);
    size_t from = disk.log_count;
    if (!files[n].exists) {
        snprintf(files[n].path, sizeof files[n].path, "%s/f%u", random_below(2) ? "/d" : "", serial++);
        file_put(open_file(files[n].path, O_RDWR | O_CREAT | O_EXCL));
        files[n].exists = true;
        files[n].size = 0;
        record(from, n, false);
        return;
    }
    uint32_t what = random_below(12);
    if (what == 0) {
        assert_int_equal(vfs_unlink(NULL, files[n].path, &kernel_cred), 0);
        files[n].exists = false;
        record(from, n, false);
    } else if (what == 1) {
        uint32_t size = random_below(MAX_SIZE);
        assert_int_equal(vfs_truncate(NULL, files[n].path, size, &kernel_cred), 0);
        if (size > files[n].size)
            memset(files[n].data + files[n].size, 0, size - files[n].size);
        files[n].size = size;
        record(from, n, false);
    } else if (what == 2) { /* the way PostgreSQL replaces a file */
        char tmp[40];
        snprintf(tmp, sizeof tmp, "%s.tmp", files[n].path);
        struct file *f = open_file(tmp, O_RDWR | O_CREAT | O_EXCL);
        uint32_t len = 1 + random_below(20000);
        memset(buf, (int)random_below(256), len);
        assert_int_equal(put_at(f, buf, len, 0), len);
        assert_int_equal(file_sync(f, false), 0);
        assert_int_equal(vfs_rename(NULL, tmp, NULL, files[n].path, &kernel_cred), 0);
        assert_int_equal(file_sync(f, false), 0);
        struct file *d = open_file(files[n].path[1] == 'd' ? "/d" : "/", O_RDONLY);
        assert_int_equal(file_sync(d, false), 0);
        file_put(d);
        file_put(f);
        memcpy(files[n].data, buf, len);
        files[n].size = len;
        record(from, n, true);
    } else if (what == 3) {
        super_commit_all();
    } else if (what < 6) {
        sync_file(n);
    } else {
        uint32_t at = random_below((uint32_t)MIN(files[n].size + 5000, MAX_SIZE - sizeof buf)), len = 1 + random_below(sizeof buf - 1);
        memset(buf, (int)random_below(256), len);
        struct file *f = open_file(files[n].path, O_RDWR);
        assert_int_equal(put_at(f, buf, len, at), len);
        file_put(f);
        if (at > files[n].size)
            memset(files[n].data + files[n].size, 0, at - files[n].size);
        memcpy(files[n].data + at, buf, len);
        files[n].size = MAX(files[n].size, at + len);
        record(from, n, false);
        if (!random_below(20))
            assert_int_equal(pagecache_start_write(&mounted->root->inode->cache, 0, 0), 0);
    }
}

/* The last thing that certainly was on disk for file n when `cut` writes had been done, and nothing began after it. */
static struct event *expected(int n, size_t cut)
{
    struct event *found = NULL;
    for (size_t k = 0; k < event_count; k++) {
        struct event *e = &events[k];
        if (e->file != n || e->from > cut)
            continue;
        if (e->durable && e->to <= cut)
            found = e;
        else
            found = NULL; /* changed, or being made durable, at that moment */
    }
    return found;
}
static void verify(size_t cut)
{
    static char back[MAX_SIZE + 1];
    mount_fs(&disk);
    for (int n = 0; n < FILES; n++) {
        struct event *e = expected(n, cut);
        if (!e || !e->data)
            continue;
        if (exists(e->path) || size_of(e->path) != e->size)
            fail_msg("cut at %zu: %s: %d, size %lu, expected %zu", cut, e->path, exists(e->path),
                     exists(e->path) ? 0ul : (unsigned long)size_of(e->path), e->size);
        struct file *f = open_file(e->path, O_RDONLY);
        assert_int_equal(get_at(f, back, sizeof back, 0), e->size);
        if (memcmp(back, e->data, e->size))
            fail_msg("cut at %zu: %s has wrong contents", cut, e->path);
        file_put(f);
    }
    assert_int_equal(unmount_fs(), 0);
}

static void run(const char *options, uint64_t seed, unsigned ops, unsigned cuts, bool straight)
{
    disk_make(&disk, 12, options, NULL);
    char *base = malloc(disk.size);
    rng = seed;
    memset(files, 0, sizeof files);
    event_count = 0;
    disk.threads = seed % 2; /* requests in flight together end in any order */
    /* Leaks are fine; blocks with two owners, names of nothing, blocks in use but marked free are not. */
    disk.forbidden = "[Mm]ultiply-claimed|deleted/unused|[Ii]llegal|corrupt|[Ii]nvalid|differences:.*[ ][+]|has an invalid";
    mount_fs(&disk);
    assert_int_equal(vfs_mkdir(NULL, "/d", 0755, &kernel_cred), 0);
    assert_int_equal(vfs_sync(), 0);
    memcpy(base, disk.image, disk.size);
    disk.log_writes = true;
    for (unsigned n = 0; n < ops; n++)
        step();
    disk.log_writes = false;
    assert_int_equal(unmount_fs(), 0);
    disk.threads = false;
    size_t position = 0;
    char *at_cut = malloc(disk.size);
    memcpy(at_cut, base, disk.size);
    for (unsigned k = 1; k <= cuts; k++) {
        size_t cut = disk.log_count * k / cuts;
        for (; position < cut; position++)
            memcpy(at_cut + disk.log[position].offset, disk.log[position].data, disk.log[position].len);
        memcpy(disk.image, at_cut, disk.size);
        if (straight) { /* without e2fsck in between: mounts as it is, and nothing durable is missing */
            verify(cut);
            memcpy(disk.image, at_cut, disk.size);
        }
        int status = disk_fsck(&disk, "-fy");
        if (status > 1)
            fail_msg("cut at %zu of %zu: e2fsck %d", cut, disk.log_count, status);
        verify(cut);
    }
    disk_close(&disk);
    for (size_t k = 0; k < event_count; k++)
        free(events[k].data);
    free(events);
    events = NULL;
    free(base);
    free(at_cut);
}
static void what_was_fsynced_survives_a_cut_anywhere(void **state)
{
    unsigned first = 1, last = 4, ops = 400, cuts = 40;
    if (getenv("SEEDS"))
        sscanf(getenv("SEEDS"), "%u-%u", &first, &last);
    if (getenv("CUTS"))
        cuts = (unsigned)atoi(getenv("CUTS"));
    for (unsigned seed = first; seed <= last; seed++)
        run(seed % 2 ? "-O ^has_journal" : "-O ^has_journal,^metadata_csum", seed, ops, cuts, true);
}
int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_was_fsynced_survives_a_cut_anywhere) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
