# Host unit tests. A test is registered by an area's fragment tests/unit/AREA.mk:
#   UNIT_TESTS += ring
#   UNIT_SRC_ring := tests/unit/test_ring.c drivers/virtio/ring.c
#   UNIT_CFLAGS_ring := -DSMALL        (optional)   UNIT_LIBS_ring := -lz  (optional)
#   UNIT_DEP_ring := build/gen/x.h     (optional)   UNIT_SAN_ring := thread (optional, default below)
# It is linked with cmocka and with the host versions of the kernel services (tests/host, see its README.md);
# those are weak, so a real source named in UNIT_SRC_x replaces them. `make unit` builds and runs all,
# `make unit UNIT_TESTS=ring` one, build/unit/ring can be run under gdb.
UNIT_SAN ?= address,undefined
UNIT_TIMEOUT ?= 600
UNIT_HOST_SRC := $(sort $(wildcard tests/host/*.c))
UNIT_HEADERS := $(wildcard include/weir/*.h tests/host/*.h tests/host/weir/*.h tests/unit/*.h core/*/*.h core/*/*/*.h drivers/*/*.h sched/*.h)
UNIT_CFLAGS := -std=gnu11 -O1 -g -fno-omit-frame-pointer -fno-strict-aliasing -fno-common -pthread \
	-Wall -Wextra -Wshadow -Wno-unused-parameter -Wno-missing-field-initializers \
	-Itests/host -Iinclude -I. -I$(B)/gen
unit_san = $(or $(UNIT_SAN_$(1)),$(UNIT_SAN))
unit_san_flags = $(if $(filter none,$(call unit_san,$(1))),,-fsanitize=$(call unit_san,$(1)) -fno-sanitize-recover=all)

# Fragments that sort after this file still count: names are looked up when the rule is used.
.SECONDEXPANSION:
$(B)/unit/%: $$(UNIT_SRC_$$*) $$(UNIT_DEP_$$*) $(UNIT_HOST_SRC) $(UNIT_HEADERS) tests/unit/unit.mk
	@mkdir -p $@.obj
	@for s in $(UNIT_HOST_SRC); do \
	  $(CC) $(UNIT_CFLAGS) $(UNIT_CFLAGS_$*) $(call unit_san_flags,$*) -c $$s -o $@.obj/$$(basename $$s .c).part.o || exit 1; done
	@ld -r -o $@.obj/host.o $(patsubst tests/host/%.c,$@.obj/%.part.o,$(UNIT_HOST_SRC))
	@objcopy --weaken $@.obj/host.o
	$(CC) $(UNIT_CFLAGS) $(UNIT_CFLAGS_$*) $(call unit_san_flags,$*) -o $@ $(filter %.c %.S,$(UNIT_SRC_$*)) $@.obj/host.o -lcmocka $(UNIT_LIBS_$*)

unit: $$(addprefix $(B)/unit/,$$(UNIT_TESTS)) ## build and run the host unit tests; ends with "N passed, N failed"
	@passed=0; failed=0; for t in $(UNIT_TESTS); do \
	  CMOCKA_MESSAGE_OUTPUT=stdout timeout $(UNIT_TIMEOUT) $(B)/unit/$$t > $(B)/unit/$$t.log 2>&1; status=$$?; \
	  ok=$$(grep -c '^\[       OK \]' $(B)/unit/$$t.log); bad=$$(grep -cE '^\[  (FAILED|ERROR ) +\] [^0-9]' $(B)/unit/$$t.log); \
	  if [ $$status -ne 0 ] && [ $$bad -eq 0 ]; then bad=1; fi; \
	  if [ $$status -eq 0 ] && [ $$ok -eq 0 ]; then bad=1; echo "$$t: ran no test"; fi; \
	  passed=$$((passed + ok)); failed=$$((failed + bad)); \
	  if [ $$bad -ne 0 ]; then echo "unit $$t: $$ok ok, $$bad FAILED (status $$status)"; tail -n 40 $(B)/unit/$$t.log; \
	  else echo "unit $$t: $$ok ok"; fi; \
	done; echo "$$passed passed, $$failed failed"; [ $$failed -eq 0 ]
.PHONY: unit
