/*
 * `crash=KIND` ends the kernel on purpose, so that tests outside can check the report and the exit status, in every boot or
 * with `crash.boot=N` in the one that has `boot=N` as well (scripts/bootstorm numbers its boots so):
 * panic, null, text (write to code), nx (run data), stack (overflow), smash (stack protector), two (panic on all CPUs at
 * once), again (panic inside panic), alone (panic with the other CPUs deaf, interrupts off), hang (nothing happens any
 * more), triple (a triple fault resets the machine).
 */
#include <weir/cmdline.h>
#include <weir/init.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"
#include "tests/guest/on_each_cpu.h"

static volatile uint64_t sink;

static __attribute__((noinline)) uint64_t overflow(uint64_t depth)
{
    volatile uint64_t frame[64];
    frame[0] = depth;
    if (depth == UINT64_MAX)
        return 0;
    return overflow(depth + 1) + frame[0];
}

static __attribute__((noinline)) void smash(size_t n)
{
    char small[16];
    volatile char *p = small;
    for (size_t i = 0; i < n; i++)
        p[i] = 'x';
    sink = (uint64_t)p[0];
}

static int panic_here(unsigned cpu, void *arg)
{
    panic("on purpose, from CPU %u", cpu);
}

static int deaf(unsigned cpu, void *arg)
{
    if (!cpu && arg)
        panic("%s", (const char *)arg);
    irq_disable();
    for (;;)
        cpu_relax();
}

static void crash(void)
{
    const char *kind = cmdline_get("crash");
    static uint8_t data[16] = { 0xc3 };
    const char *only = cmdline_get("crash.boot"), *boot = cmdline_get("boot");
    if (!kind || (only && (!boot || strcmp(only, boot))))
        return;
    if (!strcmp(kind, "panic"))
        panic("on purpose");
    if (!strcmp(kind, "null"))
        *(volatile uint64_t *)(sink + 8) = 1;
    if (!strcmp(kind, "text"))
        *(volatile uint8_t *)text_start = 0;
    if (!strcmp(kind, "nx"))
        ((void (*)(void))(uint64_t)data)();
    if (!strcmp(kind, "stack"))
        sink = overflow(sink);
    if (!strcmp(kind, "smash"))
        smash(sink + 64);
    if (!strcmp(kind, "two"))
        (void)on_each_cpu(panic_here, NULL);
    if (!strcmp(kind, "alone"))
        (void)on_each_cpu(deaf, "on purpose, others deaf");
    if (!strcmp(kind, "again")) {
        *(volatile uint64_t *)&this_cpu()->running = 0x1000; /* the report looks at it and faults */
        panic("on purpose, broken CPU block");
    }
    if (!strcmp(kind, "hang"))
        (void)on_each_cpu(deaf, NULL);
    if (!strcmp(kind, "triple")) {
        static const struct { uint16_t limit; uint64_t base; } __attribute__((packed)) nothing = { 0 };
        __asm__ volatile("lidt %0; ud2" : : "m"(nothing));
    }
    panic("no such crash: %s", kind);
}
INIT_CALL(INIT_CORE, crash);
