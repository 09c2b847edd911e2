/* Context switch and the first stack of a thread. */
#include <weir/pagetable.h>
#include <weir/sched.h>
#include "arch/x86_64/arch.h"

#define MSR_FS_BASE 0xc0000100

/* What switch_stacks pops. */
struct switch_frame {
    uint64_t r15, r14, r13, r12, rbx, rbp, rip;
};

void arch_thread_init(struct thread *t, void (*entry)(void))
{
    /* The zero above the frame ends backtraces and keeps the stack aligned for a CALL. */
    struct switch_frame *f = (struct switch_frame *)(t->kstack_top - 16) - 1;
    *f = (struct switch_frame){ .rbx = (uint64_t)entry, .rip = (uint64_t)thread_first_kernel };
    t->rsp = (uint64_t)f;
}

void arch_thread_init_user(struct thread *t, const struct trapframe *regs)
{
    struct trapframe *tf = (struct trapframe *)t->kstack_top - 1;
    *tf = *regs;
    struct switch_frame *f = (struct switch_frame *)tf - 1;
    *f = (struct switch_frame){ .rip = (uint64_t)thread_first_user };
    t->rsp = (uint64_t)f;
}

static void fs_base_load(uint64_t base)
{
    struct arch_cpu *a = arch_of(this_cpu());
    if (a->fs_base != base) {
        a->fs_base = base;
        wrmsr(MSR_FS_BASE, base);
    }
}

static inline struct thread *switch_to(struct cpu *c, struct thread *prev, struct thread *next)
{
    c->running = next;
    c->kernel_rsp = next->kstack_top;
    arch_of(c)->tss.rsp[0] = next->kstack_top;
    return switch_stacks(&prev->rsp, next->rsp, prev);
}

/* One of the two has a program. Apart, so that a switch between kernel threads saves no registers for it. */
static __attribute__((noinline)) struct thread *switch_program(struct cpu *c, struct thread *prev, struct thread *next)
{
    if (prev->fpu)
        fpu_save(prev->fpu);
    if (c->pagetable != next->pagetable)
        pagetable_switch(next->pagetable);
    if (next->fpu) {
        fpu_restore(next->fpu);
        fs_base_load(next->fs_base);
    }
    return switch_to(c, prev, next);
}

struct thread *arch_switch(struct thread *prev, struct thread *next)
{
    struct cpu *c = this_cpu();
    if (prev->fpu || next->fpu || c->pagetable != next->pagetable)
        return switch_program(c, prev, next);
    return switch_to(c, prev, next);
}

/* Programs cannot write FS base themselves (CR4.FSGSBASE is off), so the thread's copy is always right. */
void arch_set_fs_base(uint64_t base)
{
    current->fs_base = base;
    fs_base_load(base);
}

uint64_t arch_get_fs_base(void)
{
    return current->fs_base;
}
