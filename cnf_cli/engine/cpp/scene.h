// One instance made ready for the kernels: rows in the kernels' layout and the tables of attention scores.
#pragma once
#include "kernel.h"
#include "tile.h"

namespace cnf {
namespace CNF_ISA {

constexpr float TINY = 1e-18f;  // below this a normaliser may have lost terms to underflow: take the safe way
constexpr float INFINITE = __builtin_inff();

struct Layout {
    int hp, dim, D;  // heads padded to 4, 8 or 16; dims of a head padded so that D = hp * dim fills tiles
};

CNF_INLINE Layout layout(const Task &task) {
    const int hp = task.heads <= 4 ? 4 : task.heads <= 8 ? 8 : 16;
    const int dk = task.d / task.heads, step = K * W / hp > 1 ? K * W / hp : 1;
    const int dim = (dk + step - 1) / step * step;
    return {hp, dim, hp * dim};
}

// Hands out 64-byte aligned pieces of a buffer; with a null buffer it only counts.
struct Arena {
    char *base;
    size_t used = 0;
    template <class T>
    T *take(size_t count) {
        char *at = base ? base + used : nullptr;
        used += (count * sizeof(T) + 63) / 64 * 64;
        return reinterpret_cast<T *>(at);
    }
};

// [head][dim] -> [dim][head], times scale; padding is zero.
static void interleave(const float *in, float *out, int rows, const Task &task, Layout y, float scale) {
    const int h = task.heads, dk = task.d / h;
    for (int r = 0; r < rows; ++r, in += task.d, out += y.D) {
        if (h < y.hp || dk < y.dim) __builtin_memset(out, 0, sizeof(float) * y.D);
        for (int i = 0; i < h; ++i)
            for (int e = 0; e < dk; ++e) out[e * y.hp + i] = in[i * dk + e] * scale;
    }
}

static void uninterleave(const float *in, float *out, int rows, const Task &task, Layout y, float scale) {
    const int h = task.heads, dk = task.d / h;
    for (int r = 0; r < rows; ++r, out += task.d, in += y.D)
        for (int i = 0; i < h; ++i)
            for (int e = 0; e < dk; ++e) out[i * dk + e] = in[e * y.hp + i] * scale;
}

template <int HP>
struct Scene {
    typedef Heads<HP> H;
    const Task *task;
    Layout y;
    int n, rollouts;
    float scale;
    int *count;                           // 0, 1, 2, ...: rows in order
    int *start;                           // node each rollout starts from
    float *first, *last, *key;            // n rows; key is times 1 / sqrt(dim of a head)
    float *value, *pointer;               // n + 1 rows, the last one zero: what padded lists point to
    float *from, *at;                     // [rollout][node][head], [node][node][head]: see prepare
    float *vector, *pull;                 // load row; its score with each node, largest 0
    const float *bias, *demand;

    bool depot() const { return task->demand != nullptr; }

    void place(const Task &t, int count_of_rollouts, Arena &a) {
        task = &t;
        y = layout(t);
        n = t.n;
        rollouts = count_of_rollouts;
        const size_t rows = size_t(n) * y.D;
        count = a.take<int>(n + 64);
        start = a.take<int>(rollouts + 64);
        last = a.take<float>(rows);
        key = a.take<float>(rows);
        value = a.take<float>(rows + y.D);
        pointer = a.take<float>(rows + y.D);
        at = a.take<float>(size_t(n) * n * HP + W);
        first = t.first ? a.take<float>(rows) : nullptr;
        from = t.first ? a.take<float>(size_t(rollouts) * n * HP + W) : nullptr;
        vector = t.load ? a.take<float>(y.D) : nullptr;
        pull = t.load ? a.take<float>(size_t(n) * HP + W) : nullptr;
    }

    // Without a load term, weights of step (f, c) are from[f] * at[c], exponentials already; with one they are
    // exp(from[f] + at[c] + load * pull). Rows are shifted by their largest entry, which changes no softmax.
    void prepare(int i, int p0) {
        const Task &t = *task;
        const size_t rows = size_t(n) * t.d;
        scale = 1.0f / __builtin_sqrtf(float(t.d / t.heads));
        for (int j = 0; j < n + 64; ++j) count[j] = j;
        for (int p = 0; p < rollouts; ++p) start[p] = int(t.starts[p0 + p]);
        interleave(t.last + i * rows, last, n, t, y, 1);
        interleave(t.key + i * rows, key, n, t, y, scale);
        interleave(t.value + i * rows, value, n, t, y, 1);
        interleave(t.pointer + i * rows, pointer, n, t, y, 1);
        __builtin_memset(value + size_t(n) * y.D, 0, sizeof(float) * y.D);
        __builtin_memset(pointer + size_t(n) * y.D, 0, sizeof(float) * y.D);
        bias = t.bias + size_t(i) * n;
        demand = t.demand ? t.demand + size_t(i) * n : nullptr;
        scores({last, count}, n, at);
        if (first) {
            interleave(t.first + i * rows, first, n, t, y, 1);
            scores({first, start}, rollouts, from);
        }
        if (vector) {
            interleave(t.load, vector, 1, t, y, 1);
            scores({vector, count}, 1, pull);
        } else {
            exponentials(at, size_t(n) * n * HP);
            if (from) exponentials(from, size_t(rollouts) * n * HP);
        }
    }

    void scores(Rows query, int rows, float *out) const {
        dots<HP>(query, rows, {key, count}, n, y.D, [&](int r, int s, int p, typename H::part x) {
            H::put(out + (size_t(r) * n + s) * HP, p, x);
        });
        for (int r = 0; r < rows; ++r) {
            float *row = out + size_t(r) * n * HP;
            for (int p = 0; p < H::PARTS; ++p) {
                typename H::part top = H::get(row, p);
                for (int s = 1; s < n; ++s) {
                    const typename H::part x = H::get(row + s * HP, p);
                    top = x > top ? x : top;
                }
                for (int s = 0; s < n; ++s) H::put(row + s * HP, p, H::get(row + s * HP, p) - top);
            }
        }
    }

    static void exponentials(float *x, size_t size) {
        size_t i = 0;
        for (; i + W <= size; i += W) store(x + i, exp(load(x + i)));
        if (i < size) {
            float rest[W] = {};
            for (size_t k = i; k < size; ++k) rest[k - i] = x[k];
            store(rest, exp(load(rest)));
            for (size_t k = i; k < size; ++k) x[k] = rest[k - i];
        }
    }

    // w[s] = weights of step (rollout p standing at c) for the nodes listed, before normalising; returns their sums in
    // norm. Entries with closed[s] set get 0.
    void weights(int p, int c, float load_left, const int *nodes, int size, const uint8_t *closed, float *w,
                 float *norm) const {
        const float *e = at + size_t(c) * n * HP, *f = from ? from + size_t(p) * n * HP : nullptr;
        typename H::part sum[H::PARTS] = {};
        if (!vector) {
            for (int s = 0; s < size; ++s)
                for (int q = 0; q < H::PARTS; ++q) {
                    typename H::part x = H::get(e + size_t(nodes[s]) * HP, q);
                    if (f) x *= H::get(f + size_t(nodes[s]) * HP, q);
                    if (closed && closed[s]) x = x * 0.0f;
                    H::put(w + s * HP, q, x);
                    sum[q] += x;
                }
        } else {
            for (int s = 0; s < size; ++s)
                for (int q = 0; q < H::PARTS; ++q) {
                    typename H::part x = H::get(e + size_t(nodes[s]) * HP, q);
                    x += load_left * H::get(pull + size_t(nodes[s]) * HP, q);
                    if (f) x += H::get(f + size_t(nodes[s]) * HP, q);
                    if (closed && closed[s]) x = x * 0.0f - 1000.0f;
                    H::put(w + s * HP, q, x);
                }
            exponentials(w, size_t(size) * HP);
            for (int s = 0; s < size; ++s)
                for (int q = 0; q < H::PARTS; ++q) sum[q] += H::get(w + s * HP, q);
        }
        for (int q = 0; q < H::PARTS; ++q) H::put(norm, q, sum[q]);
        if (!sound(norm)) safe_weights(p, c, load_left, nodes, size, closed, w, norm);
    }

    static bool sound(const float *norm) {
        bool good = true;
        for (int h = 0; h < HP; ++h) good &= norm[h] > TINY;
        return good;
    }

    // The same from the dot products themselves, shifted by the largest allowed score: nothing can underflow to nothing.
    void safe_weights(int p, int c, float load_left, const int *nodes, int size, const uint8_t *closed, float *w,
                      float *norm) const {
        constexpr int P = H::PARTS;
        typename H::part top[P], sum[P] = {};
        for (int q = 0; q < P; ++q) top[q] = typename H::part{} - 3e38f;
        for (int s = 0; s < size; ++s) {
            vec acc[P] = {};
            if (!(closed && closed[s])) {
                for (int k = 0; k < y.D / W; ++k) {
                    vec q = load(last + size_t(c) * y.D + k * W);
                    if (first) q += load(first + size_t(start[p]) * y.D + k * W);
                    if (vector) q += load_left * load(vector + k * W);
                    acc[k % P] += q * load(key + size_t(nodes[s]) * y.D + k * W);
                }
            }
            for (int q = 0; q < P; ++q) {
                const typename H::part x = H::gather(acc[q]);
                H::put(w + s * HP, q, x);
                if (!(closed && closed[s])) top[q] = x > top[q] ? x : top[q];
            }
        }
        for (int s = 0; s < size; ++s)
            for (int q = 0; q < P; ++q)
                H::put(w + s * HP, q, closed && closed[s] ? typename H::part{} - 1000.0f : H::get(w + s * HP, q) - top[q]);
        exponentials(w, size_t(size) * HP);
        for (int s = 0; s < size; ++s)
            for (int q = 0; q < P; ++q) sum[q] += H::get(w + s * HP, q);
        for (int q = 0; q < P; ++q) H::put(norm, q, sum[q]);
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
