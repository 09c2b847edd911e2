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
    assert_int_equal(offsetof(struct virtio_net_header, hash_value), 12);
    assert_int_equal(virtio_net_header_size(F(NET_F_HASH_REPORT), true), 20);
    assert_int_equal(virtio_net_header_size(F(NET_F_HASH_REPORT) | F(NET_F_MRG_RXBUF), true), 20);
    assert_int_equal(sizeof(struct virtio_net_header), 20);
}

static void rule_76_each_feature_only_with_what_it_needs(void **state)
{
    uint64_t all = ~0ULL;
    uint64_t f = virtio_net_choose_features(all);
    assert_true(f & F(NET_F_GUEST_TSO4) && f & F(NET_F_HOST_TSO4) && f & F(NET_F_MQ) && f & F(NET_F_GUEST_ANNOUNCE));
    assert_true(f & F(NET_F_RSS) && f & F(NET_F_HASH_REPORT));
    assert_false(virtio_net_choose_features(all & ~F(NET_F_CTRL_VQ)) & (F(NET_F_RSS) | F(NET_F_HASH_REPORT)));
    assert_false(virtio_net_choose_features(all & ~F(NET_F_RSS)) & F(NET_F_HASH_REPORT));
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
    assert_int_equal(virtio_net_control_index(F(NET_F_RSS), 16), 32);
    assert_int_equal(virtio_net_control_index(0, 16), 2);
}

static void rule_74_pairs_lie_between_1_and_the_maximum(void **state)
{
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 48, 0), 16);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 4, 0), 4);
    assert_int_equal(virtio_net_pairs(F(NET_F_RSS), 16, 4, 0), 4);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 48, 3), 3);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 16, 8, 99), 8);
    assert_int_equal(virtio_net_pairs(F(NET_F_MQ), 0, 8, 0), 1);
    assert_int_equal(virtio_net_pairs(0, 16, 48, 0), 1);
}

static void rule_75_rss_only_within_the_limits_of_the_device(void **state)
{
    const uint32_t all = ~0u, both = NET_HASH_TCPV4 | NET_HASH_UDPV4;
    assert_int_equal(virtio_net_hash_types(40, 128, all), both);
    assert_int_equal(virtio_net_hash_types(52, 512, NET_HASH_TCPV4 | 1), NET_HASH_TCPV4);
    assert_int_equal(virtio_net_hash_types(40, 128, NET_HASH_UDPV4), 0);
    assert_int_equal(virtio_net_hash_types(39, 128, all), 0);
    assert_int_equal(virtio_net_hash_types(40, 127, all), 0);
    assert_int_equal(virtio_net_hash_types(0, 0, 0), 0);
}

static void rule_75_the_table_is_a_power_of_two_and_names_enabled_queues_only(void **state)
{
    struct virtio_net_rss_command c;
    uint8_t key[NET_RSS_KEY];
    uint16_t table[NET_RSS_TABLE];
    for (unsigned i = 0; i < NET_RSS_KEY; i++)
        key[i] = (uint8_t)(i + 1);
    for (unsigned i = 0; i < NET_RSS_TABLE; i++)
        table[i] = (uint16_t)(i % 5);
    assert_true(virtio_net_rss_command(&c, NET_HASH_TCPV4, key, table, 5));
    const uint8_t *b = (const uint8_t *)&c;
    assert_int_equal(sizeof(c), 4 + 2 + 2 + 2 * 128 + 2 + 1 + 40);
    assert_int_equal(b[0], NET_HASH_TCPV4);
    assert_int_equal(b[4] | b[5] << 8, 127);
    assert_int_equal(b[6] | b[7] << 8, 0);
    for (unsigned i = 0; i < NET_RSS_TABLE; i++)
        assert_int_equal(b[8 + 2 * i] | b[9 + 2 * i] << 8, i % 5);
    assert_int_equal(b[264] | b[265] << 8, 5);
    assert_int_equal(b[266], 40);
    assert_memory_equal(b + 267, key, 40);
    assert_false(virtio_net_rss_command(&c, NET_HASH_TCPV4, key, table, 4));
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
        cmocka_unit_test(rule_75_rss_only_within_the_limits_of_the_device),
        cmocka_unit_test(rule_75_the_table_is_a_power_of_two_and_names_enabled_queues_only),
        cmocka_unit_test(rule_76_each_feature_only_with_what_it_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
