/* The DSDT's bytes, whatever they are: no read outside them, and what is found makes sense. */
#include <stdlib.h>
#include <weir/string.h>

#undef assert
#define assert(c) do { if (!(c)) abort(); } while (0)
#include "arch/x86_64/aml.h"
#include "drivers/pci/aml_slots.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aml_slots slots[4];
    struct aml_facts facts;
    aml_scan(data, size, &facts); /* libFuzzer's copy is exact */
    assert(facts.s5_a >= -1 && facts.s5_a < 8 && facts.s5_b >= -1 && facts.s5_b < 8);
    assert(facts.window_start <= facts.window_end && facts.window_end <= 1ULL << 32);
    unsigned count = aml_slots_find(data, size, slots, 4);
    assert(count <= 4);
    for (unsigned i = 0; i < count; i++)
        assert(slots[i].depth <= AML_PATH_MAX);
    return 0;
}
