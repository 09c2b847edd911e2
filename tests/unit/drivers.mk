# Vector planner, ring, virtio core, PCI, block core.
UNIT_TESTS += ring planner
UNIT_SRC_ring := tests/unit/test_ring.c tests/unit/fake_ring.c drivers/virtio/ring_split.c
UNIT_SRC_planner := tests/unit/test_planner.c core/irq/planner.c
