/* Panic: stop every CPU, show where each was, leave the machine. */
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"

#define DEPTH_MAX 24
#define NO_CPU (~0u)
/* A CPU takes an NMI within microseconds; its host thread may be away for a few scheduling periods. */
#define STOP_WAIT_NS (500 * NSEC_PER_MSEC)

/* Absent at the first link of the image (scripts/ksyms). */
extern const uint64_t ksym_count __weak, ksym_addresses[] __weak;
extern const uint32_t ksym_offsets[] __weak;
extern const char ksym_names[] __weak;

static unsigned panic_cpu = NO_CPU; /* a */
static unsigned panic_depth;        /* o panic_cpu */

bool panic_active(void)
{
    return atomic_load_acquire(&panic_cpu) != NO_CPU;
}

struct symbol_table {
    size_t count;
    const uint64_t *addresses;
    const uint32_t *offsets;
    const char *names;
};

/* Code outside the image's text: instances of a module, all with one table, whose addresses count from a base. */
static struct symbol_table module_symbols;
static size_t module_size;
static uint64_t module_bases[SYMBOL_MODULES_MAX];
static unsigned module_count; /* a */

void symbol_module_add(uint64_t base, size_t size, size_t count, const uint64_t *addresses, const uint32_t *offsets,
                       const char *names)
{
    if (module_count == SYMBOL_MODULES_MAX)
        return;
    module_symbols = (struct symbol_table){ count, addresses, offsets, names };
    module_size = size;
    module_bases[module_count] = base;
    /* A trap on another CPU that sees the count sees the base. */
    atomic_store_release(&module_count, module_count + 1);
}

static void format_from(const struct symbol_table *t, uint64_t base, uint64_t addr, char *buf, size_t size)
{
    size_t low = 0, high = t->count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (t->addresses[middle] <= addr - base)
            low = middle;
        else
            high = middle;
    }
    scnprintf(buf, size, "%s+%#lx (%#lx)", t->names + t->offsets[low],
              (unsigned long)(addr - base - t->addresses[low]), (unsigned long)addr);
}

void symbol_format(uint64_t addr, char *buf, size_t size)
{
    if (&ksym_count && ksym_count && addr >= (uint64_t)text_start && addr < (uint64_t)text_end) {
        format_from(&(struct symbol_table){ ksym_count, ksym_addresses, ksym_offsets, ksym_names }, 0, addr, buf, size);
        return;
    }
    for (unsigned i = 0; i < atomic_load_acquire(&module_count); i++) {
        if (addr - module_bases[i] < module_size) {
            format_from(&module_symbols, module_bases[i], addr, buf, size);
            return;
        }
    }
    scnprintf(buf, size, "%#lx", (unsigned long)addr);
}

void backtrace_print(uint64_t rip, uint64_t rbp)
{
    char where[128];
    if (rip) {
        symbol_format(rip, where, sizeof where);
        log_error("    %s", where);
    }
    for (unsigned depth = 0; depth < DEPTH_MAX && rbp; depth++) {
        uint64_t next, ret;
        if ((rbp & 7) || !kernel_read_safe(rbp, &next) || !kernel_read_safe(rbp + 8, &ret) || !ret)
            return;
        symbol_format(ret, where, sizeof where);
        log_error("    %s", where);
        /* Frames lie upwards, except where an IST stack leads back to the thread's. */
        if (next == rbp)
            return;
        rbp = next;
    }
}

void arch_backtrace(struct thread *t)
{
    if (!t || t == current) {
        backtrace_print(0, (uint64_t)__builtin_frame_address(0));
        return;
    }
    /* switch_stacks left r15 r14 r13 r12 rbx rbp and the return address there. */
    uint64_t rbp = 0, rip = 0;
    if (kernel_read_safe(t->rsp + 40, &rbp) && kernel_read_safe(t->rsp + 48, &rip))
        backtrace_print(rip, rbp);
}

__noreturn void cpu_stop(void)
{
    for (;;)
        __asm__ volatile("cli; hlt");
}

void panic_nmi(const struct trapframe *tf)
{
    struct arch_cpu *a = arch_of(this_cpu());
    if (a->stopped)
        cpu_stop();
    a->stopped_rip = tf->rip;
    a->stopped_rbp = tf->rbp;
    atomic_store_release(&a->stopped, true); /* after the two above */
    cpu_stop();
}

/* Somebody outside pressed the button (QEMU: inject-nmi): the way to see where a machine hangs. */
void nmi_report(const struct trapframe *tf)
{
    struct cpu *c = this_cpu();
    struct arch_cpu *a = arch_of(c);
    a->nmi_count++;
    a->in_nmi = true;
    log_warn("NMI on CPU %u: %s, ring %u, interrupts %s", c->id, c->running ? c->running->name : "(no thread)",
             (unsigned)(tf->cs & 3), tf->rflags & 0x200 ? "on" : "off");
    if (!trapframe_from_user(tf))
        backtrace_print(tf->rip, tf->rbp);
    a->in_nmi = false;
}

static void stop_others(unsigned self)
{
    for (unsigned i = 0; i < cpu_count(); i++) {
        if (i != self)
            apic_send(cpus[i]->apic_id, ICR_NMI);
    }
    uint64_t deadline = clock_monotonic_ns() + STOP_WAIT_NS;
    for (unsigned i = 0; i < cpu_count(); i++) {
        while (i != self && !atomic_load_acquire(&arch_of(cpus[i])->stopped) &&
               clock_monotonic_ns() < deadline)
            cpu_relax();
    }
}

static void show_cpu(unsigned i, unsigned self, uint64_t rip, uint64_t rbp)
{
    struct cpu *c = cpus[i];
    struct arch_cpu *a = arch_of(c);
    struct thread *t = c->running;
    const char *name = t ? t->name : "(no thread)";
    if (i != self && !a->stopped) {
        log_error("CPU %u (APIC id %u): %s: did not answer the NMI", i, c->apic_id, name);
        return;
    }
    if (i != self && t && t == c->idle) {
        char where[128];
        symbol_format(a->stopped_rip, where, sizeof where);
        log_error("CPU %u (APIC id %u): idle at %s", i, c->apic_id, where);
        return;
    }
    log_error("CPU %u (APIC id %u): %s%s", i, c->apic_id, name, i == self ? " (panicked)" : "");
    backtrace_print(i == self ? rip : a->stopped_rip, i == self ? rbp : a->stopped_rbp);
}

/* One CPU goes on and prints; another that panics meanwhile waits for its NMI (or halts: either way the
 * first one tells). A second panic of the same CPU, while printing, leaves at once. */
static bool panic_begin(void)
{
    irq_disable();
    unsigned self = this_cpu()->id, expected = NO_CPU;
    if (atomic_cas(&panic_cpu, &expected, self)) {
        console_panic_mode();
        return true;
    }
    if (expected != self)
        cpu_stop();
    if (panic_depth++)
        machine_exit(PANIC_STATUS);
    return false;
}

static __noreturn void panic_end(bool first, uint64_t rip, uint64_t rbp)
{
    unsigned self = this_cpu()->id;
    if (first) {
        stop_others(self);
        show_cpu(self, self, rip, rbp);
        for (unsigned i = 0; i < cpu_count(); i++) {
            if (i != self)
                show_cpu(i, self, 0, 0);
        }
    }
    machine_exit(PANIC_STATUS);
}

void panic(const char *fmt, ...)
{
    bool first = panic_begin();
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_error("%s on CPU %u: %s", first ? "panic" : "panic during panic", this_cpu()->id, text);
    panic_end(first, 0, (uint64_t)__builtin_frame_address(0));
}

void panic_trap(const struct trapframe *tf, unsigned vector, uint64_t addr)
{
    bool first = panic_begin();
    log_error("%s on CPU %u: exception in the kernel", first ? "panic" : "panic during panic", this_cpu()->id);
    trap_report(tf, vector, addr);
    if (vector == 8)
        log_error("a double fault is nearly always a kernel stack that ran into its guard page");
    panic_end(first, tf->rip, tf->rbp);
}

uint64_t __stack_chk_guard = 0x595e9fbd94fda766;
void __stack_chk_fail(void);
void __stack_chk_fail(void)
{
    panic("stack smashed in the caller of %p", __builtin_return_address(0));
}
