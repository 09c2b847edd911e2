/* `bench=NAME[:OPTIONS]`: starts what include/weir/bench.h lists. */
#include <weir/bench.h>
#include <weir/cmdline.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/init.h>
#include <weir/main.h>
#include <weir/printk.h>
#include <weir/string.h>

static const struct {
    const char *name;
    int (*start)(const char *options);
} benches[] = {
    { "echo", bench_echo_start },
    { "blk", bench_blk_start },
};

static int start_one(const char *wish)
{
    const char *colon = strchr(wish, ':');
    size_t len = colon ? (size_t)(colon - wish) : strlen(wish);
    for (size_t i = 0; i < ARRAY_SIZE(benches); i++) {
        if (strlen(benches[i].name) == len && !strncmp(benches[i].name, wish, len))
            return benches[i].start(colon ? colon + 1 : "");
    }
    log_error("bench=%s: no such benchmark; there are echo and blk", wish);
    return -EINVAL;
}

static void power_button(void *arg)
{
    machine_exit(0);
}

static int start_all(void)
{
    machine_set_power_button(power_button, NULL);
    const char *wish;
    for (unsigned n = 0; (wish = cmdline_get_nth("bench", n)); n++) {
        int error = start_one(wish);
        if (error)
            return error;
    }
    return 0;
}

static void bench_init(void)
{
    if (cmdline_get("bench"))
        main_set_application(start_all);
}
INIT_CALL(INIT_NET, bench_init); /* before the Linux layer registers: the first wins */
