/* Returns of tensors, called from Python. */

#include <stdlib.h>
#include <string.h>

#include "python.h"
#include "returns.h"

enum { KIND, TIME_DIM, GAMMA, LAMBDA, RHO_BAR, C_BAR, NUMBERS };

#define ALONE (1 << 14) /* elements from which on other threads of Python may run meanwhile */

RL_API int32_t rl_returns(const void *bytes);

/* Whether two tensors have one shape. */
static int alike(const rl_tensor *one, const rl_tensor *other) {
  return one->dims == other->dims && !memcmp(one->shape, other->shape, sizeof(int64_t) * (size_t)one->dims);
}

/* Look at so many tensors, and write their addresses down; 0 if one is not dense, of another shape or type, asks for a
 * gradient, or an output shares memory with another one. */
static int look_at(rl_object *const *slots, int count, rl_tensor *first, rl_returns_job *job) {
  int64_t bytes[RL_SLOTS], elements = 0;
  if (slots[0] == rl_py.none)
    return 0;
  for (int slot = 0; slot < count; slot++) {
    rl_tensor here, *tensor = slot ? &here : first;
    const int flag = slot == RL_DONE || slot == RL_TERMINATED;
    job->data[slot] = bytes[slot] = 0;
    if (slots[slot] == rl_py.none)
      continue;
    if (!rl_look(slots[slot], tensor) || !rl_dense(tensor))
      return 0;
    if (slot == 0) {
      job->bits = tensor->bits;
      elements = rl_elements(tensor);
    } else if (!alike(tensor, first)) {
      return 0;
    }
    if (flag ? !rl_is(tensor, RL_BOOL, 8) : !rl_is(tensor, RL_FLOAT, (int)job->bits))
      return 0;
    if (!flag && rl_wants_gradient(slots[slot]))
      return 0;
    job->data[slot] = (int64_t)(intptr_t)rl_start(tensor);
    bytes[slot] = elements * tensor->bits / 8;
    for (int other = 0; slot >= RL_OUT && other < slot; other++)
      if (job->data[slot] < job->data[other] + bytes[other] && job->data[other] < job->data[slot] + bytes[slot])
        return 0;
  }
  /* The memory of one element may hold the other sign, though it is dense. */
  return elements > 1 && (job->bits == 32 || job->bits == 64);
}

/* Whether there are two outputs. */
static int paired(const rl_returns_job *job) { return job->kind == RL_GAE || job->kind == RL_VTRACE; }

/* Whether all is there that the kind of job reads and writes. */
static int complete(const rl_returns_job *job) {
  const int64_t *const data = job->data;
  if (!data[RL_OUT] || (job->kind == RL_PLAIN ? !data[RL_GAMMA] : !data[RL_DONE] || !data[RL_TERMINATED]))
    return 0;
  if (paired(job) && !(data[RL_VALUE] && data[RL_NEXT_VALUE] && data[RL_OUT2]))
    return 0;
  return job->kind != RL_VTRACE || data[RL_RATIO] || (data[RL_LOG_PI] && data[RL_LOG_MU]);
}

/* Sizes before, of, and behind the dimension of time; 0 if there is no such dimension. */
static int split(const rl_tensor *tensor, int64_t dim, rl_returns_job *job) {
  if (dim < 0)
    dim += tensor->dims;
  if (dim < 0 || dim >= tensor->dims)
    return 0;
  job->outer = job->inner = 1;
  job->steps = tensor->shape[dim];
  for (int i = 0; i < dim; i++)
    job->outer *= tensor->shape[i];
  for (int i = (int)dim + 1; i < tensor->dims; i++)
    job->inner *= tensor->shape[i];
  return 1;
}

/* What the numbers say: 0 if a coefficient is no float, or another one no number, with an exception then. Before any
 * look at a tensor: to convert a number may run code of its class, and addresses are to hold until the kernel is done. */
static int numbers(rl_object *const *given, rl_returns_job *job, int64_t *dim) {
  if (!rl_is_exactly(given[GAMMA], rl_py.float_) || !rl_is_exactly(given[LAMBDA], rl_py.float_))
    return 0; /* one that is a tensor may ask for a gradient */
  job->kind = rl_whole(given[KIND]), job->strided = 0;
  *dim = rl_whole(given[TIME_DIM]);
  job->gamma = rl_py.number(given[GAMMA]);
  job->lambda = rl_py.number(given[LAMBDA]);
  job->rho_bar = rl_py.number(given[RHO_BAR]);
  job->c_bar = rl_py.number(given[C_BAR]);
  return !rl_py.error();
}

/* Fill the outputs; 0, and nothing is written, if something is missing. */
static int filled(rl_returns_job *job) {
  if (!complete(job))
    return 0;
  void *thread = job->outer * job->steps * job->inner < ALONE ? 0 : rl_py.release();
  const int done = !rl_returns(job);
  if (thread)
    rl_py.regain(thread);
  return done;
}

/* kind, dimension of time, gamma, lambda, rho_bar, c_bar, then a tensor or None for each of rl_returns_slot. True if
 * the outputs are written; False, and nothing is, if there is something unusual about an argument. */
rl_object *rl_returns_called(rl_object *self, rl_object *const *arguments, intptr_t count) {
  (void)self;
  rl_object *answer = rl_py.false_;
  rl_tensor first;
  rl_returns_job job;
  int64_t dim;
  if (count == NUMBERS + RL_SLOTS && !rl_watched() && numbers(arguments, &job, &dim) &&
      look_at(arguments + NUMBERS, RL_SLOTS, &first, &job) && split(&first, dim, &job) && filled(&job))
    answer = rl_py.true_;
  if (rl_py.error())
    return 0;
  rl_py.hold(answer);
  return answer;
}

/* The outputs of a job, made and filled: one, or a tuple of two. 0 with an exception, or if something is missing.
 * Tensors are made of them last: Python may then collect what nobody needs, which runs code of anybody. */
static rl_object *made(const rl_tensor *like, rl_returns_job *job) {
  const int two = paired(job);
  rl_managed *const one = rl_new(like), *const other = one && two ? rl_new(like) : 0;
  job->data[RL_OUT] = one ? (int64_t)(intptr_t)rl_memory(one) : 0;
  job->data[RL_OUT2] = other ? (int64_t)(intptr_t)rl_memory(other) : 0;
  if (filled(job))
    return two ? rl_both(one, other) : rl_wrapped(one);
  free(one), free(other);
  return 0;
}

/* The same without outputs, which are made: answers one, or a tuple of two; None if there is something unusual. */
rl_object *rl_new_returns_called(rl_object *self, rl_object *const *arguments, intptr_t count) {
  (void)self;
  rl_object *answer = 0;
  rl_tensor first;
  rl_returns_job job;
  int64_t dim;
  if (count == NUMBERS + RL_OUT && !rl_watched() && numbers(arguments, &job, &dim) &&
      look_at(arguments + NUMBERS, RL_OUT, &first, &job) && split(&first, dim, &job))
    answer = made(&first, &job);
  if (!answer && !rl_py.error())
    rl_py.hold(answer = rl_py.none);
  return answer;
}
