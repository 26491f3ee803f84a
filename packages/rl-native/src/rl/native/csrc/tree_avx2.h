/* The same as tree_scalar.h, four doubles at a time. */
#include <immintrin.h>

RL_AVX2 RL_INLINE double sum8_avx2(__m256d low, __m256d high) {
    const __m256d b = _mm256_add_pd(low, high);
    const __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

RL_AVX2 RL_INLINE void scan8_avx2(__m256d *low, __m256d *high) {
    __m256d a = *low, b = *high;
    const __m256d a1 = _mm256_shuffle_pd(_mm256_permute2f128_pd(a, a, 0x08), a, 5);
    const __m256d b1 = _mm256_shuffle_pd(_mm256_permute2f128_pd(a, b, 0x21), b, 5);
    a = _mm256_add_pd(a, a1), b = _mm256_add_pd(b, b1);
    const __m256d a2 = _mm256_permute2f128_pd(a, a, 0x08), b2 = _mm256_permute2f128_pd(a, b, 0x21);
    a = _mm256_add_pd(a, a2), b = _mm256_add_pd(b, b2);
    *low = a, *high = _mm256_add_pd(b, a);
}

/* Which of 8 running sums are at most r, as bits. */
RL_AVX2 RL_INLINE unsigned passed_avx2(__m256d low, __m256d high, __m256d r) {
    const int a = _mm256_movemask_pd(_mm256_cmp_pd(low, r, _CMP_LE_OQ));
    const int b = _mm256_movemask_pd(_mm256_cmp_pd(high, r, _CMP_LE_OQ));
    return (unsigned)(a | b << 4);
}

RL_AVX2 RL_INLINE int pick8_avx2(const double *sum, double *r) {
    __m256d a = _mm256_loadu_pd(sum), b = _mm256_loadu_pd(sum + 4);
    double p[9];
    scan8_avx2(&a, &b);
    const int k = behind_last(passed_avx2(a, b, _mm256_set1_pd(*r)));
    if (__builtin_expect(k > 7 || !(sum[k & 7] > 0), 0)) return nearest8(sum, k, r);
    p[0] = 0;
    _mm256_storeu_pd(p + 1, a), _mm256_storeu_pd(p + 5, b);
    *r -= p[k];
    return k;
}

RL_AVX2 RL_INLINE int pick16_avx2(__m256d a, __m256d b, __m256d c, __m256d d, double r) {
    scan8_avx2(&a, &b), scan8_avx2(&c, &d);
    const __m256d half = _mm256_permute4x64_pd(b, 0xff), bound = _mm256_set1_pd(r);
    return behind_last(passed_avx2(a, b, bound) |
                       passed_avx2(_mm256_add_pd(c, half), _mm256_add_pd(d, half), bound) << 8);
}

RL_AVX2 RL_INLINE int pick16_avx2_f32(const float *x, double r) {
    const int k = pick16_avx2(_mm256_cvtps_pd(_mm_loadu_ps(x)), _mm256_cvtps_pd(_mm_loadu_ps(x + 4)),
                              _mm256_cvtps_pd(_mm_loadu_ps(x + 8)), _mm256_cvtps_pd(_mm_loadu_ps(x + 12)), r);
    return __builtin_expect(k > 15 || !(x[k & 15] > 0), 0) ? nearest16_f32(x, k) : k;
}

RL_AVX2 RL_INLINE int pick16_avx2_f64(const double *x, double r) {
    const int k = pick16_avx2(_mm256_loadu_pd(x), _mm256_loadu_pd(x + 4), _mm256_loadu_pd(x + 8),
                              _mm256_loadu_pd(x + 12), r);
    return __builtin_expect(k > 15 || !(x[k & 15] > 0), 0) ? nearest16_f64(x, k) : k;
}

RL_AVX2 RL_INLINE __m256 positive_avx2_f32(__m256 x) {
    return _mm256_blendv_ps(_mm256_set1_ps(INFINITY), x, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}

RL_AVX2 RL_INLINE __m256d positive_avx2_f64(__m256d x) {
    return _mm256_blendv_pd(_mm256_set1_pd(INFINITY), x, _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_GT_OQ));
}

RL_AVX2 RL_INLINE void extremes_avx2_f32(__m256 low, __m256 high, float *min, float *max) {
    __m128 a = _mm_min_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(high), _mm256_extractf128_ps(high, 1));
    a = _mm_min_ps(a, _mm_movehl_ps(a, a)), z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    *min = _mm_cvtss_f32(_mm_min_ss(a, _mm_movehdup_ps(a)));
    *max = _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

RL_AVX2 RL_INLINE void extremes_avx2_f64(__m256d low, __m256d high, double *min, double *max) {
    __m128d a = _mm_min_pd(_mm256_castpd256_pd128(low), _mm256_extractf128_pd(low, 1));
    __m128d z = _mm_max_pd(_mm256_castpd256_pd128(high), _mm256_extractf128_pd(high, 1));
    *min = _mm_cvtsd_f64(_mm_min_sd(a, _mm_unpackhi_pd(a, a)));
    *max = _mm_cvtsd_f64(_mm_max_sd(z, _mm_unpackhi_pd(z, z)));
}

RL_AVX2 RL_INLINE void block_avx2_f32(const float *x, double *sum, float *min, float *max) {
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    *sum = sum8_avx2(_mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                                   _mm256_cvtps_pd(_mm256_castps256_ps128(b))),
                     _mm256_add_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)),
                                   _mm256_cvtps_pd(_mm256_extractf128_ps(b, 1))));
    extremes_avx2_f32(_mm256_min_ps(positive_avx2_f32(a), positive_avx2_f32(b)), _mm256_max_ps(a, b), min, max);
}

RL_AVX2 RL_INLINE void block_avx2_f64(const double *x, double *sum, double *min, double *max) {
    const __m256d a = _mm256_loadu_pd(x), b = _mm256_loadu_pd(x + 4), c = _mm256_loadu_pd(x + 8),
                  d = _mm256_loadu_pd(x + 12);
    *sum = sum8_avx2(_mm256_add_pd(a, c), _mm256_add_pd(b, d));
    extremes_avx2_f64(_mm256_min_pd(_mm256_min_pd(positive_avx2_f64(a), positive_avx2_f64(b)),
                                    _mm256_min_pd(positive_avx2_f64(c), positive_avx2_f64(d))),
                      _mm256_max_pd(_mm256_max_pd(a, b), _mm256_max_pd(c, d)), min, max);
}

RL_AVX2 RL_INLINE void node_avx2_f32(const rl_node_f32 *c, double *sum, float *min, float *max) {
    *sum = sum8_avx2(_mm256_loadu_pd(c->sum), _mm256_loadu_pd(c->sum + 4));
    extremes_avx2_f32(positive_avx2_f32(_mm256_loadu_ps(c->min)), _mm256_loadu_ps(c->max), min, max);
}

RL_AVX2 RL_INLINE void node_avx2_f64(const rl_node_f64 *c, double *sum, double *min, double *max) {
    *sum = sum8_avx2(_mm256_loadu_pd(c->sum), _mm256_loadu_pd(c->sum + 4));
    extremes_avx2_f64(_mm256_min_pd(positive_avx2_f64(_mm256_loadu_pd(c->min)),
                                    positive_avx2_f64(_mm256_loadu_pd(c->min + 4))),
                      _mm256_max_pd(_mm256_loadu_pd(c->max), _mm256_loadu_pd(c->max + 4)), min, max);
}
