/* A CUDA runtime that runs nothing: it writes down what would be launched. With it, the code of prio.cu that stays on
 * the computer runs as nvcc compiled it, where there is no GPU. No header of CUDA is read; its C interface is stable. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <map>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

struct Config {
    unsigned grid[3], block[3];
    size_t shared;
    void *stream, *attributes;
    unsigned count;
};

static std::map<const void *, std::string> &kernels() {
    static std::map<const void *, std::string> found;
    return found;
}

static std::vector<Config> launches;
static std::vector<const void *> launched;
static int64_t fails_at = -1; /* which launch */

extern "C" int cudaLaunchKernelExC(const Config *config, const void *kernel, void **) {
    launches.push_back(*config), launched.push_back(kernel);
    return (int64_t)launches.size() - 1 == fails_at ? 719 : 0;
}

extern "C" void __cudaRegisterFunction(void **, const char *kernel, char *, const char *name, int, void *, void *, void *,
                                       void *, int *) {
    kernels()[kernel] = name;
}

/* Forget what was launched; from now on, the launch of this number fails. */
API void recorded_restart(int64_t at) { launches.clear(), launched.clear(), fails_at = at; }
API int64_t recorded_count() { return (int64_t)launches.size(); }

/* Blocks, threads of a block, bytes of shared memory asked for, the stream; returns the name. */
API const char *recorded_launch(int64_t i, int64_t *words) {
    const Config &c = launches[(size_t)i];
    words[0] = (int64_t)c.grid[0] * c.grid[1] * c.grid[2], words[1] = (int64_t)c.block[0] * c.block[1] * c.block[2];
    words[2] = (int64_t)c.shared, words[3] = (int64_t)(intptr_t)c.stream;
    return kernels()[launched[(size_t)i]].c_str();
}

/* The rest only has to be there. */
extern "C" {
static void *nothing;
void **__cudaRegisterFatBinary(void *) { return &nothing; }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 0; }
int __cudaGetKernel(const void **kernel, const void *function) { return *kernel = function, 0; }
int __cudaLaunchKernel(...) { return 1; }
int __cudaPopCallConfiguration(...) { return 1; }
int cudaFuncGetAttributes(void *, const void *) { return 0; }
int cudaGetDeviceProperties(void *, int) { return 100; }
int cudaGetDeviceProperties_v2(void *, int) { return 100; }
const char *cudaGetErrorString(int) { return "recorded"; }
int cudaDriverGetVersion(int *version) { return *version = 13000, 0; }
int cudaRuntimeGetVersion(int *version) { return *version = 13000, 0; }
}
