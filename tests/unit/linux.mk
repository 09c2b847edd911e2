UNIT_TESTS += elf
UNIT_SRC_elf := tests/unit/test_elf.c core/linux/elf.c
