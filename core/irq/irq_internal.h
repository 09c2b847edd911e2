/*
 * Private to core/irq: devices and their sources, vectors and who hangs on them, pollers.
 *
 * Two kinds of reader never take a lock: interrupt handlers read a vector's set of listeners, pollers
 * read their set of sources. Sets are immutable; a change makes a new one, swaps the pointer and frees
 * the old one when no reader can have it any more (irq_wait_handlers, or the poller's pass lock).
 *
 * Entries that drivers bound stay bound; replan.c moves what is behind them: it rewrites an entry's
 * message, lets the source sit on both vectors meanwhile, serves it once more, and gives a vector's
 * number back only when no CPU has it pending any more (irq_vectors_reap).
 *
 * Lock order: irq_mutex, then a poller's pass mutex.
 */
#ifndef WEIR_IRQ_INTERNAL_H
#define WEIR_IRQ_INTERNAL_H
#include <weir/irq.h>
#include <weir/sched.h>

#include "planner.h"

struct irq_vector;
struct irq_poller;

/* Key: I immutable, M irq_mutex, a atomic, w watchdog thread only. */
struct irq_source {
    struct irq_device *device;          /* I */
    unsigned index;                     /* I 0.. or IRQ_CONFIG */
    const struct irq_service *service;  /* M then a; NULL = not bound */
    void *arg;                          /* M */
    enum irq_grant grant;               /* M */
    int entry;                          /* M MSI-X entry, -1 = none */
    bool refused_once;                  /* M */
    unsigned cpu;                       /* M wished at irq_bind or irq_set_affinity */
    struct irq_vector *vector;          /* M NULL = polled or on a line */
    struct irq_poller *poller;          /* a NULL = has a vector or a line */
    uint64_t next_poll_ns;              /* its poller's pass (configuration only) */
    uint64_t served;                    /* a times that serve found work; a lost increment is harmless */
    uint64_t served_seen;               /* w */
    unsigned stuck;                     /* w looks in a row with work that nobody took */
    unsigned quiet;                     /* w looks in a row with requests in flight and none completed */
};
struct irq_entry {
    struct irq_vector *vector;          /* M its message names it and it is unmasked; NULL = masked */
};
struct irq_device {
    char name[40];                      /* I */
    struct irq_demand demand;           /* I name points to the member above */
    const struct irq_device_ops *ops;   /* I */
    void *device;                       /* I the driver's */
    struct plan_grant grant;            /* M */
    bool planned;                       /* M grant is valid */
    struct irq_vector **vectors;        /* M [queue_entries]; the first grant.vectors, made when first used */
    struct irq_entry *entries;          /* M config_entries + queue_entries */
    struct irq_vector *line;            /* M */
    struct irq_source config;           /* M */
    struct irq_source *sources;         /* M demand.sources */
    unsigned demotions, promotions;     /* M re-plans that took vectors away, or gave some */
    uint64_t served_on[IRQ_GRANTS];     /* M useful serves on each rung, up to the last change of rung */
    uint64_t served_before;             /* M sum of the sources' at that time */
    struct list link;                   /* M in bus order */
};

/* Who is called when a vector fires: sources for messages, whole devices for lines. */
struct irq_set {
    unsigned count;
    void *members[];
};
struct irq_vector {
    unsigned number;                    /* I */
    unsigned cpu;                       /* M */
    bool is_line;                       /* I level-triggered: members are devices */
    struct irq_set *set;                /* a never NULL */
    char label[12];                     /* I for /proc/interrupts */
    uint64_t unclaimed;                 /* a line interrupts in a row that no device owned up to */
    struct list link;                   /* M */
};

extern struct mutex irq_mutex;
extern struct list irq_devices;         /* M */
extern struct plan irq_plan;            /* M */
extern struct list irq_vectors;         /* M */
/* Vectors that belong to no single device; made when first used, gone when nobody is on them. M */
extern struct irq_vector *irq_system_vector, *irq_config_vector, *irq_line_vector;

/* irq.c; irq_mutex held */
void irq_grant_sources(struct irq_device *d);
void irq_prepare_device(struct irq_device *d);
/* The vector that the plan has for an entry; made if there is none yet. NULL: no number or memory left. */
struct irq_vector *irq_vector_for_entry(struct irq_device *d, unsigned entry, unsigned cpu);
/* Point an entry at a vector and unmask it. */
int irq_write_entry(struct irq_device *d, unsigned entry, struct irq_vector *v) __must_check;
/* Move a vector that serves one source to another CPU. True if it moved: serve the source then. */
bool irq_vector_move(struct irq_device *d, struct irq_source *s, unsigned cpu);

/* replan.c; irq_mutex held */
void irq_replan_locked(void);
void irq_count_rung(struct irq_device *d);
uint64_t irq_served_on(const struct irq_device *d, enum irq_grant rung);

/* vector.c */
unsigned irq_pool_size(void);
struct irq_vector *irq_vector_create(unsigned cpu, bool is_line, const char *label);
/* Off the list; its number comes back with irq_vectors_reap (or when numbers run short). */
void irq_vector_retire(struct irq_vector *v);
/* Wait until no CPU has a retired vector's interrupt pending, then free their numbers and all retired sets. */
void irq_vectors_reap(void);
int irq_vector_add(struct irq_vector *v, void *member) __must_check;
/* Handlers that are running may still call the member until irq_wait_handlers. */
void irq_vector_remove(struct irq_vector *v, void *member);
bool irq_vector_has(const struct irq_vector *v, const void *member);
void irq_wait_handlers(void);
uint64_t irq_vector_count(const struct irq_vector *v, unsigned cpu);
void irq_vectors_init(void);
bool irq_source_serve(struct irq_source *s); /* any context; counts */

/* Sets. NULL = no memory. */
struct irq_set *irq_set_with(const struct irq_set *old, void *member);
struct irq_set *irq_set_without(const struct irq_set *old, const void *member);

/* poller.c */
void irq_pollers_init(void);
void irq_poller_attach(struct irq_source *s, unsigned cpu);
void irq_poller_detach(struct irq_source *s);

/* watchdog.c */
void irq_watchdog_start(void);
#endif
