/* Handlers: frames, stacks, siginfo, masks that are swapped, queued signals, faults. */
#include "abi.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>

static volatile int count, order[8];

static void counting(int signal)
{
    order[count % 8] = signal;
    count++;
}

static volatile int info_code, info_value, info_pid_is_mine;

static void informed(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    info_code = info->si_code;
    info_value = info->si_value.sival_int;
    info_pid_is_mine = info->si_pid == getpid();
    count++;
}

static void handle_info(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&a.sa_mask);
    must(sigaction(signal, &a, NULL));
}

CASE(siginfo_of_each_sender)
{
    union sigval v = {.sival_int = 77};
    handle_info(SIGUSR1, informed, 0);
    must(kill(getpid(), SIGUSR1));
    say("kill: code %d, mine %d", info_code, info_pid_is_mine);
    must(sigqueue(getpid(), SIGUSR1, v));
    say("sigqueue: code %d, value %d, mine %d", info_code, info_value, info_pid_is_mine);
    must(raise(SIGUSR1));
    say("raise: code %d, mine %d", info_code, info_pid_is_mine);
    say("count %d", count);
}

CASE(real_time_signals_queue_in_order)
{
    struct timespec none = {0, 0};
    sigset_t set;
    siginfo_t info;
    block(SIGRTMIN + 1);
    block(SIGRTMIN);
    block(SIGUSR1);
    for (int i = 0; i < 3; i++) {
        must(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = i}));
        must(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = i}));
    }
    must(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 9}));
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigaddset(&set, SIGRTMIN + 1);
    sigaddset(&set, SIGUSR1);
    for (int signal; (signal = sigtimedwait(&set, &info, &none)) > 0;)
        say("%s%d value %d", signal == SIGUSR1 ? "USR" : "RT", signal == SIGUSR1 ? 1 : signal - SIGRTMIN,
            info.si_value.sival_int);
    say("empty: %s", error_name(errno));
}

CASE(sigtimedwait_waits)
{
    struct timespec t = {0, 50000000};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    block(SIGUSR2);
    say("timeout: %s", outcome(sigtimedwait(&set, NULL, &t)));
    pid_t child = signal_me_after(100, SIGUSR2);
    say("got SIG%s", signal_text(sigwaitinfo(&set, NULL)));
    wait_for(child);
    handle(SIGUSR1, counting, SA_RESTART);
    child = signal_me_after(100, SIGUSR1);
    say("another signal: %s", outcome(sigwaitinfo(&set, NULL)));
    wait_for(child);
}

static volatile int on_stack;
static char *alternate;

static void on_alternate(int signal)
{
    char here;
    stack_t now;
    (void)signal;
    sigaltstack(NULL, &now);
    on_stack = &here >= alternate && &here < alternate + 65536 ? now.ss_flags : -1;
    count++;
}

CASE(alternate_stack)
{
    alternate = malloc(65536);
    stack_t s = {.ss_sp = alternate, .ss_size = 65536}, old;
    must(sigaltstack(&s, NULL));
    handle(SIGUSR1, on_alternate, SA_ONSTACK);
    handle(SIGUSR2, on_alternate, 0);
    must(raise(SIGUSR1));
    say("with SA_ONSTACK: %d", on_stack);
    must(raise(SIGUSR2));
    say("without: %d", on_stack);
    must(sigaltstack(NULL, &old));
    say("afterwards: flags %d, same %d", old.ss_flags, old.ss_sp == alternate && old.ss_size == 65536);
    s.ss_size = 100;
    say("too small: %s", outcome(sigaltstack(&s, NULL)));
    s.ss_flags = 64;
    say("bad flags: %s", outcome(sigaltstack(&s, NULL)));
}

static sigjmp_buf escape;
static volatile int fault_code, fault_at_address;
static void *volatile expected;

static void faulted(int signal, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    fault_code = info->si_code;
    fault_at_address = info->si_addr == expected;
    (void)uc;
    siglongjmp(escape, signal);
}

static void show_fault(const char *what, volatile char *p, int write)
{
    expected = (void *)p;
    int signal = sigsetjmp(escape, 1);
    if (!signal) {
        if (write)
            *p = 1;
        else
            (void)*p;
        say("%s: no fault", what);
    } else {
        say("%s: SIG%s, code %d, address right %d", what, signal_text(signal), fault_code, fault_at_address);
    }
}

CASE(faults_reach_a_handler)
{
    handle_info(SIGSEGV, faulted, 0);
    handle_info(SIGBUS, faulted, 0);
    handle_info(SIGFPE, faulted, 0);
    handle_info(SIGILL, faulted, 0);
    handle_info(SIGTRAP, faulted, 0);
    char *ro = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show_fault("null", (char *)8, 0);
    show_fault("read-only", ro + 5, 1);
    show_fault("no access", none + 7, 0);
    char path[] = "/tmp/abi-fault-XXXXXX";
    int fd = (int)must(mkstemp(path));
    char *beyond = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    unlink(path);
    show_fault("beyond the file", beyond + 4096, 0);
    int signal = sigsetjmp(escape, 1);
    if (!signal)
        __asm__ volatile("xorl %%edx, %%edx; xorl %%eax, %%eax; xorl %%ecx, %%ecx; divl %%ecx" ::: "eax", "ecx", "edx");
    say("division: SIG%s, code %d", signal_text(signal), fault_code);
    signal = sigsetjmp(escape, 1);
    if (!signal)
        __asm__ volatile("ud2");
    say("bad instruction: SIG%s, code %d", signal_text(signal), fault_code);
    signal = sigsetjmp(escape, 1);
    if (!signal)
        __asm__ volatile("int3");
    say("breakpoint: SIG%s, code %d", signal_text(signal), fault_code);
    signal = sigsetjmp(escape, 1);
    if (!signal)
        __asm__ volatile("hlt");
    say("privileged: SIG%s, code %d", signal_text(signal), fault_code);
}

static volatile int *volatile unmapped = (int *)8;

CASE(fault_while_blocked_or_ignored_kills)
{
    for (int how = 0; how < 3; how++) {
        pid_t child = (pid_t)must(fork());
        if (!child) {
            if (how == 0)
                block(SIGSEGV);
            if (how == 1)
                handle(SIGSEGV, SIG_IGN, 0);
            if (how == 2) { /* a handler without a stack to run on */
                handle(SIGSEGV, counting, 0);
                __asm__ volatile("movq $64, %rsp; pushq %rax");
            }
            *unmapped = 1;
            _exit(0);
        }
        say("way %d: %s", how, status_text(wait_for(child)));
    }
}

CASE(handler_flags)
{
    handle(SIGUSR1, counting, SA_RESETHAND);
    must(raise(SIGUSR1));
    struct sigaction a;
    must(sigaction(SIGUSR1, NULL, &a));
    say("reset to default: %d", a.sa_handler == SIG_DFL);
    say("SIGKILL: %s, SIGSTOP: %s, 65: %s", outcome(sigaction(SIGKILL, &a, NULL)), outcome(sigaction(SIGSTOP, &a, NULL)),
        outcome(syscall(SYS_rt_sigaction, 65, NULL, NULL, 8)));
}

static void blocking_probe(int signal)
{
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    say("in handler: USR1 %d, USR2 %d, HUP %d", sigismember(&set, SIGUSR1), sigismember(&set, SIGUSR2),
        sigismember(&set, SIGHUP));
    (void)signal;
}

CASE(sigsuspend_swaps_the_mask)
{
    sigset_t none, now;
    handle(SIGUSR1, blocking_probe, 0);
    block(SIGUSR1);
    block(SIGHUP);
    must(kill(getpid(), SIGUSR1));
    sigemptyset(&none);
    sigaddset(&none, SIGUSR2);
    say("sigsuspend: %s", outcome(sigsuspend(&none)));
    sigprocmask(SIG_BLOCK, NULL, &now);
    say("after: USR1 %d, USR2 %d, HUP %d", sigismember(&now, SIGUSR1), sigismember(&now, SIGUSR2),
        sigismember(&now, SIGHUP));
}

CASE(ppoll_and_pselect_swap_the_mask)
{
    sigset_t none, now;
    struct timespec t = {5, 0}, zero = {0, 0};
    handle(SIGUSR1, counting, SA_RESTART);
    block(SIGUSR1);
    sigemptyset(&none);
    must(kill(getpid(), SIGUSR1));
    const char *how = outcome(ppoll(NULL, 0, &t, &none));
    say("ppoll: %s, handled %d", how, count);
    must(kill(getpid(), SIGUSR1));
    how = outcome(pselect(0, NULL, NULL, NULL, &t, &none));
    say("pselect: %s, handled %d", how, count);
    say("without a signal: %s", outcome(ppoll(NULL, 0, &zero, &none)));
    sigprocmask(SIG_BLOCK, NULL, &now);
    say("still blocked: %d", sigismember(&now, SIGUSR1));
    int p[2];
    must(pipe(p));
    must(kill(getpid(), SIGUSR1));
    must(write(p[1], "x", 1));
    struct pollfd f = {p[0], POLLIN, 0};
    int before = count, n = ppoll(&f, 1, &t, &none);
    say("ready and pending: %d, handled %d", n, count - before);
}

CASE(select_sets)
{
    int p[2], q[2];
    fd_set r, w;
    struct timeval t = {0, 0};
    must(pipe(p));
    must(pipe(q));
    must(write(p[1], "x", 1));
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(p[0], &r);
    FD_SET(q[0], &r);
    FD_SET(q[1], &w);
    say("ready %d", select(q[1] + 1, &r, &w, NULL, &t));
    say("sets %d %d %d", !!FD_ISSET(p[0], &r), !!FD_ISSET(q[0], &r), !!FD_ISSET(q[1], &w));
    must(close(q[0]));
    FD_ZERO(&r);
    FD_SET(q[0], &r);
    say("closed: %s", outcome(select(q[0] + 1, &r, NULL, NULL, &t)));
}

CASE(several_pending_are_all_delivered)
{
    sigset_t none;
    handle(SIGUSR1, counting, 0);
    handle(SIGUSR2, counting, 0);
    handle(SIGTERM, counting, 0);
    block(SIGUSR1);
    block(SIGUSR2);
    block(SIGTERM);
    must(raise(SIGTERM));
    must(raise(SIGUSR2));
    must(raise(SIGUSR1));
    sigemptyset(&none);
    must(sigprocmask(SIG_SETMASK, &none, NULL));
    say("handled %d: %s %s %s", count, signal_text(order[0]), signal_text(order[1]), signal_text(order[2]));
}

CASE(stop_and_continue)
{
    int status;
    pid_t child = (pid_t)must(fork());
    if (!child) {
        raise(SIGSTOP);
        _exit(5);
    }
    must(waitpid(child, &status, WUNTRACED));
    say("stopped %d by SIG%s", WIFSTOPPED(status), signal_text(WSTOPSIG(status)));
    must(kill(child, SIGCONT));
    say("child: %s", status_text(wait_for(child)));
    child = (pid_t)must(fork());
    if (!child) {
        raise(SIGSTOP);
        _exit(5);
    }
    must(waitpid(child, &status, WUNTRACED));
    must(kill(child, SIGKILL));
    say("killed while stopped: %s", status_text(wait_for(child)));
}

static void *in_thread(void *arg)
{
    (void)arg;
    sleep_ms(200);
    return NULL;
}

static pthread_t handled_by;
static void note_thread(int signal)
{
    (void)signal;
    handled_by = pthread_self();
    count++;
}

CASE(signals_and_threads)
{
    pthread_t t;
    handle(SIGUSR1, note_thread, 0);
    must(-pthread_create(&t, NULL, in_thread, NULL));
    sleep_ms(50);
    must(-pthread_kill(t, SIGUSR1));
    sleep_ms(50);
    say("to the thread: %d", pthread_equal(handled_by, t) && count == 1);
    block(SIGUSR1);
    must(kill(getpid(), SIGUSR1));
    sleep_ms(50);
    say("to whom does not block: %d", pthread_equal(handled_by, t) && count == 2);
    must(-pthread_join(t, NULL));
    say("gone: %d", syscall(SYS_tgkill, getpid(), getpid() + 12345, SIGUSR1) == -1 && errno == ESRCH);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int turn, shared_sum;

static void *ping(void *arg)
{
    int me = (int)(intptr_t)arg;
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&mutex);
        while (turn % 4 != me)
            pthread_cond_wait(&cond, &mutex);
        turn++;
        shared_sum += me;
        pthread_cond_broadcast(&cond);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

CASE(threads_with_mutex_and_condition)
{
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        must(-pthread_create(&t[i], NULL, ping, (void *)(intptr_t)i));
    for (int i = 0; i < 4; i++)
        must(-pthread_join(t[i], NULL));
    say("turns %d, sum %d", turn, shared_sum);
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += 50000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&mutex);
    say("timed wait: %s", error_name(pthread_cond_timedwait(&cond, &mutex, &at)));
}

CASE(robust_mutex_of_a_dead_owner)
{
    pthread_mutexattr_t attr;
    pthread_mutex_t *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(m, &attr);
    pid_t child = (pid_t)must(fork());
    if (!child) {
        pthread_mutex_lock(m);
        sleep_ms(100);
        raise(SIGKILL);
    }
    sleep_ms(50);
    say("lock: %s", error_name(pthread_mutex_lock(m)));
    say("child: %s", status_text(wait_for(child)));
}

CASE(posix_timer_sends_a_signal)
{
    timer_t timer;
    struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 42};
    struct itimerspec its = {{0, 0}, {0, 30000000}};
    handle_info(SIGUSR1, informed, 0);
    must(timer_create(CLOCK_MONOTONIC, &ev, &timer));
    must(timer_settime(timer, 0, &its, NULL));
    for (int i = 0; i < 100 && !count; i++)
        sleep_ms(10);
    say("count %d, code %d, value %d", count, info_code, info_value);
    must(timer_delete(timer));
    say("deleted: %s", outcome(timer_gettime(timer, &its)));
}
