/* The operations of a policy. Included for each instruction set with FN, TARGET and LANES; see policy.c. */

typedef float FN(vector) __attribute__((vector_size(4 * LANES)));
typedef int32_t FN(integers) __attribute__((vector_size(4 * LANES)));

#include "policy_math.h"

#define VECTORS (16 / LANES) /* of 16 numbers, over which a sum is spread */

TARGET RL_INLINE FN(vector) FN(get)(const float *from) {
  FN(vector) x;
  memcpy(&x, from, sizeof x);
  return x;
}

TARGET RL_INLINE void FN(put)(float *to, FN(vector) x) { memcpy(to, &x, sizeof x); }

/* The first `count` numbers, then zeros; nothing behind them is read. */
TARGET RL_INLINE FN(vector) FN(get_part)(const float *from, int64_t count) {
  if (count >= LANES)
    return FN(get)(from);
#if LANES == 16
  return _mm512_maskz_loadu_ps((__mmask16)((1 << (count > 0 ? count : 0)) - 1), from);
#elif LANES == 8
  static const int32_t ones[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
  return _mm256_maskload_ps(from, _mm256_loadu_si256((const __m256i *)(ones + 8 - (count > 0 ? count : 0))));
#else
  FN(vector) x = {0};
  if (count > 0)
    memcpy(&x, from, (size_t)count * sizeof *from);
  return x;
#endif
}

TARGET RL_INLINE void FN(put_part)(float *to, FN(vector) x, int64_t count) {
  if (count >= LANES)
    FN(put)(to, x);
  else
    memcpy(to, &x, (size_t)count * sizeof *to);
}

/* The sum of 16 numbers: those 8 apart, then 4, 2 and 1. */
TARGET RL_INLINE quad FN(fold)(const FN(vector) *x) {
  float each[16];
  quad part[4];
#if LANES == 16
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x[0]), _mm512_extractf32x8_ps(x[0], 1));
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#elif LANES == 8
  const __m256 eight = x[0] + x[1];
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#endif
  memcpy(each, x, sizeof each);
  memcpy(part, each, sizeof part);
  return (part[0] + part[2]) + (part[1] + part[3]);
}

/* The sums of four quads, in the same order. */
TARGET RL_INLINE quad FN(four_sums)(quad a, quad b, quad c, quad d) {
  const quad ab = SHUFFLE(a, b, 0, 1, 4, 5) + SHUFFLE(a, b, 2, 3, 6, 7);
  const quad cd = SHUFFLE(c, d, 0, 1, 4, 5) + SHUFFLE(c, d, 2, 3, 6, 7);
  return SHUFFLE(ab, cd, 0, 2, 4, 6) + SHUFFLE(ab, cd, 1, 3, 5, 7);
}

TARGET RL_INLINE float FN(sum)(const FN(vector) *x) {
  const quad four = FN(fold)(x);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/* y = x W^T + b of `outputs` (4, or 1) rows of W; y + the same with `more`. */
TARGET RL_INLINE void FN(products)(const float *x, const float *weight, const float *bias, float *y, int64_t inputs,
                                   const int outputs, const int more) {
  FN(vector) sums[4][VECTORS] = {{{0}}};
  int64_t k = 0;
  for (; k + 16 <= inputs; k += 16) {
    UNROLL for (int v = 0; v < VECTORS; v++) {
      const FN(vector) of_x = FN(get)(x + k + v * LANES);
      UNROLL for (int o = 0; o < outputs; o++) sums[o][v] += of_x * FN(get)(weight + o * inputs + k + v * LANES);
    }
  }
  if (k < inputs) {
    UNROLL for (int v = 0; v < VECTORS; v++) {
      const int64_t left = inputs - k - v * LANES;
      const FN(vector) of_x = FN(get_part)(x + k + v * LANES, left);
      UNROLL for (int o = 0; o < outputs; o++)
        sums[o][v] += of_x * FN(get_part)(weight + o * inputs + k + v * LANES, left);
    }
  }
  if (outputs == 4) {
    quad four = FN(four_sums)(FN(fold)(sums[0]), FN(fold)(sums[1]), FN(fold)(sums[2]), FN(fold)(sums[3])), other;
    if (bias) {
      memcpy(&other, bias, sizeof other);
      four += other;
    }
    if (more) {
      memcpy(&other, y, sizeof other);
      four += other;
    }
    memcpy(y, &four, sizeof four);
    return;
  }
  const float one = bias ? FN(sum)(sums[0]) + *bias : FN(sum)(sums[0]);
  *y = more ? one + *y : one;
}

TARGET RL_INLINE void FN(layer)(const float *x, int64_t stride, const float *weight, const float *bias, float *y,
                                int64_t rows, int64_t inputs, int64_t outputs, const int more) {
  int64_t o = 0;
  for (; o + 4 <= outputs; o += 4)
    for (int64_t r = 0; r < rows; r++)
      FN(products)(x + r * stride, weight + o * inputs, bias ? bias + o : NULL, y + r * outputs + o, inputs, 4, more);
  for (; o < outputs; o++)
    for (int64_t r = 0; r < rows; r++)
      FN(products)(x + r * stride, weight + o * inputs, bias ? bias + o : NULL, y + r * outputs + o, inputs, 1, more);
}

TARGET static void FN(linear)(const float *x, int64_t stride, const float *weight, const float *bias, float *y,
                              int64_t rows, int64_t inputs, int64_t outputs) {
  FN(layer)(x, stride, weight, bias, y, rows, inputs, outputs, 0);
}

TARGET static void FN(linear_more)(const float *x, int64_t stride, const float *weight, const float *bias, float *y,
                                   int64_t rows, int64_t inputs, int64_t outputs) {
  FN(layer)(x, stride, weight, bias, y, rows, inputs, outputs, 1);
}

/* Apply `formula` of the vector `x` to `count` adjacent numbers. */
#define EACH(name, formula)                                                                                            \
  TARGET static void FN(name)(const float *from, float *to, int64_t count, float a, float b, float c) {                \
    (void)a, (void)b, (void)c;                                                                                         \
    for (int64_t i = 0; i < count; i += LANES) {                                                                       \
      const FN(vector) x = FN(get_part)(from + i, count - i);                                                          \
      FN(put_part)(to + i, formula, count - i);                                                                        \
    }                                                                                                                  \
  }

EACH(each_tanh, FN(tanh)(x))
EACH(each_relu, FN(choose)(x < FN(all)(0), FN(all)(0), x))
EACH(each_sigmoid, FN(sigmoid)(x))
EACH(each_silu, x *FN(sigmoid)(x))
EACH(each_elu, FN(choose)(x > FN(all)(0), x, a *FN(expm1)(x)))
EACH(each_leaky, FN(choose)(x > FN(all)(0), x, a *x))
EACH(each_gelu, 0.5f * x * (1 + FN(erf)(x * 0.70710678118654752440f)))
EACH(each_gelu_tanh, 0.5f * x * (1 + FN(tanh)(0.79788456080286535588f * (x + 0.044715f * (x * x * x)))))
EACH(each_exp, FN(exp)(x))
EACH(each_log, FN(log)(x))
EACH(each_normal, FN(normal)(x))
/* Scales: at least c of softplus(x + a) + b; exp of x + a between b and c; at least c of x. */
EACH(each_softplus_scale, FN(between)(FN(softplus)(x + a) + b, c, INFINITY))
EACH(each_exp_scale, FN(exp)(FN(between)(x + a, b, c)))
EACH(each_relu_scale, FN(between)(x, c, INFINITY))
/* 4 (log(1 + e^2x) / 2 - x / 2), minus log |d tanh / dx| less its constant: as TanhNormal of rl-modules. */
EACH(each_stretch, 4 * (FN(softplus)(2 * x) * 0.5f - 0.5f * x))
EACH(each_atanh, 0.5f * FN(log)((1 + x) / (1 - x)))
#undef EACH

TARGET static void FN(layer_norm)(const float *x, const float *weight, const float *bias, float *y, int64_t rows,
                                  int64_t width, double epsilon) {
  for (int64_t r = 0; r < rows; r++, x += width, y += width) {
    FN(vector) sums[VECTORS] = {{0}}, squares[VECTORS] = {{0}};
    for (int64_t k = 0; k < width; k += 16)
      UNROLL for (int v = 0; v < VECTORS; v++) sums[v] += FN(get_part)(x + k + v * LANES, width - k - v * LANES);
    const float mean = FN(sum)(sums) / (float)width;
    for (int64_t k = 0; k < width; k += 16)
      UNROLL for (int v = 0; v < VECTORS; v++) {
        const int64_t left = width - k - v * LANES;
        FN(vector) apart = FN(get_part)(x + k + v * LANES, left) - mean, zeros = {0};
        if (left < LANES) { /* zeros behind the row are none of its numbers */
          float kept[LANES];
          FN(put)(kept, apart);
          for (int64_t i = left > 0 ? left : 0; i < LANES; i++)
            kept[i] = 0;
          apart = left > 0 ? FN(get)(kept) : zeros;
        }
        squares[v] += apart * apart;
      }
    const float scale = 1 / sqrtf(FN(sum)(squares) / (float)width + (float)epsilon);
    for (int64_t k = 0; k < width; k += LANES) {
      FN(vector) one = (FN(get_part)(x + k, width - k) - mean) * scale;
      if (weight)
        one = one * FN(get_part)(weight + k, width - k);
      if (bias)
        one = one + FN(get_part)(bias + k, width - k);
      FN(put_part)(y + k, one, width - k);
    }
  }
}

/* h, c, out: of this layer, `stride` numbers from row to row. `gates` has 4 units a row: i, f, g, o. */
TARGET static void FN(lstm_units)(const float *gates, const float *before_c, float *h, float *c, float *out,
                                  int64_t units, int64_t rows, int64_t stride) {
  for (int64_t r = 0; r < rows; r++, gates += 4 * units, before_c += units, h += stride, c += stride, out += units)
    for (int64_t k = 0; k < units; k += LANES) {
      const int64_t left = units - k;
      const FN(vector) i = FN(sigmoid)(FN(get_part)(gates + k, left));
      const FN(vector) f = FN(sigmoid)(FN(get_part)(gates + units + k, left));
      const FN(vector) g = FN(tanh)(FN(get_part)(gates + 2 * units + k, left));
      const FN(vector) o = FN(sigmoid)(FN(get_part)(gates + 3 * units + k, left));
      const FN(vector) after = f * FN(get_part)(before_c + k, left) + i * g, seen = o * FN(tanh)(after);
      FN(put_part)(c + k, after, left);
      FN(put_part)(h + k, seen, left);
      FN(put_part)(out + k, seen, left);
    }
}

/* The same without c; `gates` has 3 units a row from the input, `inner` 3 from the state: r, z, n. */
TARGET static void FN(gru_units)(const float *gates, const float *inner, const float *before_h, float *h, float *out,
                                 int64_t units, int64_t rows, int64_t stride) {
  for (int64_t row = 0; row < rows;
       row++, gates += 3 * units, inner += 3 * units, before_h += units, h += stride, out += units)
    for (int64_t k = 0; k < units; k += LANES) {
      const int64_t left = units - k;
      const FN(vector) r = FN(sigmoid)(FN(get_part)(gates + k, left) + FN(get_part)(inner + k, left));
      const FN(vector) z =
          FN(sigmoid)(FN(get_part)(gates + units + k, left) + FN(get_part)(inner + units + k, left));
      const FN(vector) n =
          FN(tanh)(FN(get_part)(gates + 2 * units + k, left) + r * FN(get_part)(inner + 2 * units + k, left));
      const FN(vector) seen = n + z * (FN(get_part)(before_h + k, left) - n);
      FN(put_part)(h + k, seen, left);
      FN(put_part)(out + k, seen, left);
    }
}

static const rl_policy_functions FN(functions) = {
    FN(linear),
    FN(linear_more),
    FN(layer_norm),
    FN(lstm_units),
    FN(gru_units),
    {FN(each_tanh), FN(each_relu), FN(each_sigmoid), FN(each_silu), FN(each_elu), FN(each_leaky), FN(each_gelu),
     FN(each_gelu_tanh)},
    {FN(each_softplus_scale), FN(each_exp_scale), FN(each_relu_scale)},
    FN(each_tanh),
    FN(each_exp),
    FN(each_log),
    FN(each_normal),
    FN(each_exp_scale),
    FN(each_stretch),
    FN(each_atanh),
};

#undef VECTORS
#undef LANES
#undef FN
