/* Scheduling policy; see weir/policy.h and weir/policy_queue.h. */
#include <weir/policy_queue.h>
#include <weir/string.h>

/* 1024 * 1.25^-nice, rounded: one nice step is about a tenth of a CPU between two threads. */
static const uint32_t nice_weight[] = {
    88818, 71054, 56843, 45475, 36380, 29104, 23283, 18626, 14901, 11921,
    9537, 7629, 6104, 4883, 3906, 3125, 2500, 2000, 1600, 1280,
    1024, 819, 655, 524, 419, 336, 268, 215, 172, 137,
    110, 88, 70, 56, 45, 36, 29, 23, 18, 15,
};
#define FLOOR_START (1ULL << 40) /* far from 0, so that a lag below it does not wrap */

const struct policy_params policy_weir = {
    .name = "weir", .spread_new = true, .wake_idle = true, .idle_pull = true, .drain = true,
    .balance_ns = NSEC_PER_MSEC, .balance_max_ns = 4 * NSEC_PER_MSEC,
};
const struct policy_params policy_baseline = {
    .name = "baseline", .balance_ns = 100 * NSEC_PER_MSEC, .balance_max_ns = 100 * NSEC_PER_MSEC,
};
const struct policy_params policy_drain10 = {
    .name = "drain10", .drain = true, .balance_ns = 10 * NSEC_PER_MSEC, .balance_max_ns = 10 * NSEC_PER_MSEC,
};

const struct policy_params *policy_by_name(const char *name)
{
    static const struct policy_params *const all[] = { &policy_weir, &policy_baseline, &policy_drain10 };
    for (unsigned i = 0; i < ARRAY_SIZE(all); i++)
        if (!strcmp(all[i]->name, name))
            return all[i];
    return NULL;
}

uint32_t policy_weight(int nice)
{
    return nice_weight[MAX(POLICY_NICE_MIN, MIN(POLICY_NICE_MAX, nice)) - POLICY_NICE_MIN];
}

void policy_cpu_init(struct policy_cpu *c, unsigned id)
{
    memset(c, 0, sizeof(*c));
    c->floor = FLOOR_START;
    c->id = id;
}

void policy_entity_init(struct policy_entity *e, int nice)
{
    memset(e, 0, sizeof(*e));
    e->weight = policy_weight(nice);
    e->nice = (int8_t)MAX(POLICY_NICE_MIN, MIN(POLICY_NICE_MAX, nice));
    e->slice_left = policy_turn_of(e);
}

/* ---- one CPU's queue: what weir/policy_queue.h leaves out ---- */

static void tree_insert(struct policy_cpu *c, struct policy_entity *e, bool leftmost)
{
    struct rb_node **link = &c->tree.root, *parent = NULL;
    while (*link) {
        parent = *link;
        /* Equal deadlines: first come, first served. */
        bool left = leftmost || policy_before(e->deadline, policy_entity_of(parent)->deadline);
        link = left ? &parent->left : &parent->right;
    }
    rb_insert(&c->tree, &e->node, parent, link);
}

void policy_tree_add(struct policy_cpu *c, struct policy_entity *e)
{
    if (!policy_before(e->deadline, c->first->deadline)) {
        tree_insert(c, e, false);
        return;
    }
    tree_insert(c, c->first, true);
    c->first = e;
}

void policy_tree_remove(struct policy_cpu *c, struct policy_entity *e)
{
    if (e != c->first) {
        rb_remove(&c->tree, &e->node);
        return;
    }
    c->first = policy_entity_of(rb_first(&c->tree));
    rb_remove(&c->tree, &c->first->node);
}

bool policy_is_movable(const struct policy_cpu *c, const struct policy_entity *e)
{
    for (unsigned i = 0; i < BITMAP_WORDS(CPU_MAX); i++) {
        uint64_t others = atomic_load_relaxed(&e->affinity->bits[i]);
        if (i == c->id / 64)
            others &= ~(1ULL << (c->id % 64));
        if (others)
            return true;
    }
    return false;
}

void policy_yield(struct policy_cpu *c)
{
    struct policy_entity *e = c->running;
    const struct policy_entity *last = policy_last(c);
    uint64_t turn_end = e->vruntime + policy_turn_of(e);
    /* Behind everyone who waits, but never further than a turn: a yield is not a penance. */
    if (last && !policy_before(last->deadline, e->deadline))
        e->deadline = policy_before(turn_end, last->deadline) ? turn_end : last->deadline;
}

void policy_set_nice(struct policy_cpu *c, struct policy_entity *e, int nice)
{
    bool queued = e->queued;
    if (queued)
        policy_queue_remove(c, e);
    e->nice = (int8_t)MAX(POLICY_NICE_MIN, MIN(POLICY_NICE_MAX, nice));
    e->weight = policy_weight(nice);
    if (queued || c->running == e) {
        /* A new turn at the new weight; virtual time already used stays used. */
        e->deadline = e->vruntime + policy_turn_of(e);
    } else {
        e->slice_left = policy_turn_of(e);
    }
    if (queued)
        policy_queue_add(c, e);
}

/* ---- placement ---- */

void policy_machine_init(struct policy_machine *m, const struct policy_params *params, struct policy_cpu *cpus)
{
    memset(m, 0, sizeof(*m));
    m->params = params;
    m->cpu = cpus;
}

/* Bits of word i that lie in [from, to). */
static uint64_t range_mask(unsigned i, unsigned from, unsigned to)
{
    unsigned base = i * 64;
    uint64_t mask = ~0ULL;
    if (from > base)
        mask &= from - base >= 64 ? 0 : ~0ULL << (from - base);
    if (to < base + 64)
        mask &= to <= base ? 0 : ~0ULL >> (base + 64 - to);
    return mask;
}

static unsigned claim_in_range(struct policy_machine *m, unsigned from, unsigned to, const struct cpumask *affinity)
{
    for (unsigned i = from / 64; i * 64 < to; i++) {
        uint64_t candidates = atomic_load_relaxed(&m->idle.bits[i]) & range_mask(i, from, to);
        if (affinity)
            candidates &= atomic_load_relaxed(&affinity->bits[i]);
        for (; candidates; candidates &= candidates - 1) {
            unsigned cpu = i * 64 + (unsigned)__builtin_ctzll(candidates);
            if (bitmap_test_and_clear_atomic(m->idle.bits, cpu))
                return cpu;
        }
    }
    return CPU_MAX;
}

unsigned policy_claim_idle(struct policy_machine *m, unsigned start, const struct cpumask *affinity)
{
    unsigned n = atomic_load_relaxed(&m->cpu_count);
    if (!policy_any_idle(m))
        return CPU_MAX;
    if (start >= n)
        start = 0;
    unsigned cpu = claim_in_range(m, start, n, affinity);
    return cpu != CPU_MAX ? cpu : claim_in_range(m, 0, start, affinity);
}

#define PLACE_SAMPLE 8 /* CPUs compared when none is idle; balance corrects the rest */

static unsigned least_loaded(const struct policy_machine *m, unsigned start, unsigned fallback,
                             const struct cpumask *affinity)
{
    unsigned n = atomic_load_relaxed(&m->cpu_count), best = CPU_MAX, seen = 0;
    uint32_t best_load = UINT32_MAX;
    for (unsigned i = 0; i < n && seen < PLACE_SAMPLE; i++) {
        unsigned cpu = (start + i) % n;
        if (!bitmap_test(m->online.bits, cpu) || (affinity && !bitmap_test(affinity->bits, cpu)))
            continue;
        uint32_t load = atomic_load_relaxed(&m->cpu[cpu].load);
        if (load < best_load) {
            best = cpu;
            best_load = load;
        }
        seen++;
    }
    return best != CPU_MAX ? best : fallback; /* a mask with no CPU that is up cannot be served */
}

bool policy_servable(const struct policy_machine *m, const struct cpumask *affinity)
{
    for (unsigned i = 0; i < BITMAP_WORDS(CPU_MAX); i++)
        if (atomic_load_relaxed(&m->online.bits[i]) & (affinity ? atomic_load_relaxed(&affinity->bits[i]) : ~0ULL))
            return true;
    return false;
}

unsigned policy_place_new(struct policy_machine *m, unsigned creator, const struct cpumask *affinity)
{
    if (!m->params->spread_new && policy_usable(m, creator, affinity))
        return creator;
    unsigned n = MAX(1u, atomic_load_relaxed(&m->cpu_count));
    unsigned start = atomic_load_relaxed(&m->rotor) % n;
    unsigned cpu = policy_claim_idle(m, start, affinity);
    if (cpu == CPU_MAX)
        cpu = least_loaded(m, start, creator, affinity);
    /* The next one starts behind this one even if this CPU idles again by then. Lost updates between
     * two creators cost a little spread and nothing else. */
    atomic_store_relaxed(&m->rotor, cpu + 1);
    return cpu;
}

unsigned policy_search_wake(struct policy_machine *m, unsigned last, unsigned waker, const struct cpumask *affinity)
{
    bool last_usable = policy_usable(m, last, affinity);
    if (m->params->wake_idle) {
        /* An interrupt on an idle CPU: that one is awake already, any other would have to be woken. */
        if (waker != last && bitmap_test(m->idle.bits, waker) && policy_usable(m, waker, affinity) &&
            bitmap_test_and_clear_atomic(m->idle.bits, waker))
            return waker;
        if (last_usable && bitmap_test(m->idle.bits, last) && bitmap_test_and_clear_atomic(m->idle.bits, last))
            return last;
        unsigned cpu = policy_claim_idle(m, waker, affinity);
        if (cpu != CPU_MAX)
            return cpu;
    }
    return last_usable ? last : least_loaded(m, waker, last, affinity);
}

/* ---- pulling ---- */

unsigned policy_find_victim(const struct policy_machine *m, const struct cpumask *tried, unsigned start)
{
    unsigned n = atomic_load_relaxed(&m->cpu_count);
    for (unsigned pass = 0; pass < 2; pass++) {
        unsigned from = pass ? 0 : start, to = pass ? MIN(start, n) : n;
        for (unsigned i = from / 64; i * 64 < to; i++) {
            uint64_t w = atomic_load_relaxed(&m->overloaded.bits[i]) & range_mask(i, from, to);
            if (tried)
                w &= ~tried->bits[i];
            if (w)
                return i * 64 + (unsigned)__builtin_ctzll(w);
        }
    }
    return CPU_MAX;
}

unsigned policy_steal_count(const struct policy_machine *m, const struct policy_cpu *victim)
{
    for (unsigned i = 0; i < BITMAP_WORDS(CPU_MAX); i++)
        if (atomic_load_relaxed(&m->idle.bits[i]))
            return 1;
    return MAX(1u, victim->queued / 2);
}

struct policy_entity *policy_steal_candidate(const struct policy_cpu *victim, unsigned thief)
{
    if (!policy_is_overloaded(victim))
        return NULL;
    for (struct policy_entity *e = victim->first; e; e = policy_next_of(victim, e)) {
        if (e->movable && policy_allowed(e, thief))
            return e;
    }
    return NULL;
}

/* ---- balance ---- */

struct plan {
    struct policy_move *moves;
    unsigned count, max;
    uint32_t mine;
};

/* Give up to `want` threads to cpu. */
static void plan_give(struct plan *p, uint16_t *loads, unsigned cpu, uint32_t want)
{
    if (!want)
        return;
    unsigned i = 0;
    while (i < p->count && p->moves[i].cpu != cpu)
        i++;
    if (i == p->max)
        return;
    if (i == p->count)
        p->moves[p->count++] = (struct policy_move){ (uint16_t)cpu, 0 };
    p->moves[i].count = (uint16_t)(p->moves[i].count + want);
    loads[cpu] = (uint16_t)(loads[cpu] + want);
    p->mine -= want;
}

/* Old rule: one thread to the least loaded CPU. */
static void plan_one(struct plan *p, uint16_t *loads, const struct policy_machine *m, unsigned me, unsigned n,
                     unsigned start)
{
    unsigned best = me;
    for (unsigned i = 0; i < n; i++) {
        unsigned cpu = (start + i) % n;
        if (bitmap_test(m->online.bits, cpu) && loads[cpu] < loads[best])
            best = cpu;
    }
    if (p->mine >= loads[best] + 2u)
        plan_give(p, loads, best, 1);
}

unsigned policy_balance_plan(struct policy_machine *m, unsigned me, struct policy_move *moves, unsigned max)
{
    uint16_t loads[CPU_MAX];
    unsigned n = atomic_load_relaxed(&m->cpu_count), online = 0;
    uint32_t total = 0;
    for (unsigned cpu = 0; cpu < n; cpu++) {
        loads[cpu] = (uint16_t)MIN(atomic_load_relaxed(&m->cpu[cpu].load), 0x7fffu);
        if (bitmap_test(m->online.bits, cpu)) {
            online++;
            total += loads[cpu];
        }
    }
    struct plan p = { moves, 0, max, loads[me] };
    if (online < 2 || p.mine < 2)
        return 0;
    /* Several CPUs may plan at once: each starts elsewhere, so they do not all fill the same one. */
    unsigned start = (me + 1 + atomic_fetch_add(&m->rotor, 1)) % n;
    if (!m->params->drain) {
        plan_one(&p, loads, m, me, n, start);
        return p.count;
    }
    uint32_t level[2] = { total / online, DIV_ROUND_UP(total, online) };
    for (unsigned pass = 0; pass < 3; pass++) {
        for (unsigned i = 0; i < n; i++) {
            unsigned cpu = (start + i) % n;
            if (cpu == me || !bitmap_test(m->online.bits, cpu))
                continue;
            if (pass == 2) { /* what rounding left: no difference of two stays */
                if (p.mine >= loads[cpu] + 2u)
                    plan_give(&p, loads, cpu, 1);
            } else if (loads[cpu] < level[pass] && p.mine > level[1]) {
                plan_give(&p, loads, cpu, MIN(level[pass] - loads[cpu], p.mine - level[1]));
            }
        }
    }
    return p.count;
}

struct policy_entity *policy_push_candidate(const struct policy_cpu *c, unsigned target, uint64_t now_ns)
{
    for (struct policy_entity *e = policy_last(c); e; e = policy_previous_of(c, e)) {
        if (e->movable && policy_allowed(e, target) && now_ns - e->last_moved_ns >= POLICY_MOVE_REST_NS)
            return e;
    }
    return NULL;
}

uint64_t policy_next_balance_ns(const struct policy_params *p, uint64_t interval_ns, unsigned moved)
{
    return moved ? p->balance_ns : MIN(interval_ns * 2, p->balance_max_ns);
}
