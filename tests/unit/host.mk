UNIT_TESTS += host
UNIT_SRC_host := tests/unit/test_host.c
