/* First C code of the boot CPU: PVH start info to kernel_main. */
#include <weir/cmdline.h>
#include <weir/main.h>
#include <weir/printk.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"
#include "arch/x86_64/boot.h"
#include "core/mm/mm_private.h"

#define START_INFO_MAGIC 0x336ec578

struct hvm_start_info { /* Xen's public interface for PVH */
    uint32_t magic, version, flags, module_count;
    uint64_t modules, cmdline, rsdp, memory_map;
    uint32_t memory_map_entries, reserved;
};

static struct memmap_entry memory_map[MEMMAP_MAX];
static unsigned memory_map_count;
extern uint64_t __stack_chk_guard;
void arch_start(uint64_t start_info) __attribute__((noreturn));

const struct memmap_entry *boot_memory_map(unsigned *count)
{
    *count = memory_map_count;
    return memory_map;
}

/* Returns the RSDP's address. Everything is copied: its memory is free RAM to the allocator. */
static uint64_t start_info_read(const struct hvm_start_info *info)
{
    if (info->magic != START_INFO_MAGIC || info->version < 1)
        panic("the loader gave no memory map (magic %#x, version %u)", info->magic, info->version);
    cmdline_init(info->cmdline ? phys_to_virt(info->cmdline) : "");
    const struct memmap_entry *entries = phys_to_virt(info->memory_map);
    memory_map_count = MIN(info->memory_map_entries, (unsigned)MEMMAP_MAX);
    memcpy(memory_map, entries, memory_map_count * sizeof *entries);
    return info->rsdp;
}

/* One hardware random number, or what the time-stamp counter gives. Never returns to a frame that was
 * entered with the old value: arch_start does not return. */
static uint64_t canary(void)
{
    uint64_t v = 0;
    bool ok = false;
    for (unsigned i = 0; cpu_features.rdrand && !ok && i < 10; i++)
        __asm__ volatile("rdrand %0; setc %1" : "=r"(v), "=qm"(ok));
    v ^= rdtsc() * 0x9e3779b97f4a7c15;
    return v & ~0xffUL; /* the zero byte stops string overruns */
}

void arch_start(uint64_t start_info)
{
    console_init();
    idt_init();
    cpu_setup_boot();
    uint64_t rsdp = start_info_read(phys_to_virt(start_info));
    cpu_features_detect();
    __stack_chk_guard = canary();
    smap_patch();
    cpu_enable_features();
    fpu_init();
    paging_init();
    acpi_init(rsdp);
    slab_init(cpu_possible_count());
    apic_init();
    clock_init();
    apic_timer_init();
    ioapic_init();
    call_init();
    power_init();
    console_init_input();
    kernel_main();
}
