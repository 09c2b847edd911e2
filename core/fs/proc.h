/* Between procfs.c and the files that fill it. */
#ifndef FS_PROC_H
#define FS_PROC_H
#include "fs.h"
void proc_register_system(void);
#endif
