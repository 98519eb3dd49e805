// Tours of some rollouts of one instance, greedy or sampled. The nodes still open are a sorted list, so a step costs
// what is left to visit; sorted, because draws go through the nodes in order and ties go to the lowest.
#pragma once
#include "random.h"
#include "scene.h"

namespace cnf {
namespace CNF_ISA {

template <int HP, int KV>
struct Rollout {
    typedef Heads<HP> H;
    Scene<HP> scene;
    int *open;         // customers not yet visited, sorted
    int *allowed;      // where the next move may go (with a depot), sorted
    float *w;          // their weights (with a load term)
    float *u;          // their scores
    float *norm;       // per head
    float *glimpse;    // D
    float clip, squash;

    void place(const Task &task, int rollouts, Arena &a) {
        scene.place(task, rollouts, a);
        open = a.take<int>(task.n + 64);
        allowed = a.take<int>(task.n + 64);
        w = a.take<float>(size_t(task.n) * HP + 64);
        u = a.take<float>(task.n + 64);
        norm = a.take<float>(16);
        glimpse = a.take<float>(scene.y.D);
        clip = task.clip;
        squash = 1.0f / __builtin_sqrtf(float(task.d));
    }

    int vectors() const { return KV ? KV : scene.y.D / W; }

    // glimpse += sum of weighted values, vectors [k0, k0 + N): the weights are products of two tables, or stored ones.
    template <int N, bool STORED>
    CNF_MEMBER void attend(const int *nodes, int size, const float *e, const float *f, int k0) {
        constexpr int U = N < 8 ? 2 : 1;  // enough independent sums to hide the latency of an addition
        constexpr int P = H::PARTS;
        const size_t D = KV ? KV * W : scene.y.D;
        vec acc[U][N] = {}, sum[U][P] = {};
        const float *value = scene.value + k0 * W;
        int s = 0;
        for (; s + U <= size; s += U)
            for (int q = 0; q < U; ++q) {
                const size_t j = nodes[s + q];
                vec x[P];
                for (int p = 0; p < P; ++p) {
                    if constexpr (STORED)
                        x[p] = H::spread(w + size_t(s + q) * HP, p);
                    else
                        x[p] = H::spread(e + j * HP, p) * H::spread(f + j * HP, p);
                    sum[q][p] += x[p];
                }
                for (int k = 0; k < N; ++k) acc[q][k] += x[k % P] * load(value + j * D + k * W);
            }
        if constexpr (U == 2)
            if (s < size) {
                const size_t j = nodes[s];
                vec x[P];
                for (int p = 0; p < P; ++p) {
                    if constexpr (STORED)
                        x[p] = H::spread(w + size_t(s) * HP, p);
                    else
                        x[p] = H::spread(e + j * HP, p) * H::spread(f + j * HP, p);
                    sum[0][p] += x[p];
                }
                for (int k = 0; k < N; ++k) acc[0][k] += x[k % P] * load(value + j * D + k * W);
            }
        for (int q = 1; q < U; ++q) {
            for (int k = 0; k < N; ++k) acc[0][k] += acc[q][k];
            for (int p = 0; p < P; ++p) sum[0][p] += sum[q][p];
        }
        // Every lane of a spread head holds the same sum, so the part of it that is stored is complete.
        for (int p = 0; p < P; ++p) {
            typename H::part low;
            __builtin_memcpy(&low, &sum[0][p], sizeof low);
            H::put(norm, p, low);
        }
        for (int k = 0; k < N; ++k) store(glimpse + (k0 + k) * W, acc[0][k]);
    }

    template <bool STORED>
    CNF_MEMBER void attend_all(const int *nodes, int size, const float *e, const float *f) {
        if constexpr (KV == 4)
            attend<4, STORED>(nodes, size, e, f, 0);
        else if constexpr (KV && KV % 8 == 0)
            for (int k = 0; k < KV; k += 8) attend<8, STORED>(nodes, size, e, f, k);
        else
            for (int k = 0; k < vectors(); k += 4) attend<4, STORED>(nodes, size, e, f, k);
    }

    // u[s] = glimpse . pointer + bias for every listed node.
    CNF_MEMBER void point(const int *nodes, int size) {
        const int kv = vectors();
        const size_t D = size_t(kv) * W;
        float inverse[16];
        for (int h = 0; h < HP; ++h) inverse[h] = 1.0f / norm[h];
        for (int k = 0; k < kv; ++k)
            store(glimpse + k * W, load(glimpse + k * W) * H::spread(inverse, k));
        for (int s = 0; s < size; s += W) {
            store(u + s, sums([&](int i) {
                      const int j = nodes[s + i];
                      const float *x = scene.pointer + j * D;
                      vec acc = {};
                      acc[0] = scene.bias[j];
                      if constexpr (KV)
                          for (int k = 0; k < KV; ++k) acc += load(glimpse + k * W) * load(x + k * W);
                      else
                          for (int k = 0; k < kv; ++k) acc += load(glimpse + k * W) * load(x + k * W);
                      return acc;
                  }));
        }
    }

    int best(int size) const {
        vec top = all(-INFINITE);
        for (int s = size; s % W; ++s) u[s] = -INFINITE;
        for (int s = 0; s < size; s += W) top = larger(load(u + s), top);
        const float most = largest(top);
        for (int s = 0; s < size; ++s)
            if (u[s] == most) return s;
        return 0;
    }

    int draw(int size, float uniform) const {
        vec top = all(-INFINITE);
        for (int s = size; s % W; ++s) u[s] = -INFINITE;
        for (int s = 0; s < size; s += W) {
            const vec x = clip * tanh(load(u + s) * squash);
            store(u + s, x);
            top = larger(x, top);
        }
        for (int s = size; s % W; ++s) u[s] = -INFINITE;  // tanh made them finite
        const float most = largest(top);
        vec total = {};
        for (int s = 0; s < size; s += W) {
            const vec x = exp(load(u + s) - most);
            store(u + s, x);
            total += x;
        }
        const float goal = uniform * sum(total);
        float reached = 0;
        for (int s = 0; s < size; ++s) {
            reached += u[s];
            if (reached > goal) return s;
        }
        return size - 1;
    }

    // Index in `nodes` of the next move of rollout p, which stands at c.
    CNF_MEMBER int choose(int p, int c, float load_left, int *nodes, int size, bool sample, uint64_t stream, int t) {
        if (size == 1) return 0;
        for (int s = size; s % W; ++s) nodes[s] = nodes[0];  // whole vectors may read on
        const float *e = scene.at + size_t(c) * scene.n * HP;
        if (scene.first && !scene.vector) {
            attend_all<false>(nodes, size, e, scene.from + size_t(p) * scene.n * HP);
            if (!Scene<HP>::sound(norm)) {
                scene.safe_weights(p, c, load_left, nodes, size, nullptr, w, norm);
                attend_all<true>(nodes, size, nullptr, nullptr);
            }
        } else {
            scene.weights(p, c, load_left, nodes, size, nullptr, w, norm);
            attend_all<true>(nodes, size, nullptr, nullptr);
        }
        point(nodes, size);
        return sample ? draw(size, uniform(stream, t)) : best(size);
    }

    CNF_INLINE void drop(int *list, int size, int s) {
        for (; s + 1 < size; ++s) list[s] = list[s + 1];
    }

    // One tour without a depot.
    void visit_all(int p, bool sample, uint64_t stream, int16_t *moves) {
        const int n = scene.n;
        int size = 0, c = scene.start[p];
        for (int j = 0; j < n; ++j)
            if (j != c) open[size++] = j;
        moves[0] = int16_t(c);
        for (int t = 1; t < n; ++t) {
            const int s = choose(p, c, 0, open, size, sample, stream, t);
            c = open[s];
            moves[t] = int16_t(c);
            drop(open, size--, s);
        }
    }

    // One set of routes; returns its length or 0 when some customer fits no vehicle.
    int serve_all(int p, bool sample, uint64_t stream, int16_t *moves) {
        const int n = scene.n;
        int size = 0, c = scene.start[p], t = 2;
        for (int j = 1; j < n; ++j)
            if (j != c) open[size++] = j;
        float left = c ? 1.0f - scene.demand[c] : 1.0f;
        moves[0] = 0;
        moves[1] = int16_t(c);
        while (size || c) {
            int fits = 0;
            if (c) allowed[fits++] = 0;
            for (int s = 0; s < size; ++s) {
                allowed[fits] = open[s];
                fits += !(left + 1e-5f < scene.demand[open[s]]);
            }
            if (!fits || t >= scene.task->t) return 0;
            c = allowed[choose(p, c, left, allowed, fits, sample, stream, t)];
            moves[t++] = int16_t(c);
            left = c ? left - scene.demand[c] : 1.0f;
            if (c) {
                int s = 0;
                while (open[s] != c) ++s;
                drop(open, size--, s);
            }
        }
        return t;
    }

    Status run(const Task &task, int i, int from, int to) {
        scene.prepare(i, from);
        for (int p = 0; p < to - from; ++p) {
            if (__atomic_load_n(task.stop, __ATOMIC_RELAXED)) return STOPPED;
            const size_t at = size_t(i) * task.p + from + p;
            const uint64_t s = task.seeds ? stream(task.seeds[i], scene.start[p]) : 0;
            int16_t *moves = task.moves + at * task.t;
            if (!scene.depot()) {
                visit_all(p, task.seeds, s, moves);
                task.length[at] = task.n;
                continue;
            }
            const int length = serve_all(p, task.seeds, s, moves);
            if (!length) return CANNOT_FINISH;
            for (int t = length; t < task.t; ++t) moves[t] = 0;
            task.length[at] = length;
        }
        return DONE;
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
