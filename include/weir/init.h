/*
 * Boot order as data. A subsystem names its init function and level; core/main.c calls them level by
 * level, on the boot CPU, in thread context with interrupts on and the scheduler running.
 */
#ifndef WEIR_INIT_H
#define WEIR_INIT_H
#include <weir/compiler.h>

enum init_level {
    INIT_CORE,     /* needs memory and scheduler only */
    INIT_BUS,      /* PCI enumeration: all functions found, drivers state their demands */
    INIT_PLAN,     /* the vector planner runs once over all demands */
    INIT_DRIVER,   /* drivers start their devices */
    INIT_NET,      /* protocol stacks, addresses */
    INIT_FS,       /* root file system mounted */
    INIT_LINUX,    /* system-call layer ready */
};
struct init_call {
    void (*fn)(void);
    const char *name;
    uint32_t level;
} __attribute__((aligned(32)));
#define INIT_CALL(level_, fn_) \
    static const struct init_call init_call_##fn_ __section(".init_calls") = { fn_, #fn_, level_ }

/* Self-test inside the booted image, run by `test=all` or `test=NAME`: returns 0 or reports with
 * GUEST_CHECK and returns 1. */
struct guest_test {
    const char *name;
    int (*fn)(void);
} __attribute__((aligned(16)));
#define GUEST_TEST(name_) \
    static int guest_test_##name_(void); \
    static const struct guest_test guest_test_entry_##name_ __section(".guest_tests") = { #name_, guest_test_##name_ }; \
    static int guest_test_##name_(void)

/* Something of which there must be as many after a self-test as before: count() says how many there are. */
struct guest_balance {
    const char *name;
    uint64_t (*count)(void);
} __attribute__((aligned(16)));
#define GUEST_BALANCE(name_, count_) \
    static const struct guest_balance guest_balance_##count_ __section(".guest_balances") = { name_, count_ }

#define GUEST_CHECK(cond) \
    do { \
        if (!(cond)) { \
            log_error("%s:%d: check failed: %s", __FILE__, __LINE__, #cond); \
            return 1; \
        } \
    } while (0)
#endif
