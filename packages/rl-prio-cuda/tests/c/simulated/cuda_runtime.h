/* As much of CUDA as prio.cu uses, for a C++ compiler: threads of a block are fibers, and take turns where threads of a
 * GPU wait for each other. A barrier that not all threads reach, and a shuffle that lanes of its mask do not join, are
 * errors. Blocks run one after another. */
#ifndef SIMULATED_CUDA_RUNTIME_H
#define SIMULATED_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <functional>

#define __CUDACC__ 1
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads)
#define __shared__ static /* one block at a time */

struct dim3 {
    unsigned x;
    dim3(unsigned x = 1) : x(x) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) double2 {
    double x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

template <class T>
T __ldg(const T *p) {
    return *p;
}

/* Fibers change only at barriers and shuffles. */
template <class T>
T atomicCAS(T *p, T was, T now) {
    const T old = *p;
    if (old == was) *p = now;
    return old;
}
template <class T>
T atomicMax(T *p, T x) {
    const T old = *p;
    if (x > old) *p = x;
    return old;
}

template <class TO, class FROM>
TO simulated_bits(FROM x) {
    TO bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline int __float_as_int(float x) { return simulated_bits<int>(x); }
inline long long __double_as_longlong(double x) { return simulated_bits<long long>(x); }
inline float __logf(float x) { return logf(x); }

void __syncthreads();
double simulated_shuffle(unsigned mask, double x, int apart);
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int apart, int) {
    return (T)simulated_shuffle(mask, (double)x, apart);
}

typedef int cudaError_t;
typedef void *cudaStream_t;
enum { cudaSuccess = 0 };
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    cudaStream_t stream;
};
struct cudaFuncAttributes {};
struct cudaDeviceProp {
    int major, minor;
    char name[256];
};

void simulated_launch(unsigned blocks, unsigned threads, const std::function<void()> &kernel);
template <class ARGS>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(const ARGS), const ARGS &args) {
    simulated_launch(config->gridDim.x, config->blockDim.x, [&] { kernel(args); });
    return cudaSuccess;
}
template <class KERNEL>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, KERNEL *) {
    return cudaSuccess;
}
inline const char *cudaGetErrorString(cudaError_t) { return "simulated"; }
inline cudaError_t cudaDriverGetVersion(int *version) { return *version = 0; }
inline cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 0; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int) { return 100; }

#endif
