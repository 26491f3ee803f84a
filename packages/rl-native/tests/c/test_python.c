/* Functions that Python calls, with a Python and a PyTorch made up here: tensors in memory of exactly the size that they
 * need, so that the sanitizers see a step outside, and arguments of every wrong kind. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "python.h"
#include "returns.h"
#include "tree.h"

/* DLManagedTensorVersioned */
struct rl_managed {
  uint32_t major, minor;
  void *context;
  void (*drop)(rl_managed *);
  uint64_t flags;
  rl_tensor tensor;
};

struct rl_object {
  int held; /* references that were taken and not given back */
  rl_managed *managed;
  int is_tensor, is_number, wants_gradient;
  double number;
  rl_tensor tensor;
};

typedef struct {
  const char *name;
  rl_function function;
  int flags;
  const char *doc;
} method;

RL_API const method *rl_python_open(const void *table);

static rl_object tensor_class, float_class, other_class, name_of_attribute, ad, name_of_level, watched[RL_WATCHED];
static rl_object level = {.is_number = 1, .number = -1}, wrapped[2], pair, none, yes, no, failure, made;
static rl_object *raised;

static rl_object *hold_(rl_object *x) { return x->held++, x; }
static rl_object *type_(rl_object *x) {
  return hold_(x->is_tensor ? &tensor_class : x->is_number ? &float_class : &other_class);
}
static rl_object *attribute_(rl_object *x, rl_object *name) {
  if (name != &name_of_attribute)
    abort();
  return hold_(x->wants_gradient ? &yes : &no);
}
static rl_object *entry(rl_object *x, rl_object *name) {
  return x == &ad && name == &name_of_level ? &level : (raised = &failure, (void *)0);
}
static void hold(rl_object *x) { x->held++; }
static void drop(rl_object *x) {
  if (--x->held || !x->managed)
    return;
  x->managed->drop(x->managed);
  x->managed = 0;
}
static rl_object *ask(rl_object *x) { return hold_(x->is_number ? &yes : &no); }
static int truth(rl_object *x) { return x == &yes; }
static rl_object *tuple(intptr_t count, ...) {
  va_list items;
  va_start(items, count);
  for (int i = 0; i < count; i++)
    if (hold_(va_arg(items, rl_object *)) != wrapped + i)
      abort();
  va_end(items);
  return hold_(&pair);
}
static double number(rl_object *x) { return x->is_number ? x->number : (raised = &failure, -1); }
static intptr_t nearest(rl_object *x, rl_object *raise_instead) {
  if (raise_instead)
    abort();
  return x->is_number ? (intptr_t)x->number : (raised = &failure, -1);
}
static rl_object *from_whole(int64_t x) { return made.number = (double)x, hold_(&made); }
static rl_object *error(void) { return raised; }
static void forget(void) { raised = 0; }
static int away;
static void *release(void) { return away++, &away; }
static void regain(void *x) { *(int *)x -= 1; }

static int look(void *object, rl_tensor *found) {
  const rl_object *x = object;
  if (!x->is_tensor)
    abort();
  if (x->tensor.lanes == 7) /* of a kind that DLPack does not know */
    return raised = &failure, -1;
  *found = x->tensor;
  return 0;
}

static int most = 2; /* tensors that can be made */

/* Takes what it is given in any case. */
static int give(rl_managed *managed, void **object) {
  const int i = wrapped[0].managed ? 1 : 0;
  if (raised || managed->major != 1 || managed->minor != 3 || managed->flags || wrapped[i].managed)
    abort();
  if (i >= most)
    return managed->drop(managed), raised = &failure, -1;
  wrapped[i].managed = managed;
  *object = hold_(wrapped + i);
  return 0;
}

static struct {
  uint32_t major, minor;
  void *unused[3];
  int (*give)(rl_managed *, void **);
  int (*look)(void *, rl_tensor *);
} exchange = {1, 3, {0}, give, look};

static int64_t vector_shape[4][1], vector_strides[1] = {1};
static const int64_t shape[3] = {2, 3, 1}, strides[3] = {3, 1, 1}, apart[3] = {1, 2, 1}, other_shape[3] = {3, 2, 1};

static rl_object batch(int code, int bits) {
  rl_object x = {.is_tensor = 1, .tensor = {calloc(6, (size_t)bits / 8), RL_CPU, 0, 3, (uint8_t)code, (uint8_t)bits, 1,
                                            shape, strides, 0}};
  return x;
}

static rl_object vector(int code, int bits, int64_t n, int slot) {
  vector_shape[slot][0] = n;
  rl_object x = {.is_tensor = 1, .tensor = {calloc((size_t)n, (size_t)bits / 8), RL_CPU, 0, 1, (uint8_t)code,
                                            (uint8_t)bits, 1, vector_shape[slot], vector_strides, 0}};
  return x;
}

#define CHECK(condition)                                                                                               \
  if (!(condition))                                                                                                    \
    return fprintf(stderr, "line %d: %s\n", __LINE__, #condition), 1;

/* The same calls without their outputs, which are made. */
static int test_new_returns(rl_object **given, const float *expected) {
  enum { INPUTS = 6 + RL_OUT };
  rl_object *const value = given[6 + RL_VALUE], *const kind = given[0];
#define NEW(count) rl_new_returns_called(0, given, count)
  CHECK(NEW(INPUTS) == &pair && pair.held == 1)
  for (int i = 0; i < 2; i++) {
    const rl_tensor *const out = &wrapped[i].managed->tensor;
    CHECK(wrapped[i].held == 1 && !memcmp(out->data, expected, 6 * sizeof *expected)) /* all values are zero */
    CHECK(out->dims == 3 && !memcmp(out->shape, shape, sizeof shape) && !memcmp(out->strides, strides, sizeof strides))
    CHECK(rl_is(out, RL_FLOAT, 32) && out->device == RL_CPU && !out->offset && !((uintptr_t)out->data % 64))
    drop(wrapped + i);
  }
  pair.held = 0;
  CHECK(NEW(INPUTS - 1) == &none && NEW(INPUTS + 2) == &none)
  given[6 + RL_VALUE] = &none;
  CHECK(NEW(INPUTS) == &none && !raised)
  kind->number = RL_TD_LAMBDA;
  CHECK(NEW(INPUTS) == wrapped && wrapped->held == 1 && !memcmp(wrapped->managed->tensor.data, expected, 24))
  drop(wrapped);
  kind->number = RL_GAE, given[6 + RL_VALUE] = value;
  for (most = 0; most < 2; most++) {
    CHECK(NEW(INPUTS) == 0 && raised && !wrapped[0].held && !wrapped[1].held)
    raised = 0;
  }
  value->wants_gradient = 1;
  CHECK(NEW(INPUTS) == &none && !raised)
  value->wants_gradient = 0, watched[1].is_number = 1;
  CHECK(NEW(INPUTS) == &none && !raised)
  watched[1].is_number = 0;
  return 0;
}

static int test_returns(void) {
  enum { ALL = 6 + RL_SLOTS };
  rl_object kind = {.is_number = 1, .number = RL_GAE}, dim = {.is_number = 1, .number = 1};
  rl_object half = {.is_number = 1, .number = 0.5}, text = {0};
  rl_object reward = batch(RL_FLOAT, 32), value = batch(RL_FLOAT, 32), next = batch(RL_FLOAT, 32);
  rl_object done = batch(RL_BOOL, 8), out = batch(RL_FLOAT, 32), out2 = batch(RL_FLOAT, 32);
  rl_object *given[ALL] = {&kind, &dim, &half, &half, &half, &half};
  for (int i = 6; i < ALL; i++)
    given[i] = &none;
  given[6 + RL_REWARD] = &reward, given[6 + RL_VALUE] = &value, given[6 + RL_NEXT_VALUE] = &next;
  given[6 + RL_DONE] = given[6 + RL_TERMINATED] = &done, given[6 + RL_OUT] = &out, given[6 + RL_OUT2] = &out2;
  for (int i = 0; i < 6; i++)
    ((float *)reward.tensor.data)[i] = (float)(i + 1);
#define RETURNS(count) rl_returns_called(0, given, count)
  CHECK(RETURNS(ALL) == &yes)
  const float expected[6] = {1 + .25f * (2 + .25f * 3), 2 + .25f * 3, 3, 4 + .25f * (5 + .25f * 6), 5 + .25f * 6, 6};
  CHECK(!memcmp(out.tensor.data, expected, sizeof expected))
  memset(out.tensor.data, 0, sizeof expected);
  CHECK(RETURNS(ALL - 1) == &no)
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    rl_object *const right = given[6 + slot];
    if (right == &none)
      continue;
    const rl_tensor tensor = right->tensor;
#define REFUSED(change)                                                                                                \
  change;                                                                                                              \
  CHECK(RETURNS(ALL) == &no && !raised)                                                                                \
  right->tensor = tensor;
    REFUSED(right->tensor.shape = other_shape)
    REFUSED(right->tensor.strides = apart)
    REFUSED(right->tensor.dims = 2)
    REFUSED(right->tensor.device = 2)
    REFUSED(right->tensor.code = RL_INT)
    REFUSED(right->tensor.bits = 16)
    REFUSED(right->tensor.lanes = 7)
    REFUSED(right->tensor.data = 0)
    given[6 + slot] = &text;
    CHECK(RETURNS(ALL) == &no && !raised)
    given[6 + slot] = right;
    right->wants_gradient = 1;
    CHECK(RETURNS(ALL) == (right == &done ? &yes : &no))
    right->wants_gradient = 0;
    given[6 + slot] = &none;
    CHECK(RETURNS(ALL) == &no)
    given[6 + slot] = right;
    memset(out.tensor.data, 0, sizeof expected);
  }
  given[6 + RL_OUT2] = &out;
  CHECK(RETURNS(ALL) == &no)
  given[6 + RL_OUT2] = &reward;
  CHECK(RETURNS(ALL) == &no)
  given[6 + RL_OUT2] = &out2, given[6 + RL_REWARD] = &none;
  CHECK(RETURNS(ALL) == &no)
  given[6 + RL_REWARD] = &reward;
  for (int wrong = -4; wrong <= 3; wrong += 7) {
    dim.number = wrong;
    CHECK(RETURNS(ALL) == &no)
  }
  dim.number = -2, given[2] = &text;
  CHECK(RETURNS(ALL) == &no && !raised)
  given[2] = &half, given[4] = &text;
  CHECK(RETURNS(ALL) == 0 && raised)
  raised = 0, given[4] = &half;
  for (int i = 0; i < RL_WATCHED; i++) {
    watched[i].is_number = 1;
    CHECK(RETURNS(ALL) == &no)
    watched[i].is_number = 0;
  }
  level.number = 0;
  CHECK(RETURNS(ALL) == &no)
  level.number = -1;
  for (int i = 0; i < 6; i++)
    CHECK(((float *)out.tensor.data)[i] == 0)
  CHECK(!test_new_returns(given, expected))
  rl_object *const used[] = {&reward, &value, &next, &done, &out, &out2};
  for (int i = 0; i < 6; i++)
    free(used[i]->tensor.data);
  return 0;
}

static int test_tree(void) {
  const int64_t capacity = 100, bytes = rl_tree_bytes(capacity, 32);
  rl_object tree = vector(RL_UINT, 8, bytes, 0), index = vector(RL_INT, 64, 3, 1), value = vector(RL_FLOAT, 32, 3, 2);
  rl_object raw = vector(RL_FLOAT, 32, capacity, 3), largest = {.is_tensor = 1, .tensor = value.tensor};
  rl_object seed = {.is_tensor = 1, .tensor = index.tensor}, text = {0}, alpha = {.is_number = 1, .number = 1};
  rl_object rows = {.is_number = 1, .number = 90};
  free(tree.tensor.data);
  tree.tensor.data = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
  memset(tree.tensor.data, 0, (size_t)bytes);
  CHECK(rl_tree_init(tree.tensor.data, capacity, 32) == RL_TREE_OK)
  largest.tensor.dims = seed.tensor.dims = 0;
  largest.tensor.data = calloc(1, 4), seed.tensor.data = calloc(1, 8);
  int64_t *const at = index.tensor.data;
  float *const priority = value.tensor.data;
  for (int i = 0; i < 3; i++)
    at[i] = 40 * i, priority[i] = (float)(i + 1);

  rl_object *set[] = {&tree, &index, &value};
#define ANSWER(call, expected)                                                                                         \
  CHECK((call) == &made && made.number == (expected) && !raised)
  ANSWER(rl_tree_set_called(0, set, 3), 0)
  float found[3];
  CHECK(rl_tree_get(tree.tensor.data, at, found, 3) == RL_TREE_OK && !memcmp(found, priority, sizeof found))
  at[2] = capacity;
  ANSWER(rl_tree_set_called(0, set, 3), RL_TREE_INDEX + 256 * 2)
  at[2] = 95;
  ANSWER(rl_tree_set_called(0, set, 2), -1)
  vector_shape[2][0] = 2;
  ANSWER(rl_tree_set_called(0, set, 3), -1)
  vector_shape[2][0] = 3;
  for (int i = 0; i < 3; i++) {
    rl_object *const right = set[i];
    set[i] = &text;
    ANSWER(rl_tree_set_called(0, set, 3), -1)
    set[i] = &raw; /* no tree, no indices, too many values */
    ANSWER(rl_tree_set_called(0, set, 3), -1)
    set[i] = right;
  }

  rl_object *errors[] = {&tree, &index, &value, &alpha, &alpha, &raw, &largest, &rows};
  ANSWER(rl_tree_set_errors_called(0, errors, 8), RL_TREE_INDEX + 256 * 2)
  at[2] = 80;
  ANSWER(rl_tree_set_errors_called(0, errors, 8), 0)
  CHECK(((float *)raw.tensor.data)[80] == 3 && ((float *)largest.tensor.data)[0] == 3)
  errors[5] = errors[6] = errors[7] = &none;
  ANSWER(rl_tree_set_errors_called(0, errors, 8), 0)
  rl_object *const wrong[] = {&raw, &raw, &raw, &text, &text, &value, &value, &text};
  for (int i = 0; i < 8; i++) {
    rl_object *const right = errors[i];
    errors[i] = wrong[i];
    ANSWER(rl_tree_set_errors_called(0, errors, 8), -1)
    errors[i] = right;
  }
  rows.number = capacity + 1, errors[7] = &rows;
  ANSWER(rl_tree_set_errors_called(0, errors, 8), -1)

  rl_object *draw[] = {&tree, &seed, &no, &none, &rows};
#define DRAW rl_tree_new_sample_called(0, draw, 5)
  rows.number = 3;
  for (int weighted = 0; weighted < 2; weighted++, draw[3] = &alpha) {
    CHECK(DRAW == &pair && pair.held == 1 && rl_is(&wrapped[0].managed->tensor, RL_INT, 64))
    const int64_t *const drawn = wrapped[0].managed->tensor.data;
    const float *const with = wrapped[1].managed->tensor.data;
    for (int i = 0; i < 3; i++)
      CHECK(weighted ? 0 < with[i] && with[i] <= 1 : with[i] == (float)(drawn[i] / 40 + 2)) /* |error| + eps, of 1 */
    CHECK(wrapped[1].managed->tensor.dims == 1 && wrapped[1].managed->tensor.shape[0] == 3)
    drop(wrapped), drop(wrapped + 1), pair.held = 0;
  }
  for (int i = 0; i < 2; i++) {
    rl_object *const right = draw[i];
    draw[i] = &raw;
    ANSWER(DRAW, -1)
    draw[i] = right;
  }
  watched[2].is_number = 1;
  ANSWER(DRAW, -1)
  watched[2].is_number = 0;
  draw[4] = &text;
  CHECK(DRAW == 0 && raised)
  raised = 0, draw[4] = &rows, rows.number = -1;
  ANSWER(DRAW, -1)
  rows.number = 3, memset(tree.tensor.data, 0, (size_t)bytes);
  CHECK(rl_tree_init(tree.tensor.data, capacity, 32) == RL_TREE_OK)
  ANSWER(DRAW, RL_TREE_EMPTY)
  free(tree.tensor.data), free(index.tensor.data), free(value.tensor.data), free(raw.tensor.data);
  free(largest.tensor.data), free(seed.tensor.data);
  return 0;
}

int main(void) {
  rl_python table = {.exchange = &exchange, .tensor = &tensor_class, .requires_grad = &name_of_attribute,
                     .none = &none, .true_ = &yes, .false_ = &no, .float_ = &float_class,
                     .watched = {watched, watched + 1, watched + 2}, .forward = &ad, .level = &name_of_level,
                     .type = type_, .attribute = attribute_, .hold = hold, .drop = drop, .number = number,
                     .nearest = nearest, .from_whole = from_whole, .error = error, .forget = forget, .ask = ask,
                     .truth = truth, .entry = entry, .tuple = tuple, .release = release, .regain = regain};
  exchange.major = 2;
  CHECK(!rl_python_open(&table))
  exchange.major = 1;
  const method *methods = rl_python_open(&table);
  CHECK(methods && methods[0].function == rl_returns_called && !strcmp(methods[0].name, "returns"))
  CHECK(!test_returns() && !test_tree())
  CHECK(!tensor_class.held && !float_class.held && !other_class.held && !level.held && !away)
  return 0;
}
