/* What fork keeps, clears and shares; and fork from inside signal handlers. */
#include "abi.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

static volatile sig_atomic_t depth, caught;
static volatile pid_t handler_child;

static bool is_blocked(int signal)
{
    sigset_t set;
    must(sigprocmask(SIG_SETMASK, NULL, &set));
    return sigismember(&set, signal);
}

static bool is_pending(int signal)
{
    sigset_t set;
    must(sigpending(&set));
    return sigismember(&set, signal);
}

static void on_signal(int signal)
{
    caught = signal;
}

/* The child never returns from the handler; the parent does. */
static void fork_and_stay(int signal)
{
    int local = 40 + signal;
    pid_t pid = fork();
    if (!pid) {
        say("child in SIG%s handler: blocked %d, local kept %d", signal_text(signal), is_blocked(signal),
            local == 40 + signal);
        must(kill(getpid(), signal));
        say("own SIG%s pending: %d", signal_text(signal), is_pending(signal));
        unblock(signal);
        _exit(3);
    }
    handler_child = pid;
}

static void fork_again(int signal)
{
    if (depth++)
        _exit(4);
    fork_and_stay(signal);
}

CASE(fork_inside_a_handler)
{
    handle(SIGUSR1, fork_again, SA_RESTART);
    must(kill(getpid(), SIGUSR1));
    const char *status = status_text(wait_for(handler_child));
    say("child: %s", status);
    say("parent: blocked %d", is_blocked(SIGUSR1));
}

static void fork_and_return(int signal)
{
    if (!fork())
        caught = signal;
}

CASE(child_returns_from_the_handler)
{
    pid_t me = getpid();
    handle(SIGUSR1, fork_and_return, 0);
    must(kill(getpid(), SIGUSR1));
    if (getpid() != me) {
        say("child returned: caught SIG%s, blocked %d", signal_text(caught), is_blocked(SIGUSR1));
        _exit(5);
    }
    int status;
    must(wait(&status));
    say("parent: %s, blocked %d", status_text(status), is_blocked(SIGUSR1));
}

static volatile sig_atomic_t reaped, restarted;

/* As the postmaster does: wait4 with WNOHANG inside the SIGCHLD handler, which also forks. */
static void reap_and_fork(int signal)
{
    int status, saved = errno;
    while (waitpid(-1, &status, WNOHANG) > 0) {
        reaped++;
        if (restarted < 3 && WIFEXITED(status)) {
            restarted++;
            if (!fork())
                _exit(10 + restarted);
        }
    }
    errno = saved;
    (void)signal;
}

CASE(fork_inside_the_sigchld_handler)
{
    sigset_t blocked, open;
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    must(sigprocmask(SIG_SETMASK, &blocked, NULL));
    handle(SIGCHLD, reap_and_fork, SA_NOCLDSTOP);
    for (int i = 0; i < 2; i++)
        if (!must(fork()))
            _exit(1);
    while (reaped < 5)
        sigsuspend(&open);
    say("reaped %d, restarted %d", reaped, restarted);
    say("no child left: %s", outcome(waitpid(-1, NULL, WNOHANG)));
}

CASE(fork_clears_pending_timer_and_parent_death)
{
    struct itimerval timer = {.it_value = {100, 0}}, got;
    int death = -1;
    alarm(0);
    block(SIGUSR1);
    handle(SIGUSR2, on_signal, SA_RESTART);
    handle(SIGHUP, SIG_IGN, 0);
    must(kill(getpid(), SIGUSR1));
    must(setitimer(ITIMER_REAL, &timer, NULL));
    must(prctl(PR_SET_PDEATHSIG, SIGPWR));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        struct sigaction usr2, hup;
        must(getitimer(ITIMER_REAL, &got));
        must(prctl(PR_GET_PDEATHSIG, &death));
        must(sigaction(SIGUSR2, NULL, &usr2));
        must(sigaction(SIGHUP, NULL, &hup));
        say("child: pending %d, timer runs %d, parent death signal %d", is_pending(SIGUSR1),
            got.it_value.tv_sec || got.it_value.tv_usec, death);
        say("child: blocked %d, handler kept %d, ignored kept %d", is_blocked(SIGUSR1),
            usr2.sa_handler == on_signal, hup.sa_handler == SIG_IGN);
        _exit(0);
    }
    wait_for(child);
    must(getitimer(ITIMER_REAL, &got));
    must(prctl(PR_GET_PDEATHSIG, &death));
    say("parent: pending %d, timer runs %d, parent death signal %s", is_pending(SIGUSR1),
        got.it_value.tv_sec > 50, signal_text(death));
}

CASE(fork_shares_file_descriptions)
{
    char name[] = "/tmp/abi-XXXXXX", text[8] = "";
    int fd = (int)must(mkstemp(name)), other = (int)must(dup(fd)), pipes[2];
    must(unlink(name));
    must(pipe(pipes));
    must(write(fd, "abcdef", 6));
    must(lseek(fd, 1, SEEK_SET));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        must(read(fd, text, 2));
        must(fcntl(fd, F_SETFD, FD_CLOEXEC));
        must(fcntl(pipes[0], F_SETFL, O_NONBLOCK));
        must(close(other));
        say("child read \"%s\"", text);
        _exit(0);
    }
    wait_for(child);
    say("parent: offset %ld, non-blocking %d, close-on-exec %d, other descriptor open %d",
        (long)lseek(fd, 0, SEEK_CUR), !!(fcntl(pipes[0], F_GETFL) & O_NONBLOCK), fcntl(fd, F_GETFD),
        fcntl(other, F_GETFD) != -1);
}

CASE(pids_differ_at_once)
{
    pid_t me = getpid();
    pid_t child = (pid_t)must(fork());
    if (!child) {
        say("child: other pid %d, parent is the maker %d, thread id is the pid %d", getpid() != me,
            getppid() == me, gettid() == getpid());
        _exit(0);
    }
    wait_for(child);
    say("parent: pid unchanged %d, fork told the child's pid %d", getpid() == me, child != me && child > 0);
}

CASE(private_memory_is_copied)
{
    static char page[3 * 4096];
    char *heap = malloc(100000);
    memset(page, 'p', sizeof page);
    memset(heap, 'h', 100000);
    pid_t child = (pid_t)must(fork());
    if (!child) {
        memset(page, 'c', sizeof page);
        memset(heap, 'c', 100000);
        _exit(page[5000] == 'c' && heap[99999] == 'c' ? 0 : 1);
    }
    say("child: %s", status_text(wait_for(child)));
    say("parent: %c %c %c %c", page[0], page[sizeof page - 1], heap[0], heap[99999]);
    free(heap);
}

CASE(many_forks_and_pids_not_reused)
{
    enum { COUNT = 200 };
    static pid_t seen[COUNT];
    int bad = 0, repeats = 0;
    for (int i = 0; i < COUNT; i++) {
        seen[i] = (pid_t)must(fork());
        if (!seen[i])
            _exit(i & 0x7f);
        int status = wait_for(seen[i]);
        bad += !WIFEXITED(status) || WEXITSTATUS(status) != (i & 0x7f);
        for (int j = 0; j < i; j++)
            repeats += seen[i] == seen[j];
    }
    say("wrong statuses %d, pids used twice %d", bad, repeats);
}

CASE(limits_are_inherited)
{
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 100;
    must(setrlimit(RLIMIT_NOFILE, &limit));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        must(getrlimit(RLIMIT_NOFILE, &limit));
        say("child: %lu files", (unsigned long)limit.rlim_cur);
        _exit(0);
    }
    wait_for(child);
    must(getrlimit(RLIMIT_STACK, &limit));
    say("stack limit is at least 8 MiB: %d", limit.rlim_cur >= 8u << 20);
}
