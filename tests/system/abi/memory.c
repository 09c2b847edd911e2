/* Shared memory after fork, futexes on it, System V segments. */
#include "abi.h"

#include <linux/futex.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static void *shared(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(p == MAP_FAILED ? -1 : 0);
    return p;
}

CASE(shared_anonymous_memory_in_three_generations)
{
    size_t size = 16 << 20;
    volatile char *p = shared(size);
    p[0] = 1;
    pid_t child = (pid_t)must(fork());
    if (!child) {
        pid_t grandchild = (pid_t)must(fork());
        if (!grandchild) {
            /* Pages that nobody has touched before. */
            for (size_t i = 4096; i < size; i += 1 << 20)
                p[i] = (char)(i >> 20);
            p[5] = 3;
            _exit(0);
        }
        wait_for(grandchild);
        say("child sees its child's bytes: %d %d", p[5], p[(7 << 20) + 4096]);
        p[6] = 2;
        _exit(0);
    }
    wait_for(child);
    int right = 0;
    for (size_t i = 4096; i < size; i += 1 << 20)
        right += p[i] == (char)(i >> 20);
    say("first process: %d %d %d, %d of 16 late pages", p[0], p[5], p[6], right);
}

static long futex(volatile int *word, int op, int value, const struct timespec *limit)
{
    return syscall(SYS_futex, word, op, value, limit, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* The same object at two addresses: the key of a futex is (object, offset). */
static void futex_at_two_addresses(volatile int *mine, volatile int *theirs, const char *kind)
{
    pid_t child = (pid_t)must(fork());
    if (!child) {
        int waits = 0;
        while (!theirs[1]) {
            long got = futex(theirs, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, NULL);
            waits += got == 0 || errno == EAGAIN;
        }
        _exit(waits ? 0 : 1);
    }
    sleep_ms(200);
    mine[1] = 1;
    mine[0] = 1;
    long woken = futex(mine, FUTEX_WAKE, 10, NULL);
    say("%s: woken %ld, child: %s", kind, woken, status_text(wait_for(child)));
}

CASE(futex_between_processes)
{
    volatile int *same = shared(4096);
    futex_at_two_addresses(same, same, "anonymous, same address");
    char name[] = "/dev/shm/abi-XXXXXX";
    int fd = (int)must(mkstemp(name));
    must(unlink(name));
    must(ftruncate(fd, 8192));
    volatile int *a = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    volatile int *b = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    say("two mappings: %d", a != MAP_FAILED && b != MAP_FAILED && a != b);
    futex_at_two_addresses(a, b, "file, other address");
    futex_at_two_addresses(a + 1024, b + 1024, "second page");
}

CASE(futex_answers)
{
    static int word = 5;
    struct timespec soon = {0, 50000000};
    say("value differs: %s", outcome(futex(&word, FUTEX_WAIT, 4, NULL)));
    say("nobody waits: %ld", futex(&word, FUTEX_WAKE, 1, NULL));
    double before = now_s();
    say("time-out: %s", outcome(futex(&word, FUTEX_WAIT, 5, &soon)));
    say("waited long enough: %d", now_s() - before >= 0.05);
    say("odd address: %s", outcome(futex((int *)((char *)&word + 1), FUTEX_WAIT, 5, &soon)));
}

static unsigned long attached(int id)
{
    struct shmid_ds ds;
    return shmctl(id, IPC_STAT, &ds) == -1 ? 999 : ds.shm_nattch;
}

CASE(attach_count_of_a_segment)
{
    int pipes[2], back[2];
    char c;
    int id = (int)must(shmget(IPC_PRIVATE, 56, IPC_CREAT | IPC_EXCL | 0600));
    say("made: %lu", attached(id));
    char *p = shmat(id, NULL, 0);
    must(p == (void *)-1 ? -1 : 0);
    strcpy(p, "hello");
    say("attached: %lu", attached(id));
    must(pipe(pipes));
    must(pipe(back));
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = (pid_t)must(fork());
        if (!children[i]) {
            if (i == 2)
                must(shmdt(p));
            must(write(back[1], "r", 1));
            must(read(pipes[0], &c, 1));
            _exit(i == 2 || !strcmp(p, "hello") ? 0 : 1);
        }
    }
    for (int i = 0; i < 3; i++)
        must(read(back[0], &c, 1));
    say("three children, one detached: %lu", attached(id));
    must(kill(children[0], SIGKILL));
    wait_for(children[0]);
    say("one killed: %lu", attached(id));
    must(write(pipes[1], "gg", 2));
    for (int i = 1; i < 3; i++)
        say("child: %s", status_text(wait_for(children[i])));
    say("all gone: %lu", attached(id));
    must(shmdt(p));
    say("detached: %lu", attached(id));
    say("detach again: %s", outcome(shmdt(p)));
    must(shmctl(id, IPC_RMID, NULL));
    say("after removal: %s", outcome(shmctl(id, IPC_RMID, NULL)));
}

CASE(segment_with_a_key)
{
    struct shmid_ds ds;
    struct stat st;
    must(stat("/usr", &st));
    key_t key = (key_t)(st.st_ino ^ 0x5eed0000);
    int id = shmget(key, 4096, 0600);
    if (id != -1)
        shmctl(id, IPC_RMID, NULL);
    id = (int)must(shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600));
    say("made again: %s", outcome(shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600)));
    say("found, size 0: %d", shmget(key, 0, 0) == id);
    say("found, too large: %s", outcome(shmget(key, 8192, 0600)));
    char *p = shmat(id, NULL, 0);
    must(p == (void *)-1 ? -1 : 0);
    must(shmctl(id, IPC_STAT, &ds));
    say("size %lu, mode %o, made by me %d, last by me %d", (unsigned long)ds.shm_segsz, ds.shm_perm.mode & 0777,
        ds.shm_cpid == getpid(), ds.shm_lpid == getpid());
    must(shmctl(id, IPC_RMID, NULL));
    say("removed while attached: usable %d, by key: %s", (p[100] = 7) == 7, outcome(shmget(key, 4096, 0600)));
    must(shmctl(id, IPC_STAT, &ds));
    say("attached %lu, to be destroyed %d", (unsigned long)ds.shm_nattch, !!(ds.shm_perm.mode & 01000));
    must(shmdt(p));
    say("after the last detach: %s", outcome(shmctl(id, IPC_STAT, &ds)));
}

CASE(mapping_calls)
{
    char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p[0] = 1;
    p[(1 << 20) - 1] = 2;
    char *q = mremap(p, 1 << 20, 8 << 20, MREMAP_MAYMOVE);
    say("grown: %d, contents %d %d, new part %d", q != MAP_FAILED, q[0], q[(1 << 20) - 1], q[5 << 20]);
    must(madvise(q, 4096, MADV_DONTNEED));
    say("dropped page: %d", q[0]);
    say("shrunk in place: %d", mremap(q, 8 << 20, 4096, 0) == q);
    must(munmap(q, 4096));
    say("no length: %s", outcome((long)mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
    say("odd offset: %s", outcome((long)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 0, 1)));
    say("bad descriptor: %s", outcome((long)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 999, 0)));
    p = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(mprotect(p + 4096, 4096, PROT_READ));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        p[0] = p[8192] = 1;
        p[4096] = 1;
        _exit(0);
    }
    say("write to a read-only page: %s", status_text(wait_for(child)));
    child = (pid_t)must(fork());
    if (!child) {
        must(munmap(p + 4096, 4096));
        p[8192] = 1;
        _exit(p[4096]);
    }
    say("read of an unmapped page: %s", status_text(wait_for(child)));
}

CASE(file_mapping_is_coherent)
{
    char name[] = "/dev/shm/abi-XXXXXX", text[8] = "";
    int fd = (int)must(mkstemp(name));
    must(unlink(name));
    must(ftruncate(fd, 4096));
    char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(p == MAP_FAILED ? -1 : 0);
    must(pwrite(fd, "file", 4, 100));
    say("mapping sees \"%s\"", p + 100);
    memcpy(p + 200, "memory", 6);
    must(pread(fd, text, 6, 200));
    say("file sees \"%s\"", text);
    struct stat st;
    must(fstat(fd, &st));
    say("size %ld", (long)st.st_size);
}
