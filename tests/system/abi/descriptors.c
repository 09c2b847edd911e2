/* Pipes, vectors, locks, directories, and the other calls on descriptors. */
#include "abi.h"

#include <dirent.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

static int temporary(char path[32])
{
    strcpy(path, "/tmp/abi-XXXXXX");
    return (int)must(mkstemp(path));
}

static void touch(const char *name)
{
    int fd = (int)must(open(name, O_CREAT | O_WRONLY, 0600));
    must(close(fd));
}

static void *volatile unmapped = (void *)16;

CASE(pipe_capacity_and_atomicity)
{
    static char block[5000];
    int p[2], total = 0, n, ready;
    must(pipe2(p, O_NONBLOCK));
    while ((n = (int)write(p[1], block, 4096)) > 0)
        total += n;
    say("holds %d, then %s", total, error_name(errno));
    must(read(p[0], block, 4095));
    say("4096 into 4095: %s", outcome(write(p[1], block, 4096)));
    int left;
    must(ioctl(p[0], FIONREAD, &left));
    say("readable %d", left);
    struct pollfd f = {p[1], POLLOUT, 0};
    ready = poll(&f, 1, 0);
    say("poll %d, events %#x", ready, f.revents);
    while (read(p[0], block, sizeof block) > 0)
        ;
    say("drained: %s", error_name(errno));
    ready = poll(&f, 1, 0);
    say("poll %d, events %#x", ready, f.revents);
    must(close(p[0]));
    ready = poll(&f, 1, 0);
    say("reader gone: poll %d, events %#x", ready, f.revents);
}

CASE(pipe_large_write_meets_a_reader)
{
    int p[2];
    must(pipe(p));
    pid_t child = (pid_t)must(fork());
    if (!child) {
        static char out[300000];
        for (size_t i = 0; i < sizeof out; i++)
            out[i] = (char)(i * 7 % 251);
        must(close(p[0]));
        _exit(write(p[1], out, sizeof out) == (ssize_t)sizeof out ? 0 : 1);
    }
    must(close(p[1]));
    static unsigned char in[7777];
    size_t total = 0, wrong = 0;
    ssize_t n;
    while ((n = read(p[0], in, sizeof in)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            wrong += in[i] != (total + (size_t)i) * 7 % 251;
        total += (size_t)n;
    }
    say("read %zu, wrong %zu, end %zd, child %s", total, wrong, n, status_text(wait_for(child)));
}

CASE(vectors)
{
    char path[32], a[3] = {0}, b[5] = {0};
    int fd = temporary(path);
    struct iovec out[3] = {{(void *)"abc", 3}, {(void *)"", 0}, {(void *)"defgh", 5}}, in[2] = {{a, 2}, {b, 4}};
    say("writev %zd", writev(fd, out, 3));
    say("preadv %zd %s %s", preadv(fd, in, 2, 1), a, b);
    say("pwritev %zd", pwritev(fd, out, 1, 6));
    say("position %ld", (long)lseek(fd, 0, SEEK_CUR));
    say("preadv2 at position %zd", preadv2(fd, in, 2, -1, 0));
    say("size %ld", (long)lseek(fd, 0, SEEK_END));
    say("too many: %s", outcome(syscall(SYS_readv, fd, in, 1025)));
    in[0].iov_len = (size_t)-1;
    say("negative length: %s", outcome(readv(fd, in, 1)));
    say("bad address: %s", outcome(write(fd, unmapped, 4)));
    say("negative offset: %s", outcome(pread(fd, a, 1, -1)));
    unlink(path);
}

CASE(record_locks)
{
    char path[32];
    int fd = temporary(path);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    must(fcntl(fd, F_SETLK, &l));
    pid_t parent = getpid(), child = (pid_t)must(fork());
    if (!child) {
        struct flock q = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
        must(fcntl(fd, F_GETLK, &q));
        say("in the way: type %d, start %ld, length %ld, the parent %d", q.l_type, (long)q.l_start, (long)q.l_len,
            q.l_pid == parent);
        q = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 15, .l_len = 1};
        say("set: %s", outcome(fcntl(fd, F_SETLK, &q)));
        q.l_start = 20;
        say("beside: %s", outcome(fcntl(fd, F_SETLK, &q)));
        q = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 12, .l_len = 2};
        say("waited: %s", outcome(fcntl(fd, F_SETLKW, &q)));
        _exit(0);
    }
    sleep_ms(150);
    l = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 12, .l_len = 2};
    must(fcntl(fd, F_SETLK, &l));
    say("child: %s", status_text(wait_for(child)));
    must(close(dup(fd))); /* any close of the file lets all go */
    child = (pid_t)must(fork());
    if (!child) {
        l = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
        say("after a close: %s", outcome(fcntl(fd, F_SETLK, &l)));
        _exit(0);
    }
    wait_for(child);
    unlink(path);
}

CASE(whole_file_locks)
{
    char path[32];
    int fd = temporary(path), other = (int)must(open(path, O_RDWR));
    must(flock(fd, LOCK_SH));
    say("shared twice: %s", outcome(flock(other, LOCK_SH | LOCK_NB)));
    say("upgrade: %s", outcome(flock(fd, LOCK_EX | LOCK_NB)));
    must(flock(other, LOCK_UN));
    say("upgrade alone: %s", outcome(flock(fd, LOCK_EX | LOCK_NB)));
    must(close(fd));
    say("after close: %s", outcome(flock(other, LOCK_EX | LOCK_NB)));
    unlink(path);
}

CASE(directory_listing)
{
    char dir[] = "/tmp/abi-dir-XXXXXX", name[64];
    must(mkdtemp(dir) ? 0 : -1);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "%s/file-%03d", dir, i);
        touch(name);
    }
    DIR *d = opendir(dir);
    int count = 0, sum = 0, files = 0;
    for (struct dirent *e; (e = readdir(d));) {
        count++;
        files += e->d_type == DT_REG;
        if (e->d_name[0] == 'f')
            sum += atoi(e->d_name + 5);
    }
    say("entries %d, files %d, sum %d", count, files, sum);
    closedir(d);
    say("not empty: %s", outcome(rmdir(dir)));
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "%s/file-%03d", dir, i);
        must(unlink(name));
    }
    say("empty: %s", outcome(rmdir(dir)));
}

CASE(names)
{
    char dir[] = "/tmp/abi-names-XXXXXX", cwd[64], link[16] = {0};
    must(mkdtemp(dir) ? 0 : -1);
    must(chdir(dir));
    say("cwd is the directory: %d", getcwd(cwd, sizeof cwd) && !strcmp(cwd, dir));
    say("short buffer: %s", getcwd(cwd, 3) ? "0" : error_name(errno));
    int fd = (int)must(open("a", O_CREAT | O_EXCL | O_RDWR, 0666));
    say("again: %s", outcome(open("a", O_CREAT | O_EXCL | O_RDWR, 0666)));
    must(write(fd, "one", 3));
    touch("b");
    say("rename without replacing: %s", outcome(renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_NOREPLACE)));
    say("rename: %s", outcome(rename("a", "b")));
    say("gone: %s", outcome(access("a", F_OK)));
    must(symlink("b", "s"));
    say("readlink %zd %s", readlink("s", link, sizeof link - 1), link);
    struct stat st;
    must(lstat("s", &st));
    say("link: type %o, size %ld", st.st_mode & S_IFMT, (long)st.st_size);
    must(stat("s", &st));
    say("target: type %o, size %ld, links %ld", st.st_mode & S_IFMT, (long)st.st_size, (long)st.st_nlink);
    say("O_NOFOLLOW: %s", outcome(open("s", O_RDONLY | O_NOFOLLOW)));
    say("through a file: %s", outcome(open("b/x", O_RDONLY)));
    must(chmod("b", 0640));
    must(fstat(fd, &st));
    say("mode %o", st.st_mode & 07777);
    mode_t old = umask(077);
    must(mkdir("d", 0777));
    umask(old);
    must(stat("d", &st));
    say("directory mode %o", st.st_mode & 07777);
    say("unlink a directory: %s", outcome(unlink("d")));
    say("into itself: %s", outcome(rename("d", "d/e")));
    struct timespec t[2] = {{1000, 5}, {2000, 7}};
    must(futimens(fd, t));
    must(fstat(fd, &st));
    say("times %ld %ld", (long)st.st_atim.tv_sec, (long)st.st_mtim.tv_nsec);
    must(ftruncate(fd, 10000));
    must(fstat(fd, &st));
    say("size %ld", (long)st.st_size);
    say("fsync of a directory: %s", outcome(fsync((int)must(open(".", O_RDONLY | O_DIRECTORY)))));
    must(unlink("b"));
    must(fstat(fd, &st));
    say("unlinked: links %ld, still readable %zd", (long)st.st_nlink, pread(fd, link, 3, 0));
    must(unlink("s"));
    must(rmdir("d"));
    must(chdir("/"));
    must(rmdir(dir));
}

CASE(append_and_shared_positions)
{
    char path[32], buf[16] = {0};
    int fd = temporary(path), app = (int)must(open(path, O_WRONLY | O_APPEND));
    must(write(fd, "12345", 5));
    must(lseek(app, 0, SEEK_SET));
    must(write(app, "67", 2));
    say("append position %ld", (long)lseek(app, 0, SEEK_CUR));
    int copy = (int)must(dup(fd));
    must(lseek(copy, 1, SEEK_SET));
    say("shared position %ld", (long)lseek(fd, 0, SEEK_CUR));
    say("read %zd %s", read(fd, buf, sizeof buf), buf);
    say("beyond the end %ld, read %zd", (long)lseek(fd, 100, SEEK_SET), read(fd, buf, 1));
    say("seek of a pipe: %s", ({ int p[2]; must(pipe(p)); outcome(lseek(p[0], 0, SEEK_CUR)); }));
    unlink(path);
}

CASE(sendfile_to_a_pipe)
{
    char path[32], buf[8] = {0};
    int fd = temporary(path), p[2];
    off_t offset = 2;
    must(write(fd, "abcdefgh", 8));
    must(pipe(p));
    say("sendfile %zd", sendfile(p[1], fd, &offset, 4));
    say("offset %ld, position %ld", (long)offset, (long)lseek(fd, 0, SEEK_CUR));
    say("read %zd %s", read(p[0], buf, sizeof buf), buf);
    unlink(path);
}

CASE(eventfd_counts)
{
    int fd = (int)must(eventfd(3, EFD_NONBLOCK)), sem = (int)must(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK));
    uint64_t v = 4;
    must(write(fd, &v, 8));
    must(read(fd, &v, 8));
    say("read: %llu", (unsigned long long)v);
    say("again: %s", outcome(read(fd, &v, 8)));
    must(read(sem, &v, 8));
    say("semaphore: %llu", (unsigned long long)v);
    say("short: %s", outcome(read(sem, &v, 4)));
    v = UINT64_MAX;
    say("too much: %s", outcome(write(fd, &v, 8)));
    v = UINT64_MAX - 1;
    must(write(fd, &v, 8));
    v = 1;
    say("full: %s", outcome(write(fd, &v, 8)));
}

CASE(timerfd_expires)
{
    int fd = (int)must(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    struct itimerspec its = {{0, 0}, {0, 50000000}}, now;
    uint64_t n = 0;
    say("unset: %s", outcome(read(fd, &n, 8)));
    must(timerfd_settime(fd, 0, &its, NULL));
    struct pollfd p = {fd, POLLIN, 0};
    say("poll %d", poll(&p, 1, 5000));
    must(read(fd, &n, 8));
    say("read: %llu", (unsigned long long)n);
    must(timerfd_gettime(fd, &now));
    say("left %ld", now.it_value.tv_nsec + (long)now.it_value.tv_sec);
    its.it_value.tv_nsec = 1;
    its.it_interval.tv_nsec = 1000000;
    must(timerfd_settime(fd, 0, &its, NULL));
    sleep_ms(100);
    must(read(fd, &n, 8));
    say("many: %d", n >= 20);
}

CASE(close_range_and_limits)
{
    int fds[6];
    for (int i = 0; i < 6; i++)
        fds[i] = (int)must(dup(0));
    must(close_range((unsigned)fds[1], (unsigned)fds[4], 0));
    say("kept %s, closed %s %s, kept %s", outcome(fcntl(fds[0], F_GETFD)), outcome(fcntl(fds[1], F_GETFD)),
        outcome(fcntl(fds[4], F_GETFD)), outcome(fcntl(fds[5], F_GETFD)));
    must(close_range((unsigned)fds[5], ~0u, CLOSE_RANGE_CLOEXEC));
    say("flag %d", fcntl(fds[5], F_GETFD));
    say("dup2 beyond the limit: %s", outcome(dup2(0, 1 << 30)));
    say("dup3 onto itself: %s", outcome(dup3(0, 0, 0)));
    say("dup2 onto itself: %d", dup2(fds[5], fds[5]) == fds[5]);
    say("minimum: %d", fcntl(0, F_DUPFD, 100));
}
