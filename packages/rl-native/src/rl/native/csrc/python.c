#include "python.h"

#include <stdlib.h>
#include <string.h>

/* DLPackExchangeAPI, as far as it is used. */
typedef struct {
  uint32_t major, minor;
  void *older;
  void *allocate, *take;
  int (*give)(rl_managed *managed, void **object);
  int (*look)(void *object, rl_tensor *found);
} rl_exchange;

/* DLManagedTensorVersioned. */
struct rl_managed {
  uint32_t major, minor;
  void *context;
  void (*drop)(rl_managed *);
  uint64_t flags;
  rl_tensor tensor;
};

/* PyMethodDef. */
typedef struct {
  const char *name;
  rl_function function;
  int flags;
  const char *doc;
} rl_method;

enum { FASTCALL = 0x80 };

static const rl_method METHODS[] = {
    {"returns", rl_returns_called, FASTCALL, 0},
    {"new_returns", rl_new_returns_called, FASTCALL, 0},
    {"tree_set", rl_tree_set_called, FASTCALL, 0},
    {"tree_set_errors", rl_tree_set_errors_called, FASTCALL, 0},
    {"tree_new_sample", rl_tree_new_sample_called, FASTCALL, 0},
    {0, 0, 0, 0},
};

rl_python rl_py;
static const rl_exchange *exchange;

/* Take the addresses. Gives the declarations of functions, the last one empty; 0 if PyTorch's table is of a version
 * that is not known here. */
RL_API const rl_method *rl_python_open(const void *table) {
  memcpy(&rl_py, table, sizeof rl_py);
  exchange = rl_py.exchange;
  return exchange->major == 1 && exchange->give && exchange->look ? METHODS : 0;
}

int rl_is_exactly(rl_object *object, rl_object *type) {
  rl_object *found = rl_py.type(object);
  rl_py.drop(found); /* its objects keep it */
  return found == type;
}

int rl_look(rl_object *object, rl_tensor *found) {
  if (!rl_is_exactly(object, rl_py.tensor))
    return 0;
  if (exchange->look(object, found)) { /* sparse, quantized, or without memory of its own */
    rl_py.forget();
    return 0;
  }
  return found->device == RL_CPU && found->data;
}

/* Whether that is so; also if it cannot be told. */
static int so(rl_object *answer) {
  const int found = answer ? rl_py.truth(answer) : 1;
  if (answer)
    rl_py.drop(answer);
  else
    rl_py.forget();
  return found;
}

int rl_watched(void) {
  for (int i = 0; i < RL_WATCHED; i++)
    if (so(rl_py.ask(rl_py.watched[i])))
      return 1;
  rl_object *const level = rl_py.entry(rl_py.forward, rl_py.level);
  if (!level)
    return so(level);
  return rl_whole(level) >= 0;
}

int rl_wants_gradient(rl_object *tensor) {
  rl_object *answer = rl_py.attribute(tensor, rl_py.requires_grad);
  if (!answer) {
    rl_py.forget();
    return 1;
  }
  rl_py.drop(answer); /* a constant */
  return answer != rl_py.false_;
}

static void drop(rl_managed *managed) { free(managed); }

rl_managed *rl_new(const rl_tensor *dense) {
  const size_t line = 64, sizes = sizeof(int64_t) * (size_t)dense->dims, head = sizeof(rl_managed) + 2 * sizes;
  rl_managed *made = malloc(head + line + (size_t)(rl_elements(dense) * dense->bits / 8));
  if (!made)
    return 0;
  int64_t *const shape = (int64_t *)(made + 1), *const strides = shape + dense->dims;
  memcpy(shape, dense->shape, sizes), memcpy(strides, dense->strides, sizes);
  const rl_managed all = {exchange->major, exchange->minor, 0, drop, 0, *dense};
  *made = all;
  made->tensor.data = (void *)(((uintptr_t)made + head + line - 1) / line * line);
  made->tensor.offset = 0, made->tensor.shape = shape, made->tensor.strides = strides;
  return made;
}

void *rl_memory(const rl_managed *managed) { return managed->tensor.data; }

rl_object *rl_wrapped(rl_managed *managed) {
  void *object;
  return exchange->give(managed, &object) ? 0 : object;
}

rl_object *rl_both(rl_managed *one, rl_managed *other) {
  rl_object *const first = rl_wrapped(one), *const second = first ? rl_wrapped(other) : 0;
  rl_object *const answer = second ? rl_py.tuple(2, first, second) : 0;
  if (first)
    rl_py.drop(first);
  else
    free(other);
  if (second)
    rl_py.drop(second);
  return answer;
}

int64_t rl_elements(const rl_tensor *tensor) {
  int64_t elements = 1;
  for (int i = 0; i < tensor->dims; i++)
    elements *= tensor->shape[i];
  return elements;
}

int rl_dense(const rl_tensor *tensor) {
  int64_t expected = 1;
  for (int i = tensor->dims - 1; i >= 0; i--) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected)
      return 0;
    expected *= tensor->shape[i];
  }
  return 1;
}
