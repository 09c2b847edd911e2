/* What a unit test may tell the host services (see README.md). */
#ifndef HOST_H
#define HOST_H
#include <weir/mm.h>
#include <weir/sched.h>

extern size_t host_ram_pages;                       /* set before the first page_alloc; default 65536 (256 MiB) */
void host_set_cpu_count(unsigned n);                /* before threads start; 1..CPU_MAX */
void host_fail_allocations_after(long n);           /* kmalloc, slab and page_alloc; -1 = never */
void host_user_hole(uint64_t start, uint64_t end);  /* program addresses that fault; start == end = none */
const char *host_log_last(void);
extern void (*host_panic_hook)(const char *message);/* may longjmp; NULL = abort */
void host_cmdline_set(const char *text);
uint64_t host_shrink(uint64_t pages);               /* call the registered shrinker */
void host_join_thread(struct thread *t);            /* wait for one of them */
void host_join_threads(void);                       /* wait for every thread made by thread_create that can end */
#endif
