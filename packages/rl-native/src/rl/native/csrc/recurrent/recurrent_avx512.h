/* Vectors of 64 bytes; see recurrent_kernel.h for what each name means. Bounds come first as in recurrent_avx2.h. */
#include <immintrin.h>

#define AVX512_VECTORS(TYPE, WHOLE, VECTOR, MASK, ps, name)                                                            \
  typedef VECTOR vector_##name##_avx512;                                                                               \
  typedef WHOLE integers_##name##_avx512 __attribute__((vector_size(64)));                                             \
  typedef MASK part_##name##_avx512;                                                                                   \
  RL_AVX512 RL_INLINE MASK part_of_##name##_avx512(int lanes) { return (MASK)((1u << lanes) - 1); }                    \
  RL_AVX512 RL_INLINE VECTOR get_##name##_avx512(const TYPE *from, MASK part) {                                        \
    return _mm512_maskz_loadu_##ps(part, from);                                                                        \
  }                                                                                                                    \
  RL_AVX512 RL_INLINE void put_##name##_avx512(TYPE *to, VECTOR x, MASK part) {                                        \
    _mm512_mask_storeu_##ps(to, part, x);                                                                              \
  }                                                                                                                    \
  RL_AVX512 RL_INLINE VECTOR all_##name##_avx512(TYPE x) { return _mm512_set1_##ps(x); }                               \
  RL_AVX512 RL_INLINE VECTOR times_##name##_avx512(VECTOR a, VECTOR b, VECTOR c) {                                     \
    return _mm512_fmadd_##ps(a, b, c);                                                                                 \
  }                                                                                                                    \
  RL_AVX512 RL_INLINE VECTOR at_most_##name##_avx512(VECTOR x, VECTOR bar) { return _mm512_min_##ps(bar, x); }         \
  RL_AVX512 RL_INLINE VECTOR at_least_##name##_avx512(VECTOR x, VECTOR bar) { return _mm512_max_##ps(bar, x); }

AVX512_VECTORS(float, uint32_t, __m512, __mmask16, ps, f32)
AVX512_VECTORS(double, uint64_t, __m512d, __mmask8, pd, f64)
