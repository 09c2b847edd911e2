/*
 * Sockets as files (private to core/linux): what the calls need of a family. Every operation is
 * non-blocking; socket_calls.c waits, with socket_wait, on the queue and readiness that the family
 * names.
 */
#ifndef WEIR_LINUX_SOCKET_FILE_H
#define WEIR_LINUX_SOCKET_FILE_H
#include "linuxio.h"
#include <weir/net.h>

#define MSG_OOB          0x1u
#define MSG_PEEK         0x2u
#define MSG_CTRUNC       0x8u
#define MSG_TRUNC        0x20u
#define MSG_DONTWAIT     0x40u
#define MSG_EOR          0x80u
#define MSG_WAITALL      0x100u
#define MSG_NOSIGNAL     0x4000u
#define MSG_MORE         0x8000u
#define MSG_WAITFORONE   0x10000u
#define MSG_CMSG_CLOEXEC 0x40000000u

#define SOCK_SEQPACKET_WEIR 5
#define SOCKADDR_MAX        128u
#define SCM_MAX_FD          253u

struct sockaddr_buf {
    uint8_t bytes[SOCKADDR_MAX]; /* begins with the family */
    uint32_t len;                /* 0 = no address */
};
static inline uint16_t sockaddr_family(const struct sockaddr_buf *a)
{
    uint16_t family = 0;

    if (a->len >= sizeof(family))
        memcpy(&family, a->bytes, sizeof(family));
    return family;
}

/* Descriptors under way in a message. Owns the files. */
struct passed_files {
    unsigned count;
    struct file *files[];
};
void passed_files_free(struct passed_files *p); /* NULL allowed */

struct socket_message {
    struct uio *uio;
    unsigned flags;               /* MSG_*; on return of receive: MSG_TRUNC, MSG_EOR to report */
    struct sockaddr_buf *address; /* send: to, or NULL; receive: filled if not NULL */
    struct passed_files *files;   /* send: taken when it succeeds; receive: handed to the caller */
};

struct socket_file;
struct socket_family_ops {
    int (*bind)(struct socket_file *s, const struct sockaddr_buf *a);
    int (*listen)(struct socket_file *s, int backlog);
    int (*accept)(struct socket_file *s, struct socket_file *out,
                  struct sockaddr_buf *peer); /* fills out->private */
    int (*connect)(struct socket_file *s,
                   const struct sockaddr_buf *a); /* -EINPROGRESS, -EAGAIN: wait for POLLOUT */
    ssize_t (*send)(struct socket_file *s, struct socket_message *m);
    ssize_t (*receive)(struct socket_file *s, struct socket_message *m);
    int (*shutdown)(struct socket_file *s, int how);
    int (*name)(struct socket_file *s, bool peer, struct sockaddr_buf *out);
    int (*set_option)(struct socket_file *s, int level, int name, const void *value, size_t len);
    int (*get_option)(struct socket_file *s, int level, int name, void *value, size_t *len);
    /* NULL: the socket's own readiness tells. Else sleep on what really holds it up: 0 = try again,
     * -ETIMEDOUT, -EINTR. */
    int (*wait_to_send)(struct socket_file *s, struct socket_message *m, uint64_t deadline_ns);
    int (*wait_to_connect)(struct socket_file *s, const struct sockaddr_buf *a,
                           uint64_t deadline_ns);
    unsigned (*poll)(struct socket_file *s);
    struct wait_queue *(*wait_queue)(struct socket_file *s);
    size_t (*readable_bytes)(struct socket_file *s);
    void (*release)(struct socket_file *s);
};
/* Key: I immutable, a atomic */
struct socket_file {
    const struct socket_family_ops *ops;          /* I */
    void *private;                                /* I the family's */
    int family, type;                             /* I */
    uint64_t receive_timeout_ns, send_timeout_ns; /* a 0 = for ever */
    bool connecting; /* a a connect is under way: its end is told once */
};

/* Send and receive as the calls do: with waiting as flags and file say, and SIGPIPE. f is a socket.
 */
ssize_t socket_send_message(struct file *f, struct socket_message *m) __must_check;
ssize_t socket_receive_message(struct file *f, struct socket_message *m) __must_check;

extern const struct socket_family_ops inet_socket_ops, unix_socket_ops;
int inet_socket_create(struct socket_file *s, int protocol) __must_check;
int unix_socket_create(struct socket_file *s, int protocol) __must_check;
int unix_socket_pair(struct socket_file *a, struct socket_file *b) __must_check;
#endif
