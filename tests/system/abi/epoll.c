/* epoll: level, edge, one-shot, nested; what happens to items whose file goes. */
#include "abi.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

static void add(int ep, int fd, uint32_t events, uint64_t tag)
{
    struct epoll_event ev = {.events = events, .data.u64 = tag};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
}

static void show(int ep, const char *when)
{
    struct epoll_event ev[8];
    int n = epoll_wait(ep, ev, 8, 0);
    uint64_t tags = 0;
    uint32_t events = 0;
    for (int i = 0; i < n; i++) {
        tags |= 1ull << ev[i].data.u64;
        events |= ev[i].events;
    }
    if (n == -1)
        say("%s: %s", when, error_name(errno));
    else
        say("%s: %d ready, tags %#llx, events %#x", when, n, (unsigned long long)tags, events);
}

CASE(epoll_level_and_edge)
{
    int level = (int)must(epoll_create1(0)), edge = (int)must(epoll_create1(0)), p[2];
    char buf[8];
    must(pipe(p));
    add(level, p[0], EPOLLIN, 1);
    add(edge, p[0], EPOLLIN | EPOLLET, 2);
    show(level, "level, empty");
    must(write(p[1], "ab", 2));
    show(level, "level, written");
    show(level, "level, again");
    show(edge, "edge, written");
    show(edge, "edge, again");
    must(write(p[1], "c", 1));
    show(edge, "edge, more written");
    must(read(p[0], buf, 3));
    show(level, "level, drained");
    must(close(p[1]));
    show(level, "level, writer gone");
    show(edge, "edge, writer gone");
}

CASE(epoll_one_shot)
{
    int ep = (int)must(epoll_create1(0)), fd = (int)must(eventfd(0, 0));
    struct epoll_event ev = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 3};
    uint64_t one = 1;
    add(ep, fd, EPOLLIN | EPOLLONESHOT, 3);
    must(write(fd, &one, 8));
    show(ep, "first");
    show(ep, "disarmed");
    must(write(fd, &one, 8));
    show(ep, "disarmed, written");
    must(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &ev));
    show(ep, "armed again");
}

CASE(epoll_modify_sees_what_is_there)
{
    int ep = (int)must(epoll_create1(0)), s[2];
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 4};
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    add(ep, s[0], EPOLLOUT, 4);
    show(ep, "writable");
    must(write(s[1], "x", 1));
    must(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], &ev));
    show(ep, "readable after the change");
    ev.events = 0;
    must(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], &ev));
    show(ep, "no interest");
    must(close(s[1]));
    show(ep, "hang-up without interest");
}

CASE(epoll_items_go_with_the_file)
{
    int ep = (int)must(epoll_create1(0)), p[2];
    must(pipe(p));
    add(ep, p[0], EPOLLIN, 5);
    must(write(p[1], "x", 1));
    int copy = (int)must(dup(p[0]));
    must(close(p[0]));
    show(ep, "a copy keeps the file");
    must(close(copy));
    show(ep, "last reference gone");
    struct epoll_event ev = {0};
    say("delete: %s", outcome(epoll_ctl(ep, EPOLL_CTL_DEL, p[0], &ev)));
}

CASE(epoll_nested)
{
    int outer = (int)must(epoll_create1(0)), inner = (int)must(epoll_create1(0)), fd = (int)must(eventfd(0, 0));
    struct epoll_event ev = {.events = EPOLLIN};
    uint64_t one = 1;
    add(inner, fd, EPOLLIN, 1);
    add(outer, inner, EPOLLIN, 2);
    show(outer, "nothing");
    must(write(fd, &one, 8));
    show(outer, "inner ready");
    must(read(fd, &one, 8));
    show(outer, "inner drained");
    say("a loop: %s", outcome(epoll_ctl(inner, EPOLL_CTL_ADD, outer, &ev)));
    say("itself: %s", outcome(epoll_ctl(inner, EPOLL_CTL_ADD, inner, &ev)));
    int chain[8], refused = -1;
    for (int i = 0; i < 8; i++)
        chain[i] = (int)must(epoll_create1(0));
    for (int i = 0; i < 7 && refused < 0; i++) {
        if (epoll_ctl(chain[i], EPOLL_CTL_ADD, chain[i + 1], &ev))
            refused = errno;
    }
    say("a chain of eight: %s", refused < 0 ? "0" : error_name(refused));
}

static void *volatile unmapped = (void *)16;

CASE(epoll_refusals)
{
    int ep = (int)must(epoll_create1(0)), file = (int)must(open("/proc/self/exe", O_RDONLY)), p[2];
    struct epoll_event ev = {.events = EPOLLIN};
    must(pipe(p));
    say("regular file: %s", outcome(epoll_ctl(ep, EPOLL_CTL_ADD, file, &ev)));
    say("not open: %s", outcome(epoll_ctl(ep, EPOLL_CTL_ADD, 777, &ev)));
    say("not an epoll: %s", outcome(epoll_ctl(p[0], EPOLL_CTL_ADD, p[1], &ev)));
    must(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev));
    say("twice: %s", outcome(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev)));
    say("change of a stranger: %s", outcome(epoll_ctl(ep, EPOLL_CTL_MOD, p[1], &ev)));
    say("no room: %s", outcome(epoll_wait(ep, &ev, 0, 0)));
    say("bad address: %s", outcome(epoll_wait(ep, unmapped, 1, 0)));
}

CASE(epoll_wakes_a_sleeper)
{
    int ep = (int)must(epoll_create1(0)), p[2];
    struct epoll_event ev;
    must(pipe(p));
    add(ep, p[0], EPOLLIN, 6);
    pid_t child = (pid_t)must(fork());
    if (!child) {
        sleep_ms(100);
        must(write(p[1], "x", 1));
        _exit(0);
    }
    say("wait: %d", epoll_wait(ep, &ev, 1, -1));
    say("child: %s", status_text(wait_for(child)));
}
