/* core/lib: red-black tree, bitmaps, command line, number parsing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/bitmap.h>
#include <weir/cmdline.h>
#include <weir/errno.h>
#include <weir/rbtree.h>
#include <weir/string.h>

struct item {
    struct rb_node node;
    unsigned key;
    bool in;
};

static void insert(struct rb_tree *t, struct item *item)
{
    struct rb_node **link = &t->root, *parent = NULL;
    while (*link) {
        parent = *link;
        link = item->key < container_of(parent, struct item, node)->key ? &parent->left : &parent->right;
    }
    rb_insert(t, &item->node, parent, link);
    item->in = true;
}

/* Black height of the subtree, checking colours, order and parents on the way. */
static unsigned check_subtree(const struct rb_node *n, const struct rb_node *parent)
{
    if (!n)
        return 1;
    assert_ptr_equal(n->parent, parent);
    if (n->red)
        assert_false((n->left && n->left->red) || (n->right && n->right->red));
    unsigned left = check_subtree(n->left, n), right = check_subtree(n->right, n);
    assert_int_equal(left, right);
    return left + !n->red;
}

static void check_tree(struct rb_tree *t, struct item *items, unsigned n)
{
    unsigned expected = 0, seen = 0, last = 0;
    check_subtree(t->root, NULL);
    for (unsigned i = 0; i < n; i++)
        expected += items[i].in;
    for (struct rb_node *it = rb_first(t); it; it = rb_next(it), seen++) {
        unsigned key = container_of(it, struct item, node)->key;
        assert_true(!seen || key >= last);
        last = key;
    }
    assert_int_equal(seen, expected);
    seen = 0;
    for (struct rb_node *it = rb_last(t); it; it = rb_prev(it))
        seen++;
    assert_int_equal(seen, expected);
}

static void tree_keeps_order_and_balance_under_random_changes(void **state)
{
    enum { N = 64 };
    static struct item items[N];
    struct rb_tree t = { NULL };
    srand(7);
    for (unsigned i = 0; i < N; i++)
        items[i].key = (unsigned)rand() % 40; /* equal keys too */
    for (unsigned round = 0; round < 20000; round++) {
        struct item *item = &items[rand() % N];
        if (item->in) {
            rb_remove(&t, &item->node);
            item->in = false;
        } else {
            insert(&t, item);
        }
        if (round % 16 == 0)
            check_tree(&t, items, N);
    }
}

static void bitmap_search_agrees_with_a_loop(void **state)
{
    uint64_t m[3] = { 0 };
    srand(3);
    for (unsigned round = 0; round < 2000; round++) {
        bitmap_set(m, (unsigned)rand() % 150);
        bitmap_clear(m, (unsigned)rand() % 150);
        unsigned from = (unsigned)rand() % 160, bits = 1 + (unsigned)rand() % 150, set = bits, clear = bits, weight = 0;
        for (unsigned i = bits; i-- > 0;) {
            weight += bitmap_test(m, i);
            if (i >= from && bitmap_test(m, i))
                set = i;
            if (i >= from && !bitmap_test(m, i))
                clear = i;
        }
        assert_int_equal(bitmap_next_set(m, bits, from), set);
        assert_int_equal(bitmap_next_clear(m, bits, from), clear);
        assert_int_equal(bitmap_weight(m, bits), weight);
    }
}

static void command_line_is_cut_into_keys_and_application(void **state)
{
    unsigned argc;
    cmdline_init("a=1 b  c=\"x y\" a=2 size=4K big=0x10 bad=12x on=off -- /bin/app --flag \"two words\" a=3");
    assert_string_equal(cmdline_get("a"), "2");
    assert_string_equal(cmdline_get("b"), "");
    assert_string_equal(cmdline_get("c"), "x y");
    assert_null(cmdline_get("d"));
    assert_null(cmdline_get("siz"));
    assert_string_equal(cmdline_get_nth("a", 0), "1");
    assert_string_equal(cmdline_get_nth("a", 1), "2");
    assert_null(cmdline_get_nth("a", 2));
    assert_null(cmdline_get_nth("d", 0));
    assert_int_equal(cmdline_u64("size", 7), 4096);
    assert_int_equal(cmdline_u64("big", 7), 16);
    assert_int_equal(cmdline_u64("bad", 7), 7);
    assert_int_equal(cmdline_u64("none", 7), 7);
    assert_true(cmdline_bool("b", false));
    assert_false(cmdline_bool("on", true));
    assert_true(cmdline_bool("none", true));
    char *const *argv = cmdline_app_argv(&argc);
    assert_int_equal(argc, 4);
    assert_string_equal(argv[0], "/bin/app");
    assert_string_equal(argv[2], "two words");
    cmdline_init("");
    cmdline_app_argv(&argc);
    assert_int_equal(argc, 0);
}

static void an_overlong_command_line_is_cut_without_harm(void **state)
{
    static char text[9000];
    for (unsigned i = 0; i + 1 < sizeof(text); i++)
        text[i] = i % 5 == 4 ? ' ' : 'x';
    cmdline_init(text);
    assert_non_null(cmdline_get("xxxx"));
    cmdline_init("\"unterminated quote");
    assert_non_null(cmdline_get("unterminated quote"));
}

static void numbers_are_parsed_whole_or_refused(void **state)
{
    static const struct { const char *text; bool suffix; int result; uint64_t value; } cases[] = {
        { "0", false, 0, 0 }, { "18446744073709551615", false, 0, UINT64_MAX },
        { "18446744073709551616", false, -EINVAL, 0 }, { "", false, -EINVAL, 0 }, { "0x", false, -EINVAL, 0 },
        { "0xfF", false, 0, 255 }, { "1k", true, 0, 1024 }, { "1k", false, -EINVAL, 0 }, { "3G", true, 0, 3ULL << 30 },
        { "1Kx", true, -EINVAL, 0 }, { "20000000000T", true, -EINVAL, 0 }, { "-1", false, -EINVAL, 0 },
    };
    for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
        uint64_t value = 0;
        assert_int_equal(parse_u64(cases[i].text, cases[i].suffix, &value), cases[i].result);
        assert_int_equal(value, cases[i].value);
    }
}

static void str_copy_always_terminates(void **state)
{
    char buf[4];
    assert_int_equal(str_copy(buf, "abcdef", sizeof(buf)), 6);
    assert_string_equal(buf, "abc");
    assert_int_equal(str_copy(buf, "abcdef", 0), 6);
    assert_int_equal(scnprintf(buf, sizeof(buf), "%d", 12345), 3);
    assert_string_equal(buf, "123");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_keeps_order_and_balance_under_random_changes),
        cmocka_unit_test(bitmap_search_agrees_with_a_loop),
        cmocka_unit_test(command_line_is_cut_into_keys_and_application),
        cmocka_unit_test(an_overlong_command_line_is_cut_without_harm),
        cmocka_unit_test(numbers_are_parsed_whole_or_refused),
        cmocka_unit_test(str_copy_always_terminates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
