/*
 * Processes and tasks of the Linux layer.
 *
 * A process is what fork makes (thread group); a task is one of its threads. A process is made by fork
 * or at boot, becomes a zombie when its last task ends (after all its descriptors are closed), and goes
 * when its parent has waited for it (or at once where SIGCHLD is ignored).
 *
 * Locks, in this order: process_tree_lock (spin, irqsave: parent/child/group/session lists, exit state,
 * pid table) > process->siglock (spin, irqsave: everything about signals) > wait queue locks.
 * process->files has its own spinlock. Sleeping locks are taken before any of these.
 */
#ifndef WEIR_LINUX_PROCESS_H
#define WEIR_LINUX_PROCESS_H
#include <weir/sched.h>
#include <weir/vfs.h>
#include <weir/aspace.h>

#define NSIG 64
#define SIGHUP 1
#define SIGINT 2
#define SIGQUIT 3
#define SIGILL 4
#define SIGTRAP 5
#define SIGABRT 6
#define SIGBUS 7
#define SIGFPE 8
#define SIGKILL 9
#define SIGUSR1 10
#define SIGSEGV 11
#define SIGUSR2 12
#define SIGPIPE 13
#define SIGALRM 14
#define SIGTERM 15
#define SIGSTKFLT 16
#define SIGCHLD 17
#define SIGCONT 18
#define SIGSTOP 19
#define SIGTSTP 20
#define SIGTTIN 21
#define SIGTTOU 22
#define SIGURG 23
#define SIGXCPU 24
#define SIGXFSZ 25
#define SIGVTALRM 26
#define SIGPROF 27
#define SIGWINCH 28
#define SIGIO 29
#define SIGPWR 30
#define SIGSYS 31
typedef uint64_t sigset_weir; /* bit n-1 = signal n */
#define SIGBIT(n) (1ULL << ((n) - 1))

/* siginfo as the kernel keeps it; converted to Linux's 128-byte layouts on delivery. */
struct siginfo_weir { int signo, code, errno_value, pid; uint32_t uid; int status; uint64_t addr; uint64_t value; };
struct sigaction_weir { uint64_t handler, flags, restorer; sigset_weir mask; }; /* Linux kernel layout */
#define SIG_DFL_WEIR 0
#define SIG_IGN_WEIR 1
/* Standard signals: one pending each, info of the first. Real-time signals (32..64) queue in order. */
#define SIG_RT_FIRST 32
struct sigpending_weir { sigset_weir set; struct siginfo_weir info[SIG_RT_FIRST]; struct list rt_queue; };

struct files;     /* descriptor table, files.c */

/* Key: I immutable, t process_tree_lock, s siglock, a atomic, o own tasks only */
struct process {
    int pid;                          /* I */
    int pgid, sid;                    /* t */
    struct process *parent;           /* t */
    struct list children, sibling;    /* t */
    struct list tasks;                /* written with t and s held (t first), read with either */
    unsigned task_count;              /* t */
    struct list pid_link;             /* t pid hash */
    struct list all_link;             /* t every process */
    uint32_t refcount;                /* a */
    struct wait_queue child_wait;     /* own lock: wait4 sleeps here */
    enum { PROCESS_RUNNING, PROCESS_ZOMBIE, PROCESS_REAPED } state; /* t */
    int exit_status;                  /* t Linux wait status */
    bool exiting;                     /* t exit_group under way */
    struct process *vfork_parent;     /* t */
    struct completion *vfork_done;    /* t */
    struct aspace *aspace;            /* written by own tasks with t held; own tasks read it without */
    struct files *files;              /* the same; one reference of the process and one of each task but the first */
    struct dentry *cwd, *exe;         /* o */
    mode_t umask;                     /* a */
    struct cred cred;                 /* I */
    char name[16];
    uint64_t arg_start, arg_end;      /* o argument strings in program memory, for /proc/PID/cmdline */
    uint64_t start_ns;                /* I */
    int exit_signal;                  /* I sent to the parent; 0 = none */
    bool execed;                      /* o an exec since fork (setpgid) */
    bool dumpable;                    /* o */
    struct completion *exec_wait;     /* t exec waits here for the other tasks to end */
    struct { uint64_t soft, hard; } rlimit[16]; /* o */
    /* signals: core/linux/signal.c */
    spinlock_t siglock;
    struct sigaction_weir actions[NSIG]; /* s */
    struct sigpending_weir shared;    /* s */
    struct wait_queue signalfd_wait;  /* own lock; woken at send time with POLLIN */
    struct timer itimer_real;         /* s */
    uint64_t itimer_interval_ns, itimer_deadline_ns; /* s */
    int pdeath_signal;                /* s */
    struct list posix_timers;         /* s timer_create */
    /* Job control: all tasks of a stopped process wait in signal_return_to_user. */
    struct wait_queue stop_wait;      /* own lock */
    bool stopped;                     /* s */
    int stop_report;                  /* s for wait4: 0, or the Linux wait status not yet reported (stopped, continued) */
    /* System V shared memory attachments: core/linux/sysv_shm.c */
    struct list shm_attachments;      /* o */
    uint64_t utime_ns, stime_ns, child_time_ns; /* t of ended tasks / children */
};

struct task {
    int tid;                          /* I */
    struct process *process;          /* I */
    struct thread *thread;            /* I */
    struct list process_link;         /* t */
    struct list tid_link;             /* t tid hash */
    sigset_weir blocked;              /* s (written by the task itself) */
    sigset_weir saved_mask; bool restore_mask; /* o pselect, ppoll, sigsuspend */
    struct sigpending_weir pending;   /* s */
    uint64_t altstack_base, altstack_size; uint32_t altstack_flags; /* o */
    uint64_t clear_child_tid, set_child_tid, robust_list;  /* o */
    struct trapframe *regs;           /* o frame of the present system call */
    int64_t restart_block[4];         /* o */
    sigset_weir wait_set;             /* s rt_sigtimedwait: blocked signals that wake it all the same */
    bool restart;                     /* o set by the dispatcher: regs->rax holds a restart code of this call */
    bool fault_disabled;              /* o the page-fault hook must fail with -EFAULT at once (spinlock held) */
};

static inline struct task *current_task(void) { return current->task; }
static inline struct process *current_process(void) { return current_task()->process; }

/* ---- lifecycle: process.c, fork.c, exec.c, exit.c, wait.c ---- */
extern spinlock_t process_tree_lock;
struct process *process_find(int pid);            /* referenced; NULL. Any context */
struct process *process_find_locked(int pid);     /* process_tree_lock held; not referenced */
void process_get(struct process *p);
void process_put(struct process *p);
int process_next_pid(int after);                  /* smallest pid > after, 0 = none */
/* Call fn for each process in the group with process_tree_lock held; returns how many. */
unsigned process_group_for_each(int pgid, void (*fn)(struct process *, void *), void *arg);
struct task *task_find_locked(int tid);           /* process_tree_lock held; any process's */
/* Referenced address space and descriptor table of any process, NULL once it has ended. Any context. */
struct aspace *process_aspace_get(struct process *p);
struct files *process_files_get(struct process *p);
uint64_t process_cpu_time_ns(struct process *p);  /* of all its tasks, the ended ones too */
unsigned process_for_each(void (*fn)(struct process *, void *), void *arg);
/* End the current task / the whole process with a Linux wait status. */
__noreturn void task_exit(int status);
__noreturn void process_exit_group(int status);   /* status: wait status (code << 8, or signal) */
/* First process: path, argv, envp from the image or command line. Never returns an error silently. */
int process_start_init(char *const *argv, char *const *envp, const struct cred *cred, const char *cwd) __must_check;

/* ---- descriptors: files.c ---- */
struct files *files_create(void) __must_check;
struct files *files_copy(struct files *from) __must_check; /* fork */
void files_get(struct files *fs);
void files_put(struct files *fs);                 /* closes all on the last */
void files_close_on_exec(struct files *fs);
struct file *fd_get(int fd);                      /* current; referenced; NULL = EBADF */
struct file *files_get_file(struct files *fs, int fd);
int files_next_fd(struct files *fs, int after);   /* -1 = none */
int fd_install(struct file *f, int minimum, bool cloexec) __must_check; /* lowest free >= minimum; takes the reference, on failure too; -EMFILE */
void fd_pin_cwd(struct process *p, struct dentry **out); /* referenced cwd; guards against chdir in another task */
int fd_close(int fd);                             /* current process's; 0 or -EBADF */

/* ---- signals: signal.c, signal_frame.c ---- */
void signal_process_init(struct process *p);      /* fresh: all default; every member marked s, and its own locks */
void signal_task_init(struct task *t);            /* fresh task: nothing blocked, nothing pending */
void signal_task_end(struct task *t);             /* last thing before a task leaves its process: what only it could take goes on */
void signal_fork(struct process *child, struct task *child_task, struct process *parent); /* fresh child: signal_process_init and signal_task_init, then handlers, mask, altstack of the caller */
void signal_exec(struct process *p);              /* handlers to default, ignored stay */
void signal_process_end(struct process *p);       /* itimer off; before it becomes a zombie */
/* Send. Any context (interrupt too). 0 or -errno. Takes siglock; the caller may hold process_tree_lock. p (t's
 * process) must be referenced or held by that lock. A process without tasks takes signals and forgets them. */
int signal_send_process(struct process *p, int signo, const struct siginfo_weir *info);
int signal_send_task(struct task *t, int signo, const struct siginfo_weir *info);
/* Force on the current task for a fault: unblocks and resets to default if blocked or ignored. */
void signal_force(int signo, const struct siginfo_weir *info);
/* Deliver or act; called on the way to ring 3 (trap hook), and by the dispatcher with task->restart set. */
void signal_return_to_user(struct trapframe *tf);
/* Recompute thread->pending for a task (siglock held). */
void signal_recalc_locked(struct task *t);

/* ---- futex.c ---- */
void futex_task_exit(struct task *t);             /* clear_child_tid wake, robust list */
#endif
