/* What a program finds when it starts, and how processes and threads begin and end. */
#include "abi.h"

#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

extern char **environ;

CASE(auxiliary_vector)
{
    static const struct {
        unsigned long type;
        const char *name;
    } wanted[] = {
        {AT_PAGESZ, "PAGESZ"}, {AT_CLKTCK, "CLKTCK"}, {AT_PHENT, "PHENT"}, {AT_FLAGS, "FLAGS"}, {AT_SECURE, "SECURE"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        say("%s %lu", wanted[i].name, getauxval(wanted[i].type));
    say("platform %s", (const char *)getauxval(AT_PLATFORM));
    say("ids as the calls say: %d %d", getauxval(AT_UID) == getuid(), getauxval(AT_GID) == getgid());
    const Elf64_Phdr *ph = (const Elf64_Phdr *)getauxval(AT_PHDR);
    say("program headers: %s, as many as loaded: %d", ph && ph[0].p_type == PT_PHDR ? "found" : "not found",
        getauxval(AT_PHNUM) > 5);
    const unsigned char *random = (const unsigned char *)getauxval(AT_RANDOM);
    unsigned bits = 0;
    for (int i = 0; random && i < 16; i++)
        bits |= random[i];
    say("random bytes: %d", bits != 0);
    const char *vdso = (const char *)getauxval(AT_SYSINFO_EHDR);
    say("vdso: %d", vdso && !memcmp(vdso, ELFMAG, SELFMAG));
    say("minimal signal stack: %d", getauxval(AT_MINSIGSTKSZ) >= 2048 || !getauxval(AT_MINSIGSTKSZ));
}

CASE(address_space_layout)
{
    static int data = 1;
    int local;
    void *heap = sbrk(0), *mapping = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    say("text below heap below mappings below stack: %d",
        (uintptr_t)&data < (uintptr_t)heap && heap < mapping && (uintptr_t)mapping < (uintptr_t)&local);
}

CASE(script_with_an_interpreter)
{
    char name[] = "/tmp/abi-XXXXXX", self[256];
    int fd = (int)must(mkstemp(name));
    ssize_t n = must(readlink("/proc/self/exe", self, sizeof self - 1));
    self[n] = 0;
    must(dprintf(fd, "#!%s  script_argument_probe  \nignored\n", self) < 0 ? -1 : 0);
    must(fchmod(fd, 0755));
    close(fd);
    pid_t child = (pid_t)must(fork());
    if (!child) {
        char *argv[] = {"zero", "one", NULL};
        setenv("ABI_SCRIPT", name, 1);
        execve(name, argv, environ);
        say("execve: %s", error_name(errno));
        _exit(98);
    }
    say("script: %s", status_text(wait_for(child)));
    unlink(name);
}

/* Not a test by itself: what the script above runs. */
CASE(script_argument_probe)
{
    if (!getenv("ABI_SCRIPT"))
        return;
    char line[512] = {0};
    int fd = (int)must(open("/proc/self/cmdline", O_RDONLY));
    ssize_t n = read(fd, line, sizeof line - 1);
    int words = 0;
    const char *script = "";
    for (char *p = line; p < line + n; p += strlen(p) + 1) {
        if (words == 2)
            script = p;
        words++;
    }
    say("words: %d, the script is the third: %d", words, !strcmp(script, getenv("ABI_SCRIPT")));
}

static void try_exec(const char *path, const char *kind)
{
    pid_t child = (pid_t)must(fork());
    if (!child) {
        char *argv[] = {"x", NULL};
        execve(path, argv, environ);
        say("%s: %s", kind, error_name(errno));
        _exit(0);
    }
    wait_for(child);
}

CASE(what_cannot_be_executed)
{
    char name[] = "/tmp/abi-XXXXXX";
    int fd = (int)must(mkstemp(name));
    must(write(fd, "not a program", 13));
    try_exec(name, "no right");
    must(fchmod(fd, 0755));
    close(fd);
    try_exec(name, "no format");
    fd = (int)must(open(name, O_WRONLY | O_TRUNC));
    close(fd);
    try_exec(name, "empty");
    fd = (int)must(open(name, O_WRONLY | O_TRUNC));
    must(write(fd, "#!/does/not/exist\n", 18));
    close(fd);
    try_exec(name, "interpreter missing");
    unlink(name);
    try_exec("/tmp", "directory");
    try_exec("/tmp/not/there", "missing");
}

CASE(large_arguments_probe)
{
    if (!getenv("ABI_LARGE"))
        return;
    _exit(12);
}

CASE(large_arguments)
{
    size_t size = 100000;
    char *big = malloc(size);
    memset(big, 'a', size - 1);
    big[size - 1] = 0;
    pid_t child = (pid_t)must(fork());
    if (!child) {
        char *argv[] = {"abi", "large_arguments_probe", big, big, big, NULL};
        setenv("ABI_LARGE", "1", 1);
        execve("/proc/self/exe", argv, environ);
        say("execve: %s", error_name(errno));
        _exit(97);
    }
    say("300000 bytes: %s", status_text(wait_for(child)));
    child = (pid_t)must(fork());
    if (!child) {
        char *huge = malloc(200000);
        memset(huge, 'b', 199999);
        huge[199999] = 0;
        char *argv[] = {"abi", huge, NULL};
        execve("/proc/self/exe", argv, environ);
        say("one of 200000: %s", error_name(errno));
        _exit(0);
    }
    wait_for(child);
}

/* ---- threads and the end ---- */

static void *sleep_for_ever(void *arg)
{
    for (;;)
        pause();
    return arg;
}

static void *spin_for_ever(void *arg)
{
    for (volatile unsigned long i = 0;; i++)
        ;
    return arg;
}

static void start(void *(*fn)(void *))
{
    pthread_t t;
    must(pthread_create(&t, NULL, fn, NULL) ? -1 : 0);
}

CASE(exit_group_with_threads)
{
    pid_t child = (pid_t)must(fork());
    if (!child) {
        for (int i = 0; i < 3; i++) {
            start(sleep_for_ever);
            start(spin_for_ever);
        }
        _exit(5);
    }
    say("%s", status_text(wait_for(child)));
}

static void *exec_from_here(void *arg)
{
    char *argv[] = {"abi", "exec_from_a_thread_probe", NULL};
    setenv("ABI_PID", arg, 1);
    execve("/proc/self/exe", argv, environ);
    _exit(96);
}

CASE(exec_from_a_thread)
{
    pid_t child = (pid_t)must(fork());
    if (!child) {
        static char pid[16];
        pthread_t t;
        snprintf(pid, sizeof pid, "%d", getpid());
        start(sleep_for_ever);
        start(spin_for_ever);
        must(pthread_create(&t, NULL, exec_from_here, pid) ? -1 : 0);
        sleep_for_ever(NULL);
    }
    say("%s", status_text(wait_for(child)));
}

CASE(exec_from_a_thread_probe)
{
    const char *pid = getenv("ABI_PID");
    if (!pid)
        return;
    say("same pid: %d, thread number is the pid: %d", atoi(pid) == getpid(), syscall(SYS_gettid) == getpid());
    _exit(4);
}

static void *leave_alone(void *arg)
{
    sleep_ms(50);
    _exit(6);
    return arg;
}

CASE(first_thread_ends_first)
{
    pid_t child = (pid_t)must(fork());
    if (!child) {
        start(leave_alone);
        syscall(SYS_exit, 9);
    }
    say("%s", status_text(wait_for(child)));
}

CASE(kill_a_spinning_process)
{
    pid_t child = (pid_t)must(fork());
    if (!child)
        spin_for_ever(NULL);
    sleep_ms(20);
    must(kill(child, SIGKILL));
    say("%s", status_text(wait_for(child)));
}

CASE(vfork_and_spawn)
{
    static volatile int shared_word;
    pid_t child = vfork();
    if (!child) {
        shared_word = 7;
        _exit(3);
    }
    say("vfork: %s, wrote %d", status_text(wait_for(child)), shared_word);
    char *argv[] = {"abi", "spawn_probe", NULL};
    pid_t pid;
    setenv("ABI_SPAWN", "1", 1);
    int r = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ);
    say("posix_spawn: %s, %s", error_name(r), r ? "-" : status_text(wait_for(pid)));
    unsetenv("ABI_SPAWN");
    r = posix_spawn(&pid, "/not/there", NULL, NULL, argv, environ);
    say("posix_spawn of nothing: %s", error_name(r));
}

CASE(spawn_probe)
{
    if (getenv("ABI_SPAWN"))
        _exit(11);
}

CASE(wait_selectors)
{
    pid_t a = (pid_t)must(fork());
    if (!a)
        _exit(1);
    pid_t b = (pid_t)must(fork());
    if (!b) {
        setpgid(0, 0);
        sleep_ms(100);
        _exit(2);
    }
    setpgid(b, b);
    int status;
    say("not a child: %s", outcome(waitpid(getpid(), &status, 0)));
    say("not yet: %d", waitpid(b, &status, WNOHANG));
    say("group of b: %d, %s", waitpid(-b, &status, 0) == b, status_text(status));
    say("b again: %s", outcome(waitpid(b, &status, 0)));
    siginfo_t info;
    memset(&info, 0, sizeof info);
    say("waitid, kept: %s, pid %d code %d status %d", outcome(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT)), info.si_pid == a,
        info.si_code, info.si_status);
    say("own group: %d, %s", waitpid(0, &status, 0) == a, status_text(status));
    say("nobody: %s", outcome(wait(&status)));
    say("bad option: %s", outcome(waitpid(-1, &status, 0x40000)));
}

CASE(ignored_children_are_not_waited_for)
{
    signal(SIGCHLD, SIG_IGN);
    pid_t a = (pid_t)must(fork());
    if (!a)
        _exit(1);
    int status = 0;
    say("wait: %s", outcome(waitpid(-1, &status, 0)));
}

CASE(orphans_and_death_signals)
{
    int ends[2];
    must(pipe(ends));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        pid_t parent = getpid();
        pid_t grandchild = (pid_t)must(fork());
        if (!grandchild) {
            sigset_t set;
            int got;
            sigemptyset(&set);
            sigaddset(&set, SIGPWR);
            sigprocmask(SIG_BLOCK, &set, NULL);
            must(prctl(PR_SET_PDEATHSIG, SIGPWR));
            must(write(ends[1], "r", 1));
            sigwait(&set, &got);
            /* Whoever adopts orphans here, it is not the dead parent. */
            char text[64];
            int n = snprintf(text, sizeof text, "%s %d", signal_text(got), getppid() != parent);
            must(write(ends[1], text, (size_t)n + 1));
            _exit(0);
        }
        char c;
        must(read(ends[0], &c, 1));
        _exit(0);
    }
    wait_for(child);
    char text[64] = {0};
    must(read(ends[0], text, sizeof text - 1));
    say("grandchild got: %s", text);
}

CASE(groups_and_sessions)
{
    pid_t child = (pid_t)must(fork());
    if (!child) {
        say("in the parent's group: %d", getpgrp() == getpgid(getppid()));
        say("setsid: %d, again: %s", setsid() == getpid(), outcome(setsid()));
        say("leader: %d %d, setpgid: %s", getpgrp() == getpid(), getsid(0) == getpid(), outcome(setpgid(0, 0)));
        say("kill an empty group: %s", outcome(kill(-999999, 0)));
        _exit(0);
    }
    wait_for(child);
    say("of nobody: %s %s", outcome(getpgid(999999)), outcome(getsid(999999)));
    say("a group that is not there: %s", outcome(setpgid(0, 999999)));
}

CASE(limits)
{
    struct rlimit limit;
    must(getrlimit(RLIMIT_STACK, &limit));
    say("stack: %lu", (unsigned long)limit.rlim_cur);
    limit.rlim_cur = 4UL << 20;
    must(setrlimit(RLIMIT_STACK, &limit));
    must(getrlimit(RLIMIT_STACK, &limit));
    say("set: %lu", (unsigned long)limit.rlim_cur);
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? RLIM_INFINITY : limit.rlim_max + 1;
    limit.rlim_max = limit.rlim_cur - 1;
    say("soft above hard: %s", outcome(setrlimit(RLIMIT_STACK, &limit)));
    say("unknown: %s", outcome(getrlimit(77, &limit)));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        must(getrlimit(RLIMIT_STACK, &limit));
        _exit(limit.rlim_cur == 4UL << 20 ? 0 : 1);
    }
    say("inherited: %s", status_text(wait_for(child)));
}

CASE(thread_numbers_and_names)
{
    char name[16] = {0};
    must(prctl(PR_SET_NAME, "a-name-of-more-than-fifteen"));
    must(prctl(PR_GET_NAME, name));
    say("name: %s", name);
    say("thread number: %d, tgkill of nobody: %s", syscall(SYS_gettid) == getpid(), outcome(syscall(SYS_tgkill, getpid(), 999999, 0)));
    cpu_set_t set;
    CPU_ZERO(&set);
    must(sched_getaffinity(0, sizeof set, &set));
    say("at least one CPU: %d", CPU_COUNT(&set) >= 1);
    CPU_ZERO(&set);
    say("no CPU: %s", outcome(sched_setaffinity(0, sizeof set, &set)));
    CPU_SET(0, &set);
    must(sched_setaffinity(0, sizeof set, &set));
    say("bound to CPU 0, runs on %d", sched_getcpu());
}

static void *count_thread(void *arg)
{
    __atomic_fetch_add((int *)arg, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

CASE(many_short_threads)
{
    int count = 0;
    for (int round = 0; round < 40; round++) {
        pthread_t t[10];
        for (int i = 0; i < 10; i++)
            must(pthread_create(&t[i], NULL, count_thread, &count) ? -1 : 0);
        for (int i = 0; i < 10; i++)
            pthread_join(t[i], NULL);
    }
    say("ran: %d", count);
}

CASE(many_short_processes)
{
    int good = 0;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 10; i++) {
            pid_t child = (pid_t)must(fork());
            if (!child)
                _exit(i);
        }
        int status;
        unsigned seen = 0;
        while (wait(&status) > 0)
            seen |= 1u << WEXITSTATUS(status);
        good += seen == 0x3ff;
    }
    say("complete rounds: %d", good);
}
