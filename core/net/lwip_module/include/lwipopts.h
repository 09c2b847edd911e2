/*
 * lwIP as Weir builds it: raw API only, one thread at a time (the stack lock of core/net), IPv4, memory from
 * the kernel heap, checksums per interface, socket buffers and memory bounds in core/net.
 */
#ifndef LWIPOPTS_H
#define LWIPOPTS_H

#define NO_SYS                  1
#define SYS_LIGHTWEIGHT_PROT    0 /* whoever is in a stack holds its lock; readers own what they free */
#define LWIP_NETCONN            0
#define LWIP_SOCKET             0
#define LWIP_RAW                0
#define LWIP_STATS              1
#define LWIP_STATS_LARGE        1
#define MEM_STATS               0
#define MEMP_STATS              0
#define LWIP_NOASSERT_CHECKS    0

/* Everything comes from kmalloc; how much is bounded where it is asked for (sockets, SYN queue). */
#define MEM_CUSTOM_ALLOCATOR    1
#define MEM_CUSTOM_MALLOC       module_alloc
#define MEM_CUSTOM_CALLOC       module_calloc
#define MEM_CUSTOM_FREE         module_free
#define MEMP_MEM_MALLOC         1
#define MEM_ALIGNMENT           16
#define PBUF_POOL_BUFSIZE       1536
#define LWIP_SUPPORT_CUSTOM_PBUF 1

#define LWIP_IPV4               1
#define LWIP_IPV6               0
#define LWIP_ARP                1
#define ARP_TABLE_SIZE          127
#define ARP_QUEUEING            1
#define ARP_QUEUE_LEN           16
#define ETHARP_TRUST_IP_MAC     0
#define LWIP_ICMP               1
#define LWIP_DHCP               1
#define LWIP_DHCP_DOES_ACD_CHECK 0
#define LWIP_ACD                0
#define LWIP_DNS                0
#define IP_REASSEMBLY           1
#define IP_REASS_MAX_PBUFS      128
#define IP_FRAG                 1
#define LWIP_UDP                1
#define LWIP_NETBUF_RECVINFO    0

/* TCP. One tick of 50 ms gives delayed acknowledgements after 50 ms and retransmissions from 300 ms. */
#define LWIP_TCP                1
#define TCP_TMR_INTERVAL        50
#define LWIP_TCP_RTO_TIME       1000
#define TCP_MSS                 1460
#define LWIP_WND_SCALE          1
#define TCP_RCV_SCALE           5
#define TCP_WND                 (1024 * 1024)
#define TCP_WND_UPDATE_THRESHOLD (16 * TCP_MSS)
#define TCP_SND_BUF             (256 * 1024)
#define TCP_SND_QUEUELEN        2048
#define TCP_SNDLOWAT            TCP_MSS
#define TCP_SNDQUEUELOWAT       16
#define TCP_OVERSIZE            0
#define TCP_QUEUE_OOSEQ         1
#define TCP_OOSEQ_MAX_BYTES     (256 * 1024)
#define TCP_OOSEQ_MAX_PBUFS     512
#define LWIP_TCP_SACK_OUT       1
#define LWIP_TCP_MAX_SACK_NUM   4
#define LWIP_TCP_TIMESTAMPS     0
#define TCP_LISTEN_BACKLOG      0 /* counted by core/net: lwIP's counter ends at 255 */
#define LWIP_TCP_KEEPALIVE      1
#define LWIP_TCP_PCB_NUM_EXT_ARGS 2 /* tcp_glue.c, flow.c */
#define SO_REUSE                1
#define SO_REUSE_RXTOALL        0
#define LWIP_HOOK_FILENAME      "weir_module.h"
struct ip4_addr;
#define LWIP_HOOK_TCP_ISN(local_ip, local_port, remote_ip, remote_port) \
    module_tcp_isn((local_ip)->addr, (local_port), (remote_ip)->addr, (remote_port))
#define LWIP_HOOK_TCP_INPACKET_PCB(pcb, hdr, optlen, opt1len, opt2, p) module_tcp_admit((pcb), (hdr), (p))

/* Checksums are chosen per interface and verified before input where the device did not. */
#define LWIP_CHECKSUM_CTRL_PER_NETIF 1
#define LWIP_CHECKSUM_ON_COPY   0
#define LWIP_CHKSUM             module_checksum

#define LWIP_NETIF_LOOPBACK     1
#define LWIP_HAVE_LOOPIF        1
#define LWIP_LOOPIF_MULTICAST   0
#define LWIP_NETIF_LOOPBACK_MULTITHREADING 0
#define LWIP_LOOPBACK_MAX_PBUFS 0
#define LWIP_NETIF_STATUS_CALLBACK 1
#define LWIP_NETIF_HOSTNAME     1
#define LWIP_NETIF_LINK_CALLBACK 0
#define LWIP_NETIF_TX_SINGLE_PBUF 0
#define LWIP_SINGLE_NETIF       0
#define LWIP_PERF               0
#endif
