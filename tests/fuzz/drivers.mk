FUZZ_TARGETS += ring
FUZZ_SRC_ring := tests/fuzz/fuzz_ring.c drivers/virtio/ring_split.c drivers/virtio/ring_packed.c drivers/virtio/ring.c tests/host/host_misc.c tests/host/host_mm.c \
	tests/host/host_sched.c
