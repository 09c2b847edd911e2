# core/fs as a library, built once for the tests that use ASan and once for TSan.
FS_TEST_SRC := $(wildcard core/fs/*.c core/fs/ext4/*.c) core/lib/crc32c.c core/lib/random.c core/lib/bitmap.c tests/unit/fs_disk.c
FS_HEADERS := $(wildcard include/weir/*.h tests/host/*.h tests/host/weir/*.h tests/unit/*.h core/fs/*.h core/fs/ext4/*.h)
FS_LIB := $(B)/unit/fs.asan.a
FS_LIB_TSAN := $(B)/unit/fs.tsan.a
$(B)/unit/fs.asan/%.o: %.c $(FS_HEADERS)
	@mkdir -p $(@D)
	@$(CC) $(UNIT_CFLAGS) -fsanitize=$(UNIT_SAN) -fno-sanitize-recover=all -c $< -o $@
$(B)/unit/fs.tsan/%.o: %.c $(FS_HEADERS)
	@mkdir -p $(@D)
	@$(CC) $(UNIT_CFLAGS) -fsanitize=thread -Wno-tsan -c $< -o $@
$(FS_LIB): $(patsubst %.c,$(B)/unit/fs.asan/%.o,$(FS_TEST_SRC))
	@ar rcs $@ $^
$(FS_LIB_TSAN): $(patsubst %.c,$(B)/unit/fs.tsan/%.o,$(FS_TEST_SRC))
	@ar rcs $@ $^

FS_TESTS := ext4 ext4_random ext4_crash ext4_hostile fs_threads
UNIT_TESTS += $(FS_TESTS) fs_threads_tsan
$(foreach t,$(FS_TESTS),$(eval UNIT_SRC_$(t) := tests/unit/test_$(t).c)$(eval UNIT_DEP_$(t) := $(FS_LIB))$(eval UNIT_LIBS_$(t) := $(FS_LIB)))
UNIT_DEP_ext4_hostile += tests/fuzz/ext4_walk.h
# The threads twice: ASan finds what was freed too early, TSan what was not ordered.
UNIT_SRC_fs_threads_tsan := tests/unit/test_fs_threads.c
UNIT_DEP_fs_threads_tsan := $(FS_LIB_TSAN)
UNIT_LIBS_fs_threads_tsan := $(FS_LIB_TSAN)
UNIT_SAN_fs_threads_tsan := thread
UNIT_CFLAGS_fs_threads_tsan := -Wno-tsan
