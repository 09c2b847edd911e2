/* vsnprintf without floating point. Any context; no allocation. */
#include <weir/string.h>

#if !__STDC_HOSTED__
struct sink {
    char *buf;
    size_t size, len; /* len counts what would be written */
};

static void put(struct sink *s, char c)
{
    if (s->len + 1 < s->size)
        s->buf[s->len] = c;
    s->len++;
}

static void put_padding(struct sink *s, char c, int n)
{
    while (n-- > 0)
        put(s, c);
}

enum { LEFT = 1, ZERO = 2, SIGN = 4, SPACE = 8, ALTERNATE = 16 };

static void put_field(struct sink *s, const char *prefix, const char *text, int len, int zeros, int width,
                      unsigned flags)
{
    int padding = width - (int)strlen(prefix) - zeros - len;
    if (!(flags & LEFT))
        put_padding(s, ' ', padding);
    while (*prefix)
        put(s, *prefix++);
    put_padding(s, '0', zeros);
    for (int i = 0; i < len; i++)
        put(s, text[i]);
    if (flags & LEFT)
        put_padding(s, ' ', padding);
}

static void put_number(struct sink *s, uint64_t value, bool negative, unsigned base, bool upper, int width,
                       int precision, unsigned flags)
{
    const char *digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char text[24];
    int len = 0;
    const char *prefix = negative ? "-" : (flags & SIGN) ? "+" : (flags & SPACE) ? " " : "";
    if ((flags & ALTERNATE) && base == 16 && value)
        prefix = upper ? "0X" : "0x";
    if ((flags & ALTERNATE) && base == 8)
        prefix = "0";
    for (uint64_t v = value; v || (!len && precision != 0); v /= base)
        text[sizeof(text) - 1 - (size_t)len++] = digits[v % base];
    int zeros = precision > len ? precision - len : 0;
    if (precision < 0 && (flags & ZERO) && !(flags & LEFT))
        zeros = MAX(0, width - len - (int)strlen(prefix));
    put_field(s, prefix, text + sizeof(text) - len, len, zeros, width, flags);
}

/* The variable arguments travel in a struct: a va_list parameter decays to a pointer. */
struct arguments {
    va_list ap;
};

static int read_int(const char **fmt, struct arguments *args)
{
    int n = 0;
    if (**fmt == '*') {
        (*fmt)++;
        return va_arg(args->ap, int);
    }
    while (**fmt >= '0' && **fmt <= '9')
        n = n * 10 + *(*fmt)++ - '0';
    return n;
}

static int64_t read_signed(struct arguments *args, int size)
{
    if (size >= 1)
        return va_arg(args->ap, long);
    int v = va_arg(args->ap, int);
    return size == -1 ? (short)v : size == -2 ? (signed char)v : v;
}

static uint64_t read_unsigned(struct arguments *args, int size)
{
    if (size >= 1)
        return va_arg(args->ap, unsigned long);
    unsigned v = va_arg(args->ap, unsigned);
    return size == -1 ? (unsigned short)v : size == -2 ? (unsigned char)v : v;
}

static void put_string(struct sink *s, const char *text, int width, int precision, unsigned flags)
{
    if (!text)
        text = "(null)";
    size_t len = precision >= 0 ? strnlen(text, (size_t)precision) : strlen(text);
    put_field(s, "", text, (int)len, 0, width, flags);
}

static void put_conversion(struct sink *s, char c, struct arguments *args, int size, int width, int precision,
                           unsigned flags)
{
    const unsigned unsigned_flags = flags & ~(unsigned)(SIGN | SPACE);
    char one;
    int64_t value;
    switch (c) {
    case 'd':
    case 'i':
        value = read_signed(args, size);
        put_number(s, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0, 10, false, width, precision, flags);
        break;
    case 'u':
        put_number(s, read_unsigned(args, size), false, 10, false, width, precision, unsigned_flags);
        break;
    case 'x':
    case 'X':
        put_number(s, read_unsigned(args, size), false, 16, c == 'X', width, precision, unsigned_flags);
        break;
    case 'o':
        put_number(s, read_unsigned(args, size), false, 8, false, width, precision, unsigned_flags);
        break;
    case 'p':
        put_number(s, (uintptr_t)va_arg(args->ap, void *), false, 16, false, width, precision, flags | ALTERNATE);
        break;
    case 'c':
        one = (char)va_arg(args->ap, int);
        put_field(s, "", &one, 1, 0, width, flags);
        break;
    case 's':
        put_string(s, va_arg(args->ap, const char *), width, precision, flags);
        break;
    default:
        put(s, '%');
        if (c != '%')
            put(s, c);
    }
}

static unsigned read_flags(const char **fmt)
{
    unsigned flags = 0;
    for (;; (*fmt)++) {
        switch (**fmt) {
        case '-': flags |= LEFT; break;
        case '0': flags |= ZERO; break;
        case '+': flags |= SIGN; break;
        case ' ': flags |= SPACE; break;
        case '#': flags |= ALTERNATE; break;
        default: return flags;
        }
    }
}

static int read_size(const char **fmt)
{
    int size = 0;
    for (;; (*fmt)++) {
        switch (**fmt) {
        case 'h': size--; break;
        case 'l':
        case 'z':
        case 'j':
        case 't': size++; break;
        default: return size;
        }
    }
}

static void format(struct sink *s, const char *fmt, struct arguments *args)
{
    while (*fmt) {
        if (*fmt != '%') {
            put(s, *fmt++);
            continue;
        }
        fmt++;
        unsigned flags = read_flags(&fmt);
        int width = read_int(&fmt, args);
        if (width < 0) {
            flags |= LEFT;
            width = -width;
        }
        int precision = -1;
        if (*fmt == '.') {
            fmt++;
            precision = read_int(&fmt, args);
        }
        int size = read_size(&fmt);
        if (!*fmt)
            break;
        put_conversion(s, *fmt++, args, size, width, precision, flags);
    }
}

int vsnprintf(char *buf, size_t size, const char *fmt, va_list ap)
{
    struct sink s = { buf, size, 0 };
    struct arguments args;
    va_copy(args.ap, ap);
    format(&s, fmt, &args);
    va_end(args.ap);
    if (size)
        buf[MIN(s.len, size - 1)] = 0;
    return (int)s.len;
}

int snprintf(char *buf, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, size, fmt, ap);
    va_end(ap);
    return n;
}
#endif
