FUZZ_TARGETS += ext4
FUZZ_SRC_ext4 = tests/fuzz/fuzz_ext4.c $(FS_TEST_SRC) $(UNIT_HOST_SRC)
