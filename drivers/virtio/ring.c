/* What both ring layouts share. */
#include "ring.h"

const char *ring_fault_text(enum ring_fault fault)
{
    switch (fault) {
    case RING_OK:
        return "no fault";
    case RING_FAULT_INDEX:
        return "used index ran ahead of what is outstanding";
    case RING_FAULT_ID:
        return "completion id out of range";
    case RING_FAULT_NOT_OUTSTANDING:
        return "completion of an id that is not outstanding";
    case RING_FAULT_LENGTH:
        return "more bytes written than were posted";
    }
    return "?";
}
