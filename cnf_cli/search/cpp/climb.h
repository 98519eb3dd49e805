// Iterated local search: two short neighbouring paths of the tour change places, the damage is repaired around it, and
// the result is kept by an annealing rule or taken back. What a round costs does not grow with the tour.
#pragma once
#include <cmath>

#include "descent.h"
#include "draws.h"

namespace cnf::search {

struct Climb {
    int reach;    // the longest path that changes places
    double heat;  // how much longer a kept tour may be at first, in average edges, but for a logarithm of chance
};

// The best tour seen replaces `tour`; the number of rounds made.
template <class Moves>
int64_t climb(Tour &tour, Descent<Moves> &descent, const Matrix &d, const Climb &how, double least, Draws draws, Budget &budget) {
    const int n = tour.size();
    for (int p = 0; p < n; ++p) descent.wake(tour.at(p));
    descent.run(tour);
    const int longest = std::min(how.reach, (n - 2) / 3);
    if (longest < 1) return 0;
    double length = 0;
    for (int p = 0; p < n; ++p) length += d(tour.at(p), tour.at(p + 1 == n ? 0 : p + 1));
    const double heat = how.heat * length / n;
    double above = 0, lowest = 0;  // of the tour at hand and of the best, against the first local optimum
    std::vector<int32_t> best = tour.nodes();
    tour.remember();
    int64_t round = 0;
    for (; budget.left(round); ++round) {
        const int first = draws.below(n), one = 1 + draws.below(longest), two = 1 + draws.below(longest);
        const double chance = draws.unit();
        const auto at = [&](int steps) { return tour.at((first + steps) % n); };
        const int a = at(0), a2 = at(1), b = at(one), b2 = at(one + 1), c = at(one + two), c2 = at(one + two + 1);
        const double added = d(a, b2) + d(c, a2) + d(b, c2) - d(a, a2) - d(b, b2) - d(c, c2);
        tour.remember();
        tour.exchange((first + 1) % n, one, two);
        for (const int node : {a, a2, b, b2, c, c2}) descent.wake(node);
        const double change = added - descent.run(tour);
        const double bound = -heat * (1 - budget.share(round)) * std::log(1 - chance);
        if (change > bound + least) {
            tour.take_back();
            continue;
        }
        above += change;
        if (above < lowest - least) {
            lowest = above;
            best = tour.nodes();
        }
    }
    tour = Tour(best.data(), n);
    return round;
}

}  // namespace cnf::search
