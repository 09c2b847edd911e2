# libFuzzer targets, built by clang with ASan and UBSan. An area registers one in a fragment tests/fuzz/AREA.mk or here:
#   FUZZ_TARGETS += elf      FUZZ_SRC_elf := tests/fuzz/fuzz_elf.c core/linux/elf.c
# A small corpus to start from may lie in tests/fuzz/corpus/NAME. What is found goes to build/fuzz/NAME.corpus.
# `make fuzz FUZZ_SECONDS=60 FUZZ_TARGETS=elf` runs one for a minute; a crashing input stays in build/fuzz/.
FUZZ_SECONDS ?= 10
FUZZ_TARGETS += elf
FUZZ_SRC_elf := tests/fuzz/fuzz_elf.c core/linux/elf.c

.SECONDEXPANSION:
$(B)/fuzz/%: $$(FUZZ_SRC_$$*) tests/fuzz/fuzz.mk
	@mkdir -p $(@D)
	clang -std=gnu11 -O1 -g -fno-omit-frame-pointer -fno-strict-aliasing -Itests/host -Iinclude -I. \
	  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o $@ $(FUZZ_SRC_$*)

fuzz: $$(addprefix $(B)/fuzz/,$$(FUZZ_TARGETS)) ## run every fuzzer for FUZZ_SECONDS (10); ends with "N passed, N failed"
	@passed=0; failed=0; for t in $(FUZZ_TARGETS); do mkdir -p $(B)/fuzz/$$t.corpus; \
	  if $(B)/fuzz/$$t -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$(B)/fuzz/$$t. -print_final_stats=1 \
	    $(B)/fuzz/$$t.corpus $$(ls -d tests/fuzz/corpus/$$t 2>/dev/null) > $(B)/fuzz/$$t.log 2>&1; then passed=$$((passed + 1)); \
	    echo "fuzz $$t: $$(sed -n 's/^stat::number_of_executed_units: //p' $(B)/fuzz/$$t.log) inputs"; \
	  else failed=$$((failed + 1)); echo "fuzz $$t: FAILED"; tail -n 30 $(B)/fuzz/$$t.log; fi; \
	done; echo "$$passed passed, $$failed failed"; [ $$failed -eq 0 ]
.PHONY: fuzz
