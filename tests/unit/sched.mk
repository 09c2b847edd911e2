UNIT_TESTS += policy
UNIT_SRC_policy := tests/unit/test_policy.c sched/policy.c core/lib/rbtree.c core/lib/bitmap.c
