// Vectors of 64 bytes where the processor has them; included first, by files that gain from them. See tile.h.

#pragma once

#ifdef __AVX512F__
#define VECTOR_BYTES 64
#endif
