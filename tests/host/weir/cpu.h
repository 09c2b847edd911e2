/* Host wrapper: the inline functions that weir/cpu.h leaves to the kernel build. */
#ifndef HOST_WEIR_CPU_H
#define HOST_WEIR_CPU_H
#include_next <weir/cpu.h>

struct cpu *host_this_cpu(void);
struct thread *host_current_thread(void);
static inline struct cpu *this_cpu(void) { return host_this_cpu(); }
static inline struct thread *current_thread(void) { return host_current_thread(); }
#define current current_thread()
static inline uint64_t irq_save(void) { return 0; }
static inline void irq_restore(uint64_t flags) { (void)flags; }
static inline void irq_enable(void) {}
static inline void irq_disable(void) {}
static inline bool irq_enabled(void) { return true; }
#endif
