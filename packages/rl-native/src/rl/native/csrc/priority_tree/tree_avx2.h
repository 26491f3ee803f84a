/* Functions of tree_scalar.h, and vector primitives of tree_lanes.h, for vectors of four doubles (AVX2). */
#include <immintrin.h>

RL_AVX2 RL_INLINE double sum8_avx2(__m256d low, __m256d high) {
    const __m256d b = _mm256_add_pd(low, high);
    const __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

RL_AVX2 RL_INLINE double sum_avx2(const double *a) { return sum8_avx2(_mm256_loadu_pd(a), _mm256_loadu_pd(a + 4)); }

/* Transpose: c[j] becomes the j-th double of 4 rows of `size` bytes, starting at `base`; j < 4. */
RL_AVX2 RL_INLINE void columns_avx2(const char *base, int64_t size, const int64_t *row, __m256d *c) {
    const double *r0 = (const double *)(base + row[0] * size), *r1 = (const double *)(base + row[1] * size);
    const double *r2 = (const double *)(base + row[2] * size), *r3 = (const double *)(base + row[3] * size);
    for (int j = 0; j < 4; j += 2) {
        const __m256d a = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(r0 + j)), _mm_loadu_pd(r2 + j), 1);
        const __m256d b = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(r1 + j)), _mm_loadu_pd(r3 + j), 1);
        c[j] = _mm256_unpacklo_pd(a, b), c[j + 1] = _mm256_unpackhi_pd(a, b);
    }
}

#define OP RL_AVX2 RL_INLINE
OP __m256d load_avx2(const double *x) { return _mm256_loadu_pd(x); }
OP void store_avx2(double *x, __m256d a) { _mm256_storeu_pd(x, a); }
OP __m256d add_avx2(__m256d a, __m256d b) { return _mm256_add_pd(a, b); }
OP __m256d times_avx2(__m256d a, double b) { return _mm256_mul_pd(a, _mm256_set1_pd(b)); }
OP __m256d at_least_avx2(__m256d a, __m256d b) { return _mm256_cmp_pd(a, b, _CMP_GE_OQ); }
OP __m256d minus_avx2(__m256d a, __m256d where, __m256d b) { return _mm256_sub_pd(a, _mm256_and_pd(where, b)); }
OP __m256d either_avx2(__m256d second, __m256d a, __m256d b) { return _mm256_blendv_pd(a, b, second); }

/* Bit mask of the lanes of `among` that are not above zero. */
OP unsigned none_avx2(__m256d among, __m256d a) {
    return (unsigned)_mm256_movemask_pd(_mm256_and_pd(among, _mm256_cmp_pd(a, _mm256_setzero_pd(), _CMP_NGT_UQ)));
}

/* Integers: load and shift left, set a bit under a mask, store. */
OP __m256i places_avx2(const int64_t *x, int bits) {
    return _mm256_slli_epi64(_mm256_loadu_si256((const __m256i *)x), bits);
}
OP __m256i place_avx2(__m256i a, __m256d where, int64_t bit) {
    return _mm256_or_si256(a, _mm256_and_si256(_mm256_castpd_si256(where), _mm256_set1_epi64x(bit)));
}
OP void store_places_avx2(int64_t *x, __m256i a) { _mm256_storeu_si256((__m256i *)x, a); }

/* One of the two floats in each lane, its bits moved to where a double has them; the sign is cleared, as of -0. */
OP __m256d low_float_avx2(__m256d a) {
    const __m256i bits = _mm256_and_si256(_mm256_castpd_si256(a), _mm256_set1_epi64x(0x7fffffff));
    return _mm256_castsi256_pd(_mm256_slli_epi64(bits, 29));
}
OP __m256d high_float_avx2(__m256d a) {
    const __m256i bits = _mm256_srli_epi64(_mm256_castpd_si256(a), 3);
    return _mm256_castsi256_pd(_mm256_and_si256(bits, _mm256_set1_epi64x(0x0fffffffe0000000)));
}

/* In each lane: the smallest value of `low` above zero, and the largest value of `high`. */
OP __m256 positive_avx2_f32(__m256 x) {
    return _mm256_blendv_ps(_mm256_set1_ps(INFINITY), x, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}

OP __m256d positive_avx2_f64(__m256d x) {
    return _mm256_blendv_pd(_mm256_set1_pd(INFINITY), x, _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_GT_OQ));
}
OP void extremes_of_avx2_f64(const __m256d *low, const __m256d *high, int count, double *min, double *max) {
    __m256d least = positive_avx2_f64(low[0]), most = high[0];
    for (int j = 1; j < count; j++) {
        least = _mm256_min_pd(least, positive_avx2_f64(low[j]));
        most = _mm256_max_pd(most, high[j]);
    }
    _mm256_storeu_pd(min, least), _mm256_storeu_pd(max, most);
}
OP void store_low_floats_avx2(float *x, __m256 a) {
    const __m256i places = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    _mm_storeu_ps(x, _mm256_castps256_ps128(_mm256_permutevar8x32_ps(a, places)));
}
OP void extremes_of_avx2_f32(const __m256d *low, const __m256d *high, int count, float *min, float *max) {
    __m256 least = _mm256_set1_ps(INFINITY), most = _mm256_setzero_ps();
    for (int j = 0; j < count; j++) {
        least = _mm256_min_ps(least, positive_avx2_f32(_mm256_castpd_ps(low[j])));
        most = _mm256_max_ps(most, _mm256_castpd_ps(high[j]));
    }
    store_low_floats_avx2(min, _mm256_min_ps(least, _mm256_movehdup_ps(least)));
    store_low_floats_avx2(max, _mm256_max_ps(most, _mm256_movehdup_ps(most)));
}
#undef OP

#define SET avx2
#define TARGET RL_AVX2
#define LANES 4
#define VECTOR __m256d
#define WORDS __m256i
#define MASK __m256d
#include "tree_lanes.h"
#undef SET
#undef TARGET
#undef LANES
#undef VECTOR
#undef WORDS
#undef MASK

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
