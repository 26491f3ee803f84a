/* The activations, and the steps of a row that need no product. Included with recurrent_product.h and recurrent_loops.h
 * for each type and instruction set, with these macros set:
 *   REAL      float or double
 *   FN(name)  name with a suffix of its own; the functions of recurrent_plain.h, _avx2.h, _avx512.h have it too:
 *             vector, integers     LANES numbers, and as many unsigned integers of their size
 *             part, part_of(n)     the first n lanes of a vector
 *             get(p, part), put(p, x, part)   load and store, nothing is touched outside of the part
 *             all(x)               x in all lanes
 *             times(a, b, c)       a * b + c, rounded once where the set can
 *             at_most(x, bar), at_least(x, bar)   NaN stays NaN
 *   C(name)   constant of recurrent_math.h
 *   TARGET    attribute that selects the instruction set
 *   LANES     of a vector
 *   TILE      rows that a product computes at once, see recurrent_product.h */

/* e^y = s + s p, with s = 2^n and p = e^r - 1, where n = round(y / ln 2) and r = y - n ln 2. Callers add the two terms
 * in the order that loses the fewest digits. */
TARGET RL_INLINE FN(vector) FN(powers)(FN(vector) y, FN(vector) *s) {
  /* Adding a large number rounds y / ln 2 to an integer, which is then in the low bits of the mantissa. */
  const FN(vector) rounder = FN(all)(C(ROUNDER));
  const FN(vector) shifted = FN(times)(y, FN(all)(C(LOG2_E)), rounder), n = shifted - rounder;
  /* ln 2 in two parts (Cody and Waite), so that r has all its digits; then a polynomial by Horner's rule. */
  const FN(vector) r = FN(times)(n, FN(all)(-C(LN2_LOW)), FN(times)(n, FN(all)(-C(LN2_HIGH)), y));
  FN(vector) q = FN(all)(C(TOP_POWER));
#define NEXT(coefficient) q = FN(times)(q, r, FN(all)(coefficient));
  C(POWERS)(NEXT)
#undef NEXT
  const FN(integers) bias = (FN(integers))FN(all)(1);
  *s = (FN(vector))(((FN(integers))shifted << C(DIGITS)) + bias); /* 1 holds nothing but the bias of the exponent */
  return FN(times)(r * r, q, r);
}

/* 1 / (1 + e^-x); beyond SIGMOID_END the result no longer changes. */
TARGET RL_INLINE FN(vector) FN(sigmoid)(FN(vector) x) {
  const FN(vector) end = FN(all)(C(SIGMOID_END));
  FN(vector) s;
  const FN(vector) p = FN(powers)(FN(at_least)(FN(at_most)(-x, end), -end), &s);
  return FN(all)(1) / (FN(all)(1) + FN(times)(s, p, s));
}

/* (e^2x - 1) / (e^2x + 1), by e^2x - 1, which has all its digits where x is small. */
TARGET RL_INLINE FN(vector) FN(tanh)(FN(vector) x) {
  const FN(vector) end = FN(all)(C(TANH_END));
  const FN(vector) bounded = FN(at_least)(FN(at_most)(x, end), -end);
  FN(vector) s;
  const FN(vector) p = FN(powers)(bounded + bounded, &s), e = FN(times)(s, p, s - FN(all)(1));
  return e / (e + FN(all)(2));
}

/* Below, pointers are to the first of the units that a row is worked on at, slots of gates `hidden` apart. */

/* c_t = f c_{t-1} + i g, h_t = o tanh(c_t), with i, f, o = sigmoid and g = tanh of the slots of `gates`. */
TARGET RL_INLINE void FN(lstm_row_forward)(REAL *gates, int64_t hidden, const REAL *before_c, REAL *h, REAL *c,
                                           FN(part) part) {
  const FN(vector) i = FN(sigmoid)(FN(get)(gates, part));
  const FN(vector) f = FN(sigmoid)(FN(get)(gates + hidden, part));
  const FN(vector) g = FN(tanh)(FN(get)(gates + 2 * hidden, part));
  const FN(vector) o = FN(sigmoid)(FN(get)(gates + 3 * hidden, part));
  const FN(vector) after = FN(times)(f, FN(get)(before_c, part), i * g);
  FN(put)(gates, i, part);
  FN(put)(gates + hidden, f, part);
  FN(put)(gates + 2 * hidden, g, part);
  FN(put)(gates + 3 * hidden, o, part);
  FN(put)(c, after, part);
  FN(put)(h, o * FN(tanh)(after), part);
}

/* r, z = sigmoid of their slots, n = tanh(n + r m) with m the recurrent part, h_t = n + z (h_{t-1} - n). */
TARGET RL_INLINE void FN(gru_row_forward)(REAL *gates, int64_t hidden, const REAL *before_h, REAL *h, FN(part) part) {
  const FN(vector) r = FN(sigmoid)(FN(get)(gates + hidden, part));
  const FN(vector) z = FN(sigmoid)(FN(get)(gates + 2 * hidden, part));
  const FN(vector) n = FN(tanh)(FN(times)(r, FN(get)(gates + 3 * hidden, part), FN(get)(gates, part)));
  FN(put)(gates, n, part);
  FN(put)(gates + hidden, r, part);
  FN(put)(gates + 2 * hidden, z, part);
  FN(put)(h, FN(times)(z, FN(get)(before_h, part) - n, n), part);
}

/* `dh` holds the gradient of h from the following step, `dc` that of c, which is replaced by that of c before; the
 * product with the weights replaces `dh` later. The derivatives are written in terms of the outputs: s (1 - s) for the
 * sigmoid s, 1 - t^2 for the tanh t. */
TARGET RL_INLINE void FN(lstm_row_backward)(const REAL *gates, int64_t hidden, const REAL *before_c, const REAL *c,
                                            const REAL *grad_h, const REAL *grad_c, const REAL *dh, REAL *dc,
                                            REAL *grad_gates, FN(part) part) {
  const FN(vector) i = FN(get)(gates, part), f = FN(get)(gates + hidden, part);
  const FN(vector) g = FN(get)(gates + 2 * hidden, part), o = FN(get)(gates + 3 * hidden, part);
  const FN(vector) one = FN(all)(1), bounded = FN(tanh)(FN(get)(c, part));
  /* Gradients of h_t and of c_t; through_o (1 - tanh(c)^2) is the part of the latter that comes by h_t. */
  const FN(vector) of_h = FN(get)(dh, part) + FN(get)(grad_h, part), through_o = of_h * o;
  FN(vector) of_c = FN(get)(dc, part) + FN(times)(-through_o * bounded, bounded, through_o);
  if (grad_c)
    of_c += FN(get)(grad_c, part);
  FN(put)(grad_gates, of_c * g * i * (one - i), part);
  FN(put)(grad_gates + hidden, of_c * FN(get)(before_c, part) * f * (one - f), part);
  FN(put)(grad_gates + 2 * hidden, of_c * i * (one - g * g), part);
  FN(put)(grad_gates + 3 * hidden, through_o * bounded * (one - o), part);
  FN(put)(dc, of_c * f, part);
}

/* `dh` holds the gradient of h from the following step, and afterwards the part z dh_t of that of h_{t-1}; the product
 * with the weights adds the rest. dm is the gradient of the recurrent part m, which only n = tanh(n + r m) uses. */
TARGET RL_INLINE void FN(gru_row_backward)(const REAL *gates, int64_t hidden, const REAL *before_h, const REAL *grad_h,
                                           REAL *dh, REAL *grad_gates, FN(part) part) {
  const FN(vector) n = FN(get)(gates, part), r = FN(get)(gates + hidden, part);
  const FN(vector) z = FN(get)(gates + 2 * hidden, part), m = FN(get)(gates + 3 * hidden, part);
  const FN(vector) one = FN(all)(1), of_h = FN(get)(dh, part) + FN(get)(grad_h, part);
  const FN(vector) through_z = of_h * z, dn = (of_h - through_z) * (one - n * n), dm = dn * r;
  FN(put)(grad_gates, dn, part);
  FN(put)(grad_gates + hidden, dm * m * (one - r), part);
  FN(put)(grad_gates + 2 * hidden, through_z * (FN(get)(before_h, part) - n) * (one - z), part);
  FN(put)(grad_gates + 3 * hidden, dm, part);
  FN(put)(dh, through_z, part);
}
