/* Console, panic, command line, small string helpers. */
#include <stdarg.h>
#include <stdlib.h>
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/cmdline.h>
#include <weir/errno.h>
#include "host.h"

void (*host_panic_hook)(const char *message);
static __thread char last_line[512];

static enum log_level log_limit(void)
{
    const char *wish = getenv("WEIR_LOG");
    static const char *const names[] = { "error", "warn", "info", "debug" };
    for (unsigned i = 0; wish && i < ARRAY_SIZE(names); i++) {
        if (!strcmp(wish, names[i]))
            return (enum log_level)i;
    }
    return LOG_ERROR;
}
void printk(enum log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_line, sizeof last_line, fmt, ap);
    va_end(ap);
    if (level <= log_limit())
        fprintf(stderr, "%s\n", last_line);
}
const char *host_log_last(void) { return last_line; }
void console_write(const char *s, size_t n) { fwrite(s, 1, n, stdout); }
void panic(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_line, sizeof last_line, fmt, ap);
    va_end(ap);
    if (host_panic_hook)
        host_panic_hook(last_line);
    fprintf(stderr, "panic: %s\n", last_line);
    abort();
}
void machine_exit(int status) { exit(status); }

static char cmdline_text[1024];
static char cmdline_value[256];
void host_cmdline_set(const char *text) { snprintf(cmdline_text, sizeof cmdline_text, "%s", text); }
const char *cmdline_get(const char *key)
{
    size_t len = strlen(key);
    for (const char *p = cmdline_text; *p; p += strcspn(p, " ")) {
        p += strspn(p, " ");
        if (!strncmp(p, key, len) && (p[len] == '=' || p[len] == ' ' || !p[len])) {
            const char *value = p + len + (p[len] == '=');
            snprintf(cmdline_value, sizeof cmdline_value, "%.*s", (int)strcspn(value, " "), value);
            return cmdline_value;
        }
    }
    return NULL;
}
uint64_t cmdline_u64(const char *key, uint64_t fallback)
{
    const char *v = cmdline_get(key);
    return v ? strtoull(v, NULL, 0) : fallback;
}
bool cmdline_bool(const char *key, bool fallback)
{
    const char *v = cmdline_get(key);
    return v ? !*v || *v == '1' || *v == 'y' || !strcmp(v, "on") : fallback;
}

size_t str_copy(char *dst, const char *src, size_t size)
{
    size_t len = strlen(src);
    if (size) {
        size_t n = MIN(len, size - 1);
        memcpy(dst, src, n);
        dst[n] = 0;
    }
    return len;
}
int scnprintf(char *buf, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, size, fmt, ap);
    va_end(ap);
    return n < 0 || !size ? 0 : (size_t)n >= size ? (int)size - 1 : n;
}
int parse_u64(const char *s, bool suffix, uint64_t *out)
{
    char *end;
    *out = strtoull(s, &end, 0);
    const char *units = suffix && *end ? strchr("KMGT", *end) : NULL;
    static const char names[] = "KMGT";
    if (units) {
        *out <<= 10 * (strchr(names, *end) - names + 1);
        end++;
    }
    return end == s || *end ? -EINVAL : 0;
}
