/* Numbers: sums and extremes of children, powers, what is a priority. */
#ifndef RL_ARITHMETIC_H
#define RL_ARITHMETIC_H

#include <float.h>
#include <math.h>

#include "layout.h"

template <class REAL>
struct rl_limits;
template <>
struct rl_limits<float> {
    static constexpr float most = FLT_MAX;
};
template <>
struct rl_limits<double> {
    static constexpr double most = DBL_MAX;
};

/* Written so that what is not a number fails. */
template <class REAL>
RL_DEVICE bool rl_sound(REAL x) {
    return x >= 0 && x <= rl_limits<REAL>::most;
}

template <class REAL>
RL_DEVICE REAL rl_size(REAL x) {
    return x < 0 ? -x : x;
}

/* What a node keeps of a child, or of some leaves: their sum, smallest above zero, and largest. */
template <class REAL>
struct rl_figures {
    double sum;
    REAL min, max;

#ifdef __CUDACC__
    RL_DEVICE rl_figures from_lane(unsigned mask, int apart) const {
        return {rl_from_lane(sum, mask, apart), rl_from_lane(min, mask, apart), rl_from_lane(max, mask, apart)};
    }
#endif
};

template <class REAL>
RL_DEVICE rl_figures<REAL> rl_join(const rl_figures<REAL> &a, const rl_figures<REAL> &b) {
    return {a.sum + b.sum, b.min < a.min ? b.min : a.min, b.max > a.max ? b.max : a.max};
}

/* Of one child, or leaf. */
template <class REAL>
RL_DEVICE rl_figures<REAL> rl_one(double sum, REAL min, REAL max) {
    return {sum, min > 0 ? min : (REAL)INFINITY, max > 0 ? max : 0};
}

/* x^e for x >= 0: to the last digits for double, within 1e-6 for float. Double arithmetic is 64 times slower than float
 * on many GPUs: float does it wherever that is precise, with what x and e lose by rounding put back to first order. */
RL_DEVICE double rl_power(double x, double e, double) { return e == 1 ? x : pow(x, e); }

RL_DEVICE float rl_power(double x, double e, float) {
    const float near = (float)x, by = (float)e;
    if (e == 1) return near;
    if (near > 1e-30f && near < 1e30f && by > -16 && by < 16) {
        const float y = powf(near, by);
        const float lost = by * ((float)(x - near) / near) + (float)(e - by) * rl_log_roughly(near);
        if (y > 1e-30f && y < 1e30f) return y + y * lost;
    }
    return (float)pow(x, e);
}

#endif
