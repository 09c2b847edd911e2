/*
 * Signal frames of Linux x86-64, as the C library, unwinders and debuggers expect them:
 *
 *   rsp -> return address (restorer) | ucontext | siginfo | ... | FPU state, 64-byte aligned
 *
 * The FPU state is the XSAVE image in standard form with Linux's software words at byte 464 and a
 * second magic number behind the image.
 */
#include "signal_internal.h"
#include <weir/pagetable.h>
#include <weir/trap.h>

struct stack_user {
    uint64_t sp;
    int32_t flags;
    int32_t pad;
    uint64_t size;
};
struct sigcontext_user {
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip,
        rflags;
    uint16_t cs, gs, fs, ss;
    uint64_t err, trapno, oldmask, cr2, fpstate, reserved[8];
};
struct ucontext_user {
    uint64_t flags, link;
    struct stack_user stack;
    struct sigcontext_user mcontext;
    uint64_t sigmask;
};
struct frame_user {
    uint64_t restorer;
    struct ucontext_user uc;
    uint8_t info[128];
};
_Static_assert(sizeof(struct sigcontext_user) == 256, "Linux struct sigcontext");
_Static_assert(sizeof(struct ucontext_user) == 304, "Linux struct ucontext");
_Static_assert(sizeof(struct frame_user) == 440, "Linux struct rt_sigframe");

#define UC_FP_XSTATE         1u
#define UC_SIGCONTEXT_SS     2u
#define UC_STRICT_RESTORE_SS 4u

#define FXSAVE_SIZE        512UL
#define XSAVE_HEADER_END   576UL
#define SW_RESERVED_OFFSET 464UL
#define FP_XSTATE_MAGIC1   0x46505853u
#define FP_XSTATE_MAGIC2   0x46505845u
struct sw_bytes {
    uint32_t magic1, extended_size;
    uint64_t features;
    uint32_t state_size;
    uint32_t pad[7];
};

#define RED_ZONE        128UL
#define TRAP_PAGE_FAULT 14
#define SS_ONSTACK      1u
#define SS_DISABLE      2u
#define SS_AUTODISARM   0x80000000u
#define ALTSTACK_LEAST  2048UL

/* AC RF OF DF TF SF ZF AF PF CF: what a program may set for itself. */
#define RFLAGS_RESTORED 0x50dd5UL
#define RFLAGS_DF       0x400UL
#define RFLAGS_TF       0x100UL
#define RFLAGS_RF       0x10000UL

/* ---- alternate stack ---- */

static bool on_altstack(const struct task *t, uint64_t rsp)
{
    return !(t->altstack_flags & SS_AUTODISARM) && rsp > t->altstack_base &&
           rsp - t->altstack_base <= t->altstack_size;
}

static struct stack_user altstack_describe(const struct task *t, uint64_t rsp)
{
    struct stack_user s = {.sp = t->altstack_base, .size = t->altstack_size};

    if (!t->altstack_size)
        s.flags = SS_DISABLE;
    else if (on_altstack(t, rsp))
        s.flags = SS_ONSTACK;
    s.flags |= (int32_t)(t->altstack_flags & SS_AUTODISARM);
    return s;
}

long altstack_get(struct task *t, uint64_t rsp, uint64_t addr)
{
    struct stack_user s = altstack_describe(t, rsp);

    return copy_to_user(addr, &s, sizeof(s));
}

static long altstack_apply(struct task *t, uint64_t rsp, const struct stack_user *s)
{
    uint32_t mode = (uint32_t)s->flags & ~SS_AUTODISARM;

    if (on_altstack(t, rsp))
        return -EPERM;
    if (mode != SS_DISABLE && mode != SS_ONSTACK && mode != 0)
        return -EINVAL;
    if (mode == SS_DISABLE) {
        t->altstack_base = t->altstack_size = 0;
    } else {
        if (s->size < ALTSTACK_LEAST)
            return -ENOMEM;
        t->altstack_base = s->sp;
        t->altstack_size = s->size;
    }
    t->altstack_flags = (uint32_t)s->flags & SS_AUTODISARM;
    return 0;
}

long altstack_set(struct task *t, uint64_t rsp, uint64_t sp, int32_t flags, uint64_t size)
{
    struct stack_user s = {.sp = sp, .flags = flags, .size = size};

    return altstack_apply(t, rsp, &s);
}

/* ---- siginfo ---- */

static void put32(uint8_t *out, unsigned at, uint32_t v)
{
    memcpy(out + at, &v, 4);
}

static void put64(uint8_t *out, unsigned at, uint64_t v)
{
    memcpy(out + at, &v, 8);
}

void siginfo_to_user_layout(const struct siginfo_weir *in, uint8_t out[128])
{
    memset(out, 0, 128);
    put32(out, 0, (uint32_t)in->signo);
    put32(out, 4, (uint32_t)in->errno_value);
    put32(out, 8, (uint32_t)in->code);
    if (in->code > 0 && (SIGNALS_SYNCHRONOUS & SIGBIT(in->signo))) {
        put64(out, 16, in->addr);
        return;
    }
    put32(out, 16, (uint32_t)in->pid);
    put32(out, 20, in->uid);
    if (in->signo == SIGCHLD && in->code > 0)
        put32(out, 24, (uint32_t)in->status);
    else
        put64(out, 24, in->value);
}

/* ---- FPU state ---- */

static size_t fpstate_user_size(void)
{
    size_t size = fpu_state_size();

    return size > FXSAVE_SIZE ? size + sizeof(uint32_t) : size;
}

/* Aligned to 64: a power of two is aligned to its size. */
static void *fpstate_buffer(void)
{
    size_t size = 1024;

    while (size < fpstate_user_size())
        size *= 2;
    return kzalloc(size);
}

static int fpstate_save(uint64_t addr)
{
    size_t size = fpu_state_size();
    uint8_t *buf = fpstate_buffer();
    int result;

    if (!buf)
        return -ENOMEM;
    fpu_save_current(buf);
    memset(buf + SW_RESERVED_OFFSET, 0, FXSAVE_SIZE - SW_RESERVED_OFFSET);
    if (size > FXSAVE_SIZE) {
        struct sw_bytes sw = {.magic1 = FP_XSTATE_MAGIC1,
                              .extended_size = (uint32_t)size + 4,
                              .features = fpu_feature_mask(),
                              .state_size = (uint32_t)size};
        uint32_t magic2 = FP_XSTATE_MAGIC2;

        memcpy(buf + SW_RESERVED_OFFSET, &sw, sizeof(sw));
        memcpy(buf + size, &magic2, sizeof(magic2));
    }
    result = copy_to_user(addr, buf, fpstate_user_size());
    kfree(buf);
    return result;
}

/* Size of the image that the program's frame claims and proves by both magic numbers; else the
 * legacy part. */
static size_t fpstate_claimed_size(const uint8_t *legacy, uint64_t addr)
{
    struct sw_bytes sw;
    uint32_t magic2;

    memcpy(&sw, legacy + SW_RESERVED_OFFSET, sizeof(sw));
    if (sw.magic1 != FP_XSTATE_MAGIC1 || sw.state_size < XSAVE_HEADER_END ||
        sw.state_size > fpu_state_size() || sw.extended_size != sw.state_size + 4)
        return FXSAVE_SIZE;
    if (get_user_u32(&magic2, addr + sw.state_size) || magic2 != FP_XSTATE_MAGIC2)
        return FXSAVE_SIZE;
    return sw.state_size;
}

static int fpstate_restore(uint64_t addr)
{
    uint8_t *buf;
    size_t size;
    int result = -EFAULT;

    if (!addr) {
        fpu_reset_current();
        return 0;
    }
    buf = fpstate_buffer();
    if (!buf)
        return -ENOMEM;
    if (copy_from_user(buf, addr, FXSAVE_SIZE))
        goto out;
    size = fpstate_claimed_size(buf, addr);
    if (size > FXSAVE_SIZE) {
        uint64_t features;

        if (copy_from_user(buf + FXSAVE_SIZE, addr + FXSAVE_SIZE, size - FXSAVE_SIZE))
            goto out;
        memcpy(&features, buf + FXSAVE_SIZE, sizeof(features));
        features &= fpu_feature_mask();
        memcpy(buf + FXSAVE_SIZE, &features, sizeof(features));
    } else if (fpu_state_size() > FXSAVE_SIZE) {
        uint64_t legacy_only = 3;

        memcpy(buf + FXSAVE_SIZE, &legacy_only, sizeof(legacy_only));
    }
    result = fpu_restore_current(buf);
out:
    kfree(buf);
    return result;
}

/* ---- frames ---- */

static void context_save(struct sigcontext_user *c, const struct trapframe *tf)
{
    *c = (struct sigcontext_user){
        .r8 = tf->r8,
        .r9 = tf->r9,
        .r10 = tf->r10,
        .r11 = tf->r11,
        .r12 = tf->r12,
        .r13 = tf->r13,
        .r14 = tf->r14,
        .r15 = tf->r15,
        .rdi = tf->rdi,
        .rsi = tf->rsi,
        .rbp = tf->rbp,
        .rbx = tf->rbx,
        .rdx = tf->rdx,
        .rax = tf->rax,
        .rcx = tf->rcx,
        .rsp = tf->rsp,
        .rip = tf->rip,
        .rflags = tf->rflags,
        .cs = (uint16_t)tf->cs,
        .ss = (uint16_t)tf->ss,
        .err = tf->error,
    };
}

static void context_load(struct trapframe *tf, const struct sigcontext_user *c)
{
    tf->r8 = c->r8;
    tf->r9 = c->r9;
    tf->r10 = c->r10;
    tf->r11 = c->r11;
    tf->r12 = c->r12;
    tf->r13 = c->r13;
    tf->r14 = c->r14;
    tf->r15 = c->r15;
    tf->rdi = c->rdi;
    tf->rsi = c->rsi;
    tf->rbp = c->rbp;
    tf->rbx = c->rbx;
    tf->rdx = c->rdx;
    tf->rax = c->rax;
    tf->rcx = c->rcx;
    tf->rsp = c->rsp;
    tf->rip = c->rip;
    /* Selectors stay the program's only ones; interrupt flag and privilege level are not its own.
     */
    tf->rflags = (tf->rflags & ~RFLAGS_RESTORED) | (c->rflags & RFLAGS_RESTORED);
}

int signal_frame_push(struct trapframe *tf, int signo, const struct siginfo_weir *info,
                      const struct sigaction_weir *action, sigset_weir mask_to_restore)
{
    struct task *t = current_task();
    struct frame_user frame;
    uint64_t sp = tf->rsp, fp;

    if (!(action->flags & SA_RESTORER) || action->handler >= USER_TOP)
        return -EFAULT;
    if ((action->flags & SA_ONSTACK) && t->altstack_size && !on_altstack(t, sp))
        sp = t->altstack_base + t->altstack_size;
    else
        sp -= RED_ZONE;
    fp = ALIGN_DOWN(sp - fpstate_user_size(), 64UL);
    sp = ALIGN_DOWN(fp - sizeof(frame), 16UL) - 8; /* as if called: rsp + 8 is 16-byte aligned */
    if (sp >= USER_TOP)
        return -EFAULT;
    if (fpstate_save(fp))
        return -EFAULT;
    frame.restorer = action->restorer;
    frame.uc.flags = UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS |
                     (fpu_state_size() > FXSAVE_SIZE ? UC_FP_XSTATE : 0);
    frame.uc.link = 0;
    frame.uc.stack = altstack_describe(t, tf->rsp);
    context_save(&frame.uc.mcontext, tf);
    frame.uc.mcontext.oldmask = mask_to_restore;
    if (info->code > 0 && (SIGBIT(signo) & (SIGBIT(SIGSEGV) | SIGBIT(SIGBUS)))) {
        frame.uc.mcontext.cr2 = info->addr;
        frame.uc.mcontext.trapno = TRAP_PAGE_FAULT;
    }
    frame.uc.mcontext.fpstate = fp;
    frame.uc.sigmask = mask_to_restore;
    siginfo_to_user_layout(info, frame.info);
    if (copy_to_user(sp, &frame, sizeof(frame)))
        return -EFAULT;
    if (t->altstack_flags & SS_AUTODISARM)
        t->altstack_base = t->altstack_size = t->altstack_flags = 0;
    tf->rdi = (uint64_t)signo;
    tf->rsi = sp + offsetof(struct frame_user, info);
    tf->rdx = sp + offsetof(struct frame_user, uc);
    tf->rax = 0;
    tf->rsp = sp;
    tf->rip = action->handler;
    tf->rflags &= ~(RFLAGS_DF | RFLAGS_TF | RFLAGS_RF);
    return 0;
}

long sys_rt_sigreturn(const uint64_t a[6])
{
    struct task *t = current_task();
    struct trapframe *tf = t->regs;
    struct ucontext_user uc;
    /* The handler's return has popped the restorer's address. */
    uint64_t addr = tf->rsp - sizeof(uint64_t) + offsetof(struct frame_user, uc);

    if (copy_from_user(&uc, addr, sizeof(uc)) || fpstate_restore(uc.mcontext.fpstate)) {
        struct siginfo_weir info = {.signo = SIGSEGV, .code = SI_KERNEL};

        signal_force(SIGSEGV, &info);
        return 0;
    }
    context_load(tf, &uc.mcontext);
    sigmask_set(uc.sigmask);
    (void)altstack_apply(t, tf->rsp, &uc.stack);
    tf->orig_rax = UINT64_MAX; /* no system call is being left: nothing to restart */
    return (long)tf->rax;
}
