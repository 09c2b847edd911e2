/*
 * Random system calls with random arguments, in children that may die of them: the kernel must not.
 *
 *   random_calls SEED ROUNDS CALLS        runs in the guest only: it would do harm on a machine with more on it
 *
 * Prints how the children ended; what they did is the seed's.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 4, CALL_S = 2, MEMORY = 8192, PLACES = 40 };

/* What would end the child at once, let it sleep, or take away what it stands on. */
static const int left_out[] = {
    SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_reboot, SYS_fork, SYS_vfork, SYS_clone, SYS_clone3, SYS_execve,
    SYS_execveat, SYS_pause, SYS_rt_sigsuspend, SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo, SYS_mprotect, SYS_shmat, SYS_setrlimit, SYS_prlimit64, SYS_wait4, SYS_waitid,
    SYS_nanosleep, SYS_clock_nanosleep, SYS_arch_prctl, SYS_set_robust_list, SYS_rt_sigaction, SYS_sigaltstack,
    SYS_set_tid_address, SYS_timer_create,
};
static const int writers[] = {SYS_write, SYS_writev, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_sendto, SYS_ioctl};

static uint64_t state;
static char *memory; /* readable and writable, with an unmapped page behind it */

static uint64_t random64(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t below(uint64_t limit)
{
    return random64() % limit;
}

static uint64_t argument(void)
{
    switch (below(14)) {
    case 0: return 0;
    case 1: return below(64);
    case 2: return UINT64_MAX;
    case 3: return random64();
    case 4: return (uintptr_t)memory + below(4096);
    case 5: return (uintptr_t)memory + MEMORY - below(64); /* runs into the hole */
    case 6: return 0x7ffffffff000 - below(32);             /* end of the program's half */
    case 7: return 0xffff888000000000 + below(65536);      /* the kernel's */
    case 8: return 1ull << below(64);
    case 9:
    case 10: return 3 + below(24); /* a descriptor */
    case 11: return (uintptr_t)memory + below(MEMORY);
    case 12: return below(4096);
    default: return -below(200);
    }
}

static int is_in(const int *list, size_t count, int number)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == number)
            return 1;
    return 0;
}

static void open_things(void)
{
    int pair[2];
    sigset_t all;
    sigfillset(&all);
    if (pipe(pair) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair))
        _exit(1);
    socket(AF_INET, SOCK_STREAM, 0);
    socket(AF_INET, SOCK_DGRAM, 0);
    socket(AF_UNIX, SOCK_SEQPACKET, 0);
    epoll_create1(0);
    epoll_create1(0);
    eventfd(0, 0);
    timerfd_create(CLOCK_MONOTONIC, 0);
    signalfd(-1, &all, 0);
    memfd_create("m", 0);
    open("/tmp/random", O_RDWR | O_CREAT, 0600);
    open("/proc/self/status", O_RDONLY);
    open("/", O_RDONLY | O_DIRECTORY);
    open("/dev/zero", O_RDWR);
    for (int fd = 3; fd < PLACES; fd++)
        fcntl(fd, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 3; i++) { /* nobody writes rubbish on the console */
        int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, i);
        close(nothing);
    }
}

static void make_memory(void)
{
    memory = mmap(NULL, MEMORY + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + MEMORY, 4096, PROT_NONE))
        _exit(1);
    for (size_t i = 0; i < MEMORY; i += sizeof(uint64_t)) {
        uint64_t word = below(3) ? below(32) : random64();
        memcpy(memory + i, &word, sizeof word);
    }
    strcpy(memory, "/tmp/random");
    strcpy(memory + 100, "/tmp");
    strcpy(memory + 200, "/dev/shm/random");
}

static void call_at_random(void)
{
    int number = (int)below(451);
    uint64_t a[6];
    if (number >= 335 && number < 424)
        number = (int)below(335); /* a hole in the table */
    for (int i = 0; i < 6; i++)
        a[i] = argument();
    if (is_in(left_out, sizeof left_out / sizeof *left_out, number) ||
        (a[0] < 3 && is_in(writers, sizeof writers / sizeof *writers, number)))
        return;
    if (number == SYS_close || number == SYS_close_range) {
        if (below(4))
            return; /* else soon nothing would be open */
    }
    for (int i = 0; i < 6; i++)
        if ((number == SYS_ftruncate || number == SYS_truncate || number == SYS_fallocate) && a[i] > 1 << 20)
            a[i] %= 65536;
    alarm(CALL_S);
    syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void run_child(uint64_t seed, int calls)
{
    state = seed * 0x9e3779b97f4a7c15 + 1;
    for (int i = 0; i < 4; i++)
        random64();
    for (int signal_number = 1; signal_number < 64; signal_number++)
        if (signal_number != SIGALRM && signal_number != SIGSEGV && signal_number != SIGBUS)
            signal(signal_number, SIG_IGN);
    make_memory();
    open_things();
    for (int i = 0; i < calls; i++)
        call_at_random();
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    uint64_t seed = strtoull(argv[1], NULL, 0);
    int rounds = atoi(argv[2]), calls = atoi(argv[3]), exited = 0, killed = 0;
    for (int r = 0; r < rounds; r++) {
        pid_t pids[CHILDREN];
        for (int i = 0; i < CHILDREN; i++) {
            pids[i] = fork();
            if (!pids[i])
                run_child(seed * 100000 + (uint64_t)(r * CHILDREN + i), calls);
        }
        for (int i = 0; i < CHILDREN; i++) {
            int status;
            if (pids[i] < 0 || waitpid(pids[i], &status, 0) != pids[i])
                return 3;
            exited += WIFEXITED(status);
            killed += WIFSIGNALED(status);
        }
    }
    printf("random calls: %d children, %d exited, %d killed\n", rounds * CHILDREN, exited, killed);
    return exited + killed == rounds * CHILDREN ? 0 : 1;
}
