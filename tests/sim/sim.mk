# The scheduler's policy on simulated CPUs: `make sim` checks, `make sim-table` prints the table for docs/performance.md.
SIM_SRC := tests/sim/main.c tests/sim/engine.c sched/policy.c core/lib/rbtree.c core/lib/bitmap.c
$(B)/sim: $(SIM_SRC) tests/sim/sim.h include/weir/policy.h include/weir/policy_queue.h
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Wshadow -Wno-unused-parameter -Iinclude -o $@ $(SIM_SRC)
sim: $(B)/sim ## scheduler simulation at 2 to 256 CPUs; ends with "N passed, N failed"
	$(B)/sim
sim-table: $(B)/sim
	$(B)/sim --table
.PHONY: sim sim-table
