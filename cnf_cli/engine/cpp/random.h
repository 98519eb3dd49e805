// The random numbers of engine/random.py, bit for bit.
#pragma once
#include <cstdint>

namespace cnf {
namespace CNF_ISA {

static inline uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
static inline uint64_t fold(uint64_t x, uint64_t k) { return mix64(x + (k + 1) * 0x9E3779B97F4A7C15ull); }
static inline uint64_t stream(int64_t seed, int64_t start) { return fold(fold(uint64_t(seed), 0), uint64_t(start)); }
static inline float uniform(uint64_t stream, int t) {
    return float(uint32_t(fold(stream, uint64_t(t)) >> 40)) * 5.9604644775390625e-8f;
}

}  // namespace CNF_ISA
}  // namespace cnf
