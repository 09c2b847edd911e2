/* Cases (a), (b), (c) of the scheduler's promise, on 2 to 256 CPUs; `--table` prints them for the docs. */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS NSEC_PER_MSEC
#define US NSEC_PER_USEC

static unsigned passed, failed;

static void check(bool ok, const char *what, double value, double bound)
{
    if (ok)
        passed++;
    else
        failed++;
    if (!ok)
        printf("FAILED: %s: %.4g, bound %.4g\n", what, value, bound);
}

/* ---- connections: a receiver for each queue, a thread for each connection, clients outside ---- */

#define QUEUES_MAX 8
struct server {
    struct sim *s;
    struct sim_thread *receiver[QUEUES_MAX];
    struct connection *connections;
    unsigned queues, clients;
    uint64_t served;
};
struct connection {
    struct server *server;
    struct sim_thread *thread;
    unsigned queue;
    bool arrived; /* a request lies in the receive ring */
};

#define RECEIVE_NS 5000   /* a packet through driver and stack */
#define SERVICE_NS 150000 /* a small query: parse, plan, execute, answer */
#define CLIENT_NS  100000 /* network and client, outside */

static void request_arrives(struct sim *s, void *arg, uint64_t ticket)
{
    struct connection *c = arg;
    c->arrived = true;
    /* The interrupt goes where the receiver ran last. */
    struct sim_thread *r = c->server->receiver[c->queue];
    sim_interrupt_wake(s, r, r->last_cpu < 0 ? 0 : (unsigned)r->last_cpu);
}

static struct sim_step receiver_next(struct sim *s, struct sim_thread *t)
{
    struct server *v = t->data;
    unsigned queue = 0;
    while (v->receiver[queue] != t)
        queue++;
    /* phase 1: a packet has been worked on: hand it over. */
    for (unsigned i = queue; t->phase == 1 && i < v->clients; i += v->queues) {
        if (v->connections[i].arrived) {
            v->connections[i].arrived = false;
            sim_wake(s, v->connections[i].thread);
            t->phase = 0;
        }
    }
    t->phase = 0;
    for (unsigned i = queue; i < v->clients; i += v->queues) {
        if (v->connections[i].arrived) {
            t->phase = 1;
            return (struct sim_step){ SIM_RUN, RECEIVE_NS };
        }
    }
    return (struct sim_step){ SIM_BLOCK, 0 };
}

static struct sim_step connection_next(struct sim *s, struct sim_thread *t)
{
    struct connection *c = t->data;
    if (t->phase == 0) { /* waits for its first or next request */
        t->phase = 1;
        return (struct sim_step){ SIM_BLOCK, 0 };
    }
    if (t->phase == 1) { /* woken: serve it */
        t->phase = 2;
        return (struct sim_step){ SIM_RUN, SERVICE_NS / 2 + sim_random(s, SERVICE_NS) };
    }
    c->server->served++;
    sim_at(s, s->now + CLIENT_NS / 2 + sim_random(s, CLIENT_NS), request_arrives, c);
    t->phase = 1;
    return (struct sim_step){ SIM_BLOCK, 0 };
}

/* What was served from 0.1 s to 0.35 s, as a rate. */
struct outcome {
    double tps;
    double waste; /* share of all CPU time */
    unsigned long migrations, ipis, bad_halts;
};

static struct outcome serve(const struct policy_params *params, unsigned cpus, unsigned clients,
                            const struct sim_costs *costs, bool pinned)
{
    struct server v = { .queues = MIN(cpus, QUEUES_MAX), .clients = clients };
    struct sim *s = v.s = sim_create(params, cpus, costs, 12345, clients + QUEUES_MAX);
    v.connections = calloc(clients, sizeof(*v.connections));
    /* All are made by one thread on CPU 0, as a server does. */
    for (unsigned q = 0; q < v.queues; q++) {
        v.receiver[q] = sim_thread(s, receiver_next, &v);
        v.receiver[q]->defers_wakes = true;
        if (pinned)
            sim_pin(s, v.receiver[q], q % cpus);
        sim_start(s, v.receiver[q], 0);
    }
    for (unsigned i = 0; i < clients; i++) {
        struct connection *c = &v.connections[i];
        *c = (struct connection){ &v, sim_thread(s, connection_next, c), i % v.queues, false };
        if (pinned)
            sim_pin(s, c->thread, (i + (cpus > v.queues ? v.queues : 1)) % cpus); /* not where its receiver is */
        sim_start(s, c->thread, 0);
        sim_at(s, 100 * US + sim_random(s, CLIENT_NS), request_arrives, c);
    }
    sim_run(s, 100 * MS);
    uint64_t served = v.served, waste = s->wasted_ns;
    unsigned long migrations = s->migrations, ipis = s->ipis;
    sim_run(s, 350 * MS);
    struct outcome out = { (double)(v.served - served) * 4, (double)(s->wasted_ns - waste) / (2.5e8 * cpus),
                           s->migrations - migrations, s->ipis - ipis, s->bad_halts };
    free(v.connections);
    sim_destroy(s);
    return out;
}

/* ---- jobs: a fan-out of pure work ---- */

struct job {
    uint64_t left;
};

static struct sim_step job_next(struct sim *s, struct sim_thread *t)
{
    struct job *j = t->data;
    uint64_t part = MIN(j->left, 10 * MS);
    j->left -= part;
    return part ? (struct sim_step){ SIM_RUN, part } : (struct sim_step){ SIM_EXIT, 0 };
}

/* Share of the ideal makespan that is reached; waste and halts of the run. */
static struct outcome fan_out(const struct policy_params *params, unsigned cpus, unsigned per_cpu,
                              const struct sim_costs *costs)
{
    unsigned n = cpus * per_cpu;
    struct sim *s = sim_create(params, cpus, costs, 777, n);
    struct job *jobs = calloc(n, sizeof(*jobs));
    uint64_t total = 0, longest = 0;
    for (unsigned i = 0; i < n; i++) {
        jobs[i].left = 50 * MS + sim_random(s, 50 * MS);
        total += jobs[i].left;
        longest = MAX(longest, jobs[i].left);
        sim_start(s, sim_thread(s, job_next, &jobs[i]), 0);
    }
    sim_run(s, 1000 * NSEC_PER_SEC);
    uint64_t ideal = MAX(total / cpus, longest);
    struct outcome out = { (double)ideal / (double)s->finished_ns,
                           (double)s->wasted_ns / ((double)s->finished_ns * cpus), s->migrations, s->ipis, s->bad_halts };
    free(jobs);
    sim_destroy(s);
    return out;
}

/* Moves of `n` hogs in the nine seconds after the first. */
static unsigned long hog_moves(unsigned cpus, unsigned n)
{
    struct sim *s = sim_create(&policy_weir, cpus, &sim_costs_default, 5, n);
    struct job *jobs = calloc(n, sizeof(*jobs));
    for (unsigned i = 0; i < n; i++) {
        jobs[i].left = 1000 * NSEC_PER_SEC;
        sim_start(s, sim_thread(s, job_next, &jobs[i]), 0);
    }
    sim_run(s, NSEC_PER_SEC);
    unsigned long before = s->migrations;
    sim_run(s, 10 * NSEC_PER_SEC);
    before = s->migrations - before;
    free(jobs);
    sim_destroy(s);
    return before;
}

/* ---- cases ---- */

static const unsigned sizes[] = { 2, 8, 48, 256 };
static bool table;

/* No scheduler can serve more: all CPUs busy with useful work only, or all clients always waiting for nothing. */
static double ideal_tps(unsigned cpus, unsigned clients)
{
    return MIN(clients * 1e9 / (CLIENT_NS + RECEIVE_NS + SERVICE_NS), cpus * 1e9 / (RECEIVE_NS + SERVICE_NS));
}

static void connections_case(unsigned cpus, unsigned n, const struct sim_costs *costs, bool only_order)
{
    struct outcome base = serve(&policy_baseline, cpus, n, costs, false);
    struct outcome drain = serve(&policy_drain10, cpus, n, costs, false);
    struct outcome weir = serve(&policy_weir, cpus, n, costs, false);
    /* One client may lose a little to the baseline, which has everything on one CPU and so sends no IPI. */
    if (n > 1) {
        /* Where two policies both keep all CPUs busy they tie, within half a percent. */
        check(weir.tps >= drain.tps * 0.995, "order: weir and drain", weir.tps / drain.tps, 0.995);
        check(drain.tps >= base.tps * 0.995, "order: drain and baseline", drain.tps / base.tps, 0.995);
    }
    if (only_order)
        return;
    struct outcome fixed = serve(&policy_weir, cpus, n, costs, true);
    double ideal = ideal_tps(cpus, n);
    if (table)
        printf("| %u | %u | %.0f | %.0f | %.0f | %.0f | %.0f | %.2f %% | %lu |\n", cpus, n, base.tps, drain.tps, weir.tps,
               fixed.tps, ideal, weir.waste * 100, weir.migrations);
    if (n >= 32 && cpus >= 8) {
        check(drain.tps >= 1.5 * base.tps, "(b) 10 ms and draining against the baseline", drain.tps / base.tps, 1.5);
        check(base.tps <= 0.5 * weir.tps, "(a) the baseline collapses", base.tps / weir.tps, 0.5);
        check(base.waste > 0.05, "(a) CPUs idle beside waiting threads under the baseline", base.waste, 0.05);
    }
    check(weir.tps >= 0.95 * MIN(ideal, fixed.tps), "(c) share of the best", weir.tps / MIN(ideal, fixed.tps), 0.95);
    if (n >= 2 * cpus)
        check(weir.tps >= 0.95 * ideal, "(c) share of the ideal", weir.tps / ideal, 0.95);
    if (n == 1)
        check(weir.tps >= 0.98 * MAX(fixed.tps, base.tps), "(c) one client against threads that never move, apart and together",
              weir.tps / MAX(fixed.tps, base.tps), 0.98);
    check(weir.waste <= 0.01, "(c) CPU time idle beside a waiting thread", weir.waste, 0.01);
    check(!weir.bad_halts, "(c) halts beside work", weir.bad_halts, 0);
}

static void fan_out_case(unsigned cpus, unsigned per_cpu, const struct sim_costs *costs, bool only_order)
{
    struct outcome base = fan_out(&policy_baseline, cpus, per_cpu, costs);
    struct outcome drain = fan_out(&policy_drain10, cpus, per_cpu, costs);
    struct outcome weir = fan_out(&policy_weir, cpus, per_cpu, costs);
    check(weir.tps >= drain.tps, "order: weir and drain, fan-out", weir.tps, drain.tps);
    check(drain.tps >= base.tps, "order: drain and baseline, fan-out", drain.tps, base.tps);
    if (only_order)
        return;
    if (table)
        printf("| %u | %u | %.1f %% | %.1f %% | %.1f %% | %.2f %% | %lu |\n", cpus, per_cpu * cpus, base.tps * 100,
               drain.tps * 100, weir.tps * 100, weir.waste * 100, weir.migrations);
    check(weir.tps >= 0.95, "(c) share of the ideal makespan", weir.tps, 0.95);
    check(weir.waste <= 0.01, "(c) CPU time idle beside a waiting thread, fan-out", weir.waste, 0.01);
    check(!weir.bad_halts, "(c) halts beside work, fan-out", weir.bad_halts, 0);
}

/* Each price alone, halved and doubled. */
static void prices_case(void)
{
    for (unsigned i = 0; i < sizeof(struct sim_costs) / sizeof(uint64_t); i++) {
        for (unsigned twice = 0; twice < 2; twice++) {
            struct sim_costs costs = sim_costs_default;
            uint64_t *price = (uint64_t *)&costs + i;
            *price = twice ? *price * 2 : *price / 2;
            connections_case(8, 32, &costs, true);
            connections_case(48, 64, &costs, true);
            fan_out_case(8, 8, &costs, true);
        }
    }
}

int main(int argc, char **argv)
{
    static const unsigned clients[] = { 1, 8, 32, 48, 64 };
    table = argc > 1 && !strcmp(argv[1], "--table");
    if (table)
        printf("| CPUs | clients | baseline | 10 ms, drain | weir | never move | ideal | idle beside work | moves |\n"
               "|---|---|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++)
        for (unsigned k = 0; k < ARRAY_SIZE(clients); k++)
            connections_case(sizes[i], clients[k], &sim_costs_default, false);
    if (table)
        printf("\n| CPUs | jobs | baseline | 10 ms, drain | weir | idle beside work | moves |\n|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++)
        fan_out_case(sizes[i], 8, &sim_costs_default, false);
    prices_case();
    for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
        unsigned long lone = hog_moves(sizes[i], 1), extra = hog_moves(sizes[i], sizes[i] + 1);
        check(!lone, "(c) moves of a lone thread", (double)lone, 0);
        check(!extra, "(c) moves of one hog more than CPUs", (double)extra, 0);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
