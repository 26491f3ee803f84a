/* Vectors of 64 bytes; see returns_kernel.h for what each name means, and returns_chain.h for load and store. */
#include <immintrin.h>

typedef __m512 vector_f32_avx512;
typedef __m512d vector_f64_avx512;

RL_AVX512 RL_INLINE __m512 get_f32_avx512(const float *from) { return _mm512_loadu_ps(from); }
RL_AVX512 RL_INLINE __m512d get_f64_avx512(const double *from) { return _mm512_loadu_pd(from); }
RL_AVX512 RL_INLINE void put_f32_avx512(float *to, __m512 x) { _mm512_storeu_ps(to, x); }
RL_AVX512 RL_INLINE void put_f64_avx512(double *to, __m512d x) { _mm512_storeu_pd(to, x); }
RL_AVX512 RL_INLINE __m512 all_f32_avx512(float x) { return _mm512_set1_ps(x); }
RL_AVX512 RL_INLINE __m512d all_f64_avx512(double x) { return _mm512_set1_pd(x); }

/* x, and zero where the byte is not zero. */
RL_AVX512 RL_INLINE __m512 unless_f32_avx512(const uint8_t *flags, __m512 x) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)flags);
  return _mm512_maskz_mov_ps(_mm_testn_epi8_mask(bytes, bytes), x);
}

RL_AVX512 RL_INLINE __m512d unless_f64_avx512(const uint8_t *flags, __m512d x) {
  const __m128i bytes = _mm_loadl_epi64((const __m128i *)flags);
  return _mm512_maskz_mov_pd((__mmask8)_mm_testn_epi8_mask(bytes, bytes), x);
}

/* The second operand of a minimum is the result if either is not a number. */
RL_AVX512 RL_INLINE __m512 at_most_f32_avx512(__m512 x, float bar) { return _mm512_min_ps(_mm512_set1_ps(bar), x); }
RL_AVX512 RL_INLINE __m512d at_most_f64_avx512(__m512d x, double bar) { return _mm512_min_pd(_mm512_set1_pd(bar), x); }

/* The lanes from the s-th on, and behind them the first ones of what comes then; s is 1, 2, 4 or 8, and a constant. */
RL_AVX512 RL_INLINE __m512 later_f32_avx512(__m512 x, __m512 then, int s) {
  const __m512i a = _mm512_castps_si512(x), b = _mm512_castps_si512(then);
  return _mm512_castsi512_ps(s == 1   ? _mm512_alignr_epi32(b, a, 1)
                             : s == 2 ? _mm512_alignr_epi32(b, a, 2)
                             : s == 4 ? _mm512_alignr_epi32(b, a, 4)
                                      : _mm512_alignr_epi32(b, a, 8));
}

RL_AVX512 RL_INLINE __m512d later_f64_avx512(__m512d x, __m512d then, int s) {
  const __m512i a = _mm512_castpd_si512(x), b = _mm512_castpd_si512(then);
  return _mm512_castsi512_pd(s == 1   ? _mm512_alignr_epi64(b, a, 1)
                             : s == 2 ? _mm512_alignr_epi64(b, a, 2)
                                      : _mm512_alignr_epi64(b, a, 4));
}

/* a b + c, rounded once. */
RL_AVX512 RL_INLINE __m512 fused_f32_avx512(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
RL_AVX512 RL_INLINE __m512d fused_f64_avx512(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }

/* Four steps of sixteen lanes, four lanes in each quarter. */
RL_AVX512 RL_INLINE void turn_f32_avx512(__m512 *v) {
  const __m512 a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpackhi_ps(v[0], v[1]);
  const __m512 c = _mm512_unpacklo_ps(v[2], v[3]), d = _mm512_unpackhi_ps(v[2], v[3]);
  v[0] = _mm512_shuffle_ps(a, c, 0x44), v[1] = _mm512_shuffle_ps(a, c, 0xee);
  v[2] = _mm512_shuffle_ps(b, d, 0x44), v[3] = _mm512_shuffle_ps(b, d, 0xee);
}

RL_AVX512 RL_INLINE void load_f32_avx512(const float *from, __m512 *v) {
  for (int i = 0; i < 4; i++) {
    v[i] = _mm512_castps128_ps512(_mm_loadu_ps(from + i * PITCH_OF(float)));
    v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(from + (i + 4) * PITCH_OF(float)), 1);
    v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(from + (i + 8) * PITCH_OF(float)), 2);
    v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(from + (i + 12) * PITCH_OF(float)), 3);
  }
  turn_f32_avx512(v);
}

RL_AVX512 RL_INLINE void store_f32_avx512(float *to, __m512 *v) {
  turn_f32_avx512(v);
  for (int i = 0; i < 4; i++) {
    _mm_storeu_ps(to + i * PITCH_OF(float), _mm512_castps512_ps128(v[i]));
    _mm_storeu_ps(to + (i + 4) * PITCH_OF(float), _mm512_extractf32x4_ps(v[i], 1));
    _mm_storeu_ps(to + (i + 8) * PITCH_OF(float), _mm512_extractf32x4_ps(v[i], 2));
    _mm_storeu_ps(to + (i + 12) * PITCH_OF(float), _mm512_extractf32x4_ps(v[i], 3));
  }
}

/* Two steps of eight lanes, two lanes in each quarter. */
RL_AVX512 RL_INLINE void turn_f64_avx512(__m512d *v) {
  const __m512d a = _mm512_unpacklo_pd(v[0], v[1]);
  v[1] = _mm512_unpackhi_pd(v[0], v[1]);
  v[0] = a;
}

RL_AVX512 RL_INLINE void load_f64_avx512(const double *from, __m512d *v) {
  for (int i = 0; i < 2; i++) {
    v[i] = _mm512_castpd128_pd512(_mm_loadu_pd(from + i * PITCH_OF(double)));
    v[i] = _mm512_insertf64x2(v[i], _mm_loadu_pd(from + (i + 2) * PITCH_OF(double)), 1);
    v[i] = _mm512_insertf64x2(v[i], _mm_loadu_pd(from + (i + 4) * PITCH_OF(double)), 2);
    v[i] = _mm512_insertf64x2(v[i], _mm_loadu_pd(from + (i + 6) * PITCH_OF(double)), 3);
  }
  turn_f64_avx512(v);
}

RL_AVX512 RL_INLINE void store_f64_avx512(double *to, __m512d *v) {
  turn_f64_avx512(v);
  for (int i = 0; i < 2; i++) {
    _mm_storeu_pd(to + i * PITCH_OF(double), _mm512_castpd512_pd128(v[i]));
    _mm_storeu_pd(to + (i + 2) * PITCH_OF(double), _mm512_extractf64x2_pd(v[i], 1));
    _mm_storeu_pd(to + (i + 4) * PITCH_OF(double), _mm512_extractf64x2_pd(v[i], 2));
    _mm_storeu_pd(to + (i + 6) * PITCH_OF(double), _mm512_extractf64x2_pd(v[i], 3));
  }
}
