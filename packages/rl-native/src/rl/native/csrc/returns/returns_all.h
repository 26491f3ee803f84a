/* All that is written once for each type and instruction set; see returns_kernel.h for the macros, which end here. */
#include "returns_kernel.h"
#include "returns_across.h"
#include "returns_chain.h"
#include "returns_rows.h"
#include "returns_scan.h"
#undef VECTOR
#undef REAL
#undef LANES
#undef TILE
#undef FN
#undef V
