FUZZ_TARGETS += ring
FUZZ_SRC_ring := tests/fuzz/fuzz_ring.c drivers/virtio/ring_split.c drivers/virtio/ring_packed.c drivers/virtio/ring.c tests/host/host_misc.c tests/host/host_mm.c \
	tests/host/host_sched.c
FUZZ_TARGETS += pci aml
FUZZ_SRC_pci := tests/fuzz/fuzz_pci.c drivers/virtio/virtio_pci.c drivers/virtio/virtio_pci_legacy.c drivers/pci/device.c \
	tests/host/host_misc.c tests/host/host_mm.c tests/host/host_sched.c
FUZZ_SRC_aml := tests/fuzz/fuzz_aml.c arch/x86_64/aml.c drivers/pci/aml_slots.c
