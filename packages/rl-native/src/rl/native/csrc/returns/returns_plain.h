/* Vectors of 16 bytes in plain C, for any processor; see returns_kernel.h for what each name means. */

/* Each four bytes of a vector see the flags of all lanes; this is where their own is, in any order of bytes. */
typedef uint32_t rl_quads __attribute__((vector_size(16)));
static const uint8_t own_byte_f32[16] = {[0] = 255, [5] = 255, [10] = 255, [15] = 255};
static const uint8_t own_byte_f64[16] = {[0] = 255, [4] = 255, [9] = 255, [13] = 255};

#define PLAIN_VECTORS(TYPE, WHOLE, LANES_OF_IT, name)                                                                  \
  typedef TYPE vector_##name __attribute__((vector_size(16)));                                                         \
  typedef WHOLE integers_##name __attribute__((vector_size(16)));                                                      \
  RL_INLINE vector_##name get_##name(const TYPE *from) {                                                               \
    vector_##name x;                                                                                                   \
    memcpy(&x, from, sizeof x);                                                                                        \
    return x;                                                                                                          \
  }                                                                                                                    \
  RL_INLINE void put_##name(TYPE *to, vector_##name x) { memcpy(to, &x, sizeof x); }                                   \
  RL_INLINE vector_##name all_##name(TYPE x) { return x - (vector_##name){0}; }                                        \
  RL_INLINE vector_##name unless_##name(const uint8_t *flags, vector_##name x) {                                       \
    uint32_t together = 0;                                                                                             \
    rl_quads own;                                                                                                      \
    memcpy(&together, flags, LANES_OF_IT);                                                                             \
    memcpy(&own, own_byte_##name, sizeof own);                                                                         \
    const rl_quads seen = (together - (rl_quads){0}) & own;                                                            \
    return (vector_##name)((rl_quads)(seen == 0) & (rl_quads)x);                                                       \
  }                                                                                                                    \
  RL_INLINE vector_##name at_most_##name(vector_##name x, TYPE bar) {                                                  \
    const integers_##name over = (integers_##name)(x > bar);                                                           \
    return (vector_##name)((over & (integers_##name)all_##name(bar)) | (~over & (integers_##name)x));                  \
  }

PLAIN_VECTORS(float, uint32_t, 4, f32)
PLAIN_VECTORS(double, uint64_t, 2, f64)

/* a b + c, rounded twice: not every processor can do it at once. */
RL_INLINE vector_f32 fused_f32(vector_f32 a, vector_f32 b, vector_f32 c) { return a * b + c; }
RL_INLINE vector_f64 fused_f64(vector_f64 a, vector_f64 b, vector_f64 c) { return a * b + c; }

/* The lanes from the s-th on, and behind them the first ones of what comes then; s is 1 or 2, and a constant. */
RL_INLINE vector_f32 later_f32(vector_f32 x, vector_f32 then, int s) {
  return s == 1 ? (vector_f32){x[1], x[2], x[3], then[0]} : (vector_f32){x[2], x[3], then[0], then[1]};
}

RL_INLINE vector_f64 later_f64(vector_f64 x, vector_f64 then, int s) {
  (void)s;
  return (vector_f64){x[1], then[0]};
}
