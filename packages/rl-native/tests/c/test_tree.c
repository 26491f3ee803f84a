/* The tree against a plain array, for every instruction set that is there; meant to run under sanitizers. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tree.h"

static uint64_t state = 1;

static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static double uniform(void) { return (double)(next() >> 12) * 0x1p-52; }

#define CHECK(truth)                                                                                        \
    do {                                                                                                    \
        if (!(truth)) {                                                                                     \
            fprintf(stderr, "%s:%d: capacity %lld, %lld bits, instruction set %d: %s\n", __FILE__, __LINE__, \
                    (long long)capacity, (long long)bits, rl_isa(), #truth);                                 \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

static void put(void *values, int64_t bits, int64_t i, double x) {
    if (bits == 32)
        ((float *)values)[i] = (float)x;
    else
        ((double *)values)[i] = x;
}

static double at(const void *values, int64_t bits, int64_t i) {
    return bits == 32 ? ((const float *)values)[i] : ((const double *)values)[i];
}

static void compare(const void *tree, const double *array, int64_t capacity, int64_t bits) {
    double head[3], total = 0, min = INFINITY, max = 0;
    const char *leaves = (const char *)tree + rl_tree_leaves_at(capacity, bits);
    memcpy(head, (const char *)tree + 24, sizeof head);
    for (int64_t i = 0; i < capacity; i++) {
        CHECK(at(leaves, bits, i) == array[i]);
        total += array[i];
        if (array[i] > 0 && array[i] < min) min = array[i];
        if (array[i] > max) max = array[i];
    }
    CHECK(fabs(head[0] - total) <= 1e-12 * total);
    CHECK(head[1] == min && head[2] == max);
}

static int64_t word(const void *pointer) { return (int64_t)(intptr_t)pointer; }

/* Into `raw` too: a plain array must come to the same, and what is refused must write nothing anywhere. */
static void errors(int64_t capacity, int64_t bits) {
    enum { N = 300 };
    const size_t bytes = (size_t)rl_tree_bytes(capacity, bits), size = (size_t)bits / 8;
    const int64_t rows = (capacity + 1) / 2;
    void *tree = aligned_alloc(64, (bytes + 63) / 64 * 64), *before = malloc(bytes);
    double *array = calloc((size_t)capacity, sizeof *array), largest = 1;
    void *raw = calloc((size_t)capacity, size), *kept = malloc((size_t)capacity * size), *most = malloc(size);
    int64_t *index = malloc(N * sizeof *index);
    void *error = malloc(N * size);
    memset(tree, 0, bytes);
    put(most, bits, 0, 1);
    CHECK(rl_tree_init(tree, capacity, bits) == RL_TREE_OK);
    for (int round = 0; round < 8; round++) {
        const int64_t step = round % 4 > 0, n = round == 7 ? 1 : N;
        for (int64_t i = 0; i < n; i++) {
            index[i] = (int64_t)(next() % (uint64_t)rows);
            put(error, bits, i, next() % 4 ? 3 * uniform() - 1.5 * round : 0);
        }
        rl_errors a = {word(tree), word(index), word(error), n, step, 0, 1, rows, word(raw), word(most)};
        CHECK(rl_tree_set_errors(&a) == RL_TREE_OK);
        for (int64_t i = 0; i < n; i++) {
            array[index[i]] = at(error, bits, i * step);
            if (fabs(array[index[i]]) > largest) largest = fabs(array[index[i]]);
        }
        for (int64_t i = 0; i < capacity; i++) CHECK(at(raw, bits, i) == array[i]);
        CHECK(at(most, bits, 0) == largest);
        for (int64_t i = 0; i < capacity; i++) array[i] = fabs(array[i]);
        compare(tree, array, capacity, bits);
        for (int64_t i = 0; i < capacity; i++) array[i] = at(raw, bits, i);
        memcpy(before, tree, bytes), memcpy(kept, raw, (size_t)capacity * size);
        for (int wrong = 0; wrong < 3 && step; wrong++) {
            const int64_t was = index[n - 1];
            index[n - 1] = wrong == 0 ? rows : wrong == 1 ? -1 : was;
            put(error, bits, n - 1, wrong == 2 ? NAN : 1e9);
            CHECK(rl_tree_set_errors(&a) == ((wrong == 2 ? RL_TREE_PRIORITY : RL_TREE_INDEX) | (n - 1) << 8));
            index[n - 1] = was;
            CHECK(memcmp(before, tree, bytes) == 0 && memcmp(kept, raw, (size_t)capacity * size) == 0);
            CHECK(at(most, bits, 0) == largest);
        }
    }
    free(tree), free(before), free(array), free(raw), free(kept), free(most), free(index), free(error);
}

/* Whatever is written shares no memory with the rest of a call; a negative number of rows has no index below it. */
static void refused(int64_t capacity, int64_t bits) {
    const int64_t bytes = rl_tree_bytes(capacity, bits), size = bits / 8;
    char *tree = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64)), *before = malloc((size_t)bytes);
    char *raw = calloc((size_t)capacity + 8, 8);
    char *leaves = tree + rl_tree_leaves_at(capacity, bits), *end = raw + capacity * size;
    int64_t index[2] = {0, 0}, far = INT64_MAX;
    double error[2] = {0, 0}, largest = 0;
    memset(tree, 0, (size_t)bytes);
    CHECK(rl_tree_init(tree, capacity, bits) == RL_TREE_OK);
    memcpy(before, tree, (size_t)bytes);
    const struct {
        const void *index, *error, *raw, *largest;
        int64_t place;
    } calls[] = {{tree, error, 0, 0, 3},          {tree + bytes - 8, error, 0, 0, 3}, {index, leaves, 0, 0, 4},
                 {index, error, leaves, 0, 1},    {index, error, 0, tree + 24, 2},    {raw, error, raw, 0, 11},
                 {end - 8, error, raw, 0, 11},    {index, end - size, raw, 0, 12},
                 {index, error, raw, end - size, 10},
                 {index, error, 0, index, 19},    {index, error, 0, error, 20}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        rl_errors a = {word(tree), word(calls[i].index), word(calls[i].error), 1, 1, 1, 1, capacity, word(calls[i].raw),
                       word(calls[i].largest)};
        CHECK(rl_tree_set_errors(&a) == (RL_TREE_SHARED | calls[i].place << 8));
    }
    CHECK(rl_tree_set(tree, (int64_t *)tree, error, 1, 1) == (RL_TREE_SHARED | 3 << 8));
    CHECK(rl_tree_set(tree, index, leaves, 2, 0) == (RL_TREE_SHARED | 4 << 8));
    for (int64_t rows = -5; rows != 1; rows = rows == -5 ? INT64_MIN : rows < 0 ? 0 : 1) {
        rl_errors a = {word(tree), word(rows ? &far : index), word(error), 1, 1, 1, 1, rows, 0, 0};
        CHECK(rl_tree_set_errors(&a) == RL_TREE_INDEX);
    }
    CHECK(memcmp(before, tree, (size_t)bytes) == 0 && largest == 0);
    rl_errors beside = {word(tree), word(index), word(end), 1, 1, 1, 1, capacity, word(raw), word(&largest)};
    CHECK(rl_tree_set_errors(&beside) == RL_TREE_OK); /* neighbours */
    free(tree), free(before), free(raw);
}

/* Large batches. */
static void many(int64_t capacity, int64_t bits) {
    enum { N = 65536 };
    const int64_t bytes = rl_tree_bytes(capacity, bits);
    char *tree = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64)), *value = malloc((size_t)capacity * 8);
    int64_t *all = malloc((size_t)capacity * 8), *index = malloc(N * sizeof *index);
    double *u = malloc(N * sizeof *u);
    for (int kind = 0; kind < 4; kind++) {
        memset(tree, 0, (size_t)bytes);
        CHECK(rl_tree_init(tree, capacity, bits) == RL_TREE_OK);
        for (int64_t i = 0; i < capacity; i++) {
            const int empty = kind == 1 ? i > 0 : kind == 2 ? i < capacity - 1 : kind == 3 ? i / 100 % 3 == 0 : 0;
            all[i] = i, put(value, bits, i, empty ? 0 : kind == 3 ? pow(10, 30 * uniform() - 15) : 1);
        }
        CHECK(rl_tree_set(tree, all, value, capacity, 1) == RL_TREE_OK);
        for (int64_t i = 0; i < N; i++) u[i] = i % 3 == 0 ? (double)i / N : uniform();
        u[0] = 0, u[N - 1] = 1 - DBL_EPSILON / 2;
        for (int stratified = 0; stratified < 2; stratified++) {
            rl_draws d = {word(tree), N, 0, word(u), stratified, 0, word(index), 0, 0};
            CHECK(rl_tree_sample(&d) == RL_TREE_OK);
            for (int64_t i = 0; i < N; i++)
                CHECK(index[i] >= 0 && index[i] < capacity && at(value, bits, index[i]) > 0);
        }
    }
    free(tree), free(value), free(all), free(index), free(u);
}

static void run(int64_t capacity, int64_t bits) {
    enum { MOST = 700 };
    const int64_t bytes = rl_tree_bytes(capacity, bits);
    void *tree = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    double *array = calloc((size_t)capacity, sizeof *array);
    /* Exactly as large as said, so that a read beyond the end is seen. */
    int64_t *index = malloc(MOST * sizeof *index);
    void *value = malloc(MOST * 8);
    double *u = malloc(MOST * sizeof *u);
    memset(tree, 0, (size_t)bytes);
    CHECK(rl_tree_init(tree, capacity, bits) == RL_TREE_OK);
    compare(tree, array, capacity, bits);
    for (int round = 0; round < 12; round++) {
        const int64_t n = 1 + (int64_t)(next() % MOST), seed = (int64_t)next();
        for (int64_t i = 0; i < n; i++) {
            index[i] = (int64_t)(next() % (uint64_t)capacity);
            put(value, bits, i, next() % 3 ? pow(10, 12 * uniform() - 6) : next() % 2 ? 0 : -0.0);
        }
        CHECK(rl_tree_set(tree, index, value, n, 1) == RL_TREE_OK);
        for (int64_t i = 0; i < n; i++) array[index[i]] = at(value, bits, i);
        compare(tree, array, capacity, bits);
        index[n / 2] = round % 2 ? capacity : INT64_MIN;
        CHECK(rl_tree_set(tree, index, value, n, 1) == (RL_TREE_INDEX | (n / 2) << 8));
        rl_errors a = {word(tree), word(index), word(value), n, 1, 0.1, 0.6, capacity, 0, 0};
        CHECK(rl_tree_set_errors(&a) == (RL_TREE_INDEX | (n / 2) << 8));
        index[n / 2] = 0;
        put(value, bits, n - 1, round % 3 == 0 ? NAN : round % 3 == 1 ? -1 : INFINITY);
        CHECK(rl_tree_set(tree, index, value, n, 1) == (RL_TREE_PRIORITY | (n - 1) << 8));
        compare(tree, array, capacity, bits);
        CHECK(rl_tree_rebuild(tree) == RL_TREE_OK);
        compare(tree, array, capacity, bits);
        for (int64_t i = 0; i < n; i++) u[i] = i == 0 ? 0 : i == 1 ? 1 - DBL_EPSILON / 2 : uniform();
        double total;
        memcpy(&total, (char *)tree + 24, sizeof total);
        for (int way = 0; way < 4 && total > 0; way++) {
            rl_draws d = {word(tree), n, word(&seed), way & 1 ? word(u) : 0, way & 2, 0.4, word(index),
                          way ? word(value) : 0, word(value)};
            CHECK(rl_tree_sample(&d) == RL_TREE_OK);
            for (int64_t i = 0; i < n; i++) {
                CHECK(index[i] >= 0 && index[i] < capacity && array[index[i]] > 0);
                CHECK(at(value, bits, i) > 0 && at(value, bits, i) <= 1 + 1e-6);
            }
        }
        put(value, bits, 0, -3);
        a.n = 1, a.eps = 1, a.alpha = 0.5;
        CHECK(rl_tree_set_errors(&a) == RL_TREE_OK);
        array[index[0]] = bits == 32 ? (float)2 : 2;
        double got = 0;
        CHECK(rl_tree_get(tree, index, &got, 1) == RL_TREE_OK && fabs(at(&got, bits, 0) - 2) < 1e-6);
        put(value, bits, 0, 2);
        CHECK(rl_tree_set(tree, index, value, 1, 0) == RL_TREE_OK);
    }
    free(tree), free(array), free(index), free(value), free(u);
}

int main(void) {
    const int64_t capacities[] = {1, 2, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 8192, 8193};
    for (int level = 0; level <= rl_isa_best(); level++) {
        rl_isa_use(level);
        for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
            run(capacities[i], 32), errors(capacities[i], 32);
            run(capacities[i], 64), errors(capacities[i], 64);
        }
        refused(16, 32), refused(17, 64), refused(1000, 32);
        many(131072, 32), many(131072, 64), many(131073, 32), many(131073, 64), many(1048577, 32);
    }
    puts("ok");
    return 0;
}
