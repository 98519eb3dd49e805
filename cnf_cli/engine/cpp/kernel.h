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
    const float *near;                          // b n n or null
    const float *space, *fade;                  // b n n, heads; both or null
    const int16_t *nearest;                     // b n n or null: all nodes are candidates
    int candidates;                             // else so many open ones, the first in the row of where a rollout stands
    const float *demand;                        // b n or null: shares of the capacity, as the policy reads them
    const double *units, *limit;                // b n and b with a demand: what is counted, and what a vehicle carries
    const int64_t *starts;                      // p
    const int64_t *seeds;                       // b or null: greedy
    // rollout
    int16_t *moves;   // b p t
    int32_t *length;  // b p
    // both; null while rolling out: not wanted
    float *log_prob;  // b p
    // score
    const int64_t *tours;  // b p t
    const float *weight;   // b p
    float *total;          // b
    // Gradients of `total`, the shapes of their tables; d_load is b d, d_fade b heads. All null when not wanted.
    float *d_first, *d_last, *d_key, *d_value, *d_pointer, *d_bias, *d_load, *d_near, *d_space, *d_fade;
    const int *stop;  // becomes 1 when the caller wants the work abandoned
};

// One encoder layer's parameters as torch keeps them: a linear map's weight is (outputs x inputs).
struct LayerWeights {
    const float *q, *k, *v, *combine, *combine_bias;  // d d, three times without a bias
    const float *scale1, *shift1;                     // d
    const float *ff1, *ff1_bias, *ff2, *ff2_bias;     // f d, f, d f, d
    const float *scale2, *shift2;                     // d
};
constexpr int LAYER_TENSORS = 13;

// A stack of encoder layers with instance norm on b instances. An item of work is a group of instances.
struct Stack {
    int b, n, d, f, heads, layers, group;
    const LayerWeights *weights;  // layers of them
    float *packed;                // layers * packed_size
    const float *in;              // b n d
    const float *space, *fade;    // b n n, layers heads: attention that falls off with distance; both or null
    float *out;                   // b n d
    float *saved;                 // layers * saved_size, or null when there will be no backward pass
    const float *d_out;           // b n d
    float *d_in;                  // b n d
    float *d_weights;             // groups * layers * weights_size, or null when not wanted
    float *d_space, *d_fade;      // b n n, groups layers heads, both added to; null without space
    const int *stop;
};

inline size_t packed_size(const Stack &s) { return 2 * (4 * size_t(s.d) * s.d + 2 * size_t(s.d) * s.f); }
inline size_t saved_size(const Stack &s) { return size_t(s.b) * (s.n * (6 * size_t(s.d) + s.f) + 2 * size_t(s.d)); }
inline size_t weights_size(const Stack &s) { return 4 * size_t(s.d) * s.d + 2 * size_t(s.d) * s.f + 6 * size_t(s.d) + s.f; }

// The end of a group of instances that begins at `from`.
inline int end_of(int from, int group, int b) { return group < b - from ? from + group : b; }

// Attention of b instances whose scores are mixed with costs, for each head by a network of HIDDEN units. An item of work is
// a group of instances; with d_out it is the backward pass.
constexpr int HIDDEN = 16, MIXING_WEIGHTS = 4 * HIDDEN + 1;
struct Mixed {
    int b, n, d, heads, group;
    bool flipped;                                    // cost[j][i] lies between query i and key j
    const float *q, *k, *v;                          // b n d
    const float *cost;                               // b n n
    const float *weight1, *bias1, *weight2, *bias2;  // heads x (2 HIDDEN), HIDDEN, HIDDEN, 1
    float *out;                                      // b n d
    const float *d_out;                              // b n d or null
    float *d_q, *d_k, *d_v;                          // b n d
    float *d_cost;                                   // b n n, or null when not wanted
    float *d_weights;                                // groups x heads x MIXING_WEIGHTS, added to: both rows of weight1, bias1, weight2, bias2
    const int *stop;
};

// How often kernels have looked whether they are to stop, since the program began; tests count on it.
inline int64_t looks = 0;

// What an item of work came to. NOT_FINITE: the score of some open node is NaN or infinite, so there is none to choose.
enum Status { DONE = 0, STOPPED = 1, CANNOT_FINISH = 2, BAD_TOUR = 3, NOT_FINITE = 4 };

struct Kernel {
    const char *name;
    size_t (*rollout_bytes)(const Task &, int rollouts);
    // Rollouts [from, to) of instance i.
    Status (*rollout)(const Task &, int i, int from, int to, void *scratch);
    size_t (*score_bytes)(const Task &);
    Status (*score)(const Task &, int i, void *scratch);
    void (*pack)(const Stack &, int layer, bool backward);
    size_t (*stack_bytes)(const Stack &);
    Status (*forward)(const Stack &, int group, void *scratch);
    Status (*backward)(const Stack &, int group, void *scratch);
    size_t (*mixed_bytes)(const Mixed &);
    Status (*mixed)(const Mixed &, int group, void *scratch);
};

// Each returns null where the build has no such version.
const Kernel *kernel_avx512();
const Kernel *kernel_avx2();
const Kernel *kernel_base();

constexpr int MAX_HEADS = 16;
constexpr int MAX_NODES = 32000;  // node numbers are int16

}  // namespace cnf
