/*
 * Address spaces of programs (core/mm): areas, page faults, fork with copy-on-write, shared memory objects.
 *
 * Made by aspace_create or aspace_fork, referenced by the process's tasks, gone with the last aspace_put
 * (all pages and references released). Every call is thread context. Lock: aspace->lock (sleeping),
 * taken inside; order: aspace->lock before inode locks is forbidden: never hold it while copying user
 * memory with an inode lock held by others (faults take it, then page locks only).
 */
#ifndef WEIR_ASPACE_H
#define WEIR_ASPACE_H
#include <weir/pagetable.h>
#include <weir/sched.h>
#include <weir/vfs.h>

struct aspace;
struct shm_object; /* shared anonymous memory: pages by index, 2 MiB where size and alignment allow */

#define PROT_READ 1u
#define PROT_WRITE 2u
#define PROT_EXEC 4u
#define MAP_SHARED 0x01u
#define MAP_PRIVATE 0x02u
#define MAP_FIXED 0x10u
#define MAP_ANONYMOUS 0x20u
#define MAP_GROWSDOWN 0x0100u
#define MAP_DENYWRITE 0x0800u
#define MAP_NORESERVE 0x4000u
#define MAP_POPULATE 0x8000u
#define MAP_STACK 0x20000u
#define MAP_HUGETLB 0x40000u
#define MAP_FIXED_NOREPLACE 0x100000u

struct aspace *aspace_create(void) __must_check;                     /* NULL */
struct aspace *aspace_fork(struct aspace *parent) __must_check;      /* NULL; parent is current's */
void aspace_get(struct aspace *as);
void aspace_put(struct aspace *as);
struct pagetable *aspace_pagetable(struct aspace *as);
struct aspace *aspace_current(void);  /* of the current thread; NULL in kernel threads that use none */
/* Make the current thread use as (NULL = none) and return what it used before. References are the caller's
 * business: the address space must stay referenced while a thread uses it. */
struct aspace *aspace_use(struct aspace *as);
/* Exec's choices, before anything else is mapped. Mappings without an address go below mmap_top. The stack area
 * (grows down, to stack_limit bytes) ends at stack_top. -ENOMEM. */
int aspace_set_layout(struct aspace *as, uint64_t mmap_top, uint64_t stack_top, uint64_t stack_limit, unsigned stack_prot) __must_check;
void aspace_set_brk(struct aspace *as, uint64_t start);
void aspace_set_stack_limit(struct aspace *as, uint64_t bytes);

/* mmap of Linux: address or -errno. file may be NULL (MAP_ANONYMOUS). */
int64_t aspace_mmap(struct aspace *as, uint64_t addr, uint64_t len, unsigned prot, unsigned flags, struct file *file, uint64_t offset) __must_check;
int64_t aspace_map_shm(struct aspace *as, uint64_t addr, unsigned prot, struct shm_object *obj) __must_check; /* shmat */
int aspace_munmap(struct aspace *as, uint64_t addr, uint64_t len) __must_check;
int aspace_mprotect(struct aspace *as, uint64_t addr, uint64_t len, unsigned prot) __must_check;
int64_t aspace_mremap(struct aspace *as, uint64_t old, uint64_t old_len, uint64_t new_len, unsigned flags, uint64_t new_addr) __must_check;
int aspace_madvise(struct aspace *as, uint64_t addr, uint64_t len, int advice) __must_check;
int aspace_msync(struct aspace *as, uint64_t addr, uint64_t len, int flags) __must_check;
uint64_t aspace_brk(struct aspace *as, uint64_t new_break);          /* the break in force */
int aspace_fault(struct aspace *as, uint64_t addr, unsigned fault_bits) __must_check; /* 0, -EFAULT (nothing mapped), -EACCES (not allowed), -EIO (SIGBUS), -ENOMEM */
/* Key of a futex word: shared memory by (object, offset), private by (aspace, address). The object is
 * referenced until futex_key_put. */
struct futex_key { void *object; uint64_t offset; uint32_t kind; };
int aspace_futex_key(struct aspace *as, uint64_t addr, bool private, struct futex_key *out) __must_check;
void futex_key_get(struct futex_key *k);  /* one more reference of a key that is held; any context */
void futex_key_put(struct futex_key *k);  /* any context unless it is the last reference */

struct shm_object *shm_object_create(uint64_t size) __must_check;    /* NULL */
uint64_t shm_object_size(const struct shm_object *o);                /* whole pages */
void shm_object_get(struct shm_object *o);
void shm_object_put(struct shm_object *o);
/* Give the object a page of its own choice at index (vDSO). Takes over the reference. Before it is mapped. */
int shm_object_set_page(struct shm_object *o, uint64_t index, struct page *p) __must_check;
/* Out of memory in a fault: make room (the Linux layer kills something) and return true to try again, false to
 * fail with -ENOMEM. Thread context, no locks held. */
void aspace_set_oom_hook(bool (*fn)(void));
/* Counts for /proc/PID/statm, status, and the out-of-memory choice; bytes. */
void aspace_usage(struct aspace *as, uint64_t *virtual_bytes, uint64_t *private_bytes, uint64_t *shared_bytes);
int aspace_show_maps(struct aspace *as, struct seq *s);
/* Pin program pages for I/O: referenced pages, copied at fork while pinned. Count pinned or -errno. */
int aspace_pin(struct aspace *as, uint64_t addr, size_t len, bool write, struct page **pages, unsigned max) __must_check;
/* Copy to and from any address space, used or not, as the program itself could: 0, -EFAULT, -ENOMEM. */
int aspace_write(struct aspace *as, uint64_t addr, const void *src, size_t len) __must_check;
int aspace_read(struct aspace *as, uint64_t addr, void *dst, size_t len) __must_check;
void aspace_unpin(struct aspace *as, struct page **pages, unsigned count);
#endif
