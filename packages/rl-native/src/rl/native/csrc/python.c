#include "python.h"

#include <string.h>

/* DLPackExchangeAPI, as far as it is used. */
typedef struct {
  uint32_t major, minor;
  void *older;
  void *allocate, *take, *give;
  int (*look)(void *object, rl_tensor *found);
} rl_exchange;

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
    {"tree_set", rl_tree_set_called, FASTCALL, 0},
    {"tree_set_errors", rl_tree_set_errors_called, FASTCALL, 0},
    {"tree_sample", rl_tree_sample_called, FASTCALL, 0},
    {0, 0, 0, 0},
};

rl_python rl_py;
static const rl_exchange *exchange;

/* Take the addresses. Gives the declarations of functions, the last one empty; 0 if PyTorch's table is of a version
 * that is not known here. */
RL_API const rl_method *rl_python_open(const void *table) {
  memcpy(&rl_py, table, sizeof rl_py);
  exchange = rl_py.exchange;
  return exchange->major == 1 && exchange->look ? METHODS : 0;
}

int rl_look(rl_object *object, rl_tensor *found) {
  rl_object *type = rl_py.type(object);
  rl_py.drop(type); /* its objects keep it */
  if (type != rl_py.tensor)
    return 0;
  if (exchange->look(object, found)) { /* sparse, quantized, or without memory of its own */
    rl_py.forget();
    return 0;
  }
  return found->device == RL_CPU && found->data;
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
