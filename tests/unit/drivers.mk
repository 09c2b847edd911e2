# Vector planner, ring, virtio core, block core.
UNIT_TESTS += ring planner virtio virtio_pci block_split aml_slots bench_blk
UNIT_SRC_ring := tests/unit/test_ring.c tests/unit/fake_ring.c drivers/virtio/ring_split.c drivers/virtio/ring_packed.c drivers/virtio/ring.c
UNIT_SRC_planner := tests/unit/test_planner.c core/irq/planner.c
UNIT_SRC_virtio := tests/unit/test_virtio.c tests/unit/fake_ring.c drivers/virtio/virtio.c drivers/virtio/virtqueue.c \
	drivers/virtio/ring_split.c drivers/virtio/ring_packed.c drivers/virtio/ring.c core/lib/cmdline.c
UNIT_SRC_block_split := tests/unit/test_block_split.c core/block/split.c
UNIT_SRC_virtio_pci := tests/unit/test_virtio_pci.c drivers/virtio/virtio_pci.c drivers/virtio/virtio_pci_legacy.c \
	drivers/pci/device.c
UNIT_TESTS += virtio_blk
UNIT_SRC_virtio_blk := tests/unit/test_virtio_blk.c drivers/virtio/blk_queue.c core/block/block.c core/block/split.c core/lib/bitmap.c
UNIT_DEP_virtio_blk := drivers/virtio/virtio_blk.c
UNIT_SRC_bench_blk := tests/unit/test_bench_blk.c core/block/bench_options.c core/block/bench_pattern.c
UNIT_SRC_aml_slots := tests/unit/test_aml_slots.c drivers/pci/aml_slots.c
