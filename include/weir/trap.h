/* Ring-3 register frame and the hooks by which arch calls the Linux layer. */
#ifndef WEIR_TRAP_H
#define WEIR_TRAP_H
#include <weir/compiler.h>

/* Pushed by entry.S; the order is its contract. Full on every entry (SYSCALL, interrupt, exception). */
struct trapframe {
    uint64_t r15, r14, r13, r12, rbp, rbx;
    uint64_t r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
    uint64_t orig_rax; /* system call number; -1 for exceptions and interrupts (nothing to restart) */
    uint64_t error;    /* hardware error code or 0 */
    uint64_t rip, cs, rflags, rsp, ss;
};
/* Selectors of ring 3 in a trapframe (Linux's values). RFLAGS of a fresh program: 0x202. */
#define TRAP_USER_CS 0x33
#define TRAP_USER_SS 0x2b
static inline bool trapframe_from_user(const struct trapframe *tf) { return (tf->cs & 3) == 3; }

/* Page-fault error bits (SDM 3A 4.7). */
#define FAULT_PRESENT 1u
#define FAULT_WRITE   2u
#define FAULT_USER    4u
#define FAULT_EXEC    16u

struct thread;
struct trap_hooks {
    /* SYSCALL with interrupts on. The result goes to tf->rax by the hook itself. */
    void (*syscall)(struct trapframe *tf);
    /* Fault on a user address, from ring 3 or from usercopy; interrupts on. 0 = served, else -errno:
     * from usercopy it becomes -EFAULT, from ring 3 user_exception() follows. */
    int (*page_fault)(uint64_t addr, unsigned fault_bits);
    /* Exception raised by ring 3: vector, error, faulting address (page fault), result of page_fault. */
    void (*user_exception)(struct trapframe *tf, unsigned vector, uint64_t addr, int fault_result);
    /* Last thing before going to ring 3, interrupts on, if current has work (signal, kill). May not return. */
    void (*return_to_user)(struct trapframe *tf);
};
void trap_set_hooks(const struct trap_hooks *hooks); /* once, at init */

/* FPU state of the current thread, for signal frames: XSAVE image in standard form, 64-byte aligned. */
size_t fpu_state_size(void);              /* bytes for the features enabled in XCR0 (CPUID 0xD), 512 without XSAVE */
uint64_t fpu_feature_mask(void);          /* XCR0, or 3 */
void fpu_save_current(void *buf);         /* kernel buffer of fpu_state_size(), aligned 64 */
int fpu_restore_current(const void *buf) __must_check; /* validates MXCSR and header: -EINVAL */
void fpu_reset_current(void);             /* exec: initial state */
void *fpu_alloc(void) __must_check;       /* initial state */
void fpu_copy(void *dst, struct thread *src_thread_current); /* fork: current's live state into dst */
void fpu_free(void *area);
/* FS base of the current thread (arch_prctl). */
void arch_set_fs_base(uint64_t base);
uint64_t arch_get_fs_base(void);
#endif
