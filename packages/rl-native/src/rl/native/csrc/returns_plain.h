/* Vectors of 16 bytes in plain C, for any processor; see returns_kernel.h for what each name means. */

#define PLAIN_VECTORS(TYPE, WHOLE, LANES_OF_IT, name)                                                                  \
  typedef TYPE vector_##name __attribute__((vector_size(16)));                                                         \
  typedef WHOLE integers_##name __attribute__((vector_size(16)));                                                      \
  typedef uint8_t bytes_##name __attribute__((vector_size(LANES_OF_IT)));                                              \
  RL_INLINE vector_##name get_##name(const TYPE *from) {                                                               \
    vector_##name x;                                                                                                   \
    memcpy(&x, from, sizeof x);                                                                                        \
    return x;                                                                                                          \
  }                                                                                                                    \
  RL_INLINE void put_##name(TYPE *to, vector_##name x) { memcpy(to, &x, sizeof x); }                                   \
  RL_INLINE vector_##name all_##name(TYPE x) { return x - (vector_##name){0}; }                                        \
  RL_INLINE vector_##name unless_##name(const uint8_t *flags, vector_##name x) {                                       \
    bytes_##name few;                                                                                                  \
    memcpy(&few, flags, sizeof few);                                                                                   \
    const integers_##name wide = __builtin_convertvector(few, integers_##name);                                        \
    return (vector_##name)((integers_##name)(wide == 0) & (integers_##name)x);                                         \
  }                                                                                                                    \
  RL_INLINE vector_##name at_most_##name(vector_##name x, TYPE bar) {                                                  \
    const integers_##name over = (integers_##name)(x > bar);                                                           \
    return (vector_##name)((over & (integers_##name)all_##name(bar)) | (~over & (integers_##name)x));                  \
  }

PLAIN_VECTORS(float, uint32_t, 4, f32)
PLAIN_VECTORS(double, uint64_t, 2, f64)
