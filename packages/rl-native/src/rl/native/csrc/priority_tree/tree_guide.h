/* A short way down for many draws: where each child of one level ends on the line from 0 to the total, and for equal
 * cells of that line the first child that can be in it [Chen and Asau, 1974]. To make it takes a step for each child
 * and cell; a draw then looks at one cell, and at 1 + children / cells ends on average, instead of several nodes. */
#ifndef RL_TREE_GUIDE_H
#define RL_TREE_GUIDE_H

#include <math.h>
#include <stdint.h>

#include "../common/dispatch.h"

enum { RL_GUIDE_CHILDREN = 8192, RL_GUIDE_CELLS = 16384, RL_GUIDE_DRAWS = 8 }; /* two at most; for each child */
enum { RL_GUIDE_FINE = 4, RL_GUIDE_NEAR = 512 }; /* cells for each of few children; whose guide the stack takes, of
                                                  * which a thread may have too little for more */

typedef struct {
    int level; /* whose children these are */
    double cells_per_mass;
    int64_t cells;
    double *end; /* from 1 on; end[0] is 0 */
    uint16_t *first;
} rl_guide;

/* Grows with the mass, so that an end in an earlier cell lies below every mass of a later one, rounding or not. */
RL_INLINE int64_t rl_cell(const rl_guide *g, double mass) {
    const double cell = mass * g->cells_per_mass, most = (double)g->cells;
    return (int64_t)(cell < most ? cell : most);
}

/* Make the cells, from `end`, which holds the sums of `children` children from 1 on and becomes where they end. */
static inline void rl_guide_make(rl_guide *g, int level, int64_t children, double total) {
    int64_t last = 1, cell = 0;
    g->cells = RL_GUIDE_FINE * children < RL_GUIDE_CELLS ? RL_GUIDE_FINE * children : RL_GUIDE_CELLS;
    g->level = level, g->cells_per_mass = (double)g->cells / total, g->end[0] = 0;
    for (int64_t i = 1; i <= children; i++) {
        if (g->end[i] > 0) last = i;
        g->end[i] += g->end[i - 1];
    }
    g->end[last] = INFINITY; /* for a mass that is the total, or above it by rounding */
    for (int64_t i = 1; cell <= g->cells; i++)
        for (const int64_t until = rl_cell(g, g->end[i]); cell <= until; cell++) g->first[cell] = (uint16_t)(i - 1);
}

/* The child in which a mass lies; the mass becomes what is left in it. Never one that is empty. */
RL_INLINE int64_t rl_guide_find(const rl_guide *g, double *mass) {
    int64_t child = g->first[rl_cell(g, *mass)];
    child += g->end[child + 1] <= *mass; /* seldom more than that, so that the jump is foreseen */
    while (__builtin_expect(g->end[child + 1] <= *mass, 0)) child++;
    *mass -= g->end[child];
    return child;
}

#endif
