# lwIP: fetched from Debian's source package, built with our port as one position-independent module that the
# image carries whole and instantiates at boot (core/net/module_loader.c).
LWIP_SRC := $(B)/lwip/src
LWIP_STAMP := $(B)/lwip/.fetched
LWIP_DIR := $(LWIP_SRC)/src
LWIP_FILES := core/def core/inet_chksum core/init core/ip core/mem core/memp core/netif core/pbuf core/stats core/tcp \
	core/tcp_in core/tcp_out core/timeouts core/udp core/ipv4/dhcp core/ipv4/etharp core/ipv4/icmp core/ipv4/ip4 \
	core/ipv4/ip4_addr core/ipv4/ip4_frag netif/ethernet
LWIP_GLUE := flow module netif_glue tcp_glue udp_glue
LWIP_OBJ := $(LWIP_FILES:%=$(B)/lwip/obj/%.o)
LWIP_GLUE_OBJ := $(LWIP_GLUE:%=$(B)/lwip/obj/glue/%.o)

LWIP_INCLUDE := -Icore/net/lwip_module/include -I$(LWIP_DIR)/include -Iinclude -I.
LWIP_CFLAGS := -std=gnu11 -ffreestanding -O2 -g -fPIC -fvisibility=hidden -fno-plt -mno-red-zone -mgeneral-regs-only \
	-fno-strict-aliasing -fno-common -fno-omit-frame-pointer -fstack-protector-strong -mstack-protector-guard=global \
	-fno-asynchronous-unwind-tables -fcf-protection=none -ffunction-sections -fdata-sections $(LWIP_INCLUDE)

$(LWIP_STAMP): scripts/fetch-lwip
	scripts/fetch-lwip $(LWIP_SRC)
	@touch $@
# lwIP's own code is compiled with its warnings off where it is not ours to change; our port with all of them.
$(LWIP_OBJ): $(B)/lwip/obj/%.o: $(LWIP_STAMP) $(wildcard core/net/lwip_module/include/*.h core/net/lwip_module/include/arch/*.h)
	@mkdir -p $(@D)
	$(CC) $(LWIP_CFLAGS) -w -c $(LWIP_DIR)/$*.c -o $@
$(LWIP_GLUE_OBJ): $(B)/lwip/obj/glue/%.o: core/net/lwip_module/%.c $(LWIP_STAMP)
	@mkdir -p $(@D)
	$(CC) $(LWIP_CFLAGS) $(WARN) -Icore/net/lwip_module -MMD -MP -c $< -o $@
-include $(LWIP_GLUE_OBJ:.o=.d)

$(B)/lwip/lwip.so: $(LWIP_OBJ) $(LWIP_GLUE_OBJ) core/net/lwip_module/exports.map
	$(CC) -nostdlib -shared -Wl,-Bsymbolic -Wl,-z,now -Wl,-z,max-page-size=4096 -Wl,-z,separate-code -Wl,--build-id=none \
	  -Wl,--hash-style=sysv -Wl,--version-script=core/net/lwip_module/exports.map -Wl,-z,noexecstack -Wl,-z,norelro -Wl,--gc-sections \
	  -o $@ $(LWIP_OBJ) $(LWIP_GLUE_OBJ)
# The image carries what the loader needs; debug information stays in lwip.so, for gdb.
$(B)/lwip/lwip.stripped.so: $(B)/lwip/lwip.so
	strip -s -o $@ $<
$(B)/lwip/symbols.S: $(B)/lwip/lwip.so scripts/ksyms
	scripts/ksyms $< lwip_ > $@
$(B)/kernel/core/net/module_blob.S.o: $(B)/lwip/lwip.stripped.so $(B)/lwip/symbols.S
$(B)/kernel/core/net/module_blob.S.o: KCFLAGS += -DLWIP_MODULE_FILE='"$(B)/lwip/lwip.stripped.so"' \
	-DLWIP_SYMBOLS_FILE='"$(B)/lwip/symbols.S"'
