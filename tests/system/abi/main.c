/* abi [--list | CASE...]: all cases, each in a child of its own; a single named case runs without fork. */
#include "abi.h"

#include <stdarg.h>

extern const struct abi_case *const __start_abi_cases[], *const __stop_abi_cases[];

static const char *current_case = "-";

void say(const char *format, ...)
{
    char line[512];
    int used = snprintf(line, sizeof line, "abi: %s: ", current_case);
    va_list args;
    va_start(args, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    if (used > (int)sizeof line - 2)
        used = (int)sizeof line - 2;
    line[used++] = '\n';
    if (write(1, line, (size_t)used) != used)
        _exit(98);
}

const char *error_name(int error)
{
    const char *name = error ? strerrorname_np(error) : "0";
    return name ? name : "an error without a name";
}

const char *outcome(long result)
{
    return result == -1 ? error_name(errno) : "0";
}

const char *signal_text(int signal)
{
    const char *name = sigabbrev_np(signal);
    return name ? name : signal ? "?" : "none";
}

const char *status_text(int status)
{
    static char text[32];
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "SIG%s", signal_text(WTERMSIG(status)));
    else
        snprintf(text, sizeof text, "exit %d", WEXITSTATUS(status));
    return text;
}

/* Times are stretched by ABI_SLOW where the machine is slow: a sleep stands for "by then the other one waits". */
void sleep_ms(int ms)
{
    const char *slow = getenv("ABI_SLOW");
    ms *= slow ? atoi(slow) : 1;
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) == -1 && errno == EINTR)
        ;
}

double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int wait_for(pid_t pid)
{
    int status = 0;
    pid_t got;
    do
        got = waitpid(pid, &status, 0);
    while (got == -1 && errno == EINTR);
    if (got != pid)
        say("waitpid: %s", error_name(errno));
    return status;
}

void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    must(sigaction(signal, &action, NULL));
}

static void change_mask(int how, int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    must(sigprocmask(how, &set, NULL));
}

void block(int signal)
{
    change_mask(SIG_BLOCK, signal);
}

void unblock(int signal)
{
    change_mask(SIG_UNBLOCK, signal);
}

pid_t signal_me_after(int ms, int signal)
{
    pid_t me = getpid(), pid = (pid_t)must(fork());
    if (!pid) {
        sleep_ms(ms);
        _exit(kill(me, signal) ? 1 : 0);
    }
    return pid;
}

static bool run_in_child(const struct abi_case *c)
{
    current_case = c->name;
    pid_t pid = fork();
    if (pid == -1) {
        say("fork: %s", error_name(errno));
        return false;
    }
    if (!pid) {
        alarm(120);
        c->run();
        _exit(0);
    }
    int status = wait_for(pid);
    if (status)
        say("ended with %s", status_text(status));
    return !status;
}

int main(int argc, char **argv)
{
    int failed = 0, ran = 0;
    bool list = argc > 1 && !strcmp(argv[1], "--list");
    for (const struct abi_case *const *c = __start_abi_cases; c < __stop_abi_cases; c++) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted |= !strcmp(argv[i], (*c)->name);
        if (list)
            puts((*c)->name);
        if (list || !wanted)
            continue;
        ran++;
        if (argc == 2) {
            current_case = (*c)->name;
            (*c)->run();
        } else if (!run_in_child(*c)) {
            failed++;
        }
    }
    current_case = "end";
    if (!list)
        say("%d cases", ran);
    return failed ? 1 : 0;
}
