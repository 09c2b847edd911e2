/* Exceptions, system-call entry, the way back to ring 3. */
#include <weir/errno.h>
#include <weir/pagetable.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"

#define VECTOR_DEBUG 1
#define VECTOR_NMI 2
#define VECTOR_BREAKPOINT 3
#define VECTOR_DOUBLE_FAULT 8
#define VECTOR_GENERAL_PROTECTION 13
#define VECTOR_PAGE_FAULT 14
#define VECTOR_MACHINE_CHECK 18
#define RFLAGS_TF 0x100UL
#define RFLAGS_IF 0x200UL
#define RFLAGS_RF 0x10000UL

/* Entry points of entry.S. */
void trap_dispatch(struct trapframe *tf);
void trap_dispatch_paranoid(struct trapframe *tf);
void trap_syscall(struct trapframe *tf);
bool trap_prepare_user(struct trapframe *tf);
struct trapframe *trap_iret_fault(struct trapframe *fault);

static const struct trap_hooks *hooks;

void trap_set_hooks(const struct trap_hooks *h)
{
    atomic_store_release(&hooks, h);
}

const char *trap_name(unsigned vector)
{
    static const char *const names[] = {
        "divide error", "debug", "NMI", "breakpoint", "overflow", "bound", "invalid opcode",
        "device not available", "double fault", "coprocessor", "invalid TSS", "segment not present",
        "stack segment", "general protection", "page fault", "reserved", "x87 error", "alignment",
        "machine check", "SIMD error", "virtualization", "control protection",
    };
    return vector < ARRAY_SIZE(names) ? names[vector] : "exception";
}

extern const struct {
    uint64_t address, fixup;
} ex_table_start[], ex_table_end[];

static uint64_t fixup_find(uint64_t rip)
{
    for (__typeof__(&ex_table_start[0]) e = ex_table_start; e < ex_table_end; e++) {
        if (e->address == rip)
            return e->fixup;
    }
    return 0;
}

bool kernel_read_safe(uint64_t addr, uint64_t *value)
{
    uint64_t v = 0;
    uint32_t ok = 0;
    if (addr < PHYS_MAP_BASE)
        return false;
    __asm__ volatile("1: movq (%2), %0\n"
                     "movl $1, %1\n"
                     "2:\n"
                     ".pushsection .ex_table, \"a\"\n.quad 1b, 2b\n.popsection"
                     : "+r"(v), "+r"(ok) : "r"(addr));
    *value = v;
    return ok;
}

static void user_exception(struct trapframe *tf, unsigned vector, uint64_t addr, int result)
{
    if (!hooks)
        panic_trap(tf, vector, addr);
    hooks->user_exception(tf, vector, addr, result);
}

/* Interrupts are off and go on here if they were on where the fault happened. */
static void page_fault(struct trapframe *tf)
{
    uint64_t addr = read_cr2();
    unsigned bits = (unsigned)tf->error & (FAULT_PRESENT | FAULT_WRITE | FAULT_USER | FAULT_EXEC);
    if (trapframe_from_user(tf)) {
        irq_enable();
        int result = hooks && addr < USER_TOP ? hooks->page_fault(addr, bits) : -EFAULT;
        if (result)
            user_exception(tf, VECTOR_PAGE_FAULT, addr, result);
        irq_disable();
        return;
    }
    uint64_t fixup = fixup_find(tf->rip);
    if (!fixup)
        panic_trap(tf, VECTOR_PAGE_FAULT, addr);
    /* From usercopy. With interrupts off nothing may block, so nothing can be served. */
    if (addr < USER_TOP && (tf->rflags & RFLAGS_IF) && hooks) {
        irq_enable();
        int result = hooks->page_fault(addr, bits);
        irq_disable();
        if (!result)
            return;
    }
    tf->rip = fixup;
}

void trap_dispatch(struct trapframe *tf)
{
    unsigned vector = (uint8_t)tf->orig_rax;
    /* Not a system call: nothing to restart. */
    tf->orig_rax = UINT64_MAX;
    if (likely(vector >= VECTOR_FIRST)) {
        vector_dispatch(vector, tf);
        return;
    }
    if (vector == VECTOR_PAGE_FAULT) {
        page_fault(tf);
        return;
    }
    if (trapframe_from_user(tf)) {
        irq_enable();
        user_exception(tf, vector, 0, 0);
        irq_disable();
        return;
    }
    uint64_t fixup = fixup_find(tf->rip);
    if (!fixup)
        panic_trap(tf, vector, 0);
    tf->rip = fixup;
}

/* On an IST stack with interrupts off; must not fault or block. */
void trap_dispatch_paranoid(struct trapframe *tf)
{
    unsigned vector = (uint8_t)tf->orig_rax;
    if (vector == VECTOR_NMI) {
        if (panic_active())
            panic_nmi(tf);
        nmi_report(tf);
        return;
    }
    panic_trap(tf, vector, 0);
}

void trap_syscall(struct trapframe *tf)
{
    irq_enable();
    if (likely(hooks != NULL))
        hooks->syscall(tf);
    else
        tf->rax = (uint64_t)-ENOSYS;
}

/* IRETQ to ring 3 raised `fault`. All registers in it are the program's already (they had been popped);
 * what IRETQ could not load lies at its RSP. Make one frame of both, as if ring 3 had faulted. */
struct trapframe *trap_iret_fault(struct trapframe *fault)
{
    struct trapframe merged = *fault;
    const uint64_t *iret = (const uint64_t *)fault->rsp;
    merged.rip = iret[0];
    merged.cs = iret[1] | 3;
    merged.rflags = iret[2];
    merged.rsp = iret[3];
    merged.ss = iret[4];
    struct trapframe *top = (struct trapframe *)this_cpu()->kernel_rsp - 1;
    memmove(top, &merged, sizeof merged);
    return top;
}

/*
 * Last stop before ring 3. Work that arrives while this looks (a wake-up, a signal) comes with an
 * interrupt, and that stays pending from the last look until IRETQ or SYSRET turn interrupts on; so
 * nothing is seen late. Returns whether SYSRET can be used: it takes RIP from RCX and RFLAGS from R11, and with
 * a non-canonical RCX Intel CPUs raise #GP in ring 0 on the program's stack.
 */
bool trap_prepare_user(struct trapframe *tf)
{
    for (;;) {
        irq_disable();
        struct thread *t = current;
        if (atomic_load_relaxed(&this_cpu()->need_resched)) {
            irq_enable();
            schedule();
        } else if (unlikely(atomic_load_relaxed(&t->pending)) && hooks) {
            irq_enable();
            hooks->return_to_user(tf);
        } else {
            break;
        }
    }
    return tf->rcx == tf->rip && tf->r11 == tf->rflags && tf->rip < USER_TOP && tf->cs == USER_CS &&
           tf->ss == USER_SS && !(tf->rflags & (RFLAGS_TF | RFLAGS_RF));
}

void trap_report(const struct trapframe *tf, unsigned vector, uint64_t addr)
{
    char where[96];
    symbol_format(tf->rip, where, sizeof where);
    log_error("%s (vector %u, error %#lx) in ring %u at %s", trap_name(vector), vector,
              (unsigned long)tf->error, (unsigned)(tf->cs & 3), where);
    if (vector == VECTOR_PAGE_FAULT)
        log_error("address %#lx: %s %s", (unsigned long)addr,
                  tf->error & FAULT_PRESENT ? "no right to" : "nothing mapped,",
                  tf->error & FAULT_EXEC ? "execute" : tf->error & FAULT_WRITE ? "write" : "read");
    log_error("rip %016lx rsp %016lx rflags %08lx cs %lx ss %lx", tf->rip, tf->rsp, tf->rflags, tf->cs, tf->ss);
    log_error("rax %016lx rbx %016lx rcx %016lx rdx %016lx", tf->rax, tf->rbx, tf->rcx, tf->rdx);
    log_error("rsi %016lx rdi %016lx rbp %016lx r8  %016lx", tf->rsi, tf->rdi, tf->rbp, tf->r8);
    log_error("r9  %016lx r10 %016lx r11 %016lx r12 %016lx", tf->r9, tf->r10, tf->r11, tf->r12);
    log_error("r13 %016lx r14 %016lx r15 %016lx cr3 %016lx", tf->r13, tf->r14, tf->r15, read_cr3());
}
