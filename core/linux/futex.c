/*
 * futex: sleep while a word of program memory holds a value.
 *
 * No wake-up is lost because the word is compared under the bucket's lock, the lock that a waker
 * takes after the program has changed the word: either the waiter sees the new value, or the waker
 * sees the waiter. The compare must not fault with a spinlock held, so it runs with faults refused;
 * if the page is not there it is brought in without the lock and everything starts again.
 */
#include "linuxio.h"
#include <weir/aspace.h>
#include <weir/init.h>

enum {
    FUTEX_WAIT = 0,
    FUTEX_WAKE = 1,
    FUTEX_REQUEUE = 3,
    FUTEX_CMP_REQUEUE = 4,
    FUTEX_WAKE_OP = 5,
    FUTEX_WAIT_BITSET = 9,
    FUTEX_WAKE_BITSET = 10
};
#define FUTEX_PRIVATE        128u
#define FUTEX_CLOCK_REALTIME 256u
#define FUTEX_ANY            UINT32_MAX

#define BUCKETS    1024u
#define WAKE_BATCH 16

/* Key: b lock. Thread context only, interrupts stay on. Two buckets: by address. */
struct futex_bucket {
    spinlock_t lock;
    struct list waiters; /* b in order of arrival */
} __cacheline;

/* On the waiting thread's stack. It is the waker's until bucket is NULL, and never after. */
struct futex_waiter {
    struct list link;            /* b */
    struct futex_bucket *bucket; /* b (a for the waiter): NULL = woken */
    struct futex_key key;        /* b counted */
    uint32_t bitset;             /* I */
    struct thread *thread;       /* I */
};

static struct futex_bucket buckets[BUCKETS];

static struct futex_bucket *bucket_of(const struct futex_key *k)
{
    uint64_t h = ((uint64_t)k->object >> 4) * 0x9e3779b97f4a7c15ULL;

    h = (h ^ (k->offset >> 2)) * 0xff51afd7ed558ccdULL;
    return &buckets[(h >> 40) % BUCKETS];
}

static bool key_equal(const struct futex_key *a, const struct futex_key *b)
{
    return a->object == b->object && a->offset == b->offset && a->kind == b->kind;
}

/* ---- the word, without blocking ---- */

static int read_without_fault(uint32_t *value, uint64_t addr)
{
    struct task *t = current_task();
    int error;

    t->fault_disabled = true;
    barrier_compiler();
    error = get_user_u32(value, addr);
    barrier_compiler();
    t->fault_disabled = false;
    return error;
}

/* ---- waking ---- */

/* Threads taken off a bucket, woken after its lock is free. */
struct wake_batch {
    struct thread *threads[WAKE_BATCH];
    unsigned count;
};

static void batch_take_locked(struct wake_batch *batch, struct futex_waiter *w)
{
    struct thread *t = w->thread;

    thread_get(t);
    batch->threads[batch->count++] = t;
    list_del(&w->link);
    /* The last touch: the waiter may see it and return, and its stack frame is gone then. */
    atomic_store_release(&w->bucket, NULL);
}

static void batch_wake(struct wake_batch *batch)
{
    for (unsigned i = 0; i < batch->count; i++) {
        thread_wake(batch->threads[i]);
        thread_put(batch->threads[i]);
    }
    batch->count = 0;
}

/* Take up to `most` waiters of the key, no more than the batch holds. */
static unsigned take_matching_locked(struct futex_bucket *b, const struct futex_key *key,
                                     uint32_t bitset, unsigned most, struct wake_batch *batch)
{
    struct futex_waiter *w, *next;
    unsigned n = 0;

    list_for_each_entry_safe (w, next, &b->waiters, link) {
        if (n == most || batch->count == WAKE_BATCH)
            break;
        if (!(w->bitset & bitset) || !key_equal(&w->key, key))
            continue;
        batch_take_locked(batch, w);
        n++;
    }
    return n;
}

static long wake_key(const struct futex_key *key, unsigned most, uint32_t bitset)
{
    struct futex_bucket *b = bucket_of(key);
    struct wake_batch batch = {.count = 0};
    unsigned total = 0, n;

    /* The program changed the word before it called. Lock seen free: a waiter that takes it later
     * compares later and sees the new value; one that held it earlier is on the list. So the lock
     * is read first. */
    barrier_full();
    if (!spin_is_locked(&b->lock)) {
        barrier_read();
        if (atomic_load_relaxed(&b->waiters.next) == &b->waiters)
            return 0;
    }
    do {
        spin_lock(&b->lock);
        n = take_matching_locked(b, key, bitset, most - total, &batch);
        spin_unlock(&b->lock);
        batch_wake(&batch);
        total += n;
    } while (n == WAKE_BATCH && total < most);
    return total;
}

static long futex_wake(uint64_t addr, unsigned most, uint32_t bitset, bool private)
{
    struct futex_key key;
    long result;

    if (!bitset)
        return -EINVAL;
    result = aspace_futex_key(aspace_current(), addr, private, &key);
    if (result)
        return result;
    /* Linux wakes one waiter for a count of 0 or less. */
    result = wake_key(&key, (int)most <= 0 ? 1 : most, bitset);
    futex_key_put(&key);
    return result;
}

/* ---- waiting ---- */

/* Queue w if the word still holds `value`. 0, -EAGAIN, -EFAULT. */
static long enqueue_if_equal(struct futex_waiter *w, uint64_t addr, uint32_t value)
{
    struct futex_bucket *b = bucket_of(&w->key);
    uint32_t found;

    for (;;) {
        int error;

        spin_lock(&b->lock);
        error = read_without_fault(&found, addr);
        if (!error && found == value) {
            w->bucket = b;
            list_add_tail(&b->waiters, &w->link);
            spin_unlock(&b->lock);
            return 0;
        }
        spin_unlock(&b->lock);
        if (!error)
            return -EAGAIN;
        if (get_user_u32(&found, addr))
            return -EFAULT;
    }
}

/* Leave the queue. True if still queued; false if a waker took it out first. A requeue may move it.
 */
static bool dequeue(struct futex_waiter *w)
{
    struct futex_bucket *b;

    while ((b = atomic_load_acquire(&w->bucket)) != NULL) {
        bool mine;

        spin_lock(&b->lock);
        mine = w->bucket == b;
        if (mine)
            list_del(&w->link);
        spin_unlock(&b->lock);
        if (mine)
            return true;
    }
    return false;
}

/* 0 = woken, -EAGAIN, -ETIMEDOUT, -EINTR, -EFAULT, -EINVAL. */
static long futex_wait(uint64_t addr, uint32_t value, uint32_t bitset, bool private,
                       uint64_t deadline_ns)
{
    struct futex_waiter w = {.bitset = bitset, .thread = current};
    struct wait_queue own; /* holds the sleep only: wakers go to the thread */
    long result;

    if (!bitset)
        return -EINVAL;
    result = aspace_futex_key(aspace_current(), addr, private, &w.key);
    if (result)
        return result;
    result = enqueue_if_equal(&w, addr, value);
    if (!result) {
        wait_queue_init(&own);
        result =
            wait_event_interruptible_timeout(&own, !atomic_load_acquire(&w.bucket), deadline_ns);
        if (!dequeue(&w))
            result = 0;
    }
    futex_key_put(&w.key);
    return result;
}

/* Address and private flag share a word: futexes are aligned. */
static long wait_interrupted(uint64_t addr, uint32_t value, uint32_t bitset, bool private,
                             uint64_t deadline_ns)
{
    struct task *t = current_task();

    if (deadline_ns == TIME_FOREVER)
        return -ERESTARTSYS;
    t->restart_block[0] = RESTART_FUTEX;
    t->restart_block[1] = (int64_t)(addr | private);
    t->restart_block[2] = (int64_t)(value | (uint64_t)bitset << 32);
    t->restart_block[3] = (int64_t)deadline_ns;
    return -ERESTART_RESTARTBLOCK;
}

long futex_restart(struct task *t)
{
    uint64_t addr = (uint64_t)t->restart_block[1], packed = (uint64_t)t->restart_block[2];
    uint64_t deadline_ns = (uint64_t)t->restart_block[3];
    bool private = addr & 1;
    long result =
        futex_wait(addr & ~1UL, (uint32_t)packed, (uint32_t)(packed >> 32), private, deadline_ns);

    return result == -EINTR ? -ERESTART_RESTARTBLOCK : result;
}

static long do_wait(uint64_t addr, uint32_t value, uint32_t bitset, unsigned op,
                    uint64_t timeout_addr, bool absolute)
{
    bool private = op & FUTEX_PRIVATE;
    uint64_t deadline_ns = TIME_FOREVER, ns;
    long result;

    if (timeout_addr) {
        result = timespec_get(timeout_addr, &ns);
        if (result)
            return result;
        if (!absolute)
            deadline_ns = deadline_after(ns);
        else
            deadline_ns = op & FUTEX_CLOCK_REALTIME ? deadline_of_realtime(ns) : ns;
    }
    result = futex_wait(addr, value, bitset, private, deadline_ns);
    return result == -EINTR ? wait_interrupted(addr, value, bitset, private, deadline_ns) : result;
}

/* ---- requeue and wake-op: two words ---- */

static void lock_two(struct futex_bucket *a, struct futex_bucket *b)
{
    spin_lock(a < b ? &a->lock : &b->lock);
    if (a != b)
        spin_lock(a < b ? &b->lock : &a->lock);
}

static void unlock_two(struct futex_bucket *a, struct futex_bucket *b)
{
    spin_unlock(&a->lock);
    if (a != b)
        spin_unlock(&b->lock);
}

/* Lock both if the word holds *compare (NULL = whatever it holds). False when locked; *error says
 * why not. */
static bool lock_two_if_equal(struct futex_bucket *a, struct futex_bucket *b, uint64_t addr,
                              const uint32_t *compare, long *error)
{
    uint32_t found;

    for (;;) {
        int fault;

        lock_two(a, b);
        if (!compare)
            return false;
        fault = read_without_fault(&found, addr);
        if (!fault && found == *compare)
            return false;
        unlock_two(a, b);
        *error = -EAGAIN;
        if (!fault)
            return true;
        *error = -EFAULT;
        if (get_user_u32(&found, addr))
            return true;
    }
}

/* Move up to `most` waiters of `from` to `to`; both buckets locked. The caller's own references of
 * both keys keep the objects, so the puts here are never the last. */
static unsigned requeue_locked(struct futex_bucket *b1, struct futex_key *from,
                               struct futex_bucket *b2, struct futex_key *to, unsigned most)
{
    struct futex_waiter *w, *next;
    struct list moved;
    unsigned n = 0;

    list_init(&moved);
    list_for_each_entry_safe (w, next, &b1->waiters, link) {
        if (n == most)
            break;
        if (!key_equal(&w->key, from))
            continue;
        list_del(&w->link);
        list_add_tail(&moved, &w->link);
        futex_key_get(to);
        futex_key_put(&w->key);
        w->key = *to;
        atomic_store_release(&w->bucket, b2);
        n++;
    }
    list_splice_tail(&b2->waiters, &moved);
    return n;
}

static long requeue_keys(uint64_t addr, struct futex_key *k1, struct futex_key *k2, unsigned wake,
                         unsigned move, const uint32_t *compare)
{
    struct futex_bucket *b1 = bucket_of(k1), *b2 = bucket_of(k2);
    struct wake_batch batch = {.count = 0};
    unsigned woken = 0, moved = 0, n;
    long error;

    for (;;) {
        if (lock_two_if_equal(b1, b2, addr, woken ? NULL : compare, &error))
            return error;
        n = take_matching_locked(b1, k1, FUTEX_ANY, wake - woken, &batch);
        woken += n;
        if (woken == wake || n < WAKE_BATCH)
            moved = requeue_locked(b1, k1, b2, k2, move);
        unlock_two(b1, b2);
        batch_wake(&batch);
        if (woken == wake || n < WAKE_BATCH)
            break;
    }
    return woken + moved;
}

static long futex_requeue(uint64_t addr1, uint64_t addr2, unsigned wake, unsigned move,
                          bool private, const uint32_t *compare)
{
    struct futex_key k1, k2;
    long result;

    if ((int)wake < 0 || (int)move < 0)
        return -EINVAL;
    result = aspace_futex_key(aspace_current(), addr1, private, &k1);
    if (result)
        return result;
    result = aspace_futex_key(aspace_current(), addr2, private, &k2);
    if (!result) {
        result = requeue_keys(addr1, &k1, &k2, wake, move, compare);
        futex_key_put(&k2);
    }
    futex_key_put(&k1);
    return result;
}

enum { OP_SET, OP_ADD, OP_OR, OP_ANDN, OP_XOR };
enum { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE };

struct wake_op {
    unsigned op, cmp;
    int32_t op_arg, cmp_arg;
};

static int wake_op_decode(uint32_t code, struct wake_op *w)
{
    w->op = code >> 28 & 7;
    w->cmp = code >> 24 & 15;
    w->op_arg = (int32_t)(code << 8) >> 20;
    w->cmp_arg = (int32_t)(code << 20) >> 20;
    if (code >> 31)
        w->op_arg = 1 << (w->op_arg & 31);
    return w->op > OP_XOR || w->cmp > CMP_GE ? -ENOSYS : 0;
}

static uint32_t wake_op_apply(const struct wake_op *w, uint32_t old)
{
    uint32_t arg = (uint32_t)w->op_arg;

    switch (w->op) {
    case OP_SET:
        return arg;
    case OP_ADD:
        return old + arg;
    case OP_OR:
        return old | arg;
    case OP_ANDN:
        return old & ~arg;
    default:
        return old ^ arg;
    }
}

static bool wake_op_compare(const struct wake_op *w, uint32_t found)
{
    int32_t old = (int32_t)found;

    switch (w->cmp) {
    case CMP_EQ:
        return old == w->cmp_arg;
    case CMP_NE:
        return old != w->cmp_arg;
    case CMP_LT:
        return old < w->cmp_arg;
    case CMP_LE:
        return old <= w->cmp_arg;
    case CMP_GT:
        return old > w->cmp_arg;
    default:
        return old >= w->cmp_arg;
    }
}

/* The word is changed before either queue is looked at, which is all that FUTEX_WAKE needs of a
 * program. */
static long futex_wake_op(uint64_t addr1, uint64_t addr2, unsigned wake1, unsigned wake2,
                          bool private, uint32_t code)
{
    struct futex_key k1, k2;
    struct wake_op w;
    uint32_t old, expected;
    long result = wake_op_decode(code, &w);

    if (result)
        return result;
    result = aspace_futex_key(aspace_current(), addr1, private, &k1);
    if (result)
        return result;
    result = aspace_futex_key(aspace_current(), addr2, private, &k2);
    if (result)
        goto put1;
    if (get_user_u32(&old, addr2))
        result = -EFAULT;
    while (!result) {
        expected = old;
        if (cas_user_u32(addr2, expected, wake_op_apply(&w, expected), &old))
            result = -EFAULT;
        else if (old == expected)
            break;
    }
    if (!result) {
        result = wake_key(&k1, MAX(wake1, 1u), FUTEX_ANY);
        if (wake_op_compare(&w, old))
            result += wake_key(&k2, MAX(wake2, 1u), FUTEX_ANY);
    }
    futex_key_put(&k2);
put1:
    futex_key_put(&k1);
    return result;
}

long sys_futex(const uint64_t a[6])
{
    unsigned op = (unsigned)a[1];
    uint32_t value = (uint32_t)a[2], value3 = (uint32_t)a[5];
    bool private = op & FUTEX_PRIVATE;

    switch (op & ~(FUTEX_PRIVATE | FUTEX_CLOCK_REALTIME)) {
    case FUTEX_WAIT:
        return do_wait(a[0], value, FUTEX_ANY, op, a[3], false);
    case FUTEX_WAIT_BITSET:
        return do_wait(a[0], value, value3, op, a[3], true);
    case FUTEX_WAKE:
        return futex_wake(a[0], value, FUTEX_ANY, private);
    case FUTEX_WAKE_BITSET:
        return futex_wake(a[0], value, value3, private);
    case FUTEX_REQUEUE:
        return futex_requeue(a[0], a[4], value, (unsigned)a[3], private, NULL);
    case FUTEX_CMP_REQUEUE:
        return futex_requeue(a[0], a[4], value, (unsigned)a[3], private, &value3);
    case FUTEX_WAKE_OP:
        return futex_wake_op(a[0], a[4], value, (unsigned)a[3], private, value3);
    default: /* priority inheritance */
        return -ENOSYS;
    }
}

/* ---- end of a task ---- */

#define FUTEX_WAITERS    0x80000000u
#define FUTEX_OWNER_DIED 0x40000000u
#define FUTEX_TID_MASK   0x3fffffffu
#define ROBUST_MOST      2048

static void robust_release(struct task *t, uint64_t addr)
{
    uint32_t value, old;

    if (!IS_ALIGNED(addr, 4) || get_user_u32(&value, addr))
        return;
    while ((value & FUTEX_TID_MASK) == (uint32_t)t->tid) {
        if (cas_user_u32(addr, value, (value & FUTEX_WAITERS) | FUTEX_OWNER_DIED, &old))
            return;
        if (old == value) {
            if (value & FUTEX_WAITERS)
                (void)!futex_wake(addr, 1, FUTEX_ANY, false);
            return;
        }
        value = old;
    }
}

/* Mutexes that the task held when it died are marked, and one waiter each is woken. */
static void robust_list_walk(struct task *t)
{
    struct {
        uint64_t next, offset, pending;
    } head;
    uint64_t entry;

    if (!t->robust_list || copy_from_user(&head, t->robust_list, sizeof(head)))
        return;
    entry = head.next;
    for (unsigned i = 0; i < ROBUST_MOST && (entry & ~1UL) != t->robust_list; i++) {
        uint64_t next;

        if (copy_from_user(&next, entry & ~1UL, sizeof(next)))
            break;
        if ((entry & ~1UL) != (head.pending & ~1UL))
            robust_release(t, (entry & ~1UL) + head.offset);
        entry = next;
        cond_resched();
    }
    if (head.pending & ~1UL)
        robust_release(t, (head.pending & ~1UL) + head.offset);
}

void futex_task_exit(struct task *t)
{
    uint32_t zero = 0;

    robust_list_walk(t);
    t->robust_list = 0;
    if (t->clear_child_tid && !copy_to_user(t->clear_child_tid, &zero, sizeof(zero)))
        (void)!futex_wake(t->clear_child_tid, 1, FUTEX_ANY, false);
    t->clear_child_tid = 0;
}

static void futex_init(void)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        spin_init(&buckets[i].lock);
        list_init(&buckets[i].waiters);
    }
}
INIT_CALL(INIT_CORE, futex_init);
