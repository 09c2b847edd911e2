/* Private to arch/x86_64: what its files share. */
#ifndef WEIR_ARCH_H
#define WEIR_ARCH_H

#include <weir/cpu.h>
#include <weir/mm.h>
#include <weir/trap.h>
#include <weir/time.h>
#include "arch/x86_64/asm_offsets.h"
#include "arch/x86_64/pvclock.h"

#define KERNEL_BASE 0xffffffff80000000UL

extern char image_start[], image_end[], text_start[], text_end[], rodata_start[], rodata_end[],
    data_start[], data_end[];

/* ---- instructions ---- */
static inline void outb(uint16_t port, uint8_t v) { __asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(port)); }
static inline void outw(uint16_t port, uint16_t v) { __asm__ volatile("outw %0, %1" : : "a"(v), "Nd"(port)); }
static inline void outl(uint16_t port, uint32_t v) { __asm__ volatile("outl %0, %1" : : "a"(v), "Nd"(port)); }
static inline uint8_t inb(uint16_t port) { uint8_t v; __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port)); return v; }
static inline uint16_t inw(uint16_t port) { uint16_t v; __asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port)); return v; }
static inline uint32_t inl(uint16_t port) { uint32_t v; __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port)); return v; }
static inline uint64_t rdmsr(uint32_t msr)
{
    uint32_t lo, hi;
    __asm__ volatile("rdmsr" : "=a"(lo), "=d"(hi) : "c"(msr));
    return (uint64_t)hi << 32 | lo;
}
static inline void wrmsr(uint32_t msr, uint64_t v)
{
    __asm__ volatile("wrmsr" : : "c"(msr), "a"((uint32_t)v), "d"((uint32_t)(v >> 32)) : "memory");
}
static inline uint64_t rdtsc(void)
{
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi) : : "memory");
    return (uint64_t)hi << 32 | lo;
}
/* Not before earlier loads: a reading never precedes what the caller has already seen. */
static inline uint64_t rdtsc_ordered(void)
{
    __asm__ volatile("lfence" : : : "memory");
    return rdtsc();
}
/* a * b / c with a 128-bit product; the quotient must fit 64 bits. */
static inline uint64_t mul_div(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t low, high;
    __asm__("mulq %3" : "=a"(low), "=d"(high) : "a"(a), "r"(b) : "cc");
    __asm__("divq %2" : "+a"(low), "+d"(high) : "r"(c) : "cc");
    return low;
}
struct cpuid { uint32_t a, b, c, d; };
static inline struct cpuid cpuid(uint32_t leaf, uint32_t sub)
{
    struct cpuid r;
    __asm__ volatile("cpuid" : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d) : "a"(leaf), "c"(sub));
    return r;
}
static inline uint64_t read_cr0(void) { uint64_t v; __asm__ volatile("movq %%cr0, %0" : "=r"(v)); return v; }
static inline uint64_t read_cr2(void) { uint64_t v; __asm__ volatile("movq %%cr2, %0" : "=r"(v)); return v; }
static inline uint64_t read_cr3(void) { uint64_t v; __asm__ volatile("movq %%cr3, %0" : "=r"(v)); return v; }
static inline uint64_t read_cr4(void) { uint64_t v; __asm__ volatile("movq %%cr4, %0" : "=r"(v)); return v; }
static inline void write_cr0(uint64_t v) { __asm__ volatile("movq %0, %%cr0" : : "r"(v) : "memory"); }
static inline void write_cr3(uint64_t v) { __asm__ volatile("movq %0, %%cr3" : : "r"(v) : "memory"); }
static inline void write_cr4(uint64_t v) { __asm__ volatile("movq %0, %%cr4" : : "r"(v) : "memory"); }
static inline void invlpg(uint64_t va) { __asm__ volatile("invlpg (%0)" : : "r"(va) : "memory"); }

/* ---- what CPUID offers (cpu.c); filled by the boot CPU before anything else ---- */
struct cpu_features {
    uint32_t max_leaf, max_extended, max_hypervisor;
    bool nx, huge_1g, pge, smep, smap, umip, fsgsbase, rdtscp, rdrand, erms;
    bool xsave, xsaveopt, x2apic, tsc_deadline, tsc_invariant, hypervisor, kvm, arat;
    uint32_t kvm_features;
    uint64_t xcr0;
    uint32_t xsave_size;
    bool tsc_reliable; /* invariant, or tsc=reliable on the command line */
};
extern struct cpu_features cpu_features;
void cpu_features_detect(void);

/* ---- per-CPU tables (cpu.c) ---- */
struct tss {
    uint32_t reserved0;
    uint64_t rsp[3];
    uint64_t reserved1;
    uint64_t ist[7];
    uint64_t reserved2;
    uint16_t reserved3, iomap;
} __packed;
struct arch_cpu {
    struct tss tss;
    uint64_t gdt[10];
    uint64_t fs_base;             /* o what MSR_FS_BASE holds */
    struct pagetable *loaded;     /* o what CR3 holds, in use or not; NULL = the kernel's own tables */
    uint64_t tlb_generation;      /* o the TLB has forgotten all that loaded's flushes up to this one took away */
    uint64_t timer_deadline;      /* o ns, TIME_FOREVER = off */
    uint64_t timer_early;         /* o interrupts that came before their deadline and were armed again */
    /* Cross calls (call.c): callers that want something of this CPU; a. */
    struct cpumask incoming;
    void (*call_fn)(void *);      /* I while call_left > 0 */
    void *call_arg;
    uint32_t call_left;           /* a targets that have not finished */
    bool call_asleep;             /* a the last target shall kick this CPU */
    /* Panic: where the NMI found this CPU. */
    uint64_t stopped_rip, stopped_rbp;
    bool stopped;                 /* a */
    uint64_t nmi_count;           /* o */
    bool in_nmi;                  /* o */
    void *boot_stack;             /* idle stack of an AP */
    struct pvclock pvclock;       /* written by the host; 32 bytes at their own alignment cross no page */
} __cacheline;
static inline struct arch_cpu *arch_of(struct cpu *c) { return c->arch; }

extern struct cpu boot_cpu;
void cpu_setup_boot(void);                   /* GDT, TSS, GS of the boot CPU on its static stacks */
struct cpu *cpu_create(void) __must_check;   /* block, tables and stacks for one more; NULL */
uint64_t cpu_stack_create(void);             /* top of one more idle stack; 0 = no memory */
void cpu_load_tables(struct cpu *c);         /* GDT, TSS, IDT, GS, on the CPU itself */
void cpu_enable_features(void);              /* CR0, CR4, EFER, XCR0, syscall MSRs; every CPU */
void smap_patch(void);                       /* while text is writable */
void cpu_set_count(unsigned n);
extern struct cpu *cpus[CPU_MAX];

/* ---- traps (trap.c, idt.c) ---- */
void idt_init(void);
void idt_load(void);
void vector_dispatch(unsigned vector, struct trapframe *tf);
void trap_report(const struct trapframe *tf, unsigned vector, uint64_t addr);
const char *trap_name(unsigned vector);
/* Read kernel memory that may not be mapped; false if it is not. Any context. */
bool kernel_read_safe(uint64_t addr, uint64_t *value);

/* ---- memory (memmap.h, paging.c) ---- */
struct hvm_start_info;
void paging_init(void);                      /* final tables; then page_allocator_ready */
void paging_load_kernel(void);
extern uint64_t *kernel_pml4;
uint64_t paging_kernel_root_phys(void);
uint64_t trampoline_phys(void);              /* page below 1 MiB */
extern char boot_pml4[];

/* ---- ACPI (acpi.c) ---- */
struct madt_info;
void acpi_init(uint64_t rsdp_phys);
const struct madt_info *acpi_madt(void);
struct fadt_info {
    uint16_t sci_irq;
    uint32_t smi_cmd;
    uint8_t acpi_enable;
    uint32_t pm1a_event, pm1b_event, pm1a_control, pm1b_control, pm_timer;
    uint8_t pm1_event_len, gpe0_len; /* gpe0: half status, half enable bits */
    uint32_t gpe0;
    bool present, pm_timer_32bit;
    uint64_t sleep_control; /* in memory; 0 = there are PM1 blocks */
};
extern struct fadt_info fadt;
struct aml_facts;
const struct aml_facts *acpi_aml(void);

/* ---- local APIC (apic.c) ---- */
#define VECTOR_SPURIOUS 0xff
#define VECTOR_APIC_ERROR 0xfe
#define VECTOR_RESCHEDULE 0xfd
#define VECTOR_CALL 0xfc
#define VECTOR_TIMER 0xfb
#define VECTOR_LEGACY_SERIAL 0xfa
#define VECTOR_LEGACY_SCI 0xf9
void apic_init(void);                        /* boot CPU: mode, mapping; then apic_enable_cpu */
void apic_enable_cpu(void);
void apic_eoi(void);
uint32_t apic_id(void);
void apic_send(uint32_t dest_apic_id, uint32_t icr_low);
#define ICR_FIXED(vector) (0x4000u | (vector))
#define ICR_NMI 0x4400u
#define ICR_INIT 0x4500u
#define ICR_STARTUP(page) (0x4600u | (page))
void apic_timer_init(void);                  /* boot CPU, after the clock: measures the rate */
/* Halts until the timer's counter has run down from ticks. Boot CPU, interrupts off, before apic_timer_init. */
void apic_timer_nap(uint32_t ticks);
void apic_timer_enable_cpu(void);

/* ---- I/O APIC, legacy lines (ioapic.c, power.c) ---- */
void ioapic_init(void);
int isa_irq_route(unsigned irq, unsigned vector, unsigned cpu) __must_check;
void power_init(void);
void machine_power_button(void);             /* interrupt context */

/* ---- clock (clock.c) ---- */
void clock_init(void);
void clock_enable_cpu(void);                 /* each other CPU */
uint64_t clock_tsc_hz(void);
uint64_t clock_ns_to_tsc(uint64_t deadline_ns); /* absolute */

/* ---- console (console.c) ---- */
void console_init(void);
void console_init_input(void);
void console_panic_mode(void);               /* no lock from now on */
void console_drain(void);

/* ---- FPU (fpu.c) ---- */
void fpu_init(void);
void fpu_save(void *area);
void fpu_restore(const void *area);

/* ---- cross calls (call.c) ---- */
void call_init(void);

/* ---- panic (panic.c) ---- */
void panic_nmi(const struct trapframe *tf);  /* true panic under way: record and stop */
void nmi_report(const struct trapframe *tf); /* where this CPU was; it goes on */
bool panic_active(void);
__noreturn void panic_trap(const struct trapframe *tf, unsigned vector, uint64_t addr);
void backtrace_print(uint64_t rip, uint64_t rbp);
void symbol_format(uint64_t addr, char *buf, size_t size);
__noreturn void cpu_stop(void);

/* ---- assembler ---- */
extern char vector_stubs[], syscall_entry[], iret_to_user[], thread_first_kernel[], thread_first_user[];
extern char boot_stack_guard[], boot_stack_top[], boot_ist_stacks[];
struct thread *switch_stacks(uint64_t *save_rsp, uint64_t new_rsp, struct thread *prev);

#endif
