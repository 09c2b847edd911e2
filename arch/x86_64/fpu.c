/* x87, SSE, AVX state. Eager: saved and restored at each switch of a thread that has an area. Always the
 * standard (not compacted) form, the one that signal frames have. */
#include <weir/errno.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"

#define LEGACY_SIZE 512
#define HEADER_SIZE 64
#define OFFSET_MXCSR 24
#define OFFSET_MXCSR_MASK 28
#define AREA_ALIGN 64

static struct slab_cache *areas; /* I made on first use */
static uint32_t area_size = LEGACY_SIZE, mxcsr_mask = 0xffbf;
/* Every component in its initial state: XSTATE_BV is 0. */
static uint8_t initial[LEGACY_SIZE + HEADER_SIZE] __attribute__((aligned(64)));

#define STATE_BITS "a"((uint32_t)cpu_features.xcr0), "d"((uint32_t)(cpu_features.xcr0 >> 32))

static void save_plain(void *area)
{
    if (cpu_features.xsave)
        __asm__ volatile("xsave64 (%0)" : : "r"(area), STATE_BITS : "memory");
    else
        __asm__ volatile("fxsave64 (%0)" : : "r"(area) : "memory");
}

void fpu_save(void *area)
{
    if (cpu_features.xsaveopt)
        __asm__ volatile("xsaveopt64 (%0)" : : "r"(area), STATE_BITS : "memory");
    else
        save_plain(area);
}

void fpu_restore(const void *area)
{
    if (cpu_features.xsave)
        __asm__ volatile("xrstor64 (%0)" : : "r"(area), STATE_BITS : "memory");
    else
        __asm__ volatile("fxrstor64 (%0)" : : "r"(area) : "memory");
}

void fpu_init(void)
{
    uint32_t mxcsr = 0x1f80, found_mask;
    uint16_t control = 0x37f;
    if (cpu_features.xsave)
        area_size = cpuid(0xd, 0).b; /* for what XCR0 has now */
    __asm__ volatile("fninit");
    __asm__ volatile("fxsave64 (%0)" : : "r"(initial) : "memory");
    memcpy(&found_mask, initial + OFFSET_MXCSR_MASK, sizeof found_mask);
    if (found_mask)
        mxcsr_mask = found_mask;
    memset(initial, 0, sizeof initial);
    memcpy(initial, &control, sizeof control);
    memcpy(initial + OFFSET_MXCSR, &mxcsr, sizeof mxcsr);
    memcpy(initial + OFFSET_MXCSR_MASK, &mxcsr_mask, sizeof mxcsr_mask);
}

size_t fpu_state_size(void)
{
    return area_size;
}

uint64_t fpu_feature_mask(void)
{
    return cpu_features.xcr0;
}

void fpu_save_current(void *buf)
{
    /* XSAVE leaves components in their initial state unwritten, and the header's other fields too. */
    memset(buf, 0, area_size);
    save_plain(buf);
}

int fpu_restore_current(const void *buf)
{
    const uint8_t *b = buf;
    uint32_t mxcsr;
    memcpy(&mxcsr, b + OFFSET_MXCSR, sizeof mxcsr);
    if (mxcsr & ~mxcsr_mask)
        return -EINVAL;
    if (cpu_features.xsave) {
        uint64_t header[HEADER_SIZE / 8];
        memcpy(header, b + LEGACY_SIZE, sizeof header);
        uint64_t reserved = 0;
        for (unsigned i = 1; i < ARRAY_SIZE(header); i++)
            reserved |= header[i]; /* XCOMP_BV too: the compacted form is not ours */
        if ((header[0] & ~cpu_features.xcr0) || reserved)
            return -EINVAL;
    }
    fpu_restore(buf);
    return 0;
}

void fpu_reset_current(void)
{
    fpu_restore(initial);
}

/* Two first callers may both make a cache; one of them stays unused. */
static struct slab_cache *areas_get(void)
{
    struct slab_cache *c = atomic_load_acquire(&areas);
    if (!c) {
        c = slab_create("fpu", area_size, AREA_ALIGN);
        if (c)
            atomic_store_release(&areas, c);
    }
    return c;
}

void *fpu_alloc(void)
{
    struct slab_cache *c = areas_get();
    void *area = c ? slab_alloc(c) : NULL;
    if (area) {
        memset(area, 0, area_size);
        memcpy(area, initial, sizeof initial < area_size ? sizeof initial : area_size);
    }
    return area;
}

void fpu_copy(void *dst, struct thread *src_thread_current)
{
    assert(src_thread_current == current);
    save_plain(dst);
}

void fpu_free(void *area)
{
    slab_free(areas, area);
}
