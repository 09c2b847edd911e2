/* The way from the trap entry to a system call's handler, and from a CPU exception to a signal. */
#define SYSCALL_LINKAGE __weak
#include "syscall.h"
#include "process.h"
#include <weir/aspace.h>
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/trap.h>

typedef long (*syscall_handler)(const uint64_t a[6]);

static const syscall_handler handlers[SYSCALL_MAX] = {
#define SYSCALL(number, name) [number] = sys_##name,
#include "syscalls.def"
#undef SYSCALL
};

static const char *const names[SYSCALL_MAX] = {
#define SYSCALL(number, name) [number] = #name,
#include "syscalls.def"
#undef SYSCALL
};

const char *syscall_name(unsigned number)
{
    return number < SYSCALL_MAX ? names[number] : NULL;
}

/* Programs take ENOSYS from fallocate as an I/O error, but fall back to writing on EOPNOTSUPP. */
static long missing_result(uint64_t number)
{
    return number == SYSCALL_fallocate ? -EOPNOTSUPP : -ENOSYS;
}

/* Programs probe for these and go on without; a line on the console would only worry people. */
static bool probe_only(uint64_t number)
{
    return number == SYSCALL_rseq || number == SYSCALL_io_uring_setup;
}

static long syscall_missing(uint64_t number)
{
    static uint64_t reported[BITMAP_WORDS(SYSCALL_MAX)];
    unsigned bit = number < SYSCALL_MAX ? (unsigned)number : 0;

    if (number < SYSCALL_MAX && probe_only(number))
        return missing_result(number);
    /* Bit 0 is free for numbers out of range: number 0 is read, which is never missing. */
    if (!bitmap_test(reported, bit) && !bitmap_test_and_set_atomic(reported, bit)) {
        const char *name = syscall_name((unsigned)MIN(number, (uint64_t)SYSCALL_MAX));
        log_warn("system call %s (%lu) is not implemented; first called by %s (pid %d)",
                 name ? name : "?", (unsigned long)number, current_process()->name,
                 current_process()->pid);
    }
    return missing_result(number);
}

static void trap_syscall(struct trapframe *tf)
{
    const uint64_t a[6] = {tf->rdi, tf->rsi, tf->rdx, tf->r10, tf->r8, tf->r9};
    uint64_t number = tf->orig_rax;
    syscall_handler fn;
    long result;

    current_task()->regs = tf;
    if (likely(number < SYSCALL_MAX) && likely((fn = handlers[number]) != NULL))
        result = fn(a);
    else
        result = syscall_missing(number);
    /* The handler may have replaced the whole frame: then it returns what belongs into rax. */
    tf->rax = (uint64_t)result;
    /* rt_sigreturn clears orig_rax: what it restores into rax is the program's own business. */
    if (unlikely(result <= -ERESTARTSYS && result >= -ERESTART_RESTARTBLOCK) && (int64_t)tf->orig_rax >= 0) {
        current_task()->restart = true;
        signal_return_to_user(tf);
    }
}

static int trap_page_fault(uint64_t addr, unsigned fault_bits)
{
    struct task *task = current_task();

    /* A self-test may load a page table of its own in a kernel thread: that is no address space of a program.
     * The futex code reads its word under a spinlock: it serves the fault itself, after unlocking. */
    if (!task || unlikely(task->fault_disabled))
        return -EFAULT;
    struct aspace *as = aspace_current();
    return as ? aspace_fault(as, addr, fault_bits) : -EFAULT;
}

enum { TRAP_DIVIDE = 0, TRAP_DEBUG = 1, TRAP_BREAKPOINT = 3, TRAP_INVALID_OPCODE = 6,
       TRAP_SEGMENT = 11, TRAP_STACK = 12, TRAP_PAGE_FAULT = 14, TRAP_FPU = 16,
       TRAP_ALIGNMENT = 17, TRAP_SIMD = 19 };

/* si_code values of Linux */
enum { CODE_KERNEL = 0x80, CODE_FPE_INTDIV = 1, CODE_FPE_FLTINV = 7, CODE_ILL_ILLOPN = 2,
       CODE_SEGV_MAPERR = 1, CODE_SEGV_ACCERR = 2, CODE_BUS_ADRALN = 1, CODE_BUS_ADRERR = 2,
       CODE_TRAP_TRACE = 2 };

static void page_fault_signal(struct siginfo_weir *info, uint64_t addr, int fault_result)
{
    info->addr = addr;
    info->signo = SIGSEGV;
    info->code = CODE_SEGV_MAPERR;
    if (fault_result == -EACCES) {
        info->code = CODE_SEGV_ACCERR;
    } else if (fault_result == -EIO || fault_result == -ENOMEM) {
        info->signo = SIGBUS;
        info->code = CODE_BUS_ADRERR;
    }
}

static void trap_user_exception(struct trapframe *tf, unsigned vector, uint64_t addr,
                                int fault_result)
{
    struct siginfo_weir info = {.addr = tf->rip};

    current_task()->regs = tf;
    switch (vector) {
    case TRAP_PAGE_FAULT:
        page_fault_signal(&info, addr, fault_result);
        break;
    case TRAP_DIVIDE:
        info.signo = SIGFPE;
        info.code = CODE_FPE_INTDIV;
        break;
    case TRAP_FPU:
    case TRAP_SIMD:
        info.signo = SIGFPE;
        info.code = CODE_FPE_FLTINV;
        break;
    case TRAP_DEBUG:
        info.signo = SIGTRAP;
        info.code = CODE_TRAP_TRACE;
        break;
    case TRAP_BREAKPOINT:
        info.signo = SIGTRAP;
        info.code = CODE_KERNEL;
        info.addr = 0;
        break;
    case TRAP_INVALID_OPCODE:
        info.signo = SIGILL;
        info.code = CODE_ILL_ILLOPN;
        break;
    case TRAP_SEGMENT:
    case TRAP_STACK:
        info.signo = SIGBUS;
        info.code = CODE_KERNEL;
        info.addr = 0;
        break;
    case TRAP_ALIGNMENT:
        info.signo = SIGBUS;
        info.code = CODE_BUS_ADRALN;
        info.addr = 0;
        break;
    default: /* general protection and the rest */
        info.signo = SIGSEGV;
        info.code = CODE_KERNEL;
        info.addr = 0;
        break;
    }
    signal_force(info.signo, &info);
}

static void syscall_init(void)
{
    static const struct trap_hooks hooks = {
        .syscall = trap_syscall,
        .page_fault = trap_page_fault,
        .user_exception = trap_user_exception,
        .return_to_user = signal_return_to_user,
    };

    trap_set_hooks(&hooks);
}
INIT_CALL(INIT_CORE, syscall_init);
