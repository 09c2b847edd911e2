/* CRC-32C (Castagnoli, reflected), as ext4's metadata checksums use it: no final inversion. Any context. */
#ifndef WEIR_CRC32C_H
#define WEIR_CRC32C_H
#include <weir/compiler.h>

uint32_t crc32c(uint32_t seed, const void *data, size_t len);
#endif
