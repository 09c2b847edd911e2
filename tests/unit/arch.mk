UNIT_TESTS += aml madt memmap buddy pvclock
UNIT_SRC_aml := tests/unit/test_aml.c arch/x86_64/aml.c
UNIT_SRC_madt := tests/unit/test_madt.c arch/x86_64/madt.c
UNIT_SRC_memmap := tests/unit/test_memmap.c arch/x86_64/memmap.c
UNIT_SRC_buddy := tests/unit/test_buddy.c core/mm/buddy.c
UNIT_SRC_pvclock := tests/unit/test_pvclock.c
