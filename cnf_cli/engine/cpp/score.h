// log p of given tours and, in the same pass, the gradient of sum_p weight_p log p with respect to every table.
// The tour is known, so its nodes are put in visiting order: what is open at a step is then the tail of that order, a
// block of steps shares its tail, and every product is a small dense matrix product.
#pragma once
#include "scene.h"

namespace cnf {
namespace CNF_ISA {

constexpr int STEPS = 8;  // steps of a block; a multiple of every tile height

template <int HP>
struct Score {
    typedef Heads<HP> H;
    Scene<HP> scene;
    float clip, squash;
    bool wanted;  // gradients
    // Gradients in the kernels' layout; those of value, pointer and bias have a row n, the padding's.
    float *d_first, *d_last, *d_key, *d_value, *d_pointer, *d_bias, *d_from, *d_at, *d_pull, *d_vector, *d_near;
    float *sums[11];  // all of them, which begin at zero, and their sizes
    size_t sizes[11];
    int count;
    // The rollout: nodes in visiting order; per step where it stands, the first open position, the position chosen.
    int *order, *stands, *tail, *choice;
    float *left;
    double *room;  // what is left of the load in the units that are counted
    // A block of steps.
    float *w, *u, *slope, *glimpse, *d_glimpse, *norm, *mean;
    float *fences;                // per step: 0 or, for a closed key, -inf
    float *bias, *bias_gradient;  // by position in the order
    double *units;                // too
    bool odd;                     // some score is NaN or infinite
    uint8_t *seen;
    int *spot;  // where in the order a node is
    size_t wide;  // room for the keys of a step

    void place(const Task &task, Arena &a) {
        scene.place(task, task.p, a);
        const int n = task.n, D = scene.y.D;
        const size_t rows = size_t(n) * D;
        wanted = task.d_key;
        wide = (n + 16) / 16 * 16;
        if (wanted) {
            count = 0;
            const auto sum = [&](size_t size) { return sizes[count] = size, sums[count++] = a.take<float>(size); };
            d_last = sum(rows);
            d_key = sum(rows);
            d_value = sum(rows + D);
            d_pointer = sum(rows + D);
            d_bias = sum(n + 1);
            d_at = sum(n * line());
            d_first = task.first ? sum(rows) : nullptr;
            d_from = task.first ? sum(task.p * line()) : nullptr;
            d_vector = task.load ? sum(D) : nullptr;
            d_pull = task.load ? sum(line()) : nullptr;
            d_near = task.near ? sum(n * size_t(n + 1)) : nullptr;
        }
        order = a.take<int>(n + 64);
        stands = a.take<int>(task.t + STEPS);
        tail = a.take<int>(task.t);
        choice = a.take<int>(task.t);
        left = a.take<float>(task.t + STEPS);
        room = a.take<double>(task.t + STEPS);
        w = a.take<float>(STEPS * wide * HP + 64);
        u = a.take<float>(STEPS * wide);
        slope = a.take<float>(wide);
        glimpse = a.take<float>(STEPS * size_t(D));
        d_glimpse = a.take<float>(STEPS * size_t(D));
        norm = a.take<float>(STEPS * 16);
        mean = a.take<float>(STEPS * 16);
        fences = a.take<float>(STEPS * wide);
        bias = a.take<float>(n + 64);
        units = a.take<double>(n + 64);
        bias_gradient = a.take<float>(n + 64);
        seen = a.take<uint8_t>(n);
        spot = a.take<int>(n);
    }

    // Fills order, stands, tail, choice and left; returns the number of steps with a choice, or -1 for a bad tour.
    int read(const int64_t *tour, int p, int &open) {
        const int n = scene.n, t_end = scene.task->t, depot = scene.depot() ? 1 : 0;
        open = 0;
        for (int j = 0; j < n; ++j) seen[j] = 0;
        if (tour[depot] != scene.start[p] || (depot && tour[0])) return -1;
        for (int t = depot; t < t_end; ++t) {
            if (tour[t] < 0 || tour[t] >= n) return -1;
            const int j = int(tour[t]);
            if (depot && !j) continue;
            if (seen[j]) return -1;
            seen[j] = 1;
            if (t > depot) order[open++] = j;
        }
        for (int j = depot; j < n; ++j)
            if (!seen[j]) return -1;
        const int others = open;
        if (depot) order[open++] = 0;  // last, so that it belongs to every tail
        spot[scene.start[p]] = -1;
        for (int s = 0; s < open; ++s) spot[order[s]] = s;
        int steps = 0, done = 0;
        float load_left = depot && tour[1] ? 1.0f - scene.demand[tour[1]] : 1.0f;
        double room_left = depot && tour[1] ? scene.limit - scene.units[tour[1]] : scene.limit;
        // What follows the last customer, or is the last node, is forced.
        for (int t = depot + 1; t < t_end && done < others - !depot; ++t, ++steps) {
            const int j = int(tour[t]);
            stands[steps] = int(tour[t - 1]);
            tail[steps] = done;
            choice[steps] = depot && !j ? open - 1 : done;
            left[steps] = load_left;
            room[steps] = room_left;
            if (depot) load_left = j ? load_left - scene.demand[j] : 1.0f;
            if (depot) room_left = j ? room_left - scene.units[j] : scene.limit;
            done += !depot || j;
        }
        for (int s = 0; s < STEPS; ++s) left[steps + s] = 0;
        for (int s = 0; s < 64; ++s) order[open + s] = n;
        for (int s = 0; s < open + W; ++s) bias[s] = scene.bias[order[s]];
        for (int s = 0; s < open && depot; ++s) units[s] = scene.units[order[s]];
        __builtin_memset(bias_gradient, 0, sizeof(float) * open);
        return steps;
    }

    // Closes the keys order[base + s], s < size, that do not fit at a step; returns null when all that are not behind do.
    const float *close(int step, int base, int size, float *fence) const {
        if (!fenced()) return nullptr;
        const double *wanted_units = units + base, room_ = room[step];
        if (scene.nearest)
            close_far(step, base, size, fence);
        else
            for (int s = 0; s < size; ++s) fence[s] = wanted_units[s] <= room_ ? 0.0f : -INFINITE;
        if (scene.depot()) fence[size - 1] = stands[step] == 0 ? -INFINITE : 0;
        return fence;
    }

    bool fenced() const { return scene.depot() || scene.nearest; }

    // Closes all keys but those of the nearest nodes that are open and fit, and that of the node chosen.
    void close_far(int step, int base, int size, float *fence) const {
        for (int s = 0; s < size; ++s) fence[s] = -INFINITE;
        scene.look_near(stands[step], [&](int j) {
            const bool good = (j || !scene.depot()) && spot[j] >= tail[step] &&
                              (!scene.depot() || scene.units[j] <= room[step]);
            if (good) fence[spot[j] - base] = 0;
            return good;
        });
        fence[choice[step] - base] = 0;
    }

    // Returns log p of the chosen key and turns the scores x, -inf where closed, into the gradient of weight * log p.
    float choose(float *x, int size, int chosen, float weight) {
        const float most = logit_shift(x, size, clip, squash);
        const bool open = x[chosen] > -INFINITE;
        vec total = {};
        for (int s = size; s % W; ++s) x[s] = -INFINITE;
        for (int s = 0; s < size; s += W) {
            const vec score = load(x + s), y = tanh(score * squash);
            const vec e = (vec)((ivec)exp(clip * y - most) & (ivec)(score > -INFINITE));
            store(x + s, e);
            store(slope + s, y);
            total += e;
        }
        const float z = sum(total);
        odd |= !(z > 0 && z < INFINITE);
        const float log_prob = open ? clip * slope[chosen] - most - __builtin_logf(z) : -INFINITE;
        if (!wanted) return log_prob;
        x[chosen] -= z;
        const float scale = -weight / z * clip * squash;
        for (int s = 0; s < size; s += W) {
            const vec y = load(slope + s);
            store(x + s, load(x + s) * (1.0f - y * y) * scale);
        }
        return log_prob;
    }

    // Steps [s0, s0 + steps) of rollout p; returns the sum of their log p.
    double block(int p, int s0, int steps, int open, float weight) {
        const int base = tail[s0], size = open - base, D = scene.y.D;
        const int rows = (steps + 3) / 4 * 4, padded = (size + 3) / 4 * 4;
        const int *nodes = order + base, *rank = scene.count;
        const size_t stride = wide * HP;
        __builtin_memset(glimpse, 0, sizeof(float) * rows * D);
        for (int t = 0; t < rows; ++t) {
            float *row = w + t * stride;
            if (t >= steps) {
                __builtin_memset(row, 0, sizeof(float) * padded * HP);
                __builtin_memset(norm + t * 16, 0, 16 * sizeof(float));
                continue;
            }
            const int step = s0 + t;
            const float *closed = close(step, base, size, fences + t * wide);
            scene.weights(p, stands[step], left[step], nodes, size, tail[step] - base, closed, row, norm + t * 16);
            __builtin_memset(row + size * HP, 0, sizeof(float) * (padded - size) * HP);
            for (int h = 0; h < HP; ++h) norm[t * 16 + h] = 1.0f / norm[t * 16 + h];
        }
        mix<HP, true>({glimpse, rank}, rows, {scene.value, nodes}, size, w, stride, HP, D);
        for (int t = 0; t < rows; ++t)
            for (int k = 0; k < D / W; ++k) {
                float *x = glimpse + size_t(t) * D + k * W;
                store(x, load(x) * H::spread(norm + t * 16, k));
            }
        products({glimpse, rank}, rows, {scene.pointer, nodes}, padded, D, u, wide);
        double log_prob = 0;
        for (int t = 0; t < steps; ++t) {
            float *x = u + t * wide;
            const float *closed = fenced() ? fences + t * wide : nullptr;
            for (int s = padded; s % W; ++s) x[s] = 0;
            if (scene.near)
                for (int s = 0; s < size; ++s) x[s] += scene.biases(stands[s0 + t])[nodes[s]];
            else
                for (int s = 0; s < size; s += W) store(x + s, load(x + s) + load(bias + base + s));
            vec wrong = {};
            for (int s = 0; s < size; s += W) {
                const vec score = load(x + s);
                wrong += score - score;
            }
            odd |= !(sum(wrong) == 0);
            if (closed)
                for (int s = 0; s < size; s += W) store(x + s, load(x + s) + load(closed + s));
            for (int s = 0; s < tail[s0 + t] - base; ++s) x[s] = -INFINITE;
            log_prob += choose(x, size, choice[s0 + t] - base, weight);
        }
        if (!wanted || weight == 0) return log_prob;
        for (int t = steps; t < rows; ++t) __builtin_memset(u + t * wide, 0, sizeof(float) * wide);
        differentiate(p, s0, steps, rows, base, size, padded);
        return log_prob;
    }

    // From u = d / d score on to the gradients of pointer, bias, value and the tables of attention scores.
    void differentiate(int p, int s0, int steps, int rows, int base, int size, int padded) {
        const int D = scene.y.D, *rank = scene.count, *nodes = order + base;
        const size_t stride = wide * HP;
        __builtin_memset(d_glimpse, 0, sizeof(float) * rows * D);
        mix<HP, false>({d_glimpse, rank}, rows, {scene.pointer, nodes}, size, u, wide, 1, D);
        mix<HP, false>({d_pointer, nodes}, padded, {glimpse, rank}, steps, u, 1, wide, D);
        for (int t = 0; t < steps; ++t)
            for (int s = 0; s < size; s += W) {
                float *x = bias_gradient + base + s;
                store(x, load(x) + load(u + t * wide + s));
            }
        for (int t = 0; t < steps && d_near; ++t) {
            float *row = d_near + size_t(stands[s0 + t]) * (scene.n + 1);
            for (int s = 0; s < size; ++s) row[nodes[s]] += u[t * wide + s];
        }
        // Weights are not normalised: what they meet is. The softmax's own term is d_glimpse . glimpse per head.
        for (int t = 0; t < rows; ++t) {
            vec acc[H::PARTS] = {};
            for (int k = 0; k < D / W; ++k) {
                float *x = d_glimpse + size_t(t) * D + k * W;
                const vec scaled = load(x) * H::spread(norm + t * 16, k);
                store(x, scaled);
                acc[k % H::PARTS] += scaled * load(glimpse + size_t(t) * D + k * W);
            }
            for (int q = 0; q < H::PARTS; ++q) H::put(mean + t * 16, q, H::gather(acc[q]));
        }
        mix<HP, true>({d_value, nodes}, padded, {d_glimpse, rank}, steps, w, HP, stride, D);
        // Where the gradients of the scores go: padded steps have weight 0, padded keys the column n.
        float *at[STEPS];
        for (int t = 0; t < rows; ++t) at[t] = d_at + (t < steps ? stands[s0 + t] : 0) * line();
        dots<HP>({d_glimpse, rank}, rows, {scene.value, nodes}, padded, D,
                 [&](int t0, int key, const auto &x) __attribute__((always_inline)) {
                     constexpr int N = sizeof(x) / sizeof(x[0]), M = sizeof(x[0]) / sizeof(x[0][0]);
                     for (int s = 0; s < M; ++s)
                         for (int q = 0; q < H::PARTS; ++q) {
                             const size_t j = size_t(nodes[key + s]) * HP;
                             typename H::part sum = {}, pulled = {};
                             for (int t = 0; t < N; ++t) {
                                 const float *weight = w + (t0 + t) * stride + (key + s) * HP;
                                 const typename H::part d = H::get(weight, q) * (x[t][s][q] - H::get(mean + (t0 + t) * 16, q));
                                 H::put(at[t0 + t] + j, q, H::get(at[t0 + t] + j, q) + d);
                                 sum += d;
                                 if (d_pull) pulled += left[s0 + t0 + t] * d;
                             }
                             if (d_from) H::put(d_from + p * line() + j, q, H::get(d_from + p * line() + j, q) + sum);
                             if (d_pull) H::put(d_pull + j, q, H::get(d_pull + j, q) + pulled);
                         }
                 });
    }

    size_t line() const { return size_t(scene.n + 1) * HP; }

    // From the tables of attention scores to their factors, and out.
    void finish(const Task &task, int i) {
        const int n = task.n, D = scene.y.D, *rank = scene.count;
        const size_t line = this->line(), rows = size_t(i) * n * task.d;
        scene.watch.rows(n, size_t(2) * n * D, [&](int r, int some) {
            mix<HP, true>({d_last, rank + r}, some, {scene.key, rank}, n, d_at + r * line, line, HP, D);
            mix<HP, true>({d_key, rank + r}, some, {scene.last, rank}, n, d_at + r * HP, HP, line, D);
        });
        if (d_first) {
            for (int p = 0; p < task.p && !scene.watch.after(size_t(n) * D); ++p)  // two rollouts may share a start
                mix<HP, true>({d_first, scene.start + p}, 1, {scene.key, rank}, n, d_from + p * line, 0, HP, D);
            scene.watch.rows(n, size_t(task.p) * D, [&](int r, int some) {
                mix<HP, true>({d_key, rank + r}, some, {scene.first, scene.start}, task.p, d_from + r * HP, HP, line, D);
            });
            uninterleave(d_first, task.d_first + rows, n, task, scene.y, 1);
        }
        if (d_vector) {
            mix<HP, true>({d_vector, rank}, 1, {scene.key, rank}, n, d_pull, 0, HP, D);
            mix<HP, true>({d_key, rank}, n, {scene.vector, rank}, 1, d_pull, HP, 0, D);
            uninterleave(d_vector, task.d_load + size_t(i) * task.d, 1, task, scene.y, 1);
        }
        uninterleave(d_last, task.d_last + rows, n, task, scene.y, 1);
        uninterleave(d_key, task.d_key + rows, n, task, scene.y, scene.scale);
        uninterleave(d_value, task.d_value + rows, n, task, scene.y, 1);
        uninterleave(d_pointer, task.d_pointer + rows, n, task, scene.y, 1);
        __builtin_memcpy(task.d_bias + size_t(i) * n, d_bias, sizeof(float) * n);
        if (scene.fade) unfade(task, i);
        const float unit = __builtin_sqrtf(float(task.d));
        for (int c = 0; c < n && d_near; ++c)
            for (int j = 0; j < n; ++j)
                task.d_near[(size_t(i) * n + c) * n + j] = unit * d_near[size_t(c) * (n + 1) + j];
    }

    // The scores' gradients as those of how fast attention falls off, and with what distances.
    void unfade(const Task &task, int i) {
        const int n = task.n;
        double falls[HP] = {};
        for (int c = 0; c < n; ++c)
            for (int j = 0; j < n; ++j) {
                const float *d = d_at + c * line() + size_t(j) * HP, far = scene.space[size_t(c) * n + j];
                float along = 0;
                for (int h = 0; h < task.heads; ++h) {
                    along += scene.fade[h] * d[h];
                    falls[h] += far * d[h];
                }
                task.d_space[(size_t(i) * n + c) * n + j] = -along;
            }
        for (int h = 0; h < task.heads; ++h) task.d_fade[size_t(i) * task.heads + h] = float(-falls[h]);
    }

    Status run(const Task &task, int i) {
        clip = task.clip;
        squash = 1.0f / __builtin_sqrtf(float(task.d));
        scene.prepare(i);
        if (!scene.servable()) return CANNOT_FINISH;
        scene.depart(0, task.p);
        if (scene.watch.stopped) return STOPPED;
        if (scene.odd) return NOT_FINITE;
        for (int k = 0; k < count && wanted; ++k) __builtin_memset(sums[k], 0, sizeof(float) * sizes[k]);
        double total = 0;
        for (int p = 0; p < task.p; ++p) {
            const size_t at = size_t(i) * task.p + p;
            int open;
            const int steps = read(task.tours + at * task.t, p, open);
            if (steps < 0) return BAD_TOUR;
            double log_prob = 0;
            odd = false;
            for (int s = 0; s < steps && !scene.watch.after(size_t(8) * STEPS * (open - tail[s]) * scene.y.D); s += STEPS)
                log_prob += block(p, s, steps - s < STEPS ? steps - s : STEPS, open, task.weight[at]);
            if (scene.watch.stopped) return STOPPED;
            if (odd) return NOT_FINITE;
            for (int s = 0; s < open && wanted; ++s) d_bias[order[s]] += bias_gradient[s];
            task.log_prob[at] = float(log_prob);
            if (task.weight[at] != 0) total += task.weight[at] * log_prob;
        }
        task.total[i] = float(total);
        if (wanted) finish(task, i);
        return scene.watch.stopped ? STOPPED : DONE;
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
