/* Address spaces under stress: what a program wrote is what it reads, whoever else maps, forks, unmaps meanwhile. */
#include "abi.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE 4096UL

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdUL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53UL;
    return x ^ x >> 33;
}

static uint64_t next(uint64_t *state)
{
    return mix(*state += 0x9e3779b97f4a7c15UL);
}

static void *map(size_t size, int flags)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    must(p == MAP_FAILED ? -1 : 0);
    return p;
}

/* ---- copy-on-write ---- */

enum { COW_PAGES = 300 };

static void fill(uint64_t *mem, uint64_t seed)
{
    for (size_t i = 0; i < COW_PAGES; i++)
        mem[i * PAGE / 8] = mix(seed + i);
}

static unsigned wrong(const uint64_t *mem, uint64_t seed)
{
    unsigned n = 0;
    for (size_t i = 0; i < COW_PAGES; i++)
        n += mem[i * PAGE / 8] != mix(seed + i);
    return n;
}

/* Each process writes its own pattern over what it got, forks, and looks whether anybody else's shows. */
static int cow_family(uint64_t *mem, uint64_t seed, int depth)
{
    pid_t children[3];
    fill(mem, seed);
    for (int i = 0; depth && i < 3; i++) {
        children[i] = (pid_t)must(fork());
        if (!children[i]) {
            int bad = wrong(mem, seed) != 0;
            _exit(bad | cow_family(mem, mix(seed + 77 + (unsigned)i), depth - 1));
        }
        /* Write between the forks: some pages are shared by one child, some by three. */
        for (size_t k = (size_t)i; k < COW_PAGES; k += 7)
            mem[k * PAGE / 8] = mix(seed + k);
    }
    int bad = wrong(mem, seed) != 0;
    for (int i = 0; depth && i < 3; i++)
        bad |= wait_for(children[i]) != 0;
    return bad | (wrong(mem, seed) != 0);
}

CASE(copy_on_write_in_a_family)
{
    uint64_t *mem = map(COW_PAGES * PAGE, MAP_PRIVATE);
    say("wrong: %d", cow_family(mem, 1, 4));
}

CASE(private_file_pages_are_copied)
{
    char name[] = "/tmp/abi-XXXXXX";
    int fd = (int)must(mkstemp(name));
    must(unlink(name));
    char buf[PAGE];
    for (int i = 0; i < 8; i++) {
        memset(buf, 'a' + i, sizeof buf);
        must(write(fd, buf, sizeof buf));
    }
    char *a = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    char *b = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    say("mapped: %d", a != MAP_FAILED && b != MAP_FAILED);
    char first = a[PAGE];
    a[2 * PAGE] = 'X';
    b[PAGE] = 'Y';
    b[2 * PAGE] = 'Z';
    b[7 * PAGE] = 'W';
    must(pread(fd, buf, PAGE, 7 * PAGE));
    say("private: %c then %c, %c; shared: %c; read: %c", first, a[PAGE], a[2 * PAGE], b[2 * PAGE], buf[0]);
    must(pwrite(fd, "V", 1, 3 * PAGE));
    say("written: private %c, shared %c", a[3 * PAGE], b[3 * PAGE]);
    must(madvise(a, 8 * PAGE, MADV_DONTNEED));
    say("after DONTNEED: %c %c", a[2 * PAGE], a[7 * PAGE]);
    pid_t child = (pid_t)must(fork());
    if (!child) {
        a[0] = '1';
        b[0] = '2';
        _exit(a[0] == '1' ? 0 : 1);
    }
    wait_for(child);
    say("after the child: private %c, shared %c", a[0], b[0]);
}

/* ---- beyond the end of a file ---- */

static sigjmp_buf back;
static volatile int caught_signal, caught_code;

static void catch(int signal, siginfo_t *info, void *context)
{
    (void)context;
    caught_signal = signal;
    caught_code = info->si_code;
    siglongjmp(back, 1);
}

static void catch_faults(void)
{
    struct sigaction action = {.sa_sigaction = catch, .sa_flags = SA_SIGINFO};
    must(sigaction(SIGSEGV, &action, NULL));
    must(sigaction(SIGBUS, &action, NULL));
}

static const char *touch(volatile char *p, bool write)
{
    static char text[64];
    caught_signal = 0;
    if (!sigsetjmp(back, 1)) {
        if (write)
            *p = 1;
        else
            (void)*p;
        return "works";
    }
    snprintf(text, sizeof text, "%s code %d", signal_text(caught_signal), caught_code);
    return text;
}

CASE(mapping_beyond_the_end)
{
    catch_faults();
    char name[] = "/tmp/abi-XXXXXX";
    int fd = (int)must(mkstemp(name));
    must(unlink(name));
    must(ftruncate(fd, PAGE + 100));
    for (int shared = 0; shared < 2; shared++) {
        char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
        must(p == MAP_FAILED ? -1 : 0);
        const char *kind = shared ? "shared" : "private";
        say("%s: last page %s", kind, touch(p + PAGE + 3000, true));
        say("%s: beyond %s", kind, touch(p + 2 * PAGE, false));
        must(ftruncate(fd, 4 * PAGE));
        say("%s: grown %s", kind, touch(p + 2 * PAGE, true));
        say("%s: grown, written %s", kind, touch(p + 3 * PAGE, true));
        must(ftruncate(fd, PAGE));
        say("%s: cut, was read %s", kind, touch(p + 2 * PAGE, false));
        say("%s: cut, was written %s", kind, touch(p + 3 * PAGE, true));
        say("%s: first page %s", kind, touch(p, true));
        must(ftruncate(fd, PAGE + 100));
        must(munmap(p, 4 * PAGE));
        say("%s: unmapped %s", kind, touch(p, false));
    }
}

CASE(rights)
{
    catch_faults();
    char *p = map(4 * PAGE, MAP_PRIVATE);
    memset(p, 5, 4 * PAGE);
    must(mprotect(p + PAGE, PAGE, PROT_NONE));
    must(mprotect(p + 2 * PAGE, PAGE, PROT_READ));
    say("none: %s", touch(p + PAGE, false));
    say("read: %s", touch(p + 2 * PAGE, false));
    say("read only: %s", touch(p + 2 * PAGE, true));
    say("neighbour: %s", touch(p + 3 * PAGE, true));
    say("a call reading PROT_NONE: %s", outcome(write(-1, p + PAGE, 1) == -1 ? -1 : 0));
    int ends[2];
    must(pipe(ends));
    say("write from PROT_NONE: %s", outcome(write(ends[1], p + PAGE, 1)));
    must(write(ends[1], "x", 1));
    say("read to read-only: %s", outcome(read(ends[0], p + 2 * PAGE, 1)));
    must(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE));
    say("given back: %d %d, %s", p[PAGE], p[2 * PAGE], touch(p + PAGE, true));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        must(mprotect(p, 4 * PAGE, PROT_READ));
        must(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE));
        p[2 * PAGE] = 9;
        _exit(0);
    }
    wait_for(child);
    say("child's mprotect leaves ours alone: %d", p[2 * PAGE]);
    say("null: %s", touch((char *)8, false));
    say("kernel half: %s", touch((char *)0xffffffff80000000UL, false));
    say("not canonical: %s", touch((char *)0x8000000000000000UL, false));
    void *code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(unsigned char *)code = 0xc3;
    caught_signal = 0;
    if (!sigsetjmp(back, 1))
        ((void (*)(void))code)();
    say("executing data: %s code %d", signal_text(caught_signal), caught_code);
    must(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
    caught_signal = 0;
    if (!sigsetjmp(back, 1))
        ((void (*)(void))code)();
    say("executing code: %d", caught_signal);
}

CASE(requests_that_fail)
{
    char *p = map(4 * PAGE, MAP_PRIVATE);
    int fd = (int)must(open("/dev/null", O_RDONLY));
    say("length 0: %s", outcome((long)mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
    say("no type: %s", outcome((long)mmap(NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0)));
    say("bad descriptor: %s", outcome((long)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, -1, 0)));
    say("odd offset: %s", outcome((long)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 100)));
    say("null device: %s", outcome((long)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0)));
    say("odd fixed address: %s",
        outcome((long)mmap(p + 1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)));
    say("taken, no replace: %s",
        outcome((long)mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)));
    say("too much: %s", outcome((long)mmap(NULL, 1UL << 50, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
    say("munmap odd: %s, nothing there: %s", outcome(munmap(p + 1, PAGE)), outcome(munmap((void *)0x10000000, PAGE)));
    say("mprotect a gap: %s", outcome(mprotect((void *)0x10000000, PAGE, PROT_READ)));
    say("madvise a gap: %s, unknown: %s", outcome(madvise((void *)0x10000000, PAGE, MADV_DONTNEED)),
        outcome(madvise(p, PAGE, 77)));
    say("mremap: nothing there %s, no room %s", outcome((long)mremap((void *)0x10000000, PAGE, 2 * PAGE, MREMAP_MAYMOVE)),
        outcome((long)mremap(p, PAGE, 2 * PAGE, 0)));
    int ro = (int)must(open("/proc/self/exe", O_RDONLY));
    say("shared, writable, of a read-only file: %s",
        outcome((long)mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0)));
    char *r = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, ro, 0);
    say("made writable later: %s", outcome(mprotect(r, PAGE, PROT_READ | PROT_WRITE)));
}

/* ---- a model of one range against the real one ---- */

enum { MODEL_PAGES = 64, MODEL_STEPS = 4000 };

CASE(random_mapping_against_a_model)
{
    /* value 0 = zero page, -1 = unmapped; right: 0 none, 1 read, 2 write */
    static int value[MODEL_PAGES], right[MODEL_PAGES];
    uint64_t state = 42;
    unsigned char *base = map(MODEL_PAGES * PAGE, MAP_PRIVATE);
    unsigned errors = 0, counts[8] = {0};

    catch_faults();
    for (int i = 0; i < MODEL_PAGES; i++)
        right[i] = 2;
    for (int step = 0; step < MODEL_STEPS; step++) {
        unsigned op = (unsigned)(next(&state) % 8);
        int from = (int)(next(&state) % MODEL_PAGES), n = 1 + (int)(next(&state) % 9), pages = from + n > MODEL_PAGES ? MODEL_PAGES - from : n;
        unsigned char *at = base + (size_t)from * PAGE;
        size_t size = (size_t)pages * PAGE;
        counts[op]++;
        switch (op) {
        case 0:
            errors += munmap(at, size) != 0;
            for (int i = 0; i < pages; i++)
                value[from + i] = -1;
            break;
        case 1:
        case 2: {
            int prot = (int)(next(&state) % 3);
            errors += mmap(at, size, prot == 0 ? PROT_NONE : prot == 1 ? PROT_READ : PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at;
            for (int i = 0; i < pages; i++) {
                value[from + i] = 0;
                right[from + i] = prot;
            }
            break;
        }
        case 3: {
            int prot = (int)(next(&state) % 3), stop = 0;
            int r = mprotect(at, size, prot == 0 ? PROT_NONE : prot == 1 ? PROT_READ : PROT_READ | PROT_WRITE);
            for (; stop < pages && value[from + stop] >= 0; stop++)
                right[from + stop] = prot;
            errors += (r == 0) != (stop == pages);
            break;
        }
        case 4:
            (void)!madvise(at, size, MADV_DONTNEED);
            for (int i = 0; i < pages; i++) {
                if (value[from + i] > 0)
                    value[from + i] = 0;
            }
            break;
        case 5: {
            pid_t child = fork();
            if (!child) {
                for (int i = 0; i < pages; i++) {
                    if (value[from + i] >= 0 && right[from + i] == 2)
                        at[(size_t)i * PAGE] = 200;
                }
                _exit(0);
            }
            if (step % 3)
                errors += wait_for(child) != 0;
            break;
        }
        default:
            for (int i = 0; i < pages; i++) {
                unsigned char *p = at + (size_t)i * PAGE;
                bool write = op == 6, mapped = value[from + i] >= 0;
                const char *got = touch((char *)p, write);
                bool works = !strcmp(got, "works");
                errors += works != (mapped && right[from + i] >= (write ? 2 : 1));
                if (works && write) {
                    value[from + i] = 1 + (int)(next(&state) % 100);
                    *p = (unsigned char)value[from + i];
                } else if (works) {
                    errors += *p != value[from + i];
                }
            }
        }
    }
    while (waitpid(-1, NULL, 0) > 0)
        ;
    say("steps: %u %u %u %u %u %u %u %u, errors: %u", counts[0], counts[1], counts[2], counts[3], counts[4], counts[5],
        counts[6], counts[7], errors);
}

CASE(mremap_moves_what_is_there)
{
    unsigned char *p = map(16 * PAGE, MAP_PRIVATE), *q;
    unsigned errors = 0;
    for (unsigned i = 0; i < 16; i += 2)
        p[i * PAGE] = (unsigned char)(i + 1);
    map(PAGE, MAP_PRIVATE);
    for (unsigned round = 1; round < 8; round++) {
        q = mremap(p, (16UL << (round - 1)) * PAGE, (16UL << round) * PAGE, MREMAP_MAYMOVE);
        must(q == MAP_FAILED ? -1 : 0);
        p = q;
        for (unsigned i = 0; i < 16; i++)
            errors += p[i * PAGE] != (i % 2 ? 0 : i + 1);
        p[((16UL << round) - 1) * PAGE] = 77;
    }
    q = mremap(p, 2048 * PAGE, 8 * PAGE, 0);
    say("shrunk in place: %d, errors %u", q == p, errors);
    unsigned char *room = map(8 * PAGE, MAP_PRIVATE);
    q = mremap(p, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    say("to a fixed place: %d, content %d %d %d", q == room, q[0], q[2 * PAGE], q[6 * PAGE]);
    catch_faults();
    say("old place: %s", touch((char *)p, false));
}

CASE(break_grows_and_shrinks)
{
    char *start = sbrk(0);
    char *p = sbrk(100 * (long)PAGE);
    say("grown: %d", p == start);
    memset(p, 1, 100 * PAGE);
    must((long)sbrk(-50 * (long)PAGE));
    must((long)sbrk(50 * (long)PAGE));
    say("kept %d, fresh %d", p[10 * PAGE], p[60 * PAGE]);
    must(brk(start));
    say("back: %d", sbrk(0) == (void *)start);
}

static __attribute__((noinline)) unsigned long deep(unsigned n)
{
    volatile char frame[8000];
    frame[0] = frame[7999] = (char)n;
    unsigned long below = n ? deep(n - 1) : 0;
    return below + (unsigned char)frame[0] + (unsigned char)frame[7999];
}

CASE(stack_grows)
{
    say("6 MB deep: %lu", deep(750));
    pid_t child = (pid_t)must(fork());
    if (!child)
        _exit((int)(deep(1200) & 0));
    say("beyond the limit: %s", status_text(wait_for(child)));
}

/* ---- threads ---- */

enum { RACE_THREADS = 4, RACE_ROUNDS = 300, RACE_PAGES = 32 };
static unsigned char *race_area;
static pthread_barrier_t race_start;
static volatile unsigned race_errors;

/* All fault in the same pages at once; each page must be one page for all. */
static void *race_fault(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg;
    for (unsigned round = 0; round < RACE_ROUNDS; round++) {
        pthread_barrier_wait(&race_start);
        for (unsigned i = 0; i < RACE_PAGES; i++)
            race_area[i * PAGE + me] = (unsigned char)(round + me + 1);
        pthread_barrier_wait(&race_start);
        for (unsigned i = 0; i < RACE_PAGES; i++) {
            for (unsigned who = 0; who < RACE_THREADS; who++) {
                if (race_area[i * PAGE + who] != (unsigned char)(round + who + 1))
                    race_errors++;
            }
        }
        pthread_barrier_wait(&race_start);
        if (!me)
            madvise(race_area, RACE_PAGES * PAGE, MADV_DONTNEED);
    }
    return NULL;
}

static void run_threads(unsigned count, void *(*fn)(void *))
{
    pthread_t threads[16];
    for (unsigned i = 0; i < count; i++)
        must(pthread_create(&threads[i], NULL, fn, (void *)(uintptr_t)i) ? -1 : 0);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

CASE(threads_fault_in_the_same_pages)
{
    race_area = map(RACE_PAGES * PAGE, MAP_PRIVATE);
    pthread_barrier_init(&race_start, NULL, RACE_THREADS);
    run_threads(RACE_THREADS, race_fault);
    say("wrong bytes: %u", race_errors);
}

/* Each thread maps, fills, checks and unmaps; freed pages that another CPU still reached would show. */
static void *race_map(void *arg)
{
    uint64_t state = (uintptr_t)arg + 1000;
    for (unsigned round = 0; round < 400; round++) {
        size_t pages = 1 + next(&state) % 20;
        uint64_t seed = next(&state);
        uint64_t *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            race_errors++;
            continue;
        }
        for (size_t i = 0; i < pages; i++)
            p[i * PAGE / 8] = mix(seed + i);
        if (round % 5 == 0)
            sched_yield();
        for (size_t i = 0; i < pages; i++)
            race_errors += p[i * PAGE / 8] != mix(seed + i);
        if (round % 3 == 0)
            mprotect(p, (pages + 1) / 2 * PAGE, PROT_READ);
        munmap(p, pages * PAGE);
    }
    return NULL;
}

static void *race_fork(void *arg)
{
    if ((uintptr_t)arg)
        return race_map(arg);
    uint64_t *mem = map(COW_PAGES * PAGE, MAP_PRIVATE);
    for (unsigned round = 0; round < 30; round++) {
        fill(mem, round);
        pid_t child = fork();
        if (!child)
            _exit(wrong(mem, round) != 0);
        fill(mem, round + 1000);
        if (wait_for(child))
            race_errors++;
    }
    return NULL;
}

CASE(threads_map_and_unmap)
{
    run_threads(8, race_map);
    say("wrong words: %u", race_errors);
}

CASE(threads_map_while_one_forks)
{
    run_threads(5, race_fork);
    say("wrong words: %u", race_errors);
}

/* A thread counts up in a private page while another forks: no store may be lost, none may reach a child. */
static volatile uint64_t *counter_page;
static volatile bool counter_stop;

static void *count_up(void *arg)
{
    (void)arg;
    uint64_t mine = 0;
    while (!counter_stop) {
        mine++;
        counter_page[0] = mine;
        if (counter_page[0] != mine)
            race_errors++;
    }
    return NULL;
}

CASE(stores_during_fork_are_not_lost)
{
    pthread_t thread;
    counter_page = map(PAGE, MAP_PRIVATE);
    must(pthread_create(&thread, NULL, count_up, NULL) ? -1 : 0);
    unsigned moved = 0;
    for (unsigned round = 0; round < 60; round++) {
        pid_t child = (pid_t)must(fork());
        if (!child) {
            uint64_t seen = counter_page[0];
            for (volatile unsigned i = 0; i < 20000; i++)
                ;
            _exit(counter_page[0] != seen);
        }
        moved += wait_for(child) != 0;
    }
    counter_stop = true;
    pthread_join(thread, NULL);
    say("lost: %u, seen by children: %u", race_errors, moved);
}

/* ---- shared memory, partly protected and unmapped ---- */

CASE(large_shared_memory_is_cut)
{
    const size_t size = 8UL << 20;
    catch_faults();
    unsigned char *p = map(size, MAP_SHARED);
    unsigned errors = 0;
    for (size_t i = 0; i < size; i += PAGE)
        p[i] = (unsigned char)(i / PAGE * 7);
    must(mprotect(p + (3UL << 20), 5 * PAGE, PROT_READ));
    must(munmap(p + (5UL << 20) + 3 * PAGE, 2 * PAGE));
    say("protected: %s, beside it: %s", touch((char *)p + (3UL << 20) + PAGE, true), touch((char *)p + (3UL << 20) + 5 * PAGE, false));
    say("unmapped: %s, beside it: %s", touch((char *)p + (5UL << 20) + 4 * PAGE, false), touch((char *)p + (5UL << 20) + 5 * PAGE, false));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        for (size_t i = 0; i < size; i += PAGE) {
            if (i >= (5UL << 20) + 3 * PAGE && i < (5UL << 20) + 5 * PAGE)
                continue;
            errors += p[i] != (unsigned char)(i / PAGE * 7);
            if (i < 3UL << 20)
                p[i] = (unsigned char)(i / PAGE * 7 + 1);
        }
        _exit(errors != 0);
    }
    say("child: %s", status_text(wait_for(child)));
    for (size_t i = 0; i < 3UL << 20; i += PAGE)
        errors += p[i] != (unsigned char)(i / PAGE * 7 + 1);
    say("errors: %u", errors);
}

/* ---- signals in the middle of faults ---- */

static volatile unsigned ticks;

static void tick(int signal)
{
    (void)signal;
    ticks++;
}

CASE(signals_while_faulting)
{
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval_weir {
        struct timeval interval, value;
    } timer = {{0, 3000}, {0, 3000}};
    const size_t pages = 2000;
    unsigned errors = 0;
    must(sigaction(SIGALRM, &action, NULL));
    must(syscall(SYS_setitimer, 0, &timer, NULL));
    for (unsigned round = 0; round < 20; round++) {
        uint64_t *p = map(pages * PAGE, MAP_PRIVATE);
        for (size_t i = 0; i < pages; i++)
            p[i * PAGE / 8] = mix(i + round);
        for (size_t i = 0; i < pages; i++)
            errors += p[i * PAGE / 8] != mix(i + round);
        munmap(p, pages * PAGE);
    }
    memset(&timer, 0, sizeof timer);
    must(syscall(SYS_setitimer, 0, &timer, NULL));
    say("errors: %u, ticks: %s", errors, ticks ? "some" : "none");
}
