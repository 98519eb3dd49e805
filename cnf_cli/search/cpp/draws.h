// Random numbers by counting: draw t of a seed is a hash of both, so that a search repeats whatever else runs.
#pragma once
#include <cstdint>

namespace cnf::search {

class Draws {
  public:
    explicit Draws(uint64_t start) : seed(start) {}
    // A whole number from 0 up to, not including, `limit`.
    int below(int limit) { return int(((next() >> 32) * uint64_t(limit)) >> 32); }
    // A number in [0, 1).
    double unit() { return double(next() >> 11) * 0x1p-53; }

  private:
    uint64_t next() {
        uint64_t z = seed + ++count * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint64_t seed, count = 0;
};

}  // namespace cnf::search
