/*
 * What the files about processes share with each other: process.c, fork.c, exec.c, exit.c, wait.c.
 */
#ifndef WEIR_LINUX_TASK_INTERNAL_H
#define WEIR_LINUX_TASK_INTERNAL_H
#include "process.h"
#include "syscall.h"
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/usercopy.h>

#define FIRST_PID 1 /* the first process: adopts orphans, its end is the machine's */

/* Linux limits by number; rlimit[] is indexed by them. */
enum { RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_STACK, RLIMIT_CORE, RLIMIT_RSS, RLIMIT_NPROC, RLIMIT_NOFILE,
       RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_LOCKS, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_RTPRIO,
       RLIMIT_RTTIME, RLIMIT_COUNT };
#define RLIM_INFINITY UINT64_MAX

/* ---- process.c ---- */
extern struct process *process_first; /* I after boot */
int pid_alloc(void) __must_check;     /* -EAGAIN: none free */
void pid_free(int pid);
/* A process that nobody sees yet, all lists empty, refcount 1 (the tree's). NULL = no memory. */
struct process *process_alloc(void) __must_check;
/* A task with one reference of p, not in its list yet, no thread. NULL = no memory. */
struct task *task_alloc(struct process *p, int tid) __must_check;
void task_free(struct task *t); /* not in any list any more */
/* Make them visible; process_tree_lock held. */
void process_link_locked(struct process *p, struct process *parent);
void task_link_locked(struct task *t);
void task_unlink_locked(struct task *t);
/* Free what p holds (files, memory, directories) as far as it is there. Thread context. */
void process_release_resources(struct process *p);
void process_set_name(struct process *p, const char *path);

/* ---- exec.c ---- */
struct program_start { /* where a loaded program begins */
    struct aspace *as;
    struct dentry *exe;
    uint64_t rip, rsp;
    uint64_t arg_start, arg_end;
};
/* Build an address space for path: nothing of the caller is changed. argv and envp are kernel strings. */
struct exec_strings { char *data; size_t len, capacity; unsigned argc, envc; }; /* argc + envc strings with NUL */
int exec_reserve_strings(struct exec_strings *s, size_t more) __must_check; /* -E2BIG, -ENOMEM */
int exec_add_string(struct exec_strings *s, const char *text) __must_check; /* kernel text */
int exec_load(struct dentry *cwd, const char *path, struct exec_strings *strings, const struct cred *cred,
              uint64_t stack_limit, struct program_start *out) __must_check;

/* ---- exit.c ---- */
/* The process no longer uses its parent's memory: let vfork return. */
void vfork_complete(struct process *p);
/* Bring all other tasks of the current process to their end and wait for that. -EAGAIN if another task is doing
 * the same, or the process is ending. */
int exit_other_tasks(void) __must_check;

/* ---- wait.c ---- */
void process_reap_locked(struct process *p); /* a zombie leaves the tree; process_put follows without the lock */

/* ---- sysv_shm.c ---- */
int sysv_shm_fork(struct process *child, struct process *parent) __must_check;
void sysv_shm_exit(struct process *p);

/* ---- vdso.c ---- */
/* Map it: address of its ELF header (AT_SYSINFO_EHDR), or 0. */
uint64_t vdso_map(struct aspace *as);

/* ---- init.c ---- */
__noreturn void init_ended(int wait_status);
#endif
