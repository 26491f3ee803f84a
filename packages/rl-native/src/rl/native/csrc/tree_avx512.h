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
    const int k = behind_last((unsigned)_mm512_cmp_pd_mask(p, _mm512_set1_pd(*r), _CMP_LE_OQ));
    if (__builtin_expect(k > 7 || !(sum[k & 7] > 0), 0)) return nearest8(sum, k, r);
    const __m512i lane = _mm512_castsi128_si512(_mm_cvtsi32_si128(k));
    *r -= _mm512_cvtsd_f64(_mm512_permutexvar_pd(lane, UP_AVX512(p, 1)));
    return k;
}

/* Children by query instead of queries by child: c[j] are the j-th of each of 8 nodes. */
RL_AVX512 RL_INLINE void turn8_avx512(__m512d *c) {
    __m512d t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm512_unpacklo_pd(c[2 * i], c[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_pd(c[2 * i], c[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) { /* 0 even children, 1 odd ones */
        u[i] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88);
        u[i + 2] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
        u[i + 4] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
        u[i + 6] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        c[i] = _mm512_shuffle_f64x2(u[i], u[i + 4], 0x88);
        c[i + 4] = _mm512_shuffle_f64x2(u[i], u[i + 4], 0xdd);
    }
}

/* scan8 of 8 nodes or blocks at once, in the same order. */
RL_AVX512 RL_INLINE void scan8x8_avx512(const __m512d *c, __m512d *p) {
    __m512d a[8];
    a[0] = c[0];
    for (int j = 1; j < 8; j++) a[j] = _mm512_add_pd(c[j], c[j - 1]);
    p[0] = a[0], p[1] = a[1];
    for (int j = 2; j < 8; j++) p[j] = _mm512_add_pd(a[j], a[j - 2]);
    for (int j = 7; j > 3; j--) p[j] = _mm512_add_pd(p[j], p[j - 4]);
}

/* pick8 for 8 queries at once, twice as fast as one after another. `level` and `size` say where nodes lie; node
 * becomes the picked child. */
RL_AVX512 RL_INLINE void pick8x8_avx512(const char *level, int64_t size, int64_t *node, double *r) {
    const __m512d bound = _mm512_loadu_pd(r), zero = _mm512_setzero_pd();
    const __m512i parent = _mm512_slli_epi64(_mm512_loadu_si512(node), RL_FAN_BITS);
    __m512d c[8], p[8], before = zero, here;
    __m512i k = _mm512_setzero_si512();
    for (int i = 0; i < 8; i++) c[i] = _mm512_loadu_pd((const double *)(level + node[i] * size));
    turn8_avx512(c);
    scan8x8_avx512(c, p);
    here = c[0];
    for (int j = 0; j < 8; j++) {
        const __mmask8 passed = _mm512_cmp_pd_mask(p[j], bound, _CMP_LE_OQ);
        k = _mm512_mask_mov_epi64(k, passed, _mm512_set1_epi64(j + 1));
        before = _mm512_mask_mov_pd(before, passed, p[j]);
        here = _mm512_mask_mov_pd(here, passed, j < 7 ? c[j + 1] : zero);
    }
    const __mmask8 found = _mm512_cmp_pd_mask(here, zero, _CMP_GT_OQ);
    if (__builtin_expect(found != 0xff, 0)) {
        int64_t picked[8];
        double rest[8];
        _mm512_storeu_si512(picked, k), _mm512_storeu_pd(rest, _mm512_sub_pd(bound, before));
        for (int i = 0; i < 8; i++) {
            if (!(found >> i & 1)) picked[i] = nearest8((const double *)(level + node[i] * size), (int)picked[i], rest + i);
            node[i] = (node[i] << RL_FAN_BITS) + picked[i], r[i] = rest[i];
        }
        return;
    }
    _mm512_storeu_pd(r, _mm512_sub_pd(bound, before));
    _mm512_storeu_si512(node, _mm512_add_epi64(parent, k));
}

#define LOAD8_AVX512_f32(x) _mm512_cvtps_pd(_mm256_loadu_ps(x))
#define LOAD8_AVX512_f64(x) _mm512_loadu_pd(x)
#define STORE8_AVX512_f32(x, a) _mm256_storeu_ps(x, _mm512_cvtpd_ps(a))
#define STORE8_AVX512_f64(x, a) _mm512_storeu_pd(x, a)

/* pick16 for 8 queries at once: index and priority of the picked leaves. */
#define PICK16X8(REAL, T)                                                                                            \
    RL_AVX512 RL_INLINE void pick16x8_avx512_##T(const REAL *leaves, const int64_t *node, const double *r,           \
                                                 int64_t *index, REAL *priority) {                                   \
        const __m512d bound = _mm512_loadu_pd(r), zero = _mm512_setzero_pd();                                        \
        const __m512i first = _mm512_slli_epi64(_mm512_loadu_si512(node), RL_BLOCK_BITS);                            \
        __m512d c[8], p[8], here, half = zero;                                                                       \
        __m512i k = _mm512_setzero_si512();                                                                          \
        __mmask8 passed = 0xff;                                                                                      \
        here = zero;                                                                                                 \
        for (int side = 0; side < 16; side += 8) {                                                                   \
            for (int i = 0; i < 8; i++) c[i] = LOAD8_AVX512_##T(leaves + (node[i] << RL_BLOCK_BITS) + side);         \
            turn8_avx512(c);                                                                                         \
            scan8x8_avx512(c, p);                                                                                    \
            here = _mm512_mask_mov_pd(here, passed, c[0]);                                                           \
            for (int j = 0; j < 8; j++) {                                                                            \
                if (side) p[j] = _mm512_add_pd(p[j], half);                                                          \
                passed = _mm512_cmp_pd_mask(p[j], bound, _CMP_LE_OQ);                                                \
                k = _mm512_mask_mov_epi64(k, passed, _mm512_set1_epi64(side + j + 1));                               \
                if (j < 7) here = _mm512_mask_mov_pd(here, passed, c[j + 1]);                                        \
            }                                                                                                        \
            half = p[7];                                                                                             \
        }                                                                                                            \
        here = _mm512_mask_mov_pd(here, passed, zero);                                                               \
        _mm512_storeu_si512(index, _mm512_add_epi64(first, k));                                                      \
        STORE8_AVX512_##T(priority, here);                                                                           \
        const __mmask8 found = _mm512_cmp_pd_mask(here, zero, _CMP_GT_OQ);                                           \
        if (__builtin_expect(found == 0xff, 1)) return;                                                              \
        for (int i = 0; i < 8; i++)                                                                                  \
            if (!(found >> i & 1)) {                                                                                 \
                const REAL *block = leaves + (node[i] << RL_BLOCK_BITS);                                             \
                const int at = nearest16_##T(block, (int)(index[i] - (node[i] << RL_BLOCK_BITS)));                   \
                index[i] = (node[i] << RL_BLOCK_BITS) + at, priority[i] = block[at];                                 \
            }                                                                                                        \
    }
PICK16X8(float, f32)
PICK16X8(double, f64)
#undef PICK16X8

RL_AVX512 RL_INLINE int pick16_avx512(__m512d a, __m512d b, double r) {
    const __m512d bound = _mm512_set1_pd(r);
    a = scan8_avx512(a);
    b = _mm512_add_pd(scan8_avx512(b), _mm512_permutexvar_pd(_mm512_set1_epi64(7), a));
    return behind_last((unsigned)_mm512_cmp_pd_mask(a, bound, _CMP_LE_OQ) |
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
