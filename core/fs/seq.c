#include "seq.h"
#include <stdarg.h>

#define SEQ_FIRST 4096u
#define SEQ_MAX (4u << 20)

void seq_printf(struct seq *s, const char *fmt, ...)
{
    va_list ap;
    if (s->overflow)
        return;
    va_start(ap, fmt);
    int n = vsnprintf(s->buf + s->len, s->size - s->len, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= s->size - s->len)
        s->overflow = true; /* the caller tries again with more room */
    else
        s->len += (size_t)n;
}

int seq_open(struct file *f, int (*show)(struct seq *s, void *process), void *process)
{
    for (size_t size = SEQ_FIRST; size <= SEQ_MAX; size *= 4) {
        struct seq *s = kzalloc(sizeof *s);
        char *buf = kmalloc(size);
        if (!s || !buf) {
            kfree(s);
            kfree(buf);
            return -ENOMEM;
        }
        *s = (struct seq){ .buf = buf, .size = size };
        int r = show(s, process);
        if (!r && !s->overflow) {
            f->private = s;
            return 0;
        }
        kfree(buf);
        kfree(s);
        if (r)
            return r;
    }
    return -EFBIG;
}
ssize_t seq_read(struct file *f, struct uio *u, uint64_t *offset)
{
    struct seq *s = f->private;
    if (!s || *offset >= s->len)
        return 0;
    size_t n = uio_copy_out(u, s->buf + *offset, MIN(u->resid, s->len - *offset));
    *offset += n;
    return n || !u->resid ? (ssize_t)n : -EFAULT;
}
void seq_release(struct file *f)
{
    struct seq *s = f->private;
    if (s)
        kfree(s->buf);
    kfree(s);
}
