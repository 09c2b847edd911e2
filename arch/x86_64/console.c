/* Serial console: 16550 on COM1. One printk is one line that nothing cuts in two. */
#include <weir/cmdline.h>
#include <weir/printk.h>
#include <weir/spinlock.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"

#define COM1 0x3f8
#define REG_DATA 0
#define REG_IER 1
#define REG_FCR 2
#define REG_LCR 3
#define REG_MCR 4
#define REG_LSR 5
#define REG_SCRATCH 7
#define LSR_DATA 0x01
#define LSR_THR_EMPTY 0x20
#define LSR_IDLE 0x40
#define FIFO_DEPTH 16
/* A host that does not read its end of the line must not stop the guest for ever: after this many
 * polls (each an exit, some microseconds) the bytes go out anyway. */
#define POLL_LIMIT 200000

static spinlock_t console_lock = SPINLOCK_INIT; /* the UART; leaf */
static bool present, unlocked;
static int level_limit = -1;
static void (*input_fn)(char);

void console_init(void)
{
    outb(COM1 + REG_SCRATCH, 0x5a);
    if (inb(COM1 + REG_SCRATCH) != 0x5a)
        return;
    outb(COM1 + REG_IER, 0);
    outb(COM1 + REG_LCR, 0x80); /* divisor latch: 115200 baud */
    outb(COM1 + REG_DATA, 1);
    outb(COM1 + REG_IER, 0);
    outb(COM1 + REG_LCR, 0x03); /* 8N1 */
    outb(COM1 + REG_FCR, 0x07);
    outb(COM1 + REG_MCR, 0x0b); /* DTR, RTS, interrupt gate */
    present = true;
}

static void uart_write(const char *s, size_t n)
{
    while (n) {
        unsigned polls = 0;
        while (!(inb(COM1 + REG_LSR) & LSR_THR_EMPTY) && polls++ < POLL_LIMIT)
            cpu_relax();
        size_t burst = MIN(n, (size_t)FIFO_DEPTH);
        n -= burst;
        while (burst--)
            outb(COM1 + REG_DATA, (uint8_t)*s++);
    }
}

/* An NMI may have come while this very CPU held the lock: it waits a while, then writes between. */
static bool console_acquire(void)
{
    if (likely(!arch_of(this_cpu())->in_nmi)) {
        spin_lock(&console_lock);
        return true;
    }
    for (unsigned tries = 0; tries < POLL_LIMIT; tries++) {
        if (spin_try_lock(&console_lock))
            return true;
        cpu_relax();
    }
    return false;
}

void console_write(const char *s, size_t n)
{
    if (!present)
        return;
    if (unlocked) {
        uart_write(s, n);
        return;
    }
    uint64_t flags = irq_save();
    bool locked = console_acquire();
    uart_write(s, n);
    if (locked)
        spin_unlock(&console_lock);
    irq_restore(flags);
}

void console_panic_mode(void)
{
    unlocked = true;
}

void console_drain(void)
{
    for (unsigned polls = 0; present && !(inb(COM1 + REG_LSR) & LSR_IDLE) && polls < POLL_LIMIT; polls++)
        cpu_relax();
}

static int level_from_cmdline(void)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    const char *wanted = cmdline_get("loglevel");
    for (int i = 0; wanted && i < (int)ARRAY_SIZE(names); i++) {
        if (!strcmp(wanted, names[i]))
            return i;
    }
    return LOG_INFO;
}

void printk(enum log_level level, const char *fmt, ...)
{
    if (level_limit < 0)
        level_limit = level_from_cmdline();
    if ((int)level > level_limit)
        return;
    char line[512];
    static const char *const prefix[] = { "error: ", "warning: ", "", "" };
    int n = scnprintf(line, sizeof line - 1, "%s", prefix[level]);
    va_list ap;
    va_start(ap, fmt);
    int wanted = vsnprintf(line + n, sizeof line - 1 - (size_t)n, fmt, ap);
    va_end(ap);
    n = MIN(n + wanted, (int)sizeof line - 2);
    line[n++] = '\n';
    console_write(line, (size_t)n);
}

static void serial_interrupt(unsigned vector, void *arg)
{
    while (inb(COM1 + REG_LSR) & LSR_DATA) {
        char c = (char)inb(COM1 + REG_DATA);
        void (*fn)(char) = atomic_load_acquire(&input_fn);
        if (c == 3)
            machine_power_button();
        else if (fn)
            fn(c);
    }
}

void console_set_input(void (*fn)(char))
{
    atomic_store_release(&input_fn, fn);
}

void console_init_input(void)
{
    if (!present)
        return;
    vector_set_handler(VECTOR_LEGACY_SERIAL, serial_interrupt, NULL);
    if (isa_irq_route(4, VECTOR_LEGACY_SERIAL, 0)) {
        log_warn("console: no interrupt line, input is off");
        return;
    }
    outb(COM1 + REG_IER, 1);
}
