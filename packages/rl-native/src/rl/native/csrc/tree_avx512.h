/* The same as tree_scalar.h, eight doubles at a time. */
#include <immintrin.h>

RL_AVX512 RL_INLINE double sum8_avx512(__m512d a) {
    const __m256d b = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    const __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

/* x moved up by so many places, zeros in front. */
#define UP_AVX512(x, places) \
    _mm512_castsi512_pd(     \
        _mm512_alignr_epi64(_mm512_castpd_si512(x), _mm512_setzero_si512(), 8 - (places)))

RL_AVX512 RL_INLINE __m512d scan8_avx512(__m512d x) {
    x = _mm512_add_pd(x, UP_AVX512(x, 1));
    x = _mm512_add_pd(x, UP_AVX512(x, 2));
    return _mm512_add_pd(x, UP_AVX512(x, 4));
}

RL_AVX512 RL_INLINE int pick8_avx512(const double *sum, double *r) {
    const __m512d p = scan8_avx512(_mm512_loadu_pd(sum));
    const int k = __builtin_popcount(_mm512_cmp_pd_mask(p, _mm512_set1_pd(*r), _CMP_LE_OQ));
    if (__builtin_expect(k > 7 || !(sum[k & 7] > 0), 0)) return nearest8(sum, k, r);
    const __m512i lane = _mm512_castsi128_si512(_mm_cvtsi32_si128(k));
    *r -= _mm512_cvtsd_f64(_mm512_permutexvar_pd(lane, UP_AVX512(p, 1)));
    return k;
}

RL_AVX512 RL_INLINE int pick16_avx512(__m512d a, __m512d b, double r) {
    const __m512d bound = _mm512_set1_pd(r);
    a = scan8_avx512(a);
    b = _mm512_add_pd(scan8_avx512(b), _mm512_permutexvar_pd(_mm512_set1_epi64(7), a));
    return __builtin_popcount((unsigned)_mm512_cmp_pd_mask(a, bound, _CMP_LE_OQ) |
                              (unsigned)_mm512_cmp_pd_mask(b, bound, _CMP_LE_OQ) << 8);
}

RL_AVX512 RL_INLINE int pick16_avx512_f32(const float *x, double r) {
    const int k =
        pick16_avx512(_mm512_cvtps_pd(_mm256_loadu_ps(x)), _mm512_cvtps_pd(_mm256_loadu_ps(x + 8)), r);
    return __builtin_expect(k > 15 || !(x[k & 15] > 0), 0) ? nearest16_f32(x, k) : k;
}

RL_AVX512 RL_INLINE int pick16_avx512_f64(const double *x, double r) {
    const int k = pick16_avx512(_mm512_loadu_pd(x), _mm512_loadu_pd(x + 8), r);
    return __builtin_expect(k > 15 || !(x[k & 15] > 0), 0) ? nearest16_f64(x, k) : k;
}

RL_AVX512 RL_INLINE __m512d positive_avx512_f64(__m512d x) {
    return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_GT_OQ), _mm512_set1_pd(INFINITY), x);
}

RL_AVX512 RL_INLINE void extremes_avx512_f64(__m512d low, __m512d high, double *min, double *max) {
    *min = _mm512_reduce_min_pd(low), *max = _mm512_reduce_max_pd(high);
}

RL_AVX512 RL_INLINE void block_avx512_f32(const float *x, double *sum, float *min, float *max) {
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    *sum = sum8_avx512(_mm512_add_pd(_mm512_cvtps_pd(a), _mm512_cvtps_pd(b)));
    extremes_avx2_f32(_mm256_min_ps(positive_avx2_f32(a), positive_avx2_f32(b)), _mm256_max_ps(a, b), min, max);
}

RL_AVX512 RL_INLINE void block_avx512_f64(const double *x, double *sum, double *min, double *max) {
    const __m512d a = _mm512_loadu_pd(x), b = _mm512_loadu_pd(x + 8);
    *sum = sum8_avx512(_mm512_add_pd(a, b));
    extremes_avx512_f64(_mm512_min_pd(positive_avx512_f64(a), positive_avx512_f64(b)), _mm512_max_pd(a, b), min, max);
}

RL_AVX512 RL_INLINE void node_avx512_f32(const rl_node_f32 *c, double *sum, float *min, float *max) {
    *sum = sum8_avx512(_mm512_loadu_pd(c->sum));
    extremes_avx2_f32(positive_avx2_f32(_mm256_loadu_ps(c->min)), _mm256_loadu_ps(c->max), min, max);
}

RL_AVX512 RL_INLINE void node_avx512_f64(const rl_node_f64 *c, double *sum, double *min, double *max) {
    *sum = sum8_avx512(_mm512_loadu_pd(c->sum));
    extremes_avx512_f64(positive_avx512_f64(_mm512_loadu_pd(c->min)), _mm512_loadu_pd(c->max), min, max);
}
