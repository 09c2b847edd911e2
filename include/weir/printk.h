/* Console messages, assertions, panic. Any context, including NMI for panic. */
#ifndef WEIR_PRINTK_H
#define WEIR_PRINTK_H
#include <weir/compiler.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
/* Message to the console if level <= the level set by `loglevel=error|warn|info|debug` (default info).
 * One call is one uninterrupted line on the console; a newline is added. */
void printk(enum log_level level, const char *fmt, ...) __printf(2, 3);
#define log_error(...) printk(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  printk(LOG_WARN, __VA_ARGS__)
#define log_info(...)  printk(LOG_INFO, __VA_ARGS__)
#define log_debug(...) printk(LOG_DEBUG, __VA_ARGS__)
/* Raw bytes to the console (an application's write to fd 1). Takes the console lock once. */
void console_write(const char *s, size_t n);

/* Names for code outside the image's text: one more instance of a module, mapped at base. All instances share the
 * table, which is scripts/ksyms' of the module. Before the instance runs; never removed. */
#define SYMBOL_MODULES_MAX 64
void symbol_module_add(uint64_t base, size_t size, size_t count, const uint64_t *addresses, const uint32_t *offsets,
                       const char *names);

/* Print, stop all CPUs, print a symbolised backtrace of each, leave QEMU with status PANIC_STATUS.
 * Only when continuing would lose or corrupt data; name the operands. */
__noreturn void panic(const char *fmt, ...) __printf(1, 2);
#define PANIC_STATUS 101

#define assert(cond) \
    do { \
        if (unlikely(!(cond))) \
            panic("%s:%d: assertion failed: %s", __FILE__, __LINE__, #cond); \
    } while (0)
#endif
