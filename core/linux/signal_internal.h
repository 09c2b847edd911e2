/* Shared by signal.c, signal_frame.c, signal_calls.c and the timers. */
#ifndef WEIR_LINUX_SIGNAL_INTERNAL_H
#define WEIR_LINUX_SIGNAL_INTERNAL_H
#include "linuxio.h"

#define SA_NOCLDSTOP 0x00000001UL
#define SA_NOCLDWAIT 0x00000002UL
#define SA_SIGINFO   0x00000004UL
#define SA_RESTORER  0x04000000UL
#define SA_ONSTACK   0x08000000UL
#define SA_RESTART   0x10000000UL
#define SA_NODEFER   0x40000000UL
#define SA_RESETHAND 0x80000000UL

#define SI_USER       0
#define SI_KERNEL     0x80
#define SI_QUEUE      (-1)
#define SI_TIMER      (-2)
#define SI_TKILL      (-6)
#define CLD_STOPPED   5
#define CLD_CONTINUED 6

#define SIGNALS_UNBLOCKABLE (SIGBIT(SIGKILL) | SIGBIT(SIGSTOP))
#define SIGNALS_STOP        (SIGBIT(SIGSTOP) | SIGBIT(SIGTSTP) | SIGBIT(SIGTTIN) | SIGBIT(SIGTTOU))
#define SIGNALS_IGNORED     (SIGBIT(SIGCHLD) | SIGBIT(SIGCONT) | SIGBIT(SIGURG) | SIGBIT(SIGWINCH))
/* Raised by the instruction itself: delivered before anything else, so that the frame shows the
 * fault. */
#define SIGNALS_SYNCHRONOUS                                                                        \
    (SIGBIT(SIGSEGV) | SIGBIT(SIGBUS) | SIGBIT(SIGILL) | SIGBIT(SIGTRAP) | SIGBIT(SIGFPE) |        \
     SIGBIT(SIGSYS))

/* All with siglock held. */
int signal_send_locked(struct process *p, struct task *t, int signo,
                       const struct siginfo_weir *info);
int signal_take_locked(struct task *t, sigset_weir set, struct siginfo_weir *info); /* 0 = none */
void signal_discard_locked(struct process *p, sigset_weir set);
struct task *signal_find_task_locked(struct process *p, int tid);
void sigmask_set_locked(struct task *t, sigset_weir mask);

/* signal_frame.c: build a handler's frame. 0, or -EFAULT when the stack cannot take it. */
int signal_frame_push(struct trapframe *tf, int signo, const struct siginfo_weir *info,
                      const struct sigaction_weir *action,
                      sigset_weir mask_to_restore) __must_check;
long altstack_get(struct task *t, uint64_t rsp, uint64_t addr);
long altstack_set(struct task *t, uint64_t rsp, uint64_t sp, int32_t flags, uint64_t size);

/* itimer.c */
void itimer_init(struct process *p);
void itimer_end(struct process *p); /* thread context: no callback runs any more */
void posix_timers_delete(struct process *p);
#endif
