/* The same as tree_scalar.h for vectors of eight doubles. */
#include <immintrin.h>

RL_AVX512 RL_INLINE double sum8_avx512(__m512d a) {
    const __m256d b = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    const __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

RL_AVX512 RL_INLINE double sum_avx512(const double *a) { return sum8_avx512(_mm512_loadu_pd(a)); }

#define LOAD(x) _mm256_loadu_pd((const double *)(x))
#define TWO_ROWS(i, j) \
    _mm512_insertf64x4(_mm512_castpd256_pd512(LOAD(base + row[i] * size)), LOAD(base + row[j] * size), 1)

/* c[j] holds the j-th double of 8 rows, which lie `size` bytes apart from `base` on; j < 4. */
RL_AVX512 RL_INLINE void columns_avx512(const char *base, int64_t size, const int64_t *row, __m512d *c) {
    const __m512d a = TWO_ROWS(0, 2), b = TWO_ROWS(1, 3), d = TWO_ROWS(4, 6), e = TWO_ROWS(5, 7);
    const __m512d even = _mm512_unpacklo_pd(a, b), odd = _mm512_unpackhi_pd(a, b);
    const __m512d even4 = _mm512_unpacklo_pd(d, e), odd4 = _mm512_unpackhi_pd(d, e);
    c[0] = _mm512_shuffle_f64x2(even, even4, 0x88), c[1] = _mm512_shuffle_f64x2(odd, odd4, 0x88);
    c[2] = _mm512_shuffle_f64x2(even, even4, 0xdd), c[3] = _mm512_shuffle_f64x2(odd, odd4, 0xdd);
}
#undef LOAD
#undef TWO_ROWS

#define OP RL_AVX512 RL_INLINE
OP __m512d load_avx512(const double *x) { return _mm512_loadu_pd(x); }
OP void store_avx512(double *x, __m512d a) { _mm512_storeu_pd(x, a); }
OP __m512d add_avx512(__m512d a, __m512d b) { return _mm512_add_pd(a, b); }
OP __m512d times_avx512(__m512d a, double b) { return _mm512_mul_pd(a, _mm512_set1_pd(b)); }
OP __mmask8 at_least_avx512(__m512d a, __m512d b) { return _mm512_cmp_pd_mask(a, b, _CMP_GE_OQ); }
OP __m512d minus_avx512(__m512d a, __mmask8 where, __m512d b) { return _mm512_mask_sub_pd(a, where, a, b); }
OP __m512d either_avx512(__mmask8 second, __m512d a, __m512d b) { return _mm512_mask_blend_pd(second, a, b); }

/* Which lanes among those are not above zero, as bits. */
OP unsigned none_avx512(__mmask8 among, __m512d a) {
    return _mm512_mask_cmp_pd_mask(among, a, _mm512_setzero_pd(), _CMP_NGT_UQ);
}

/* Whole numbers: loaded and moved up, a bit set where the mask is. */
OP __m512i places_avx512(const int64_t *x, int bits) { return _mm512_slli_epi64(_mm512_loadu_si512(x), bits); }
OP __m512i place_avx512(__m512i a, __mmask8 where, int64_t bit) {
    return _mm512_mask_or_epi64(a, where, a, _mm512_set1_epi64(bit));
}
OP void store_places_avx512(int64_t *x, __m512i a) { _mm512_storeu_si512(x, a); }

/* One of the two floats in each lane, its bits where those of a double are; without a sign, for there is -0. */
OP __m512d low_float_avx512(__m512d a) {
    const __m512i bits = _mm512_and_si512(_mm512_castpd_si512(a), _mm512_set1_epi64(0x7fffffff));
    return _mm512_castsi512_pd(_mm512_slli_epi64(bits, 29));
}
OP __m512d high_float_avx512(__m512d a) {
    const __m512i bits = _mm512_srli_epi64(_mm512_castpd_si512(a), 3);
    return _mm512_castsi512_pd(_mm512_and_si512(bits, _mm512_set1_epi64(0x0fffffffe0000000)));
}

/* In each lane the smallest above zero of `low`, and the largest of `high`. */
OP __m512d positive_avx512_f64(__m512d x) {
    return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_GT_OQ), _mm512_set1_pd(INFINITY), x);
}
OP __m512 positive_avx512_f32(__m512 x) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), _mm512_set1_ps(INFINITY), x);
}
OP void extremes_of_avx512_f64(const __m512d *low, const __m512d *high, int count, double *min, double *max) {
    __m512d least = positive_avx512_f64(low[0]), most = high[0];
    for (int j = 1; j < count; j++) {
        least = _mm512_min_pd(least, positive_avx512_f64(low[j]));
        most = _mm512_max_pd(most, high[j]);
    }
    _mm512_storeu_pd(min, least), _mm512_storeu_pd(max, most);
}
OP void store_low_floats_avx512(float *x, __m512 a) {
    _mm256_storeu_si256((__m256i *)x, _mm512_cvtepi64_epi32(_mm512_castps_si512(a)));
}
OP void extremes_of_avx512_f32(const __m512d *low, const __m512d *high, int count, float *min, float *max) {
    __m512 least = _mm512_set1_ps(INFINITY), most = _mm512_setzero_ps();
    for (int j = 0; j < count; j++) {
        least = _mm512_min_ps(least, positive_avx512_f32(_mm512_castpd_ps(low[j])));
        most = _mm512_max_ps(most, _mm512_castpd_ps(high[j]));
    }
    store_low_floats_avx512(min, _mm512_min_ps(least, _mm512_movehdup_ps(least)));
    store_low_floats_avx512(max, _mm512_max_ps(most, _mm512_movehdup_ps(most)));
}
#undef OP

#define SET avx512
#define TARGET RL_AVX512
#define LANES 8
#define VECTOR __m512d
#define WORDS __m512i
#define MASK __mmask8
#include "tree_lanes.h"
#undef SET
#undef TARGET
#undef LANES
#undef VECTOR
#undef WORDS
#undef MASK

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
