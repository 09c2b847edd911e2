/* See aml_slots.h. Byte codes: ACPI 6.4 section 20. */
#include <weir/string.h>

#include "aml_slots.h"

#define NAME_OP   0x08u
#define BYTE_OP   0x0au
#define WORD_OP   0x0bu
#define DWORD_OP  0x0cu
#define EXT_OP    0x5bu
#define DEVICE_OP 0x82u
#define NAME_BYTES 4u

struct aml {
    const uint8_t *at;
    size_t length;
};

/* Zero, One or a constant of up to 32 bits. */
static bool integer(const struct aml *a, size_t at, uint32_t *value)
{
    if (at >= a->length)
        return false;
    unsigned op = a->at[at], bytes = op == BYTE_OP ? 1 : op == WORD_OP ? 2 : op == DWORD_OP ? 4 : 0;
    *value = op;
    if (op <= 1)
        return true;
    if (!bytes || at + bytes >= a->length)
        return false;
    *value = 0;
    for (unsigned i = 0; i < bytes; i++)
        *value |= (uint32_t)a->at[at + 1 + i] << (8 * i);
    return true;
}

/* Package length: the two top bits of the first byte say how many follow. Returns where the package ends,
 * 0 = not a package; *body is behind the length. */
static size_t package_end(const struct aml *a, size_t at, size_t *body)
{
    if (at >= a->length)
        return 0;
    unsigned follow = a->at[at] >> 6;
    size_t bytes = follow ? a->at[at] & 0xfu : a->at[at] & 0x3fu;
    if (at + follow >= a->length)
        return 0;
    for (unsigned i = 0; i < follow; i++)
        bytes |= (size_t)a->at[at + 1 + i] << (4 + 8 * i);
    *body = at + 1 + follow;
    return at + bytes > *body && at + bytes <= a->length ? at + bytes : 0;
}

static int hex_digit(uint8_t c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Sxx_: the slot and function of a bridge; -1 = another device (the host bridge). */
static int devfn_of_name(const struct aml *a, size_t at)
{
    if (at + NAME_BYTES > a->length || a->at[at] != 'S' || a->at[at + 3] != '_')
        return -1;
    int high = hex_digit(a->at[at + 1]), low = hex_digit(a->at[at + 2]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* The Devices around an offset, outermost first. False: deeper than we can say. */
static bool find_path(const struct aml *a, size_t target, struct aml_slots *out)
{
    out->depth = 0;
    for (size_t i = 0; i + 2 < target; i++) {
        size_t body, end;
        if (a->at[i] != EXT_OP || a->at[i + 1] != DEVICE_OP)
            continue;
        end = package_end(a, i + 2, &body);
        if (end <= target || body >= target)
            continue;
        int devfn = devfn_of_name(a, body);
        if (devfn < 0)
            continue;
        if (out->depth == AML_PATH_MAX)
            return false;
        out->path[out->depth++] = (uint8_t)devfn;
    }
    return true;
}

unsigned aml_slots_find(const uint8_t *bytes, size_t length, struct aml_slots *out, unsigned max)
{
    struct aml a = { bytes, length };
    unsigned count = 0;
    for (size_t i = 0; i + 1 + NAME_BYTES < length && count < max; i++) {
        if (bytes[i] != NAME_OP || memcmp(bytes + i + 1, "BSEL", NAME_BYTES))
            continue;
        struct aml_slots *s = &out[count];
        count += integer(&a, i + 1 + NAME_BYTES, &s->selector) && find_path(&a, i, s);
    }
    return count;
}
