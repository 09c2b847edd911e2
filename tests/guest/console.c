/* `hold=button` waits for the power button (ACPI or Ctrl-C) and leaves with status 42; `hold=input` for a line
 * on the serial console that ends in '.', and prints it. For tests that sit outside. */
#include <weir/cmdline.h>
#include <weir/init.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>

static struct completion arrived;
static char line[64];
static unsigned length;

static void pressed(void *arg)
{
    completion_complete(&arrived);
}

static void typed(char c)
{
    if (length + 1 < sizeof line)
        line[length++] = c;
    if (c == '.')
        completion_complete(&arrived);
}

static void hold(void)
{
    const char *kind = cmdline_get("hold");
    if (!kind)
        return;
    completion_init(&arrived);
    bool button = !strcmp(kind, "button");
    if (button)
        machine_set_power_button(pressed, NULL);
    else
        console_set_input(typed);
    log_info("hold: waiting");
    completion_wait(&arrived);
    log_info("hold: %s", button ? "button" : line);
    machine_exit(42);
}
INIT_CALL(INIT_CORE, hold);
