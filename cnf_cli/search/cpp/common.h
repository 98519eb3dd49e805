// What every search has: distances, the nearest nodes of each, nodes that wait for a look, and when to stop.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

namespace cnf::search {

struct Matrix {
    const double *values;
    int n;
    double operator()(int from, int to) const { return values[size_t(from) * size_t(n) + size_t(to)]; }
};

// The k nodes that are nearest to go to from each node, nearest first; of equal ones the lower first.
class Neighbours {
  public:
    Neighbours(const Matrix &d, int wanted) : k(std::min(wanted, d.n - 1)), nodes(size_t(d.n) * size_t(std::max(k, 0))) {
        std::vector<int32_t> others(size_t(d.n));
        for (int a = 0; a < d.n; ++a) {
            std::iota(others.begin(), others.end(), 0);
            std::swap(others[size_t(a)], others.back());
            std::partial_sort(others.begin(), others.begin() + k, others.end() - 1, [&](int x, int y) {
                const double u = d(a, x), v = d(a, y);
                return u != v ? u < v : x < y;
            });
            std::copy(others.begin(), others.begin() + k, nodes.begin() + std::ptrdiff_t(a) * k);
        }
    }
    const int32_t *begin(int node) const { return nodes.data() + size_t(node) * size_t(k); }
    const int32_t *end(int node) const { return begin(node) + k; }

  private:
    int k;
    std::vector<int32_t> nodes;
};

// Nodes whose surroundings may hold a better move, first come, first served, each at most once.
class Queue {
  public:
    Queue(int n, const int *stopped) : ring(size_t(n)), waits(size_t(n), 0), stop(stopped) {}
    void push(int node) {
        if (waits[size_t(node)]) return;
        waits[size_t(node)] = 1;
        ring[tail] = node;
        tail = tail + 1 == ring.size() ? 0 : tail + 1;
        ++held;
    }
    // Whether no node waits, or the search is to stop: what a large tour takes at first may be long.
    bool done() const { return held == 0 || __atomic_load_n(stop, __ATOMIC_RELAXED); }
    int pop() {
        const int node = ring[head];
        head = head + 1 == ring.size() ? 0 : head + 1;
        --held;
        waits[size_t(node)] = 0;
        return node;
    }

  private:
    std::vector<int32_t> ring;
    std::vector<char> waits;
    const int *stop;
    size_t head = 0, tail = 0, held = 0;
};

// How much of a budget of rounds or seconds is used up; the clock and the flag are looked at every few rounds.
class Budget {
  public:
    Budget(int64_t most_rounds, double most_seconds, const int *stopped)
        : rounds(most_rounds), seconds(most_seconds), stop(stopped), began(Clock::now()) {}
    bool left(int64_t round) {
        if (rounds > 0 && round >= rounds) return false;
        if (round % EVERY) return !over;
        over = __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
        if (seconds > 0) {
            used = std::chrono::duration<double>(Clock::now() - began).count() / seconds;
            over = over || used >= 1;
        }
        return !over;
    }
    // The share that is used, from 0 to 1: by rounds where they are counted, or the result could not be repeated.
    double share(int64_t round) const { return rounds > 0 ? double(round) / double(rounds) : used; }
    static constexpr int EVERY = 32;

  private:
    using Clock = std::chrono::steady_clock;
    int64_t rounds;
    double seconds;
    const int *stop;
    Clock::time_point began;
    double used = 0;
    bool over = false;
};

}  // namespace cnf::search
