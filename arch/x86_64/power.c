/* Leaving the machine, and the power button. */
#include <weir/errno.h>
#include <weir/printk.h>
#include "arch/x86_64/aml.h"
#include "arch/x86_64/arch.h"
#include "arch/x86_64/madt.h"

#define DEBUG_EXIT_PORT 0xf4
#define PM1_SCI_ENABLED 1u
#define PM1_POWER_BUTTON (1u << 8)
#define PM1_SLEEP_ENABLE (1u << 13)
#define SLEEP_ENABLE (1u << 5) /* of the sleep control register */
#define ACPI_MODE_POLLS 100000

static void (*button_fn)(void *);
static void *button_arg;
static bool sci_routed;

static volatile uint8_t *sleep_control; /* I NULL = PM1 blocks, or none */

static void sleep_s5(void)
{
    const struct aml_facts *aml = acpi_aml();
    if (!fadt.present || aml->s5_a < 0)
        return;
    if (sleep_control)
        *sleep_control = (uint8_t)(aml->s5_a << 2 | SLEEP_ENABLE);
    if (fadt.pm1b_control)
        outw((uint16_t)fadt.pm1b_control, (uint16_t)((unsigned)aml->s5_b << 10 | PM1_SLEEP_ENABLE));
    if (fadt.pm1a_control)
        outw((uint16_t)fadt.pm1a_control, (uint16_t)((unsigned)aml->s5_a << 10 | PM1_SLEEP_ENABLE));
}

void machine_exit(int status)
{
    irq_disable();
    console_drain();
    outl(DEBUG_EXIT_PORT, (uint32_t)status);
    /* Still here: no such device. ACPI's way out carries no status, so the console does. */
    console_panic_mode();
    if (status)
        log_error("exit status %d", status);
    else
        log_info("exit status %d", status);
    console_drain();
    sleep_s5();
    clock_delay_ns(NSEC_PER_SEC); /* the machine goes down when its own loop comes round */
    log_error("this machine cannot be switched off by software");
    cpu_stop();
}

void machine_set_power_button(void (*fn)(void *), void *arg)
{
    button_arg = arg;
    atomic_store_release(&button_fn, fn); /* arg is seen before fn */
}

void machine_power_button(void)
{
    void (*fn)(void *) = atomic_load_acquire(&button_fn);
    if (fn)
        fn(button_arg);
    else
        machine_exit(0);
}

static uint16_t event_status(uint32_t block)
{
    uint16_t status = block ? inw((uint16_t)block) : 0;
    if (status)
        outw((uint16_t)block, status); /* ones clear; the level goes away */
    return status;
}

static void (*gpe_fn)(void *);
static void *gpe_arg;
static uint16_t gpe_port; /* a of its status byte; 0 = no event is enabled */
static uint8_t gpe_bit;

static void gpe_interrupt(void)
{
    uint16_t port = atomic_load_acquire(&gpe_port); /* the rest is seen with it */
    if (!port || !(inb(port) & gpe_bit))
        return;
    outb(port, gpe_bit); /* ones clear; what is raised from here on interrupts again */
    gpe_fn(gpe_arg);
}

int acpi_gpe_enable(unsigned gpe, void (*fn)(void *), void *arg)
{
    unsigned half = fadt.gpe0_len / 2u;
    if (!sci_routed || !fadt.gpe0 || gpe / 8 >= half || gpe_port)
        return -ENODEV;
    uint16_t status = (uint16_t)(fadt.gpe0 + gpe / 8);
    gpe_fn = fn;
    gpe_arg = arg;
    gpe_bit = (uint8_t)(1u << (gpe % 8));
    outb(status, gpe_bit);
    atomic_store_release(&gpe_port, status);
    outb((uint16_t)(status + half), inb((uint16_t)(status + half)) | gpe_bit);
    return 0;
}

static void sci_interrupt(unsigned vector, void *arg)
{
    gpe_interrupt();
    uint16_t status = event_status(fadt.pm1a_event) | event_status(fadt.pm1b_event);
    if (status & PM1_POWER_BUTTON)
        machine_power_button();
}

static void event_enable(uint32_t block)
{
    if (!block)
        return;
    (void)event_status(block);
    outw((uint16_t)(block + fadt.pm1_event_len / 2), PM1_POWER_BUTTON);
}

static bool acpi_mode(void)
{
    if (!fadt.pm1a_control || inw((uint16_t)fadt.pm1a_control) & PM1_SCI_ENABLED)
        return true;
    if (!fadt.smi_cmd)
        return true;
    outb((uint16_t)fadt.smi_cmd, fadt.acpi_enable);
    for (unsigned i = 0; i < ACPI_MODE_POLLS; i++) {
        if (inw((uint16_t)fadt.pm1a_control) & PM1_SCI_ENABLED)
            return true;
        cpu_relax();
    }
    return false;
}

void power_init(void)
{
    if (fadt.sleep_control)
        sleep_control = vmap_phys(fadt.sleep_control, 1, VMAP_RW | VMAP_UNCACHED);
    if (!fadt.present || !fadt.pm1a_event)
        return;
    if (!acpi_mode()) {
        log_warn("acpi: firmware did not hand over; the power button is off");
        return;
    }
    vector_set_handler(VECTOR_LEGACY_SCI, sci_interrupt, NULL);
    const struct madt_override *o = &acpi_madt()->isa[fadt.sci_irq % ISA_IRQS];
    /* Without a word from the table the SCI is level, active low (ACPI 6.4 section 5.2.9). */
    int err = fadt.sci_irq < ISA_IRQS && o->listed
                  ? ioapic_route(o->gsi, VECTOR_LEGACY_SCI, 0, o->level, o->active_low)
                  : ioapic_route(fadt.sci_irq, VECTOR_LEGACY_SCI, 0, true, true);
    if (err) {
        log_warn("acpi: no line for SCI %u; the power button is off", fadt.sci_irq);
        return;
    }
    sci_routed = true;
    event_enable(fadt.pm1a_event);
    event_enable(fadt.pm1b_event);
}
