# The vDSO: a shared object for programs, embedded in the kernel by vdso_image.S.
VDSO_SO := $(B)/vdso/vdso.so
VDSO_CFLAGS := -std=gnu11 -O2 -fPIC -ffreestanding -fno-builtin -fno-stack-protector -fcf-protection=none -mgeneral-regs-only \
	-fno-asynchronous-unwind-tables -fvisibility=hidden -I. $(WARN) -Wno-missing-prototypes
$(VDSO_SO): core/linux/vdso/vdso.c core/linux/vdso/vdso.lds core/linux/vdso_data.h
	@mkdir -p $(@D)
	$(CC) $(VDSO_CFLAGS) -shared -nostdlib -Wl,-soname=linux-vdso.so.1 -Wl,-Bsymbolic -Wl,--hash-style=both \
	  -Wl,--build-id=none -Wl,-z,noexecstack -Wl,-s -Wl,-T,core/linux/vdso/vdso.lds $< -o $@
$(B)/kernel/core/linux/vdso_image.S.o: KCFLAGS += -DVDSO_SO='"$(VDSO_SO)"'
$(B)/kernel/core/linux/vdso_image.S.o: $(VDSO_SO)
