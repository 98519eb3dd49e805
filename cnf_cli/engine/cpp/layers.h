// The encoder's layers, forward and backward, a few instances at a time: what they need stays in the second-level cache
// from the first product of a layer to its last. Attention weights are not kept; the backward pass makes them again.
//
// A layer, rows are nodes:  a = attention(h Q', h K', h V');  x = norm1(h + a C' + c);  h = norm2(x + relu(x F' + f) G' + g)
// attention: softmax of q . k / sqrt(dk), minus fade times the distance where the layer knows of distances.
// norm: minus the mean, over the standard deviation of an instance's nodes, times scale, plus shift.
#pragma once
#include "gemm.h"
#include "kernel.h"
#include "scene.h"

namespace cnf {
namespace CNF_ISA {

constexpr int TOKENS = 320;  // nodes of all instances that go through a layer together
constexpr float EPSILON = 1e-5f;

// Where a layer's packed products are: four d x d, then d x f and f x d, for the forward and then the backward pass.
struct Packed {
    const float *q, *k, *v, *combine, *ff1, *ff2;
};
CNF_INLINE Packed packed_at(const Stack &s, int layer, bool backward) {
    const size_t dd = size_t(s.d) * s.d, df = size_t(s.d) * s.f;
    const float *x = s.packed + layer * packed_size(s) + (backward ? 4 * dd + 2 * df : 0);
    return {x, x + dd, x + 2 * dd, x + 3 * dd, x + 4 * dd, x + 4 * dd + df};
}

static void pack_layer(const Stack &s, int layer, bool backward) {
    const LayerWeights &w = s.weights[layer];
    const Packed to = packed_at(s, layer, backward);
    const float *square[4] = {w.q, w.k, w.v, w.combine}, *out[4] = {to.q, to.k, to.v, to.combine};
    for (int i = 0; i < 4; ++i) pack(square[i], const_cast<float *>(out[i]), s.d, s.d, !backward);
    pack(w.ff1, const_cast<float *>(to.ff1), backward ? s.f : s.d, backward ? s.d : s.f, !backward);
    pack(w.ff2, const_cast<float *>(to.ff2), backward ? s.d : s.f, backward ? s.f : s.d, !backward);
}

// What the backward pass needs of a layer, for all instances: rows of nodes, then one row per instance.
struct Kept {
    float *qkv, *seen, *x1, *hidden, *x2;  // 3d, d, d, f, d wide; x1 and x2 before scale and shift
    float *inverse1, *inverse2;            // d wide: one over the standard deviations
};

// Gradients of a layer's parameters, in the order of LayerWeights; ff2's is transposed.
struct LayerGradients {
    float *q, *k, *v, *combine, *combine_bias, *scale1, *shift1, *ff1, *ff1_bias, *ff2, *ff2_bias, *scale2, *shift2;
};

// out[e][j] = x[j][e] * scale for j < n and zero up to np; e < depth.
static void turn(const float *x, size_t row, int depth, int n, int np, float scale, float *out) {
    for (int e = 0; e < depth; ++e, out += np) {
        for (int j = 0; j < n; ++j) out[j] = x[j * row + e] * scale;
        for (int j = n; j < np; ++j) out[j] = 0;
    }
}

// Each of n rows of np numbers, n of them good, becomes its softmax, zero beyond n. Room: totals n padded, times W; inverses
// n padded.
static void softmax(float *rows, int n, int np, float *totals, float *inverses, Watch &watch) {
    vec high = {};
    for (size_t j = 0; j < size_t(n) * np; j += W) high = larger(high, larger(load(rows + j), -load(rows + j)));
    const bool tame = largest(high) < 60;  // then exp needs no shift
    ivec last;
    for (int l = 0; l < W; ++l) last[l] = np - W + l < n ? -1 : 0;
    for (int i = 0; i < n && !watch.after(size_t(np) * 16); ++i) {
        float *row = rows + size_t(i) * np, shift = 0;
        if (!tame) {
            shift = row[0];
            for (int j = 1; j < n; ++j) shift = row[j] > shift ? row[j] : shift;
        }
        vec total = {};
        int j = 0;
        for (; j + W < np; j += W) {
            const vec e = exp(load(row + j) - shift);
            store(row + j, e);
            total += e;
        }
        const vec e = (vec)((ivec)exp(load(row + j) - shift) & last);
        store(row + j, e);
        store(totals + i * W, total + e);
    }
    for (int i = 0; i < n; i += W)
        store(inverses + i, 1.0f / sums([&](int r) __attribute__((always_inline)) { return load(totals + (i + r) * W); }));
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < np; j += W) {
            float *x = rows + size_t(i) * np + j;
            store(x, load(x) * inverses[i]);
        }
}

// Products whose columns are one head, a multiple of four: the widest vectors that divide it.
static void gemm_narrow(Left a, const float *b, size_t b_row, float *c, size_t c_row, int rows, int depth, int cols) {
    if (W == 16 && cols % 16 == 0) return gemm<(W < 16 ? W : 16)>(a, b, b_row, c, c_row, rows, depth, cols);
    if (W >= 8 && cols % 8 == 0) return gemm<(W < 8 ? W : 8)>(a, b, b_row, c, c_row, rows, depth, cols);
    gemm<4>(a, b, b_row, c, c_row, rows, depth, cols);
}

struct Layers {
    const Stack &s;
    Watch watch;
    int n, d, f, dk, np, most;  // np: nodes padded to whole vectors; most: instances at a time
    float *h, *t, *wide;        // most * n rows: d, d, f
    float *qkv, *seen;          // 3d, d
    float *dh, *dt;             // d
    float *inverse;             // most rows
    float *turned, *prob, *d_prob;  // dk, n and n rows of np
    float *totals, *inverses;       // of the rows of prob
    float *far, *d_far;             // n rows of np: distances within the instance at hand, and their gradient

    Layers(const Stack &stack, Arena &a) : s(stack), watch{stack.stop}, n(stack.n), d(stack.d), f(stack.f), dk(d / stack.heads) {
        np = (n + W - 1) / W * W;
        most = TOKENS / n > 1 ? TOKENS / n : 1;
        most = most < s.group ? most : s.group;
        const size_t rows = size_t(most) * n;
        h = a.take<float>(rows * d), t = a.take<float>(rows * d), wide = a.take<float>(rows * f);
        qkv = a.take<float>(rows * 3 * d), seen = a.take<float>(rows * d);
        dh = a.take<float>(rows * d), dt = a.take<float>(rows * d);
        inverse = a.take<float>(size_t(most) * d);
        turned = a.take<float>(size_t(dk) * np), totals = a.take<float>(size_t(np) * W), inverses = a.take<float>(np);
        prob = a.take<float>(size_t(n) * np), d_prob = a.take<float>(size_t(n) * np);
        far = s.space ? a.take<float>(size_t(n) * np) : nullptr;
        d_far = s.space ? a.take<float>(size_t(n) * np) : nullptr;
    }

    // The rows of instances from i on, in what is kept of a layer; own buffers when nothing is kept.
    Kept kept(int layer, int i) const {
        if (!s.saved) return {qkv, seen, t, wide, t, inverse, inverse};
        float *x = s.saved + layer * saved_size(s);
        const size_t rows = size_t(s.b) * n, at = size_t(i) * n;
        Kept k;
        k.qkv = x + at * 3 * d, x += rows * 3 * d;
        k.seen = x + at * d, x += rows * d;
        k.x1 = x + at * d, x += rows * d;
        k.hidden = x + at * f, x += rows * f;
        k.x2 = x + at * d, x += rows * d;
        k.inverse1 = x + size_t(i) * d, x += size_t(s.b) * d;
        k.inverse2 = x + size_t(i) * d;
        return k;
    }

    LayerGradients gradients(int layer, int group) const {
        float *x = s.d_weights + (size_t(group) * s.layers + layer) * weights_size(s);
        const size_t dd = size_t(d) * d, df = size_t(d) * f;
        LayerGradients g;
        g.q = x, g.k = x + dd, g.v = x + 2 * dd, g.combine = x + 3 * dd, x += 4 * dd;
        g.combine_bias = x, g.scale1 = x + d, g.shift1 = x + 2 * d, x += 3 * d;
        g.ff1 = x, x += df, g.ff1_bias = x, x += f;
        g.ff2 = x, x += df, g.ff2_bias = x, g.scale2 = x + d, g.shift2 = x + 2 * d;
        return g;
    }

    // ---- attention -------------------------------------------------------------------------------------------------

    // Distances of one instance with rows of whole vectors.
    void measure(int instance) {
        if (!far) return;
        const float *in = s.space + size_t(instance) * n * n;
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < np; ++j) far[size_t(i) * np + j] = j < n ? in[size_t(i) * n + j] : 0;
    }

    // prob[i][j]: how much node i looks at node j; zero beyond the last node. `fade` says how fast that falls off.
    void attend(const float *q, const float *k, float fade) {
        turn(k, 3 * d, dk, n, np, 1.0f / __builtin_sqrtf(float(dk)), turned);
        square(q, 3 * d, prob);
        for (size_t j = 0; j < size_t(n) * np && far; j += W) store(prob + j, load(prob + j) - fade * load(far + j));
        softmax(prob, n, np, totals, inverses, watch);
    }

    float fade(int layer, int column) const { return s.fade ? s.fade[layer * s.heads + column / dk] : 0; }

    void gemm_head(Left a, const float *b, size_t b_row, float *c, size_t c_row) {
        watch.rows(n, size_t(n) * dk, [&](int r, int some) {
            gemm_narrow({a.at + r * a.row, a.row, a.column}, b, b_row, c + r * c_row, c_row, some, n, dk);
        });
    }

    // out[i][j] = x[i] . turned[j] of one head.
    void square(const float *x, size_t row, float *out) {
        watch.rows(n, size_t(dk) * np, [&](int r, int some) {
            gemm<W>({x + r * row, row, 1}, turned, np, out + size_t(r) * np, np, some, dk, np);
        });
    }

    void look(const float *qkv_, float *out, int layer, int instance) {
        measure(instance);
        for (int e = 0; e < d && !watch.stopped; e += dk) {
            attend(qkv_ + e, qkv_ + d + e, fade(layer, e));
            gemm_head({prob, size_t(np), 1}, qkv_ + 2 * d + e, 3 * d, out + e, d);
        }
    }

    // From d_out to the gradients of the queries, keys and values of one instance.
    void look_back(const float *qkv_, const float *out, const float *d_out, float *d_qkv, int layer, int instance) {
        const float scale = 1.0f / __builtin_sqrtf(float(dk));
        measure(instance);
        if (far) __builtin_memset(d_far, 0, sizeof(float) * n * np);
        for (int e = 0; e < d && !watch.stopped; e += dk) {
            const float *q = qkv_ + e, *k = q + d, *v = k + d;
            float *dq = d_qkv + e;
            attend(q, k, fade(layer, e));
            gemm_head({prob, 1, size_t(np)}, d_out + e, d, dq + 2 * d, 3 * d);
            turn(v, 3 * d, dk, n, np, 1, turned);
            square(d_out + e, d, d_prob);
            for (int i = 0; i < n; ++i) {
                float own = 0;
                for (int c = 0; c < dk; ++c) own += d_out[size_t(i) * d + e + c] * out[size_t(i) * d + e + c];
                float *x = d_prob + size_t(i) * np;
                const float *p = prob + size_t(i) * np;
                for (int j = 0; j < np; j += W) store(x + j, load(p + j) * (load(x + j) - own) * scale);
            }
            gemm_head({d_prob, size_t(np), 1}, k, 3 * d, dq, 3 * d);
            gemm_head({d_prob, 1, size_t(np)}, q, 3 * d, dq + d, 3 * d);
            if (far) unfade(layer, e, instance);
        }
        for (int i = 0; i < n && far; ++i)
            for (int j = 0; j < n; ++j)
                s.d_space[(size_t(instance) * n + i) * n + j] += d_far[size_t(i) * np + j];
    }

    // Adds what one head's scores, their gradient times 1 / sqrt(dk) in d_prob, mean for the distances and its fade.
    void unfade(int layer, int column, int instance) {
        const float unit = -__builtin_sqrtf(float(dk)), by = unit * fade(layer, column);
        vec along = {};
        for (size_t j = 0; j < size_t(n) * np; j += W) {
            const vec x = load(d_prob + j);
            store(d_far + j, load(d_far + j) + by * x);
            along += x * load(far + j);
        }
        s.d_fade[(size_t(instance / s.group) * s.layers + layer) * s.heads + column / dk] += unit * sum(along);
    }

    // ---- norm ------------------------------------------------------------------------------------------------------

    // x becomes the normalised in[...], h = x * scale + shift; in may be x. Columns four vectors at a time.
    template <int M>
    CNF_MEMBER void norm_columns(const float *in, float *x, float *inv, const float *scale, const float *shift, float *out) {
        vec middle[M] = {}, square[M] = {};
        const auto at = [&](int i, int m) { return size_t(i) * d + m * W; };
        for (int i = 0; i < n; ++i)
            for (int m = 0; m < M; ++m) middle[m] += load(in + at(i, m));
        for (int m = 0; m < M; ++m) middle[m] /= float(n);
        for (int i = 0; i < n; ++i)
            for (int m = 0; m < M; ++m) {
                const vec c = load(in + at(i, m)) - middle[m];
                square[m] += c * c;
            }
        for (int m = 0; m < M; ++m) {
            vec v = square[m] / float(n) + EPSILON;
            for (int l = 0; l < W; ++l) v[l] = 1.0f / __builtin_sqrtf(v[l]);
            square[m] = v;
            store(inv + m * W, v);
        }
        for (int i = 0; i < n; ++i)
            for (int m = 0; m < M; ++m) {
                const vec y = (load(in + at(i, m)) - middle[m]) * square[m];
                store(x + at(i, m), y);
                store(out + at(i, m), y * load(scale + m * W) + load(shift + m * W));
            }
    }

    void norm(const float *in, float *x, float *inv, const float *scale, const float *shift, float *out) {
        int j = 0;
        for (; j + 4 * W <= d; j += 4 * W) norm_columns<4>(in + j, x + j, inv + j, scale + j, shift + j, out + j);
        for (; j < d; j += W) norm_columns<1>(in + j, x + j, inv + j, scale + j, shift + j, out + j);
    }

    // dy becomes the gradient of what was normalised; those of scale and shift are added up where wanted.
    template <int M>
    CNF_MEMBER void norm_back_columns(float *dy, const float *x, const float *inv, const float *scale, float *d_scale,
                                      float *d_shift) {
        vec plain[M] = {}, along[M] = {};
        const auto at = [&](int i, int m) { return size_t(i) * d + m * W; };
        for (int i = 0; i < n; ++i)
            for (int m = 0; m < M; ++m) {
                const vec g = load(dy + at(i, m));
                plain[m] += g;
                along[m] += g * load(x + at(i, m));
            }
        if (d_scale)
            for (int m = 0; m < M; ++m) {
                store(d_scale + m * W, load(d_scale + m * W) + along[m]);
                store(d_shift + m * W, load(d_shift + m * W) + plain[m]);
            }
        vec factor[M], middle[M] = {};
        for (int m = 0; m < M; ++m) {
            along[m] /= float(n);
            factor[m] = load(inv + m * W) * load(scale + m * W);
        }
        // The mean goes last, so that what is left adds up to nothing but the last rounding.
        for (int i = 0; i < n; ++i)
            for (int m = 0; m < M; ++m) {
                const vec g = factor[m] * (load(dy + at(i, m)) - load(x + at(i, m)) * along[m]);
                store(dy + at(i, m), g);
                middle[m] += g;
            }
        for (int m = 0; m < M; ++m) middle[m] /= float(n);
        for (int i = 0; i < n; ++i)
            for (int m = 0; m < M; ++m) store(dy + at(i, m), load(dy + at(i, m)) - middle[m]);
    }

    void norm_back(float *dy, const float *x, const float *inv, const float *scale, float *d_scale, float *d_shift) {
        const auto with = [](float *p, int j) { return p ? p + j : nullptr; };
        int j = 0;
        for (; j + 4 * W <= d; j += 4 * W)
            norm_back_columns<4>(dy + j, x + j, inv + j, scale + j, with(d_scale, j), with(d_shift, j));
        for (; j < d; j += W)
            norm_back_columns<1>(dy + j, x + j, inv + j, scale + j, with(d_scale, j), with(d_shift, j));
    }

    // out = x * scale + shift
    void scaled(const float *x, const float *scale, const float *shift, float *out, int rows) {
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < d; j += W)
                store(out + size_t(i) * d + j, load(x + size_t(i) * d + j) * load(scale + j) + load(shift + j));
    }

    static void add_rows(const float *x, float *total, int rows, int columns) {
        for (int j = 0; j < columns; j += W) {
            vec some = load(total + j);
            for (int i = 0; i < rows; ++i) some += load(x + size_t(i) * columns + j);
            store(total + j, some);
        }
    }

    // ---- passes ----------------------------------------------------------------------------------------------------

    Left rows_of(const float *x, int width) const { return {x, size_t(width), 1}; }
    Left columns_of(const float *x, int width) const { return {x, 1, size_t(width)}; }

    // gemm_packed, block by block of rows.
    void product(Left a, const float *panels, float *c, size_t c_row, int rows, int depth, int cols, Init init,
                 const float *bias = nullptr) {
        watch.rows(rows, size_t(depth) * cols, [&](int r, int some) {
            gemm_packed({a.at + r * a.row, a.row, a.column}, panels, c + r * c_row, c_row, some, depth, cols, init, bias);
        });
    }

    // Adds to C (rows x cols), block by block of its rows: gradients of weights, from all nodes.
    void outer(Left a, const float *b, size_t b_row, float *c, size_t c_row, int rows, int depth, int cols, Init init) {
        watch.rows(rows, size_t(depth) * cols, [&](int r, int some) {
            gemm<W>({a.at + r * a.row, a.row, a.column}, b, b_row, c + r * c_row, c_row, some, depth, cols, init);
        });
    }

    void forward_layer(int layer, int i, int count) {
        const LayerWeights &w = s.weights[layer];
        const Packed p = packed_at(s, layer, false);
        const Kept k = kept(layer, i);
        const int rows = count * n;
        const size_t one = size_t(n) * d;
        const float *maps[3] = {p.q, p.k, p.v};
        for (int m = 0; m < 3; ++m) product(rows_of(h, d), maps[m], k.qkv + m * d, 3 * d, rows, d, d, ZERO);
        for (int c = 0; c < count; ++c) look(k.qkv + 3 * one * c, k.seen + one * c, layer, i + c);
        product(rows_of(k.seen, d), p.combine, t, d, rows, d, d, BIAS, w.combine_bias);
        for (size_t j = 0; j < one * count; j += W) store(t + j, load(t + j) + load(h + j));
        for (int c = 0; c < count; ++c)
            norm(t + one * c, k.x1 + one * c, k.inverse1 + c * d, w.scale1, w.shift1, h + one * c);
        product(rows_of(h, d), p.ff1, k.hidden, f, rows, d, f, BIAS, w.ff1_bias);
        for (size_t j = 0; j < size_t(rows) * f; j += W) store(k.hidden + j, larger(load(k.hidden + j), vec{}));
        product(rows_of(k.hidden, f), p.ff2, t, d, rows, f, d, BIAS, w.ff2_bias);
        for (size_t j = 0; j < one * count; j += W) store(t + j, load(t + j) + load(h + j));
        for (int c = 0; c < count; ++c)
            norm(t + one * c, k.x2 + one * c, k.inverse2 + c * d, w.scale2, w.shift2, h + one * c);
    }

    // dh: from the gradient of the layer's result to that of its input, whose rows are `in`, or in h's place if null.
    void backward_layer(int layer, int i, int count, const float *in, LayerGradients *g) {
        const LayerWeights &w = s.weights[layer];
        const Packed p = packed_at(s, layer, true);
        const Kept k = kept(layer, i);
        const int rows = count * n;
        const size_t one = size_t(n) * d;
        for (int c = 0; c < count; ++c)
            norm_back(dh + one * c, k.x2 + one * c, k.inverse2 + c * d, w.scale2, g ? g->scale2 : nullptr,
                      g ? g->shift2 : nullptr);
        if (g) {
            add_rows(dh, g->ff2_bias, rows, d);
            outer(columns_of(k.hidden, f), dh, d, g->ff2, d, f, rows, d, ADD);
        }
        product(rows_of(dh, d), p.ff2, wide, f, rows, d, f, ZERO);
        for (size_t j = 0; j < size_t(rows) * f; j += W)
            store(wide + j, load(k.hidden + j) > 0.0f ? load(wide + j) : vec{});
        if (g) {
            scaled(k.x1, w.scale1, w.shift1, t, rows);
            add_rows(wide, g->ff1_bias, rows, f);
            outer(columns_of(wide, f), t, d, g->ff1, d, f, rows, d, ADD);
        }
        product(rows_of(wide, f), p.ff1, dh, d, rows, f, d, ADD);
        for (int c = 0; c < count; ++c)
            norm_back(dh + one * c, k.x1 + one * c, k.inverse1 + c * d, w.scale1, g ? g->scale1 : nullptr,
                      g ? g->shift1 : nullptr);
        if (g) {
            add_rows(dh, g->combine_bias, rows, d);
            outer(columns_of(dh, d), k.seen, d, g->combine, d, d, rows, d, ADD);
        }
        product(rows_of(dh, d), p.combine, dt, d, rows, d, d, ZERO);
        for (int c = 0; c < count; ++c)
            look_back(k.qkv + 3 * one * c, k.seen + one * c, dt + one * c, qkv + 3 * one * c, layer, i + c);
        if (g) {
            float *out[3] = {g->q, g->k, g->v};
            for (int m = 0; m < 3; ++m) outer(columns_of(qkv + m * d, 3 * d), in, d, out[m], d, d, rows, d, ADD);
        }
        const float *maps[3] = {p.q, p.k, p.v};
        for (int m = 0; m < 3; ++m) product(rows_of(qkv + m * d, 3 * d), maps[m], dh, d, rows, d, d, ADD);
    }

    template <class Work>
    Status pass(int group, const Work &work) {
        const int from = group * s.group, end = end_of(from, s.group, s.b);
        for (int i = from; i < end; i += most) {
            if (watch.after(size_t(n) * d)) return STOPPED;
            work(i, end - i < most ? end - i : most);
            if (watch.stopped) return STOPPED;
        }
        return DONE;
    }

    Status forward(int group) {
        return pass(group, [&](int i, int count) {
            const size_t at = size_t(i) * n * d, size = sizeof(float) * count * n * d;
            __builtin_memcpy(h, s.in + at, size);
            for (int layer = 0; layer < s.layers && !watch.stopped; ++layer) forward_layer(layer, i, count);
            __builtin_memcpy(s.out + at, h, size);
        });
    }

    Status backward(int group) {
        return pass(group, [&](int i, int count) {
            const size_t at = size_t(i) * n * d, size = sizeof(float) * count * n * d;
            __builtin_memcpy(dh, s.d_out + at, size);
            for (int layer = s.layers - 1; layer >= 0 && !watch.stopped; --layer) {
                LayerGradients own{};
                if (s.d_weights) own = gradients(layer, group);
                if (layer && s.d_weights) {
                    const LayerWeights &below = s.weights[layer - 1];
                    scaled(kept(layer - 1, i).x2, below.scale2, below.shift2, h, count * n);
                }
                backward_layer(layer, i, count, layer ? h : s.in + at, s.d_weights ? &own : nullptr);
            }
            __builtin_memcpy(s.d_in + at, dh, size);
        });
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
