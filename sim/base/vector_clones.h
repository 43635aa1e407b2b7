// ORRERY_VECTOR_CLONES before a function compiles it twice: for all processors, and for those with wider vectors. Loops
// without dependencies between their iterations gain by it (AVX-512 gains nothing over AVX2). Sanitizers cannot run the
// resolver functions that this needs.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
#define ORRERY_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ORRERY_VECTOR_CLONES
#endif
