// MatNet's attention, forward and backward, one instance at a time: each head's score goes, beside the cost between the two
// nodes, through a network of HIDDEN units before the softmax. Nothing is kept: the backward pass makes all of it again.
//
//   s = q . k / sqrt(dk);  g = b2 + sum_x w2_x relu(w1_x s + c1_x cost + b1_x);  out = softmax(g) v
#pragma once
#include "layers.h"

namespace cnf {
namespace CNF_ISA {

struct Mixing {
    const Mixed &m;
    Watch watch;
    int n, d, dk, np;
    size_t size;                         // of a whole matrix, n rows of np, padded to BLOCK vectors
    float *cost, *score, *prob, *slope;  // slope: gradient of g, then of s
    float *d_cost, *turned, *totals, *inverses;
    static constexpr int BLOCK = 4;

    Mixing(const Mixed &task, Arena &a) : m(task), watch{task.stop}, n(task.n), d(task.d), dk(task.d / task.heads) {
        np = (n + W - 1) / W * W;
        size = (size_t(n) * np + BLOCK * W - 1) / (BLOCK * W) * (BLOCK * W);
        cost = a.take<float>(size), score = a.take<float>(size), prob = a.take<float>(size);
        slope = a.take<float>(size), d_cost = a.take<float>(size);
        turned = a.take<float>(size_t(dk) * np), totals = a.take<float>(size_t(np) * W), inverses = a.take<float>(np);
    }

    // One head's small network.
    struct Net {
        const float *score, *cost, *bias, *out;
        float last;
    };
    Net net(int h) const {
        return {m.weight1 + size_t(h) * 2 * HIDDEN, m.weight1 + size_t(h) * 2 * HIDDEN + HIDDEN, m.bias1 + h * HIDDEN,
                m.weight2 + h * HIDDEN, m.bias2[h]};
    }

    void read_cost(int i) {
        const float *in = m.cost + size_t(i) * n * n;
        const size_t row = m.flipped ? 1 : n, column = m.flipped ? n : 1;
        __builtin_memset(cost, 0, sizeof(float) * size);
        for (int r = 0; r < n; ++r)
            for (int c = 0; c < n; ++c) cost[size_t(r) * np + c] = in[r * row + c * column];
    }

    // out[i][j] = x[i] . turned[j] of one head.
    void square(const float *x, float *out) {
        watch.rows(n, size_t(dk) * np, [&](int r, int some) {
            gemm<W>({x + size_t(r) * d, size_t(d), 1}, turned, np, out + size_t(r) * np, np, some, dk, np);
        });
    }

    // out[i] = sum_j weight[i][j] x[j] of one head.
    void gather(Left weight, const float *x, float *out) {
        watch.rows(n, size_t(n) * dk, [&](int r, int some) {
            gemm_narrow({weight.at + r * weight.row, weight.row, weight.column}, x, d, out + size_t(r) * d, d, some, n, dk);
        });
    }

    // score and prob of one head.
    void look(const float *q, const float *k, const Net &w) {
        turn(k, d, dk, n, np, 1.0f / __builtin_sqrtf(float(dk)), turned);
        __builtin_memset(score + size_t(n) * np, 0, sizeof(float) * (size - size_t(n) * np));
        square(q, score);
        for (size_t j = 0; j < size && !watch.after(BLOCK * W * 3 * HIDDEN); j += BLOCK * W) {
            vec s[BLOCK], c[BLOCK], g[BLOCK];
            for (int u = 0; u < BLOCK; ++u) s[u] = load(score + j + u * W), c[u] = load(cost + j + u * W), g[u] = all(w.last);
            for (int x = 0; x < HIDDEN; ++x)
                for (int u = 0; u < BLOCK; ++u)
                    g[u] += w.out[x] * larger(w.score[x] * s[u] + (w.cost[x] * c[u] + w.bias[x]), vec{});
            for (int u = 0; u < BLOCK; ++u) store(prob + j + u * W, g[u]);
        }
        softmax(prob, n, np, totals, inverses, watch);
    }

    // From the gradient of g, in slope, to that of the score, there too; the others' are added up.
    void unmix(const Net &w, float *d_net) {
        for (size_t j = size_t(n) * np; j < size; ++j) slope[j] = 0;
        vec last = {};
        for (size_t j = 0; j < size; j += W) last += load(slope + j);
        float *d_score = prob;  // no longer needed
        __builtin_memset(d_score, 0, sizeof(float) * size);
        for (int x = 0; x < HIDDEN && !watch.after(size * 8); ++x) {
            vec by_score = {}, by_cost = {}, by_bias = {}, by_out = {};
            for (size_t j = 0; j < size; j += W) {
                const vec s = load(score + j), c = load(cost + j), g = load(slope + j);
                const vec z = w.score[x] * s + (w.cost[x] * c + w.bias[x]);
                const vec back = z > 0.0f ? g * w.out[x] : vec{};
                by_out += g * larger(z, vec{});
                by_bias += back;
                by_score += back * s;
                by_cost += back * c;
                store(d_score + j, load(d_score + j) + back * w.score[x]);
                if (m.d_cost) store(d_cost + j, load(d_cost + j) + back * w.cost[x]);
            }
            d_net[x] += sum(by_score), d_net[HIDDEN + x] += sum(by_cost);
            d_net[2 * HIDDEN + x] += sum(by_bias), d_net[3 * HIDDEN + x] += sum(by_out);
        }
        d_net[4 * HIDDEN] += sum(last);
        __builtin_memcpy(slope, d_score, sizeof(float) * size);
    }

    void forward_one(int i) {
        const size_t at = size_t(i) * n * d;
        read_cost(i);
        for (int h = 0; h < m.heads && !watch.stopped; ++h) {
            const size_t e = at + size_t(h) * dk;
            look(m.q + e, m.k + e, net(h));
            gather({prob, size_t(np), 1}, m.v + e, m.out + e);
        }
    }

    void backward_one(int i, float *d_weights) {
        const size_t at = size_t(i) * n * d;
        const float scale = 1.0f / __builtin_sqrtf(float(dk));
        read_cost(i);
        __builtin_memset(d_cost, 0, sizeof(float) * size);
        for (int h = 0; h < m.heads && !watch.stopped; ++h) {
            const size_t e = at + size_t(h) * dk;
            const Net w = net(h);
            look(m.q + e, m.k + e, w);
            gather({prob, 1, size_t(np)}, m.d_out + e, m.d_v + e);
            turn(m.v + e, d, dk, n, np, 1, turned);
            square(m.d_out + e, slope);
            for (int r = 0; r < n; ++r) {
                float *x = slope + size_t(r) * np;
                const float *p = prob + size_t(r) * np;
                vec own = {};
                for (int j = 0; j < np; j += W) own += load(p + j) * load(x + j);
                const float mean = sum(own);
                for (int j = 0; j < np; j += W) store(x + j, load(p + j) * (load(x + j) - mean));
            }
            unmix(w, d_weights + size_t(h) * MIXING_WEIGHTS);
            for (size_t j = 0; j < size; j += W) store(slope + j, load(slope + j) * scale);
            gather({slope, size_t(np), 1}, m.k + e, m.d_q + e);
            gather({slope, 1, size_t(np)}, m.q + e, m.d_k + e);
        }
        if (!m.d_cost) return;
        float *out = m.d_cost + size_t(i) * n * n;
        const size_t row = m.flipped ? 1 : n, column = m.flipped ? n : 1;
        for (int r = 0; r < n; ++r)
            for (int c = 0; c < n; ++c) out[r * row + c * column] = d_cost[size_t(r) * np + c];
    }

    Status run(int group) {
        const int from = group * m.group, end = end_of(from, m.group, m.b);
        float *d_weights = m.d_out ? m.d_weights + size_t(group) * m.heads * MIXING_WEIGHTS : nullptr;
        for (int i = from; i < end; ++i) {
            if (watch.after(size_t(n) * d)) return STOPPED;
            m.d_out ? backward_one(i, d_weights) : forward_one(i);
            if (watch.stopped) return STOPPED;
        }
        return DONE;
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
