// What the driver and the kernels share. The kernels are compiled once per instruction set and must not instantiate
// templates of the standard library: the linker could then run AVX-512 code on a processor that has none.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cnf {

// b instances as plain row-major arrays; the names and formulas are those of `Tables` and `World` in base.py.
struct Task {
    int b, n, d, heads, p, t;  // t: positions in a tour (room for them while rolling out)
    float clip;
    const float *last, *key, *value, *pointer;  // b n d
    const float *bias;                          // b n
    const float *first;                         // b n d or null
    const float *load;                          // d or null
    const float *demand;                        // b n or null
    const int64_t *starts;                      // p
    const int64_t *seeds;                       // b or null: greedy
    // rollout
    int16_t *moves;   // b p t
    int32_t *length;  // b p
    // score
    const int64_t *tours;  // b p t
    const float *weight;   // b p
    float *log_prob;       // b p
    float *total;          // b
    // Gradients of `total`, the shapes of their tables; d_load is b d. All null when not wanted.
    float *d_first, *d_last, *d_key, *d_value, *d_pointer, *d_bias, *d_load;
    const int *stop;  // becomes 1 when the caller wants the work abandoned
};

enum Status { DONE = 0, STOPPED = 1, CANNOT_FINISH = 2, BAD_TOUR = 3 };

struct Kernel {
    const char *name;
    size_t (*rollout_bytes)(const Task &, int rollouts);
    // Rollouts [from, to) of instance i.
    Status (*rollout)(const Task &, int i, int from, int to, void *scratch);
    size_t (*score_bytes)(const Task &);
    Status (*score)(const Task &, int i, void *scratch);
};

// Each returns null where the build has no such version.
const Kernel *kernel_avx512();
const Kernel *kernel_avx2();
const Kernel *kernel_base();

constexpr int MAX_HEADS = 16;
constexpr int MAX_NODES = 32000;  // node numbers are int16

}  // namespace cnf
