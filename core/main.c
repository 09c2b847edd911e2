/* Boot order: arch hands over with memory, clock and interrupts of the boot CPU ready. */
#include <weir/cmdline.h>
#include <weir/init.h>
#include <weir/main.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include <weir/mm.h>

extern const struct init_call init_calls_start[], init_calls_end[];
extern const struct guest_test guest_tests_start[], guest_tests_end[];
extern const struct guest_balance guest_balances_start[], guest_balances_end[];

static int (*application_start)(void);

void main_set_application(int (*start)(void))
{
    /* The first wins: a benchmark inside the kernel registers before the Linux layer. */
    if (!application_start)
        application_start = start;
}

static void run_init_calls(void)
{
    for (unsigned level = INIT_CORE; level <= INIT_LINUX; level++) {
        for (const struct init_call *call = init_calls_start; call < init_calls_end; call++) {
            if (call->level == level) {
                log_debug("init: %s", call->name);
                call->fn();
            }
        }
    }
}

#define BALANCES_MAX 16
#define SETTLE_STEPS 100 /* of 5 ms: threads that have ended are freed a moment later */

/* True if, of all that is balanced, no more is left than `before`. Else `after` says how much. */
static bool balanced(const uint64_t *before, uint64_t *after)
{
    for (unsigned step = 0; step < SETTLE_STEPS; step++) {
        bool more = false;
        for (size_t i = 0; i < (size_t)(guest_balances_end - guest_balances_start); i++) {
            after[i] = guest_balances_start[i].count();
            more |= after[i] > before[i];
        }
        if (!more)
            return true;
        sleep_until_ns(clock_monotonic_ns() + 5 * NSEC_PER_MSEC);
    }
    return false;
}

#define RUNS_MAX 4

/* What its first run leaves behind may be there for good, and what a later one does for a while; what each run adds is lost. */
static int run_guest_test(const struct guest_test *t)
{
    uint64_t before[BALANCES_MAX], after[BALANCES_MAX];
    size_t n = (size_t)(guest_balances_end - guest_balances_start);
    assert(n <= BALANCES_MAX);
    for (size_t i = 0; i < n; i++)
        before[i] = guest_balances_start[i].count();
    for (unsigned run = 1;; run++) {
        int result = t->fn();
        if (result || balanced(before, after))
            return result;
        if (run == RUNS_MAX)
            break;
        memcpy(before, after, n * sizeof(*before));
    }
    for (size_t i = 0; i < n; i++)
        if (after[i] > before[i])
            log_error("test %s leaves %lu more %s behind", t->name, (unsigned long)(after[i] - before[i]), guest_balances_start[i].name);
    return 1;
}

/* `test=all` or `test=NAME[,NAME...]`: the exit status is the number of failures, at most 100. */
static int run_guest_tests(const char *wanted)
{
    unsigned passed = 0, failed = 0;
    for (const struct guest_test *t = guest_tests_start; t < guest_tests_end; t++) {
        bool chosen = !strcmp(wanted, "all");
        for (const char *p = wanted; !chosen && p && *p; p = strchr(p, ',')) {
            p += *p == ',';
            size_t len = strlen(t->name);
            chosen = !strncmp(p, t->name, len) && (p[len] == ',' || !p[len]);
        }
        if (!chosen)
            continue;
        uint64_t start = clock_monotonic_ns();
        int result = run_guest_test(t);
        log_info("test %s: %s (%lu ms)", t->name, result ? "FAILED" : "ok",
                 (unsigned long)((clock_monotonic_ns() - start) / NSEC_PER_MSEC));
        if (result)
            failed++;
        else
            passed++;
    }
    log_info("%u passed, %u failed", passed, failed);
    if (!passed && !failed) {
        log_error("no self-test is named by test=%s", wanted);
        return 100;
    }
    return (int)MIN(failed, 100u);
}

static void print_summary(void)
{
    log_info("weir: %u CPUs, %lu MiB of memory, %lu MiB free", cpu_count(),
             (unsigned long)(mm_total_pages() >> 8), (unsigned long)(mm_free_pages() >> 8));
}

static void main_thread(void *arg)
{
    smp_init();
    run_init_calls();
    print_summary();
    const char *tests = cmdline_get("test");
    if (tests)
        machine_exit(run_guest_tests(*tests ? tests : "all"));
    int status = application_start ? application_start() : 0;
    if (status < 0) {
        log_error("the application did not start: error %d", -status);
        machine_exit(127);
    }
    if (!application_start || status == APPLICATION_NONE)
        machine_exit(0);
    /* The Linux layer calls machine_exit when the first process has ended. */
    thread_exit();
}

void kernel_main(void)
{
    sched_init();
    struct thread *t = thread_create("main", main_thread, NULL);
    if (!t)
        panic("no memory for the first thread");
    thread_start(t);
    thread_put(t);
    sched_cpu_start();
}
