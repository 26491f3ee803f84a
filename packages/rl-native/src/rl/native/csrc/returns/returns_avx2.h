/* Vectors of 32 bytes; see returns_kernel.h for what each name means, and returns_chain.h for load and store. */
#include <immintrin.h>

typedef __m256 vector_f32_avx2;
typedef __m256d vector_f64_avx2;

RL_AVX2 RL_INLINE __m256 get_f32_avx2(const float *from) { return _mm256_loadu_ps(from); }
RL_AVX2 RL_INLINE __m256d get_f64_avx2(const double *from) { return _mm256_loadu_pd(from); }
RL_AVX2 RL_INLINE void put_f32_avx2(float *to, __m256 x) { _mm256_storeu_ps(to, x); }
RL_AVX2 RL_INLINE void put_f64_avx2(double *to, __m256d x) { _mm256_storeu_pd(to, x); }
RL_AVX2 RL_INLINE __m256 all_f32_avx2(float x) { return _mm256_set1_ps(x); }
RL_AVX2 RL_INLINE __m256d all_f64_avx2(double x) { return _mm256_set1_pd(x); }

/* x, and zero where the byte is not zero. */
RL_AVX2 RL_INLINE __m256 unless_f32_avx2(const uint8_t *flags, __m256 x) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)flags));
  return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(wide, _mm256_setzero_si256())), x);
}

RL_AVX2 RL_INLINE __m256d unless_f64_avx2(const uint8_t *flags, __m256d x) {
  int four;
  memcpy(&four, flags, sizeof four);
  const __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
  return _mm256_and_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(wide, _mm256_setzero_si256())), x);
}

/* The second operand of a minimum is the result if either is not a number. */
RL_AVX2 RL_INLINE __m256 at_most_f32_avx2(__m256 x, float bar) { return _mm256_min_ps(_mm256_set1_ps(bar), x); }
RL_AVX2 RL_INLINE __m256d at_most_f64_avx2(__m256d x, double bar) { return _mm256_min_pd(_mm256_set1_pd(bar), x); }

/* The lanes from the s-th on, and behind them the first ones of what comes then; s is 1, 2 or 4, and a constant. */
RL_AVX2 RL_INLINE __m256 later_f32_avx2(__m256 x, __m256 then, int s) {
  const __m256i a = _mm256_castps_si256(x), middle = _mm256_permute2x128_si256(a, _mm256_castps_si256(then), 0x21);
  return _mm256_castsi256_ps(s == 1   ? _mm256_alignr_epi8(middle, a, 4)
                             : s == 2 ? _mm256_alignr_epi8(middle, a, 8)
                                      : middle);
}

RL_AVX2 RL_INLINE __m256d later_f64_avx2(__m256d x, __m256d then, int s) {
  const __m256i a = _mm256_castpd_si256(x), middle = _mm256_permute2x128_si256(a, _mm256_castpd_si256(then), 0x21);
  return _mm256_castsi256_pd(s == 1 ? _mm256_alignr_epi8(middle, a, 8) : middle);
}

/* a b + c, rounded once. */
RL_AVX2 RL_INLINE __m256 fused_f32_avx2(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
RL_AVX2 RL_INLINE __m256d fused_f64_avx2(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }

/* Four steps of eight lanes: lanes 0-3 in the lower halves, 4-7 in the upper ones. */
RL_AVX2 RL_INLINE void turn_f32_avx2(__m256 *v) {
  const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
  const __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
  v[0] = _mm256_shuffle_ps(a, c, 0x44), v[1] = _mm256_shuffle_ps(a, c, 0xee);
  v[2] = _mm256_shuffle_ps(b, d, 0x44), v[3] = _mm256_shuffle_ps(b, d, 0xee);
}

RL_AVX2 RL_INLINE void load_f32_avx2(const float *from, __m256 *v) {
  for (int i = 0; i < 4; i++) {
    const __m256 lower = _mm256_castps128_ps256(_mm_loadu_ps(from + i * PITCH_OF(float)));
    v[i] = _mm256_insertf128_ps(lower, _mm_loadu_ps(from + (i + 4) * PITCH_OF(float)), 1);
  }
  turn_f32_avx2(v);
}

RL_AVX2 RL_INLINE void store_f32_avx2(float *to, __m256 *v) {
  turn_f32_avx2(v);
  for (int i = 0; i < 4; i++) {
    _mm_storeu_ps(to + i * PITCH_OF(float), _mm256_castps256_ps128(v[i]));
    _mm_storeu_ps(to + (i + 4) * PITCH_OF(float), _mm256_extractf128_ps(v[i], 1));
  }
}

/* Two steps of four lanes: lanes 0 and 1 in the lower halves, 2 and 3 in the upper ones. */
RL_AVX2 RL_INLINE void turn_f64_avx2(__m256d *v) {
  const __m256d a = _mm256_unpacklo_pd(v[0], v[1]);
  v[1] = _mm256_unpackhi_pd(v[0], v[1]);
  v[0] = a;
}

RL_AVX2 RL_INLINE void load_f64_avx2(const double *from, __m256d *v) {
  for (int i = 0; i < 2; i++) {
    const __m256d lower = _mm256_castpd128_pd256(_mm_loadu_pd(from + i * PITCH_OF(double)));
    v[i] = _mm256_insertf128_pd(lower, _mm_loadu_pd(from + (i + 2) * PITCH_OF(double)), 1);
  }
  turn_f64_avx2(v);
}

RL_AVX2 RL_INLINE void store_f64_avx2(double *to, __m256d *v) {
  turn_f64_avx2(v);
  for (int i = 0; i < 2; i++) {
    _mm_storeu_pd(to + i * PITCH_OF(double), _mm256_castpd256_pd128(v[i]));
    _mm_storeu_pd(to + (i + 2) * PITCH_OF(double), _mm256_extractf128_pd(v[i], 1));
  }
}
