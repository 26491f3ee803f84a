/* The tree on tensors, called from Python.
 *
 * Each function answers 0 if it is done, a status of tree.h, or UNUSUAL, if nothing was done because an argument is not
 * what it mostly is. Python then makes it so, or refuses it. */

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "python.h"
#include "tree.h"

enum { UNUSUAL = -1 };

#define MOST_DRAWS ((int64_t)1 << 40) /* with more, there is no such memory */
#define ALONE (1 << 11) /* rows from which on other threads of Python may run meanwhile */

static rl_object *answer(int64_t status) { return rl_py.error() ? 0 : rl_py.from_whole(status); }

static int64_t address(const rl_tensor *tensor) { return (int64_t)(intptr_t)rl_start(tensor); }

static void *release(int64_t rows) { return rows < ALONE ? 0 : rl_py.release(); }

static void regain(void *thread) {
  if (thread)
    rl_py.regain(thread);
}

/* A buffer that holds a tree: how many bits its leaves have, and how many there are. */
static int look_at_tree(rl_object *object, rl_tensor *buffer, int64_t *capacity, int64_t *bits) {
  return rl_look(object, buffer) && rl_is(buffer, RL_UINT, 8) && buffer->dims == 1 && rl_dense(buffer) &&
         rl_tree_open(rl_start(buffer), buffer->shape[0], capacity, bits) == RL_TREE_OK;
}

/* A dense vector of so many elements, or of any number if that is negative. */
static int look_at_vector(rl_object *object, int code, int64_t bits, int64_t n, rl_tensor *found) {
  return rl_look(object, found) && rl_is(found, code, (int)bits) && found->dims == 1 &&
         (n < 0 || found->shape[0] == n) && rl_dense(found);
}

/* Indices, and as many values. A single value may hold the other sign in memory. */
static int look_at_batch(rl_object *const *objects, int64_t bits, rl_tensor *index, rl_tensor *value) {
  return look_at_vector(objects[0], RL_INT, 64, -1, index) && index->shape[0] > 1 &&
         look_at_vector(objects[1], RL_FLOAT, bits, index->shape[0], value);
}

/* buffer, index, priority. */
rl_object *rl_tree_set_called(rl_object *self, rl_object *const *arguments, intptr_t count) {
  (void)self;
  rl_tensor buffer, index, value;
  int64_t capacity, bits, status = UNUSUAL;
  if (count == 3 && look_at_tree(arguments[0], &buffer, &capacity, &bits) &&
      look_at_batch(arguments + 1, bits, &index, &value)) {
    const int64_t n = index.shape[0];
    void *thread = release(n);
    status = rl_tree_set(rl_start(&buffer), (const int64_t *)rl_start(&index), rl_start(&value), n, 1);
    regain(thread);
  }
  return answer(status);
}

/* buffer, index, error, eps, alpha, raw, largest, rows: the last three may be None. */
rl_object *rl_tree_set_errors_called(rl_object *self, rl_object *const *arguments, intptr_t count) {
  (void)self;
  rl_tensor buffer, index, error, raw, largest;
  int64_t capacity, bits, status = UNUSUAL;
  if (count != 8)
    return answer(UNUSUAL);
  /* Numbers first: to convert one may run code of its class, and addresses are to hold until the tree is done. */
  const double eps = rl_py.number(arguments[3]), alpha = rl_py.number(arguments[4]);
  const int64_t rows = arguments[7] == rl_py.none ? INT64_MAX : rl_whole(arguments[7]);
  if (rl_py.error()) { /* what it is, and that it should be another thing, is known better in Python */
    rl_py.forget();
    return answer(UNUSUAL);
  }
  if (!look_at_tree(arguments[0], &buffer, &capacity, &bits) || !look_at_batch(arguments + 1, bits, &index, &error))
    return answer(UNUSUAL);
  rl_errors job = {.tree = address(&buffer), .index = address(&index), .error = address(&error),
                   .n = index.shape[0], .step = 1, .eps = eps, .alpha = alpha};
  job.rows = arguments[7] == rl_py.none ? capacity : rows;
  if (arguments[5] != rl_py.none) {
    if (!look_at_vector(arguments[5], RL_FLOAT, bits, capacity, &raw))
      return answer(UNUSUAL);
    job.raw = address(&raw);
  }
  if (arguments[6] != rl_py.none) {
    if (!rl_look(arguments[6], &largest) || !rl_is(&largest, RL_FLOAT, (int)bits) || largest.dims)
      return answer(UNUSUAL);
    job.largest = address(&largest);
  }
  if (eps >= 0 && alpha >= 0 && isfinite(eps) && isfinite(alpha) && 0 <= job.rows && job.rows <= capacity) {
    void *thread = release(job.n);
    status = rl_tree_set_errors(&job);
    regain(thread);
  }
  return answer(status);
}

/* Memory for a vector. */
static rl_managed *new_vector(int code, int64_t bits, int64_t n) {
  const int64_t next = 1;
  const rl_tensor tensor = {.device = RL_CPU, .dims = 1, .code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1,
                            .shape = &n, .strides = &next};
  return rl_new(&tensor);
}

/* buffer, seed, stratified, beta or None, and how many. Answers a status, or what was drawn, as a tuple: indices, and
 * weights, or priorities if there is no beta. */
rl_object *rl_tree_new_sample_called(rl_object *self, rl_object *const *arguments, intptr_t count) {
  (void)self;
  rl_tensor buffer, seed;
  int64_t capacity, bits, status = UNUSUAL;
  if (count != 5 || rl_watched())
    return answer(UNUSUAL);
  const int weighted = arguments[3] != rl_py.none;
  rl_draws job = {.stratified = arguments[2] == rl_py.true_, .beta = weighted ? rl_py.number(arguments[3]) : 0};
  job.n = rl_whole(arguments[4]);
  if (rl_py.error() || job.n < 0 || job.n > MOST_DRAWS || !look_at_tree(arguments[0], &buffer, &capacity, &bits) ||
      !rl_look(arguments[1], &seed) || !rl_is(&seed, RL_INT, 64) || seed.dims)
    return answer(UNUSUAL);
  rl_managed *const index = new_vector(RL_INT, 64, job.n), *const found = new_vector(RL_FLOAT, bits, job.n);
  if (index && found) {
    job.tree = address(&buffer), job.seed = address(&seed), job.index = (int64_t)(intptr_t)rl_memory(index);
    *(weighted ? &job.weight : &job.priority) = (int64_t)(intptr_t)rl_memory(found);
    void *thread = release(job.n);
    status = rl_tree_sample(&job);
    regain(thread);
    if (status == RL_TREE_OK)
      return rl_both(index, found);
  }
  free(index), free(found);
  return answer(status);
}
