/* /proc files about the machine. */
#include "proc.h"
#include <weir/cpu.h>
#include <weir/irq.h>
#include <weir/net.h>
#include <weir/random.h>
#include <weir/sched.h>

/* Parts that may be left out of an image. */
size_t irq_plan_print(char *buf, size_t size) __weak;
size_t irq_interrupts_print(char *buf, size_t size) __weak;
size_t net_print_counters(char *buf, size_t size) __weak;
size_t sched_print_counters(char *buf, size_t size) __weak;

static int show_printer(struct seq *s, size_t (*print)(char *, size_t))
{
    if (!print)
        return 0;
    size_t n = print(s->buf, s->size);
    if (n + 1 >= s->size)
        s->overflow = true;
    else
        s->len = n;
    return 0;
}
static int show_vectors(struct seq *s, void *p) { return show_printer(s, irq_plan_print); }
static int show_interrupts(struct seq *s, void *p) { return show_printer(s, irq_interrupts_print); }
static int show_net(struct seq *s, void *p) { return show_printer(s, net_print_counters); }
static int show_sched(struct seq *s, void *p) { return show_printer(s, sched_print_counters); }

static int show_meminfo(struct seq *s, void *p)
{
    struct pagecache_counts c;
    pagecache_counts(&c);
    unsigned long total = mm_total_pages() * 4, unused = mm_free_pages() * 4;
    seq_printf(s, "MemTotal:       %8lu kB\nMemFree:        %8lu kB\nMemAvailable:   %8lu kB\n", total, unused,
               unused + (c.cached - MIN(c.cached, c.dirty)) * 4);
    seq_printf(s, "Buffers:        %8lu kB\nCached:         %8lu kB\nSwapCached:     %8lu kB\n", 0ul, (c.cached + c.shmem) * 4, 0ul);
    seq_printf(s, "SwapTotal:      %8lu kB\nSwapFree:       %8lu kB\nDirty:          %8lu kB\nWriteback:      %8lu kB\n", 0ul, 0ul,
               c.dirty * 4, c.writeback * 4);
    seq_printf(s, "Shmem:          %8lu kB\nHugePages_Total:   %5lu\nHugePages_Free:    %5lu\nHugepagesize:   %8lu kB\n", c.shmem * 4,
               0ul, 0ul, 2048ul);
    return 0;
}
static int show_uptime(struct seq *s, void *p)
{
    uint64_t ns = clock_monotonic_ns();
    seq_printf(s, "%lu.%02lu 0.00\n", (unsigned long)(ns / NSEC_PER_SEC), (unsigned long)(ns / 10000000 % 100));
    return 0;
}
static void count_thread(struct thread *t, void *arg)
{
    unsigned *n = arg;
    n[0]++;
    n[1] += atomic_load_relaxed(&t->state) == THREAD_RUNNABLE;
}
static int show_loadavg(struct seq *s, void *p)
{
    unsigned n[2] = { 0, 0 };
    thread_for_each(count_thread, n);
    seq_printf(s, "0.00 0.00 0.00 %u/%u 1\n", n[1], n[0]);
    return 0;
}
static int show_stat(struct seq *s, void *p)
{
    seq_printf(s, "cpu  0 0 0 0 0 0 0 0 0 0\n");
    for (unsigned i = 0; i < cpu_count(); i++)
        seq_printf(s, "cpu%u 0 0 0 0 0 0 0 0 0 0\n", i);
    uint64_t boot = (clock_realtime_ns() - clock_monotonic_ns()) / NSEC_PER_SEC;
    seq_printf(s, "intr 0\nctxt 0\nbtime %lu\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n", (unsigned long)boot);
    return 0;
}
static int show_cpuinfo(struct seq *s, void *p)
{
    uint32_t brand[13] = { 0 }, vendor[4] = { 0 }, a, b, c, d;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(vendor[0]), "=c"(vendor[2]), "=d"(vendor[1]) : "a"(0), "c"(0));
    for (uint32_t leaf = 0; leaf < 3; leaf++) {
        __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(0x80000002u + leaf), "c"(0));
        brand[leaf * 4] = a;
        brand[leaf * 4 + 1] = b;
        brand[leaf * 4 + 2] = c;
        brand[leaf * 4 + 3] = d;
    }
    for (unsigned i = 0; i < cpu_count(); i++)
        seq_printf(s, "processor\t: %u\nvendor_id\t: %s\nmodel name\t: %s\nphysical id\t: 0\nsiblings\t: %u\ncore id\t\t: %u\n"
                   "cpu cores\t: %u\nflags\t\t: fpu tsc sse sse2\n\n", i, (const char *)vendor, (const char *)brand, cpu_count(), i, cpu_count());
    return 0;
}
static int show_filesystems(struct seq *s, void *p)
{
    seq_printf(s, "nodev\tproc\nnodev\ttmpfs\nnodev\tdevtmpfs\nnodev\tsysfs\n\text4\n");
    return 0;
}
static void show_mount(struct super_block *sb, void *arg)
{
    seq_printf(arg, "%s%s %s %s %s,noatime 0 0\n", strcmp(sb->type, "ext4") ? "" : "/dev/", sb->source, sb->target, sb->type,
               atomic_load_relaxed(&sb->read_only) ? "ro" : "rw");
}
static int show_mounts(struct seq *s, void *p)
{
    super_for_each(show_mount, s);
    return 0;
}
static int show_version(struct seq *s, void *p)
{
    seq_printf(s, "Linux version 6.1.0 (weir) #1 SMP\n");
    return 0;
}
/* Contents that never change. */
static int show_cap_last_cap(struct seq *s, void *p) { seq_printf(s, "40\n"); return 0; }
static int show_osrelease(struct seq *s, void *p) { seq_printf(s, "6.1.0\n"); return 0; }
static int show_ostype(struct seq *s, void *p) { seq_printf(s, "Linux\n"); return 0; }
static int show_hostname(struct seq *s, void *p) { seq_printf(s, "weir\n"); return 0; }
static int show_pid_max(struct seq *s, void *p) { seq_printf(s, "4194304\n"); return 0; }
static int show_one(struct seq *s, void *p) { seq_printf(s, "1\n"); return 0; }
static int show_somaxconn(struct seq *s, void *p) { seq_printf(s, "4096\n"); return 0; }
static int show_file_max(struct seq *s, void *p) { seq_printf(s, "1048576\n"); return 0; }

static void print_uuid(struct seq *s, const uint8_t *b)
{
    for (unsigned i = 0; i < 16; i++)
        seq_printf(s, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
    seq_printf(s, "\n");
}
static int show_uuid(struct seq *s, void *p)
{
    uint8_t b[16];
    random_bytes(b, sizeof b);
    b[6] = (b[6] & 15) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    print_uuid(s, b);
    return 0;
}
static uint8_t boot_id[16]; /* I after proc_register_system */
static int show_boot_id(struct seq *s, void *p)
{
    print_uuid(s, boot_id);
    return 0;
}

void proc_register_system(void)
{
    static const struct { const char *path; int (*show)(struct seq *, void *); } files[] = {
        { "meminfo", show_meminfo }, { "uptime", show_uptime }, { "loadavg", show_loadavg }, { "stat", show_stat },
        { "cpuinfo", show_cpuinfo }, { "filesystems", show_filesystems }, { "mounts", show_mounts }, { "self/mounts", show_mounts },
        { "version", show_version }, { "interrupts", show_interrupts }, { "weir/vectors", show_vectors },
        { "weir/sched", show_sched }, { "weir/net", show_net }, { "sys/kernel/cap_last_cap", show_cap_last_cap },
        { "sys/kernel/osrelease", show_osrelease }, { "sys/kernel/ostype", show_ostype }, { "sys/kernel/hostname", show_hostname },
        { "sys/kernel/pid_max", show_pid_max }, { "sys/kernel/random/boot_id", show_boot_id },
        { "sys/kernel/random/uuid", show_uuid }, { "sys/vm/overcommit_memory", show_one },
        { "sys/net/core/somaxconn", show_somaxconn }, { "sys/fs/file-max", show_file_max },
    };
    random_bytes(boot_id, sizeof boot_id);
    for (unsigned i = 0; i < ARRAY_SIZE(files); i++)
        proc_register(files[i].path, files[i].show);
}
