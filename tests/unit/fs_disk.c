#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fs_disk.h"
#include <weir/errno.h>
#include <weir/string.h>
#include "host.h"


int disk_run(const char *format, ...)
{
    char command[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(command, sizeof command, format, ap);
    va_end(ap);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}
static void map_image(struct disk *d)
{
    int fd = open(d->path, O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        abort();
    d->size = (size_t)st.st_size;
    d->image = mmap(NULL, d->size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (d->image == MAP_FAILED)
        abort();
    close(fd);
    d->device = (struct block_device){ .name = "vda", .capacity_sectors = d->size / 512, .logical_block = 512, .has_flush = true };
}
void disk_make(struct disk *d, size_t mib, const char *options, const char *populate)
{
    static int number;
    memset(d, 0, sizeof *d);
    d->fail_writes_after = -1;
    snprintf(d->path, sizeof d->path, "%s/weir-fs-%d-%d.img", access("/dev/shm", W_OK) ? "." : "/dev/shm", getpid(), number++);
    if (disk_run("rm -f %s && truncate -s %zuM %s && mke2fs -t ext4 -q -F -b 4096 %s %s %s %s", d->path, mib, d->path, options,
                 populate ? "-d" : "", populate ? populate : "", d->path))
        abort();
    map_image(d);
}
void disk_save(struct disk *d, const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (size_t done = 0; done < d->size;) {
        ssize_t n = write(fd, d->image + done, d->size - done);
        if (n <= 0)
            abort();
        done += (size_t)n;
    }
    close(fd);
}
void disk_close(struct disk *d)
{
    munmap(d->image, d->size);
    unlink(d->path);
    for (size_t n = 0; n < d->log_count; n++)
        free(d->log[n].data);
    free(d->log);
}
int disk_fsck(struct disk *d, const char *options)
{
    char copy[160];
    snprintf(copy, sizeof copy, "%s.fsck", d->path);
    disk_save(d, copy);
    int status = disk_run("e2fsck %s %s > %s.out 2>&1", options, copy, copy);
    if (status)
        disk_run("cat %s.out", copy);
    if (d->forbidden && !disk_run("grep -qE '%s' %s.out", d->forbidden, copy))
        status = 100;
    if (status && getenv("KEEP"))
        disk_run("cp %s /tmp/failed.img", copy);
    if (strchr(options, 'y')) { /* repaired: take it over */
        int fd = open(copy, O_RDONLY);
        if (read(fd, d->image, d->size) != (ssize_t)d->size)
            abort();
        close(fd);
    }
    disk_run("rm -f %s %s.out", copy, copy);
    return status;
}

/* ---- block.h ---- */
static pthread_mutex_t disk_lock = PTHREAD_MUTEX_INITIALIZER;
static struct disk *disk_of(struct block_device *b) { return (struct disk *)b; }

static int perform(struct disk *d, struct block_request *r)
{
    int status = 0;
    pthread_mutex_lock(&disk_lock);
    if (r->op == BLOCK_FLUSH) {
        d->flushes++;
        status = d->fail_flush ? -EIO : 0;
    }
    uint64_t at = r->sector * 512;
    if (r->op == BLOCK_WRITE) {
        d->writes++;
        if (d->fail_writes_after >= 0 && d->fail_writes_after-- == 0) {
            d->fail_writes_after = 0;
            status = -EIO;
        }
    }
    for (unsigned n = 0; n < r->segment_count && !status && r->op != BLOCK_FLUSH; n++) {
        uint32_t len = r->segments[n].len;
        if (at + len > d->size)
            abort();
        void *memory = phys_to_virt(r->segments[n].phys);
        if (r->op == BLOCK_READ) {
            memcpy(memory, d->image + at, len);
            d->reads++;
        } else {
            memcpy(d->image + at, memory, len);
            if (d->log_writes) {
                if (d->log_count == d->log_capacity) {
                    d->log_capacity = d->log_capacity ? d->log_capacity * 2 : 1024;
                    d->log = realloc(d->log, d->log_capacity * sizeof *d->log);
                }
                struct disk_write *w = &d->log[d->log_count++];
                *w = (struct disk_write){ at, len, d->flushes, malloc(len) };
                memcpy(w->data, memory, len);
            }
        }
        at += len;
    }
    pthread_mutex_unlock(&disk_lock);
    return status;
}
static void *later(void *arg)
{
    struct block_request *r = arg;
    usleep((useconds_t)(r->sector % 7) * 20);
    r->end(r, perform(disk_of(r->device), r));
    return NULL;
}
void block_submit(struct block_request *r)
{
    struct disk *d = disk_of(r->device);
    pthread_t t;
    if (d->threads && !pthread_create(&t, NULL, later, r)) {
        pthread_detach(t);
        return;
    }
    r->end(r, perform(d, r));
}
static void wait_end(struct block_request *r, int status)
{
    r->status = status;
    completion_complete(r->arg);
}
int block_submit_wait(struct block_request *r)
{
    struct completion c;
    completion_init(&c);
    r->end = wait_end;
    r->arg = &c;
    block_submit(r);
    completion_wait(&c);
    return r->status;
}
void block_plug_start(struct block_plug *p) { list_init(&p->requests); }
void block_submit_plugged(struct block_plug *p, struct block_request *r) { list_add_tail(&p->requests, &r->link); }
void block_plug_finish(struct block_plug *p)
{
    while (!list_empty(&p->requests)) {
        struct block_request *r = list_first(&p->requests, struct block_request, link);
        list_del(&r->link);
        block_submit(r);
    }
}
int block_flush(struct block_device *b)
{
    struct block_request r = { .device = b, .op = BLOCK_FLUSH };
    return block_submit_wait(&r);
}
static int transfer(struct block_device *b, enum block_op op, uint64_t offset, void *buf, size_t len)
{
    struct block_segment s = { virt_to_phys(buf), (uint32_t)len };
    struct block_request r = { .device = b, .op = op, .sector = offset / 512, .segments = &s, .segment_count = 1 };
    return block_submit_wait(&r);
}
int block_read(struct block_device *b, uint64_t offset, void *buf, size_t len) { return transfer(b, BLOCK_READ, offset, buf, len); }
int block_write(struct block_device *b, uint64_t offset, const void *buf, size_t len) { return transfer(b, BLOCK_WRITE, offset, (void *)buf, len); }
struct block_device *block_find(const char *name) { return NULL; }
struct block_device *block_next(struct block_device *after) { return NULL; }
void block_put(struct block_device *d) { }

/* Services that the tests do not need. */
void console_set_input(void (*fn)(char c)) {}
void thread_for_each(void (*fn)(struct thread *, void *), void *arg) {}
