/* See aml.h. */
#include <weir/string.h>

#include "arch/x86_64/aml.h"

#define HEADER_SIZE 36
#define OP_BYTE 0x0a
#define OP_DWORD 0x0c
#define OP_QWORD 0x0e
#define OP_PACKAGE 0x12
#define OP_METHOD 0x14
#define OP_NAME 0x08
#define OP_RETURN 0xa4
#define DWORD_DESCRIPTOR 0x87
#define DWORD_DESCRIPTOR_LENGTH 0x17
#define RESOURCE_MEMORY 0

static uint64_t get(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

/* The integer at *p; false if there is none before end. Advances. */
static bool integer(const uint8_t **p, const uint8_t *end, uint64_t *v)
{
    if (*p >= end)
        return false;
    uint8_t op = *(*p)++;
    if (op <= 1) { /* ZeroOp, OneOp */
        *v = op;
        return true;
    }
    unsigned bytes = op == OP_BYTE ? 1 : op == OP_DWORD ? 4 : op == OP_QWORD ? 8 : 0;
    if (!bytes || (size_t)(end - *p) < bytes)
        return false;
    *v = get(*p, bytes);
    *p += bytes;
    return true;
}

/* Name(_S5_, Package() { SLP_TYPa, SLP_TYPb, ... }): p is behind the name. */
static void read_s5(const uint8_t *p, const uint8_t *end, struct aml_facts *facts)
{
    uint64_t a, b;
    if (end - p < 3 || *p++ != OP_PACKAGE)
        return;
    p += 1 + (*p >> 6); /* package length */
    p++;                /* element count */
    if (p >= end || !integer(&p, end, &a) || !integer(&p, end, &b) || a > 7 || b > 7)
        return;
    facts->s5_a = (int)a;
    facts->s5_b = (int)b;
}

/* Name(_CBA, base) or Method(_CBA) { Return(base) }: p is behind the name, `op` before it. */
static void read_cba(const uint8_t *p, const uint8_t *end, bool method, struct aml_facts *facts)
{
    uint64_t base;
    if (method) {
        if (end - p < 2 || p[1] != OP_RETURN)
            return;
        p += 2; /* the method's flags */
    }
    if (integer(&p, end, &base) && base % (1u << 20) == 0)
        facts->ecam_base = base;
}

static void read_window(const uint8_t *p, const uint8_t *end, struct aml_facts *facts)
{
    if (end - p < 3 + DWORD_DESCRIPTOR_LENGTH || get(p + 1, 2) != DWORD_DESCRIPTOR_LENGTH || p[3] != RESOURCE_MEMORY)
        return;
    uint64_t first = get(p + 10, 4), last = get(p + 14, 4), length = get(p + 22, 4);
    /* A window has its length in the table, moves nothing (no translation) and is not the VGA's below 1 MiB. */
    if (get(p + 18, 4) || last < first || last - first + 1 != length || first < (1u << 20))
        return;
    if (length > facts->window_end - facts->window_start) {
        facts->window_start = first;
        facts->window_end = last + 1;
    }
}

void aml_scan(const uint8_t *aml, size_t length, struct aml_facts *facts)
{
    *facts = (struct aml_facts){ .s5_a = -1, .s5_b = -1 };
    const uint8_t *end = aml + length;
    for (const uint8_t *p = aml + MIN(length, (size_t)HEADER_SIZE); p < end; p++) {
        if (*p == DWORD_DESCRIPTOR)
            read_window(p, end, facts);
        if (*p != '_' || end - p < 4 || p - aml < 3)
            continue;
        if (!memcmp(p, "_S5_", 4))
            read_s5(p + 4, end, facts);
        if (!memcmp(p, "_CBA", 4) && (p[-1] == OP_NAME || p[-2] == OP_METHOD))
            read_cba(p + 4, end, p[-1] != OP_NAME, facts);
    }
}
