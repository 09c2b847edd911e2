/* The buddy lists: alignment, no overlap, complete merging, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "core/mm/mm_private.h"

#define FRAMES (4 * PAGE_CHUNK_PAGES)
static struct page pages[FRAMES];
static struct buddy buddy;
static uint8_t owner[FRAMES];

static int set_up(void **state)
{
    memset(pages, 0, sizeof pages);
    memset(owner, 0, sizeof owner);
    buddy_init(&buddy, pages);
    buddy_add(&buddy, 0, FRAMES);
    return 0;
}

static struct page *take(unsigned order, uint64_t limit)
{
    struct page *p = buddy_alloc(&buddy, order, limit);
    if (!p)
        return NULL;
    uint64_t frame = (uint64_t)(p - pages);
    assert_int_equal(frame % (1UL << order), 0);
    assert_true(frame + (1UL << order) <= limit);
    for (uint64_t i = 0; i < 1UL << order; i++) {
        assert_int_equal(owner[frame + i], 0);
        owner[frame + i] = 1;
    }
    p->refcount = 1;
    p->order = order;
    return p;
}

static void give(struct page *p)
{
    memset(&owner[p - pages], 0, 1UL << p->order);
    p->refcount = 0;
    p->private = NULL;
    buddy_free(&buddy, p, p->order);
}

static void whole_again(void)
{
    assert_int_equal(buddy.free_pages, FRAMES);
    for (unsigned order = 0; order < PAGE_CHUNK_ORDER; order++)
        assert_true(list_empty(&buddy.free[order]));
}

static void everything_can_be_taken_and_merges_back(void **state)
{
    for (unsigned order = 0; order < BUDDY_ORDERS; order++) {
        static struct page *taken[FRAMES + 1];
        uint64_t n = 0;
        while ((taken[n] = take(order, UINT64_MAX)))
            n++;
        assert_int_equal(n, FRAMES >> order);
        assert_int_equal(buddy.free_pages, 0);
        assert_null(take(0, UINT64_MAX));
        for (uint64_t i = 0; i < n; i++) /* in an order that merges late */
            give(taken[i * 7 % n]);
        whole_again();
    }
}

static void random_churn_never_overlaps(void **state)
{
    struct page *held[64] = { NULL };
    srand(3);
    for (unsigned round = 0; round < 200000; round++) {
        unsigned at = (unsigned)rand() % 64;
        if (held[at]) {
            give(held[at]);
            held[at] = NULL;
        } else {
            held[at] = take((unsigned)rand() % BUDDY_ORDERS, rand() % 4 ? UINT64_MAX : (uint64_t)rand() % FRAMES);
        }
    }
    for (unsigned i = 0; i < 64; i++) {
        if (held[i])
            give(held[i]);
    }
    whole_again();
}

static void ragged_ranges_are_added_whole(void **state)
{
    buddy_init(&buddy, pages);
    memset(pages, 0, sizeof pages);
    buddy_add(&buddy, 3, 1000);
    buddy_add(&buddy, 1025, 1027);
    assert_int_equal(buddy.free_pages, 999);
    uint64_t n = 0;
    while (take(0, UINT64_MAX))
        n++;
    assert_int_equal(n, 999);
    assert_int_equal(owner[2] | owner[1000] | owner[1024] | owner[1027], 0);
}

static void impossible_requests_get_nothing(void **state)
{
    assert_null(buddy_alloc(&buddy, BUDDY_ORDERS, UINT64_MAX));
    assert_null(buddy_alloc(&buddy, 3, 7));
    struct page *p = take(3, 8);
    assert_non_null(p);
    assert_null(take(0, 8));
    give(p);
    whole_again();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(everything_can_be_taken_and_merges_back, set_up),
        cmocka_unit_test_setup(random_churn_never_overlaps, set_up),
        cmocka_unit_test_setup(ragged_ranges_are_added_whole, set_up),
        cmocka_unit_test_setup(impossible_requests_get_nothing, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
