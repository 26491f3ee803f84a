/* Selection of the kernel of a job; see recurrent.h for jobs and recurrent_kernel.h for kernels. */

#include "recurrent.h"

#include <stddef.h>
#include <string.h>

#include "../common/dispatch.h"
#include "recurrent_math.h"

#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 8")
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL
#endif

#define COLUMNS 4
#define TILES_OF_ROWS(M, rows) M(rows, 1) M(rows, 2) M(rows, 3) M(rows, 4)
#define TILES_OF_3(M) TILES_OF_ROWS(M, 1) TILES_OF_ROWS(M, 2) TILES_OF_ROWS(M, 3)
#define TILES_OF_6(M) TILES_OF_3(M) TILES_OF_ROWS(M, 4) TILES_OF_ROWS(M, 5) TILES_OF_ROWS(M, 6)

/* Of the widest vectors: whatever the set, the packed weights fit. */
#define WIDEST(bits) (64 * 8 / (bits))

static int64_t packed_bytes(int64_t bits, int64_t hidden) {
  return 4 * hidden * ((hidden + WIDEST(bits) - 1) / WIDEST(bits) * WIDEST(bits)) * (bits / 8);
}

#include "recurrent_plain.h"
#define TARGET
#define TILE 3 /* 16 registers hold 12 sums, 3 numbers of rows, and 1 vector of weights */
#define TILES TILES_OF_3
#define REAL float
#define LANES 4
#define FN(name) name##_f32
#define C(name) name##_f32
#include "recurrent_all.h"
#define REAL double
#define LANES 2
#define FN(name) name##_f64
#define C(name) name##_f64
#include "recurrent_all.h"
#undef TARGET

#if RL_X86
#include "recurrent_avx2.h"
#define TARGET RL_AVX2
#define REAL float
#define LANES 8
#define FN(name) name##_f32_avx2
#define C(name) name##_f32
#include "recurrent_all.h"
#define REAL double
#define LANES 4
#define FN(name) name##_f64_avx2
#define C(name) name##_f64
#include "recurrent_all.h"
#undef TARGET
#undef TILE
#undef TILES

#include "recurrent_avx512.h"
#define TARGET RL_AVX512
#define TILE 6 /* 32 registers hold 24 sums, 6 numbers of rows, and 1 vector of weights */
#define TILES TILES_OF_6
#define REAL float
#define LANES 16
#define FN(name) name##_f32_avx512
#define C(name) name##_f32
#include "recurrent_all.h"
#define REAL double
#define LANES 8
#define FN(name) name##_f64_avx512
#define C(name) name##_f64
#include "recurrent_all.h"
#undef TARGET
#endif

typedef void (*work)(const rl_recurrent_job *);

static work chosen(const rl_recurrent_job *job, const work kernels[][2]) {
  if (job->isa < 0 || job->isa > rl_isa_best())
    return NULL;
  return kernels[job->isa][job->bits == 64];
}

#if RL_X86
#define ALL(name)                                                                                                      \
  {{name##_f32, name##_f64}, {name##_f32_avx2, name##_f64_avx2}, {name##_f32_avx512, name##_f64_avx512}}
#else
#define ALL(name) {{name##_f32, name##_f64}}
#endif

static int is_job(const rl_recurrent_job *job) {
  return job->kind >= RL_LSTM_FORWARD && job->kind < RL_RECURRENT_KINDS && (job->bits == 32 || job->bits == 64) &&
         job->steps >= 0 && job->rows >= 0 && job->hidden >= 0 && 0 <= job->first_row &&
         job->first_row <= job->end_row && job->end_row <= job->rows;
}

/* Whether resets are sorted by step, then row, and their rows are within bounds. */
static int are_resets(const rl_recurrent_job *job) {
  const int64_t *starts = (const int64_t *)(intptr_t)job->reset_starts;
  const int64_t *rows = (const int64_t *)(intptr_t)job->reset_rows;
  if (!starts)
    return 1;
  if (starts[0] != 0 || starts[job->steps] != job->resets)
    return 0;
  for (int64_t t = 0; t < job->steps; t++) {
    if (starts[t] > starts[t + 1] || starts[t + 1] > job->resets)
      return 0;
    for (int64_t k = starts[t], least = 0; k < starts[t + 1]; least = rows[k++] + 1)
      if (rows[k] < least || rows[k] >= job->rows)
        return 0;
  }
  return 1;
}

/* Bytes of scratch memory for jobs of these sizes. */
RL_API int64_t rl_recurrent_room(int64_t bits, int64_t rows, int64_t hidden) {
  return packed_bytes(bits, hidden) + 2 * rows * (int64_t)sizeof(void *);
}

/* Check the job at `bytes` and pack its weights for the set that it names. Writes nothing but the scratch memory. */
RL_API int32_t rl_recurrent_prepare(const void *bytes) {
  static const work kernels[][2] = ALL(pack);
  rl_recurrent_job job;
  memcpy(&job, bytes, sizeof job);
  if (!is_job(&job))
    return RL_RECURRENT_NO_JOB;
  const work pack = chosen(&job, kernels);
  if (!pack)
    return RL_RECURRENT_NO_JOB;
  if (!are_resets(&job))
    return RL_RECURRENT_BAD_RESETS;
  pack(&job);
  return RL_RECURRENT_OK;
}

/* Run the prepared job at `bytes`. Addresses are trusted. */
RL_API int32_t rl_recurrent_run(const void *bytes) {
  static const work kernels[][2] = ALL(run);
  rl_recurrent_job job;
  memcpy(&job, bytes, sizeof job);
  if (!is_job(&job))
    return RL_RECURRENT_NO_JOB;
  const work run = chosen(&job, kernels);
  if (!run)
    return RL_RECURRENT_NO_JOB;
  run(&job);
  return RL_RECURRENT_OK;
}
