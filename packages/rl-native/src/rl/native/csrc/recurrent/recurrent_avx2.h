/* Vectors of 32 bytes; see recurrent_kernel.h for what each name means. Masked accesses are slow on some processors, so
 * that whole vectors go without. Bounds are the first operand of a comparison, so that NaN stays NaN. */
#include <immintrin.h>

#define AVX2_VECTORS(TYPE, WHOLE, VECTOR, LANES_OF_IT, MASKS, ps, name)                                                \
  typedef VECTOR vector_##name##_avx2;                                                                                 \
  typedef WHOLE integers_##name##_avx2 __attribute__((vector_size(32)));                                               \
  typedef struct {                                                                                                     \
    int lanes;                                                                                                         \
    __m256i mask;                                                                                                      \
  } part_##name##_avx2;                                                                                                \
  RL_AVX2 RL_INLINE part_##name##_avx2 part_of_##name##_avx2(int lanes) {                                              \
    static const WHOLE ones[] = MASKS;                                                                                 \
    return (part_##name##_avx2){lanes, _mm256_loadu_si256((const __m256i *)(ones + (LANES_OF_IT) - lanes))};           \
  }                                                                                                                    \
  RL_AVX2 RL_INLINE VECTOR get_##name##_avx2(const TYPE *from, part_##name##_avx2 part) {                              \
    return part.lanes == (LANES_OF_IT) ? _mm256_loadu_##ps(from) : _mm256_maskload_##ps(from, part.mask);              \
  }                                                                                                                    \
  RL_AVX2 RL_INLINE void put_##name##_avx2(TYPE *to, VECTOR x, part_##name##_avx2 part) {                              \
    if (part.lanes == (LANES_OF_IT))                                                                                   \
      _mm256_storeu_##ps(to, x);                                                                                       \
    else                                                                                                               \
      _mm256_maskstore_##ps(to, part.mask, x);                                                                         \
  }                                                                                                                    \
  RL_AVX2 RL_INLINE VECTOR all_##name##_avx2(TYPE x) { return _mm256_set1_##ps(x); }                                   \
  RL_AVX2 RL_INLINE VECTOR times_##name##_avx2(VECTOR a, VECTOR b, VECTOR c) { return _mm256_fmadd_##ps(a, b, c); }    \
  RL_AVX2 RL_INLINE VECTOR at_most_##name##_avx2(VECTOR x, VECTOR bar) { return _mm256_min_##ps(bar, x); }             \
  RL_AVX2 RL_INLINE VECTOR at_least_##name##_avx2(VECTOR x, VECTOR bar) { return _mm256_max_##ps(bar, x); }

#define MASKS_OF_8 {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0}
#define MASKS_OF_4 {-1, -1, -1, -1, 0, 0, 0, 0}
AVX2_VECTORS(float, uint32_t, __m256, 8, MASKS_OF_8, ps, f32)
AVX2_VECTORS(double, uint64_t, __m256d, 4, MASKS_OF_4, pd, f64)
