/* Which blocking calls a handler ends with EINTR and which go on under SA_RESTART. */
#include "abi.h"

#include <linux/futex.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

static volatile sig_atomic_t caught;

static void on_signal(int signal)
{
    caught++;
    (void)signal;
}

/* Each waits for something that happens 300 ms after the signal and returns what the call said. */
static int pipes[2];

static long call_read(void)
{
    char c;
    return read(pipes[0], &c, 1);
}

static long call_epoll_wait(void)
{
    int ep = (int)must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, pipes[0], &event));
    long got = epoll_wait(ep, &event, 1, 20000);
    int saved = errno;
    close(ep);
    errno = saved;
    return got;
}

static long call_select(void)
{
    fd_set set;
    struct timeval limit = {20, 0};
    FD_ZERO(&set);
    FD_SET(pipes[0], &set);
    return select(pipes[0] + 1, &set, NULL, NULL, &limit);
}

static long call_nanosleep(void)
{
    struct timespec t = {getenv("ABI_SLOW") ? 6 : 1, 0}, left = {0, 0};
    long got = nanosleep(&t, &left);
    if (got == -1)
        say("  some time was left: %d", (left.tv_sec || left.tv_nsec) && left.tv_sec < t.tv_sec);
    return got;
}

static int *futex_word;

static long call_futex(void)
{
    return syscall(SYS_futex, futex_word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, NULL, NULL,
                   FUTEX_BITSET_MATCH_ANY);
}

static pid_t slow_child;

static long call_wait4(void)
{
    int status;
    return waitpid(slow_child, &status, 0) == slow_child ? 1 : -1;
}

static void one(const char *name, long (*call)(void), int flags)
{
    pid_t me = getpid();
    must(pipe(pipes));
    caught = 0;
    *futex_word = 0;
    slow_child = (pid_t)must(fork());
    if (!slow_child) {
        sleep_ms(150);
        must(kill(me, SIGUSR1));
        sleep_ms(300);
        must(write(pipes[1], "x", 1));
        *futex_word = 1;
        syscall(SYS_futex, futex_word, FUTEX_WAKE, 100, NULL, NULL, 0);
        _exit(0);
    }
    handle(SIGUSR1, on_signal, flags);
    errno = 0;
    long got = call();
    say("%s %s SA_RESTART: %ld %s, handler ran %d times", name, flags ? "with" : "without", got, outcome(got), caught);
    waitpid(slow_child, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
}

static void both(const char *name, long (*call)(void))
{
    one(name, call, 0);
    one(name, call, SA_RESTART);
}

static void make_futex(void)
{
    futex_word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(futex_word == MAP_FAILED ? -1 : 0);
}

CASE(interrupted_read_of_a_pipe)
{
    make_futex();
    both("read", call_read);
}

CASE(interrupted_epoll_wait)
{
    make_futex();
    both("epoll_wait", call_epoll_wait);
}

CASE(interrupted_select)
{
    make_futex();
    both("select", call_select);
}

CASE(interrupted_nanosleep)
{
    make_futex();
    both("nanosleep", call_nanosleep);
}

CASE(interrupted_futex_wait)
{
    make_futex();
    both("futex", call_futex);
}

CASE(interrupted_wait4)
{
    make_futex();
    both("wait4", call_wait4);
}

static int listener;
static struct sockaddr_in address;

static void make_listener(void)
{
    socklen_t length = sizeof address;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = (int)must(socket(AF_INET, SOCK_STREAM, 0));
    must(bind(listener, (struct sockaddr *)&address, sizeof address));
    must(listen(listener, 5));
    must(getsockname(listener, (struct sockaddr *)&address, &length));
}

static void accept_and_receive(int flags)
{
    pid_t me = getpid(), child = (pid_t)must(fork());
    if (!child) {
        int fd = (int)must(socket(AF_INET, SOCK_STREAM, 0));
        sleep_ms(150);
        must(kill(me, SIGUSR1));
        sleep_ms(300);
        must(connect(fd, (struct sockaddr *)&address, sizeof address));
        sleep_ms(150);
        must(kill(me, SIGUSR1));
        sleep_ms(300);
        must(send(fd, "x", 1, 0));
        char c;
        must(recv(fd, &c, 1, 0));
        _exit(0);
    }
    handle(SIGUSR1, on_signal, flags);
    caught = 0;
    int fd = accept(listener, NULL, NULL);
    say("accept %s SA_RESTART: %s, handler ran %d times", flags ? "with" : "without", outcome(fd), caught);
    if (fd == -1)
        fd = (int)must(accept(listener, NULL, NULL));
    char c = 0;
    long got = recv(fd, &c, 1, 0);
    say("recv %s SA_RESTART: %ld %s, handler ran %d times", flags ? "with" : "without", got, outcome(got), caught);
    must(send(fd, "y", 1, 0));
    say("child: %s", status_text(wait_for(child)));
    close(fd);
}

CASE(interrupted_accept_and_recv)
{
    make_listener();
    accept_and_receive(0);
    accept_and_receive(SA_RESTART);
}

/* The postmaster: all signals blocked except during pselect without a mask. */
CASE(signal_pending_when_select_begins)
{
    struct timeval limit = {20, 0};
    handle(SIGUSR1, on_signal, SA_RESTART);
    block(SIGUSR1);
    must(kill(getpid(), SIGUSR1));
    say("before: handler ran %d times", caught);
    unblock(SIGUSR1);
    say("unblocked: handler ran %d times", caught);
    block(SIGUSR1);
    must(kill(getpid(), SIGUSR1));
    sigset_t open;
    struct timespec limit_ns = {20, 0};
    sigemptyset(&open);
    long got = pselect(0, NULL, NULL, NULL, &limit_ns, &open);
    say("pselect with a mask: %ld %s, handler ran %d times", got, outcome(got), caught);
    sigset_t now;
    must(sigprocmask(SIG_SETMASK, NULL, &now));
    say("blocked again: %d", sigismember(&now, SIGUSR1));
    limit.tv_sec = 0;
    limit.tv_usec = 1000;
    say("select without any descriptor: %d", select(0, NULL, NULL, NULL, &limit));
}

CASE(epoll_wait_times_out)
{
    struct epoll_event event;
    int ep = (int)must(epoll_create1(0));
    double before = now_s();
    int got = epoll_wait(ep, &event, 1, 120);
    double took = now_s() - before;
    say("%d, after at least the time asked for: %d, before 10 s: %d", got, took >= 0.12, took < 10);
    say("no wait: %d", epoll_wait(ep, &event, 1, 0));
    say("no room: %s", outcome(epoll_wait(ep, &event, 0, 0)));
}

CASE(interval_timer)
{
    struct itimerval timer = {.it_value = {0, 100000}}, old;
    alarm(0);
    handle(SIGALRM, on_signal, SA_RESTART);
    must(setitimer(ITIMER_REAL, &timer, NULL));
    while (!caught)
        sleep_ms(20);
    must(getitimer(ITIMER_REAL, &old));
    say("one shot: ran %d times, timer stopped %d", caught, !old.it_value.tv_sec && !old.it_value.tv_usec);
    timer.it_value = (struct timeval){60, 0};
    must(setitimer(ITIMER_REAL, &timer, NULL));
    timer.it_value = (struct timeval){0, 0};
    must(setitimer(ITIMER_REAL, &timer, &old));
    say("stopped: %d s were left", (int)(old.it_value.tv_sec + (old.it_value.tv_usec > 0)));
}
