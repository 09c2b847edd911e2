/*
 * The kernel command line: `key=value` words, quoted with "..." where they hold spaces; everything
 * after a word `--` is the application's argument vector. Read-only after boot; any context.
 */
#ifndef WEIR_CMDLINE_H
#define WEIR_CMDLINE_H
#include <weir/compiler.h>

void cmdline_init(const char *text); /* copies text (at most 4 KiB); called once by the boot CPU */
/* Value of the last `key=value`, "" for a bare `key`, NULL if absent. */
const char *cmdline_get(const char *key);
/* The same for the nth word (from 0) with that key, in the order of the line; NULL: fewer. */
const char *cmdline_get_nth(const char *key, unsigned n);
/* Number (suffix K M G allowed); absent gives fallback; nonsense logs a warning and gives fallback. */
uint64_t cmdline_u64(const char *key, uint64_t fallback);
bool cmdline_bool(const char *key, bool fallback); /* 1/0, on/off, yes/no, bare key = true */
/* Application arguments after `--`; *argc may be 0. The strings live for ever. */
char *const *cmdline_app_argv(unsigned *argc);
#endif
