/*
 * Services inside the kernel that are for measuring, started instead of an application:
 * `bench=NAME[:OPTIONS]`. The word may be given several times (once a name), so that disks and network can be
 * loaded together. An unknown name ends the machine with an error.
 */
#ifndef WEIR_BENCH_H
#define WEIR_BENCH_H
#include <weir/compiler.h>

/* Thread context, everything is up. Starts threads and returns 0, or -errno after a message that says what
 * is wrong. A benchmark that ends by itself calls machine_exit; the others end with the power button. */
int bench_echo_start(const char *options) __must_check; /* core/net */
int bench_blk_start(const char *options) __must_check;  /* core/block */
#endif
