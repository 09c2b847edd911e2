/* The command line, cut into words once at boot. */
#include <weir/cmdline.h>
#include <weir/printk.h>
#include <weir/string.h>

#define CMDLINE_MAX 4096
#define WORDS_MAX   256

static char text_copy[CMDLINE_MAX];
static char *words[WORDS_MAX];
static unsigned word_count; /* the kernel's: words[0..word_count) */
static unsigned app_count;  /* the application's follow them */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

/* Next word, with quotes removed in place; NULL at the end. */
static char *cut_word(char **cursor)
{
    char *in = *cursor;
    while (is_space(*in))
        in++;
    if (!*in)
        return NULL;
    char *word = in, *out = in;
    bool quoted = false;
    for (; *in && (quoted || !is_space(*in)); in++) {
        if (*in == '"')
            quoted = !quoted;
        else
            *out++ = *in;
    }
    *cursor = *in ? in + 1 : in;
    *out = 0;
    return word;
}

void cmdline_init(const char *text)
{
    if (str_copy(text_copy, text, sizeof(text_copy)) >= sizeof(text_copy))
        log_error("command line longer than %d bytes: cut", CMDLINE_MAX - 1);
    char *cursor = text_copy, *word;
    unsigned n = 0;
    bool app = false;
    word_count = app_count = 0;
    while (n < WORDS_MAX && (word = cut_word(&cursor))) {
        if (!app && !strcmp(word, "--")) {
            app = true;
            continue;
        }
        words[n++] = word;
        if (app)
            app_count++;
        else
            word_count++;
    }
    if (cut_word(&cursor))
        log_error("command line has more than %d words: the rest is ignored", WORDS_MAX);
}

/* The value of a word if its key is `key`, else NULL. */
static const char *value_of(const char *word, const char *key)
{
    size_t len = strlen(key);
    if (strncmp(word, key, len))
        return NULL;
    if (word[len] == '=')
        return word + len + 1;
    return word[len] ? NULL : "";
}

const char *cmdline_get(const char *key)
{
    for (unsigned i = word_count; i-- > 0;) {
        const char *value = value_of(words[i], key);
        if (value)
            return value;
    }
    return NULL;
}

const char *cmdline_get_nth(const char *key, unsigned n)
{
    for (unsigned i = 0; i < word_count; i++) {
        const char *value = value_of(words[i], key);
        if (value && n-- == 0)
            return value;
    }
    return NULL;
}

uint64_t cmdline_u64(const char *key, uint64_t fallback)
{
    const char *value = cmdline_get(key);
    uint64_t number;
    if (!value)
        return fallback;
    if (parse_u64(value, true, &number)) {
        log_warn("%s=%s is not a number: %lu is used", key, value, (unsigned long)fallback);
        return fallback;
    }
    return number;
}

bool cmdline_bool(const char *key, bool fallback)
{
    static const char *const yes[] = { "", "1", "on", "yes", "true" };
    static const char *const no[] = { "0", "off", "no", "false" };
    const char *value = cmdline_get(key);
    if (!value)
        return fallback;
    for (unsigned i = 0; i < ARRAY_SIZE(yes); i++)
        if (!strcmp(value, yes[i]))
            return true;
    for (unsigned i = 0; i < ARRAY_SIZE(no); i++)
        if (!strcmp(value, no[i]))
            return false;
    log_warn("%s=%s is neither on nor off: %s is used", key, value, fallback ? "on" : "off");
    return fallback;
}

char *const *cmdline_app_argv(unsigned *argc)
{
    *argc = app_count;
    return &words[word_count];
}
