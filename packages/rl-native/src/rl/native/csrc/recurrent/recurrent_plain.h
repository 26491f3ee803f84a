/* Vectors of 16 bytes in plain C, for any processor; see recurrent_kernel.h for what each name means. */

#define PLAIN_VECTORS(TYPE, WHOLE, LANES_OF_IT, name)                                                                  \
  typedef TYPE vector_##name __attribute__((vector_size(16)));                                                         \
  typedef WHOLE integers_##name __attribute__((vector_size(16)));                                                      \
  typedef int part_##name;                                                                                             \
  RL_INLINE int part_of_##name(int lanes) { return lanes; }                                                            \
  RL_INLINE vector_##name get_##name(const TYPE *from, int lanes) {                                                    \
    vector_##name x = {0};                                                                                             \
    if (lanes == (LANES_OF_IT))                                                                                        \
      memcpy(&x, from, sizeof x);                                                                                      \
    else                                                                                                               \
      memcpy(&x, from, (size_t)lanes * sizeof *from);                                                                  \
    return x;                                                                                                          \
  }                                                                                                                    \
  RL_INLINE void put_##name(TYPE *to, vector_##name x, int lanes) {                                                    \
    if (lanes == (LANES_OF_IT))                                                                                        \
      memcpy(to, &x, sizeof x);                                                                                        \
    else                                                                                                               \
      memcpy(to, &x, (size_t)lanes * sizeof *to);                                                                      \
  }                                                                                                                    \
  RL_INLINE vector_##name times_##name(vector_##name a, vector_##name b, vector_##name c) { return a * b + c; }        \
  /* The first where the mask is all ones, else the second. */                                                         \
  RL_INLINE vector_##name choose_##name(integers_##name mask, vector_##name a, vector_##name b) {                      \
    return (vector_##name)((mask & (integers_##name)a) | (~mask & (integers_##name)b));                                \
  }                                                                                                                    \
  RL_INLINE vector_##name at_most_##name(vector_##name x, vector_##name bar) {                                         \
    return choose_##name((integers_##name)(x > bar), bar, x);                                                          \
  }                                                                                                                    \
  RL_INLINE vector_##name at_least_##name(vector_##name x, vector_##name bar) {                                        \
    return choose_##name((integers_##name)(x < bar), bar, x);                                                          \
  }

PLAIN_VECTORS(float, uint32_t, 4, f32)
PLAIN_VECTORS(double, uint64_t, 2, f64)

RL_INLINE vector_f32 all_f32(float x) { return (vector_f32){x, x, x, x}; }
RL_INLINE vector_f64 all_f64(double x) { return (vector_f64){x, x}; }
