/*
 * The vDSO: a data page and the shared object of vdso/, the same pages in every program, mapped by exec. Where the
 * object's pages are is one shm_object, whose mappings can never be made writable.
 */
#include "task_internal.h"
#include "vdso.h"
#include "vdso_data.h"
#include <weir/init.h>

extern const char vdso_image_start[], vdso_image_end[];

static struct shm_object *vdso_object; /* I NULL: no vDSO */
static struct vdso_data *data;         /* I the data page */
static spinlock_t update_lock = SPINLOCK_INIT;

void vdso_update(void)
{
    struct clock_tsc_params p;

    if (!data)
        return;
    spin_lock(&update_lock);
    clock_tsc_params(&p);
    data->sequence++;
    barrier_write(); /* odd is seen before any of the new values */
    data->usable = p.usable;
    data->tsc_base = p.tsc_base;
    data->base_ns = p.base_ns;
    data->realtime_offset_ns = p.realtime_offset_ns;
    data->mult = p.mult;
    data->shift = p.shift;
    barrier_write(); /* all new values are seen before even */
    data->sequence++;
    spin_unlock(&update_lock);
}

/* The object's pages: data first, then the image. */
static int fill_object(struct shm_object *o, size_t image_size)
{
    for (uint64_t i = 0; i <= DIV_ROUND_UP(image_size, PAGE_SIZE); i++) {
        struct page *p = page_alloc(0, MM_ZERO);
        int r;
        if (!p)
            return -ENOMEM;
        if (i)
            memcpy(page_virt(p), vdso_image_start + (i - 1) * PAGE_SIZE, MIN(PAGE_SIZE, image_size - (i - 1) * PAGE_SIZE));
        r = shm_object_set_page(o, i, p);
        if (r) {
            page_put(p);
            return r;
        }
        if (!i)
            data = page_virt(p);
    }
    return 0;
}

static void vdso_init(void)
{
    size_t image_size = (size_t)(vdso_image_end - vdso_image_start);
    struct shm_object *o = shm_object_create(PAGE_SIZE + image_size);

    if (!o || fill_object(o, image_size)) {
        log_warn("vdso: no memory; programs will make system calls for the time");
        data = NULL;
        if (o)
            shm_object_put(o);
        return;
    }
    vdso_object = o;
    vdso_update();
    log_debug("vdso: %lu bytes, TSC %s", (unsigned long)image_size, data->usable ? "usable" : "not usable");
}
INIT_CALL(INIT_LINUX, vdso_init);

uint64_t vdso_map(struct aspace *as)
{
    int64_t at;

    if (!vdso_object)
        return 0;
    at = aspace_map_shm(as, 0, PROT_READ | PROT_EXEC, vdso_object);
    if (at < 0)
        return 0;
    if (aspace_mprotect(as, (uint64_t)at, PAGE_SIZE, PROT_READ))
        log_debug("vdso: the data page stays executable");
    return (uint64_t)at + PAGE_SIZE;
}
