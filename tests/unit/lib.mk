UNIT_TESTS += lib
UNIT_SRC_lib := tests/unit/test_lib.c core/lib/rbtree.c core/lib/bitmap.c core/lib/cmdline.c core/lib/string.c
