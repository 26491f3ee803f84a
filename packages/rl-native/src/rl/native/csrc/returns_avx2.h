/* Vectors of 32 bytes for returns_kernel.h, and the chains of returns_chain.h with them: a vector holds the same step of
 * several lanes. Four steps (two of doubles) of each are loaded, turned in registers, worked on, turned back and stored. */
#include <immintrin.h>
#include <string.h>

typedef __m256 vector_f32;
typedef __m256d vector_f64;

RL_AVX2 RL_INLINE __m256 get_f32(const float *from) { return _mm256_loadu_ps(from); }
RL_AVX2 RL_INLINE __m256d get_f64(const double *from) { return _mm256_loadu_pd(from); }
RL_AVX2 RL_INLINE void put_f32(float *to, __m256 x) { _mm256_storeu_ps(to, x); }
RL_AVX2 RL_INLINE void put_f64(double *to, __m256d x) { _mm256_storeu_pd(to, x); }
RL_AVX2 RL_INLINE __m256 all_f32(float x) { return _mm256_set1_ps(x); }
RL_AVX2 RL_INLINE __m256d all_f64(double x) { return _mm256_set1_pd(x); }

/* x, and zero where the byte is not zero. */
RL_AVX2 RL_INLINE __m256 unless_f32(const uint8_t *flags, __m256 x) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)flags));
  return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(wide, _mm256_setzero_si256())), x);
}

RL_AVX2 RL_INLINE __m256d unless_f64(const uint8_t *flags, __m256d x) {
  int four;
  memcpy(&four, flags, sizeof four);
  const __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
  return _mm256_and_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(wide, _mm256_setzero_si256())), x);
}

/* The second operand of a minimum is the result if either is not a number. */
RL_AVX2 RL_INLINE __m256 at_most_f32(__m256 x, float bar) { return _mm256_min_ps(_mm256_set1_ps(bar), x); }
RL_AVX2 RL_INLINE __m256d at_most_f64(__m256d x, double bar) { return _mm256_min_pd(_mm256_set1_pd(bar), x); }

/* Four steps of eight lanes: lanes 0-3 in the lower halves, 4-7 in the upper ones. */
RL_AVX2 RL_INLINE void turn_f32(__m256 *v) {
  const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
  const __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
  v[0] = _mm256_shuffle_ps(a, c, 0x44), v[1] = _mm256_shuffle_ps(a, c, 0xee);
  v[2] = _mm256_shuffle_ps(b, d, 0x44), v[3] = _mm256_shuffle_ps(b, d, 0xee);
}

RL_AVX2 RL_INLINE void load_f32(const float *from, __m256 *v) {
  for (int i = 0; i < 4; i++) {
    const __m256 lower = _mm256_castps128_ps256(_mm_loadu_ps(from + i * PITCH_OF(float)));
    v[i] = _mm256_insertf128_ps(lower, _mm_loadu_ps(from + (i + 4) * PITCH_OF(float)), 1);
  }
  turn_f32(v);
}

RL_AVX2 RL_INLINE void store_f32(float *to, __m256 *v) {
  turn_f32(v);
  for (int i = 0; i < 4; i++) {
    _mm_storeu_ps(to + i * PITCH_OF(float), _mm256_castps256_ps128(v[i]));
    _mm_storeu_ps(to + (i + 4) * PITCH_OF(float), _mm256_extractf128_ps(v[i], 1));
  }
}

RL_AVX2 static void chain_f32_avx2(const float *d, float *x, int64_t m, float *a) {
  const int64_t whole = m & ~(int64_t)3;
  CHAIN_STEPS(PITCH_OF(float), whole, m)
  __m256 following[ROWS / 8];
  for (int g = 0; g < ROWS / 8; g++)
    following[g] = _mm256_loadu_ps(a + 8 * g);
  for (int64_t t = whole - 4; t >= 0; t -= 4) {
    UNROLL
    for (int g = 0; g < ROWS / 8; g++) {
      __m256 v[4], w[4];
      load_f32(d + g * 8 * PITCH_OF(float) + t, v);
      load_f32(x + g * 8 * PITCH_OF(float) + t, w);
      for (int i = 3; i >= 0; i--)
        v[i] = following[g] = _mm256_add_ps(v[i], _mm256_mul_ps(w[i], following[g]));
      store_f32(x + g * 8 * PITCH_OF(float) + t, v);
    }
  }
  for (int g = 0; g < ROWS / 8; g++)
    _mm256_storeu_ps(a + 8 * g, following[g]);
}

/* Two steps of four lanes: lanes 0 and 1 in the lower halves, 2 and 3 in the upper ones. */
RL_AVX2 RL_INLINE void turn_f64(__m256d *v) {
  const __m256d a = _mm256_unpacklo_pd(v[0], v[1]);
  v[1] = _mm256_unpackhi_pd(v[0], v[1]);
  v[0] = a;
}

RL_AVX2 RL_INLINE void load_f64(const double *from, __m256d *v) {
  for (int i = 0; i < 2; i++) {
    const __m256d lower = _mm256_castpd128_pd256(_mm_loadu_pd(from + i * PITCH_OF(double)));
    v[i] = _mm256_insertf128_pd(lower, _mm_loadu_pd(from + (i + 2) * PITCH_OF(double)), 1);
  }
  turn_f64(v);
}

RL_AVX2 RL_INLINE void store_f64(double *to, __m256d *v) {
  turn_f64(v);
  for (int i = 0; i < 2; i++) {
    _mm_storeu_pd(to + i * PITCH_OF(double), _mm256_castpd256_pd128(v[i]));
    _mm_storeu_pd(to + (i + 2) * PITCH_OF(double), _mm256_extractf128_pd(v[i], 1));
  }
}

RL_AVX2 static void chain_f64_avx2(const double *d, double *x, int64_t m, double *a) {
  const int64_t whole = m & ~(int64_t)1;
  CHAIN_STEPS(PITCH_OF(double), whole, m)
  __m256d following[ROWS / 4];
  for (int g = 0; g < ROWS / 4; g++)
    following[g] = _mm256_loadu_pd(a + 4 * g);
  for (int64_t t = whole - 2; t >= 0; t -= 2) {
    UNROLL
    for (int g = 0; g < ROWS / 4; g++) {
      __m256d v[2], w[2];
      load_f64(d + g * 4 * PITCH_OF(double) + t, v);
      load_f64(x + g * 4 * PITCH_OF(double) + t, w);
      for (int i = 1; i >= 0; i--)
        v[i] = following[g] = _mm256_add_pd(v[i], _mm256_mul_pd(w[i], following[g]));
      store_f64(x + g * 4 * PITCH_OF(double) + t, v);
    }
  }
  for (int g = 0; g < ROWS / 4; g++)
    _mm256_storeu_pd(a + 4 * g, following[g]);
}
