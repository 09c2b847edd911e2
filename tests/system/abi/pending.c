/* A blocked signal stays pending although its action is to ignore it: PostgreSQL's latches live by this. */
#include "abi.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>

static bool is_pending(int signal)
{
    sigset_t set;
    must(sigpending(&set));
    return sigismember(&set, signal);
}

static int make_signalfd(int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    return (int)must(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

static void read_signalfd(int fd, const char *when)
{
    struct signalfd_siginfo info[4];
    ssize_t got = read(fd, info, sizeof info);
    if (got == -1)
        say("%s: signalfd: %s", when, error_name(errno));
    else
        say("%s: signalfd: %zd bytes, SIG%s, from myself: %d", when, got, signal_text((int)info[0].ssi_signo),
            info[0].ssi_pid == (uint32_t)getpid());
}

CASE(blocked_ignored_signal_is_kept)
{
    handle(SIGURG, SIG_IGN, 0);
    block(SIGURG);
    int fd = make_signalfd(SIGURG);
    read_signalfd(fd, "before");
    must(kill(getpid(), SIGURG));
    say("pending: %d", is_pending(SIGURG));
    read_signalfd(fd, "after kill");
    say("pending after read: %d", is_pending(SIGURG));
    read_signalfd(fd, "again");
}

CASE(blocked_default_ignored_signal_is_kept)
{
    handle(SIGURG, SIG_DFL, 0);
    block(SIGURG);
    must(kill(getpid(), SIGURG));
    must(kill(getpid(), SIGURG));
    say("pending: %d", is_pending(SIGURG));
    read_signalfd(make_signalfd(SIGURG), "two kills, one signal");
}

CASE(unblocked_ignored_signal_is_dropped)
{
    handle(SIGURG, SIG_IGN, 0);
    must(kill(getpid(), SIGURG));
    block(SIGURG);
    say("pending: %d", is_pending(SIGURG));
}

CASE(setting_ignore_drops_what_is_pending)
{
    handle(SIGUSR1, SIG_DFL, 0);
    block(SIGUSR1);
    must(kill(getpid(), SIGUSR1));
    say("pending: %d", is_pending(SIGUSR1));
    handle(SIGUSR1, SIG_IGN, 0);
    say("pending after SIG_IGN: %d", is_pending(SIGUSR1));
}

/* The latch of a backend: inherited SIG_IGN, blocked, signalfd in an epoll, woken by another process. */
CASE(latch_between_processes)
{
    int ready[2];
    handle(SIGURG, SIG_IGN, 0);
    must(pipe(ready));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        block(SIGURG);
        int fd = make_signalfd(SIGURG), ep = (int)must(epoll_create1(EPOLL_CLOEXEC));
        struct epoll_event event = {.events = EPOLLIN | EPOLLERR | EPOLLHUP, .data.u32 = 7};
        must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        for (int i = 0; i < 3; i++) {
            must(write(ready[1], "r", 1));
            int n = epoll_wait(ep, &event, 1, 30000);
            struct signalfd_siginfo info;
            ssize_t got = read(fd, &info, sizeof info);
            say("round %d: epoll_wait %d, events %x, data %u, read %zd, from my parent: %d", i, n, event.events,
                event.data.u32, got, info.ssi_pid == (uint32_t)getppid());
        }
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        char c;
        must(read(ready[0], &c, 1));
        if (i == 1)
            sleep_ms(200);
        must(kill(child, SIGURG));
    }
    say("child: %s", status_text(wait_for(child)));
}

static volatile sig_atomic_t caught;

static void on_signal(int signal)
{
    caught = signal;
}

CASE(own_signal_arrives_before_kill_returns)
{
    for (int i = 0; i < 3; i++) {
        handle(SIGUSR1, on_signal, i == 1 ? SA_RESTART : 0);
        caught = 0;
        must(i == 2 ? raise(SIGUSR1) : kill(getpid(), SIGUSR1));
        say("caught: %s", signal_text(caught));
    }
    block(SIGUSR2);
    int fd = make_signalfd(SIGUSR2);
    must(kill(getpid(), SIGUSR2));
    read_signalfd(fd, "own signal");
    handle(SIGUSR2, on_signal, 0);
    must(kill(getpid(), SIGUSR2));
    caught = 0;
    unblock(SIGUSR2);
    say("caught on unblock: %s", signal_text(caught));
}

static void kill_group(int signal)
{
    caught = 0;
    must(kill(-getpgrp(), SIGUSR2));
    say("in the handler of SIG%s: caught SIG%s", signal_text(signal), signal_text(caught));
}

CASE(own_group_is_signalled_from_a_handler)
{
    must(setsid());
    handle(SIGUSR2, on_signal, SA_RESTART);
    handle(SIGUSR1, kill_group, SA_RESTART);
    must(kill(getpid(), SIGUSR1));
    say("after: caught SIG%s", signal_text(caught));
}

/* A signalfd shows the signals of the process that reads it, not of the one that made it. */
CASE(inherited_signalfd_shows_the_readers_signals)
{
    block(SIGUSR1);
    int fd = make_signalfd(SIGUSR1);
    must(kill(getpid(), SIGUSR1));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        read_signalfd(fd, "child, nothing sent to it");
        must(kill(getpid(), SIGUSR1));
        read_signalfd(fd, "child, own signal");
        _exit(0);
    }
    wait_for(child);
    read_signalfd(fd, "parent");
}

CASE(mask_and_handler_flags)
{
    struct sigaction old;
    handle(SIGUSR1, on_signal, SA_RESTART | SA_NOCLDSTOP);
    must(sigaction(SIGUSR1, NULL, &old));
    say("flags %x, handler kept: %d", old.sa_flags & ~0x04000000, old.sa_handler == on_signal);
    handle(SIGUSR1, on_signal, (int)SA_RESETHAND);
    must(kill(getpid(), SIGUSR1));
    must(sigaction(SIGUSR1, NULL, &old));
    say("after SA_RESETHAND: default: %d", old.sa_handler == SIG_DFL);
    say("SIGKILL action: %s", outcome(sigaction(SIGKILL, &old, NULL)));
    say("signal 0 action: %s", outcome(sigaction(0, NULL, &old)));
    sigset_t set;
    sigfillset(&set);
    must(sigprocmask(SIG_SETMASK, &set, NULL));
    must(sigprocmask(SIG_SETMASK, NULL, &set));
    say("blocked: KILL %d STOP %d USR1 %d", sigismember(&set, SIGKILL), sigismember(&set, SIGSTOP),
        sigismember(&set, SIGUSR1));
}
