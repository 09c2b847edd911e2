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

struct thread *arch_switch(struct thread *prev, struct thread *next)
{
    struct cpu *c = this_cpu();
    if (prev->fpu)
        fpu_save(prev->fpu);
    c->running = next;
    c->kernel_rsp = next->kstack_top;
    arch_of(c)->tss.rsp[0] = next->kstack_top;
    pagetable_load(next->pagetable);
    if (next->fpu) {
        fpu_restore(next->fpu);
        fs_base_load(next->fs_base);
    }
    return switch_stacks(&prev->rsp, next->rsp, prev);
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
