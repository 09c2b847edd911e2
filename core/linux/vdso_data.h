/* The page that the kernel writes and the vDSO's code in every program reads. */
#ifndef WEIR_LINUX_VDSO_DATA_H
#define WEIR_LINUX_VDSO_DATA_H
#include <stdint.h>

struct vdso_data {
    uint32_t sequence;  /* odd while the kernel writes; a reader starts again if it is odd or has changed */
    uint32_t usable;    /* 0 = programs may not use the TSC: make the system call */
    uint64_t tsc_base, base_ns, realtime_offset_ns;
    uint32_t mult, shift;
};
#endif
