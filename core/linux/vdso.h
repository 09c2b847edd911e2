/* The vDSO's kernel side. */
#ifndef WEIR_LINUX_VDSO_H
#define WEIR_LINUX_VDSO_H
/* After the clock's parameters have changed (settimeofday). Thread context. */
void vdso_update(void);
#endif
