/* Many at once: a wake-up that is lost, or taken by the wrong one, ends these in a timeout. */
#include "abi.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

/* ---- latches as PostgreSQL has them: a flag in shared memory, SIGURG, a signalfd in an epoll ---- */

enum { LATCHES = 8, LATCH_ROUNDS = 200 };
struct latch { volatile int set, maybe_sleeping; pid_t pid; };

static void latch_set(struct latch *l)
{
    __sync_synchronize();
    if (l->set)
        return;
    l->set = 1;
    __sync_synchronize();
    if (l->maybe_sleeping)
        kill(l->pid, SIGURG);
}

static void latch_wait(struct latch *l, int ep, int fd)
{
    while (!l->set) {
        struct signalfd_siginfo info[8];
        struct epoll_event ev;
        l->maybe_sleeping = 1;
        __sync_synchronize();
        if (!l->set && epoll_wait(ep, &ev, 1, -1) > 0)
            while (read(fd, info, sizeof info) > 0)
                ;
        l->maybe_sleeping = 0;
    }
    l->set = 0;
    __sync_synchronize();
}

CASE(latches_in_a_ring)
{
    struct latch *l = mmap(NULL, sizeof *l * LATCHES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[LATCHES];
    handle(SIGURG, SIG_IGN, 0);
    for (int i = 0; i < LATCHES; i++) {
        pids[i] = (pid_t)must(fork());
        if (!pids[i]) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGURG);
            block(SIGURG);
            int fd = (int)must(signalfd(-1, &set, SFD_NONBLOCK)), ep = (int)must(epoll_create1(0));
            struct epoll_event ev = {.events = EPOLLIN};
            must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
            l[i].pid = getpid();
            for (int j = 0; j < LATCHES; j++)
                while (!*(volatile pid_t *)&l[j].pid)
                    usleep(1000);
            if (i == 0)
                latch_set(&l[1]);
            for (int r = 0; r < LATCH_ROUNDS; r++) {
                latch_wait(&l[i], ep, fd);
                latch_set(&l[(i + 1) % LATCHES]);
            }
            _exit(0);
        }
    }
    int good = 0;
    for (int i = 0; i < LATCHES; i++)
        good += wait_for(pids[i]) == 0;
    say("ended well: %d of %d", good, LATCHES);
}

/* ---- process-shared semaphores ---- */

CASE(semaphores_between_processes)
{
    enum { PROCESSES = 6, ROUNDS = 300 };
    struct { sem_t sem; volatile long inside, total; } *s;
    s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sem_init(&s->sem, 1, 1);
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = (pid_t)must(fork());
        if (!pids[i]) {
            for (int r = 0; r < ROUNDS; r++) {
                must(sem_wait(&s->sem));
                if (__sync_add_and_fetch(&s->inside, 1) != 1)
                    _exit(1);
                s->total++;
                __sync_sub_and_fetch(&s->inside, 1);
                must(sem_post(&s->sem));
            }
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++)
        if (wait_for(pids[i]))
            say("a process failed");
    say("total %ld", s->total);
}

/* ---- barriers and conditions of threads ---- */

static pthread_barrier_t barrier;
static int barrier_serial;

static void *through_the_barrier(void *arg)
{
    (void)arg;
    for (int i = 0; i < 100; i++)
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            __sync_add_and_fetch(&barrier_serial, 1);
    return NULL;
}

CASE(threads_meet_at_a_barrier)
{
    pthread_t t[8];
    pthread_barrier_init(&barrier, NULL, 8);
    for (int i = 0; i < 8; i++)
        must(-pthread_create(&t[i], NULL, through_the_barrier, NULL));
    for (int i = 0; i < 8; i++)
        must(-pthread_join(t[i], NULL));
    say("rounds %d", barrier_serial);
}

static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_more = PTHREAD_COND_INITIALIZER, queue_room = PTHREAD_COND_INITIALIZER;
static int queue_length, produced, consumed;

static void *produce(void *arg)
{
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&queue_mutex);
        while (queue_length == 4)
            pthread_cond_wait(&queue_room, &queue_mutex);
        queue_length++;
        produced++;
        pthread_cond_signal(&queue_more);
        pthread_mutex_unlock(&queue_mutex);
    }
    return arg;
}

static void *consume(void *arg)
{
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&queue_mutex);
        while (!queue_length)
            pthread_cond_wait(&queue_more, &queue_mutex);
        queue_length--;
        consumed++;
        pthread_cond_signal(&queue_room);
        pthread_mutex_unlock(&queue_mutex);
    }
    return arg;
}

CASE(producers_and_consumers)
{
    pthread_t t[8];
    for (int i = 0; i < 8; i++)
        must(-pthread_create(&t[i], NULL, i % 2 ? produce : consume, NULL));
    for (int i = 0; i < 8; i++)
        must(-pthread_join(t[i], NULL));
    say("produced %d, consumed %d, left %d", produced, consumed, queue_length);
}

/* ---- epoll shared by threads while descriptors come and go ---- */

static int shared_epoll;
static volatile int stop_waiting;
static long events_seen;

static void *wait_for_events(void *arg)
{
    while (!stop_waiting) {
        struct epoll_event ev[4];
        int n = epoll_wait(shared_epoll, ev, 4, 50);
        for (int i = 0; i < n; i++) {
            uint64_t v;
            if (read(ev[i].data.fd, &v, sizeof v) == sizeof v)
                __sync_add_and_fetch(&events_seen, (long)v);
        }
    }
    return arg;
}

CASE(epoll_under_change)
{
    enum { ROUNDS = 300 };
    pthread_t t[4];
    shared_epoll = (int)must(epoll_create1(0));
    for (int i = 0; i < 4; i++)
        must(-pthread_create(&t[i], NULL, wait_for_events, NULL));
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t one = 1;
        int fd = (int)must(eventfd(0, EFD_NONBLOCK));
        struct epoll_event ev = {.events = EPOLLIN | (r % 2 ? EPOLLET : 0), .data.fd = fd};
        must(epoll_ctl(shared_epoll, EPOLL_CTL_ADD, fd, &ev));
        must(write(fd, &one, sizeof one));
        long wanted = r + 1;
        for (int i = 0; i < 10000 && __sync_fetch_and_add(&events_seen, 0) < wanted; i++)
            usleep(500);
        must(close(fd));
    }
    stop_waiting = 1;
    for (int i = 0; i < 4; i++)
        must(-pthread_join(t[i], NULL));
    say("events %ld of %d", events_seen, ROUNDS);
}

/* ---- signals to a process that forks, exits and handles ---- */

static volatile int handled;
static void note(int signal)
{
    (void)signal;
    handled++;
}

CASE(signals_during_system_calls)
{
    int p[2], got = 0;
    char c;
    handle(SIGUSR1, note, SA_RESTART);
    must(pipe(p));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        for (int i = 0; i < 300; i++) {
            kill(getppid(), SIGUSR1);
            if (i % 3 == 0)
                must(write(p[1], "x", 1));
        }
        _exit(0);
    }
    must(close(p[1]));
    while (read(p[0], &c, 1) == 1)
        got++;
    say("bytes %d, handler ran: %d, child %s", got, handled > 0, status_text(wait_for(child)));
}

CASE(children_come_and_go)
{
    int good = 0;
    for (int round = 0; round < 20; round++) {
        pid_t pids[5];
        for (int i = 0; i < 5; i++) {
            pids[i] = (pid_t)must(fork());
            if (!pids[i]) {
                if (i == 4)
                    pause();
                _exit(i);
            }
        }
        must(kill(pids[4], round % 2 ? SIGKILL : SIGTERM));
        for (int i = 0; i < 5; i++) {
            int status = wait_for(pids[i]);
            good += i < 4 ? WEXITSTATUS(status) == i : WTERMSIG(status) == (round % 2 ? SIGKILL : SIGTERM);
        }
    }
    say("right statuses %d", good);
}

/* ---- many pairs of sockets echoing ---- */

CASE(echoes_over_unix_sockets)
{
    enum { PAIRS = 6, ROUNDS = 150 };
    pid_t pids[PAIRS];
    int ends[PAIRS], good = 0;
    for (int i = 0; i < PAIRS; i++) {
        int s[2];
        must(socketpair(AF_UNIX, i % 2 ? SOCK_STREAM : SOCK_SEQPACKET, 0, s));
        pids[i] = (pid_t)must(fork());
        if (!pids[i]) {
            char buf[3000];
            ssize_t n;
            for (int j = 0; j < i; j++)
                close(ends[j]);
            close(s[0]);
            while ((n = recv(s[1], buf, sizeof buf, 0)) > 0)
                if (send(s[1], buf, (size_t)n, 0) != n)
                    _exit(1);
            _exit(0);
        }
        close(s[1]);
        ends[i] = s[0];
    }
    for (int r = 0; r < ROUNDS; r++) {
        char out[1500], in[1500];
        memset(out, r, sizeof out);
        for (int i = 0; i < PAIRS; i++)
            must(send(ends[i], out, sizeof out, 0));
        for (int i = 0; i < PAIRS; i++)
            good += recv(ends[i], in, sizeof in, MSG_WAITALL) == (ssize_t)sizeof in && !memcmp(in, out, sizeof in);
    }
    for (int i = 0; i < PAIRS; i++) {
        close(ends[i]);
        good += wait_for(pids[i]) == 0;
    }
    say("good %d", good);
}
