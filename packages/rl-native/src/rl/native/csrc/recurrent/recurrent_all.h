/* All that is written once for each type and instruction set; see recurrent_kernel.h for the macros, which end here. */
#include "recurrent_kernel.h"
#include "recurrent_product.h"
#include "recurrent_loops.h"
#undef REAL
#undef LANES
#undef FN
#undef C
