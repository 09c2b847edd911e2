/* Vector state over context switches, signal frames and fork. AVX where the CPU has it, else SSE. */
#include "abi.h"

#include <sched.h>
#include <sys/syscall.h>
#include <ucontext.h>

enum { BYTES = 16 * 32 };

static bool has_avx;

/* Registers 0..15 from / to a block of 16 x 32 bytes. */
#define EACH_REGISTER(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define LOAD_YMM(n) "vmovdqu " #n "*32(%0), %%ymm" #n "\n"
#define SAVE_YMM(n) "vmovdqu %%ymm" #n ", " #n "*32(%0)\n"
#define LOAD_XMM(n) "movdqu " #n "*32(%0), %%xmm" #n "\n"
#define SAVE_XMM(n) "movdqu %%xmm" #n ", " #n "*32(%0)\n"
#define ALL_XMM "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
    "xmm12", "xmm13", "xmm14", "xmm15"

/* Loads `in`, makes a system call by hand in between when number >= 0, stores to `out`. */
static long through(const uint8_t *in, uint8_t *out, long number, long a, long b)
{
    long result = number;
    if (has_avx)
        __asm__ volatile(EACH_REGISTER(LOAD_YMM) "syscall\n"
                         "mov %4, %0\n" EACH_REGISTER(SAVE_YMM)
                         : "+&b"(in), "+&a"(result)
                         : "D"(a), "S"(b), "r"(out)
                         : "rcx", "r11", "memory", ALL_XMM);
    else
        __asm__ volatile(EACH_REGISTER(LOAD_XMM) "syscall\n"
                         "mov %4, %0\n" EACH_REGISTER(SAVE_XMM)
                         : "+&b"(in), "+&a"(result)
                         : "D"(a), "S"(b), "r"(out)
                         : "rcx", "r11", "memory", ALL_XMM);
    return result;
}

static void fill(uint8_t *block, unsigned seed)
{
    for (int i = 0; i < BYTES; i++)
        block[i] = has_avx || i % 32 < 16 ? (uint8_t)((unsigned)i * 7 + seed * 31 + 1) : 0;
}

CASE(vector_state_over_context_switches)
{
    enum { PROCESSES = 8, ROUNDS = 400 };
    has_avx = __builtin_cpu_supports("avx");
    pid_t children[PROCESSES];
    for (unsigned p = 0; p < PROCESSES; p++) {
        children[p] = (pid_t)must(fork());
        if (!children[p]) {
            uint8_t in[BYTES], out[BYTES];
            int bad = 0;
            for (unsigned r = 0; r < ROUNDS; r++) {
                fill(in, p * 1000 + r);
                memset(out, 0, sizeof out);
                through(in, out, SYS_sched_yield, 0, 0);
                bad += !!memcmp(in, out, BYTES);
            }
            _exit(bad > 100 ? 100 : bad);
        }
    }
    for (unsigned p = 0; p < PROCESSES; p++)
        say("process %u: %s", p, status_text(wait_for(children[p])));
}

static volatile sig_atomic_t frame_has_state;
static uint8_t expected_xmm3[16];

static void clobber(int signal, siginfo_t *info, void *context)
{
    uint8_t other[BYTES], sink[BYTES];
    const struct _libc_fpstate *fp = ((ucontext_t *)context)->uc_mcontext.fpregs;
    frame_has_state = fp && !memcmp(fp->_xmm[3].element, expected_xmm3, 16);
    memset(other, 0xa5, sizeof other);
    through(other, sink, SYS_getpid, 0, 0);
    (void)signal;
    (void)info;
}

CASE(vector_state_over_a_signal_frame)
{
    uint8_t in[BYTES], out[BYTES];
    struct sigaction action = {.sa_sigaction = clobber, .sa_flags = SA_SIGINFO};
    has_avx = __builtin_cpu_supports("avx");
    must(sigaction(SIGUSR1, &action, NULL));
    for (unsigned r = 0; r < 3; r++) {
        fill(in, r);
        memcpy(expected_xmm3, in + 3 * 32, sizeof expected_xmm3);
        memset(out, 0, sizeof out);
        long got = through(in, out, SYS_kill, getpid(), SIGUSR1);
        say("kill %ld, state in the frame %d, registers kept %d", got, frame_has_state, !memcmp(in, out, BYTES));
    }
}

/* Through the sigcontext: what the handler writes there is what the interrupted code finds. */
static void change_frame(int signal, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    uc->uc_mcontext.fpregs->_xmm[3].element[0] = 0x12345678;
    uc->uc_mcontext.gregs[REG_R12] = 0x77;
    (void)signal;
    (void)info;
}

CASE(handler_changes_the_frame)
{
    uint8_t in[BYTES], out[BYTES];
    struct sigaction action = {.sa_sigaction = change_frame, .sa_flags = SA_SIGINFO};
    has_avx = __builtin_cpu_supports("avx");
    must(sigaction(SIGUSR1, &action, NULL));
    fill(in, 9);
    through(in, out, SYS_kill, getpid(), SIGUSR1);
    uint32_t word;
    memcpy(&word, out + 3 * 32, 4);
    say("register 3: %x, others kept %d", word, !memcmp(in, out, 3 * 32) && !memcmp(in + 128, out + 128, BYTES - 128));
}

CASE(vector_state_over_fork)
{
    uint8_t in[BYTES], out[BYTES];
    has_avx = __builtin_cpu_supports("avx");
    fill(in, 5);
    memset(out, 0, sizeof out);
    long pid = through(in, out, SYS_fork, 0, 0);
    if (!pid)
        _exit(memcmp(in, out, BYTES) ? 1 : 0);
    say("parent: kept %d", !memcmp(in, out, BYTES));
    say("child: %s", status_text(wait_for((pid_t)pid)));
}

CASE(floating_point_control)
{
    uint32_t mxcsr, before = 0x1f80 | 0x6000;
    __asm__ volatile("ldmxcsr %0" : : "m"(before));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
        _exit(mxcsr == before ? 0 : 1);
    }
    say("rounding mode in the child: %s", status_text(wait_for(child)));
    sched_yield();
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    say("after a switch: %x", mxcsr & 0x6000);
}

CASE(clocks_do_not_go_back)
{
    int backwards = 0;
    struct timespec last = {0, 0}, t;
    for (int i = 0; i < 20000; i++) {
        clock_gettime(CLOCK_MONOTONIC, &t);
        backwards += t.tv_sec < last.tv_sec || (t.tv_sec == last.tv_sec && t.tv_nsec < last.tv_nsec);
        last = t;
        if (i % 1000 == 0)
            sched_yield();
    }
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    say("backwards %d, realtime and time() agree %d, after 2020 %d", backwards,
        time(NULL) - real.tv_sec >= 0 && time(NULL) - real.tv_sec < 5, real.tv_sec > 1577836800);
}
