// The moves that make a tour shorter, tried around waiting nodes over neighbour lists until none is left.
#pragma once
#include "common.h"
#include "tour.h"

namespace cnf::search {

// What both kinds of moves share: `better` finds and makes one move around a node.
template <class Moves> class Descent {
  public:
    Descent(const Matrix &distances, const Neighbours &neighbours, double smallest, const int *stop)
        : d(distances), near(neighbours), queue(distances.n, stop), least(smallest) {}
    void wake(int node) { queue.push(node); }
    // How much shorter the tour became.
    double run(Tour &tour) {
        double gained = 0;
        while (!queue.done()) {
            const int node = queue.pop();
            for (double gain = moves().better(tour, node); gain > 0; gain = moves().better(tour, node)) gained += gain;
        }
        return gained;
    }

  protected:
    const Matrix &d;
    const Neighbours &near;
    Queue queue;
    double least;

  private:
    Moves &moves() { return static_cast<Moves &>(*this); }
};

// 2-opt and Or-opt, for distances that are the same both ways.
class Symmetric : public Descent<Symmetric> {
  public:
    using Descent::Descent;
    // The first better move that joins node a to a neighbour c and gives up the edge from a to b, on either side.
    double better(Tour &tour, int a) {
        for (const bool back : {false, true}) {
            const int b = back ? tour.prev(a) : tour.next(a);
            for (const int32_t *c = near.begin(a); c != near.end(a); ++c) {
                const double saved = d(a, b) - d(a, *c);
                if (saved <= least) break;
                double gain = uncross(tour, a, b, *c, back, saved);
                if (gain <= 0) gain = move(tour, a, b, *c, back, saved);
                if (gain > 0) return gain;
            }
        }
        return 0;
    }

  private:
    double uncross(Tour &tour, int a, int b, int c, bool back, double saved) {
        const int e = back ? tour.prev(c) : tour.next(c);
        const double gain = saved + d(c, e) - d(b, e);
        if (gain <= least) return 0;
        if (back)
            tour.reverse(a, e);
        else
            tour.reverse(b, c);
        for (const int node : {a, b, c, e}) queue.push(node);
        return gain;
    }
    // One to three nodes, from a away from b, are laid beside c so that a and c meet.
    double move(Tour &tour, int a, int b, int c, bool back, double saved) {
        int end = a;
        for (int length = 1; length <= Tour::LONGEST && end != c; ++length) {
            const int f = back ? tour.next(end) : tour.prev(end);
            if (f == b) return 0;
            const double closed = saved + d(end, f) - d(f, b);
            for (const bool before : {false, true}) {
                const int x = before ? tour.prev(c) : tour.next(c);
                if ((c == f && x == end) || (c == b && x == a)) continue;
                const double gain = closed + d(c, x) - d(end, x);
                if (gain <= least) continue;
                tour.carry(back ? a : end, length, before ? x : c, back == before);
                for (const int node : {a, b, c, x, end, f}) queue.push(node);
                return gain;
            }
            end = f;
        }
        return 0;
    }
};

// Segment insertion, the one exchange of three edges that turns no path around, for distances that differ by direction.
class Directed : public Descent<Directed> {
  public:
    using Descent::Descent;
    // a -> a2 ... b -> b2 ... c -> c2 becomes a -> b2 ... c -> a2 ... b -> c2.
    double better(Tour &tour, int a) {
        const int a2 = tour.next(a), from = tour.position(a), n = tour.size();
        const auto steps = [&](int node) { return (tour.position(node) - from + n) % n; };
        for (const int32_t *b2 = near.begin(a); b2 != near.end(a); ++b2) {
            const double saved = d(a, a2) - d(a, *b2);
            if (saved <= least) break;
            const int b = tour.prev(*b2);
            if (*b2 == a2) continue;
            for (const int32_t *c2 = near.begin(b); c2 != near.end(b); ++c2) {
                const double twice = saved + d(b, *b2) - d(b, *c2);
                if (twice <= least) break;
                const int c = tour.prev(*c2);
                if (steps(c) <= steps(b)) continue;
                const double gain = twice + d(c, *c2) - d(c, a2);
                if (gain <= least) continue;
                tour.exchange(tour.position(a2), steps(b), steps(c) - steps(b));
                for (const int node : {a, a2, b, *b2, c, *c2}) queue.push(node);
                return gain;
            }
        }
        return 0;
    }
};

}  // namespace cnf::search
