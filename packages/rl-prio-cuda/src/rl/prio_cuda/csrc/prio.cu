/* Launches of the kernels on a GPU. */
#include "on_device.h"

#include <stdio.h>

/* Arguments stay where the launch put them: nothing is copied into the stack of threads. */
template <class BODY>
__global__ void __launch_bounds__(BODY::THREADS) rl_kernel(const __grid_constant__ typename BODY::Args args) {
    __shared__ typename BODY::Shared shared;
    BODY::run(rl_block(), args, shared);
}

/* Returns the status of this launch only, not an earlier CUDA error. */
template <class BODY>
static int rl_launch(int64_t blocks, int64_t threads, const typename BODY::Args &args, void *stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks), config.blockDim = dim3((unsigned)threads);
    config.stream = (cudaStream_t)stream;
    return (int)cudaLaunchKernelEx(&config, rl_kernel<BODY>, args);
}

/* Asking for a kernel's attributes loads it. */
template <class... BODY>
static int rl_load() {
    cudaFuncAttributes attributes;
    cudaError_t status = cudaSuccess;
    ((status = status ? status : cudaFuncGetAttributes(&attributes, rl_kernel<BODY>)), ...);
    return (int)status;
}

#include "entry.h"

#define RL_QUOTED(word) #word
#define RL_TEXT(word) RL_QUOTED(word)
#ifndef RL_PRIO_STAMP
#define RL_PRIO_STAMP none
#endif

extern "C" {

/* What the build calls itself: Python does not call a library of another version. */
extern RL_API const char rl_prio_stamp[];
const char rl_prio_stamp[] = RL_TEXT(RL_PRIO_STAMP);

const char *rl_prio_message(int status) { return cudaGetErrorString((cudaError_t)status); }

int rl_prio_driver(int *driver, int *runtime) {
    *driver = *runtime = 0;
    const cudaError_t status = cudaDriverGetVersion(driver);
    return (int)(status ? status : cudaRuntimeGetVersion(runtime));
}

int rl_prio_device(int device, int *major, int *minor, char *name, int64_t room) {
    cudaDeviceProp properties;
    const cudaError_t status = cudaGetDeviceProperties(&properties, device);
    if (status) return (int)status;
    *major = properties.major, *minor = properties.minor;
    if (room > 0) snprintf(name, (size_t)room, "%s", properties.name);
    return 0;
}

} // extern "C"
