/* Interfaces of one lwIP instance: frames in and out without copying what can be referenced. */
#include "glue.h"
#include "lwip/dhcp.h"
#include "lwip/etharp.h"
#include "lwip/netif.h"
#include "lwip/pbuf.h"
#include "netif/ethernet.h"
#include <weir/errno.h>
#include <weir/net.h>

struct netif_handle {
    struct netif netif;
    struct net_device *device;
    uint8_t mac[6];
    unsigned mtu, flags;
};

/* A received piece: this structure lies in the headroom of the buffer that it describes. */
struct rx_pbuf {
    struct pbuf_custom custom;
    void (*free_fn)(void *cookie);
    void *cookie;
};
_Static_assert(sizeof(struct rx_pbuf) <= NET_RX_HEADROOM - 16, "NET_RX_HEADROOM is too small");

static void rx_pbuf_free(struct pbuf *p)
{
    struct rx_pbuf *r = container_of(p, struct rx_pbuf, custom.pbuf);
    r->free_fn(r->cookie);
}

static struct pbuf *rx_pbuf_make(const struct stack_rx_piece *piece)
{
    struct rx_pbuf *r = (void *)ALIGN_DOWN((uintptr_t)piece->data - sizeof(*r), 16);
    r->free_fn = piece->free_fn;
    r->cookie = piece->cookie;
    r->custom.custom_free_function = rx_pbuf_free;
    return pbuf_alloced_custom(PBUF_RAW, (u16_t)piece->len, PBUF_REF, &r->custom, piece->data, (u16_t)piece->len);
}

/* lwIP hands a frame down: describe its pieces. Only PBUF_ROM is memory of core/net's send buffers, which
 * may be sent by reference; everything else is copied by stack_transmit before we return. */
static err_t link_output(struct netif *netif, struct pbuf *p)
{
    struct netif_handle *n = netif->state;
    struct stack_tx_piece pieces[STACK_TX_PIECES];
    unsigned count = 0;
    struct pbuf *flat = NULL;
    if (pbuf_clen(p) > STACK_TX_PIECES) {
        flat = pbuf_clone(PBUF_RAW, PBUF_RAM, p);
        if (!flat)
            return ERR_MEM;
        p = flat;
    }
    for (struct pbuf *q = p; q; q = q->next) {
        if (q->len)
            pieces[count++] = (struct stack_tx_piece){ q->payload, q->len, pbuf_match_type(q, PBUF_ROM) && !(q->flags & PBUF_FLAG_IS_CUSTOM) };
        if (q->tot_len == q->len)
            break;
    }
    int r = stack_transmit(glue_stack, n->device, pieces, count);
    if (flat)
        pbuf_free(flat);
    return r ? ERR_MEM : ERR_OK;
}

static void status_changed(struct netif *netif)
{
    struct netif_handle *n = netif->state;
    stack_netif_changed(glue_stack, n->device);
}

static err_t netif_setup(struct netif *netif)
{
    struct netif_handle *n = netif->state;
    netif->name[0] = 'e';
    netif->name[1] = 't';
    netif->mtu = (u16_t)n->mtu;
    netif->hwaddr_len = 6;
    memcpy(netif->hwaddr, n->mac, 6);
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    netif->output = etharp_output;
    netif->linkoutput = link_output;
    u16_t checksums = NETIF_CHECKSUM_GEN_IP | NETIF_CHECKSUM_GEN_ICMP | NETIF_CHECKSUM_CHECK_IP | NETIF_CHECKSUM_CHECK_ICMP;
    if (!(n->flags & STACK_NETIF_TX_CSUM))
        checksums |= NETIF_CHECKSUM_GEN_TCP | NETIF_CHECKSUM_GEN_UDP;
    /* Whether TCP and UDP sums are looked at is said with each frame (glue_netif_input). */
    NETIF_SET_CHECKSUM_CTRL(netif, checksums);
    return ERR_OK;
}

static struct netif_handle *glue_netif_add(struct net_device *d, const char *name, const uint8_t mac[6],
                                           unsigned mtu, unsigned flags)
{
    (void)name;
    struct netif_handle *n = module_calloc(1, sizeof(*n));
    if (!n)
        return NULL;
    n->device = d;
    n->mtu = mtu;
    n->flags = flags;
    memcpy(n->mac, mac, 6);
    if (!netif_add_noaddr(&n->netif, n, netif_setup, ethernet_input)) {
        module_free(n);
        return NULL;
    }
    netif_set_status_callback(&n->netif, status_changed);
    netif_set_up(&n->netif);
    if (!netif_default)
        netif_set_default(&n->netif);
    return n;
}

static void glue_netif_remove(struct netif_handle *n)
{
    dhcp_release_and_stop(&n->netif);
    dhcp_cleanup(&n->netif);
    netif_remove(&n->netif);
    struct netif *other;
    NETIF_FOREACH(other) {
        if (!netif_default && (other->flags & NETIF_FLAG_ETHARP))
            netif_set_default(other);
    }
    module_free(n);
}

static void glue_netif_link(struct netif_handle *n, bool up)
{
    if (up)
        netif_set_link_up(&n->netif);
    else
        netif_set_link_down(&n->netif);
}

static void glue_netif_set_address(struct netif_handle *n, uint32_t ip, uint32_t mask, uint32_t gateway)
{
    ip4_addr_t a = { ip }, m = { mask }, g = { gateway };
    netif_set_addr(&n->netif, &a, &m, &g);
}

static int glue_netif_dhcp(struct netif_handle *n)
{
    netif_set_hostname(&n->netif, "weir");
    return glue_errno(dhcp_start(&n->netif));
}

static bool glue_netif_address(struct netif_handle *n, uint32_t *ip, uint32_t *mask, uint32_t *gateway)
{
    *ip = netif_ip4_addr(&n->netif)->addr;
    *mask = netif_ip4_netmask(&n->netif)->addr;
    *gateway = netif_ip4_gw(&n->netif)->addr;
    return *ip != 0;
}

static void glue_netif_announce(struct netif_handle *n)
{
    if (netif_ip4_addr(&n->netif)->addr)
        etharp_gratuitous(&n->netif);
}

static void glue_netif_input(struct netif_handle *n, const struct stack_rx_piece *pieces, unsigned count,
                             bool verified)
{
    struct pbuf *head = NULL;
    uint32_t total = 0;
    tcp_glue_before_input(pieces[0].data, pieces[0].len);
    for (unsigned i = 0; i < count; i++) {
        struct pbuf *p = rx_pbuf_make(&pieces[i]);
        total += pieces[i].len;
        if (!head)
            head = p;
        else
            pbuf_cat(head, p);
    }
    LWIP_ASSERT("a frame is at most 64 KiB", total <= 0xffff);
    const u16_t sums = NETIF_CHECKSUM_CHECK_TCP | NETIF_CHECKSUM_CHECK_UDP;
    u16_t checksums = n->netif.chksum_flags;
    NETIF_SET_CHECKSUM_CTRL(&n->netif, verified ? checksums & ~sums : checksums | sums);
    struct tcp_pcb *parked = flow_park(pieces[0].data, pieces[0].len);
    if (ethernet_input(head, &n->netif) != ERR_OK)
        pbuf_free(head);
    flow_unpark(parked);
    /* What this machine sends to its own address loops through here without sums. */
    NETIF_SET_CHECKSUM_CTRL(&n->netif, checksums & ~sums);
}

static void glue_pbuf_free(void *p)
{
    pbuf_free(p);
}

const struct module_ops netif_glue_ops = {
    .netif_add = glue_netif_add,
    .netif_remove = glue_netif_remove,
    .netif_link = glue_netif_link,
    .netif_set_address = glue_netif_set_address,
    .netif_dhcp = glue_netif_dhcp,
    .netif_address = glue_netif_address,
    .netif_announce = glue_netif_announce,
    .netif_input = glue_netif_input,
    .pbuf_free = glue_pbuf_free,
};
