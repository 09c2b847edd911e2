/*
 * /init of the Linux guest that Weir is measured against: it does for Linux what the Weir kernel does by itself.
 *
 * Loads the modules below /modules in order, mounts the root image of scripts/image, sets the address given by ip=,
 * runs what /etc/weir/init says, passes the power button on to it, writes everything back when it ends and leaves
 * QEMU with its status. linux.huge=N on the command line reserves N huge pages.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/input.h>
#include <net/if.h>
#include <net/route.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_WORDS = 64 };

static char *arguments[MAX_WORDS + 1], *environment[MAX_WORDS + 1];
static int argument_count, environment_count, shutdown_signal = SIGINT;
static unsigned uid, gid;
static char working_directory[256] = "/";

static void leave(int status)
{
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    if (!iopl(3))
        outl((unsigned)status, 0xf4);
    for (;;)
        pause();
}

static void check(int result, const char *what)
{
    if (result < 0) {
        perror(what);
        leave(127);
    }
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_modules(void)
{
    struct dirent **names;
    int n = scandir("/modules", &names, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char path[300];
        snprintf(path, sizeof path, "/modules/%s", names[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (names[i]->d_name[0] != '.' && syscall(SYS_finit_module, fd, "", 0))
            perror(path);
        close(fd);
    }
}

static const char *command_line_word(const char *name)
{
    static char line[4096], word[256];
    FILE *f = fopen("/proc/cmdline", "r");
    if (!f || !fgets(line, sizeof line, f))
        return NULL;
    fclose(f);
    for (char *w = strtok(line, " \n"); w; w = strtok(NULL, " \n"))
        if (!strncmp(w, name, strlen(name)))
            return strcpy(word, w + strlen(name));
    return NULL;
}

static void set_address(void)
{
    const char *wish = command_line_word("ip=");
    char address[64];
    int bits = 24, fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = {.ifr_name = "lo"};
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    ioctl(fd, SIOCSIFFLAGS, &request);
    if (!wish || sscanf(wish, "%63[0-9.]/%d", address, &bits) < 1) {
        close(fd);
        return;
    }
    strcpy(request.ifr_name, "eth0");
    struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
    *in = (struct sockaddr_in){.sin_family = AF_INET};
    inet_pton(AF_INET, address, &in->sin_addr);
    check(ioctl(fd, SIOCSIFADDR, &request), "SIOCSIFADDR");
    in->sin_addr.s_addr = htonl(~0u << (32 - bits));
    check(ioctl(fd, SIOCSIFNETMASK, &request), "SIOCSIFNETMASK");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    check(ioctl(fd, SIOCSIFFLAGS, &request), "SIOCSIFFLAGS");
    close(fd);
}

static void read_init_file(void)
{
    char line[4096];
    FILE *f = fopen("/etc/weir/init", "r");
    check(f ? 0 : -1, "/etc/weir/init");
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = 0;
        if (!strcmp(line, "uid"))
            uid = (unsigned)atoi(value);
        else if (!strcmp(line, "gid"))
            gid = (unsigned)atoi(value);
        else if (!strcmp(line, "cwd"))
            snprintf(working_directory, sizeof working_directory, "%s", value);
        else if (!strcmp(line, "env") && environment_count < MAX_WORDS)
            environment[environment_count++] = strdup(value);
        else if (!strcmp(line, "arg") && argument_count < MAX_WORDS)
            arguments[argument_count++] = strdup(value);
        else if (!strcmp(line, "shutdown_signal"))
            for (int s = 1; s < 32; s++)
                if (!strcmp(sigabbrev_np(s), value))
                    shutdown_signal = s;
    }
    fclose(f);
}

static void run_application(pid_t *child)
{
    *child = fork();
    if (*child)
        return;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    check(setgroups(0, NULL) | setgid(gid) | setuid(uid) | chdir(working_directory), "credentials");
    execve(arguments[0], arguments, environment);
    perror(arguments[0]);
    _exit(127);
}

static int open_power_button(void)
{
    for (int i = 0; i < 8; i++) {
        char path[32], name[64] = "";
        snprintf(path, sizeof path, "/dev/input/event%d", i);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && ioctl(fd, EVIOCGNAME(sizeof name - 1), name) >= 0 && !strcmp(name, "Power Button"))
            return fd;
        close(fd);
    }
    return -1;
}

static void wait_for(pid_t child)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    struct pollfd fds[2] = {{.fd = signalfd(-1, &set, SFD_CLOEXEC), .events = POLLIN},
                            {.fd = open_power_button(), .events = POLLIN}};
    for (;;) {
        int status;
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == child)
                leave(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        poll(fds, 2, -1);
        struct signalfd_siginfo info;
        struct input_event event;
        if (fds[0].revents & POLLIN && read(fds[0].fd, &info, sizeof info) < 0)
            perror("signalfd");
        if (fds[1].revents & POLLIN && read(fds[1].fd, &event, sizeof event) == (ssize_t)sizeof event &&
            event.type == EV_KEY && event.code == KEY_POWER && event.value == 1)
            kill(child, shutdown_signal);
    }
}

int main(void)
{
    struct stat st;
    sigset_t set;
    pid_t child;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("dev", "/dev", "devtmpfs", 0, NULL);
    int console = open("/dev/console", O_RDWR);
    for (int fd = 0; console >= 0 && fd < 3; fd++)
        dup2(console, fd);
    load_modules();
    while (stat("/dev/vda", &st))
        usleep(1000);
    const char *huge = command_line_word("linux.huge=");
    FILE *f = huge ? fopen("/proc/sys/vm/nr_hugepages", "w") : NULL;
    if (f) {
        fputs(huge, f);
        fclose(f);
    }
    check(mount("/dev/vda", "/new", "ext4", MS_NOATIME, NULL), "mount /dev/vda");
    check(mount("dev", "/new/dev", "devtmpfs", 0, NULL), "mount dev");
    mkdir("/new/dev/shm", 01777);
    check(mount("shm", "/new/dev/shm", "tmpfs", 0, NULL), "mount shm");
    check(mount("tmp", "/new/tmp", "tmpfs", 0, NULL), "mount tmp");
    check(mount("proc", "/new/proc", "proc", 0, NULL), "mount proc");
    check(chdir("/new"), "chdir");
    check(mount(".", "/", NULL, MS_MOVE, NULL), "move root");
    check(chroot("."), "chroot");
    check(chdir("/"), "chdir");
    set_address();
    read_init_file();
    run_application(&child);
    wait_for(child);
}
