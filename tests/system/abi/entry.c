/* The border between program and kernel: what each instruction that faults becomes, returns to bad addresses,
 * registers over system calls, translations that must go. */
#include "abi.h"

#include <pthread.h>
#include <setjmp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>

static sigjmp_buf back;
static siginfo_t caught;
static void *const non_canonical = (void *)0x8000000000000000UL;

static void catch(int signal, siginfo_t *info, void *context)
{
    caught = *info;
    (void)context;
    siglongjmp(back, signal);
}

static void catch_all(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    static char stack[1 << 16];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    must(sigaltstack(&alternative, NULL)); /* the program's own may be what is broken */
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_sigaction = catch, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        must(sigaction(signals[i], &action, NULL));
    }
}

#define FAULTS(what, assembler, ...)                                                                           \
    do {                                                                                                       \
        int got = sigsetjmp(back, 1);                                                                          \
        if (!got) {                                                                                            \
            __asm__ volatile(assembler : : __VA_ARGS__ : "rax", "rcx", "rdx", "r11", "memory");                \
            say("%s: went on", what);                                                                          \
        } else {                                                                                               \
            say("%s: %s code %d", what, signal_text(got), caught.si_code);                                     \
        }                                                                                                      \
    } while (0)

CASE(instructions_that_fault)
{
    catch_all();
    FAULTS("ud2", "ud2", "r"(0));
    FAULTS("int3", "int3", "r"(0));
    FAULTS("hlt", "hlt", "r"(0));
    FAULTS("cli", "cli", "r"(0));
    FAULTS("in", "inb $0x80, %%al", "r"(0));
    FAULTS("int 0x21", "int $0x21", "r"(0));
    FAULTS("int of the timer's vector", "int $0xfb", "r"(0));
    FAULTS("int of the page fault's vector", "int $14", "r"(0));
    FAULTS("division by zero", "xorl %%edx, %%edx\nmovl $1, %%eax\ndivl %0", "r"(0));
    FAULTS("mov to cr3", "mov %0, %%cr3", "r"(0UL));
    FAULTS("rdmsr", "movl $0xc0000080, %%ecx\nrdmsr", "r"(0));
    FAULTS("swapgs", "swapgs", "r"(0));
    FAULTS("sysret", "sysretq", "r"(0));
    FAULTS("read through null", "movl (%0), %%eax", "r"(0UL));
    FAULTS("read of kernel memory", "movl (%0), %%eax", "r"(0xffffffff81000000UL));
    FAULTS("read of a non-canonical address", "movl (%0), %%eax", "r"(non_canonical));
    FAULTS("jump to a non-canonical address", "jmp *%0", "r"(non_canonical));
    FAULTS("jump to kernel memory", "jmp *%0", "r"(0xffffffff81000000UL));
    FAULTS("invalid opcode after a prefix", ".byte 0xf0, 0x90", "r"(0));
}

/* A handler writes what IRETQ or SYSRET must load. */
static unsigned long new_rip, new_rsp, new_flags;

static void change_return(int signal, siginfo_t *info, void *context)
{
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (new_rip)
        regs[REG_RIP] = (greg_t)new_rip;
    if (new_rsp)
        regs[REG_RSP] = (greg_t)new_rsp;
    regs[REG_EFL] |= (greg_t)new_flags;
    (void)signal;
    (void)info;
}

static void returns_to(const char *what, unsigned long rip, unsigned long rsp, unsigned long flags)
{
    struct sigaction action = {.sa_sigaction = change_return, .sa_flags = SA_SIGINFO};
    must(sigaction(SIGUSR1, &action, NULL));
    new_rip = rip;
    new_rsp = rsp;
    new_flags = flags;
    int got = sigsetjmp(back, 1);
    if (!got) {
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
        say("%s: went on", what);
    } else {
        say("%s: %s code %d", what, signal_text(got), caught.si_code);
    }
}

CASE(returns_to_bad_places)
{
    catch_all();
    for (unsigned round = 0; round < 3; round++) {
        returns_to("non-canonical rip", 0x8000000000000000UL, 0, 0);
        returns_to("first non-canonical rip", 0x0000800000000000UL, 0, 0);
        returns_to("kernel rip", 0xffffffff81000000UL, 0, 0);
        returns_to("null rip", 16, 0, 0);
        returns_to("trap flag", 0, 0, 0x100);
        returns_to("other flags", 0, 0, 0x1);
    }
}

/* All registers a system call must keep, over many calls and preemptions. */
static unsigned long kept_over(long number, unsigned long seed)
{
    unsigned long bad = 0;
    register unsigned long a __asm__("r8") = seed + 1, b __asm__("r9") = seed + 2, c __asm__("r10") = seed + 3;
    register unsigned long d __asm__("r12") = seed + 4, e __asm__("r13") = seed + 5, f __asm__("r14") = seed + 6;
    unsigned long di = seed + 7, si = seed + 8, dx = seed + 9;
    __asm__ volatile("syscall"
                     : "+a"(number), "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+D"(di), "+S"(si), "+d"(dx)
                     :
                     : "rcx", "r11", "memory");
    bad += a != seed + 1 || b != seed + 2 || c != seed + 3 || d != seed + 4 || e != seed + 5 || f != seed + 6;
    bad += di != seed + 7 || si != seed + 8 || dx != seed + 9;
    return bad;
}

CASE(registers_over_system_calls)
{
    unsigned long bad = 0;
    pid_t child = (pid_t)must(fork());
    for (unsigned long i = 0; i < 3000; i++)
        bad += kept_over(i % 2 ? SYS_sched_yield : SYS_getpid, i << 40 | i);
    if (!child)
        _exit(bad != 0);
    say("parent: %lu changed, child: %s", bad, status_text(wait_for(child)));
}

CASE(registers_without_system_calls)
{
    /* Two processes at least on a CPU: preempted at any instruction. */
    enum { PROCESSES = 8 };
    pid_t children[PROCESSES];
    for (int p = 0; p < PROCESSES; p++) {
        children[p] = (pid_t)must(fork());
        if (!children[p]) {
            unsigned long bad = 0;
            double end = now_s() + 0.5;
            while (now_s() < end) {
                unsigned long sum = 0, x = (unsigned long)p;
                for (unsigned i = 0; i < 100000; i++) {
                    x = x * 6364136223846793005UL + 1442695040888963407UL;
                    __asm__ volatile("" : "+r"(x));
                    sum += x >> 33;
                }
                static unsigned long first;
                if (!first)
                    first = sum;
                bad += sum != first;
            }
            _exit(bad != 0);
        }
    }
    for (int p = 0; p < PROCESSES; p++)
        say("process %d: %s", p, status_text(wait_for(children[p])));
}

/* Threads of one program on several CPUs: memory that one of them has unmapped or protected is gone for all. */
enum { THREADS = 4, PAGES = 40 };
static volatile unsigned char *volatile shared;
static volatile int phase;
static int leaks;
static __thread sigjmp_buf thread_back;
static __thread volatile int expecting;

static void thread_fault(int signal)
{
    if (!expecting)
        _exit(98);
    siglongjmp(thread_back, signal);
}

static void touch(int page, bool gone)
{
    if (sigsetjmp(thread_back, 1) == 0) {
        expecting = gone;
        shared[page * 4096] = 1;
        if (gone)
            __atomic_fetch_add(&leaks, 1, __ATOMIC_SEQ_CST);
    }
    expecting = 0;
}

static void *toucher(void *arg)
{
    (void)arg;
    int seen = 0;
    for (;;) {
        while (phase == seen)
            sched_yield();
        seen = phase;
        if (seen < 0)
            return NULL;
        /* Odd phases: mapped and writable, so load the translations. Even ones: must fault. */
        for (int page = 0; page < PAGES; page++)
            touch(page, seen % 2 == 0);
        __atomic_fetch_add(&shared[PAGES * 4096], 1, __ATOMIC_SEQ_CST);
    }
}

static void run_phase(int number)
{
    shared[PAGES * 4096] = 0;
    __atomic_store_n(&phase, number, __ATOMIC_SEQ_CST);
    while (shared[PAGES * 4096] != THREADS)
        sched_yield();
}

CASE(no_thread_uses_a_mapping_that_is_gone)
{
    pthread_t threads[THREADS];
    handle(SIGSEGV, thread_fault, 0);
    shared = mmap(NULL, (PAGES + 1) * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < THREADS; i++)
        must(-pthread_create(&threads[i], NULL, toucher, NULL));
    unsigned char *memory = (unsigned char *)shared;
    for (int round = 1; round < 60; round += 2) {
        size_t size = (round % 4 == 1 ? 3 : PAGES) * 4096;
        must(mprotect(memory, PAGES * 4096, PROT_READ | PROT_WRITE));
        run_phase(round);
        must(mprotect(memory, PAGES * 4096, PROT_READ));
        if (size < PAGES * 4096)
            must((long)mmap(memory, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        run_phase(round + 1);
    }
    __atomic_store_n(&phase, -1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    say("writes through stale translations: %d", leaks);
}

/* The address space is copied while other threads write to it: each child sees every page whole. */
static void *writer(void *arg)
{
    (void)arg;
    for (unsigned char v = 1; phase >= 0; v++) {
        for (int page = 0; page < PAGES; page++) {
            shared[page * 4096] = v;
            shared[page * 4096 + 4095] = v;
        }
        sched_yield();
    }
    return NULL;
}

CASE(fork_while_threads_write)
{
    pthread_t threads[THREADS];
    phase = 0;
    shared = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < THREADS; i++)
        must(-pthread_create(&threads[i], NULL, writer, NULL));
    int bad = 0;
    for (int round = 0; round < 60; round++) {
        pid_t child = (pid_t)must(fork());
        if (!child) {
            unsigned char first[PAGES], changed = 0;
            for (int page = 0; page < PAGES; page++)
                first[page] = shared[page * 4096];
            sched_yield();
            for (int page = 0; page < PAGES; page++)
                changed |= first[page] != shared[page * 4096]; /* a parent's write came through */
            _exit(changed);
        }
        bad += wait_for(child) != 0;
    }
    phase = -1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    say("children that saw the parent write: %d", bad);
}
