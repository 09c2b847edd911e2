/* Readiness: what poll, select and epoll ask of a file. Event bits are Linux's POLL/EPOLL values. */
#ifndef WEIR_POLL_H
#define WEIR_POLL_H
#include <weir/sched.h>

#define POLLIN     0x001u
#define POLLPRI    0x002u
#define POLLOUT    0x004u
#define POLLERR    0x008u
#define POLLHUP    0x010u
#define POLLNVAL   0x020u
#define POLLRDNORM 0x040u
#define POLLWRNORM 0x100u
#define POLLRDHUP  0x2000u

struct poll_table {
    /* Registers a waiter on q; NULL = only ask for the present state. */
    void (*queue)(struct poll_table *pt, struct wait_queue *q);
};
static inline void poll_wait(struct poll_table *pt, struct wait_queue *q)
{
    if (pt && pt->queue)
        pt->queue(pt, q);
}
#endif
