/*
 * AF_UNIX sockets (private to unix_socket.c, names and connections, and unix_message.c, data):
 * stream, seqpacket and datagram, bound to a path or an abstract name, with descriptors passed in
 * messages.
 *
 * Data are messages on the receiver's queue. A stream reader may take part of one and go on to the
 * next; a message with descriptors ends a read, as with Linux. Sender and receiver are tied by
 * `peer`, each holding a reference of the other; a socket that was closed stays until the peer lets
 * go.
 *
 * Locks: unix_lock (names and peers; spin, thread context) > socket->lock (its queue). Never two
 * socket locks at once. User memory is copied without any of them.
 */
#ifndef WEIR_LINUX_UNIX_INTERNAL_H
#define WEIR_LINUX_UNIX_INTERNAL_H
#include "socket_file.h"

#define SOCK_STREAM    SOCK_STREAM_WEIR
#define SOCK_DGRAM     SOCK_DGRAM_WEIR
#define SOCK_SEQPACKET SOCK_SEQPACKET_WEIR
#define QUEUE_BYTES    212992u /* Linux's default */

struct unix_message {
    struct list link;
    uint32_t len, taken;
    struct passed_files *files;
    struct sockaddr_buf *from; /* datagrams of a bound sender */
    uint8_t data[];
};

enum unix_state { UNIX_NEW, UNIX_LISTENING, UNIX_CONNECTED, UNIX_CLOSED };

/* Key: I immutable, a atomic, u unix_lock, l lock. */
struct unix_socket {
    uint32_t refcount;        /* a */
    int type;                 /* I */
    enum unix_state state;    /* u (a for readiness) */
    struct unix_socket *peer; /* u counted */
    bool peer_gone;           /* a the peer closed: EOF and EPIPE */
    bool no_receive, no_send; /* a shutdown */
    bool reset;               /* a the peer closed with unread data */
    struct cred cred;         /* I of the maker (SO_PEERCRED) */
    int pid;                  /* I */
    struct cred peer_cred;    /* u */
    int peer_pid;             /* u */
    struct list name_link;    /* u */
    struct inode *inode;      /* u counted: bound to a path */
    struct sockaddr_buf name; /* u len 0 = not bound */
    spinlock_t lock;
    struct list queue; /* l messages to read, or (listening) connections to accept */
    uint32_t queued_bytes, queued_count; /* l (a for readiness) */
    unsigned backlog;                    /* u */
    struct list accept_link;             /* l of the listener */
    struct wait_queue wait;
};

void unix_get(struct unix_socket *u);
void unix_put(struct unix_socket *u);
void unix_wake(struct unix_socket *u, unsigned events);
struct unix_socket *unix_peer_get(struct unix_socket *u); /* referenced, or NULL */
/* The socket bound to an address, referenced: 0, or what connect would say. */
int unix_find(const struct sockaddr_buf *a, struct unix_socket **out) __must_check;

/* unix_message.c */
void unix_message_free(struct unix_message *m);
bool unix_has_room(const struct unix_socket *to);
ssize_t unix_send(struct socket_file *s, struct socket_message *m) __must_check;
ssize_t unix_receive(struct socket_file *s, struct socket_message *m) __must_check;
int unix_wait_to_send(struct socket_file *s, struct socket_message *m,
                      uint64_t deadline_ns) __must_check;
#endif
