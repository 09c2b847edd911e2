/* I/O APICs: level and edge lines of ACPI's global system interrupts. Everything starts masked. */
#include <weir/errno.h>
#include <weir/printk.h>
#include <weir/spinlock.h>
#include "arch/x86_64/arch.h"
#include "arch/x86_64/madt.h"

#define REG_VERSION 1
#define REG_REDIRECTION 0x10
#define REDIRECT_ACTIVE_LOW (1u << 13)
#define REDIRECT_LEVEL (1u << 15)
#define REDIRECT_MASKED (1u << 16)

static struct ioapic {
    volatile uint32_t *regs; /* I; [0] selects, [4] is the window: `lock` */
    uint32_t gsi_base, lines;/* I */
} ioapics[MADT_IOAPIC_MAX];
static unsigned ioapic_count;
static spinlock_t lock = SPINLOCK_INIT; /* leaf, interrupts off */

static uint32_t reg_read(struct ioapic *io, unsigned reg)
{
    io->regs[0] = reg;
    return io->regs[4];
}

static void reg_write(struct ioapic *io, unsigned reg, uint32_t v)
{
    io->regs[0] = reg;
    io->regs[4] = v;
}

static struct ioapic *ioapic_of(unsigned gsi)
{
    for (unsigned i = 0; i < ioapic_count; i++) {
        if (gsi >= ioapics[i].gsi_base && gsi - ioapics[i].gsi_base < ioapics[i].lines)
            return &ioapics[i];
    }
    return NULL;
}

int ioapic_route(unsigned gsi, unsigned vector, unsigned cpu, bool level, bool active_low)
{
    struct ioapic *io = ioapic_of(gsi);
    uint32_t id = cpus[cpu]->apic_id;
    if (!io || id > 0xff)
        return -ENODEV;
    unsigned reg = REG_REDIRECTION + 2 * (gsi - io->gsi_base);
    uint32_t low = vector | (level ? REDIRECT_LEVEL : 0) | (active_low ? REDIRECT_ACTIVE_LOW : 0);
    uint64_t flags = spin_lock_irqsave(&lock);
    reg_write(io, reg, low | REDIRECT_MASKED); /* no interrupt to a half-written destination */
    reg_write(io, reg + 1, id << 24);
    reg_write(io, reg, low);
    spin_unlock_irqrestore(&lock, flags);
    return 0;
}

void ioapic_mask(unsigned gsi, bool masked)
{
    struct ioapic *io = ioapic_of(gsi);
    if (!io)
        return;
    unsigned reg = REG_REDIRECTION + 2 * (gsi - io->gsi_base);
    uint64_t flags = spin_lock_irqsave(&lock);
    uint32_t low = reg_read(io, reg) & ~REDIRECT_MASKED;
    reg_write(io, reg, low | (masked ? REDIRECT_MASKED : 0));
    spin_unlock_irqrestore(&lock, flags);
}

int isa_irq_route(unsigned irq, unsigned vector, unsigned cpu)
{
    const struct madt_override *o = &acpi_madt()->isa[irq % ISA_IRQS];
    return ioapic_route(o->gsi, vector, cpu, o->level, o->active_low);
}

void ioapic_init(void)
{
    const struct madt_info *m = acpi_madt();
    for (unsigned i = 0; i < m->ioapic_count; i++) {
        struct ioapic *io = &ioapics[ioapic_count];
        io->regs = vmap_phys(m->ioapics[i].phys, PAGE_SIZE, VMAP_UNCACHED);
        if (!io->regs) {
            log_warn("ioapic %u: no mapping, its lines are lost", i);
            continue;
        }
        io->gsi_base = m->ioapics[i].gsi_base;
        io->lines = ((reg_read(io, REG_VERSION) >> 16) & 0xff) + 1;
        for (unsigned line = 0; line < io->lines; line++)
            reg_write(io, REG_REDIRECTION + 2 * line, REDIRECT_MASKED);
        ioapic_count++;
    }
}
