/*
 * supervisor PORT PROGRAM ARGS...: first process of an image that must be hurt from outside.
 *
 * Runs PROGRAM as its child, passes SIGINT, SIGTERM and SIGQUIT on to it and ends with its status. Each line
 * "PID SIGNAL" that comes on TCP PORT sends that signal; the answer is "0" or the error number.
 */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t to_pass_on;

static void on_signal(int signal)
{
    if (signal != SIGCHLD)
        to_pass_on = signal;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void serve(int listener)
{
    char line[64];
    int pid, signal;
    int fd = accept(listener, NULL, NULL);
    if (fd == -1)
        return;
    FILE *stream = fdopen(fd, "r+");
    while (fgets(line, sizeof line, stream)) {
        int result = sscanf(line, "%d %d", &pid, &signal) != 2 ? EINVAL : kill(pid, signal) ? errno : 0;
        fseek(stream, 0, SEEK_CUR);
        fprintf(stream, "%d\n", result);
        fflush(stream);
    }
    fclose(stream);
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGQUIT, SIGCHLD};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), status;
    sigset_t blocked, open;

    if (argc < 3)
        return 2;
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    if (listener == -1 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 5))
        fail("supervisor: listen");

    /* Signals arrive only inside pselect, so none is missed between a check and the wait. */
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_handler = on_signal};
        sigaction(signals[i], &action, NULL);
        sigaddset(&blocked, signals[i]);
    }
    sigprocmask(SIG_BLOCK, &blocked, &open);

    pid_t child = fork();
    if (child == -1)
        fail("supervisor: fork");
    if (!child) {
        sigprocmask(SIG_SETMASK, &open, NULL);
        execv(argv[2], argv + 2);
        fail("supervisor: exec");
    }
    for (;;) {
        fd_set ready;
        FD_ZERO(&ready);
        FD_SET(listener, &ready);
        int got = pselect(listener + 1, &ready, NULL, NULL, NULL, &open);
        if (to_pass_on) {
            kill(child, to_pass_on);
            to_pass_on = 0;
        }
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (got > 0)
            serve(listener);
    }
}
