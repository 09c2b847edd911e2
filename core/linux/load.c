/* Building an address space from an executable: segments, interpreter, stack with arguments and auxiliary vector. */
#include "elf.h"
#include "task_internal.h"
#include <weir/cmdline.h>
#include <weir/random.h>
#include <weir/trap.h>

#define PIE_BASE       0x555555554000UL /* where Linux puts them; ASLR adds pages */
#define STACK_TOP_MAX  0x00007ffffffde000UL
#define STACK_RANDOM   ((1UL << 22) - 1) /* pages: 16 GiB */
#define MMAP_RANDOM    ((1UL << 28) - 1) /* pages: 1 TiB */
#define BRK_RANDOM     ((1UL << 13) - 1) /* pages: 32 MiB */
#define STACK_ROOM_MIN (128UL << 20)     /* kept for the stack above the mappings */
#define STACK_ROOM_MAX (1UL << 42)
#define SHEBANG_BYTES  256u
#define SHEBANG_DEPTH  5u
#define STRING_LIMIT   (128UL << 10)     /* one argument, as Linux */
#define STRINGS_LIMIT  (2UL << 20)       /* all of them */

struct executable {
    struct file *file;
    struct elf_image image;
    uint64_t bias; /* added to every address of the image */
};

static uint64_t random_pages(uint64_t mask)
{
    static int enabled = -1;
    uint64_t r;

    if (enabled < 0)
        enabled = cmdline_bool("aslr", true);
    if (!enabled)
        return 0;
    random_bytes(&r, sizeof(r));
    return (r & mask) << PAGE_SHIFT;
}

/* ---- strings ---- */

int exec_reserve_strings(struct exec_strings *s, size_t more)
{
    size_t capacity = s->capacity ? s->capacity : 4096;
    char *data;

    if (s->len + more > STRINGS_LIMIT)
        return -E2BIG;
    while (capacity < s->len + more)
        capacity *= 2;
    if (capacity == s->capacity)
        return 0;
    data = krealloc(s->data, s->capacity, capacity);
    if (!data)
        return -ENOMEM;
    s->data = data;
    s->capacity = capacity;
    return 0;
}

int exec_add_string(struct exec_strings *s, const char *text)
{
    size_t len = strlen(text) + 1;
    int r = len > STRING_LIMIT ? -E2BIG : exec_reserve_strings(s, len);

    if (r)
        return r;
    memcpy(s->data + s->len, text, len);
    s->len += len;
    return 0;
}

/* Put `count` strings of text in front of all and drop the old first one (shebang). */
static int strings_replace_first(struct exec_strings *s, const char *text, size_t len, unsigned count)
{
    size_t old = s->argc ? strlen(s->data) + 1 : 0;
    int r = exec_reserve_strings(s, len);

    if (r)
        return r;
    memmove(s->data + len, s->data + old, s->len - old);
    memcpy(s->data, text, len);
    s->len = s->len - old + len;
    s->argc += count - (old ? 1 : 0);
    return 0;
}

/* ---- opening ---- */

static int open_executable(struct dentry *cwd, const char *path, const struct cred *cred,
                           struct file **out)
{
    struct file *f;
    int r = vfs_open(cwd, path, O_RDONLY, 0, cred, &f);

    if (r)
        return r;
    if (!f->inode || !S_ISREG(f->inode->mode) || !(f->inode->mode & 0111)) {
        file_put(f);
        return -EACCES;
    }
    r = vfs_access(cwd, path, 1, cred);
    if (r) {
        file_put(f);
        return r;
    }
    *out = f;
    return 0;
}

static int read_exact(struct file *f, void *buf, size_t len, uint64_t offset)
{
    ssize_t n = file_read_kernel(f, buf, len, offset);

    if (n < 0)
        return (int)n;
    return (size_t)n == len ? 0 : -ENOEXEC;
}

static int parse_executable(struct executable *x)
{
    uint8_t header[ELF_HEADER_SIZE];
    size_t size;
    void *phdrs;
    int r = read_exact(x->file, header, sizeof(header), 0);

    if (!r)
        r = elf_parse_header(header, sizeof(header), &x->image);
    if (r)
        return r;
    size = (size_t)x->image.phdr_count * ELF_PHDR_SIZE;
    phdrs = kmalloc(size);
    if (!phdrs)
        return -ENOMEM;
    r = read_exact(x->file, phdrs, size, x->image.phdr_offset);
    if (!r)
        r = elf_parse_segments(phdrs, size, x->file->inode->size, &x->image);
    kfree(phdrs);
    return r;
}

/* ---- segments ---- */

/* Zero what lies between the file's last byte and the end of its page, and map memory for the rest. */
static int map_bss(struct aspace *as, const struct elf_segment *s, uint64_t bias)
{
    static const char zeroes[512];
    uint64_t from = bias + s->vaddr + s->file_size, end = bias + s->vaddr + s->mem_size;
    uint64_t page_end = ALIGN_UP(from, PAGE_SIZE);
    int64_t r = 0;

    if (s->file_size && (s->prot & ELF_PROT_WRITE)) {
        for (uint64_t at = from; !r && at < page_end; at += sizeof(zeroes))
            r = aspace_write(as, at, zeroes, MIN(sizeof(zeroes), page_end - at));
    }
    if (!s->file_size)
        page_end = ALIGN_DOWN(from, PAGE_SIZE);
    end = ALIGN_UP(end, PAGE_SIZE);
    if (r >= 0 && end > page_end)
        r = aspace_mmap(as, page_end, end - page_end, s->prot, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, NULL, 0);
    return r < 0 ? (int)r : 0;
}

static int map_segment(struct aspace *as, const struct executable *x, const struct elf_segment *s)
{
    uint64_t start = ALIGN_DOWN(x->bias + s->vaddr, PAGE_SIZE);
    uint64_t skip = (x->bias + s->vaddr) - start;
    int64_t r = 0;

    if (s->file_size)
        r = aspace_mmap(as, start, s->file_size + skip, s->prot, MAP_PRIVATE | MAP_FIXED, x->file, s->offset - skip);
    if (r >= 0 && s->mem_size > s->file_size)
        r = map_bss(as, s, x->bias);
    return r < 0 ? (int)r : 0;
}

static int map_segments(struct aspace *as, const struct executable *x)
{
    int r = 0;

    for (unsigned i = 0; !r && i < x->image.segment_count; i++)
        r = map_segment(as, x, &x->image.segments[i]);
    return r;
}

/* Interpreters go where mappings go. */
static int choose_bias_below(struct aspace *as, struct executable *x)
{
    uint64_t span = x->image.high - x->image.low, align = x->image.align;
    int64_t base = aspace_mmap(as, 0, span + align, 0, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, NULL, 0);

    if (base < 0)
        return (int)base;
    x->bias = ALIGN_UP((uint64_t)base, align) - ALIGN_DOWN(x->image.low, align);
    return aspace_munmap(as, (uint64_t)base, span + align);
}

static void choose_bias(struct executable *x)
{
    if (x->image.relocatable)
        x->bias = ALIGN_DOWN(PIE_BASE + random_pages(MMAP_RANDOM), x->image.align) -
                  ALIGN_DOWN(x->image.low, x->image.align);
}

/* ---- stack ---- */

enum { AT_NULL, AT_PHDR = 3, AT_PHENT, AT_PHNUM, AT_PAGESZ, AT_BASE, AT_FLAGS, AT_ENTRY, AT_UID = 11, AT_EUID,
       AT_GID, AT_EGID, AT_PLATFORM, AT_HWCAP, AT_CLKTCK, AT_SECURE = 23, AT_RANDOM = 25, AT_HWCAP2 = 26,
       AT_EXECFN = 31, AT_SYSINFO_EHDR = 33, AT_MINSIGSTKSZ = 51 };
#define AUX_MAX 24u

static uint32_t cpuid_features(void)
{
    uint32_t eax = 1, ebx, ecx = 0, edx;

    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return edx;
}

struct stack_layout {
    uint64_t exec_name, platform, random; /* addresses of the strings */
    uint64_t vdso;
};

static unsigned fill_aux(uint64_t aux[2 * AUX_MAX], const struct executable *main,
                         const struct executable *interp, const struct cred *cred,
                         const struct stack_layout *at)
{
    const uint64_t entries[][2] = {
        {AT_SYSINFO_EHDR, at->vdso},
        {AT_MINSIGSTKSZ, MAX(2048UL, 1024 + fpu_state_size())},
        {AT_HWCAP, cpuid_features()},
        {AT_PAGESZ, PAGE_SIZE},
        {AT_CLKTCK, 100},
        {AT_PHDR, main->image.phdr_vaddr ? main->bias + main->image.phdr_vaddr : 0},
        {AT_PHENT, ELF_PHDR_SIZE},
        {AT_PHNUM, main->image.phdr_count},
        {AT_BASE, interp->file ? interp->bias : 0},
        {AT_FLAGS, 0},
        {AT_ENTRY, main->bias + main->image.entry},
        {AT_UID, cred->uid},
        {AT_EUID, cred->uid},
        {AT_GID, cred->gid},
        {AT_EGID, cred->gid},
        {AT_SECURE, 0},
        {AT_RANDOM, at->random},
        {AT_HWCAP2, 0},
        {AT_EXECFN, at->exec_name},
        {AT_PLATFORM, at->platform},
        {AT_NULL, 0},
    };
    unsigned n = 0;

    for (unsigned i = 0; i < ARRAY_SIZE(entries); i++) {
        if (entries[i][0] == AT_SYSINFO_EHDR && !entries[i][1])
            continue;
        aux[n++] = entries[i][0];
        aux[n++] = entries[i][1];
    }
    return n;
}

/* The words below the strings: argc, argv[], NULL, envp[], NULL, auxiliary vector. */
static int write_vectors(struct program_start *out, uint64_t strings_at, const struct exec_strings *s,
                         const uint64_t *aux, unsigned aux_words)
{
    size_t count = 1 + s->argc + 1 + s->envc + 1 + aux_words, n = 0;
    uint64_t *words = kmalloc(count * sizeof(*words));
    const char *p = s->data;
    int r;

    if (!words)
        return -ENOMEM;
    words[n++] = s->argc;
    for (unsigned i = 0; i < s->argc + s->envc; i++) {
        if (i == s->argc)
            words[n++] = 0;
        words[n++] = strings_at + (uint64_t)(p - s->data);
        p += strlen(p) + 1;
        if (i + 1 == s->argc)
            out->arg_end = strings_at + (uint64_t)(p - s->data);
    }
    if (!s->envc)
        words[n++] = 0;
    words[n++] = 0;
    memcpy(&words[n], aux, aux_words * sizeof(*aux));
    n += aux_words;
    assert(n == count);
    out->rsp = ALIGN_DOWN(out->rsp - count * sizeof(*words), 16);
    r = aspace_write(out->as, out->rsp, words, count * sizeof(*words));
    kfree(words);
    return r;
}

static int write_stack(struct program_start *out, uint64_t top, const char *exec_name,
                       const struct exec_strings *s, const struct executable *main,
                       const struct executable *interp, const struct cred *cred, uint64_t vdso)
{
    static const char platform[] = "x86_64";
    uint64_t aux[2 * AUX_MAX];
    uint8_t random[16];
    struct stack_layout at = {.vdso = vdso};
    uint64_t strings_at;
    int r;

    random_bytes(random, sizeof(random));
    at.exec_name = top - 8 - (strlen(exec_name) + 1);
    strings_at = at.exec_name - s->len;
    at.platform = strings_at - sizeof(platform);
    at.random = ALIGN_DOWN(at.platform - sizeof(random), 16);
    /* Spread the first frames over cache lines a little, as Linux does. */
    out->rsp = at.random - (random_pages(0x1f0) >> PAGE_SHIFT);
    out->arg_start = out->arg_end = strings_at;

    r = aspace_write(out->as, at.exec_name, exec_name, strlen(exec_name) + 1);
    if (!r)
        r = aspace_write(out->as, strings_at, s->data, s->len);
    if (!r)
        r = aspace_write(out->as, at.platform, platform, sizeof(platform));
    if (!r)
        r = aspace_write(out->as, at.random, random, sizeof(random));
    if (!r)
        r = write_vectors(out, strings_at, s, aux, fill_aux(aux, main, interp, cred, &at));
    return r;
}

/* ---- putting it together ---- */

static int build(const char *exec_name, struct exec_strings *s, const struct cred *cred,
                 uint64_t stack_limit, struct executable *main, struct executable *interp,
                 struct program_start *out)
{
    uint64_t stack_top = STACK_TOP_MAX - random_pages(STACK_RANDOM);
    uint64_t room = MIN(MAX(stack_limit, STACK_ROOM_MIN), STACK_ROOM_MAX) + (STACK_RANDOM << PAGE_SHIFT);
    uint64_t mmap_top = STACK_TOP_MAX - room - random_pages(MMAP_RANDOM);
    unsigned stack_prot = PROT_READ | PROT_WRITE | (main->image.exec_stack ? PROT_EXEC : 0);
    int r = aspace_set_layout(out->as, ALIGN_DOWN(mmap_top, PAGE_SIZE), stack_top, stack_limit, stack_prot);

    if (r)
        return r;
    choose_bias(main);
    r = map_segments(out->as, main);
    if (r)
        return r;
    aspace_set_brk(out->as, ALIGN_UP(main->bias + main->image.high, PAGE_SIZE) + random_pages(BRK_RANDOM));
    out->rip = main->bias + main->image.entry;
    if (interp->file) {
        if (interp->image.relocatable && (r = choose_bias_below(out->as, interp)))
            return r;
        r = map_segments(out->as, interp);
        if (r)
            return r;
        out->rip = interp->bias + interp->image.entry;
    }
    return write_stack(out, stack_top, exec_name, s, main, interp, cred, vdso_map(out->as));
}

static int open_interpreter(struct dentry *cwd, const struct executable *main, const struct cred *cred,
                            struct executable *interp)
{
    char *path;
    int r;

    if (!main->image.interp_size)
        return 0;
    path = kmalloc(main->image.interp_size);
    if (!path)
        return -ENOMEM;
    r = read_exact(main->file, path, main->image.interp_size, main->image.interp_offset);
    if (!r && path[main->image.interp_size - 1])
        r = -ENOEXEC;
    if (!r)
        r = open_executable(cwd, path, cred, &interp->file);
    kfree(path);
    if (!r) {
        r = parse_executable(interp);
        if (!r && interp->image.interp_size)
            r = -ENOEXEC;
    }
    return r;
}

/* "#!interpreter argument" at the head of file: strings get it in front and *path becomes the interpreter.
 * 0 = not a script, 1 = done. */
static int follow_shebang(struct file *f, char **path, struct exec_strings *s)
{
    char line[SHEBANG_BYTES + 1], *start, *end, *argument;
    char *text, *next;
    ssize_t n = file_read_kernel(f, line, SHEBANG_BYTES, 0);
    unsigned count = 2;
    size_t len;
    int r;

    if (n < 2 || line[0] != '#' || line[1] != '!')
        return 0;
    line[n] = '\0';
    end = strchr(line, '\n');
    if (!end)
        return -ENOEXEC;
    while (end > line + 2 && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *end = '\0';
    for (start = line + 2; *start == ' ' || *start == '\t'; start++)
        ;
    if (!*start)
        return -ENOEXEC;
    for (argument = start; *argument && *argument != ' ' && *argument != '\t'; argument++)
        ;
    if (*argument) {
        *argument++ = '\0';
        while (*argument == ' ' || *argument == '\t')
            argument++;
        count = 3;
    }
    /* interpreter NUL [argument NUL] script NUL */
    len = strlen(start) + 1 + (count == 3 ? strlen(argument) + 1 : 0) + strlen(*path) + 1;
    text = kmalloc(len);
    next = kmalloc(strlen(start) + 1);
    r = text && next ? 0 : -ENOMEM;
    if (!r) {
        char *p = text;
        p += str_copy(p, start, SHEBANG_BYTES) + 1;
        if (count == 3)
            p += str_copy(p, argument, SHEBANG_BYTES) + 1;
        str_copy(p, *path, PATH_MAX_WEIR);
        str_copy(next, start, SHEBANG_BYTES);
        r = strings_replace_first(s, text, len, count);
    }
    kfree(text);
    if (r) {
        kfree(next);
        return r;
    }
    kfree(*path);
    *path = next;
    return 1;
}

static int open_main(struct dentry *cwd, char **path, struct exec_strings *s, const struct cred *cred,
                     struct file **out)
{
    for (unsigned depth = 0; depth < SHEBANG_DEPTH; depth++) {
        int r = open_executable(cwd, *path, cred, out);
        if (r)
            return r;
        r = follow_shebang(*out, path, s);
        if (!r)
            return 0;
        file_put(*out);
        *out = NULL;
        if (r < 0)
            return r;
    }
    return -ELOOP;
}

int exec_load(struct dentry *cwd, const char *path, struct exec_strings *s, const struct cred *cred,
              uint64_t stack_limit, struct program_start *out)
{
    /* Too large for the stack together. */
    struct executable *x = kcalloc(2, sizeof(*x));
    char *name = kmalloc(strlen(path) + 1);
    int r = x && name ? 0 : -ENOMEM;

    memset(out, 0, sizeof(*out));
    if (!r) {
        str_copy(name, path, strlen(path) + 1);
        r = open_main(cwd, &name, s, cred, &x[0].file);
    }
    if (!r)
        r = parse_executable(&x[0]);
    if (!r)
        r = open_interpreter(cwd, &x[0], cred, &x[1]);
    if (!r && s->len > stack_limit / 4)
        r = -E2BIG;
    if (!r && !(out->as = aspace_create()))
        r = -ENOMEM;
    if (!r)
        r = build(path, s, cred, stack_limit, &x[0], &x[1], out);
    if (!r) {
        out->exe = x[0].file->dentry;
        if (out->exe)
            dentry_get(out->exe);
    } else if (out->as) {
        aspace_put(out->as);
        out->as = NULL;
    }
    if (x && x[0].file)
        file_put(x[0].file);
    if (x && x[1].file)
        file_put(x[1].file);
    kfree(x);
    kfree(name);
    return r;
}
