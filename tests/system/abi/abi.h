/*
 * The ABI programme: cases that print the same on Linux and on Weir.
 *
 * A case is CASE(name) in any .c file of this folder. It runs in a process of its own, tells facts with say(), and
 * says nothing that may differ between two machines (pids, addresses, times, sizes of things that are not asked for).
 * Whoever wants to know whether something works prints what happened, not "ok": the comparison with Linux judges.
 */
#ifndef ABI_H
#define ABI_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct abi_case {
    const char *name;
    void (*run)(void);
};

#define CASE(case_name)                                                                                        \
    static void abi_run_##case_name(void);                                                                     \
    static const struct abi_case abi_case_##case_name = {#case_name, abi_run_##case_name};                     \
    static const struct abi_case *const abi_entry_##case_name                                                  \
        __attribute__((section("abi_cases"), used)) = &abi_case_##case_name;                                   \
    static void abi_run_##case_name(void)

/* One line, written whole: "abi: CASE: ...". */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "EINTR" for EINTR, "0" for 0. */
const char *error_name(int error);
/* error_name(errno) when result is -1, else "0". */
const char *outcome(long result);
const char *signal_text(int signal);
/* "exit 3" or "SIGKILL". */
const char *status_text(int status);

/* Ends the case when a step that must work does not; says which. */
#define must(expression)                                                                                       \
    ({                                                                                                         \
        long must_result = (long)(expression);                                                                 \
        if (must_result == -1) {                                                                               \
            say("line %d: %s: %s", __LINE__, #expression, error_name(errno));                                  \
            _exit(99);                                                                                         \
        }                                                                                                      \
        must_result;                                                                                           \
    })

void sleep_ms(int ms);
double now_s(void);
/* wait status of pid. */
int wait_for(pid_t pid);
/* sigaction with flags and an otherwise empty mask. */
void handle(int signal, void (*handler)(int), int flags);
void block(int signal);
void unblock(int signal);
/* Forks a process that sends `signal` to the caller after ms; reap it with wait_for. */
pid_t signal_me_after(int ms, int signal);

#endif
