// Runs every kernel once on fixed numbers and prints what comes out: the same program must print the same on any machine.
#include "kernel.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace cnf;

static float next() {  // the same sequence everywhere
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return float(state >> 8) / (1 << 24) - 0.5f;
}
static std::vector<float> numbers(size_t count, float scale) {
    std::vector<float> x(count);
    for (float &v : x) v = next() * scale;
    return x;
}
static void show(const char *name, const std::vector<float> &x) {
    double sum = 0, square = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * double(i % 7), square += double(x[i]) * x[i];
    std::printf("%s %.9g %.9g\n", name, sum, square);
}

static void decode(const Kernel &kernel, bool depot) {
    const int b = 2, n = 11, d = 32, p = 5, room = depot ? 2 * n + 1 : n;
    const size_t rows = size_t(b) * n * d;
    auto last = numbers(rows, 2), key = numbers(rows, 2), value = numbers(rows, 2), pointer = numbers(rows, 2);
    auto first = numbers(rows, 2), bias = numbers(b * n, 1), load = numbers(d, 1), demand = numbers(b * n, 0.3f);
    for (size_t i = 0; i < demand.size(); ++i) demand[i] = i % n ? 0.25f + demand[i] : 0;
    const std::vector<double> units(demand.begin(), demand.end()), limit(b, 1 + 5e-7);
    std::vector<int64_t> starts{1, 2, 3, 5, 8}, seeds{7, 8}, tours(size_t(b) * p * room);
    std::vector<int16_t> moves(tours.size());
    std::vector<int32_t> length(b * p);
    auto weight = numbers(b * p, 1);
    std::vector<float> log_prob(b * p), total(b), grads[6];
    for (auto &g : grads) g.resize(rows);
    std::vector<float> d_load(b * d);
    int stop = 0;
    Task task{b, n, d, 8, p, room, 10.0f, last.data(), key.data(), value.data(), pointer.data(), bias.data()};
    task.first = depot ? nullptr : first.data(), task.load = depot ? load.data() : nullptr;
    task.demand = depot ? demand.data() : nullptr, task.starts = starts.data(), task.stop = &stop;
    task.units = depot ? units.data() : nullptr, task.limit = depot ? limit.data() : nullptr;
    task.moves = moves.data(), task.length = length.data();
    for (int sampled = 0; sampled < 2; ++sampled) {
        task.seeds = sampled ? seeds.data() : nullptr;
        void *scratch = std::aligned_alloc(64, (kernel.rollout_bytes(task, p) + 127) / 64 * 64);
        for (int i = 0; i < b; ++i)
            if (kernel.rollout(task, i, 0, p, scratch) != DONE) std::printf("rollout failed\n");
        std::free(scratch);
        std::printf("tours");
        for (size_t i = 0; i < moves.size(); ++i) std::printf(" %d", tours[i] = int(moves[i]));
        std::printf("\n");
    }
    int longest = n;
    if (depot) {
        longest = 0;
        for (int x : length) longest = x > longest ? x : longest;
        for (int i = 0; i < b * p; ++i)
            for (int t = 0; t < longest; ++t) tours[i * longest + t] = moves[i * room + t];
    }
    task.t = longest, task.tours = tours.data(), task.weight = weight.data();
    task.log_prob = log_prob.data(), task.total = total.data();
    task.d_last = grads[0].data(), task.d_key = grads[1].data(), task.d_value = grads[2].data();
    task.d_pointer = grads[3].data(), task.d_bias = grads[4].data();
    if (!depot) task.d_first = grads[5].data();
    if (depot) task.d_load = d_load.data();
    void *scratch = std::aligned_alloc(64, (kernel.score_bytes(task) + 127) / 64 * 64);
    for (int i = 0; i < b; ++i)
        if (kernel.score(task, i, scratch) != DONE) std::printf("score failed\n");
    std::free(scratch);
    show("log_prob", log_prob), show("total", total), show("d_load", d_load);
    for (auto &g : grads) show("gradient", g);
}

static void encode(const Kernel &kernel) {
    Stack s{};
    s.b = 3, s.n = 13, s.d = 32, s.f = 48, s.heads = 4, s.layers = 2, s.group = 2;
    const int d = s.d, f = s.f;
    const int size[LAYER_TENSORS] = {d * d, d * d, d * d, d * d, d, d, d, f * d, f, d * f, d, d, d};
    std::vector<std::vector<float>> kept;
    std::vector<LayerWeights> weights(s.layers);
    for (LayerWeights &layer : weights)
        for (int i = 0; i < LAYER_TENSORS; ++i) {
            kept.push_back(numbers(size[i], 0.6f));
            reinterpret_cast<const float **>(&layer)[i] = kept.back().data();
        }
    const size_t rows = size_t(s.b) * s.n * d;
    auto in = numbers(rows, 2), d_out = numbers(rows, 2);
    std::vector<float> out(rows), d_in(rows), packed(packed_size(s) * s.layers), saved(saved_size(s) * s.layers);
    std::vector<float> d_weights(2 * s.layers * weights_size(s));
    int stop = 0;
    s.weights = weights.data(), s.in = in.data(), s.out = out.data(), s.d_out = d_out.data(), s.d_in = d_in.data();
    s.packed = packed.data(), s.saved = saved.data(), s.d_weights = d_weights.data(), s.stop = &stop;
    void *scratch = std::aligned_alloc(64, (kernel.stack_bytes(s) + 127) / 64 * 64);
    for (int layer = 0; layer < s.layers; ++layer) kernel.pack(s, layer, false), kernel.pack(s, layer, true);
    for (int group = 0; group < 2; ++group) kernel.forward(s, group, scratch);
    for (int group = 0; group < 2; ++group) kernel.backward(s, group, scratch);
    std::free(scratch);
    show("out", out), show("d_in", d_in), show("d_weights", d_weights);
}

static void mix(const Kernel &kernel) {
    Mixed m{};
    m.b = 3, m.n = 13, m.d = 32, m.heads = 4, m.group = 2, m.flipped = true;
    const size_t rows = size_t(m.b) * m.n * m.d, costs = size_t(m.b) * m.n * m.n;
    auto q = numbers(rows, 2), k = numbers(rows, 2), v = numbers(rows, 2), cost = numbers(costs, 2), d_out = numbers(rows, 2);
    auto weight1 = numbers(m.heads * 2 * HIDDEN, 2), bias1 = numbers(m.heads * HIDDEN, 1);
    auto weight2 = numbers(m.heads * HIDDEN, 1), bias2 = numbers(m.heads, 1);
    std::vector<float> out(rows), d_q(rows), d_k(rows), d_v(rows), d_cost(costs), d_weights(2 * m.heads * MIXING_WEIGHTS);
    int stop = 0;
    m.q = q.data(), m.k = k.data(), m.v = v.data(), m.cost = cost.data(), m.out = out.data(), m.stop = &stop;
    m.weight1 = weight1.data(), m.bias1 = bias1.data(), m.weight2 = weight2.data(), m.bias2 = bias2.data();
    void *scratch = std::aligned_alloc(64, (kernel.mixed_bytes(m) + 127) / 64 * 64);
    for (int group = 0; group < 2; ++group) kernel.mixed(m, group, scratch);
    m.d_out = d_out.data(), m.d_q = d_q.data(), m.d_k = d_k.data(), m.d_v = d_v.data();
    m.d_cost = d_cost.data(), m.d_weights = d_weights.data();
    for (int group = 0; group < 2; ++group) kernel.mixed(m, group, scratch);
    std::free(scratch);
    show("out", out), show("d_q", d_q), show("d_k", d_k), show("d_v", d_v), show("d_cost", d_cost);
    show("d_weights", d_weights);
}

int main() {
    const Kernel &kernel = *kernel_base();
    encode(kernel);
    mix(kernel);
    decode(kernel, false);
    decode(kernel, true);
}
