/* out[row] += a[row] @ weights, for a tile of TILE rows and up to COLUMNS vectors at a time: sums stay in registers.
 *
 * The weights lie in panels, [depth][vectors of the panel][LANES], in the order in which a tile reads them; lanes
 * behind the last unit hold zeros. The sum runs over the depth from front to back for every element, so that a result
 * depends on neither the number of rows nor the row's place among them. */

typedef struct {
  const REAL *const *a; /* one address per row */
  const REAL *panel;
  int64_t depth;
  REAL *out;
  int64_t pitch, slot; /* of `out`, from row to row and from vector to vector */
  FN(part) inner, last; /* lanes of the last vector, and of those before it */
  int add;              /* 0: the products alone */
} FN(tile);

TARGET RL_INLINE void FN(multiply)(const FN(tile) *tile, const int rows, const int vectors) {
  FN(vector) sum[TILE][COLUMNS];
  const REAL *a[TILE];
  UNROLL
  for (int r = 0; r < rows; r++) {
    a[r] = tile->a[r];
    UNROLL
    for (int v = 0; v < vectors; v++) {
      const REAL *from = tile->out + r * tile->pitch + v * tile->slot;
      sum[r][v] = tile->add ? FN(get)(from, v + 1 == vectors ? tile->last : tile->inner) : FN(all)(0);
    }
  }
  const REAL *panel = tile->panel;
  const FN(part) whole = FN(part_of)(LANES);
  const int64_t depth = tile->depth;
  for (int64_t k = 0; k < depth; k++, panel += vectors * LANES) {
    FN(vector) x[TILE];
    UNROLL
    for (int r = 0; r < rows; r++)
      x[r] = FN(all)(a[r][k]);
    UNROLL
    for (int v = 0; v < vectors; v++) {
      const FN(vector) w = FN(get)(panel + v * LANES, whole);
      UNROLL
      for (int r = 0; r < rows; r++)
        sum[r][v] = FN(times)(x[r], w, sum[r][v]);
    }
  }
  UNROLL
  for (int r = 0; r < rows; r++) {
    UNROLL
    for (int v = 0; v < vectors; v++)
      FN(put)(tile->out + r * tile->pitch + v * tile->slot, sum[r][v], v + 1 == vectors ? tile->last : tile->inner);
  }
}

#define TILE_OF(rows, vectors)                                                                                         \
  TARGET static __attribute__((noinline)) void FN(multiply_##rows##_##vectors)(const FN(tile) *tile) {                 \
    FN(multiply)(tile, rows, vectors);                                                                                 \
  }
TILES(TILE_OF)
#undef TILE_OF

/* `rows` rows, however many. */
TARGET static void FN(product)(FN(tile) tile, int64_t rows, int vectors) {
  typedef void (*kernel)(const FN(tile) *);
#define TILE_OF(rows, vectors) [vectors][rows] = FN(multiply_##rows##_##vectors),
  static const kernel kernels[COLUMNS + 1][TILE + 1] = {TILES(TILE_OF)};
#undef TILE_OF
  for (int64_t left = rows; left > 0; left -= TILE) {
    kernels[vectors][left < TILE ? left : TILE](&tile);
    tile.a += TILE;
    tile.out += TILE * tile.pitch;
  }
}

/* For h @ weight^T: a panel holds the slots (3 or 4) of LANES units. A few columns at a time, so that both what is read
 * and what is written stays in the first cache. */
static void FN(pack_across)(const REAL *restrict weight, int64_t slots, int64_t hidden,
                            REAL *restrict packed) {
  enum { COLUMNS_AT_ONCE = 16 };
  for (int64_t first = 0; first < hidden; first += LANES, packed += hidden * slots * LANES) {
    const int64_t units = hidden - first < LANES ? hidden - first : LANES;
    if (units < LANES)
      memset(packed, 0, (size_t)(hidden * slots * LANES) * sizeof(REAL));
    for (int64_t k0 = 0; k0 < hidden; k0 += COLUMNS_AT_ONCE) {
      const int64_t end = hidden - k0 < COLUMNS_AT_ONCE ? hidden : k0 + COLUMNS_AT_ONCE;
      for (int64_t slot = 0; slot < slots; slot++)
        for (int64_t k = k0; k < end; k++)
          for (int64_t u = 0; u < units; u++)
            packed[(k * slots + slot) * LANES + u] = weight[(slot * hidden + first + u) * hidden + k];
    }
  }
}

/* For grad_gates @ weight: a panel holds up to COLUMNS vectors of units. */
static void FN(pack_along)(const REAL *weight, int64_t depth, int64_t hidden, REAL *packed) {
  for (int64_t first = 0; first < hidden; first += COLUMNS * LANES) {
    const int64_t left = hidden - first, units = left < COLUMNS * LANES ? left : COLUMNS * LANES;
    const int64_t width = (units + LANES - 1) / LANES * LANES;
    for (int64_t k = 0; k < depth; k++, packed += width) {
      memcpy(packed, weight + k * hidden + first, (size_t)units * sizeof(REAL));
      memset(packed + units, 0, (size_t)(width - units) * sizeof(REAL));
    }
  }
}
