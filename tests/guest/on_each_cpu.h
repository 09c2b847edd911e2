/* Run fn(cpu, arg) in a thread pinned to each CPU, all at once; returns when all have ended. The sum of what
 * they returned, or -1 if a thread could not be made. */
#ifndef WEIR_TESTS_ON_EACH_CPU_H
#define WEIR_TESTS_ON_EACH_CPU_H
int on_each_cpu(int (*fn)(unsigned cpu, void *arg), void *arg);
#endif
