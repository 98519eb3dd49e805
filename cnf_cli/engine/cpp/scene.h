// One instance made ready for the kernels: rows in the kernels' layout and the tables of attention scores.
#pragma once
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#include "kernel.h"
#include "tile.h"

namespace cnf {
namespace CNF_ISA {

constexpr float TINY = 1e-18f;  // below this a normaliser may have lost terms to underflow: take the safe way
constexpr float INFINITE = __builtin_inff();
constexpr size_t LEVEL_BYTES = 1 << 20;
constexpr size_t EXPONENTIALS = 1 << 14;  // of a table at a time; a multiple of W

// What to subtract from logits clip * tanh(x * squash) before exp: nothing while exp(clip) and its sum stay small, else
// the largest of them.
CNF_INLINE float logit_shift(const float *x, int size, float clip, float squash) {
    if (clip <= 40) return 0;
    float most = -INFINITE;
    for (int s = 0; s < size; ++s) most = x[s] > most ? x[s] : most;
    return clip * tanh(all(most) * squash)[0];
}

struct Layout {
    int hp, dim, D;  // heads padded to 4, 8 or 16; dims of a head padded so that D = hp * dim fills tiles
};

CNF_INLINE Layout layout(const Task &task) {
    const int hp = task.heads <= 4 ? 4 : task.heads <= 8 ? 8 : 16;
    const int dk = task.d / task.heads, step = K * W / hp > 1 ? K * W / hp : 1;
    const int dim = (dk + step - 1) / step * step;
    return {hp, dim, hp * dim};
}

// Hands out 64-byte aligned pieces of a buffer; with a null buffer it only counts. Under the address sanitizer nobody may
// touch what lies between two pieces.
struct Arena {
    char *base;
    size_t used = 0;
    template <class T>
    T *take(size_t count) {
        char *at = base ? base + used : nullptr;
        const size_t size = (count * sizeof(T) + 63) / 64 * 64;
        used += size;
#if defined(__SANITIZE_ADDRESS__)
        used += 64;
        if (at) __asan_unpoison_memory_region(at, size), __asan_poison_memory_region(at + size, 64);
#endif
        return reinterpret_cast<T *>(at);
    }
};

// [head][dim] -> [dim][head], times scale; padding is zero. Sizes known while compiling make this several times faster.
template <int HEADS, int DK>
static void interleave_as(const float *in, float *out, int rows, int heads, int dk, Layout y, float scale) {
    const int h = HEADS ? HEADS : heads, k = DK ? DK : dk, hp = HEADS ? HEADS : y.hp;
    for (int r = 0; r < rows; ++r, in += h * k, out += y.D) {
        if (!HEADS) __builtin_memset(out, 0, sizeof(float) * y.D);
        for (int e = 0; e < k; ++e)
            for (int i = 0; i < h; ++i) out[e * hp + i] = in[i * k + e] * scale;
    }
}

static void interleave(const float *in, float *out, int rows, const Task &task, Layout y, float scale) {
    const int h = task.heads, dk = task.d / h;
    if (h == 8 && dk == 16) return interleave_as<8, 16>(in, out, rows, h, dk, y, scale);
    if (h == 8 && dk == 8) return interleave_as<8, 8>(in, out, rows, h, dk, y, scale);
    if (h == 16 && dk == 16) return interleave_as<16, 16>(in, out, rows, h, dk, y, scale);
    interleave_as<0, 0>(in, out, rows, h, dk, y, scale);
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
    int n;
    float scale;
    Watch watch;
    int *count;                           // 0, 1, 2, ...: rows in order
    int *start;                           // node each rollout at hand starts from
    float *first, *last, *key;            // n rows; key is times 1 / sqrt(dim of a head)
    float *value, *pointer;               // n + 1 rows, the last one zero: what padded lists point to
    float *from, *at;                     // [rollout][node][head], [node][node][head]: see prepare
    float *vector, *pull;                 // load row; its score with each node, largest 0
    float *levels;                        // rows exp(load * pull) for some loads: a load comes back many times
    uint32_t *loads;                      // which load a row is for, and when it was last asked for
    int *asked, now, slots;
    float *bias;                          // n + 1
    float *near;                          // n rows of n + 1: the bias of every node, seen from every node; or null
    float *fade;                          // heads, padded with zeros; null where attention does not fall off
    const float *space;                   // n n
    const int16_t *nearest;               // n n, or null: whether a move goes to some of the nearest nodes only
    const float *demand;                  // n or null
    const double *units;                  // n or null
    double limit;                         // of a vehicle, in the same units
    bool odd;                             // some attention score is NaN or infinite: exp would hide it

    // Whether an empty vehicle can serve every node.
    bool servable() const {
        bool good = true;
        for (int j = 1; j < n && units; ++j) good &= units[j] <= limit;
        return good;
    }

    bool depot() const { return task->demand != nullptr; }

    // `rollouts`: how many are at hand at a time.
    void place(const Task &t, int rollouts, Arena &a) {
        task = &t;
        watch.stop = t.stop;
        y = layout(t);
        n = t.n;
        const size_t rows = size_t(n) * y.D;
        count = a.take<int>(n + 64);
        start = a.take<int>(rollouts + 64);
        last = a.take<float>(rows);
        key = a.take<float>(rows);
        value = a.take<float>(rows + y.D);
        pointer = a.take<float>(rows + y.D);
        bias = a.take<float>(n + 1);
        near = t.near ? a.take<float>(size_t(n) * (n + 1)) : nullptr;
        fade = t.fade ? a.take<float>(HP) : nullptr;
        at = a.take<float>(size_t(n) * n * HP + W);
        first = t.first ? a.take<float>(rows) : nullptr;
        from = t.first ? a.take<float>(size_t(rollouts) * n * HP + W) : nullptr;
        vector = t.load ? a.take<float>(y.D) : nullptr;
        pull = t.load ? a.take<float>(size_t(n) * HP + W) : nullptr;
        slots = 512;
        while (slots > 16 && slots * row() * sizeof(float) > LEVEL_BYTES) slots /= 2;
        levels = t.load ? a.take<float>(slots * row()) : nullptr;
        loads = t.load ? a.take<uint32_t>(slots) : nullptr;
        asked = t.load ? a.take<int>(slots) : nullptr;
    }

    size_t row() const { return (size_t(n) * HP + W - 1) / W * W; }

    // exp(left * pull) for all nodes. What was given since `now` last changed stays as it is; `spare` is where a row goes
    // that would overwrite it (null: it may).
    const float *level(float left, float *spare) {
        uint32_t bits;
        __builtin_memcpy(&bits, &left, sizeof bits);
        const uint32_t slot = (bits * 2654435761u >> 16) & uint32_t(slots - 1);
        float *out = levels + slot * row();
        if (loads[slot] != bits) {
            if (spare && asked[slot] == now)
                out = spare;
            else
                loads[slot] = bits;
            for (size_t k = 0; k < row(); k += W) store(out + k, exp(left * load(pull + k)));
        }
        if (out != spare) asked[slot] = now;
        return out;
    }

    // Weights of step (f, c) are from[f] * at[c], exponentials already, and with a load times level(load). Rows are
    // shifted by their largest entry, which changes no softmax. `from` waits for `depart`.
    void prepare(int i) {
        const Task &t = *task;
        const size_t rows = size_t(n) * t.d;
        scale = 1.0f / __builtin_sqrtf(float(t.d / t.heads));
        for (int j = 0; j < n + 64; ++j) count[j] = j;
        interleave(t.last + i * rows, last, n, t, y, 1);
        interleave(t.key + i * rows, key, n, t, y, scale);
        interleave(t.value + i * rows, value, n, t, y, 1);
        interleave(t.pointer + i * rows, pointer, n, t, y, 1);
        __builtin_memset(value + size_t(n) * y.D, 0, sizeof(float) * y.D);
        __builtin_memset(pointer + size_t(n) * y.D, 0, sizeof(float) * y.D);
        __builtin_memcpy(bias, t.bias + size_t(i) * n, sizeof(float) * n);
        bias[n] = 0;
        if (near) look_around(t.near + size_t(i) * n * n);
        demand = t.demand ? t.demand + size_t(i) * n : nullptr;
        units = t.demand ? t.units + size_t(i) * n : nullptr;
        limit = t.demand ? t.limit[i] : 0;
        space = t.space ? t.space + size_t(i) * n * n : nullptr;
        nearest = t.nearest ? t.nearest + size_t(i) * n * n : nullptr;
        for (int h = 0; h < HP && fade; ++h) fade[h] = h < t.heads ? t.fade[h] : 0;
        scores({last, count}, n, at, fade ? space : nullptr);
        if (first) interleave(t.first + i * rows, first, n, t, y, 1);
        if (vector) {
            interleave(t.load, vector, 1, t, y, 1);
            scores({vector, count}, 1, pull);
            for (int k = 0; k < slots; ++k) loads[k] = ~0u, asked[k] = -1;  // not the bits of any load
            now = 0;
        }
        odd = !exponentials(at, size_t(n) * n * HP);
        for (size_t k = 0; vector && k < size_t(n) * HP; ++k) odd |= !(pull[k] - pull[k] == 0);
    }

    // What `near` says is in units of the squashed scores, so it counts sqrt(d) times as much before they are squashed.
    void look_around(const float *given) {
        const float unit = __builtin_sqrtf(float(task->d));
        for (int c = 0; c < n && !watch.after(n); ++c) {
            float *row = near + size_t(c) * (n + 1);
            for (int j = 0; j < n; ++j) row[j] = bias[j] + unit * given[size_t(c) * n + j];
            row[n] = 0;
        }
    }

    // Calls take(j) for nodes j, the nearest to c first, until it was true for as many as are candidates.
    template <class Take>
    CNF_MEMBER void look_near(int c, const Take &take) const {
        const int16_t *row = nearest + size_t(c) * n;
        for (int i = 0, left_ = task->candidates; i < n && left_; ++i) left_ -= take(int(row[i]));
    }

    // What is added to the products with the pointer rows, for a rollout that stands at c.
    const float *biases(int c) const { return near ? near + size_t(c) * (n + 1) : bias; }

    // The rollouts at hand are [p0, p0 + rollouts), counted from 0 by what follows.
    void depart(int p0, int rollouts) {
        for (int p = 0; p < rollouts; ++p) start[p] = int(task->starts[p0 + p]);
        if (!first) return;
        scores({first, start}, rollouts, from);
        odd |= !exponentials(from, size_t(rollouts) * n * HP);
    }

    // With `far`, rows of n distances, the scores fall off with them.
    void scores(Rows query, int rows, float *out, const float *far = nullptr) {
        watch.rows(rows, size_t(n) * y.D, [&](int r, int some) {
            score_rows({query.base, query.index + r}, some, out + size_t(r) * n * HP, far ? far + size_t(r) * n : nullptr);
        });
    }

    void score_rows(Rows query, int rows, float *out, const float *far) const {
        dots<HP>(query, rows, {key, count}, n, y.D, [&](int r0, int s0, const auto &x) __attribute__((always_inline)) {
            int r = r0;
            for (const auto &line : x) {
                float *to = out + (size_t(r++) * n + s0) * HP;
                for (const auto &heads : line)
                    for (int p = 0; p < H::PARTS; ++p, to += H::L) H::put(to, 0, heads[p]);
            }
        });
        for (int r = 0; r < rows; ++r) {
            float *row = out + size_t(r) * n * HP;
            for (int p = 0; p < H::PARTS; ++p) {
                if (far)
                    for (int s = 0; s < n; ++s)
                        H::put(row + s * HP, p, H::get(row + s * HP, p) - H::get(fade, p) * far[size_t(r) * n + s]);
                typename H::part top = H::get(row, p);
                for (int s = 1; s < n; ++s) {
                    const typename H::part x = H::get(row + s * HP, p);
                    top = x > top ? x : top;
                }
                for (int s = 0; s < n; ++s) H::put(row + s * HP, p, H::get(row + s * HP, p) - top);
            }
        }
    }

    // Each number becomes its exponential; false where one is NaN or infinite.
    bool exponentials(float *x, size_t size) {
        size_t i = 0;
        vec odd_ = {};
        while (i + W <= size && !watch.after(EXPONENTIALS * 16))
            for (const size_t end = i + EXPONENTIALS < size ? i + EXPONENTIALS : size; i + W <= end; i += W) {
                const vec v = load(x + i);
                odd_ += v - v;
                store(x + i, exp(v));
            }
        if (i < size && !watch.stopped) {
            float rest[W] = {};
            for (size_t k = i; k < size; ++k) rest[k - i] = x[k];
            const vec v = load(rest);
            odd_ += v - v;
            store(rest, exp(v));
            for (size_t k = i; k < size; ++k) x[k] = rest[k - i];
        }
        return sum(odd_) == 0;
    }

    // w[s] = weight, not normalised, of node nodes[s] for rollout p standing at c; norm = their sums. The first `behind`
    // nodes and those with fence[s] = -inf (0 elsewhere; may be null) are closed and get 0. w has room for W more.
    void weights(int p, int c, float left, const int *nodes, int size, int behind, const float *fence, float *w,
                 float *norm) {
        const float *e = at + size_t(c) * n * HP, *f = from ? from + size_t(p) * n * HP : nullptr;
        const float *g = vector ? level(left, nullptr) : nullptr;
        __builtin_memset(w, 0, sizeof(float) * behind * HP);
        for (int s = behind; s < size; ++s)
            for (int q = 0; q < H::PARTS; ++q) {
                const size_t j = size_t(nodes[s]) * HP;
                typename H::part x = H::get(e + j, q);
                if (f) x *= H::get(f + j, q);
                if (g) x *= H::get(g + j, q);
                H::put(w + s * HP, q, fence && fence[s] != 0 ? typename H::part{} : x);
            }
        total<false>(w, size, norm);
        if (!sound(norm)) safe_weights(p, c, left, nodes, size, behind, fence, w, norm);
    }

    // norm = sums of w over nodes; RAISE first replaces w by exp(w).
    template <bool RAISE>
    static void total(float *w, int size, float *norm) {
        vec sum[H::PARTS] = {};
        for (int i = size * HP; i % (H::PARTS * W); ++i) w[i] = RAISE ? -INFINITE : 0.0f;
        for (int i = 0; i < size * HP; i += H::PARTS * W)
            for (int q = 0; q < H::PARTS; ++q) {
                vec x = load(w + i + q * W);
                if (RAISE) store(w + i + q * W, x = exp(x));
                sum[q] += x;
            }
        for (int q = 0; q < H::PARTS; ++q) H::put(norm, q, H::gather(sum[q]));
    }

    static bool sound(const float *norm) {
        bool good = true;
        for (int h = 0; h < HP; ++h) good &= norm[h] > TINY;
        return good;
    }

    // The same from the dot products themselves, shifted by the largest open score: nothing can underflow to nothing.
    void safe_weights(int p, int c, float left, const int *nodes, int size, int behind, const float *fence, float *w,
                      float *norm) const {
        constexpr int P = H::PARTS;
        typename H::part top[P];
        for (int q = 0; q < P; ++q) top[q] = typename H::part{} - INFINITE;
        for (int s = 0; s < size; ++s) {
            const bool closed = s < behind || (fence && fence[s] != 0);
            vec acc[P] = {};
            for (int k = 0; k < y.D / W && !closed; ++k) {
                vec query = load(last + size_t(c) * y.D + k * W);
                if (first) query += load(first + size_t(start[p]) * y.D + k * W);
                if (vector) query += left * load(vector + k * W);
                acc[k % P] += query * load(key + size_t(nodes[s]) * y.D + k * W);
            }
            for (int q = 0; q < P; ++q) {
                typename H::part x = closed ? typename H::part{} - INFINITE : H::gather(acc[q]);
                if (fade) x -= H::get(fade, q) * space[size_t(c) * n + nodes[s]];
                H::put(w + s * HP, q, x);
                top[q] = x > top[q] ? x : top[q];
            }
        }
        for (int s = 0; s < size; ++s)
            for (int q = 0; q < P; ++q) H::put(w + s * HP, q, H::get(w + s * HP, q) - top[q]);
        total<true>(w, size, norm);
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
