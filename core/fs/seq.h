/* Text files made at open: /proc and /sys. */
#ifndef FS_SEQ_H
#define FS_SEQ_H
#include "fs.h"

/* A file whose text show(s, process) makes at open; f->private is the text afterwards. */
int seq_open(struct file *f, int (*show)(struct seq *s, void *process), void *process) __must_check;
ssize_t seq_read(struct file *f, struct uio *u, uint64_t *offset);
void seq_release(struct file *f);
#endif
