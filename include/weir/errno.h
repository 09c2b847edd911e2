/* Error numbers: Linux x86-64 values, returned negated everywhere in the kernel. */
#ifndef WEIR_ERRNO_H
#define WEIR_ERRNO_H
#if __STDC_HOSTED__
#include <errno.h>
#else
#define EPERM 1
#define ENOENT 2
#define ESRCH 3
#define EINTR 4
#define EIO 5
#define ENXIO 6
#define E2BIG 7
#define ENOEXEC 8
#define EBADF 9
#define ECHILD 10
#define EAGAIN 11
#define EWOULDBLOCK EAGAIN
#define ENOMEM 12
#define EACCES 13
#define EFAULT 14
#define ENOTBLK 15
#define EBUSY 16
#define EEXIST 17
#define EXDEV 18
#define ENODEV 19
#define ENOTDIR 20
#define EISDIR 21
#define EINVAL 22
#define ENFILE 23
#define EMFILE 24
#define ENOTTY 25
#define ETXTBSY 26
#define EFBIG 27
#define ENOSPC 28
#define ESPIPE 29
#define EROFS 30
#define EMLINK 31
#define EPIPE 32
#define EDOM 33
#define ERANGE 34
#define EDEADLK 35
#define ENAMETOOLONG 36
#define ENOLCK 37
#define ENOSYS 38
#define ENOTEMPTY 39
#define ELOOP 40
#define EIDRM 43
#define ENODATA 61
#define ETIME 62
#define EPROTO 71
#define EBADMSG 74
#define EOVERFLOW 75
#define EUCLEAN 117
#define ENOTSOCK 88
#define EDESTADDRREQ 89
#define EMSGSIZE 90
#define EPROTOTYPE 91
#define ENOPROTOOPT 92
#define EPROTONOSUPPORT 93
#define ESOCKTNOSUPPORT 94
#define EOPNOTSUPP 95
#define EAFNOSUPPORT 97
#define EADDRINUSE 98
#define EADDRNOTAVAIL 99
#define ENETDOWN 100
#define ENETUNREACH 101
#define ECONNABORTED 103
#define ECONNRESET 104
#define ENOBUFS 105
#define EISCONN 106
#define ENOTCONN 107
#define ETIMEDOUT 110
#define ECONNREFUSED 111
#define EHOSTUNREACH 113
#define EALREADY 114
#define EINPROGRESS 115
#define ESTALE 116
#define ECANCELED 125
#endif
/* Kernel-internal, never reaches an application: restart the call under SA_RESTART, else EINTR. */
#define ERESTARTSYS 512
/* Restart only if no handler ran (futex with timeout, nanosleep family); else EINTR. */
#define ERESTARTNOHAND 514
/* EINTR whether a handler ran or not, but the swapped signal mask must go back (epoll_pwait). */
#define ERESTART_NEVER 515
/* Restart through restart_syscall with task->restart_block if no handler ran; else EINTR. */
#define ERESTART_RESTARTBLOCK 516

/* Pointers that carry an error: the last 4095 addresses. */
static inline void *err_ptr(long error) { return (void *)error; }
static inline long ptr_err(const void *p) { return (long)p; }
static inline int is_err(const void *p) { return (unsigned long)p >= (unsigned long)-4095; }
#endif
