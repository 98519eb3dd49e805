// Register-blocked products of rows. A row holds D = KV * W floats laid out [dim of head][head], so that one vector of
// head weights fits every vector of the row. Rows are found by number in `base + index[i] * D`.
#pragma once
#include "simd.h"

namespace cnf {
namespace CNF_ISA {

constexpr int R = W == 16 ? 4 : 2;  // rows of a tile: 4 x 4 accumulators need 32 registers
constexpr int K = 4;                // vectors of a row in a tile; KV is a multiple of it

struct Rows {
    float *base;
    const int *index;
};

// out[r] += sum_s weight(r, s) * in[s], r < rows, s < count; weight(r, s) is at w + r * rs + s * ss: HP heads or a number.
template <int HP, bool HEADS, int N>
CNF_INLINE void mix_tile(Rows out, int r0, Rows in, int count, const float *w, size_t rs, size_t ss, int D, int k0) {
    vec acc[N][K];
    for (int r = 0; r < N; ++r)
        for (int k = 0; k < K; ++k) acc[r][k] = load(out.base + size_t(out.index[r0 + r]) * D + (k0 + k) * W);
    w += r0 * rs;
    for (int s = 0; s < count; ++s, w += ss) {
        const float *x = in.base + size_t(in.index[s]) * D + k0 * W;
        vec row[K];
        for (int k = 0; k < K; ++k) row[k] = load(x + k * W);
        for (int r = 0; r < N; ++r)
            for (int k = 0; k < K; ++k)
                acc[r][k] += (HEADS ? Heads<HP>::spread(w + r * rs, k) : all(w[r * rs])) * row[k];
    }
    for (int r = 0; r < N; ++r)
        for (int k = 0; k < K; ++k) store(out.base + size_t(out.index[r0 + r]) * D + (k0 + k) * W, acc[r][k]);
}

template <int HP, bool HEADS>
static void mix(Rows out, int rows, Rows in, int count, const float *w, size_t rs, size_t ss, int D) {
    int r = 0;
    for (; r + R <= rows; r += R)
        for (int k = 0; k < D / W; k += K) mix_tile<HP, HEADS, R>(out, r, in, count, w, rs, ss, D, k);
    for (; r < rows; ++r)
        for (int k = 0; k < D / W; k += K) mix_tile<HP, HEADS, 1>(out, r, in, count, w, rs, ss, D, k);
}

// put(r0, s0, x): x[r][s][part] are the HP per-head dot products of rows a[r0 + r] and b[s0 + s], for one tile.
template <int HP, int N, int M, class Put>
CNF_INLINE void dots_tile(Rows a, int r0, Rows b, int s0, int D, const Put &put) {
    constexpr int P = Heads<HP>::PARTS;
    vec acc[N][M][P] = {};
    const float *x[N], *y[M];
    for (int r = 0; r < N; ++r) x[r] = a.base + size_t(a.index[r0 + r]) * D;
    for (int s = 0; s < M; ++s) y[s] = b.base + size_t(b.index[s0 + s]) * D;
    for (int k = 0; k < D; k += P * W)
        for (int p = 0; p < P; ++p) {
            vec row[N];
            for (int r = 0; r < N; ++r) row[r] = load(x[r] + k + p * W);
            for (int s = 0; s < M; ++s) {
                const vec other = load(y[s] + k + p * W);
                for (int r = 0; r < N; ++r) acc[r][s][p] += row[r] * other;
            }
        }
    typename Heads<HP>::part out[N][M][P];
    for (int r = 0; r < N; ++r)
        for (int s = 0; s < M; ++s)
            for (int p = 0; p < P; ++p) out[r][s][p] = Heads<HP>::gather(acc[r][s][p]);
    put(r0, s0, out);
}

template <int HP, class Put>
CNF_INLINE void dots(Rows a, int rows, Rows b, int count, int D, const Put &put) {
    int r = 0;
    for (; r + R <= rows; r += R) {
        int s = 0;
        for (; s + R <= count; s += R) dots_tile<HP, R, R>(a, r, b, s, D, put);
        for (; s < count; ++s) dots_tile<HP, R, 1>(a, r, b, s, D, put);
    }
    for (; r < rows; ++r)
        for (int s = 0; s < count; ++s) dots_tile<HP, 1, 1>(a, r, b, s, D, put);
}

// u[r * stride + s] = a[r] . b[s]; rows is a multiple of W / 4, count and stride of 4.
static void products(Rows a, int rows, Rows b, int count, int D, float *u, size_t stride) {
    constexpr int N = W / 4;
    for (int r = 0; r < rows; r += N)
        for (int s = 0; s < count; s += 4) {
            vec acc[N][4] = {};
            const float *y[4];
            for (int j = 0; j < 4; ++j) y[j] = b.base + size_t(b.index[s + j]) * D;
            for (int k = 0; k < D; k += W) {
                vec row[N];
                for (int i = 0; i < N; ++i) row[i] = load(a.base + size_t(a.index[r + i]) * D + k);
                for (int j = 0; j < 4; ++j) {
                    const vec other = load(y[j] + k);
                    for (int i = 0; i < N; ++i) acc[i][j] += row[i] * other;
                }
            }
            const vec total = sums([&](int i) { return acc[i / 4][i % 4]; });
            for (int i = 0; i < N; ++i)
                __builtin_memcpy(u + (r + i) * stride + s, reinterpret_cast<const char *>(&total) + i * 16, 16);
        }
}

}  // namespace CNF_ISA
}  // namespace cnf
