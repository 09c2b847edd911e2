/* CPU features, per-CPU block, GDT and TSS, control registers. */
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/cmdline.h>
#include <weir/sched.h>
#include "arch/x86_64/arch.h"

_Static_assert(offsetof(struct cpu, running) == CPU_CURRENT, "asm_offsets.h");
_Static_assert(offsetof(struct cpu, kernel_rsp) == CPU_KERNEL_RSP, "asm_offsets.h");
_Static_assert(offsetof(struct cpu, user_rsp) == CPU_USER_RSP, "asm_offsets.h");
_Static_assert(offsetof(struct trapframe, orig_rax) == TF_ORIG, "asm_offsets.h");
_Static_assert(offsetof(struct trapframe, rip) == TF_RIP, "asm_offsets.h");
_Static_assert(offsetof(struct trapframe, rcx) == TF_RCX, "asm_offsets.h");
_Static_assert(sizeof(struct trapframe) == TF_SIZE, "asm_offsets.h");

#define MSR_STAR 0xc0000081
#define MSR_LSTAR 0xc0000082
#define MSR_CSTAR 0xc0000083
#define MSR_SFMASK 0xc0000084
#define MSR_FS_BASE 0xc0000100
#define MSR_KERNEL_GS_BASE 0xc0000102
#define CR0_MP (1UL << 1)
#define CR0_EM (1UL << 2)
#define CR0_TS (1UL << 3)
#define CR0_NE (1UL << 5)
#define CR0_WP (1UL << 16)
#define CR4_PGE (1UL << 7)
#define CR4_OSFXSR (1UL << 9)
#define CR4_OSXMMEXCPT (1UL << 10)
#define CR4_UMIP (1UL << 11)
#define CR4_FSGSBASE (1UL << 16)
#define CR4_OSXSAVE (1UL << 18)
#define CR4_SMEP (1UL << 20)
#define CR4_SMAP (1UL << 21)
/* x87, SSE, AVX, and the three parts of AVX-512, which XSETBV wants together. */
#define XCR0_BASE 0x7UL
#define XCR0_AVX512 0xe0UL

struct cpu_features cpu_features;
struct cpu boot_cpu;
static struct arch_cpu boot_arch;
_Static_assert(offsetof(struct arch_cpu, pvclock) % 4 == 0 && sizeof(struct arch_cpu) <= 1024, "cpu_create");
struct cpu *cpus[CPU_MAX] = { &boot_cpu };
static unsigned count = 1;

unsigned cpu_count(void)
{
    return count;
}

void cpu_set_count(unsigned n)
{
    count = n;
}

struct cpu *cpu_by_id(unsigned id)
{
    return cpus[id];
}

void cpu_features_detect(void)
{
    struct cpu_features *f = &cpu_features;
    f->max_leaf = cpuid(0, 0).a;
    f->max_extended = cpuid(0x80000000, 0).a;
    struct cpuid l1 = cpuid(1, 0);
    f->pge = l1.d & (1u << 13);
    f->x2apic = l1.c & (1u << 21);
    f->tsc_deadline = l1.c & (1u << 24);
    f->xsave = l1.c & (1u << 26);
    f->rdrand = l1.c & (1u << 30);
    f->hypervisor = l1.c & (1u << 31);
    if (f->max_leaf >= 6)
        f->arat = cpuid(6, 0).a & (1u << 2);
    if (f->max_leaf >= 7) {
        struct cpuid l7 = cpuid(7, 0);
        f->fsgsbase = l7.b & (1u << 0);
        f->smep = l7.b & (1u << 7);
        f->erms = l7.b & (1u << 9);
        f->smap = l7.b & (1u << 20);
        f->umip = l7.c & (1u << 2);
    }
    if (f->max_extended >= 0x80000001) {
        uint32_t d = cpuid(0x80000001, 0).d;
        f->nx = d & (1u << 20);
        f->huge_1g = d & (1u << 26);
        f->rdtscp = d & (1u << 27);
    }
    if (f->max_extended >= 0x80000007)
        f->tsc_invariant = cpuid(0x80000007, 0).d & (1u << 8);
    if (f->hypervisor) {
        struct cpuid h = cpuid(0x40000000, 0);
        f->max_hypervisor = h.a;
        f->kvm = h.b == 0x4b4d564b && h.c == 0x564b4d56 && h.d == 0x4d;
        if (f->kvm)
            f->kvm_features = cpuid(0x40000001, 0).a;
    }
    const char *tsc = cmdline_get("tsc");
    f->tsc_reliable = f->tsc_invariant || (tsc && !strcmp(tsc, "reliable"));
    if (f->xsave && f->max_leaf >= 0xd) {
        struct cpuid x = cpuid(0xd, 0);
        uint64_t offered = (uint64_t)x.d << 32 | x.a;
        f->xcr0 = offered & XCR0_BASE;
        if ((f->xcr0 & 4) && (offered & XCR0_AVX512) == XCR0_AVX512)
            f->xcr0 |= XCR0_AVX512;
        f->xsaveopt = cpuid(0xd, 1).a & 1;
    } else {
        f->xsave = false;
        f->xcr0 = 3;
    }
}

void cpu_enable_features(void)
{
    const struct cpu_features *f = &cpu_features;
    write_cr0((read_cr0() & ~(CR0_EM | CR0_TS)) | CR0_MP | CR0_NE | CR0_WP);
    uint64_t cr4 = read_cr4() & ~CR4_FSGSBASE;
    cr4 |= CR4_OSFXSR | CR4_OSXMMEXCPT;
    cr4 |= (f->pge ? CR4_PGE : 0) | (f->umip ? CR4_UMIP : 0) | (f->smep ? CR4_SMEP : 0) |
           (f->smap ? CR4_SMAP : 0) | (f->xsave ? CR4_OSXSAVE : 0);
    write_cr4(cr4);
    if (f->xsave)
        __asm__ volatile("xsetbv" : : "c"(0), "a"((uint32_t)f->xcr0), "d"((uint32_t)(f->xcr0 >> 32)));
    wrmsr(MSR_EFER, rdmsr(MSR_EFER) | EFER_SCE | (f->nx ? EFER_NXE : 0));
    wrmsr(MSR_STAR, (uint64_t)USER_CS32 << 48 | (uint64_t)KERNEL_CS << 32);
    wrmsr(MSR_LSTAR, (uint64_t)syscall_entry);
    wrmsr(MSR_SFMASK, 0x47700); /* AC NT IOPL DF IF TF */
    wrmsr(MSR_FS_BASE, 0);
    wrmsr(MSR_KERNEL_GS_BASE, 0);
}

void cpu_load_tables(struct cpu *c)
{
    struct arch_cpu *a = arch_of(c);
    struct {
        uint16_t limit;
        uint64_t base;
    } __packed pointer = { sizeof a->gdt - 1, (uint64_t)a->gdt };
    __asm__ volatile("lgdt %0" : : "m"(pointer));
    /* Null selectors also clear the GS base, so the MSR is written after them. */
    __asm__ volatile("movl %0, %%ds; movl %0, %%es; movl %0, %%fs; movl %0, %%gs" : : "r"(0));
    __asm__ volatile("movl %0, %%ss" : : "r"(KERNEL_SS));
    __asm__ volatile("pushq %0; leaq 1f(%%rip), %%rax; pushq %%rax; lretq; 1:"
                     : : "i"(KERNEL_CS) : "rax", "memory");
    wrmsr(MSR_GS_BASE, (uint64_t)c);
    __asm__ volatile("ltr %w0" : : "r"(TSS_SEL));
    idt_load();
}

/* ist_top[i] is the top of the stack of IST i+1. */
static void cpu_fill(struct cpu *c, struct arch_cpu *a, const uint64_t ist_top[IST_COUNT])
{
    c->self = c;
    c->arch = a;
    a->timer_deadline = TIME_FOREVER;
    a->tss.iomap = sizeof a->tss;
    for (unsigned i = 0; i < IST_COUNT; i++)
        a->tss.ist[i] = ist_top[i];
    uint64_t base = (uint64_t)&a->tss;
    uint64_t *g = a->gdt;
    g[KERNEL_CS / 8] = 0x00af9b000000ffff;
    g[KERNEL_SS / 8] = 0x00cf93000000ffff;
    g[USER_CS32 / 8] = 0x00cffb000000ffff;
    g[USER_SS / 8] = 0x00cff3000000ffff;
    g[USER_CS / 8] = 0x00affb000000ffff;
    g[TSS_SEL / 8] = (sizeof a->tss - 1) | (base & 0xffffff) << 16 | 0x89UL << 40 |
                     ((base >> 24) & 0xff) << 56;
    g[TSS_SEL / 8 + 1] = base >> 32;
}

void cpu_setup_boot(void)
{
    uint64_t top[IST_COUNT];
    for (unsigned i = 0; i < IST_COUNT; i++)
        top[i] = (uint64_t)boot_ist_stacks + (i + 1) * IST_STACK_SIZE;
    cpu_fill(&boot_cpu, &boot_arch, top);
    boot_cpu.online = true;
    cpu_load_tables(&boot_cpu);
}

static void *stack_create(size_t size)
{
    struct page *pages[KSTACK_SIZE / PAGE_SIZE];
    size_t n = size / PAGE_SIZE, got = 0;
    while (got < n && (pages[got] = page_alloc(0, 0)))
        got++;
    void *stack = got == n ? vmap(pages, n, VMAP_RW) : NULL;
    while (!stack && got)
        page_put(pages[--got]);
    return stack;
}

uint64_t cpu_stack_create(void)
{
    void *stack = stack_create(KSTACK_SIZE);
    return stack ? (uint64_t)stack + KSTACK_SIZE : 0;
}

/* What a failed call leaves behind is kept: the boot goes on with fewer CPUs and says so. */
struct cpu *cpu_create(void)
{
    struct cpu *c = kzalloc(sizeof *c);
    struct arch_cpu *a = kzalloc(sizeof *a <= 512 ? 512 : 1024); /* a power of two is aligned to itself */
    char *idle = stack_create(KSTACK_SIZE);
    uint64_t top[IST_COUNT];
    bool complete = c && a && idle;
    for (unsigned i = 0; i < IST_COUNT && complete; i++) {
        char *stack = stack_create(IST_STACK_SIZE);
        complete = stack != NULL;
        top[i] = (uint64_t)stack + IST_STACK_SIZE;
    }
    if (!complete)
        return NULL;
    cpu_fill(c, a, top);
    a->boot_stack = idle + KSTACK_SIZE;
    return c;
}

extern const struct {
    uint64_t address, stac;
} smap_sites_start[], smap_sites_end[];

void smap_patch(void)
{
    if (!cpu_features.smap)
        return;
    for (__typeof__(&smap_sites_start[0]) s = smap_sites_start; s < smap_sites_end; s++) {
        uint8_t *site = (uint8_t *)s->address;
        site[0] = 0x0f;
        site[1] = 0x01;
        site[2] = s->stac ? 0xcb : 0xca;
    }
}
