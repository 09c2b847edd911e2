/*
 * TCP of one lwIP instance: lwIP's callbacks become calls of core/net, core/net's wishes become lwIP calls.
 *
 * Each connection carries in its extra argument whom to tell when lwIP frees it: a socket, or, before the
 * handshake is done, the listener it will belong to (marked by bit 0). lwIP frees connections in many
 * places; the destroy callback is the one place that all of them pass.
 */
#include "glue.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/tcp.h"
#include <weir/errno.h>

#define PCB(t) ((struct tcp_pcb *)(t))
#define HALF_OPEN 1UL
#define FLOOD_REFUSALS 500 /* connection requests turned away in a second */
#define POLL_TICKS 10 /* of two TCP_TMR_INTERVAL each: once a second */

static u8_t ext_id;
static unsigned time_wait_limit = 512;
static unsigned time_wait_new; /* since the list was last cut to length */
#define TIME_WAIT_SLACK 16

static void on_destroy(u8_t id, void *data)
{
    (void)id;
    uintptr_t whom = (uintptr_t)data;
    if (whom & HALF_OPEN)
        socket_tcp_syn_dropped((struct socket *)(whom & ~HALF_OPEN));
    else if (whom)
        socket_tcp_gone((struct socket *)whom);
}

static err_t on_passive_open(u8_t id, struct tcp_pcb_listen *lpcb, struct tcp_pcb *cpcb);
static const struct tcp_ext_arg_callbacks ext_callbacks = { on_destroy, on_passive_open };

/* No place for one more handshake. The one that waits longest gives way, if it seems dead (its answer was
 * repeated), or if so many are turned away that this is a flood: then a new one has the better chance. */
static bool evict_half_open(struct tcp_pcb_listen *lpcb, struct tcp_pcb *except)
{
    static uint32_t window_start, refused, flood_until;
    uint32_t now = module_now_ms();
    if (now - window_start > 1000) {
        window_start = now;
        refused = 0;
    }
    if (++refused > FLOOD_REFUSALS)
        flood_until = now + 2000;
    bool flood = (int32_t)(flood_until - now) > 0;
    struct tcp_pcb *victim = NULL;
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb; pcb = pcb->next) {
        if (pcb->state == SYN_RCVD && pcb->listener == lpcb && pcb != except && (flood || pcb->nrtx))
            victim = pcb; /* new ones stand in front */
    }
    if (!victim)
        return false;
    tcp_abandon(victim, 0);
    return true;
}

static err_t on_passive_open(u8_t id, struct tcp_pcb_listen *lpcb, struct tcp_pcb *cpcb)
{
    struct socket *listener = lpcb->callback_arg;
    if (!socket_tcp_syn(listener) && !(evict_half_open(lpcb, cpcb) && socket_tcp_syn(listener)))
        return ERR_MEM; /* lwIP forgets the SYN without an answer; the client tries again */
    tcp_ext_arg_set_callbacks(cpcb, id, &ext_callbacks);
    tcp_ext_arg_set(cpcb, id, (void *)((uintptr_t)listener | HALF_OPEN));
    flow_add(cpcb);
    return ERR_OK;
}

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    (void)pcb;
    (void)err;
    struct socket *s = arg;
    if (!p) {
        socket_tcp_eof(s);
        return ERR_OK;
    }
    while (p) {
        /* Each piece alone, with the reference its predecessor held, so that readers may free it without
         * the stack's lock. */
        struct pbuf *next = p->next;
        p->next = NULL;
        p->tot_len = p->len;
        LWIP_ASSERT("a received piece has one owner", p->ref == 1);
        if (!p->len || !socket_tcp_data(s, p->payload, p->len, p))
            pbuf_free(p);
        p = next;
    }
    socket_tcp_data_end(s);
    return ERR_OK;
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t len)
{
    (void)pcb;
    socket_tcp_acked(arg, len);
    return ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    (void)pcb;
    socket_tcp_acked(arg, 0); /* a write that found no memory is tried again */
    return ERR_OK;
}

static void on_error(void *arg, err_t err)
{
    socket_tcp_error(arg, glue_errno(err));
}

static err_t on_connected(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)pcb;
    (void)err;
    socket_tcp_connected(arg);
    return ERR_OK;
}

static void attach(struct tcp_pcb *pcb, struct socket *s)
{
    tcp_arg(pcb, s);
    tcp_recv(pcb, on_receive);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, POLL_TICKS);
    tcp_ext_arg_set_callbacks(pcb, ext_id, &ext_callbacks);
    tcp_ext_arg_set(pcb, ext_id, s);
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    if (!pcb || err != ERR_OK)
        return ERR_VAL;
    struct socket *s = socket_tcp_accepted(glue_stack, arg, (struct tcp_handle *)pcb);
    tcp_ext_arg_set(pcb, ext_id, NULL); /* no longer half open */
    if (!s)
        return ERR_MEM;
    attach(pcb, s);
    return ERR_OK;
}

static struct tcp_handle *glue_tcp_new(struct socket *s)
{
    struct tcp_pcb *pcb = tcp_new();
    if (pcb)
        attach(pcb, s);
    return (struct tcp_handle *)pcb;
}

static int glue_tcp_bind(struct tcp_handle *t, const struct stack_address *a, bool reuse)
{
    ip_addr_t ip = glue_ip(a->ip);
    if (reuse)
        ip_set_option(PCB(t), SOF_REUSEADDR);
    else
        ip_reset_option(PCB(t), SOF_REUSEADDR);
    err_t err = tcp_bind(PCB(t), &ip, a->port);
    return err == ERR_VAL ? -EINVAL : glue_errno(err);
}

static struct tcp_listener *glue_tcp_listen(struct tcp_handle *t, struct socket *s)
{
    /* tcp_listen frees the connection and makes a smaller one: that must not tell the socket. */
    tcp_ext_arg_set(PCB(t), ext_id, NULL);
    struct tcp_pcb *l = tcp_listen(PCB(t));
    if (!l) {
        tcp_ext_arg_set(PCB(t), ext_id, s);
        return NULL;
    }
    tcp_arg(l, s);
    tcp_accept(l, on_accept);
    return (struct tcp_listener *)l;
}

static void glue_tcp_listen_close(struct tcp_listener *l)
{
    tcp_close(PCB(l)); /* cannot fail for a listener */
}

static int glue_tcp_connect(struct tcp_handle *t, const struct stack_address *a)
{
    ip_addr_t ip = glue_ip(a->ip);
    return glue_errno(tcp_connect(PCB(t), &ip, a->port, on_connected));
}

static long glue_tcp_write(struct tcp_handle *t, const void *data, size_t len, bool copy, bool more)
{
    size_t done = 0;
    while (done < len) {
        size_t n = MIN(len - done, (size_t)tcp_sndbuf(PCB(t)));
        n = MIN(n, (size_t)16 * TCP_MSS);
        if (!n)
            break;
        bool last = done + n == len && !more;
        u8_t flags = (u8_t)((copy ? TCP_WRITE_FLAG_COPY : 0) | (last ? 0 : TCP_WRITE_FLAG_MORE));
        err_t err = tcp_write(PCB(t), (const uint8_t *)data + done, (u16_t)n, flags);
        if (err == ERR_MEM)
            break;
        if (err != ERR_OK)
            return err == ERR_CONN ? -EPIPE : glue_errno(err);
        done += n;
    }
    return (long)done;
}

static void glue_tcp_output(struct tcp_handle *t)
{
    tcp_output(PCB(t));
}

static void glue_tcp_consumed(struct tcp_handle *t, size_t len, size_t grow)
{
    struct tcp_pcb *pcb = PCB(t);
    if (pcb->flags & TF_WND_SCALE)
        len += grow;
    while (len) {
        u16_t n = (u16_t)MIN(len, (size_t)0xffff);
        tcp_recved(pcb, n);
        len -= n;
    }
}

static size_t glue_tcp_window(struct tcp_handle *t, size_t set)
{
    struct tcp_pcb *pcb = PCB(t);
    /* What the SYN announced, at most 65535, is promised; more has not been said yet. */
    tcpwnd_size_t floor = TCPWND_MIN16(TCP_WND);
    if (set && pcb->rcv_wnd > floor) {
        pcb->rcv_wnd = MAX((tcpwnd_size_t)set, floor);
        pcb->rcv_ann_wnd = MIN(pcb->rcv_ann_wnd, pcb->rcv_wnd);
        /* lwIP believes that the SYN announced all of its window, and would keep to that. */
        pcb->rcv_ann_right_edge = pcb->rcv_nxt + pcb->rcv_ann_wnd;
    }
    return pcb->rcv_wnd;
}

static int glue_tcp_shutdown_send(struct tcp_handle *t)
{
    return glue_errno(tcp_shutdown(PCB(t), 0, 1));
}

static void glue_tcp_abort(struct tcp_handle *t)
{
    tcp_err(PCB(t), NULL); /* we know */
    tcp_abort(PCB(t));
}

static void glue_tcp_close(struct tcp_handle *t)
{
    struct tcp_pcb *pcb = PCB(t);
    /* lwIP takes a window that is not at its maximum for unread data and would reset the connection. The
     * caller has seen to it that everything was read. */
    if (pcb->state == ESTABLISHED || pcb->state == CLOSE_WAIT)
        pcb->rcv_wnd = TCP_WND_MAX(pcb);
    if (tcp_close(pcb) != ERR_OK)
        glue_tcp_abort(t);
}

static void glue_tcp_names(struct tcp_handle *t, struct stack_address *local, struct stack_address *remote)
{
    *local = (struct stack_address){ ip_addr_get_ip4_u32(&PCB(t)->local_ip), PCB(t)->local_port };
    *remote = (struct stack_address){ ip_addr_get_ip4_u32(&PCB(t)->remote_ip), PCB(t)->remote_port };
}

static void glue_tcp_no_delay(struct tcp_handle *t, bool on)
{
    if (on)
        tcp_nagle_disable(PCB(t));
    else
        tcp_nagle_enable(PCB(t));
}

static void glue_tcp_keepalive(struct tcp_handle *t, const struct stack_keepalive *k)
{
    if (k->on)
        ip_set_option(PCB(t), SOF_KEEPALIVE);
    else
        ip_reset_option(PCB(t), SOF_KEEPALIVE);
    PCB(t)->keep_idle = k->idle_ms;
    PCB(t)->keep_intvl = k->interval_ms;
    PCB(t)->keep_cnt = k->count;
}

static void glue_tcp_info(struct tcp_handle *t, struct stack_tcp_info *out)
{
    static const uint8_t linux_state[] = {
        [CLOSED] = 7, [LISTEN] = 10, [SYN_SENT] = 2, [SYN_RCVD] = 3, [ESTABLISHED] = 1, [FIN_WAIT_1] = 4,
        [FIN_WAIT_2] = 5, [CLOSE_WAIT] = 8, [CLOSING] = 11, [LAST_ACK] = 9, [TIME_WAIT] = 6,
    };
    struct tcp_pcb *pcb = PCB(t);
    *out = (struct stack_tcp_info){
        .state = linux_state[pcb->state], .snd_mss = pcb->mss, .snd_cwnd = pcb->cwnd, .snd_wnd = pcb->snd_wnd,
        .rcv_wnd = pcb->rcv_wnd, .retransmits = pcb->nrtx, .queued_bytes = TCP_SND_BUF - pcb->snd_buf,
        .rto_ms = (uint32_t)pcb->rto * TCP_SLOW_INTERVAL,
    };
}

static void glue_tcp_output_all(void)
{
    struct tcp_pcb *next;
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb; pcb = next) {
        next = pcb->next; /* tcp_output frees no connection */
        if (pcb->unsent)
            tcp_output(pcb);
    }
}

static void glue_tcp_time_wait_limit(unsigned limit)
{
    time_wait_limit = limit;
}

void tcp_glue_trim_time_wait(void)
{
    /* The newest are at the head. A socket has nothing to expect from them any more. */
    struct tcp_pcb *pcb, *next;
    for (pcb = tcp_tw_pcbs; pcb; pcb = pcb->next) {
        void *socket = tcp_ext_arg_get(pcb, ext_id);
        if (!flow_forget(pcb) && !socket)
            break; /* seen before */
        tcp_err(pcb, NULL);
        tcp_sent(pcb, NULL);
        tcp_recv(pcb, NULL);
        on_destroy(ext_id, socket);
        tcp_ext_arg_set(pcb, ext_id, NULL);
        time_wait_new++;
    }
    if (time_wait_new < TIME_WAIT_SLACK)
        return;
    time_wait_new = 0;
    unsigned seen = 0;
    for (pcb = tcp_tw_pcbs; pcb; pcb = next) {
        next = pcb->next;
        if (++seen > time_wait_limit)
            tcp_abort(pcb); /* in TIME_WAIT this only frees */
    }
}

void tcp_glue_before_input(const uint8_t *frame, uint32_t len)
{
    /* Ethernet (14), IPv4 (at least 20), TCP (at least 20). */
    if (!tcp_tw_pcbs || len < 54 || frame[12] != 0x08 || frame[13] != 0x00 || frame[23] != IP_PROTO_TCP)
        return;
    unsigned ip_len = (frame[14] & 15) * 4U;
    if (ip_len < 20 || 14 + ip_len + 20 > len)
        return;
    const uint8_t *tcp = frame + 14 + ip_len;
    if ((tcp[13] & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
        return;
    uint32_t source, destination;
    memcpy(&source, frame + 26, 4);
    memcpy(&destination, frame + 30, 4);
    uint16_t source_port = (uint16_t)(tcp[0] << 8 | tcp[1]), destination_port = (uint16_t)(tcp[2] << 8 | tcp[3]);
    uint32_t sequence = (uint32_t)tcp[4] << 24 | (uint32_t)tcp[5] << 16 | (uint32_t)tcp[6] << 8 | tcp[7];
    for (struct tcp_pcb *pcb = tcp_tw_pcbs; pcb; pcb = pcb->next) {
        if (pcb->remote_port != source_port || pcb->local_port != destination_port ||
            ip_addr_get_ip4_u32(&pcb->remote_ip) != source || ip_addr_get_ip4_u32(&pcb->local_ip) != destination)
            continue;
        if (TCP_SEQ_GT(sequence, pcb->rcv_nxt)) /* RFC 1122 4.2.2.13: certainly new */
            tcp_abort(pcb);
        return;
    }
}

signed char module_tcp_admit(struct tcp_pcb *pcb, const struct tcp_hdr *header, const struct pbuf *p)
{
    if (pcb->state == LISTEN)
        return ERR_OK;
    /* lwIP queues the first segment out of order without cutting it to the window, and asserts later that it
     * fits: a peer that ignores our window must not stop the machine. */
    uint32_t end = header->seqno + p->tot_len + ((TCPH_FLAGS(header) & TCP_FIN) ? 1 : 0);
    bool overrun = TCP_SEQ_GT(header->seqno, pcb->rcv_nxt) && TCP_SEQ_GT(end, pcb->rcv_nxt + pcb->rcv_wnd);
    return overrun && p->tot_len ? ERR_VAL : ERR_OK;
}

void tcp_glue_start(void)
{
    ext_id = tcp_ext_arg_alloc_id();
}

const struct module_ops tcp_glue_ops = {
    .tcp_new = glue_tcp_new,
    .tcp_bind = glue_tcp_bind,
    .tcp_listen = glue_tcp_listen,
    .tcp_listen_close = glue_tcp_listen_close,
    .tcp_connect = glue_tcp_connect,
    .tcp_write = glue_tcp_write,
    .tcp_output = glue_tcp_output,
    .tcp_consumed = glue_tcp_consumed,
    .tcp_window = glue_tcp_window,
    .tcp_shutdown_send = glue_tcp_shutdown_send,
    .tcp_close = glue_tcp_close,
    .tcp_abort = glue_tcp_abort,
    .tcp_names = glue_tcp_names,
    .tcp_no_delay = glue_tcp_no_delay,
    .tcp_keepalive = glue_tcp_keepalive,
    .tcp_info = glue_tcp_info,
    .tcp_output_all = glue_tcp_output_all,
    .tcp_time_wait_limit = glue_tcp_time_wait_limit,
};
