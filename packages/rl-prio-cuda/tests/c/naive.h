/* A tree as an array of priorities, and its buffer computed from the definition: the reference of the kernels. */
#ifndef NAIVE_H
#define NAIVE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <set>
#include <vector>

static const char *doing = "";

#define CHECK(truth)                                                             \
    do {                                                                         \
        if (!(truth)) {                                                          \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, doing, #truth); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static uint64_t state = 88172645463325252u;

static uint64_t next() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static double uniform() { return (double)(next() >> 12) * 0x1p-52; }

template <class REAL>
struct Naive {
    int64_t capacity;
    std::vector<char> buffer;
    std::vector<int64_t> children; /* of each level, the lowest first */
    std::vector<size_t> at;        /* where each level begins */
    size_t leaves;

    explicit Naive(int64_t capacity) : capacity(capacity) {
        for (int64_t count = (capacity + 15) / 16; children.empty() || count > 1; count = (count + 7) / 8)
            children.push_back(count);
        at.resize(children.size());
        size_t offset = 128;
        for (size_t l = children.size(); l-- > 0; offset += nodes(l) * node_bytes()) at[l] = offset;
        leaves = offset;
        buffer.assign(offset + nodes(0) * 128 * sizeof(REAL), 0);
        memcpy(&buffer[0], "rltree1", 8);
        put<int64_t>(8, capacity), put<int64_t>(16, 8 * sizeof(REAL)), put<double>(32, INFINITY);
    }

    size_t nodes(size_t level) const { return (size_t)(children[level] + 7) / 8; }
    static size_t node_bytes() { return 8 * (sizeof(double) + 2 * sizeof(REAL)); }

    template <class T>
    void put(size_t offset, T x) {
        memcpy(&buffer[offset], &x, sizeof x);
    }

    template <class T>
    T get(size_t offset) const {
        T x;
        memcpy(&x, &buffer[offset], sizeof x);
        return x;
    }

    REAL leaf(int64_t i) const { return get<REAL>(leaves + (size_t)i * sizeof(REAL)); }
    void leaf(int64_t i, REAL x) { put(leaves + (size_t)i * sizeof(REAL), x); }

    struct Figures {
        double sum;
        REAL min, max;
    };

    /* Of a child of `level`: a block of leaves, or a node of the level below. Level `children.size()` has the root. */
    Figures of(size_t level, int64_t child) const {
        double a[8];
        REAL low[16], high[16];
        const int n = level ? 8 : 16;
        for (int i = 0; i < n; i++) {
            const size_t node = level ? at[level - 1] + (size_t)child * node_bytes() : 0, one = sizeof(REAL);
            low[i] = level ? get<REAL>(node + 64 + i * one) : leaf(16 * child + i);
            high[i] = level ? get<REAL>(node + 64 + 8 * one + i * one) : leaf(16 * child + i);
            if (level) a[i] = get<double>(node + 8 * i);
        }
        if (!level)
            for (int i = 0; i < 8; i++) a[i] = (double)low[i] + (double)low[i + 8];
        Figures f = {((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])), (REAL)INFINITY, 0};
        for (int i = 0; i < n; i++) {
            if (low[i] > 0) f.min = std::min(f.min, low[i]);
            f.max = std::max(f.max, high[i]);
        }
        return f;
    }

    void keep(size_t level, int64_t child) {
        const Figures f = of(level, child);
        const size_t node = at[level] + (size_t)(child / 8) * node_bytes(), j = (size_t)(child % 8), one = sizeof(REAL);
        put(node + 8 * j, f.sum), put(node + 64 + j * one, f.min), put(node + 64 + (8 + j) * one, f.max);
    }

    /* What lies above touched leaves; whole levels where the batch is as large as them, or half as large in a tree of up
     * to 2^20 bytes. */
    void refresh(const std::vector<int64_t> &index, int64_t n) {
        for (size_t l = 0; l < children.size(); l++) {
            std::set<int64_t> touched;
            if ((buffer.size() <= 1 << 20 ? 2 * n : n) >= children[l])
                for (int64_t c = 0; c < children[l]; c++) touched.insert(c);
            else
                for (int64_t i : index) touched.insert(i >> (4 + 3 * l));
            for (int64_t c : touched) keep(l, c);
        }
        const Figures f = of(children.size(), 0);
        put<double>(24, f.sum), put<double>(32, f.min), put<double>(40, f.max);
    }

    void set(const std::vector<int64_t> &index, const std::vector<REAL> &value, int64_t step = 1) {
        for (size_t i = 0; i < index.size(); i++) leaf(index[i], value[step ? i : 0]);
        refresh(index, (int64_t)index.size());
    }

    double total() const { return get<double>(24); }
    double min() const { return get<double>(32); }
    double max() const { return get<double>(40); }
};

#endif
