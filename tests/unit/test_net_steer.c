/* Frames find their stack and their transmit queue. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>
#include "core/net/net_internal.h"

/* A TCP or UDP frame over IPv4 with these ends. */
static uint32_t make_frame(uint8_t *f, uint8_t protocol, uint32_t from, uint32_t to, uint16_t from_port, uint16_t to_port)
{
    memset(f, 0, 64);
    f[12] = 0x08;
    f[14] = 0x45;
    f[23] = protocol;
    for (unsigned i = 0; i < 4; i++) {
        f[26 + i] = (uint8_t)(from >> (24 - 8 * i));
        f[30 + i] = (uint8_t)(to >> (24 - 8 * i));
    }
    f[34] = (uint8_t)(from_port >> 8);
    f[35] = (uint8_t)from_port;
    f[36] = (uint8_t)(to_port >> 8);
    f[37] = (uint8_t)to_port;
    return 64;
}

static void both_directions_of_a_flow_have_one_hash(void **state)
{
    uint8_t f[64];
    uint32_t there, back;
    srand(1);
    for (unsigned i = 0; i < 10000; i++) {
        uint32_t a = (uint32_t)rand(), b = (uint32_t)rand();
        uint16_t p = (uint16_t)rand(), q = (uint16_t)(rand() | 1);
        if (q == 68 || p == 68)
            continue;
        uint32_t len = make_frame(f, 6, a, b, p, q);
        assert_int_equal(steer_frame(f, len, &there), STEER_FLOW);
        make_frame(f, 6, b, a, q, p);
        assert_int_equal(steer_frame(f, len, &back), STEER_FLOW);
        assert_int_equal(there, back);
        assert_int_equal(there, steer_hash(b, a, q, p));
    }
}

/* Clients take ports in a row, or every second. */
static void client_ports_in_a_row_spread_evenly(void **state)
{
    for (unsigned step = 1; step <= 2; step++) {
        for (unsigned queues = 2; queues <= 48; queues += 23) {
            unsigned count[64] = { 0 };
            for (unsigned i = 0; i < 4800; i++)
                count[steer_stack(steer_hash(0x0a420001, 0x0a420002, (uint16_t)(40000 + step * i), 5432), queues)]++;
            for (unsigned i = 0; i < queues; i++)
                assert_in_range(count[i], 4800 / queues * 6 / 10, 4800 / queues * 14 / 10);
        }
        /* A few already: 64 clients reach each of 8 stacks. */
        unsigned reached = 0;
        for (unsigned i = 0; i < 64; i++)
            reached |= 1u << steer_stack(steer_hash(0x0a4d0001, 0x0a4d0002, (uint16_t)(33000 + step * i), 5432), 8);
        assert_int_equal(reached, 0xff);
    }
}

static void the_hash_is_what_a_device_computes_with_the_key(void **state)
{
    uint8_t key[STEER_KEY_BYTES];
    steer_key(key);
    srand(2);
    for (unsigned i = 0; i < 10000; i++) {
        uint8_t b[12];
        for (unsigned j = 0; j < 12; j++)
            b[j] = (uint8_t)rand();
        uint32_t from = (uint32_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3], to = (uint32_t)b[4] << 24 | b[5] << 16 | b[6] << 8 | b[7];
        uint16_t from_port = (uint16_t)(b[8] << 8 | b[9]), to_port = (uint16_t)(b[10] << 8 | b[11]);
        assert_int_equal(steer_hash(from, to, from_port, to_port), steer_toeplitz(key, b, 12));
        assert_int_equal(steer_hash(to, from, to_port, from_port), steer_toeplitz(key, b, 12));
    }
}

static void a_queue_carries_flows_of_one_stack_and_each_is_used(void **state)
{
    for (unsigned queues = 1; queues <= 64; queues++) {
        for (unsigned stacks = 1; stacks <= 64; stacks++) {
            unsigned stack_of[64], used = 0;
            memset(stack_of, 0xff, sizeof(stack_of));
            for (uint32_t hash = 0; hash < 2 * STEER_BUCKETS; hash++) {
                unsigned q = steer_queue(hash, queues, stacks), s = steer_stack(hash, stacks);
                assert_true(q < queues && s < stacks);
                /* High bits are not what a device's table is looked up with. */
                assert_int_equal(steer_queue(hash | 0xffff0000 | (hash << 7 & 0xff80), queues, stacks), q);
                if (queues < stacks) {
                    assert_int_equal(q, s % queues);
                    continue;
                }
                used += stack_of[q] == ~0u;
                assert_true(stack_of[q] == ~0u || stack_of[q] == s);
                stack_of[q] = s;
            }
            if (queues >= stacks && stacks * ((queues + stacks - 1) / stacks) <= STEER_BUCKETS)
                assert_int_equal(used, queues);
        }
    }
}

static void what_belongs_to_no_flow_goes_to_the_first_stack_or_all(void **state)
{
    uint8_t f[64];
    uint32_t hash;
    make_frame(f, 1, 1, 2, 3, 4);
    assert_int_equal(steer_frame(f, 64, &hash), STEER_FIRST); /* ICMP */
    make_frame(f, 17, 1, 2, 67, 68);
    assert_int_equal(steer_frame(f, 64, &hash), STEER_FIRST); /* DHCP */
    make_frame(f, 17, 1, 2, 3, 4);
    f[20] = 0x20;
    assert_int_equal(steer_frame(f, 64, &hash), STEER_FIRST); /* a fragment */
    memset(f, 0, 64);
    f[12] = 0x08;
    f[13] = 0x06;
    f[28] = 10;
    f[21] = 2;
    assert_int_equal(steer_frame(f, 64, &hash), STEER_ALL); /* ARP answer */
    f[21] = 1;
    assert_int_equal(steer_frame(f, 64, &hash), STEER_FIRST); /* a question is answered once */
    f[38] = 10;
    assert_int_equal(steer_frame(f, 64, &hash), STEER_ALL); /* an announcement */
}

static void short_and_lying_frames_are_not_read_beyond_their_end(void **state)
{
    for (uint32_t len = 0; len <= 64; len++) {
        for (unsigned words = 0; words < 16; words++) {
            uint8_t whole[64];
            make_frame(whole, 6, 1, 2, 3, 4);
            whole[14] = (uint8_t)(0x40 | words);
            uint8_t *exact = malloc(len ? len : 1); /* ASan sees the first byte too many */
            memcpy(exact, whole, len);
            uint32_t hash;
            enum steer_kind kind = steer_frame(exact, len, &hash);
            if (kind == STEER_FLOW)
                assert_true(words >= 5 && 14 + words * 4 + 4 <= len);
            free(exact);
        }
    }
}

/* The examples that the inventors of receive-side scaling publish for verification. */
static void toeplitz_gives_the_published_values(void **state)
{
    static const uint8_t key[40] = {
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
        0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    };
    /* 66.9.149.187:2794 to 161.142.100.80:1766 */
    static const uint8_t first[12] = { 66, 9, 149, 187, 161, 142, 100, 80, 2794 >> 8, 2794 & 255, 1766 >> 8, 1766 & 255 };
    assert_int_equal(steer_toeplitz(key, first, 12), 0x51ccc178);
    assert_int_equal(steer_toeplitz(key, first, 8), 0x323e8fc2);
    /* 199.92.111.2:14230 to 65.69.140.83:4739 */
    static const uint8_t second[12] = { 199, 92, 111, 2, 65, 69, 140, 83, 14230 >> 8, 14230 & 255, 4739 >> 8, 4739 & 255 };
    assert_int_equal(steer_toeplitz(key, second, 12), 0xc626b0ea);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_directions_of_a_flow_have_one_hash),
        cmocka_unit_test(client_ports_in_a_row_spread_evenly),
        cmocka_unit_test(the_hash_is_what_a_device_computes_with_the_key),
        cmocka_unit_test(a_queue_carries_flows_of_one_stack_and_each_is_used),
        cmocka_unit_test(what_belongs_to_no_flow_goes_to_the_first_stack_or_all),
        cmocka_unit_test(short_and_lying_frames_are_not_read_beyond_their_end),
        cmocka_unit_test(toeplitz_gives_the_published_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
