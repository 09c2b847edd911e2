FS_TEST_SRC := $(wildcard core/fs/*.c core/fs/ext4/*.c) core/lib/crc32c.c core/lib/random.c core/lib/bitmap.c tests/unit/fs_disk.c
UNIT_TESTS += ext4
UNIT_SRC_ext4 := tests/unit/test_ext4.c $(FS_TEST_SRC)
UNIT_TESTS += ext4_random ext4_crash
UNIT_SRC_ext4_random := tests/unit/test_ext4_random.c $(FS_TEST_SRC)
UNIT_SRC_ext4_crash := tests/unit/test_ext4_crash.c $(FS_TEST_SRC)
# The same twice: ASan finds what was freed too early, TSan what was not ordered.
UNIT_TESTS += fs_threads fs_threads_tsan
UNIT_SRC_fs_threads := tests/unit/test_fs_threads.c $(FS_TEST_SRC)
UNIT_SRC_fs_threads_tsan := tests/unit/test_fs_threads.c $(FS_TEST_SRC)
UNIT_SAN_fs_threads_tsan := thread
UNIT_TESTS += ext4_hostile
UNIT_SRC_ext4_hostile := tests/unit/test_ext4_hostile.c $(FS_TEST_SRC)
UNIT_DEP_ext4_hostile := tests/fuzz/ext4_walk.h
