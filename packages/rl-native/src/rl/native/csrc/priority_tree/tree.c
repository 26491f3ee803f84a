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

/* 1 / (2 j + 1), of artanh, and 1 / j!, of exp. */
static const double LOG_SERIES[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                                    1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
static const double EXP_SERIES[] = {
    1.0,           1.0,           1.0 / 2,        1.0 / 6,         1.0 / 24,
    1.0 / 120,     1.0 / 720,     1.0 / 5040.0,   1.0 / 40320.0,   1.0 / 362880.0,
    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

/* The sum of c[j] x^j up to j = last. Even and odd powers are apart: two chains of half the length. */
RL_INLINE double series(const double *c, int last, double x) {
    const double square = x * x;
    double even = c[last & ~1], odd = c[(last - 1) | 1];
    UNROLL_16 for (int j = (last & ~1) - 2; j >= 0; j -= 2) even = even * square + c[j];
    UNROLL_16 for (int j = ((last - 1) | 1) - 2; j >= 0; j -= 2) odd = odd * square + c[j];
    return even + odd * x;
}

enum { CHUNK = 256 }; /* so many numbers are made at a time, in the first cache */

RL_INLINE int64_t at_most(int64_t most, int64_t x) { return x < most ? x : most; }

/* Of updates, a mask: whether the child that was made last for a row has other extremes than before, for rows on their
 * way. */
enum { OTHERS = 255 };

_Static_assert((RL_LEVELS + 1) * 8 <= OTHERS && CHUNK % 8 == 0, "rows on their way have places of their own");

/* Of draws: those side by side between two looks ahead, in a step of one level, from one level to the next, between
 * asking and reading, at the top or made into weights at once, and on their way at most. */
enum { UNIT = 8, STEP = 32, LAG = 64, AHEAD = 32, GROUP = 64, RING = 2048 };

enum { NEAR = 1 << 14 }; /* bytes of a level that the first cache holds */

/* Where draws lie: given, or made from a seed; in equal parts of the total, or in all of it; in steps of `unit`. */
typedef struct {
    const double *u;
    uint64_t seed;
    int stratified;
    double all, part, unit;
} rl_points;

_Static_assert(AHEAD + STEP <= LAG, "what a step asks for is known");
_Static_assert((RL_LEVELS + 1) * LAG + 2 * GROUP < RING, "draws that are on their way have places of their own");

/* Draws on their way, the i-th at i & mask: the node or block that each has come to, and what is left in it. Half a page
 * apart: processors take a read for one of what was written before if both lie at the same place of a page. */
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

/* Refuse a call in which what is written, the first three spans, shares memory with another one of the five: it would
 * read what it has just written, and an index is checked only before that. Spans that are not there are 0. */
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
#include "tree_walk.h"
#undef T
#undef REAL
#undef BITS
#define T f64
#define REAL double
#define BITS int64_t
#include "tree_walk.h"
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
#include "tree_walk.h"
#undef T
#undef REAL
#undef BITS
#define T f64
#define REAL double
#define BITS int64_t
#include "tree_walk.h"
#undef T
#undef REAL
#undef BITS
#undef SET
#undef LANES
#undef TARGET
#endif

/* Call the walk for this tree's leaves and this processor. */
#if RL_X86
#define RUN(name, in32, in64)                                                         \
    if (rl_isa() >= RL_ISA_AVX2) return wide ? name##_avx2_f64 in64 : name##_avx2_f32 in32; \
    return wide ? name##_scalar_f64 in64 : name##_scalar_f32 in32;
#else
#define RUN(name, in32, in64) return wide ? name##_scalar_f64 in64 : name##_scalar_f32 in32;
#endif

/* The view of a buffer; 0 if it holds no tree. */
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

/* For a batch that is not empty. */
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
