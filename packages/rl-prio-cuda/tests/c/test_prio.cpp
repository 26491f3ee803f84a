/* Every function against a naive tree, byte for byte, whatever the order of threads; meant to run under sanitizers. */
#include <float.h>

#include "naive.h"
#include "prio.h"

extern "C" void rl_prio_host_order(int which, int64_t seed);

template <class REAL>
static REAL most() {
    return sizeof(REAL) == 4 ? (REAL)FLT_MAX : (REAL)DBL_MAX;
}

/* A tree with its workspace, exactly as large as said, so that an access beyond the end is seen. */
template <class REAL>
struct Tree {
    enum { BITS = 8 * sizeof(REAL) };
    int64_t capacity, bytes, work_bytes;
    char *tree, *work;
    std::vector<REAL> raw;
    REAL largest = 0;

    explicit Tree(int64_t capacity) : capacity(capacity), raw((size_t)capacity) {
        bytes = rl_prio_bytes(capacity, BITS), work_bytes = rl_prio_workspace_bytes(capacity);
        CHECK(bytes % 16 == 0 && work_bytes % 16 == 0);
        tree = (char *)aligned_alloc(16, (size_t)bytes), work = (char *)aligned_alloc(16, (size_t)work_bytes);
        memset(tree, 0, (size_t)bytes), memset(work, 0, (size_t)work_bytes);
        CHECK(rl_prio_init(tree, capacity, BITS, 0) == 0);
    }
    ~Tree() { free(tree), free(work); }
    Tree(const Tree &) = delete;

    int set(const std::vector<int64_t> &index, const std::vector<REAL> &value, int64_t step, int64_t rows) {
        return rl_prio_set(tree, work, capacity, BITS, index.data(), value.data(), (int64_t)index.size(), step, rows, 0);
    }
    int set_errors(const std::vector<int64_t> &index, const std::vector<REAL> &error, double eps, double alpha,
                   int64_t rows) {
        return rl_prio_set_errors(tree, work, capacity, BITS, index.data(), error.data(), (int64_t)index.size(), 1, eps,
                                  alpha, raw.data(), &largest, rows, 0);
    }
    int rebuild() { return rl_prio_rebuild(tree, work, capacity, BITS, 0); }

    /* The refusal that was left behind, taken away; everything else of the workspace is zero between calls. */
    void refusal(int64_t code, int64_t place, double value) {
        int64_t words[2];
        double came;
        memcpy(words, work, sizeof words), memcpy(&came, work + 16, sizeof came);
        CHECK(words[0] == code && words[1] == place);
        CHECK(came == value || (isnan(came) && isnan(value)));
        memset(work, 0, 24);
        for (int64_t i = 0; i < work_bytes; i++) CHECK(work[i] == 0);
    }
    void sound() { refusal(0, 0, 0); }
    void equals(const Naive<REAL> &naive) {
        CHECK((int64_t)naive.buffer.size() == bytes && (int64_t)naive.leaves == rl_prio_leaves_at(capacity, BITS));
        CHECK(memcmp(tree, naive.buffer.data(), (size_t)bytes) == 0);
    }
};

static int64_t some_size() {
    const int64_t sizes[] = {1, 2, 7, 8, 9, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 5000};
    return next() % 4 ? sizes[next() % (sizeof sizes / sizeof *sizes)] : 1 + (int64_t)(next() % 3000);
}

/* Indices over the whole tree, over few leaves (many repeated), or neighbours. */
static std::vector<int64_t> some_index(int64_t n, int64_t capacity) {
    std::vector<int64_t> index((size_t)n);
    const int way = (int)(next() % 3);
    const int64_t few = std::min<int64_t>(capacity, 1 + (int64_t)(next() % 40)), from = (int64_t)(next() % (uint64_t)capacity);
    for (int64_t i = 0; i < n; i++) {
        const int64_t x = (int64_t)(next() >> 1);
        index[(size_t)i] = way == 0 ? x % capacity : way == 1 ? (from + x % few) % capacity : (from + i) % capacity;
    }
    return index;
}

template <class REAL>
static std::vector<REAL> some_values(int64_t n) {
    std::vector<REAL> value((size_t)n);
    for (REAL &x : value) x = next() % 3 ? (REAL)pow(10, 12 * uniform() - 6) : 0;
    return value;
}

template <class REAL>
static void updates(Tree<REAL> &tree, Naive<REAL> &naive) {
    const int64_t n = some_size(), step = next() % 4 ? 1 : 0;
    const std::vector<int64_t> index = some_index(n, tree.capacity);
    const std::vector<REAL> value = some_values<REAL>(n);
    doing = "an update";
    CHECK(tree.set(index, value, step, tree.capacity) == 0);
    naive.set(index, value, step);
    tree.sound(), tree.equals(naive);
}

template <class REAL>
static void updates_from_errors(Tree<REAL> &tree, Naive<REAL> &naive) {
    const int64_t n = some_size();
    const double alphas[] = {0, 0.3, 0.6, 1, 2.5}, alpha = alphas[next() % 5], eps = next() % 2 ? 1e-6 : 0;
    std::vector<int64_t> index = some_index(n, tree.capacity);
    std::vector<REAL> error = some_values<REAL>(n), raw = tree.raw;
    REAL largest = tree.largest;
    for (REAL &x : error) x = next() % 2 ? -x : x;
    for (int64_t i = 0; i < n; i++) {
        raw[(size_t)index[(size_t)i]] = error[(size_t)i];
        largest = std::max(largest, (REAL)fabs(error[(size_t)i]));
    }
    doing = "an update from errors";
    CHECK(tree.set_errors(index, error, eps, alpha, tree.capacity) == 0);
    CHECK(tree.raw == raw && tree.largest == largest);
    for (int64_t i : index) {
        REAL got;
        memcpy(&got, tree.tree + naive.leaves + (size_t)i * sizeof got, sizeof got);
        const double truth = pow(fabs((double)raw[(size_t)i]) + eps, alpha);
        CHECK(fabs((double)got - truth) <= (sizeof got == 4 ? 1e-6 : 1e-14) * truth);
        naive.leaf(i, got);
    }
    naive.refresh(index, n);
    tree.sound(), tree.equals(naive);
}

/* A batch that is wrong somewhere: of the first code the first place is told, and nothing is written. */
template <class REAL>
static void refusals(Tree<REAL> &tree, const Naive<REAL> &naive) {
    const int64_t n = some_size(), bad = (int64_t)(next() % (uint64_t)n), later = std::min(n - 1, bad + 1 + n / 3);
    const std::vector<int64_t> index = some_index(n, tree.capacity);
    const std::vector<REAL> value = some_values<REAL>(n), raw = tree.raw;
    const REAL odd[] = {(REAL)NAN, -1, (REAL)INFINITY, (REAL)-INFINITY}, largest = tree.largest;
    std::vector<int64_t> outside = index;
    std::vector<REAL> wrong = value;
    const int which = (int)(next() % 4);
    const int64_t outer[] = {tree.capacity, -1, INT64_MIN, INT64_MAX};
    outside[(size_t)bad] = outer[which], outside[(size_t)later] = bad == later ? outer[which] : -5;
    wrong[(size_t)bad] = odd[which], wrong[(size_t)later] = bad == later ? odd[which] : (REAL)NAN;
    doing = "a refusal";
    CHECK(tree.set(outside, value, 1, tree.capacity) == 0);
    tree.refusal(RL_PRIO_INDEX, bad, (double)outer[which]);
    CHECK(tree.set_errors(outside, wrong, 0.1, 0.6, tree.capacity) == 0);
    tree.refusal(RL_PRIO_INDEX, bad, (double)outer[which]); /* indices come first */
    CHECK(tree.set(index, wrong, 1, tree.capacity) == 0);
    tree.refusal(RL_PRIO_PRIORITY, bad, wrong[(size_t)bad]);
    wrong[(size_t)bad] = wrong[(size_t)bad] == -1 ? (REAL)NAN : wrong[(size_t)bad]; /* a negative error is sound */
    CHECK(tree.set_errors(index, wrong, 0.1, 0.6, tree.capacity) == 0);
    tree.refusal(RL_PRIO_PRIORITY, bad, wrong[(size_t)bad]);
    const int64_t rows = *std::max_element(index.begin(), index.end());
    CHECK(tree.set_errors(index, value, 0.1, 0.6, rows) == 0); /* the largest is not below itself */
    tree.refusal(RL_PRIO_INDEX, std::max_element(index.begin(), index.end()) - index.begin(), (double)rows);
    CHECK(tree.set_errors({0}, {most<REAL>()}, 0, 1, tree.capacity) == 0); /* its power has no room for rounding */
    tree.refusal(RL_PRIO_PRIORITY, 0, most<REAL>());
    CHECK(tree.raw == raw && tree.largest == largest);
    tree.equals(naive);
}

/* An unread refusal stays the first one, and stands in nobody's way. */
template <class REAL>
static void refusals_that_nobody_reads(Tree<REAL> &tree, Naive<REAL> &naive) {
    const int64_t n = some_size(), big = tree.capacity;
    const std::vector<int64_t> index = some_index(n, big);
    const std::vector<REAL> value = some_values<REAL>(n);
    doing = "an unread refusal";
    CHECK(tree.set({0, big}, {1, 1}, 1, big) == 0);
    CHECK(tree.set({0}, {-1}, 1, big) == 0);
    tree.equals(naive);
    CHECK(tree.set(index, value, 1, big) == 0);
    naive.set(index, value);
    tree.equals(naive), tree.refusal(RL_PRIO_INDEX, 1, (double)big);
}

template <class REAL>
static void rebuilds(Tree<REAL> &tree, Naive<REAL> &naive) {
    const int64_t i = (int64_t)(next() % (uint64_t)tree.capacity), padded = naive.nodes(0) * 128;
    REAL *leaf = (REAL *)(tree.tree + naive.leaves), good = some_values<REAL>(1)[0];
    doing = "a rebuild";
    leaf[i] = -1;
    CHECK(tree.rebuild() == 0);
    tree.refusal(RL_PRIO_PRIORITY, i, -1);
    leaf[i] = good, naive.leaf(i, good);
    if (padded > tree.capacity) {
        leaf[padded - 1] = 1;
        CHECK(tree.rebuild() == 0);
        tree.refusal(RL_PRIO_DAMAGED, padded - 1, 1);
        leaf[padded - 1] = 0;
    }
    CHECK(tree.rebuild() == 0);
    naive.refresh({}, naive.children[0]);
    tree.sound(), tree.equals(naive);
}

/* Each draw lies where the running sum says, is above zero, and weighs what it should. */
template <class REAL>
static void samples(Tree<REAL> &tree, const Naive<REAL> &naive) {
    const int64_t n = some_size();
    const int stratified = (int)(next() % 2);
    const double beta = next() % 4 ? 0.4 : 1.0, total = naive.total();
    std::vector<double> u((size_t)n), sums((size_t)tree.capacity + 1);
    std::vector<int64_t> index((size_t)n, -1);
    std::vector<REAL> priority((size_t)n, -1), weight((size_t)n, -1);
    for (double &x : u) x = uniform();
    u[0] = 0, u[(size_t)n - 1] = 1 - DBL_EPSILON / 2;
    for (int64_t i = 0; i < tree.capacity; i++) sums[(size_t)i + 1] = sums[(size_t)i] + naive.leaf(i);
    doing = "a sample";
    REAL *const priorities = next() % 4 ? priority.data() : nullptr, *const weights = next() % 4 ? weight.data() : nullptr;
    CHECK(rl_prio_sample(tree.tree, tree.work, tree.capacity, tree.BITS, u.data(), n, stratified, beta, index.data(),
                         priorities, weights, 0) == 0);
    if (!(total > 0)) {
        tree.refusal(RL_PRIO_EMPTY, 0, total);
        for (size_t i = 0; i < (size_t)n; i++) CHECK(index[i] == 0 && (!weights || weight[i] == 0));
        return;
    }
    tree.sound();
    for (size_t i = 0; i < (size_t)n; i++) {
        CHECK(index[i] >= 0 && index[i] < tree.capacity);
        const double mass = stratified ? (u[i] + (double)i) * total / (double)n : u[i] * total;
        const REAL truth = naive.leaf(index[i]);
        CHECK(truth > 0 && (!priorities || priority[i] == truth));
        CHECK(sums[(size_t)index[i]] <= mass + 1e-12 * total && mass <= sums[(size_t)index[i] + 1] + 1e-12 * total);
        const double expected = pow((double)truth / naive.min(), -beta);
        CHECK(!weights || (weight[i] <= 1 && fabs(weight[i] - expected) <= (sizeof(REAL) == 4 ? 1e-6 : 1e-13) * expected));
    }
    u[(size_t)n / 2] = next() % 2 ? 1 : NAN;
    CHECK(rl_prio_sample(tree.tree, tree.work, tree.capacity, tree.BITS, u.data(), n, stratified, beta, index.data(),
                         priority.data(), weight.data(), 0) == 0);
    tree.refusal(RL_PRIO_UNIFORM, n / 2, u[(size_t)n / 2]);
    CHECK(index[(size_t)n / 2] == 0 && priority[(size_t)n / 2] == 0 && weight[(size_t)n / 2] == 0);
    tree.equals(naive);
}

template <class REAL>
static void gets(Tree<REAL> &tree, const Naive<REAL> &naive) {
    const int64_t n = some_size();
    std::vector<int64_t> index = some_index(n, tree.capacity);
    std::vector<REAL> priority((size_t)n, -1);
    doing = "a get";
    for (int bad = 0; bad < 2; bad++) {
        if (bad) index[(size_t)n / 2] = tree.capacity;
        CHECK(rl_prio_get(tree.tree, tree.work, tree.capacity, tree.BITS, index.data(), priority.data(), n, 0) == 0);
        for (size_t i = 0; i < (size_t)n; i++)
            CHECK(priority[i] == (index[i] < tree.capacity ? naive.leaf(index[i]) : 0));
        bad ? tree.refusal(RL_PRIO_INDEX, n / 2, (double)tree.capacity) : tree.sound();
    }
}

template <class REAL>
static void run(int64_t capacity) {
    const int rounds = capacity > 20000 ? 3 : 12;
    Tree<REAL> tree(capacity);
    Naive<REAL> naive(capacity);
    tree.equals(naive);
    samples(tree, naive);
    for (int round = 0; round < rounds; round++) {
        rl_prio_single(round % 2 ? -1 : (int64_t)(next() % 3) * 40); /* one block, or many launches for small batches */
        updates(tree, naive), updates_from_errors(tree, naive);
        refusals(tree, naive), refusals_that_nobody_reads(tree, naive);
        samples(tree, naive), gets(tree, naive);
    }
    rebuilds(tree, naive);
}

/* 12 decades of priorities, then all of them small: sums that were corrected by differences would be wrong by now. */
static void drift() {
    const int64_t capacity = 3000;
    Tree<float> tree(capacity);
    Naive<float> naive(capacity);
    doing = "many updates";
    for (int round = 0; round < 400; round++) {
        rl_prio_single(round % 2 ? -1 : 0);
        const std::vector<int64_t> index = some_index(500, capacity);
        CHECK(tree.set(index, some_values<float>(500), 1, capacity) == 0);
    }
    std::vector<int64_t> all((size_t)capacity);
    for (int64_t i = 0; i < capacity; i++) all[(size_t)i] = i;
    CHECK(tree.set(all, {1e-6f}, 0, capacity) == 0);
    naive.set(all, {1e-6f}, 0);
    tree.equals(naive);
}

/* Batches of every size around those of warps, of the block and of its table. */
static void sizes() {
    const int64_t capacity = 1030;
    Tree<double> tree(capacity);
    Naive<double> naive(capacity);
    doing = "a batch of each size";
    for (int64_t n = 1; n <= 1100; n += n < 140 || n > 1015 ? 1 : 37) {
        const std::vector<int64_t> index = some_index(n, capacity);
        const std::vector<double> value = some_values<double>(n);
        CHECK(tree.set(index, value, 1, capacity) == 0);
        naive.set(index, value);
        tree.sound(), tree.equals(naive);
    }
}

/* Arguments that cannot be are refused before anything runs; so nothing here is a real address. */
static void arguments() {
    char *const here = (char *)4096, *const odd = here + 8;
    const int64_t *const index = (int64_t *)here;
    doing = "impossible arguments";
    CHECK(rl_prio_init(odd, 10, 32, 0) == 1 && rl_prio_init(here, 0, 32, 0) == 1 && rl_prio_init(here, 10, 16, 0) == 1);
    CHECK(rl_prio_set(odd, here, 10, 32, index, here, 1, 1, 10, 0) == 1);
    CHECK(rl_prio_set(here, odd, 10, 32, index, here, 1, 1, 10, 0) == 1);
    CHECK(rl_prio_set(here, here, 10, 32, 0, here, 1, 1, 10, 0) == 1);
    CHECK(rl_prio_set(here, here, 10, 32, index, here, -1, 1, 10, 0) == 1);
    CHECK(rl_prio_set(here, here, 10, 32, index, here, INT32_MAX, 1, 10, 0) == 1);
    CHECK(rl_prio_set(here, here, 10, 32, index, here, 1, 2, 10, 0) == 1);
    CHECK(rl_prio_set(here, here, 10, 32, index, here, 1, 1, 11, 0) == 1);
    CHECK(rl_prio_set_errors(here, here, 10, 32, index, here, 1, 1, -1, 0.5, 0, 0, 10, 0) == 1);
    CHECK(rl_prio_set_errors(here, here, 10, 32, index, here, 1, 1, 0, NAN, 0, 0, 10, 0) == 1);
    CHECK(rl_prio_sample(here, here, 10, 32, (double *)here, 1, 0, -1, (int64_t *)here, 0, 0, 0) == 1);
    CHECK(rl_prio_get(here, here, 10, 32, index, 0, 1, 0) == 1);
    CHECK(rl_prio_rebuild(0, here, 10, 32, 0) == 1);
    CHECK(rl_prio_set(here, here, 10, 32, 0, 0, 0, 1, 10, 0) == 0); /* an empty batch needs no addresses */
    CHECK(rl_prio_sample(here, here, 10, 32, 0, 0, 0, 1, 0, 0, 0, 0) == 0);
}

/* The order of threads, and the capacities, of which 0 stands for what needs none; else all of it. */
int main(int count, char **words) {
    std::vector<int64_t> capacities = {0,    1,    2,    15,   16,   17,    127,   128,   129,    1023,  1024,
                                       1025, 8191, 8192, 8193, 32767, 32768, 32769, 262144, 262145};
    rl_prio_host_order(count > 1 ? atoi(words[1]) : 0, 7);
    if (count > 2) capacities.clear();
    for (int i = 2; i < count; i++) capacities.push_back(atoll(words[i]));
    for (int64_t capacity : capacities) {
        if (capacity)
            run<float>(capacity), run<double>(capacity);
        else
            arguments(), sizes(), drift();
    }
    puts("ok");
    return 0;
}
