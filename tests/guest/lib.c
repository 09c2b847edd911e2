/* core/lib inside the image: the freestanding string and printf functions that the host tests cannot link. */
#include <weir/init.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#define FORMAT_CHECK(expected, ...) \
    do { \
        char out_[64]; \
        int n_ = snprintf(out_, sizeof(out_), __VA_ARGS__); \
        if (strcmp(out_, expected) || n_ != (int)strlen(expected)) { \
            log_error("%s:%d: \"%s\" instead of \"%s\"", __FILE__, __LINE__, out_, expected); \
            return 1; \
        } \
    } while (0)

GUEST_TEST(printf_formats)
{
    FORMAT_CHECK("a 1 -2 3 ff FF 0xff", "%c %d %i %u %x %X %#x", 'a', 1, -2, 3u, 255u, 255u, 255u);
    FORMAT_CHECK("   42|42   |00042|+42| 42|-0042", "%5d|%-5d|%05d|%+d|% d|%05d", 42, 42, 42, 42, 42, -42);
    FORMAT_CHECK("18446744073709551615 -9223372036854775808", "%lu %ld", ~0UL, (long)(1UL << 63));
    FORMAT_CHECK("200 -1 65535", "%hhu %hhd %hu", (unsigned char)456u, (signed char)255, (unsigned short)65535u);
    FORMAT_CHECK("ab|   ab|ab   |a|%", "%s|%5s|%-5s|%.1s|%%", "ab", "ab", "ab", "ab");
    FORMAT_CHECK("007|  007|0|", "%.3d|%5.3d|%d|%.0d", 7, 7, 0, 0);
    FORMAT_CHECK("   x|x   ", "%*s|%-*s", 4, "x", 4, "x");
    FORMAT_CHECK("0xdeadbeef", "%p", (void *)0xdeadbeefUL);
    char small[4];
    GUEST_CHECK(snprintf(small, sizeof(small), "abcdef") == 6 && !strcmp(small, "abc"));
    GUEST_CHECK(snprintf(NULL, 0, "abcdef") == 6);
    return 0;
}

GUEST_TEST(memory_functions)
{
    static unsigned char a[600], b[600], model[600];
    for (unsigned offset = 0; offset < 17; offset++) {
        for (unsigned len = 0; len < 300; len += 7) {
            for (unsigned i = 0; i < sizeof(a); i++)
                a[i] = b[i] = model[i] = (unsigned char)(i * 7);
            /* Overlapping both ways, and apart. */
            for (unsigned i = 0; i < len; i++)
                model[offset + i] = a[64 + i];
            memmove(b + offset, b + 64, len);
            GUEST_CHECK(!memcmp(b, model, sizeof(b)));
            memcpy(b, a, sizeof(b));
            memcpy(model, a, sizeof(b));
            for (unsigned i = 0; i < len; i++)
                model[64 + i] = a[offset + i];
            memmove(b + 64, b + offset, len);
            GUEST_CHECK(!memcmp(b, model, sizeof(b)));
            memset(b + offset, 0x5a, len);
            GUEST_CHECK(!len || (b[offset] == 0x5a && b[offset + len - 1] == 0x5a));
            GUEST_CHECK(b[offset + len] == model[offset + len]);
        }
    }
    GUEST_CHECK(memcmp("abcdefgh1", "abcdefgh2", 9) < 0 && memcmp("\xff", "\x01", 1) > 0);
    GUEST_CHECK(memchr("abc", 'c', 2) == NULL && strchr("abc", 0) != NULL && strrchr("abcb", 'b') != NULL);
    GUEST_CHECK(!strcmp(strstr("one two", "two"), "two") && !strstr("one", "two") && strnlen("abc", 2) == 2);
    return 0;
}
