/*
 * System calls: the numbers, and the handlers' prototypes made from syscalls.def.
 *
 * A handler runs in thread context of the calling task with interrupts on, and may block. a[0..5] are
 * the six argument registers. It returns >= 0 or -errno; -ERESTARTSYS and -ERESTARTNOHAND are turned
 * into a restart or EINTR by signal_return_to_user, which the dispatcher calls for them at once.
 * The full register frame, where one is needed, is current_task()->regs.
 */
#ifndef WEIR_LINUX_SYSCALL_H
#define WEIR_LINUX_SYSCALL_H
#include <weir/compiler.h>

/* syscall.c alone sees the handlers as weak, so that a missing one is a null pointer there. */
#ifndef SYSCALL_LINKAGE
#define SYSCALL_LINKAGE
#endif
#define SYSCALL(number, name) \
    long sys_##name(const uint64_t a[6]) SYSCALL_LINKAGE; \
    enum { SYSCALL_##name = (number) };
#include "syscalls.def"
#undef SYSCALL

#define SYSCALL_MAX 512 /* numbers at or above fail with ENOSYS */

/* Name of a call for messages, NULL for a hole in the table. Any context. */
const char *syscall_name(unsigned number);
#endif
