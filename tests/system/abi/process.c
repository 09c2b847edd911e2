/* Waiting for children, process groups, the death pipe, descriptors, SIGPIPE, exec. */
#include "abi.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

static volatile sig_atomic_t children_signals;

static void on_child(int signal)
{
    children_signals++;
    (void)signal;
}

CASE(one_signal_for_several_children)
{
    int pipes[2], status, got = 0;
    char c;
    must(pipe(pipes));
    handle(SIGCHLD, on_child, SA_NOCLDSTOP);
    block(SIGCHLD);
    for (int i = 0; i < 3; i++)
        if (!must(fork())) {
            close(pipes[0]);
            _exit(i);
        }
    close(pipes[1]);
    must(read(pipes[0], &c, 1));
    sleep_ms(200);
    unblock(SIGCHLD);
    say("handler ran %d times", children_signals);
    while (waitpid(-1, &status, WNOHANG) > 0)
        got += 1 << (4 * WEXITSTATUS(status));
    say("each once: %03x", got);
    say("none left: %s", outcome(waitpid(-1, &status, WNOHANG)));
}

CASE(wait_with_nohang)
{
    int pipes[2], status;
    must(pipe(pipes));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        char c;
        close(pipes[1]);
        must(read(pipes[0], &c, 1));
        _exit(0);
    }
    say("lives: %d", waitpid(-1, &status, WNOHANG));
    say("not a child: %s", outcome(waitpid(getpid(), &status, WNOHANG)));
    close(pipes[1]);
    say("by pid: %s", status_text(wait_for(child)));
}

CASE(wait_statuses)
{
    static const int signals[] = {SIGKILL, SIGTERM, SIGQUIT, SIGSEGV, SIGABRT, SIGPWR, SIGALRM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t child = (pid_t)must(fork());
        if (!child) {
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            kill(getpid(), signals[i]);
            pause();
            _exit(77);
        }
        int status = wait_for(child);
        say("killed: %s, low byte %d", status_text(status), status & 0x7f);
    }
    for (int code = 0; code < 3; code++) {
        pid_t child = (pid_t)must(fork());
        if (!child)
            _exit(code == 2 ? 255 : code);
        say("ended: %s", status_text(wait_for(child)));
    }
    pid_t child = (pid_t)must(fork());
    if (!child) {
        char *volatile nowhere = (char *)8;
        *nowhere = 1;
        _exit(0);
    }
    say("bad store: %s", status_text(wait_for(child)));
    child = (pid_t)must(fork());
    if (!child) {
        __asm__ volatile("ud2");
        _exit(0);
    }
    say("bad instruction: %s", status_text(wait_for(child)));
    child = (pid_t)must(fork());
    if (!child) {
        volatile int zero = 0, one = 1;
        _exit(one / zero);
    }
    say("division by zero: %s", status_text(wait_for(child)));
}

CASE(groups_and_dead_pids)
{
    int pipes[2];
    char c;
    must(pipe(pipes));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        must(setsid());
        say("leader of its session: %d %d", getpgrp() == getpid(), getsid(0) == getpid());
        say("setsid again: %s", outcome(setsid()));
        if (!must(fork())) {
            must(write(pipes[1], "r", 1));
            pause();
        }
        pause();
    }
    must(read(pipes[0], &c, 1));
    say("group of two, signal 0: %s", outcome(kill(-child, 0)));
    must(kill(-child, SIGTERM));
    say("leader: %s", status_text(wait_for(child)));
    say("reaped pid: %s", outcome(kill(child, 0)));
    sleep_ms(200);
    say("no such pid: %s", outcome(kill(4000000, 0)));
    say("no such group: %s", outcome(kill(-4000000, SIGTERM)));
    child = (pid_t)must(fork());
    if (!child)
        _exit(0);
    sleep_ms(200);
    say("zombie, signal 0: %s", outcome(kill(child, 0)));
    wait_for(child);
    say("bad signal: %s", outcome(kill(getpid(), 65)));
}

CASE(death_pipe)
{
    int pipes[2], go[2], told[2];
    char c;
    must(pipe(pipes));
    must(pipe(go));
    must(pipe(told));
    pid_t writer = (pid_t)must(fork());
    if (!writer) {
        pid_t other = (pid_t)must(fork());
        close(go[1]);
        if (!other) {
            must(write(told[1], "o", 1));
            must(read(go[0], &c, 1));
            _exit(0);
        }
        must(write(told[1], "w", 1));
        pause();
    }
    close(pipes[1]);
    must(read(told[0], &c, 1));
    must(read(told[0], &c, 1));
    int ep = (int)must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLERR | EPOLLHUP};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, pipes[0], &event));
    must(kill(writer, SIGKILL));
    wait_for(writer);
    say("one of two writers gone: %d events", epoll_wait(ep, &event, 1, 100));
    must(write(go[1], "g", 1));
    int got = epoll_wait(ep, &event, 1, 20000);
    say("last writer gone: %d events, %x", got, event.events);
    say("read: %ld", (long)read(pipes[0], &c, 1));
}

/* SIGKILL closes descriptors before the parent is told. */
CASE(killed_process_has_closed_its_files)
{
    int bad = 0;
    for (int i = 0; i < 20; i++) {
        int pipes[2];
        char c;
        must(pipe(pipes));
        pid_t child = (pid_t)must(fork());
        if (!child) {
            must(write(pipes[1], "r", 1));
            for (;;)
                pause();
        }
        close(pipes[1]);
        must(read(pipes[0], &c, 1));
        must(fcntl(pipes[0], F_SETFL, O_NONBLOCK));
        must(kill(child, SIGKILL));
        wait_for(child);
        bad += read(pipes[0], &c, 1) != 0;
        close(pipes[0]);
    }
    say("pipes still open: %d of 20", bad);
}

/* accept in the parent, use in the child: the parent's close only drops a reference. */
CASE(accepted_socket_is_handed_to_a_child)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = (int)must(socket(AF_INET, SOCK_STREAM, 0));
    must(bind(listener, (struct sockaddr *)&address, sizeof address));
    must(listen(listener, 5));
    must(getsockname(listener, (struct sockaddr *)&address, &length));
    pid_t client = (pid_t)must(fork());
    if (!client) {
        char text[8] = "";
        int fd = (int)must(socket(AF_INET, SOCK_STREAM, 0));
        must(connect(fd, (struct sockaddr *)&address, sizeof address));
        sleep_ms(300);
        must(send(fd, "ping", 4, 0));
        long got = recv(fd, text, 4, MSG_WAITALL);
        say("client: %ld bytes \"%s\"", got, text);
        say("client: end of stream: %ld", (long)recv(fd, text, 1, 0));
        _exit(0);
    }
    int fd = (int)must(accept(listener, NULL, NULL));
    pid_t server = (pid_t)must(fork());
    if (!server) {
        char text[8] = "";
        close(listener);
        must(recv(fd, text, 4, MSG_WAITALL));
        must(send(fd, "pong", 4, 0));
        _exit(0);
    }
    must(close(fd));
    say("client: %s", status_text(wait_for(client)));
    say("server: %s", status_text(wait_for(server)));
}

CASE(descriptor_numbers)
{
    struct rlimit limit = {64, 64};
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    must(setrlimit(RLIMIT_NOFILE, &limit));
    int a = (int)must(open("/dev/null", O_RDONLY)), b = (int)must(dup(a)), c = (int)must(dup(a));
    say("%d %d %d", a, b, c);
    must(close(b));
    say("lowest free: %d", open("/dev/zero", O_RDWR));
    say("dup2 far: %d, fcntl from 40: %d", dup2(a, 50), fcntl(a, F_DUPFD, 40));
    int count = 0, last = -1;
    for (int fd; (fd = dup(0)) != -1; count++)
        last = fd;
    say("dup until %s: %d more, last %d", error_name(errno), count, last);
    say("open: %s", outcome(open("/dev/null", O_RDONLY)));
    int pipes[2];
    say("pipe: %s", outcome(pipe(pipes)));
    say("dup2 beyond: %s, onto itself: %d", outcome(dup2(a, 64)), dup2(a, a));
    say("closed: %s, %s", outcome(close(63)), outcome(close(63)));
    say("fcntl on closed: %s", outcome(fcntl(63, F_GETFD)));
}

CASE(broken_pipe)
{
    int pipes[2], pair[2];
    must(pipe(pipes));
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    close(pipes[0]);
    close(pair[0]);
    handle(SIGPIPE, SIG_IGN, 0);
    say("write: %s", outcome(write(pipes[1], "x", 1)));
    say("send without MSG_NOSIGNAL: %s", outcome(send(pair[1], "x", 1, 0)));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        handle(SIGPIPE, SIG_DFL, 0);
        say("send with MSG_NOSIGNAL: %s", outcome(send(pair[1], "x", 1, MSG_NOSIGNAL)));
        write(pipes[1], "x", 1) == 1 ? _exit(1) : _exit(2);
    }
    say("default: %s", status_text(wait_for(child)));
}

CASE(file_status_flags)
{
    int pipes[2], tcp = (int)must(socket(AF_INET, SOCK_STREAM, 0));
    say("socket: access mode %x", fcntl(tcp, F_GETFL) & O_ACCMODE);
    must(fcntl(tcp, F_SETFL, O_RDWR | O_NONBLOCK));
    say("socket: %x", fcntl(tcp, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
    must(pipe2(pipes, O_CLOEXEC | O_NONBLOCK));
    say("pipe: %x %x, close-on-exec %d", fcntl(pipes[0], F_GETFL), fcntl(pipes[1], F_GETFL), fcntl(pipes[0], F_GETFD));
    char c;
    say("empty: %s", outcome(read(pipes[0], &c, 1)));
    static char block[4096];
    int blocks = 0;
    while (write(pipes[1], block, sizeof block) == (ssize_t)sizeof block)
        blocks++;
    say("full after %d blocks: %s", blocks, error_name(errno));
}

CASE(exec_keeps_and_closes)
{
    int pipes[2];
    must(pipe(pipes));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        char *argv[] = {"abi", "exec_child", NULL}, *env[] = {"WEIR_ABI=yes", NULL};
        must(dup2(pipes[1], 20));
        must(fcntl(dup2(pipes[1], 21), F_SETFD, FD_CLOEXEC));
        handle(SIGUSR1, on_child, 0);
        handle(SIGUSR2, SIG_IGN, 0);
        block(SIGHUP);
        execve("/proc/self/exe", argv, env);
        say("execve: %s", error_name(errno));
        _exit(1);
    }
    say("child: %s", status_text(wait_for(child)));
    char *none[] = {NULL};
    say("no file: %s", outcome(execve("/nowhere", none, none)));
    say("a directory: %s", outcome(execve("/usr", none, none)));
}

/* Runs in the new image of exec_keeps_and_closes; alone it tells the plain state. */
CASE(exec_child)
{
    struct sigaction usr1, usr2;
    sigset_t set;
    if (!getenv("WEIR_ABI"))
        return;
    must(sigaction(SIGUSR1, NULL, &usr1));
    must(sigaction(SIGUSR2, NULL, &usr2));
    must(sigprocmask(SIG_SETMASK, NULL, &set));
    say("descriptor 20 open %d, 21 open %d", fcntl(20, F_GETFD) != -1, fcntl(21, F_GETFD) != -1);
    say("handler reset %d, ignored kept %d, mask kept %d", usr1.sa_handler == SIG_DFL, usr2.sa_handler == SIG_IGN,
        sigismember(&set, SIGHUP));
}

CASE(inode_numbers_are_stable)
{
    struct stat first, again, parent;
    must(stat("/usr/lib", &first));
    int fd = (int)must(open("/usr/lib", O_RDONLY | O_DIRECTORY));
    must(fstat(fd, &again));
    must(stat("/usr", &parent));
    say("not zero %d, same %d, not its parent's %d, a directory %d", first.st_ino != 0, first.st_ino == again.st_ino,
        first.st_ino != parent.st_ino, S_ISDIR(first.st_mode));
    say("fsync of a directory: %s", outcome(fsync(fd)));
}
