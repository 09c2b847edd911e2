/*
 * Client of a TCP echo server: messages of a given size over many connections, each connection sending its next one
 * as soon as its answer is there. Every byte of every answer is compared.
 *
 *   echo_client -a ADDRESS [-p PORT] [-c CONNECTIONS] [-s BYTES] (-n ROUND TRIPS | -t SECONDS) [-w STALL SECONDS]
 *
 * Ends with one line of key=value. max_wait_ms is the longest time that any connection waited for an answer. Status 1
 * when an answer is wrong, a connection ends, or one waits longer than -w (default 30).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_MAX 65536

struct connection {
    int fd;
    uint32_t round;    /* of the message under way */
    size_t got;        /* bytes of its answer */
    double sent_at;
    uint64_t trips;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what, int index)
{
    fprintf(stderr, "echo_client: connection %d: %s: %s\n", index, what, errno ? strerror(errno) : "unexpected");
    exit(1);
}

/* What byte i of message `round` of a connection is: no two neighbours in time or space are alike. */
static unsigned char pattern(int index, uint32_t round, size_t i)
{
    return (unsigned char)((unsigned)index * 31u + round * 7u + (unsigned)i);
}

static void send_message(struct connection *c, int index, size_t size)
{
    static unsigned char message[MESSAGE_MAX];
    for (size_t i = 0; i < size; i++)
        message[i] = pattern(index, c->round, i);
    c->sent_at = now();
    c->got = 0;
    for (size_t done = 0; done < size;) {
        ssize_t n = write(c->fd, message + done, size - done);
        if (n <= 0)
            die("write", index);
        done += (size_t)n;
    }
}

/* True when the whole answer is there. */
static int receive_some(struct connection *c, int index, size_t size)
{
    unsigned char buffer[MESSAGE_MAX];
    errno = 0;
    ssize_t n = read(c->fd, buffer, size - c->got);
    if (n <= 0)
        die("read", index);
    for (ssize_t i = 0; i < n; i++) {
        if (buffer[i] != pattern(index, c->round, c->got + (size_t)i)) {
            errno = 0;
            die("wrong answer", index);
        }
    }
    c->got += (size_t)n;
    return c->got == size;
}

static void open_connection(struct connection *c, int index, const struct sockaddr_in *to, int epoll)
{
    int one = 1;
    struct epoll_event e = { .events = EPOLLIN, .data.fd = index };
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)to, sizeof(*to)))
        die("connect", index);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
}

int main(int argc, char **argv)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7) };
    int count = 1, option;
    size_t size = 64;
    uint64_t wanted = 0, sent = 0, done = 0;
    double seconds = 0, stall = 30, longest = 0;
    while ((option = getopt(argc, argv, "a:p:c:s:n:t:w:")) != -1) {
        switch (option) {
        case 'a':
            inet_pton(AF_INET, optarg, &to.sin_addr);
            break;
        case 'p':
            to.sin_port = htons((uint16_t)atoi(optarg));
            break;
        case 'c':
            count = atoi(optarg);
            break;
        case 's':
            size = (size_t)atol(optarg);
            break;
        case 'n':
            wanted = strtoull(optarg, NULL, 10);
            break;
        case 't':
            seconds = atof(optarg);
            break;
        case 'w':
            stall = atof(optarg);
            break;
        default:
            return 2;
        }
    }
    if (!to.sin_addr.s_addr || count < 1 || size < 1 || size > MESSAGE_MAX || (!wanted && seconds <= 0))
        return 2;
    struct rlimit files = { (rlim_t)count + 64, (rlim_t)count + 64 };
    setrlimit(RLIMIT_NOFILE, &files);
    int epoll = epoll_create1(0);
    struct connection *all = calloc((size_t)count, sizeof(*all));
    for (int i = 0; i < count; i++)
        open_connection(&all[i], i, &to, epoll);
    double began = now(), last_look = began;
    for (int i = 0; i < count && (!wanted || sent < wanted); i++, sent++)
        send_message(&all[i], i, size);
    while (done < sent) {
        struct epoll_event events[256];
        int n = epoll_wait(epoll, events, 256, 200);
        double t = now();
        for (int k = 0; k < n; k++) {
            int i = events[k].data.fd;
            struct connection *c = &all[i];
            if (!receive_some(c, i, size))
                continue;
            longest = t - c->sent_at > longest ? t - c->sent_at : longest;
            done++;
            c->trips++;
            c->round++;
            c->sent_at = 0;
            if (wanted ? sent < wanted : t - began < seconds) {
                send_message(c, i, size);
                sent++;
            }
        }
        if (t - last_look < 0.2)
            continue;
        last_look = t;
        errno = ETIMEDOUT;
        for (int i = 0; i < count; i++) {
            if (all[i].sent_at > 0 && t - all[i].sent_at > stall)
                die("no answer", i);
        }
    }
    double took = now() - began;
    uint64_t fewest = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        fewest = all[i].trips < fewest ? all[i].trips : fewest;
        close(all[i].fd);
    }
    printf("connections=%d bytes=%zu trips=%llu seconds=%.3f trips_per_s=%.0f max_wait_ms=%.1f fewest=%llu\n", count, size,
           (unsigned long long)done, took, (double)done / took, longest * 1e3, (unsigned long long)fewest);
    return 0;
}
