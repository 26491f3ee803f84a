/* The loops over time, for the rows first_row ... end_row - 1; see recurrent.h for what the tensors of a job hold. */

#define AT(type, field) ((type *)(intptr_t)job->field)

/* Addresses of the states of each row before step t: those after the step before, `first` before the first, or what
 * replaces them at a reset. */
static void FN(states_before)(const rl_recurrent_job *job, int64_t t, const REAL *first, const REAL *after,
                              const REAL *given, const REAL **before) {
  const int64_t hidden = job->hidden;
  const REAL *from = t ? after + (t - 1) * job->rows * hidden : first;
  for (int64_t b = job->first_row; b < job->end_row; b++)
    before[b] = from + b * hidden;
  if (!job->reset_starts)
    return;
  const int64_t *rows = AT(int64_t, reset_rows), *starts = AT(int64_t, reset_starts);
  for (int64_t k = starts[t]; k < starts[t + 1]; k++)
    if (rows[k] >= job->first_row && rows[k] < job->end_row)
      before[rows[k]] = given + k * hidden;
}

/* A reset ends the chain of gradients: what arrives there belongs to the state that was given. */
static void FN(cut)(const rl_recurrent_job *job, int64_t t, REAL *grad, REAL *grad_given) {
  if (!job->reset_starts)
    return;
  const int64_t *rows = AT(int64_t, reset_rows), *starts = AT(int64_t, reset_starts), hidden = job->hidden;
  for (int64_t k = starts[t]; k < starts[t + 1]; k++) {
    if (rows[k] < job->first_row || rows[k] >= job->end_row)
      continue;
    if (grad_given)
      memcpy(grad_given + k * hidden, grad + rows[k] * hidden, (size_t)hidden * sizeof(REAL));
    memset(grad + rows[k] * hidden, 0, (size_t)hidden * sizeof(REAL));
  }
}

/* Set the rows of this call in a matrix [rows, hidden] to zero. */
static void FN(clear)(const rl_recurrent_job *job, REAL *rows) {
  const int64_t count = (job->end_row - job->first_row) * job->hidden;
  memset(rows + job->first_row * job->hidden, 0, (size_t)count * sizeof(REAL));
}

RL_INLINE int64_t FN(least)(int64_t a, int64_t b) { return a < b ? a : b; }

/* For each step: the gates of LANES units get the product with the state before, tile by tile, and are activated while
 * they are in the cache. A panel of `packed` has the weights of these units for all four slots. */
TARGET static void FN(lstm_forward)(const rl_recurrent_job *job, const REAL *packed, const REAL **before_h,
                                    const REAL **before_c) {
  const int64_t hidden = job->hidden, rows = job->rows;
  REAL *h = AT(REAL, h), *c = AT(REAL, c);
  for (int64_t t = 0; t < job->steps; t++) {
    FN(states_before)(job, t, AT(REAL, h0), h, AT(REAL, reset_h), before_h);
    FN(states_before)(job, t, AT(REAL, c0), c, AT(REAL, reset_c), before_c);
    for (int64_t u = 0; u < hidden; u += LANES) {
      const FN(part) part = FN(part_of)((int)FN(least)(LANES, hidden - u));
      FN(tile) tile = {.panel = packed + u * 4 * hidden, .depth = hidden, .pitch = 4 * hidden, .slot = hidden,
                       .inner = part, .last = part, .add = 1};
      for (int64_t b = job->first_row; b < job->end_row; b += TILE) {
        const int64_t count = FN(least)(TILE, job->end_row - b);
        tile.a = before_h + b;
        tile.out = AT(REAL, gates) + (t * rows + b) * 4 * hidden + u;
        FN(product)(tile, count, 4);
        for (int64_t r = b; r < b + count; r++) {
          const int64_t at = (t * rows + r) * hidden + u;
          FN(lstm_row_forward)(tile.out + (r - b) * 4 * hidden, hidden, before_c[r] + u, h + at, c + at, part);
        }
      }
    }
  }
}

/* As for the LSTM. The product goes to the slots r, z and m; slot n has only the inputs, as r multiplies m before. */
TARGET static void FN(gru_forward)(const rl_recurrent_job *job, const REAL *packed, const REAL **before_h) {
  const int64_t hidden = job->hidden, rows = job->rows;
  REAL *h = AT(REAL, h);
  for (int64_t t = 0; t < job->steps; t++) {
    FN(states_before)(job, t, AT(REAL, h0), h, AT(REAL, reset_h), before_h);
    for (int64_t u = 0; u < hidden; u += LANES) {
      const FN(part) part = FN(part_of)((int)FN(least)(LANES, hidden - u));
      FN(tile) tile = {.panel = packed + u * 3 * hidden, .depth = hidden, .pitch = 4 * hidden, .slot = hidden,
                       .inner = part, .last = part, .add = 1};
      for (int64_t b = job->first_row; b < job->end_row; b += TILE) {
        const int64_t count = FN(least)(TILE, job->end_row - b);
        REAL *gates = AT(REAL, gates) + (t * rows + b) * 4 * hidden + u;
        tile.a = before_h + b;
        tile.out = gates + hidden;
        FN(product)(tile, count, 3);
        for (int64_t r = b; r < b + count; r++)
          FN(gru_row_forward)(gates + (r - b) * 4 * hidden, hidden, before_h[r] + u, h + (t * rows + r) * hidden + u,
                              part);
      }
    }
  }
}

/* grad = (add ? grad : 0) + grad_gates[t][..., from:] @ weight, for the rows of this call. */
TARGET static void FN(product_backward)(const rl_recurrent_job *job, int64_t t, int64_t from, int add,
                                        const REAL *packed, const REAL **a, REAL *grad) {
  const int64_t hidden = job->hidden, depth = 4 * hidden - from;
  for (int64_t b = job->first_row; b < job->end_row; b++)
    a[b] = AT(REAL, grad_gates) + (t * job->rows + b) * 4 * hidden + from;
  FN(tile) tile = {.a = a + job->first_row, .depth = depth, .pitch = hidden, .slot = LANES, .add = add,
                   .inner = FN(part_of)(LANES)};
  for (int64_t u = 0; u < hidden; u += COLUMNS * LANES) {
    const int64_t left = FN(least)(COLUMNS * LANES, hidden - u), vectors = (left + LANES - 1) / LANES;
    tile.last = FN(part_of)((int)(left - (vectors - 1) * LANES));
    tile.panel = packed + u * depth;
    tile.out = grad + job->first_row * hidden + u;
    FN(product)(tile, job->end_row - job->first_row, (int)vectors);
  }
}

/* Back through time. dh and dc are the gradients of the states before step t + 1: they end in grad_h0 and grad_c0, and at
 * a reset in those of the states that were given. */
TARGET static void FN(lstm_backward)(const rl_recurrent_job *job, const REAL *packed, const REAL **before_c,
                                     const REAL **a) {
  const int64_t hidden = job->hidden;
  const REAL *c = AT(REAL, c), *grad_h = AT(REAL, grad_h), *grad_c = AT(REAL, grad_c);
  REAL *dh = AT(REAL, grad_h0), *dc = AT(REAL, grad_c0);
  FN(clear)(job, dh);
  FN(clear)(job, dc);
  for (int64_t t = job->steps - 1; t >= 0; t--) {
    FN(states_before)(job, t, AT(REAL, c0), c, AT(REAL, reset_c), before_c);
    for (int64_t b = job->first_row; b < job->end_row; b++) {
      const int64_t row = t * job->rows + b;
      for (int64_t u = 0; u < hidden; u += LANES) {
        const int64_t at = row * hidden + u;
        FN(lstm_row_backward)(AT(REAL, gates) + 4 * row * hidden + u, hidden, before_c[b] + u, c + at, grad_h + at,
                              grad_c ? grad_c + at : NULL, dh + b * hidden + u, dc + b * hidden + u,
                              AT(REAL, grad_gates) + 4 * row * hidden + u,
                              FN(part_of)((int)FN(least)(LANES, hidden - u)));
      }
    }
    FN(product_backward)(job, t, 0, 0, packed, a, dh);
    FN(cut)(job, t, dh, AT(REAL, grad_reset_h));
    FN(cut)(job, t, dc, AT(REAL, grad_reset_c));
  }
}

/* As for the LSTM; the product adds to dh, which has the part that passes by the gate z. */
TARGET static void FN(gru_backward)(const rl_recurrent_job *job, const REAL *packed, const REAL **before_h,
                                    const REAL **a) {
  const int64_t hidden = job->hidden;
  const REAL *grad_h = AT(REAL, grad_h);
  REAL *dh = AT(REAL, grad_h0);
  FN(clear)(job, dh);
  for (int64_t t = job->steps - 1; t >= 0; t--) {
    FN(states_before)(job, t, AT(REAL, h0), AT(REAL, h), AT(REAL, reset_h), before_h);
    for (int64_t b = job->first_row; b < job->end_row; b++) {
      const int64_t row = t * job->rows + b;
      for (int64_t u = 0; u < hidden; u += LANES)
        FN(gru_row_backward)(AT(REAL, gates) + 4 * row * hidden + u, hidden, before_h[b] + u, grad_h + row * hidden + u,
                             dh + b * hidden + u, AT(REAL, grad_gates) + 4 * row * hidden + u,
                             FN(part_of)((int)FN(least)(LANES, hidden - u)));
    }
    FN(product_backward)(job, t, hidden, 1, packed, a, dh);
    FN(cut)(job, t, dh, AT(REAL, grad_reset_h));
  }
}

/* Copy the weights into the scratch memory, in the order in which the products of this kind of job read them. */
static void FN(pack)(const rl_recurrent_job *job) {
  const int64_t slots = job->kind == RL_LSTM_FORWARD || job->kind == RL_LSTM_BACKWARD ? 4 : 3;
  if (job->kind == RL_LSTM_FORWARD || job->kind == RL_GRU_FORWARD)
    FN(pack_across)(AT(REAL, weight), slots, job->hidden, AT(REAL, scratch));
  else
    FN(pack_along)(AT(REAL, weight), slots * job->hidden, job->hidden, AT(REAL, scratch));
}

/* Run a prepared job. The scratch memory has the packed weights, and then one or two addresses for each row. */
static void FN(run)(const rl_recurrent_job *job) {
  const REAL *packed = AT(REAL, scratch);
  const REAL **rows = (const REAL **)(intptr_t)(job->scratch + packed_bytes(job->bits, job->hidden));
  switch (job->kind) {
  case RL_LSTM_FORWARD:
    FN(lstm_forward)(job, packed, rows, rows + job->rows);
    return;
  case RL_LSTM_BACKWARD:
    FN(lstm_backward)(job, packed, rows, rows + job->rows);
    return;
  case RL_GRU_FORWARD:
    FN(gru_forward)(job, packed, rows);
    return;
  default:
    FN(gru_backward)(job, packed, rows, rows + job->rows);
  }
}

#undef AT
