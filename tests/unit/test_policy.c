/* The scheduling policy: order, fairness, placement, pulling, balance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <weir/policy_queue.h>

#define MS NSEC_PER_MSEC

static struct policy_cpu cpus[CPU_MAX];
static struct policy_machine machine;

static void make_machine(const struct policy_params *params, unsigned n)
{
    policy_machine_init(&machine, params, cpus);
    machine.cpu_count = n;
    for (unsigned i = 0; i < n; i++) {
        policy_cpu_init(&cpus[i], i);
        bitmap_set(machine.online.bits, i);
    }
}

static void queue_new(unsigned cpu, struct policy_entity *e, int nice)
{
    policy_entity_init(e, nice);
    policy_enqueue(&cpus[cpu], e, POLICY_NEW, 0);
}

static void update_overload(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        bitmap_clear(machine.overloaded.bits, i);
        if (policy_is_overloaded(&cpus[i]))
            bitmap_set(machine.overloaded.bits, i);
    }
}

/* Run the queue of CPU 0 for `total` in steps, switching at the end of each turn; time goes to got[]. */
static void run_queue(struct policy_entity *e, unsigned n, uint64_t total, uint64_t step, uint64_t *got)
{
    uint64_t now = 0;
    policy_pick(&cpus[0]);
    for (; now < total; now += step) {
        got[cpus[0].running - e] += step;
        if (policy_charge(&cpus[0], step)) {
            policy_put(&cpus[0], now);
            policy_pick(&cpus[0]);
        }
    }
    assert_in_range(n, 1, 1000);
}

static void equal_threads_share_equally(void **state)
{
    struct policy_entity e[7];
    uint64_t got[7] = { 0 };
    make_machine(&policy_weir, 1);
    for (unsigned i = 0; i < 7; i++)
        queue_new(0, &e[i], 0);
    run_queue(e, 7, 7000 * MS, MS / 4, got);
    for (unsigned i = 0; i < 7; i++)
        assert_in_range(got[i], 990 * MS, 1010 * MS);
}

static void nice_weights_decide_the_shares(void **state)
{
    struct policy_entity e[3];
    uint64_t got[3] = { 0 };
    static const int nice[3] = { 0, 5, -5 };
    make_machine(&policy_weir, 1);
    uint64_t total_weight = 0;
    for (unsigned i = 0; i < 3; i++) {
        queue_new(0, &e[i], nice[i]);
        total_weight += e[i].weight;
    }
    run_queue(e, 3, 60000 * MS, MS / 4, got);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t fair = 60000 * MS * e[i].weight / total_weight;
        assert_in_range(got[i], fair - fair / 20, fair + fair / 20);
    }
}

static void nobody_waits_longer_than_a_turn_of_each_other(void **state)
{
    struct policy_entity e[10];
    uint64_t last[10] = { 0 }, now = 0, worst = 0;
    make_machine(&policy_weir, 1);
    for (unsigned i = 0; i < 10; i++)
        queue_new(0, &e[i], 0);
    policy_pick(&cpus[0]);
    for (; now < 5000 * MS; now += MS / 2) {
        unsigned i = (unsigned)(cpus[0].running - e);
        worst = now - last[i] > worst ? now - last[i] : worst;
        last[i] = now;
        if (policy_charge(&cpus[0], MS / 2)) {
            policy_put(&cpus[0], now);
            policy_pick(&cpus[0]);
        }
    }
    assert_in_range(worst, 1, 9 * (POLICY_SLICE_NS + MS));
}

static void a_sleeper_goes_ahead_of_a_hog_but_not_for_ever(void **state)
{
    struct policy_entity hog, sleeper;
    make_machine(&policy_weir, 1);
    queue_new(0, &hog, 0);
    queue_new(0, &sleeper, 0);
    policy_pick(&cpus[0]);
    struct policy_entity *first = cpus[0].running;
    struct policy_entity *other = first == &hog ? &sleeper : &hog;
    policy_stop(&cpus[0], 0); /* one sleeps for an hour */
    assert_ptr_equal(policy_pick(&cpus[0]), other);
    uint64_t hour = 3600 * NSEC_PER_SEC;
    policy_charge(&cpus[0], hour);
    policy_enqueue(&cpus[0], first, POLICY_WAKE, hour);
    assert_true(policy_preempts(&cpus[0], first));
    policy_put(&cpus[0], hour);
    assert_ptr_equal(policy_pick(&cpus[0]), first);
    /* What it gains is bounded: after one turn and its credit the other is back. */
    uint64_t gained = 0;
    while (cpus[0].running == first) {
        gained += MS / 4;
        if (policy_charge(&cpus[0], MS / 4)) {
            policy_put(&cpus[0], hour + gained);
            policy_pick(&cpus[0]);
        }
    }
    assert_in_range(gained, POLICY_SLICE_NS, POLICY_SLICE_NS + POLICY_WAKE_CREDIT_NS + MS);
}

static void short_sleeps_do_not_wash_off_what_was_used(void **state)
{
    /* One runs 2 ms and sleeps 10 us, again and again, against a hog: it must not get more than half. */
    struct policy_entity e[2];
    uint64_t got[2] = { 0 }, now = 0, wake_at = 0;
    bool asleep = false;
    make_machine(&policy_weir, 1);
    queue_new(0, &e[0], 0);
    queue_new(0, &e[1], 0);
    policy_pick(&cpus[0]);
    uint64_t ran = 0;
    while (now < 10000 * MS) {
        uint64_t step = 10 * NSEC_PER_USEC;
        struct policy_entity *r = cpus[0].running;
        now += step;
        got[r - e] += step;
        bool over = policy_charge(&cpus[0], step);
        if (asleep && now >= wake_at) {
            asleep = false;
            policy_enqueue(&cpus[0], &e[0], POLICY_WAKE, now);
            over |= policy_preempts(&cpus[0], &e[0]);
        }
        if (r == &e[0] && (ran += step) >= 2 * MS) {
            ran = 0;
            policy_stop(&cpus[0], now);
            asleep = true;
            wake_at = now + step;
            assert_non_null(policy_pick(&cpus[0]));
        } else if (over) {
            policy_put(&cpus[0], now);
            policy_pick(&cpus[0]);
        }
    }
    assert_in_range(got[0], 4500 * MS, 5500 * MS);
}

static void an_entity_keeps_its_place_when_it_moves(void **state)
{
    struct policy_entity old[2], e;
    make_machine(&policy_weir, 2);
    queue_new(0, &old[0], 0);
    policy_pick(&cpus[0]);
    policy_charge(&cpus[0], 50000 * MS); /* the clocks of two queues are far apart */
    queue_new(1, &old[1], 0);
    policy_pick(&cpus[1]);
    queue_new(0, &e, 0);
    policy_dequeue(&cpus[0], &e);
    policy_enqueue(&cpus[1], &e, POLICY_MOVE, 0);
    assert_in_range(e.vruntime - cpus[1].floor, 0, POLICY_SLICE_NS);
    policy_dequeue(&cpus[1], &e);
    policy_enqueue(&cpus[0], &e, POLICY_MOVE, 0);
    assert_in_range(e.vruntime - cpus[0].floor, 0, POLICY_SLICE_NS);
}

static void yielding_lets_everyone_else_go_first(void **state)
{
    struct policy_entity e[4];
    make_machine(&policy_weir, 1);
    for (unsigned i = 0; i < 4; i++)
        queue_new(0, &e[i], 0);
    struct policy_entity *first = policy_pick(&cpus[0]);
    policy_charge(&cpus[0], MS);
    policy_yield(&cpus[0]);
    policy_put(&cpus[0], 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_ptr_not_equal(policy_pick(&cpus[0]), first);
        policy_stop(&cpus[0], 0);
    }
    assert_ptr_equal(policy_pick(&cpus[0]), first);
}

static void load_counts_waiting_and_running_but_not_idle(void **state)
{
    struct policy_entity e[2];
    make_machine(&policy_weir, 1);
    assert_int_equal(cpus[0].load, 0);
    queue_new(0, &e[0], 0);
    queue_new(0, &e[1], 0);
    assert_int_equal(cpus[0].load, 2);
    policy_pick(&cpus[0]);
    assert_int_equal(cpus[0].load, 2);
    policy_stop(&cpus[0], 0);
    assert_int_equal(cpus[0].load, 1);
}

/* ---- placement ---- */

static void new_threads_spread_over_idle_cpus(void **state)
{
    make_machine(&policy_weir, 48);
    for (unsigned i = 0; i < 48; i++)
        bitmap_set(machine.idle.bits, i);
    bool used[48] = { false };
    for (unsigned i = 0; i < 48; i++) {
        unsigned cpu = policy_place_new(&machine, 0, NULL);
        assert_false(used[cpu]);
        used[cpu] = true;
    }
    assert_int_equal(bitmap_weight(machine.idle.bits, CPU_MAX), 0);
}

static void new_threads_spread_even_if_each_sleeps_at_once(void **state)
{
    make_machine(&policy_weir, 8);
    for (unsigned i = 0; i < 8; i++)
        bitmap_set(machine.idle.bits, i);
    bool used[8] = { false };
    for (unsigned i = 0; i < 8; i++) {
        unsigned cpu = policy_place_new(&machine, 3, NULL);
        assert_false(used[cpu]);
        used[cpu] = true;
        bitmap_set(machine.idle.bits, cpu);
    }
}

static void baseline_places_on_the_creator_and_wakes_on_the_last(void **state)
{
    make_machine(&policy_baseline, 8);
    memset(&machine.idle, 0xff, sizeof(machine.idle));
    assert_int_equal(policy_place_new(&machine, 5, NULL), 5);
    assert_int_equal(policy_place_wake(&machine, 3, 5, NULL), 3);
}

static void a_woken_thread_prefers_its_idle_cpu(void **state)
{
    make_machine(&policy_weir, 130);
    bitmap_set(machine.idle.bits, 3);
    bitmap_set(machine.idle.bits, 100);
    assert_int_equal(policy_place_wake(&machine, 100, 90, NULL), 100);
    assert_false(bitmap_test(machine.idle.bits, 100));
    assert_int_equal(policy_place_wake(&machine, 100, 90, NULL), 3); /* the next one goes round */
    assert_int_equal(policy_place_wake(&machine, 100, 90, NULL), 100); /* none idles: it stays */
}

/* An interrupt on an idle CPU: it is awake already. */
static void an_idle_waker_takes_the_thread(void **state)
{
    make_machine(&policy_weir, 130);
    bitmap_set(machine.idle.bits, 3);
    bitmap_set(machine.idle.bits, 100);
    assert_int_equal(policy_place_wake(&machine, 100, 3, NULL), 3);
    assert_false(bitmap_test(machine.idle.bits, 3));
    assert_int_equal(policy_place_wake(&machine, 100, 3, NULL), 100); /* the second of that interrupt goes home */
}

static void placement_respects_affinity(void **state)
{
    struct cpumask mask = { 0 };
    bitmap_set(mask.bits, 70);
    bitmap_set(mask.bits, 71);
    make_machine(&policy_weir, 128);
    for (unsigned i = 0; i < 128; i++)
        bitmap_set(machine.idle.bits, i);
    for (unsigned i = 0; i < 5; i++) {
        assert_in_range(policy_place_new(&machine, 0, &mask), 70, 71);
        assert_in_range(policy_place_wake(&machine, 5, 0, &mask), 70, 71);
    }
}

static void cpus_that_are_not_up_are_never_chosen(void **state)
{
    make_machine(&policy_weir, 8);
    memset(&machine.online, 0, sizeof(machine.online));
    bitmap_set(machine.online.bits, 6);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(policy_place_new(&machine, 6, NULL), 6);
        assert_int_equal(policy_place_wake(&machine, 2, 6, NULL), 6);
    }
}

/* ---- pulling ---- */

static void a_lone_thread_is_never_taken(void **state)
{
    struct policy_entity e;
    make_machine(&policy_weir, 2);
    queue_new(0, &e, 0);
    assert_null(policy_steal_candidate(&cpus[0], 1)); /* waiting for its own CPU to wake up */
    policy_pick(&cpus[0]);
    assert_null(policy_steal_candidate(&cpus[0], 1)); /* running */
    assert_false(policy_is_overloaded(&cpus[0]));
}

static void pulling_takes_the_first_that_may_move(void **state)
{
    struct policy_entity e[4];
    struct cpumask only0 = { 0 };
    bitmap_set(only0.bits, 0);
    make_machine(&policy_weir, 2);
    for (unsigned i = 0; i < 4; i++) {
        policy_entity_init(&e[i], 0);
        e[i].affinity = i == 1 ? &only0 : NULL;
        policy_enqueue(&cpus[0], &e[i], POLICY_NEW, 0);
    }
    policy_pick(&cpus[0]);
    assert_ptr_equal(policy_steal_candidate(&cpus[0], 1), &e[2]);
    policy_dequeue(&cpus[0], &e[2]);
    policy_dequeue(&cpus[0], &e[3]);
    assert_false(policy_is_overloaded(&cpus[0])); /* only the pinned one waits */
    assert_null(policy_steal_candidate(&cpus[0], 1));
}

static void victims_are_found_all_round(void **state)
{
    struct cpumask tried = { 0 };
    make_machine(&policy_weir, 200);
    assert_int_equal(policy_find_victim(&machine, NULL, 10), CPU_MAX);
    bitmap_set(machine.overloaded.bits, 5);
    bitmap_set(machine.overloaded.bits, 150);
    assert_int_equal(policy_find_victim(&machine, &tried, 10), 150);
    bitmap_set(tried.bits, 150);
    assert_int_equal(policy_find_victim(&machine, &tried, 10), 5);
    bitmap_set(tried.bits, 5);
    assert_int_equal(policy_find_victim(&machine, &tried, 10), CPU_MAX);
}

/* ---- balance ---- */

static struct policy_entity pool[600];

static void set_loads(const unsigned *loads, unsigned n)
{
    unsigned used = 0;
    make_machine(machine.params, n);
    for (unsigned cpu = 0; cpu < n; cpu++) {
        for (unsigned i = 0; i < loads[cpu]; i++)
            queue_new(cpu, &pool[used++], 0);
        if (loads[cpu])
            policy_pick(&cpus[cpu]);
    }
    update_overload(n);
}

/* One pass of every CPU in turn, each executed at once. Returns the number of moves. */
static unsigned balance_all(unsigned n)
{
    unsigned moved = 0;
    for (unsigned cpu = 0; cpu < n; cpu++) {
        struct policy_move moves[CPU_MAX];
        unsigned count = policy_balance_plan(&machine, cpu, moves, CPU_MAX);
        for (unsigned i = 0; i < count; i++) {
            for (unsigned k = 0; k < moves[i].count; k++) {
                struct policy_entity *e = policy_push_candidate(&cpus[cpu], moves[i].cpu, 1000 * MS);
                assert_non_null(e);
                policy_dequeue(&cpus[cpu], e);
                policy_enqueue(&cpus[moves[i].cpu], e, POLICY_MOVE, 0);
                moved++;
            }
        }
    }
    return moved;
}

static unsigned spread_of(unsigned n)
{
    unsigned least = UINT32_MAX, most = 0;
    for (unsigned i = 0; i < n; i++) {
        least = MIN(least, cpus[i].load);
        most = MAX(most, cpus[i].load);
    }
    return most - least;
}

static void one_pass_drains_the_whole_imbalance(void **state)
{
    machine.params = &policy_weir;
    for (unsigned n = 2; n <= 256; n *= 2) {
        unsigned loads[256] = { 0 };
        loads[n / 2] = 500;
        set_loads(loads, n);
        balance_all(n);
        assert_in_range(spread_of(n), 0, 1);
        assert_int_equal(balance_all(n), 0); /* and nothing goes back and forth */
    }
}

static void random_loads_come_to_rest(void **state)
{
    machine.params = &policy_weir;
    srand(1);
    for (unsigned round = 0; round < 2000; round++) {
        unsigned n = 2 + (unsigned)rand() % 60, loads[64];
        for (unsigned i = 0; i < n; i++)
            loads[i] = (unsigned)rand() % (1 + (unsigned)rand() % 9);
        set_loads(loads, n);
        unsigned before = spread_of(n);
        for (unsigned pass = 0; pass < 3; pass++)
            balance_all(n);
        assert_true(spread_of(n) <= before);
        assert_in_range(spread_of(n), 0, 1);
        assert_int_equal(balance_all(n), 0);
    }
}

static void a_lone_thread_is_never_pushed(void **state)
{
    machine.params = &policy_weir;
    unsigned loads[48] = { [7] = 1 };
    set_loads(loads, 48);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(balance_all(48), 0);
}

static void baseline_moves_one_thread_a_pass(void **state)
{
    machine.params = &policy_baseline;
    unsigned loads[8] = { 20 };
    set_loads(loads, 8);
    assert_int_equal(balance_all(8), 1);
    assert_int_equal(balance_all(8), 1);
}

static void a_thread_rests_after_a_move(void **state)
{
    machine.params = &policy_weir;
    unsigned loads[2] = { 2 };
    set_loads(loads, 2);
    struct policy_entity *e = policy_push_candidate(&cpus[0], 1, 100 * MS);
    assert_non_null(e);
    e->last_moved_ns = 100 * MS;
    assert_null(policy_push_candidate(&cpus[0], 1, 101 * MS));
    assert_non_null(policy_push_candidate(&cpus[0], 1, 102 * MS));
}

static void balance_slows_down_while_there_is_nothing_to_do(void **state)
{
    uint64_t interval = policy_weir.balance_ns;
    for (unsigned i = 0; i < 10; i++)
        interval = policy_next_balance_ns(&policy_weir, interval, 0);
    assert_int_equal(interval, policy_weir.balance_max_ns);
    assert_int_equal(policy_next_balance_ns(&policy_weir, interval, 1), policy_weir.balance_ns);
    assert_int_equal(policy_baseline.balance_ns, 100 * MS);
    assert_int_equal(policy_next_balance_ns(&policy_baseline, 100 * MS, 0), 100 * MS);
}

/* ---- the tree under random use ---- */

static void the_first_deadline_always_runs_next(void **state)
{
    static struct policy_entity e[200];
    bool in[200] = { false };
    srand(3);
    make_machine(&policy_weir, 1);
    for (unsigned i = 0; i < 200; i++)
        policy_entity_init(&e[i], rand() % 40 - 20);
    for (unsigned round = 0; round < 50000; round++) {
        unsigned i = (unsigned)rand() % 200;
        if (in[i]) {
            policy_dequeue(&cpus[0], &e[i]);
        } else {
            e[i].lag = rand() % (int)(4 * MS) - (int)(2 * MS);
            policy_enqueue(&cpus[0], &e[i], rand() % 2 ? POLICY_WAKE : POLICY_MOVE, (uint64_t)round * 1000);
        }
        in[i] = !in[i];
        if (round % 16)
            continue;
        uint64_t least = UINT64_MAX;
        unsigned count = 0;
        for (unsigned k = 0; k < 200; k++) {
            if (in[k]) {
                least = MIN(least, e[k].deadline);
                count++;
            }
        }
        assert_int_equal(cpus[0].queued, count);
        if (!count)
            continue;
        struct policy_entity *first = policy_pick(&cpus[0]);
        assert_int_equal(first->deadline, least);
        policy_charge(&cpus[0], 100000);
        policy_put(&cpus[0], 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_threads_share_equally),
        cmocka_unit_test(nice_weights_decide_the_shares),
        cmocka_unit_test(nobody_waits_longer_than_a_turn_of_each_other),
        cmocka_unit_test(a_sleeper_goes_ahead_of_a_hog_but_not_for_ever),
        cmocka_unit_test(short_sleeps_do_not_wash_off_what_was_used),
        cmocka_unit_test(an_entity_keeps_its_place_when_it_moves),
        cmocka_unit_test(yielding_lets_everyone_else_go_first),
        cmocka_unit_test(load_counts_waiting_and_running_but_not_idle),
        cmocka_unit_test(new_threads_spread_over_idle_cpus),
        cmocka_unit_test(new_threads_spread_even_if_each_sleeps_at_once),
        cmocka_unit_test(baseline_places_on_the_creator_and_wakes_on_the_last),
        cmocka_unit_test(a_woken_thread_prefers_its_idle_cpu),
        cmocka_unit_test(an_idle_waker_takes_the_thread),
        cmocka_unit_test(placement_respects_affinity),
        cmocka_unit_test(cpus_that_are_not_up_are_never_chosen),
        cmocka_unit_test(a_lone_thread_is_never_taken),
        cmocka_unit_test(pulling_takes_the_first_that_may_move),
        cmocka_unit_test(victims_are_found_all_round),
        cmocka_unit_test(one_pass_drains_the_whole_imbalance),
        cmocka_unit_test(random_loads_come_to_rest),
        cmocka_unit_test(a_lone_thread_is_never_pushed),
        cmocka_unit_test(baseline_moves_one_thread_a_pass),
        cmocka_unit_test(a_thread_rests_after_a_move),
        cmocka_unit_test(balance_slows_down_while_there_is_nothing_to_do),
        cmocka_unit_test(the_first_deadline_always_runs_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
