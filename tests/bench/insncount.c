/*
 * QEMU plugin: what a guest executes, readable from outside while it runs.
 *
 *   -plugin insncount.so,out=FILE[,blocks=on][,percpu=on]
 *
 * FILE is a shared mapping of struct report (below, read by scripts/lib/insncount.py). Instructions are counted by the
 * half of the address space that they lie in, as kernel and program. A rep string instruction counts once for each
 * element under TCG, so those are kept apart. Beside them: instructions that leave the virtual machine under KVM, and
 * loads of CR3. With percpu=on every virtual CPU has its own counters and whole blocks are counted (needed with more
 * than one CPU); without it each instruction adds to one counter in line, which is exact and needs one CPU. With blocks=on a
 * table of (block address, instructions) is kept, which makes a profile by function.
 *
 * Debian ships QEMU without its plugin header; the few calls used are declared here (plugin API version 1).
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t plugin_id;
typedef void (*block_translated)(plugin_id, struct qemu_plugin_tb *);
typedef void (*executed)(unsigned cpu, void *data);
enum { NO_REGISTERS = 0, ADD_U64 = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, block_translated);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, executed, int flags, void *data);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int op, void *to, uint64_t add);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, executed, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *, int op, void *to, uint64_t add);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
PUBLIC int qemu_plugin_version = 1;

enum { CPUS = 256, BLOCKS = 1 << 20 };
enum counter {
    KERNEL, PROGRAM,          /* instructions */
    REP_KERNEL, REP_PROGRAM,  /* elements of rep string instructions */
    HLT, PORT, WRMSR, CR3,    /* executions, in the kernel half */
    MARK,                     /* executions of xchg %bx,%bx */
    MARK_KERNEL, MARK_PROGRAM,/* instructions when MARK was last executed */
    LAP_KERNEL,               /* kernel instructions between the last two executions of MARK */
    COUNTERS = 16
};

static struct report {
    uint64_t counter[CPUS][COUNTERS];
    struct { uint64_t address, instructions; } block[BLOCKS];
} *report;
static bool per_cpu, with_blocks;

/* Open addressing; blocks are translated under QEMU's lock, so there is one writer of addresses. */
static uint64_t *block_counter(uint64_t address)
{
    uint64_t i = (address ^ address >> 20) * 0x9e3779b97f4a7c15ull >> 44;
    for (unsigned tries = 0; tries < BLOCKS; tries++, i = (i + 1) % BLOCKS) {
        if (!report->block[i].address)
            report->block[i].address = address;
        if (report->block[i].address == address)
            return &report->block[i].instructions;
    }
    return NULL;
}

/* What is to be counted beside the instruction itself; COUNTERS: nothing. */
static enum counter classify(struct qemu_plugin_insn *insn, bool kernel)
{
    const uint8_t *p = qemu_plugin_insn_data(insn), *end = p + qemu_plugin_insn_size(insn);
    bool rep = false;

    if (end - p == 3 && p[0] == 0x66 && p[1] == 0x87 && p[2] == 0xdb)
        return MARK;
    for (; p < end; p++) {
        if (*p == 0xf2 || *p == 0xf3)
            rep = true;
        else if (*p != 0x66 && *p != 0x67 && *p != 0x2e && *p != 0x3e && (*p & 0xf0) != 0x40)
            break;
    }
    if (p == end)
        return COUNTERS;
    bool string = (*p >= 0xa4 && *p <= 0xa7) || (*p >= 0xaa && *p <= 0xaf);
    if (rep && string)
        return kernel ? REP_KERNEL : REP_PROGRAM;
    if (*p == 0xf4)
        return HLT;
    if ((*p >= 0xe4 && *p <= 0xe7) || (*p >= 0xec && *p <= 0xef))
        return PORT;
    if (end - p >= 2 && p[0] == 0x0f && p[1] == 0x30)
        return WRMSR;
    if (end - p >= 3 && p[0] == 0x0f && p[1] == 0x22 && (p[2] >> 3 & 7) == 3)
        return CR3;
    return COUNTERS;
}

/* data: which counter, and how much */
static void add_on_cpu(unsigned cpu, void *data)
{
    uintptr_t packed = (uintptr_t)data;
    report->counter[cpu % CPUS][packed % COUNTERS] += packed / COUNTERS;
}

static void on_mark(unsigned cpu, void *data)
{
    uint64_t kernel = 0, program = 0;
    for (unsigned i = 0; i < CPUS; i++) {
        kernel += report->counter[i][KERNEL];
        program += report->counter[i][PROGRAM];
    }
    uint64_t *mine = report->counter[0];
    mine[LAP_KERNEL] = kernel - mine[MARK_KERNEL];
    mine[MARK_KERNEL] = kernel;
    mine[MARK_PROGRAM] = program;
    mine[MARK]++;
    (void)cpu;
    (void)data;
}

static void count_instruction(struct qemu_plugin_insn *insn, enum counter which)
{
    if (per_cpu)
        qemu_plugin_register_vcpu_insn_exec_cb(insn, add_on_cpu, NO_REGISTERS, (void *)(uintptr_t)(COUNTERS + which));
    else
        qemu_plugin_register_vcpu_insn_exec_inline(insn, ADD_U64, &report->counter[0][which], 1);
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *tb)
{
    uint64_t address = qemu_plugin_tb_vaddr(tb);
    bool kernel = address >> 63;
    size_t n = qemu_plugin_tb_n_insns(tb), plain = 0;

    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        enum counter extra = classify(insn, kernel);
        bool rep = extra == REP_KERNEL || extra == REP_PROGRAM;
        plain += !rep;
        if (!rep && !per_cpu)
            count_instruction(insn, kernel ? KERNEL : PROGRAM);
        if (extra == MARK)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, NO_REGISTERS, NULL);
        else if (extra != COUNTERS && (rep || kernel))
            count_instruction(insn, extra);
    }
    if (per_cpu)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, add_on_cpu, NO_REGISTERS,
                                             (void *)(uintptr_t)(plain * COUNTERS + (kernel ? KERNEL : PROGRAM)));
    uint64_t *counter = with_blocks ? block_counter(address) : NULL;
    if (counter)
        qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, counter, plain);
    (void)id;
}

static bool map_report(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof *report) < 0)
        return false;
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return report != MAP_FAILED;
}

PUBLIC int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv);
PUBLIC int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    const char *out = NULL;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "out=", 4))
            out = argv[i] + 4;
        else if (!strcmp(argv[i], "blocks=on"))
            with_blocks = true;
        else if (!strcmp(argv[i], "percpu=on"))
            per_cpu = true;
    }
    if (!out || !map_report(out))
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    (void)info;
    return 0;
}
