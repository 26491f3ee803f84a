/* Priority trees in the memory of a GPU, behind plain C functions.
 *
 * A tree is one buffer without pointers, the same byte for byte as a tree of rl-native; layout.h says how it lies. Beside
 * it is a workspace. The caller allocates both: on the device, filled with zeros, at a multiple of 16 bytes.
 *
 * Whatever takes a `stream` only launches kernels there: it allocates nothing, waits for nothing, and decides by its
 * arguments alone, so that it can be captured in a graph. The current device is the one that the memory is on. Such a
 * function returns 0, or the number of a CUDA error; 1 (invalid value) for arguments that cannot be, before anything
 * is launched.
 *
 * What can be seen only on the device (a bad index, a bad priority) is refused there. The first three words of the
 * workspace then say so: int64 code, int64 place in the batch, double value. The first refusal stays until the caller
 * has read them and set them to zero; what comes later is refused, or done, all the same. A refused update writes
 * neither leaves, nor `raw`, nor `largest`; the place is the first one, indices before priorities. Sampling and getting
 * leave out only the places that they refuse, and tell one of them.
 *
 * One writer at a time for a tree and its workspace.
 */
#ifndef RL_PRIO_H
#define RL_PRIO_H

#include <stdint.h>

#if defined(_WIN32)
#define RL_API __declspec(dllexport)
#else
#define RL_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Codes in the workspace; those of rl-native. */
enum {
    RL_PRIO_OK = 0,
    RL_PRIO_INDEX = 1,    /* an index is outside of the tree, or not below `rows` */
    RL_PRIO_PRIORITY = 2, /* a priority is negative, infinite or not a number */
    RL_PRIO_EMPTY = 3,    /* the total is zero */
    RL_PRIO_OVERFLOW = 4, /* the total is infinite */
    RL_PRIO_UNIFORM = 5,  /* a given u is outside of [0, 1) */
    RL_PRIO_DAMAGED = 6   /* the leaves beyond the capacity are not zero */
};

/* The largest batch that one launch of one block updates. */
enum { RL_PRIO_SINGLE = 1024 };

/* Of this interface. */
RL_API int rl_prio_version(void);

/* Bytes of a tree of `capacity` leaves of `bits` (32, 64) bits each; -1 if the arguments are invalid. */
RL_API int64_t rl_prio_bytes(int64_t capacity, int64_t bits);

/* Offset of the leaves in the buffer; -1 if the arguments are invalid. */
RL_API int64_t rl_prio_leaves_at(int64_t capacity, int64_t bits);

/* Bytes of the workspace; -1 if the arguments are invalid. */
RL_API int64_t rl_prio_workspace_bytes(int64_t capacity);

/* Load the kernels for leaves of `bits` bits onto the current device, which otherwise happens at the first launch of
 * each: too late if a graph is being captured then. An error if the library does not contain code for the device. */
RL_API int rl_prio_load(int64_t bits);

/* Initialize an empty tree in a zeroed buffer, and load the kernels. */
RL_API int rl_prio_init(void *tree, int64_t capacity, int64_t bits, void *stream);

/* Set priorities `[n]`, or one for all (`step` 0, else 1); of a repeated index the last one counts. An index is refused
 * if it is not below `rows`, which is at most the capacity. */
RL_API int rl_prio_set(void *tree, void *work, int64_t capacity, int64_t bits, const int64_t *index,
                       const void *priority, int64_t n, int64_t step, int64_t rows, void *stream);

/* Set priorities to (|error| + eps)^alpha, eps and alpha finite and not negative. If `raw` [capacity] is given, also
 * raw[index] = error; if `largest` [] is given, which is not negative, also largest = max(largest, |error|). */
RL_API int rl_prio_set_errors(void *tree, void *work, int64_t capacity, int64_t bits, const int64_t *index,
                              const void *error, int64_t n, int64_t step, double eps, double alpha, void *raw,
                              void *largest, int64_t rows, void *stream);

/* Sample n leaves with u in [0, 1); stratified: sample i is from the i-th of n equal parts of the total. `priority` and
 * `weight` may be NULL; a weight is (priority / smallest priority)^-beta. Index, priority and weight of a rejected sample
 * are 0. */
RL_API int rl_prio_sample(const void *tree, void *work, int64_t capacity, int64_t bits, const double *u, int64_t n,
                          int stratified, double beta, int64_t *index, void *priority, void *weight, void *stream);

/* Priorities at `index`; 0 where an index is refused. */
RL_API int rl_prio_get(const void *tree, void *work, int64_t capacity, int64_t bits, const int64_t *index,
                       void *priority, int64_t n, void *stream);

/* Validate all leaves, then recompute all nodes. */
RL_API int rl_prio_rebuild(void *tree, void *work, int64_t capacity, int64_t bits, void *stream);

/* For tests and benchmarks: update batches of up to `most` in one block (at most RL_PRIO_SINGLE, which -1 means too),
 * larger ones by several launches. Returns the limit in use from now on. */
RL_API int64_t rl_prio_single(int64_t most);

/* What the number of a CUDA error means. */
RL_API const char *rl_prio_message(int status);

/* Versions of CUDA that the driver offers (0: no driver) and that this library was built with, 1000 major + 10 minor. */
RL_API int rl_prio_driver(int *driver, int *runtime);

/* Compute capability of a device, and its name in at most `room` bytes. */
RL_API int rl_prio_device(int device, int *major, int *minor, char *name, int64_t room);

#ifdef __cplusplus
}
#endif

#endif
