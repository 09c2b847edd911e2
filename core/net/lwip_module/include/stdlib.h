/* lwIP includes <stdlib.h> for what we have told it not to use. */
#ifndef LWIP_MODULE_STDLIB_H
#define LWIP_MODULE_STDLIB_H
#if __STDC_HOSTED__
#include_next <stdlib.h>
#endif
#endif
