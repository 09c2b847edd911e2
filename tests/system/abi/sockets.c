/* Sockets of one machine: TCP and UDP over the loopback address, AF_UNIX, descriptors in messages. */
#include "abi.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int listener(struct sockaddr_in *a)
{
    int fd = (int)must(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    socklen_t len = sizeof *a;
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    must(bind(fd, (void *)a, sizeof *a));
    must(listen(fd, 5));
    must(getsockname(fd, (void *)a, &len));
    return fd;
}

static void tcp_pair(int fds[2])
{
    struct sockaddr_in a;
    int l = listener(&a);
    fds[0] = (int)must(socket(AF_INET, SOCK_STREAM, 0));
    must(connect(fds[0], (void *)&a, sizeof a));
    fds[1] = (int)must(accept(l, NULL, NULL));
    must(close(l));
}

static unsigned ready(int fd, unsigned events, int wait_ms)
{
    struct pollfd p = {fd, (short)events, 0};
    return poll(&p, 1, wait_ms) > 0 ? (unsigned short)p.revents : 0;
}

CASE(tcp_connection)
{
    struct sockaddr_in a, peer, name;
    socklen_t len = sizeof peer;
    char buf[16] = {0};
    int l = listener(&a), s = (int)must(socket(AF_INET, SOCK_STREAM, 0));
    say("listener: %#x, new socket: %#x", ready(l, POLLIN | POLLOUT, 0), ready(s, POLLIN | POLLOUT, 0));
    must(connect(s, (void *)&a, sizeof a));
    int c = (int)must(accept4(l, (void *)&peer, &len, SOCK_CLOEXEC));
    say("peer length %u, family %d, loopback %d, cloexec %d", len, peer.sin_family,
        peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK), fcntl(c, F_GETFD));
    len = sizeof name;
    must(getsockname(s, (void *)&name, &len));
    say("ports agree: %d", name.sin_port == peer.sin_port);
    len = 4;
    must(getpeername(s, (void *)&name, &len));
    say("true length %u", len);
    say("idle: %#x", ready(c, POLLIN | POLLOUT, 0));
    must(send(s, "hello", 5, 0));
    say("data: %#x", ready(c, POLLIN | POLLOUT, 1000));
    say("peek %zd %s", recv(c, buf, 3, MSG_PEEK), buf);
    say("recv %zd %s", recv(c, buf, sizeof buf, 0), buf);
    say("empty: %s", outcome(recv(c, buf, 1, MSG_DONTWAIT)));
    must(shutdown(s, SHUT_WR));
    say("end: %#x, recv %zd", ready(c, POLLIN | POLLOUT | POLLRDHUP, 1000), recv(c, buf, 1, 0));
    must(send(c, "bye", 3, 0));
    say("other way: %zd", recv(s, buf, 3, MSG_WAITALL));
    say("write after shutdown: %s", outcome(send(s, "x", 1, MSG_NOSIGNAL)));
    say("connect again: %s", outcome(connect(s, (void *)&a, sizeof a)));
}

CASE(tcp_refused_and_nonblocking)
{
    struct sockaddr_in a;
    int l = listener(&a), error = -1;
    socklen_t len = sizeof error;
    int s = (int)must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    say("nothing to accept: %s", outcome(({ must(fcntl(l, F_SETFL, O_NONBLOCK)); accept(l, NULL, NULL); })));
    int r = connect(s, (void *)&a, sizeof a);
    say("done or under way: %d", !r || errno == EINPROGRESS);
    say("done: %d", (ready(s, POLLOUT, 2000) & POLLOUT) != 0);
    must(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len));
    say("SO_ERROR %s", error_name(error));
    must(close(l));
    s = (int)must(socket(AF_INET, SOCK_STREAM, 0));
    say("refused: %s", outcome(connect(s, (void *)&a, sizeof a)));
    s = (int)must(socket(AF_INET, SOCK_STREAM, 0));
    say("not connected: send %s, recv %s", outcome(send(s, "x", 1, MSG_NOSIGNAL)), outcome(recv(s, &r, 1, MSG_DONTWAIT)));
    say("not a socket: %s", outcome(send(0, "x", 1, 0)));
}

CASE(tcp_peer_closes)
{
    int s[2];
    char buf[4];
    tcp_pair(s);
    must(close(s[1]));
    say("eof: %#x, recv %zd", ready(s[0], POLLIN | POLLOUT | POLLRDHUP, 1000), recv(s[0], buf, 1, 0));
    send(s[0], "x", 1, MSG_NOSIGNAL);
    sleep_ms(100);
    say("second write: %s", outcome(send(s[0], "x", 1, MSG_NOSIGNAL)));
    handle(SIGPIPE, SIG_IGN, 0);
    say("SIGPIPE ignored: %s", outcome(write(s[0], "x", 1)));
}

CASE(tcp_timeouts_and_options)
{
    int s[2], v = 0;
    struct timeval t = {0, 100000}, got = {0, 0};
    socklen_t len = sizeof got;
    tcp_pair(s);
    must(setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    must(getsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &got, &len));
    double start = now_s();
    int r = (int)recv(s[0], &v, 1, 0);
    say("timeout %ld us: %s, waited %d", (long)got.tv_usec, outcome(r), now_s() - start >= 0.095);
    v = 1;
    must(setsockopt(s[0], IPPROTO_TCP, TCP_NODELAY, &v, sizeof v));
    must(setsockopt(s[0], SOL_SOCKET, SO_KEEPALIVE, &v, sizeof v));
    v = 0;
    len = sizeof v;
    must(getsockopt(s[0], IPPROTO_TCP, TCP_NODELAY, &v, &len));
    say("TCP_NODELAY %d", v);
    must(getsockopt(s[0], SOL_SOCKET, SO_TYPE, &v, &len));
    say("SO_TYPE %d", v);
    say("unknown option: %s", outcome(setsockopt(s[0], IPPROTO_TCP, 9999, &v, sizeof v)));
}

CASE(tcp_much_data_both_ways)
{
    enum { TOTAL = 2000000 };
    int s[2];
    tcp_pair(s);
    pid_t child = (pid_t)must(fork());
    if (!child) { /* echo */
        static char buf[20000];
        ssize_t n;
        must(close(s[0]));
        while ((n = recv(s[1], buf, sizeof buf, 0)) > 0) {
            if (send(s[1], buf, (size_t)n, 0) != n)
                _exit(1);
        }
        _exit(n == 0 ? 0 : 2);
    }
    must(close(s[1]));
    pid_t writer = (pid_t)must(fork());
    if (!writer) {
        static unsigned char out[50000];
        for (size_t sent = 0; sent < TOTAL; sent += sizeof out) {
            for (size_t i = 0; i < sizeof out; i++)
                out[i] = (unsigned char)((sent + i) % 253);
            if (send(s[0], out, sizeof out, 0) != (ssize_t)sizeof out)
                _exit(1);
        }
        shutdown(s[0], SHUT_WR);
        _exit(0);
    }
    static unsigned char in[30000];
    size_t total = 0, wrong = 0;
    ssize_t n;
    while ((n = recv(s[0], in, sizeof in, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            wrong += in[i] != (unsigned char)((total + (size_t)i) % 253);
        total += (size_t)n;
    }
    say("received %zu, wrong %zu, end %zd", total, wrong, n);
    say("writer %s, echo %s", status_text(wait_for(writer)), status_text(wait_for(child)));
}

CASE(udp_messages)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    int s = (int)must(socket(AF_INET, SOCK_DGRAM, 0)), t = (int)must(socket(AF_INET, SOCK_DGRAM, 0));
    socklen_t len = sizeof a;
    char buf[8] = {0};
    must(bind(s, (void *)&a, sizeof a));
    must(getsockname(s, (void *)&a, &len));
    must(sendto(t, "first", 5, 0, (void *)&a, sizeof a));
    must(sendto(t, "second one", 10, 0, (void *)&a, sizeof a));
    len = sizeof from;
    must(recvfrom(s, buf, sizeof buf - 1, 0, (void *)&from, &len));
    say("got %s, family %d", buf, from.sin_family);
    struct iovec v = {buf, 4};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    ssize_t n = recvmsg(s, &m, 0);
    say("cut: %zd, flags %#x", n, m.msg_flags);
    say("unconnected send: %s", outcome(send(t, "x", 1, 0)));
    must(connect(t, (void *)&a, sizeof a));
    say("connected send: %s", outcome(send(t, "x", 1, 0)));
    say("received %zd", recv(s, buf, sizeof buf, 0));
}

CASE(unix_stream)
{
    int s[2];
    char buf[16] = {0};
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    must(write(s[0], "abc", 3));
    must(write(s[0], "defg", 4));
    say("read %zd %s", read(s[1], buf, 5), buf);
    memset(buf, 0, sizeof buf);
    say("peek %zd %s", recv(s[1], buf, 1, MSG_PEEK), buf);
    memset(buf, 0, sizeof buf);
    say("rest %zd %s", read(s[1], buf, sizeof buf), buf);
    say("idle: %#x", ready(s[1], POLLIN | POLLOUT, 0));
    must(shutdown(s[0], SHUT_WR));
    say("shut: %#x, read %zd", ready(s[1], POLLIN | POLLOUT | POLLRDHUP, 0), read(s[1], buf, 1));
    must(write(s[1], "z", 1));
    must(close(s[1]));
    say("closed: %#x", ready(s[0], POLLIN | POLLRDHUP, 0));
    say("last byte %zd, then %zd", read(s[0], buf, 1), read(s[0], buf, 1));
    say("write: %s", outcome(send(s[0], "x", 1, MSG_NOSIGNAL)));
}

CASE(unix_by_path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX}, name;
    socklen_t len = sizeof name;
    struct stat st;
    struct ucred cred;
    char buf[8] = {0};
    int l = (int)must(socket(AF_UNIX, SOCK_STREAM, 0)), s = (int)must(socket(AF_UNIX, SOCK_STREAM, 0));
    snprintf(a.sun_path, sizeof a.sun_path, "/tmp/abi-socket-%d", getpid());
    say("nobody: %s", outcome(connect(s, (void *)&a, sizeof a)));
    must(bind(l, (void *)&a, sizeof a));
    must(stat(a.sun_path, &st));
    say("type %o", st.st_mode & S_IFMT);
    say("not listening: %s", outcome(connect(s, (void *)&a, sizeof a)));
    must(listen(l, 3));
    must(connect(s, (void *)&a, sizeof a));
    int c = (int)must(accept(l, (void *)&name, &len));
    say("peer name length %u", len);
    len = sizeof cred;
    must(getsockopt(c, SOL_SOCKET, SO_PEERCRED, &cred, &len));
    say("peer is me: %d", cred.pid == getpid() && cred.uid == getuid());
    must(write(s, "via", 3));
    say("read %zd %s", read(c, buf, sizeof buf), buf);
    int other = (int)must(socket(AF_UNIX, SOCK_STREAM, 0));
    say("bound twice: %s", outcome(bind(other, (void *)&a, sizeof a)));
    must(close(l));
    say("listener gone: %s", outcome(connect(other, (void *)&a, sizeof a)));
    must(unlink(a.sun_path));
    say("path gone: %s", outcome(connect(other, (void *)&a, sizeof a)));
}

CASE(unix_datagrams)
{
    int s[2];
    char buf[8] = {0};
    must(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
    must(send(s[0], "one", 3, 0));
    must(send(s[0], "", 0, 0));
    must(send(s[0], "three", 5, 0));
    say("%zd", recv(s[1], buf, sizeof buf, 0));
    say("%zd", recv(s[1], buf, sizeof buf, 0));
    say("%zd", recv(s[1], buf, 2, MSG_TRUNC));
    say("empty: %s", outcome(recv(s[1], buf, 1, MSG_DONTWAIT)));
    must(close(s[1]));
    say("gone: %s", outcome(send(s[0], "x", 1, MSG_NOSIGNAL)));
}

CASE(descriptors_in_messages)
{
    int s[2], p[2];
    char data = 'd', control[CMSG_SPACE(2 * sizeof(int))] = {0}, in[CMSG_SPACE(4 * sizeof(int))];
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    must(pipe(p));
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(c), p, sizeof p);
    pid_t child = (pid_t)must(fork());
    if (!child) {
        int got[2];
        m.msg_control = in;
        m.msg_controllen = sizeof in;
        must(close(p[0]));
        must(close(p[1]));
        say("received %zd", recvmsg(s[1], &m, MSG_CMSG_CLOEXEC));
        c = CMSG_FIRSTHDR(&m);
        say("control length %zu, level %d, type %d, length %zu", (size_t)m.msg_controllen, c->cmsg_level, c->cmsg_type,
            (size_t)c->cmsg_len);
        memcpy(got, CMSG_DATA(c), sizeof got);
        say("cloexec %d", fcntl(got[0], F_GETFD));
        must(write(got[1], "through", 7));
        _exit(0);
    }
    must(sendmsg(s[0], &m, 0));
    say("child: %s", status_text(wait_for(child)));
    char buf[8] = {0};
    say("read %zd %s", read(p[0], buf, 7), buf);
    c->cmsg_len = CMSG_LEN(sizeof(int));
    int bad = 900;
    memcpy(CMSG_DATA(c), &bad, sizeof bad);
    say("not open: %s", outcome(sendmsg(s[0], &m, 0)));
}
