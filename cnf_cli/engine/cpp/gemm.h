// Products of small matrices that lie in the caches: C (rows x cols) from A (rows x depth) and B (depth x cols).
// A is read one number at a time, so its rows and columns may lie at any distance; B and C a vector at a time.
#pragma once
#include "simd.h"

namespace cnf {
namespace CNF_ISA {

enum Init { ZERO, ADD, BIAS };  // C starts from nothing, from what it is, or from a row of numbers

constexpr int PANEL = (W == 16 ? 4 : 2) * W;  // columns of B that are packed side by side
constexpr int DEPTH = 128;                    // rows of B that one pass goes through: a panel of them fits a first-level cache

struct Left {
    const float *at;
    size_t row, column;  // A[r][k] is at[r * row + k * column]
};

template <int L>
struct Pack {
    typedef typename Lanes<L>::type type;
    typedef typename Lanes<L>::any any;
    CNF_INLINE type load(const float *x) { return *reinterpret_cast<const any *>(x); }
    CNF_INLINE void store(float *x, type v) { *reinterpret_cast<any *>(x) = v; }
};

// N rows and M vectors of L columns; the sums stay in registers.
template <int L, int N, int M>
CNF_INLINE void gemm_tile(Left a, const float *b, size_t b_row, float *c, size_t c_row, int depth, Init init,
                          const float *bias) {
    typedef typename Pack<L>::type V;
    V acc[N][M];
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
            acc[r][m] = init == ADD    ? Pack<L>::load(c + r * c_row + m * L)
                        : init == BIAS ? Pack<L>::load(bias + m * L)
                                       : V{};
    for (int k = 0; k < depth; ++k) {
        V row[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) row[m] = Pack<L>::load(b + k * b_row + m * L);
#pragma GCC unroll 16
        for (int r = 0; r < N; ++r) {
            const float x = a.at[r * a.row + k * a.column];
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) acc[r][m] += x * row[m];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) Pack<L>::store(c + r * c_row + m * L, acc[r][m]);
}

template <int L, int N, int M>
static void gemm_rows(Left a, const float *b, size_t b_row, float *c, size_t c_row, int rows, int depth, Init init,
                      const float *bias) {
    int r = 0;
    for (; r + N <= rows; r += N)
        gemm_tile<L, N, M>({a.at + r * a.row, a.row, a.column}, b, b_row, c + r * c_row, c_row, depth, init, bias);
    if constexpr (N > 1)
        if (r < rows)
            gemm_rows<L, (N > 8 ? 6 : N > 4 ? 4 : N / 2), M>({a.at + r * a.row, a.row, a.column}, b, b_row,
                                                             c + r * c_row, c_row, rows - r, depth, init, bias);
}

// Columns [0, cols) of one panel, cols a multiple of L.
template <int L>
static void gemm_panel(Left a, const float *b, size_t b_row, float *c, size_t c_row, int rows, int depth, int cols,
                       Init init, const float *bias) {
    constexpr bool many = L == 16;  // 32 registers
    for (int k = 0; k < depth; k += DEPTH) {
        const int some = depth - k < DEPTH ? depth - k : DEPTH;
        const Left left{a.at + k * a.column, a.row, a.column};
        const float *right = b + k * b_row;
        const Init start = k ? ADD : init;
        int j = 0;
        if constexpr (many)
            for (; j + 4 * L <= cols; j += 4 * L)
                gemm_rows<L, 6, 4>(left, right + j, b_row, c + j, c_row, rows, some, start, bias + j);
        for (; j + 2 * L <= cols; j += 2 * L)
            gemm_rows<L, many ? 12 : 6, 2>(left, right + j, b_row, c + j, c_row, rows, some, start, bias + j);
        for (; j < cols; j += L)
            gemm_rows<L, 12, 1>(left, right + j, b_row, c + j, c_row, rows, some, start, bias + j);
    }
}

// B as rows at a distance.
template <int L>
static void gemm(Left a, const float *b, size_t b_row, float *c, size_t c_row, int rows, int depth, int cols,
                 Init init = ZERO) {
    for (int j = 0; j < cols; j += PANEL)
        gemm_panel<L>(a, b + j, b_row, c + j, c_row, rows, depth, cols - j < PANEL ? cols - j : PANEL, init, c);
}

// B as packed panels; depth and cols are multiples of 16.
static void gemm_packed(Left a, const float *panels, float *c, size_t c_row, int rows, int depth, int cols, Init init,
                        const float *bias = nullptr) {
    for (int j = 0; j < cols; j += PANEL) {
        const int wide = cols - j < PANEL ? cols - j : PANEL;
        gemm_panel<W>(a, panels + size_t(j) * depth, wide, c + j, c_row, rows, depth, wide, init, bias ? bias + j : c);
    }
}

// Panels of x (depth x cols), or of its transpose if x is (cols x depth).
static void pack(const float *x, float *panels, int depth, int cols, bool transposed) {
    for (int j = 0; j < cols; j += PANEL) {
        const int wide = cols - j < PANEL ? cols - j : PANEL;
        float *out = panels + size_t(j) * depth;
        if (!transposed)
            for (int k = 0; k < depth; ++k)
                __builtin_memcpy(out + size_t(k) * wide, x + size_t(k) * cols + j, sizeof(float) * wide);
        else
            for (int c = 0; c < wide; ++c)
                for (int k = 0; k < depth; ++k) out[size_t(k) * wide + c] = x[size_t(j + c) * depth + k];
    }
}

}  // namespace CNF_ISA
}  // namespace cnf
