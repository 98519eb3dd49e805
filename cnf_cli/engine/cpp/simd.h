// Vectors of the width this file is compiled for, on GCC/Clang vector extensions; intrinsics only where they pay.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernel.h"
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace cnf {
namespace CNF_ISA {

#if defined(__AVX512F__) && defined(__AVX512DQ__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float vec __attribute__((vector_size(W * 4)));
typedef int32_t ivec __attribute__((vector_size(W * 4)));
typedef float vec_any __attribute__((vector_size(W * 4), aligned(4), may_alias));

#define CNF_MEMBER inline __attribute__((always_inline))
#define CNF_INLINE static CNF_MEMBER

CNF_INLINE vec load(const float *x) { return *reinterpret_cast<const vec_any *>(x); }
CNF_INLINE void store(float *x, vec v) { *reinterpret_cast<vec_any *>(x) = v; }
CNF_INLINE vec all(float x) { return vec{} + x; }
CNF_INLINE vec larger(vec a, vec b) { return a > b ? a : b; }

CNF_INLINE float sum(vec v) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float s = 0;
    for (int i = 0; i < W; ++i) s += v[i];
    return s;
#endif
}
CNF_INLINE float largest(vec v) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float m = v[0];
    for (int i = 1; i < W; ++i) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

// The first i < size with x[i] == value, or 0; x is read to the end of its last vector.
CNF_INLINE int find(const float *x, int size, float value) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    for (int i = 0; i < size; i += W) {
        const unsigned hit = _mm512_cmp_ps_mask((__m512)load(x + i), _mm512_set1_ps(value), _CMP_EQ_OQ);
        if (hit) return i + __builtin_ctz(hit);
    }
#elif defined(__AVX2__)
    for (int i = 0; i < size; i += W) {
        const unsigned hit = _mm256_movemask_ps((__m256)(load(x + i) == value));
        if (hit) return i + __builtin_ctz(hit);
    }
#else
    for (int i = 0; i < size; ++i)
        if (x[i] == value) return i;
#endif
    return 0;
}

// exp to about 2 units in the last place; 0 below -87.3.
CNF_INLINE vec exp(vec x) {
    const vec low = all(-87.33654f), high = all(88.37626f);
    const ivec alive = x >= low;
    x = x > low ? x : low;
    x = x < high ? x : high;
    const vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
    const vec z = x * 1.44269504f + magic;
    const vec k = z - magic;
    vec r = x - k * 0.693359375f;
    r = r - k * -2.12194440e-4f;
    vec y = all(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    const vec scale = (vec)((((ivec)z - 0x4B400000) + 127) << 23);
    return (vec)((ivec)(y * scale) & alive);
}

CNF_INLINE vec tanh(vec x) {
    const vec e = exp(x * 2.0f);
    return 1.0f - 2.0f / (e + 1.0f);
}

constexpr size_t LOOK = 1 << 23;  // products of two numbers between two looks: a few milliseconds at most

// Whether a kernel is to stop: asked for by whoever has done much work, so that a short call asks never.
struct Watch {
    const int *stop;
    size_t work = 0;
    bool stopped = false;

    CNF_MEMBER bool after(size_t products) {
        work += products;
        return work >= LOOK ? look() : stopped;
    }
    __attribute__((noinline)) bool look() {
        work = 0;
        __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED);
        return stopped |= __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
    }

    // work(r, some) for rows [r, r + some), block by block, `each` products a row; blocks are whole tiles of any height.
    template <class Work>
    CNF_MEMBER void rows(int count, size_t each, const Work &work_on) {
        const size_t fit = LOOK / (each + 1) / 48 * 48;
        const int step = fit >= size_t(count) ? count : fit ? int(fit) : 48;
        for (int r = 0; r < count && !stopped; r += step) {
            const int some = count - r < step ? count - r : step;
            work_on(r, some);
            after(some * each);
        }
    }
};

// Sums of W vectors at once: lane i of the result is the sum of row(i). In-lane shuffles only, then 128-bit ones.
#if defined(__clang__)
#define CNF_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CNF_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
#if defined(__AVX512F__) && defined(__AVX512DQ__)
CNF_INLINE vec merge1(vec a, vec b) {
    return CNF_SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
           CNF_SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
CNF_INLINE vec merge2(vec a, vec b) {
    return CNF_SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           CNF_SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
CNF_INLINE vec merge4(vec a, vec b) {
    return CNF_SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           CNF_SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
CNF_INLINE vec merge8(vec a, vec b) {
    return CNF_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           CNF_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
#elif defined(__AVX2__)
CNF_INLINE vec merge1(vec a, vec b) {
    return CNF_SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + CNF_SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}
CNF_INLINE vec merge2(vec a, vec b) {
    return CNF_SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + CNF_SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}
CNF_INLINE vec merge4(vec a, vec b) {
    return CNF_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + CNF_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
CNF_INLINE vec merge8(vec a, vec) { return a; }
#else
CNF_INLINE vec merge1(vec a, vec b) { return CNF_SHUFFLE(a, b, 0, 4, 1, 5) + CNF_SHUFFLE(a, b, 2, 6, 3, 7); }
CNF_INLINE vec merge2(vec a, vec b) { return CNF_SHUFFLE(a, b, 0, 1, 4, 5) + CNF_SHUFFLE(a, b, 2, 3, 6, 7); }
CNF_INLINE vec merge4(vec a, vec) { return a; }
CNF_INLINE vec merge8(vec a, vec) { return a; }
#endif

template <class Row>
CNF_INLINE vec sums4(const Row &row, int i) {
    return merge2(merge1(row(i), row(i + 1)), merge1(row(i + 2), row(i + 3)));
}
template <class Row>
CNF_INLINE vec sums(const Row &row) {
    if constexpr (W == 4) return sums4(row, 0);
    if constexpr (W == 8) return merge4(sums4(row, 0), sums4(row, 4));
    if constexpr (W == 16)
        return merge8(merge4(sums4(row, 0), sums4(row, 4)), merge4(sums4(row, 8), sums4(row, 12)));
}

// The HP heads of one node, as stored: HP >= W takes HP / W vectors, HP < W half a vector or less.
template <int N>
struct Lanes;
template <>
struct Lanes<4> {
    typedef float type __attribute__((vector_size(16)));
    typedef float any __attribute__((vector_size(16), aligned(4), may_alias));
};
template <>
struct Lanes<8> {
    typedef float type __attribute__((vector_size(32)));
    typedef float any __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct Lanes<16> {
    typedef float type __attribute__((vector_size(64)));
    typedef float any __attribute__((vector_size(64), aligned(4), may_alias));
};

template <int HP>
struct Heads {
    static constexpr int L = HP < W ? HP : W;       // lanes of a part
    static constexpr int PARTS = HP < W ? 1 : HP / W;
    typedef typename Lanes<L>::type part;
    typedef typename Lanes<L>::any part_any;

    CNF_INLINE part get(const float *x, int i) { return *reinterpret_cast<const part_any *>(x + i * L); }
    CNF_INLINE void put(float *x, int i, part v) { *reinterpret_cast<part_any *>(x + i * L) = v; }

    // The weights that vector k of a row is multiplied with: the heads, repeated until they fill it.
    CNF_INLINE vec spread(const float *x, int k) {
        if constexpr (HP >= W) return load(x + (k % PARTS) * W);
#if defined(__AVX512F__) && defined(__AVX512DQ__)
        if constexpr (HP == 8) return (vec)_mm512_broadcast_f32x8(_mm256_loadu_ps(x));
        if constexpr (HP == 4) return (vec)_mm512_broadcast_f32x4(_mm_loadu_ps(x));
#elif defined(__AVX2__)
        if constexpr (HP == 4) return (vec)_mm256_broadcast_ps(reinterpret_cast<const __m128 *>(x));
#endif
    }
    // The inverse of spread: repeated heads are added up.
    CNF_INLINE part gather(vec v) {
        if constexpr (HP >= W) return (part)v;
#if defined(__AVX512F__) && defined(__AVX512DQ__)
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
        if constexpr (HP == 8) return (part)half;
        if constexpr (HP == 4) return (part)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
        if constexpr (HP == 4)
            return (part)_mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
#endif
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
