/* Rules 34, 68 to 74 and 76 of virtio-net that need no device. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>
#include "drivers/virtio/virtio_net_header.h"

#define F(n) (1ULL << (n))

static void rule_69_the_header_is_12_bytes_on_modern_even_without_mergeable(void **state)
{
    assert_int_equal(virtio_net_header_size(0, true), 12);
    assert_int_equal(virtio_net_header_size(F(NET_F_MRG_RXBUF), true), 12);
    assert_int_equal(virtio_net_header_size(F(NET_F_MRG_RXBUF), false), 12);
    assert_int_equal(virtio_net_header_size(0, false), 10);
    assert_int_equal(sizeof(struct virtio_net_header), 12);
}

static void rule_76_each_feature_only_with_what_it_needs(void **state)
{
    uint64_t all = ~0ULL;
    uint64_t f = virtio_net_choose_features(all);
    assert_true(f & F(NET_F_GUEST_TSO4) && f & F(NET_F_HOST_TSO4) && f & F(NET_F_MQ) && f & F(NET_F_GUEST_ANNOUNCE));
    assert_false(virtio_net_choose_features(all & ~F(NET_F_GUEST_CSUM)) & F(NET_F_GUEST_TSO4));
    assert_false(virtio_net_choose_features(all & ~F(NET_F_CSUM)) & F(NET_F_HOST_TSO4));
    assert_false(virtio_net_choose_features(all & ~F(NET_F_CTRL_VQ)) & (F(NET_F_MQ) | F(NET_F_GUEST_ANNOUNCE)));
    assert_false(virtio_net_choose_features(all & ~F(NET_F_STATUS)) & F(NET_F_GUEST_ANNOUNCE));
    /* Only offered bits, whatever is offered. */
    srand(3);
    for (unsigned i = 0; i < 10000; i++) {
        uint64_t offered = (uint64_t)rand() << 32 ^ (uint64_t)rand() << 16 ^ (uint64_t)rand();
        assert_int_equal(virtio_net_choose_features(offered) & ~offered, 0);
    }
    assert_int_equal(virtio_net_choose_features(0), 0);
}

static void rule_71_no_large_receive_without_mergeable_buffers(void **state)
{
    assert_false(virtio_net_choose_features(~F(NET_F_MRG_RXBUF)) & F(NET_F_GUEST_TSO4));
}

static void rule_68_buffers_hold_what_the_mtu_allows(void **state)
{
    for (unsigned mtu = 68; mtu <= 9000; mtu++)
        assert_true(virtio_net_buffer_size(0, 12, mtu, 96) >= 96 + 12 + 14 + mtu);
    assert_int_equal(virtio_net_buffer_size(F(NET_F_MRG_RXBUF), 12, 9000, 96), 2048);
}

static void rule_72_as_many_buffers_as_the_first_says_within_a_bound(void **state)
{
    struct virtio_net_header h = { .num_buffers = 1 };
    assert_int_equal(virtio_net_rx_buffers(&h, true, 100, 12, 64), 1);
    h.num_buffers = 64;
    assert_int_equal(virtio_net_rx_buffers(&h, true, 100, 12, 64), 64);
    h.num_buffers = 65;
    assert_int_equal(virtio_net_rx_buffers(&h, true, 100, 12, 64), 0);
    h.num_buffers = 0;
    assert_int_equal(virtio_net_rx_buffers(&h, true, 100, 12, 64), 0);
    /* Without mergeable buffers the field means nothing. */
    assert_int_equal(virtio_net_rx_buffers(&h, false, 100, 12, 64), 1);
    /* Shorter than a header and an Ethernet header. */
    h.num_buffers = 1;
    assert_int_equal(virtio_net_rx_buffers(&h, true, 25, 12, 64), 0);
    assert_int_equal(virtio_net_rx_buffers(&h, true, 26, 12, 64), 1);
}

static void rule_34_the_control_queue_is_behind_the_last_possible_pair(void **state)
{
    assert_int_equal(virtio_net_control_index(F(NET_F_MQ), 16), 32);
    assert_int_equal(virtio_net_control_index(0, 16), 2);
}

static void rule_74_pairs_lie_between_1_and_the_maximum(void **state)
{
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 48, 0), 16);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 4, 0), 4);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 48, 3), 3);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 8, 99), 8);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 0, 8, 0), 1);
    assert_int_equal(virtio_net_pairs(0, 16, 48, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule_34_the_control_queue_is_behind_the_last_possible_pair),
        cmocka_unit_test(rule_68_buffers_hold_what_the_mtu_allows),
        cmocka_unit_test(rule_69_the_header_is_12_bytes_on_modern_even_without_mergeable),
        cmocka_unit_test(rule_71_no_large_receive_without_mergeable_buffers),
        cmocka_unit_test(rule_72_as_many_buffers_as_the_first_says_within_a_bound),
        cmocka_unit_test(rule_74_pairs_lie_between_1_and_the_maximum),
        cmocka_unit_test(rule_76_each_feature_only_with_what_it_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
