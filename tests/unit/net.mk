UNIT_TESTS += net_steer net_module_elf virtio_net_header
UNIT_SRC_net_steer := tests/unit/test_net_steer.c core/net/steer.c
UNIT_SRC_net_module_elf := tests/unit/test_net_module_elf.c core/net/module_elf.c
UNIT_DEP_net_module_elf := $(B)/lwip/lwip.so
UNIT_CFLAGS_net_module_elf := -DMODULE_FILE='"$(B)/lwip/lwip.so"'
UNIT_SRC_virtio_net_header := tests/unit/test_virtio_net_header.c drivers/virtio/virtio_net_header.c
UNIT_TESTS += virtio_net
UNIT_SRC_virtio_net := tests/unit/test_virtio_net.c drivers/virtio/virtio_net_rx.c drivers/virtio/virtio_net_tx.c drivers/virtio/virtio_net_header.c
UNIT_DEP_virtio_net := drivers/virtio/virtio_net.c
