// The kernels of one instruction set; compiled once per set with CNF_ISA naming it.
#include "layers.h"
#include "mixing.h"
#include "rollout.h"
#include "score.h"

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace cnf {
namespace CNF_ISA {

// Numbers below 1e-38 are worth nothing here and slow the processor down a hundredfold.
struct FlushTiny {
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();
    FlushTiny() { _mm_setcsr(before | 0x8040); }
    ~FlushTiny() { _mm_setcsr(before); }
#endif
};

template <int HP, int KV>
static Status rollout_as(const Task &task, int i, int from, int to, void *scratch) {
    Arena arena{static_cast<char *>(scratch)};
    Rollout<HP, KV> work{};
    work.place(task, to - from, arena);
    return work.run(task, i, from, to);
}

static Status rollout(const Task &task, int i, int from, int to, void *scratch) {
    const FlushTiny quick;
    const Layout y = layout(task);
    if (y.hp == 8 && y.D == 128) return rollout_as<8, 128 / W>(task, i, from, to, scratch);
    if (y.hp == 8 && y.D == 64) return rollout_as<8, 64 / W>(task, i, from, to, scratch);
    if (y.hp == 16 && y.D == 256) return rollout_as<16, 256 / W>(task, i, from, to, scratch);
    if (y.hp == 4) return rollout_as<4, 0>(task, i, from, to, scratch);
    if (y.hp == 8) return rollout_as<8, 0>(task, i, from, to, scratch);
    return rollout_as<16, 0>(task, i, from, to, scratch);
}

static size_t rollout_bytes(const Task &task, int rollouts) {
    Arena arena{nullptr};
    if (layout(task).hp == 4) Rollout<4, 0>{}.place(task, rollouts, arena);
    if (layout(task).hp == 8) Rollout<8, 0>{}.place(task, rollouts, arena);
    if (layout(task).hp == 16) Rollout<16, 0>{}.place(task, rollouts, arena);
    return arena.used;
}

template <int HP>
static Status score_as(const Task &task, int i, void *scratch) {
    Arena arena{static_cast<char *>(scratch)};
    Score<HP> work{};
    work.place(task, arena);
    return work.run(task, i);
}

static Status score(const Task &task, int i, void *scratch) {
    const FlushTiny quick;
    switch (layout(task).hp) {
        case 4: return score_as<4>(task, i, scratch);
        case 8: return score_as<8>(task, i, scratch);
        default: return score_as<16>(task, i, scratch);
    }
}

static size_t score_bytes(const Task &task) {
    Arena arena{nullptr};
    if (layout(task).hp == 4) Score<4>{}.place(task, arena);
    if (layout(task).hp == 8) Score<8>{}.place(task, arena);
    if (layout(task).hp == 16) Score<16>{}.place(task, arena);
    return arena.used;
}

static Status forward(const Stack &stack, int group, void *scratch) {
    const FlushTiny quick;
    Arena arena{static_cast<char *>(scratch)};
    Layers work{stack, arena};
    return work.forward(group);
}

static Status backward(const Stack &stack, int group, void *scratch) {
    const FlushTiny quick;
    Arena arena{static_cast<char *>(scratch)};
    Layers work{stack, arena};
    return work.backward(group);
}

static size_t stack_bytes(const Stack &stack) {
    Arena arena{nullptr};
    Layers{stack, arena};
    return arena.used;
}

static Status mixed(const Mixed &task, int group, void *scratch) {
    const FlushTiny quick;
    Arena arena{static_cast<char *>(scratch)};
    return Mixing{task, arena}.run(group);
}

static size_t mixed_bytes(const Mixed &task) {
    Arena arena{nullptr};
    Mixing{task, arena};
    return arena.used;
}

}  // namespace CNF_ISA

#define CNF_TEXT_(x) #x
#define CNF_TEXT(x) CNF_TEXT_(x)
#define CNF_JOIN_(a, b) a##b
#define CNF_JOIN(a, b) CNF_JOIN_(a, b)

const Kernel *CNF_JOIN(kernel_, CNF_ISA)() {
    static const Kernel kernel = {CNF_TEXT(CNF_ISA), CNF_ISA::rollout_bytes, CNF_ISA::rollout, CNF_ISA::score_bytes,
                                  CNF_ISA::score, CNF_ISA::pack_layer, CNF_ISA::stack_bytes, CNF_ISA::forward,
                                  CNF_ISA::backward, CNF_ISA::mixed_bytes, CNF_ISA::mixed};
    return &kernel;
}

}  // namespace cnf
