// Routes from one depot: strings of neighbouring customers are taken out and put back where they cost least, and the
// result is kept by an annealing rule (slack induction by string removals, Christiaens and Vanden Berghe, 2020).
#pragma once
#include <cmath>
#include <limits>

#include "common.h"
#include "draws.h"

namespace cnf::search {

struct Route {
    std::vector<int32_t> stops;
    double load = 0;
};

struct Ruin {
    double removed;   // customers taken out in a round, on average, where routes are long enough
    double longest;   // stops of a string at most
    double hot, cold; // how much longer kept routes may be at first and at last, in average edges
};

class Fleet {
  public:
    Fleet(const Matrix &distances, const Neighbours &neighbours, const double *demands, double most)
        : d(distances), near(neighbours), demand(demands), limit(most), route_of(size_t(d.n), -1) {}

    // A walk from the depot, node 0, with 0 between routes.
    void read(const int32_t *walk, int length) {
        Route route;
        for (int t = 0; t <= length; ++t) {
            if (t < length && walk[t] != 0) {
                route.stops.push_back(walk[t]);
                route.load += demand[walk[t]];
            } else if (!route.stops.empty()) {
                for (const int stop : route.stops) route_of[size_t(stop)] = int(routes.size());
                routes.push_back(route);
                route = Route{};
            }
        }
    }
    const std::vector<Route> &all() const { return routes; }
    double length() const {
        double total = 0;
        for (const Route &route : routes) total += length(route);
        return total;
    }

    // Takes customers out and puts them back: the change of length. `keep` or `take_back` follows.
    double disturb(const Ruin &how, Draws &draws) {
        ++round;
        saved.clear();
        absent.clear();
        before = routes.size();
        double change = ruin(how, draws);
        sort_absent(draws);
        for (const int node : absent) change += insert(node, draws);
        return change;
    }
    void keep() {
        for (size_t k = routes.size(); k-- > 0;) {
            if (!routes[k].stops.empty()) continue;
            if (k + 1 < routes.size()) {
                std::swap(routes[k], routes.back());
                for (const int stop : routes[k].stops) route_of[size_t(stop)] = int(k);
            }
            routes.pop_back();
        }
    }
    void take_back() {
        routes.resize(before);
        for (const auto &[k, route] : saved) {
            routes[k] = route;
            for (const int stop : route.stops) route_of[size_t(stop)] = int(k);
        }
    }

  private:
    double length(const Route &route) const {
        double total = 0;
        int last = 0;
        for (const int stop : route.stops) {
            total += d(last, stop);
            last = stop;
        }
        return total + d(last, 0);
    }
    // In the order of the stops, so that a load does not depend on how the route came about.
    void add_up(Route &route) const {
        route.load = 0;
        for (const int stop : route.stops) route.load += demand[stop];
    }
    void save(size_t k) {
        if (saved_in.size() < routes.size()) saved_in.resize(routes.size(), 0);
        if (k >= before || saved_in[k] == round) return;
        saved_in[k] = round;
        saved.emplace_back(k, routes[k]);
    }
    bool touched(size_t k) const { return k < saved_in.size() && saved_in[k] == round; }

    double ruin(const Ruin &how, Draws &draws) {
        const double mean = double(d.n - 1) / double(routes.size());
        const double longest = std::min(how.longest, mean);
        const double wanted = 1 + draws.unit() * std::max(0.0, 4 * how.removed / (1 + longest) - 1);
        const int strings = int(std::min(double(d.n), wanted));  // there are no more routes than that
        const int seed = 1 + draws.below(d.n - 1);
        double change = 0;
        int ruined = 0;
        const auto visit = [&](int node) {
            if (node == 0 || route_of[size_t(node)] < 0) return;
            const size_t k = size_t(route_of[size_t(node)]);
            if (touched(k)) return;
            save(k);
            ++ruined;
            change += remove(k, node, longest, draws);
        };
        visit(seed);
        for (const int32_t *node = near.begin(seed); node != near.end(seed) && ruined < strings; ++node) visit(*node);
        return change;
    }
    // A string of the route's stops around `node` goes; half of the time one stop within it stays.
    double remove(size_t k, int node, double longest, Draws &draws) {
        Route &route = routes[k];
        const int size = int(route.stops.size());
        const int wanted = std::min(size, int(1 + draws.unit() * std::min(double(size), longest)));
        const bool spares = wanted > 1 && wanted < size && draws.unit() < 0.5;
        const int span = wanted + spares;
        const int at = int(std::find(route.stops.begin(), route.stops.end(), node) - route.stops.begin());
        const int low = std::max(0, at - span + 1), high = std::min(at, size - span);
        const int first = low + draws.below(high - low + 1);
        const int spared = spares ? first + 1 + draws.below(span - 2) : -1;
        const double was = length(route);
        rest.clear();
        for (int p = 0; p < size; ++p) {
            const int stop = route.stops[size_t(p)];
            if (p < first || p >= first + span || p == spared) {
                rest.push_back(stop);
                continue;
            }
            absent.push_back(stop);
            route_of[size_t(stop)] = -1;
        }
        route.stops.swap(rest);
        add_up(route);
        return length(route) - was;
    }
    // In random order, the largest first, the farthest first or the nearest first: 4, 4, 2 and 1 times of 11.
    void sort_absent(Draws &draws) {
        const int way = draws.below(11);
        if (way < 4) {
            for (size_t k = absent.size(); k > 1; --k) std::swap(absent[k - 1], absent[size_t(draws.below(int(k)))]);
            return;
        }
        const auto rank = [&](int node) { return way < 8 ? -demand[node] : way < 10 ? -d(0, node) : d(0, node); };
        std::sort(absent.begin(), absent.end(), [&](int x, int y) {
            const double u = rank(x), v = rank(y);
            return u != v ? u < v : x < y;
        });
    }
    // Where it costs least; one place in a hundred is overlooked, so that the next round does not end the same.
    double insert(int node, Draws &draws) {
        double least = std::numeric_limits<double>::infinity();
        size_t best = routes.size(), at = 0;
        for (size_t k = 0; k < routes.size(); ++k) {
            const Route &route = routes[k];
            if (route.load + demand[node] > limit) continue;
            int last = 0;
            for (size_t p = 0; p <= route.stops.size(); ++p) {
                const int next = p < route.stops.size() ? route.stops[p] : 0;
                const double more = d(last, node) + d(node, next) - d(last, next);
                if (more < least && draws.below(100) > 0) {
                    least = more;
                    best = k;
                    at = p;
                }
                last = next;
            }
        }
        if (best == routes.size()) {
            routes.emplace_back();
            least = d(0, node) + d(node, 0);
        }
        save(best);
        Route &route = routes[best];
        route.stops.insert(route.stops.begin() + std::ptrdiff_t(at), node);
        add_up(route);
        route_of[size_t(node)] = int(best);
        return least;
    }

    const Matrix &d;
    const Neighbours &near;
    const double *demand;
    double limit;
    std::vector<Route> routes;
    std::vector<int32_t> route_of, absent, rest;
    std::vector<int64_t> saved_in;
    std::vector<std::pair<size_t, Route>> saved;
    int64_t round = 0;
    size_t before = 0;
};

// The best routes seen; the number of rounds made.
inline int64_t anneal(Fleet &fleet, std::vector<Route> &best, const Ruin &how, double least, Draws draws, Budget &budget) {
    best = fleet.all();
    if (best.empty()) return 0;
    size_t edges = 0;
    for (const Route &route : best) edges += route.stops.size() + 1;
    const double edge = fleet.length() / double(edges);
    double above = 0, lowest = 0;
    int64_t round = 0;
    for (; budget.left(round); ++round) {
        const double heat = edge * how.hot * std::pow(how.cold / how.hot, budget.share(round));
        const double change = fleet.disturb(how, draws);
        if (change > -heat * std::log(1 - draws.unit()) + least) {
            fleet.take_back();
            continue;
        }
        fleet.keep();
        above += change;
        if (above < lowest - least) {
            lowest = above;
            best = fleet.all();
        }
    }
    return round;
}

}  // namespace cnf::search
