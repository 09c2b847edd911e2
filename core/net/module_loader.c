/*
 * lwIP instances. The image carries the module (build/lwip/lwip.so) whole. Each instance is a range of the
 * kernel's virtual area: text and constants are the same physical pages in all, data is its own. The module's
 * code finds its data relative to itself, so that each instance has its own variables.
 */
#include <weir/mm.h>
#include "core/net/module_elf.h"
#include "core/net/net_internal.h"

extern const uint8_t lwip_module_start[], lwip_module_end[];
extern const uint64_t lwip_ksym_count, lwip_ksym_addresses[];
extern const uint32_t lwip_ksym_offsets[];
extern const char lwip_ksym_names[];
extern uintptr_t __stack_chk_guard;
void __stack_chk_fail(void);

struct import {
    const char *name;
    const void *address;
};
#define IMPORT(f) { #f, (const void *)(uintptr_t)&f }
static const struct import imports[] = {
    IMPORT(memcpy), IMPORT(memmove), IMPORT(memset), IMPORT(memcmp), IMPORT(strlen), IMPORT(strncmp),
    IMPORT(__stack_chk_guard), IMPORT(__stack_chk_fail),
    IMPORT(module_alloc), IMPORT(module_calloc), IMPORT(module_free), IMPORT(module_now_ms), IMPORT(module_assert_failed),
    IMPORT(stack_transmit), IMPORT(stack_netif_changed),
    IMPORT(socket_tcp_syn), IMPORT(socket_tcp_syn_dropped), IMPORT(socket_tcp_accepted), IMPORT(socket_tcp_connected),
    IMPORT(socket_tcp_data), IMPORT(socket_tcp_data_end), IMPORT(socket_tcp_eof), IMPORT(socket_tcp_acked),
    IMPORT(socket_tcp_error), IMPORT(socket_tcp_gone), IMPORT(socket_udp_data),
};

static struct module_elf module;
static struct page **shared_pages; /* by page of the module; NULL = private or no page */

static const void *import_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(imports); i++) {
        if (!strcmp(imports[i].name, name))
            return imports[i].address;
    }
    return NULL;
}

static struct page *page_filled(const struct module_segment *s, uint64_t page_address)
{
    struct page *p = page_alloc(0, MM_ZERO);
    if (!p)
        return NULL;
    uint8_t *to = page_virt(p);
    uint64_t from = MAX(page_address, s->address), end = MIN(page_address + PAGE_SIZE, s->address + s->file_size);
    if (from < end)
        memcpy(to + (from - page_address), module.file + s->offset + (from - s->address), end - from);
    return p;
}

/* Map one segment of one instance at base. The pages it made are recorded in pages[]. */
static bool map_segment(const struct module_segment *s, uint8_t *base, struct page **pages)
{
    uint64_t first = ALIGN_DOWN(s->address, PAGE_SIZE), end = ALIGN_UP(s->address + s->memory_size, PAGE_SIZE);
    unsigned prot = s->execute ? VMAP_RX : s->write ? VMAP_RW : VMAP_RO;
    for (uint64_t a = first; a < end; a += PAGE_SIZE) {
        struct page **slot = s->write ? &pages[a / PAGE_SIZE] : &shared_pages[a / PAGE_SIZE];
        if (!*slot)
            *slot = page_filled(s, a);
        if (!*slot || vmap_install(base + a, *slot, prot))
            return false;
    }
    return true;
}

static bool relocate(uint8_t *base, struct page **pages)
{
    for (uint64_t i = 0; i < module.relocation_count; i++) {
        struct module_relocation r;
        const char *why;
        if (module_elf_relocation(&module, i, &r, &why)) {
            log_error("net: lwIP module: %s", why);
            return false;
        }
        const void *target = base;
        if (!r.relative) {
            target = import_find(r.symbol);
            if (!target) {
                log_error("net: lwIP module: %s is not provided by the kernel", r.symbol);
                return false;
            }
        }
        uint64_t value = (uint64_t)(uintptr_t)target + r.addend;
        /* Through the direct map: a relocation may cross from one page to the next. */
        for (unsigned b = 0; b < 8; b++) {
            uint64_t a = r.address + b;
            ((uint8_t *)page_virt(pages[a / PAGE_SIZE]))[a % PAGE_SIZE] = (uint8_t)(value >> (8 * b));
        }
    }
    return true;
}

static bool module_open(void)
{
    const char *why;
    if (module.file)
        return true;
    if (module_elf_parse(lwip_module_start, (size_t)(lwip_module_end - lwip_module_start), &module, &why)) {
        log_error("net: lwIP module: %s", why);
        module.file = NULL;
        return false;
    }
    shared_pages = kcalloc(module.memory_size / PAGE_SIZE, sizeof(*shared_pages));
    return shared_pages != NULL;
}

const struct module_ops *module_instantiate(void **base_out)
{
    uint64_t entry;
    if (!module_open() || module_elf_symbol(&module, "lwip_module_ops", &entry))
        return NULL;
    size_t count = module.memory_size / PAGE_SIZE;
    struct page **pages = kcalloc(count, sizeof(*pages));
    uint8_t *base = vmap_reserve(module.memory_size);
    bool ok = pages && base;
    for (unsigned i = 0; ok && i < module.segment_count; i++)
        ok = map_segment(&module.segments[i], base, pages);
    ok = ok && relocate(base, pages);
    if (!ok) {
        log_error("net: no memory for one more lwIP instance");
        if (base)
            vunmap(base);
        for (size_t i = 0; pages && i < count; i++) {
            if (pages[i])
                page_put(pages[i]);
        }
        kfree(pages);
        return NULL;
    }
    kfree(pages); /* they stay for as long as the machine runs */
    *base_out = base;
    symbol_module_add((uint64_t)base, module.memory_size, lwip_ksym_count, lwip_ksym_addresses, lwip_ksym_offsets,
                      lwip_ksym_names);
    log_debug("net: lwIP instance at %p, %lu KiB, add-symbol-file build/lwip/lwip.so -o %p", base,
              (unsigned long)(module.memory_size >> 10), base);
    const struct module_ops *(*ops)(void) = (const struct module_ops *(*)(void))(uintptr_t)(base + entry);
    return ops();
}
