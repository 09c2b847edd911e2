/* The host versions of kernel services keep the kernel's promises. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>
#include <weir/errno.h>
#include "host.h"

static struct mutex counter_mutex = MUTEX_INIT(counter_mutex);
static unsigned counter;
static struct completion finished;
static unsigned running;

static void count_under_mutex(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        mutex_lock(&counter_mutex);
        counter++;
        mutex_unlock(&counter_mutex);
    }
    if (atomic_fetch_sub(&running, 1) == 1)
        completion_complete(&finished);
}
static void mutex_excludes(void **state)
{
    completion_init(&finished);
    running = 4;
    for (int i = 0; i < 4; i++) {
        struct thread *t = thread_create("count", count_under_mutex, NULL);
        thread_start(t);
        thread_put(t);
    }
    completion_wait(&finished);
    host_join_threads();
    assert_int_equal(counter, 80000);
}

static struct rw_mutex rw;
static unsigned rw_value, rw_copy;
static void rw_user(void *arg)
{
    for (int i = 0; i < 5000; i++) {
        if (i % 4 == 0) {
            rw_write_lock(&rw);
            rw_value++;
            rw_copy++;
            rw_write_unlock(&rw);
        } else {
            rw_read_lock(&rw);
            if (rw_value != rw_copy)
                abort();
            rw_read_unlock(&rw);
        }
    }
}
static void rw_mutex_excludes_writers(void **state)
{
    rw_mutex_init(&rw);
    for (int i = 0; i < 4; i++)
        thread_start(thread_create("rw", rw_user, NULL));
    host_join_threads();
    assert_int_equal(rw_value, 4 * 1250);
}

static void wait_with_a_deadline_times_out(void **state)
{
    struct wait_queue q = WAIT_QUEUE_INIT(q);
    uint64_t start = clock_monotonic_ns();
    assert_int_equal(wait_event_timeout(&q, false, start + 20 * NSEC_PER_MSEC), -ETIMEDOUT);
    assert_true(clock_monotonic_ns() - start >= 20 * NSEC_PER_MSEC);
}

static void pages_are_counted_and_aligned(void **state)
{
    uint64_t before = mm_free_pages();
    struct page *p = page_alloc(3, MM_ZERO);
    assert_non_null(p);
    assert_true(IS_ALIGNED((uintptr_t)page_virt(p), 8 * PAGE_SIZE));
    assert_int_equal(mm_free_pages(), before - 8);
    page_get(p + 3);
    page_put(p);
    assert_int_equal(mm_free_pages(), before - 8);
    page_put(p + 5);
    assert_int_equal(mm_free_pages(), before);
    host_fail_allocations_after(1);
    void *m = kmalloc(10);
    assert_non_null(m);
    assert_null(kmalloc(10));
    host_fail_allocations_after(-1);
    kfree(m);
}

static void vmap_shows_the_same_memory(void **state)
{
    struct page *p[2] = { page_alloc(0, MM_ZERO), page_alloc(0, MM_ZERO) };
    char *v = vmap(p, 2, VMAP_RW);
    v[PAGE_SIZE + 7] = 42;
    assert_int_equal(((char *)page_virt(p[1]))[7], 42);
    assert_int_equal(virt_to_phys(v + PAGE_SIZE + 7), page_phys(p[1]) + 7);
    vunmap(v);
    page_put(p[0]);
    page_put(p[1]);
}

static unsigned timer_fired;
static void timer_fn(struct timer *t) { atomic_fetch_add(&timer_fired, 1); }
static void timer_fires_once(void **state)
{
    struct timer t;
    timer_init(&t, timer_fn);
    timer_arm(&t, clock_monotonic_ns() + 5 * NSEC_PER_MSEC);
    sleep_until_ns(clock_monotonic_ns() + 50 * NSEC_PER_MSEC);
    timer_cancel_sync(&t);
    assert_int_equal(atomic_load_relaxed(&timer_fired), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutex_excludes),
        cmocka_unit_test(rw_mutex_excludes_writers),
        cmocka_unit_test(wait_with_a_deadline_times_out),
        cmocka_unit_test(pages_are_counted_and_aligned),
        cmocka_unit_test(vmap_shows_the_same_memory),
        cmocka_unit_test(timer_fires_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
