/* The options of bench=blk, and the names they stand for. Pure. */
#include <weir/errno.h>
#include <weir/string.h>

#include "bench.h"

#define BLOCK_BYTES_MAX (1u << 20)
#define DEPTH_MAX 1024u
#define JOBS_MAX  256u
#define SECS_MAX  86400u

static const struct {
    const char *name;
    bool reads, writes, random;
} kinds[] = {
    { "read", true, false, false },    { "write", false, true, false },    { "rw", true, true, false },
    { "randread", true, false, true }, { "randwrite", false, true, true }, { "randrw", true, true, true },
};

static bool set_kind(struct bench_options *o, const char *value)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (strcmp(kinds[i].name, value))
            continue;
        o->reads = kinds[i].reads;
        o->writes = kinds[i].writes;
        o->random = kinds[i].random;
        return true;
    }
    return false;
}

const char *bench_options_rw(const struct bench_options *o)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (kinds[i].reads == o->reads && kinds[i].writes == o->writes && kinds[i].random == o->random)
            return kinds[i].name;
    }
    return "?";
}

static bool number(const char *value, uint64_t min, uint64_t max, uint64_t *out)
{
    char text[32]; /* fio writes 4k where we read 4K */
    size_t len = strlen(value);
    if (len == 0 || len >= sizeof(text))
        return false;
    str_copy(text, value, sizeof(text));
    if (text[len - 1] >= 'a' && text[len - 1] <= 'z')
        text[len - 1] = (char)(text[len - 1] - 'a' + 'A');
    return !parse_u64(text, true, out) && *out >= min && *out <= max;
}

static bool number32(const char *value, uint32_t min, uint32_t max, uint32_t *out)
{
    uint64_t n;
    if (!number(value, min, max, &n))
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool set_verify(struct bench_options *o, const char *value)
{
    if (!strcmp(value, "0"))
        o->verify = BENCH_UNVERIFIED;
    else if (!strcmp(value, "1"))
        o->verify = BENCH_VERIFY_WRITTEN;
    else if (!strcmp(value, "check"))
        o->verify = BENCH_VERIFY_CHECK;
    else
        return false;
    return true;
}

static bool set_poll(struct bench_options *o, const char *value)
{
    o->poll = !strcmp(value, "1");
    return o->poll || !strcmp(value, "0");
}

enum result { TAKEN, BAD_VALUE, BAD_KEY };

static enum result set(struct bench_options *o, const char *key, const char *value)
{
    bool ok;
    if (!strcmp(key, "rw"))
        ok = set_kind(o, value);
    else if (!strcmp(key, "bs"))
        ok = number32(value, SECTOR_SIZE, BLOCK_BYTES_MAX, &o->block_bytes) && o->block_bytes % SECTOR_SIZE == 0;
    else if (!strcmp(key, "depth"))
        ok = number32(value, 1, DEPTH_MAX, &o->depth);
    else if (!strcmp(key, "jobs"))
        ok = number32(value, 1, JOBS_MAX, &o->jobs);
    else if (!strcmp(key, "secs"))
        ok = number32(value, 1, SECS_MAX, &o->secs);
    else if (!strcmp(key, "ios"))
        ok = number(value, 1, UINT64_MAX, &o->ios);
    else if (!strcmp(key, "size"))
        ok = number(value, 1 << 20, UINT64_MAX, &o->size_bytes);
    else if (!strcmp(key, "dev"))
        ok = *value && str_copy(o->dev, value, sizeof(o->dev)) < sizeof(o->dev);
    else if (!strcmp(key, "poll"))
        ok = set_poll(o, value);
    else if (!strcmp(key, "verify"))
        ok = set_verify(o, value);
    else
        return BAD_KEY;
    return ok ? TAKEN : BAD_VALUE;
}

/* Cut the next `key=value` off; false at the end. */
static bool next_pair(const char **cursor, char *pair, size_t size)
{
    if (!**cursor)
        return false;
    const char *comma = strchr(*cursor, ',');
    size_t len = comma ? (size_t)(comma - *cursor) : strlen(*cursor);
    size_t kept = MIN(len, size - 1);
    memcpy(pair, *cursor, kept);
    pair[kept] = '\0';
    *cursor += len + (comma != NULL);
    return true;
}

int bench_options_parse(const char *text, struct bench_options *out, char *why, size_t why_size)
{
    char pair[96];
    *out = (struct bench_options){
        .reads = true, .random = true, .block_bytes = 4096, .depth = 32, .jobs = 1, .secs = 10, .dev = "all",
    };
    while (next_pair(&text, pair, sizeof(pair))) {
        char *value = strchr(pair, '=');
        if (value)
            *value++ = '\0';
        enum result result = set(out, pair, value ? value : "");
        if (result == TAKEN)
            continue;
        if (result == BAD_KEY)
            snprintf(why, why_size, "no key `%s`; there are rw, bs, depth, jobs, secs, ios, size, dev, poll, verify", pair);
        else
            snprintf(why, why_size, "%s=%s is not possible", pair, value ? value : "");
        return -EINVAL;
    }
    if (out->verify == BENCH_VERIFY_WRITTEN && !out->writes) {
        snprintf(why, why_size, "verify=1 wants an rw that writes; verify=check looks at what an earlier run has left");
        return -EINVAL;
    }
    return 0;
}

bool bench_options_name(const struct bench_options *o, const char *name)
{
    size_t len = strlen(name);
    if (!strcmp(o->dev, "all"))
        return true;
    for (const char *p = o->dev; p; p = strchr(p, '+')) {
        p += *p == '+';
        if (!strncmp(p, name, len) && (p[len] == '+' || !p[len]))
            return true;
    }
    return false;
}
