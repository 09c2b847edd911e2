# Weir: see `make help`.
CC ?= gcc
B := build
MAKEFLAGS += --no-builtin-rules $(if $(V),,--silent) # V=1 shows the commands
.DEFAULT_GOAL := all

is_clang := $(shell $(CC) --version 2>/dev/null | grep -q clang && echo 1)

WARN := -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
WARN += $(if $(is_clang),-Wframe-larger-than=2048,-Wstack-usage=2048)
KCFLAGS := -std=gnu11 -ffreestanding -O2 -g -fno-pic -fno-pie -mcmodel=kernel -mno-red-zone \
	-mgeneral-regs-only -fno-strict-aliasing -fno-common -fno-omit-frame-pointer \
	-fstack-protector-strong -fno-asynchronous-unwind-tables -fcf-protection=none \
	-mstack-protector-guard=global -ffunction-sections $(WARN) -Iinclude -I. -I$(B)/gen
KLDFLAGS := -nostdlib -static $(if $(is_clang),,-no-pie) -Wl,--build-id=none -Wl,-z,max-page-size=4096 -Wl,-z,noexecstack \
	-Wl,--no-warn-rwx-segments -T arch/x86_64/weir.ld
ifdef ALLOW_UNRESOLVED
KLDFLAGS += -Wl,--unresolved-symbols=ignore-all
endif

# Every kernel source is found by its place; tests/guest is the self-tests inside the image.
KDIRS := arch/x86_64 sched core drivers tests/guest
KSRC := $(sort $(shell find $(KDIRS) \( -name '*.c' -o -name '*.S' \) -not -path '*/vdso/*' -not -path '*/lwip_module/*'))
KOBJ := $(patsubst %,$(B)/kernel/%.o,$(KSRC))

# Parts with rules of their own: lwIP module, vDSO, unit tests, fuzzers, simulator.
-include $(sort $(wildcard core/*/*.mk) $(wildcard tests/*/*.mk))

all: $(B)/weir.elf ## kernel image build/weir.elf
.PHONY: all

objs: $(KOBJ) ## compile every kernel object without linking
.PHONY: objs

$(B)/kernel/%.c.o: %.c
	@mkdir -p $(@D); echo "CC $<"
	$(CC) $(KCFLAGS) -MMD -MP -c $< -o $@
$(B)/kernel/%.S.o: %.S
	@mkdir -p $(@D); echo "AS $<"
	$(CC) $(KCFLAGS) -MMD -MP -c $< -o $@

# Symbol table for backtraces: link once without it, list the symbols, link again.
$(B)/weir.elf: $(KOBJ) $(KEXTRA_OBJ) arch/x86_64/weir.ld scripts/ksyms
	@echo "LD $@"
	$(CC) $(KLDFLAGS) -o $(B)/weir.0.elf $(KOBJ) $(KEXTRA_OBJ)
	scripts/ksyms $(B)/weir.0.elf > $(B)/ksyms.S && $(CC) -c $(B)/ksyms.S -o $(B)/ksyms.o
	$(CC) $(KLDFLAGS) -o $(B)/weir.1.elf $(KOBJ) $(KEXTRA_OBJ) $(B)/ksyms.o
	scripts/ksyms $(B)/weir.1.elf > $(B)/ksyms.S && $(CC) -c $(B)/ksyms.S -o $(B)/ksyms.o
	$(CC) $(KLDFLAGS) -o $@ $(KOBJ) $(KEXTRA_OBJ) $(B)/ksyms.o

setup: ## install every package that building, testing and measuring need (root or sudo)
	scripts/setup
# setup comes first, and each script builds what it needs: a fresh machine has no compiler yet.
demo: setup ## build, image, boot at SMP=48, short pgbench sweep from outside, plot, clean shutdown
	scripts/demo
check: setup ## everything that CI runs; ends with "N passed, N failed"
	scripts/check
soak: setup ## the long tests
	scripts/check --soak
clean: ## remove build/
	rm -rf $(B) build-clang
compile_commands.json: Makefile ## for clangd and clang-tidy
	@mkdir -p $(B) && (echo '['; for f in $(filter %.c,$(KSRC)); do \
	  printf '%s{"directory":"%s","file":"%s","command":"$(CC) %s -c %s"}' "$$sep" "$(CURDIR)" "$$f" '$(subst ",\",$(KCFLAGS))' "$$f"; sep=,; done; echo ']') > $@
help: ## this list
	@grep -hE '^[a-z_.]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24
.PHONY: setup demo check soak clean help

-include $(KOBJ:.o=.d)
