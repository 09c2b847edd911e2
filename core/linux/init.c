/*
 * The first process: what to run comes from /etc/weir/init in the root image and from the command line after `--`.
 * The machine ends with it.
 */
#include "task_internal.h"
#include "linuxio.h"
#include <weir/cmdline.h>
#include <weir/init.h>
#include <weir/main.h>
#include <weir/trap.h>

#define CONFIG_PATH "/etc/weir/init"
#define CONFIG_MAX  (64UL << 10)
#define PAIRS_MAX   64u
#define END_WAIT_NS (10 * NSEC_PER_SEC) /* for the others to end after SIGKILL */

struct init_config {
    struct cred cred;
    const char *cwd;
    const char *args[PAIRS_MAX + 1], *env[PAIRS_MAX + 1];
    unsigned argc, envc;
    int shutdown_signal;
    char *text; /* holds all strings */
};

static const struct {
    const char *name;
    int signo;
} signal_names[] = {
    {"HUP", SIGHUP}, {"INT", SIGINT}, {"QUIT", SIGQUIT}, {"KILL", SIGKILL},
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"PWR", SIGPWR},
};

static int shutdown_signal = SIGINT; /* I after start */

static int signal_by_name(const char *name)
{
    if (!strncmp(name, "SIG", 3))
        name += 3;
    for (unsigned i = 0; i < ARRAY_SIZE(signal_names); i++) {
        if (!strcmp(name, signal_names[i].name))
            return signal_names[i].signo;
    }
    return 0;
}

static bool config_number(const char *value, uint32_t *out)
{
    uint64_t v;

    if (parse_u64(value, false, &v) || v > UINT32_MAX)
        return false;
    *out = (uint32_t)v;
    return true;
}

/* One key=value line. False = not understood. */
static bool config_line(struct init_config *c, const char *key, const char *value)
{
    if (!strcmp(key, "uid"))
        return config_number(value, &c->cred.uid);
    if (!strcmp(key, "gid"))
        return config_number(value, &c->cred.gid);
    if (!strcmp(key, "cwd")) {
        c->cwd = value;
        return true;
    }
    if (!strcmp(key, "shutdown_signal")) {
        c->shutdown_signal = signal_by_name(value);
        return c->shutdown_signal != 0;
    }
    if (!strcmp(key, "arg") && c->argc < PAIRS_MAX) {
        c->args[c->argc++] = value;
        return true;
    }
    if (!strcmp(key, "env") && c->envc < PAIRS_MAX) {
        c->env[c->envc++] = value;
        return true;
    }
    return false;
}

static void config_parse(struct init_config *c)
{
    char *line = c->text, *end, *equals;

    for (unsigned n = 1; *line; line = end + 1, n++) {
        end = strchr(line, '\n');
        if (!end)
            end = line + strlen(line);
        bool last = !*end;
        *end = '\0';
        equals = strchr(line, '=');
        if (*line && *line != '#') {
            if (equals)
                *equals = '\0';
            if (!equals || !config_line(c, line, equals + 1))
                log_warn(CONFIG_PATH ":%u: '%s' is not understood", n, line);
        }
        if (last)
            break;
    }
}

/* The command line's program replaces the file's. */
static void config_command_line(struct init_config *c)
{
    unsigned argc;
    char *const *argv = cmdline_app_argv(&argc);

    if (!argc)
        return;
    c->argc = 0;
    for (unsigned i = 0; i < argc && i < PAIRS_MAX; i++)
        c->args[c->argc++] = argv[i];
}

static int open_console(struct files *fs, struct dentry *root, const struct cred *cred)
{
    for (unsigned fd = 0; fd < 3; fd++) {
        struct file *f;
        int r = vfs_open(root, "/dev/console", O_RDWR, 0, cred, &f);
        if (r)
            return r;
        /* Nobody else sees the table yet. */
        fs->slots[fd] = f;
        bitmap_set(fs->used, fd);
    }
    fs->lowest = 3;
    return 0;
}

static void default_limits(struct process *p)
{
    for (unsigned i = 0; i < RLIMIT_COUNT; i++)
        p->rlimit[i].soft = p->rlimit[i].hard = RLIM_INFINITY;
    p->rlimit[RLIMIT_STACK].soft = 8UL << 20;
    p->rlimit[RLIMIT_CORE].soft = 0;
    p->rlimit[RLIMIT_NOFILE].soft = 1024;
    p->rlimit[RLIMIT_NOFILE].hard = 1UL << 20;
    p->rlimit[RLIMIT_NICE].soft = p->rlimit[RLIMIT_NICE].hard = 0;
    p->rlimit[RLIMIT_RTPRIO].soft = p->rlimit[RLIMIT_RTPRIO].hard = 0;
    p->rlimit[RLIMIT_MSGQUEUE].soft = p->rlimit[RLIMIT_MSGQUEUE].hard = 819200;
}

static int collect_strings(struct exec_strings *s, char *const *argv, char *const *envp)
{
    int r = 0;

    for (; !r && argv[s->argc]; s->argc++)
        r = exec_add_string(s, argv[s->argc]);
    for (; !r && envp[s->envc]; s->envc++)
        r = exec_add_string(s, envp[s->envc]);
    return r;
}

/* The process as it is after exec, with one task. On failure the caller drops what is there. */
static int build_first(struct process *p, char *const *argv, char *const *envp, const char *cwd,
                       struct task **task)
{
    struct dentry *root = vfs_root();
    struct exec_strings strings = {0};
    struct program_start start;
    struct trapframe regs = {0};
    void *fpu = NULL;
    int r = vfs_lookup(root, cwd, 0, &p->cred, &p->cwd);

    if (r)
        log_error("init: directory %s: error %d", cwd, -r);
    if (!r && !(p->files = files_create()))
        r = -ENOMEM;
    if (!r && (r = open_console(p->files, root, &p->cred)))
        log_error("init: /dev/console: error %d", -r);
    if (!r)
        r = collect_strings(&strings, argv, envp);
    if (!r && (r = exec_load(p->cwd, argv[0], &strings, &p->cred, p->rlimit[RLIMIT_STACK].soft, &start)))
        log_error("init: %s cannot be executed: error %d", argv[0], -r);
    kfree(strings.data);
    dentry_put(root);
    if (r)
        return r;
    p->aspace = start.as;
    p->exe = start.exe;
    p->arg_start = start.arg_start;
    p->arg_end = start.arg_end;
    process_set_name(p, argv[0]);
    *task = task_alloc(p, p->pid);
    if (!*task || !(fpu = fpu_alloc()))
        return -ENOMEM;
    regs.orig_rax = (uint64_t)-1;
    regs.rip = start.rip;
    regs.rsp = start.rsp;
    regs.cs = TRAP_USER_CS;
    regs.ss = TRAP_USER_SS;
    regs.rflags = 0x202;
    (*task)->thread = thread_create_user(p->name, &regs, aspace_pagetable(p->aspace), fpu, 0, *task);
    if (!(*task)->thread) {
        fpu_free(fpu);
        return -ENOMEM;
    }
    signal_process_init(p);
    signal_task_init(*task);
    return 0;
}

int process_start_init(char *const *argv, char *const *envp, const struct cred *cred, const char *cwd)
{
    struct process *p = process_alloc();
    struct task *t = NULL;
    uint64_t flags;
    int r;

    if (!p)
        return -ENOMEM;
    p->cred = *cred;
    p->umask = 022;
    p->exit_signal = SIGCHLD;
    default_limits(p);
    p->pid = pid_alloc();
    p->pgid = p->sid = p->pid;
    assert(p->pid == FIRST_PID);
    r = build_first(p, argv, envp, cwd, &t);
    if (r) {
        process_release_resources(p);
        pid_free(p->pid);
        if (t)
            task_free(t);
        process_put(p);
        return r;
    }
    process_first = p;
    flags = spin_lock_irqsave(&process_tree_lock);
    process_link_locked(p, NULL);
    task_link_locked(t);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    thread_start(t->thread);
    return 0;
}

/* ---- the end ---- */

/* Power button, or Ctrl-C on the console; interrupt context. */
static void shutdown_requested(void *arg)
{
    static uint64_t last_ns;
    uint64_t now = clock_monotonic_ns(), before = atomic_exchange(&last_ns, now);
    const struct siginfo_weir info = {.code = 0x80};
    int signo = before && now - before < NSEC_PER_SEC ? SIGKILL : shutdown_signal;

    if (process_first)
        (void)signal_send_process(process_first, signo, &info);
}

struct census {
    bool kill;
    unsigned running;
};

static void visit_running(struct process *p, void *arg)
{
    struct census *c = arg;
    const struct siginfo_weir info = {.code = 0x80};

    if (p == process_first || p->state != PROCESS_RUNNING)
        return;
    c->running++;
    if (c->kill)
        (void)signal_send_process(p, SIGKILL, &info);
}

static bool others_gone(bool kill)
{
    struct census c = {.kill = kill};

    process_for_each(visit_running, &c);
    return !c.running;
}

/* Each orphan's end wakes the first process; one that was born meanwhile is killed in the next round. */
static void end_others(void)
{
    uint64_t limit = clock_monotonic_ns() + END_WAIT_NS;

    while (!others_gone(true)) {
        uint64_t now = clock_monotonic_ns();
        if (now > limit) {
            log_error("init: processes do not end after SIGKILL; going on without them");
            return;
        }
        if (wait_event_timeout(&process_first->child_wait, others_gone(false), now + 10 * NSEC_PER_MSEC) == 0)
            return;
    }
}

void init_ended(int wait_status)
{
    int status = wait_status & 0x7f ? 128 + (wait_status & 0x7f) : (wait_status >> 8) & 0xff;
    int r;

    end_others();
    r = vfs_shutdown();
    if (r) {
        log_error("file systems could not be written back: error %d", -r);
        if (!status)
            status = 125;
    }
    if (wait_status & 0x7f)
        log_info("weir: %s ended by signal %d", process_first->name, wait_status & 0x7f);
    else
        log_info("weir: %s ended with status %d", process_first->name, status);
    machine_exit(status);
}

/* ---- start ---- */

static int application_start(void)
{
    struct init_config *c = kzalloc(sizeof(*c));
    size_t len;
    int r;

    if (!c)
        return -ENOMEM;
    c->cwd = "/";
    c->shutdown_signal = SIGINT;
    r = vfs_read_file(CONFIG_PATH, CONFIG_MAX, &c->text, &len);
    if (!r)
        config_parse(c);
    else if (r != -ENOENT)
        log_error(CONFIG_PATH ": error %d", -r);
    config_command_line(c);
    if (!c->argc) {
        log_warn("nothing to run: no program after `--` and no arg= in " CONFIG_PATH);
        kfree(c->text);
        kfree(c);
        return APPLICATION_NONE;
    }
    if (!c->envc)
        c->env[c->envc++] = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
    shutdown_signal = c->shutdown_signal;
    r = process_start_init((char *const *)c->args, (char *const *)c->env, &c->cred, c->cwd);
    if (!r)
        machine_set_power_button(shutdown_requested, NULL);
    kfree(c->text);
    kfree(c);
    return r;
}

static void init_register(void)
{
    main_set_application(application_start);
}
INIT_CALL(INIT_LINUX, init_register);
