#include "tree.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "tree_layout.h"
#include "tree_scalar.h"
#if RL_X86
#include "tree_avx2.h"
#endif

#if defined(__clang__)
#define UNROLL_16 _Pragma("clang loop unroll(full)")
#else
#define UNROLL_16 _Pragma("GCC unroll 16")
#endif

/* Coefficients of the series of artanh, 1 / (2 j + 1), and of exp, 1 / j!. */
static const double LOG_SERIES[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                                    1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
static const double EXP_SERIES[] = {
    1.0,           1.0,           1.0 / 2,        1.0 / 6,         1.0 / 24,
    1.0 / 120,     1.0 / 720,     1.0 / 5040.0,   1.0 / 40320.0,   1.0 / 362880.0,
    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

/* The sum of c[j] x^j up to j = last. Even and odd powers are summed separately: two shorter dependency chains. */
RL_INLINE double series(const double *c, int last, double x) {
    const double square = x * x;
    double even = c[last & ~1], odd = c[(last - 1) | 1];
    UNROLL_16 for (int j = (last & ~1) - 2; j >= 0; j -= 2) even = even * square + c[j];
    UNROLL_16 for (int j = ((last - 1) | 1) - 2; j >= 0; j -= 2) odd = odd * square + c[j];
    return even + odd * x;
}

enum { CHUNK = 256 }; /* rows of a batch that are processed at a time */

RL_INLINE int64_t at_most(int64_t most, int64_t x) { return x < most ? x : most; }

/* Index mask of the ring of flags of an update: whether the child recomputed last for a row changed its extremes. */
enum { OTHERS = 255 };

_Static_assert((RL_LEVELS + 1) * 8 <= OTHERS && CHUNK % 8 == 0, "rows in flight have entries of their own");

/* Samples are pipelined down the levels. Numbers of samples: processed between two prefetches (UNIT), per step of one
 * level (STEP), between a level and the next (LAG), between prefetch and read (AHEAD), started or finished together
 * (GROUP), and in flight at most (RING). */
enum { UNIT = 8, STEP = 32, LAG = 64, AHEAD = 32, GROUP = 64, RING = 2048 };

enum { NEAR = 1 << 14 }; /* bytes of a level that the L1 cache holds */

/* Points of the samples in [0, total): from given uniform numbers or a seed, stratified or not, multiples of `unit`. */
typedef struct {
    const double *u;
    uint64_t seed;
    int stratified;
    double all, part, unit;
} rl_points;

_Static_assert(AHEAD + STEP <= LAG, "a step prefetches nodes that are known");
_Static_assert((RL_LEVELS + 1) * LAG + 2 * GROUP < RING, "samples in flight have entries of their own");

/* Samples in flight, the i-th at i & mask: its current node or block, and its remaining mass there. The arrays are half
 * a page apart: equal page offsets of a load and an earlier store cause false dependencies (4K aliasing). */
typedef struct {
    _Alignas(64) int64_t node[RING];
    int64_t mask, apart[255];
    double rest[RING];
} rl_flow;

static const char MAGIC[8] = "rltree1";

typedef struct {
    uintptr_t at;
    int64_t bytes;
} rl_span;

/* Reject a call in which a written span (the first three) overlaps another one of the five: it would read its own
 * writes after the indices were checked. Absent spans are 0. */
static int64_t shared(const rl_span *span) {
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = i + 1; j < 5; j++)
            if (span[i].at < span[j].at + (uintptr_t)span[j].bytes &&
                span[j].at < span[i].at + (uintptr_t)span[i].bytes)
                return RL_TREE_SHARED | (8 * i + j) << 8;
    return RL_TREE_OK;
}

#define SET scalar
#define TARGET
#define T f32
#define REAL float
#define BITS int32_t
#include "tree_operations.h"
#undef T
#undef REAL
#undef BITS
#define T f64
#define REAL double
#define BITS int64_t
#include "tree_operations.h"
#undef T
#undef REAL
#undef BITS
#undef SET
#undef TARGET
#if RL_X86
#define SET avx2
#define TARGET RL_AVX2
#define LANES 4
#define T f32
#define REAL float
#define BITS int32_t
#include "tree_operations.h"
#undef T
#undef REAL
#undef BITS
#define T f64
#define REAL double
#define BITS int64_t
#include "tree_operations.h"
#undef T
#undef REAL
#undef BITS
#undef SET
#undef LANES
#undef TARGET
#endif

/* Call the function for the dtype of the leaves and the instruction set in use. */
#if RL_X86
#define RUN(name, in32, in64)                                                         \
    if (rl_isa() >= RL_ISA_AVX2) return wide ? name##_avx2_f64 in64 : name##_avx2_f32 in32; \
    return wide ? name##_scalar_f64 in64 : name##_scalar_f32 in32;
#else
#define RUN(name, in32, in64) return wide ? name##_scalar_f64 in64 : name##_scalar_f32 in32;
#endif

/* Fill *t from a buffer; returns 1 for float32 leaves, 2 for float64, 0 if the buffer holds no tree. */
static int view(void *buffer, rl_tree *t) {
    rl_head *head = buffer;
    int64_t at[RL_LEVELS], leaves;
    if (head == NULL || memcmp(head->magic, MAGIC, sizeof MAGIC) != 0) return 0;
    t->head = head;
    t->capacity = head->capacity;
    t->levels = rl_layout(head->capacity, head->bits, t->children, at, &leaves, &t->bytes);
    if (t->levels == 0) return 0;
    for (int l = 0; l < t->levels; l++) t->level[l] = (char *)buffer + at[l];
    t->leaf = (char *)buffer + leaves;
    return head->bits == 64 ? 2 : 1;
}

#define VIEW(buffer)                                 \
    rl_tree t;                                       \
    const int kind = view((void *)(buffer), &t);     \
    const int wide = kind == 2;                      \
    if (kind == 0) return RL_TREE_DAMAGED;

/* Reject null addresses unless the batch is empty. */
#define NEED(n, addresses) \
    if ((n) > 0 && !(addresses)) return RL_TREE_NOWHERE;

RL_API int64_t rl_tree_bytes(int64_t capacity, int64_t bits) {
    int64_t children[RL_LEVELS], at[RL_LEVELS], leaves, bytes;
    return rl_layout(capacity, bits, children, at, &leaves, &bytes) ? bytes : -1;
}

RL_API int64_t rl_tree_leaves_at(int64_t capacity, int64_t bits) {
    int64_t children[RL_LEVELS], at[RL_LEVELS], leaves, bytes;
    return rl_layout(capacity, bits, children, at, &leaves, &bytes) ? leaves : -1;
}

RL_API int rl_tree_init(void *buffer, int64_t capacity, int64_t bits) {
    rl_head head = {.capacity = capacity, .bits = bits, .total = 0, .min = INFINITY, .max = 0};
    if (rl_tree_bytes(capacity, bits) < 0) return RL_TREE_DAMAGED;
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    memcpy(buffer, &head, sizeof head);
    return RL_TREE_OK;
}

RL_API int rl_tree_open(const void *buffer, int64_t bytes, int64_t *capacity, int64_t *bits) {
    rl_head head;
    if (bytes < RL_HEAD) return RL_TREE_DAMAGED;
    memcpy(&head, buffer, sizeof head);
    if (memcmp(head.magic, MAGIC, sizeof MAGIC) != 0 || rl_tree_bytes(head.capacity, head.bits) != bytes)
        return RL_TREE_DAMAGED;
    *capacity = head.capacity, *bits = head.bits;
    return RL_TREE_OK;
}

RL_API int64_t rl_tree_set(void *buffer, const int64_t *index, const void *priority, int64_t n, int64_t step) {
    VIEW(buffer)
    NEED(n, index && priority)
    RUN(set, (&t, index, (const float *)priority, n, step), (&t, index, (const double *)priority, n, step))
}

/* A word of a struct of arguments as a pointer. */
#define POINTER(type, word) ((type *)(intptr_t)(word))

RL_API int64_t rl_tree_set_errors(const rl_errors *a) {
    VIEW(POINTER(void, a->tree))
    NEED(a->n, a->index && a->error)
    const int64_t *index = POINTER(const int64_t, a->index);
    RUN(set_errors,
        (&t, index, POINTER(const float, a->error), a->n, a->step, a->eps, a->alpha, a->rows, POINTER(float, a->raw),
         POINTER(float, a->largest)),
        (&t, index, POINTER(const double, a->error), a->n, a->step, a->eps, a->alpha, a->rows, POINTER(double, a->raw),
         POINTER(double, a->largest)))
}

RL_API int64_t rl_tree_sample(const rl_draws *a) {
    VIEW(POINTER(void, a->tree))
    NEED(a->n, a->index && (a->u || a->seed))
    const int64_t *seed = POINTER(const int64_t, a->seed);
    const double *u = POINTER(const double, a->u);
    int64_t *index = POINTER(int64_t, a->index);
    const int stratified = a->stratified != 0;
    RUN(sample,
        (&t, a->n, seed, u, stratified, a->beta, index, POINTER(float, a->priority), POINTER(float, a->weight)),
        (&t, a->n, seed, u, stratified, a->beta, index, POINTER(double, a->priority), POINTER(double, a->weight)))
}

RL_API int64_t rl_tree_get(const void *buffer, const int64_t *index, void *priority, int64_t n) {
    VIEW(buffer)
    NEED(n, index && priority)
    RUN(get, (&t, index, (float *)priority, n), (&t, index, (double *)priority, n))
}

RL_API int64_t rl_tree_rebuild(void *buffer) {
    VIEW(buffer)
    RUN(rebuild, (&t), (&t))
}
