/* Tensors as Python passes them.
 *
 * To ask a tensor for its type, shape and address takes Python as long as many a kernel runs. Here C asks, through
 * addresses that Python hands over once: PyTorch's table of DLPack functions (DLPack 1.3, `DLPackExchangeAPI`), which
 * is public and the same for every build, and functions of Python's stable interface. Nothing is linked. */
#ifndef RL_PYTHON_H
#define RL_PYTHON_H

#include <stdint.h>

#include "dispatch.h"

typedef struct rl_object rl_object; /* a PyObject, which only Python looks into */

/* DLTensor. */
typedef struct {
  void *data;
  int32_t device, device_number;
  int32_t dims;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides; /* strides in elements */
  uint64_t offset;                /* of the first element behind `data`, in bytes */
} rl_tensor;

enum { RL_CPU = 1 };                                        /* of `device` */
enum { RL_INT = 0, RL_UINT = 1, RL_FLOAT = 2, RL_BOOL = 6 }; /* of `code` */

enum { RL_WATCHED = 3 };

/* What C calls of Python; `rl_python_open` fills it. */
typedef struct {
  void *exchange; /* PyTorch's DLPackExchangeAPI */
  rl_object *tensor, *requires_grad, *none, *true_, *false_; /* a class, the name of an attribute, and constants */
  rl_object *float_;                                         /* another class */
  rl_object *watched[RL_WATCHED], *forward, *level;          /* see rl_watched */
  rl_object *(*type)(rl_object *);                           /* PyObject_Type, which gives a reference */
  rl_object *(*attribute)(rl_object *, rl_object *);         /* PyObject_GetAttr, likewise */
  void (*hold)(rl_object *);                                 /* Py_IncRef */
  void (*drop)(rl_object *);                                 /* Py_DecRef */
  double (*number)(rl_object *);                             /* PyFloat_AsDouble */
  intptr_t (*nearest)(rl_object *, rl_object *);             /* PyNumber_AsSsize_t, see rl_whole */
  rl_object *(*from_whole)(int64_t);                         /* PyLong_FromLongLong */
  rl_object *(*error)(void);                                 /* PyErr_Occurred */
  void (*forget)(void);                                      /* PyErr_Clear */
  rl_object *(*ask)(rl_object *);                            /* PyObject_CallNoArgs, which gives a reference */
  int (*truth)(rl_object *);                                 /* PyObject_IsTrue */
  rl_object *(*entry)(rl_object *, rl_object *);             /* PyDict_GetItemWithError, which gives none */
  rl_object *(*tuple)(intptr_t, ...);                        /* PyTuple_Pack, which gives one, too */
  void *(*release)(void);                                    /* PyEval_SaveThread */
  void (*regain)(void *);                                    /* PyEval_RestoreThread */
} rl_python;

extern rl_python rl_py;

/* A function as Python declares one (PyMethodDef), called with its arguments in an array. */
typedef rl_object *(*rl_function)(rl_object *self, rl_object *const *arguments, intptr_t count);

/* Whether an object is of a class itself, not of one that is derived from it. */
int rl_is_exactly(rl_object *object, rl_object *type);

/* Look at an object; 0 unless it is a plain tensor, of class Tensor itself, whose elements lie on the CPU. */
int rl_look(rl_object *object, rl_tensor *found);

/* Whether somebody looks at the operators that run, or derivatives travel forward, so that what C computes is lost:
 * as `is_traced` in _traced.py, but for the compiler, which never comes here. */
int rl_watched(void);

/* Whether gradients are asked for. */
int rl_wants_gradient(rl_object *tensor);

/* Memory for a dense tensor of this shape and type, on the CPU, and what says so; 0 if there is none. To be given to
 * `free`, or to one of the two below. */
typedef struct rl_managed rl_managed;
rl_managed *rl_new(const rl_tensor *dense);
void *rl_memory(const rl_managed *managed);

/* A tensor whose the memory is from now on, and a tuple of two such; 0 with an exception. */
rl_object *rl_wrapped(rl_managed *managed);
rl_object *rl_both(rl_managed *one, rl_managed *other);

/* How many elements, and whether they lie one behind the other. */
int64_t rl_elements(const rl_tensor *tensor);
int rl_dense(const rl_tensor *tensor);

static inline int rl_is(const rl_tensor *tensor, int code, int bits) {
  return tensor->code == code && tensor->bits == bits && tensor->lanes == 1;
}

/* A whole number; one that is too large is the largest that fits, as it is too large for all that it counts. */
static inline int64_t rl_whole(rl_object *number) { return rl_py.nearest(number, 0); }

/* Address of the first element. */
static inline char *rl_start(const rl_tensor *tensor) { return (char *)tensor->data + tensor->offset; }

rl_object *rl_returns_called(rl_object *self, rl_object *const *arguments, intptr_t count);
rl_object *rl_new_returns_called(rl_object *self, rl_object *const *arguments, intptr_t count);
rl_object *rl_tree_set_called(rl_object *self, rl_object *const *arguments, intptr_t count);
rl_object *rl_tree_set_errors_called(rl_object *self, rl_object *const *arguments, intptr_t count);
rl_object *rl_tree_new_sample_called(rl_object *self, rl_object *const *arguments, intptr_t count);

#endif
