/* Intrusive doubly linked list. The head is a node of its own. Locking is the caller's. */
#ifndef WEIR_LIST_H
#define WEIR_LIST_H
#include <weir/compiler.h>

struct list {
    struct list *next, *prev;
};

#define LIST_INIT(name) { &(name), &(name) }

static inline void list_init(struct list *l) { l->next = l->prev = l; }
static inline bool list_empty(const struct list *l) { return l->next == l; }
static inline void list_insert_between(struct list *n, struct list *prev, struct list *next)
{
    n->prev = prev;
    n->next = next;
    prev->next = n;
    next->prev = n;
}
static inline void list_add(struct list *head, struct list *n) { list_insert_between(n, head, head->next); }
static inline void list_add_tail(struct list *head, struct list *n) { list_insert_between(n, head->prev, head); }
/* Unlink and leave the node pointing at itself, so that a second removal is harmless. */
static inline void list_del(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}
/* Move every node of src to the end of dst; src becomes empty. */
static inline void list_splice_tail(struct list *dst, struct list *src)
{
    if (list_empty(src))
        return;
    src->next->prev = dst->prev;
    dst->prev->next = src->next;
    src->prev->next = dst;
    dst->prev = src->prev;
    list_init(src);
}
#define list_entry(p, T, m)       container_of(p, T, m)
#define list_first(head, T, m)    list_entry((head)->next, T, m)
#define list_last(head, T, m)     list_entry((head)->prev, T, m)
#define list_for_each_entry(it, head, m) \
    for (it = list_entry((head)->next, __typeof__(*it), m); &it->m != (head); \
         it = list_entry(it->m.next, __typeof__(*it), m))
#define list_for_each_entry_safe(it, tmp, head, m) \
    for (it = list_entry((head)->next, __typeof__(*it), m), \
        tmp = list_entry(it->m.next, __typeof__(*it), m); &it->m != (head); \
         it = tmp, tmp = list_entry(tmp->m.next, __typeof__(*tmp), m))
#endif
