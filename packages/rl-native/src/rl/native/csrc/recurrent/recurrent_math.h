/* Constants of e^y in float32 and float64, for the activations in recurrent_kernel.h. With y = n ln 2 + r, |r| <= ln 2 / 2,
 *   e^r - 1 = r + r^2 q(r),
 * q a polynomial through the Chebyshev points of that interval: 1.8e-9 off in float32, 4.1e-17 in float64. */

#define LOG2_E_f32 1.44269504f
#define LN2_HIGH_f32 0.693359375f /* few digits: its product with n is exact */
#define LN2_LOW_f32 -2.12194440e-4f
#define ROUNDER_f32 12582912.0f /* 1.5 * 2^23: a sum with it has no digits behind the point, and n in its last ones */
#define DIGITS_f32 23
#define BIAS_f32 127
#define TANH_END_f32 10.0f    /* tanh is 1 from here on */
#define SIGMOID_END_f32 87.0f /* e^x is neither infinite nor denormal up to here */
#define LOG2_E_f64 1.4426950408889634
#define LN2_HIGH_f64 6.93147180369123816490e-01
#define LN2_LOW_f64 1.90821492927058770002e-10
#define ROUNDER_f64 6755399441055744.0 /* 1.5 * 2^52 */
#define DIGITS_f64 52
#define BIAS_f64 1023
#define TANH_END_f64 20.0
#define SIGMOID_END_f64 708.0

/* For Horner's rule: the coefficient of the highest power, and M(coefficient) of those below, downward. */
#define TOP_POWER_f32 0x1.a1256cp-13f
#define TOP_POWER_f64 0x1.af390ba7e6f47p-26
#define POWERS_f32(M)                                                                                                  \
  M(0x1.6d43b0p-10f) M(0x1.1110e0p-7f) M(0x1.5554e8p-5f) M(0x1.555556p-3f) M(0.5f)
#define POWERS_f64(M)                                                                                                  \
  M(0x1.2891d4ffbb0f9p-22) M(0x1.71de0d85293b8p-19) M(0x1.a019b8ca26fcfp-16)                  \
  M(0x1.a01a01a7cebcdp-13) M(0x1.6c16c1789d1d7p-10) M(0x1.11111111109a6p-7) M(0x1.5555555553d37p-5)                    \
  M(0x1.5555555555556p-3) M(0x1.0000000000001p-1)
