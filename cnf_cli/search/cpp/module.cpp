// cnf_cli.search._search: checks arrays, spreads instances over threads, lets Python run meanwhile.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "../../engine/cpp/workers.h"
#include "climb.h"
#include "fleet.h"

namespace nb = nanobind;
using namespace cnf::search;

template <class T, int N> using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

static void require(bool good, const char *what) {
    if (!good) throw nb::value_error(what);
}

static void require_distances(const double *values, size_t count) {
    for (size_t k = 0; k < count; ++k) require(values[k] >= 0 && values[k] < 1e300, "distances must be finite and >= 0");
}

// work(item, stop) for every item; a signal stops all of them.
template <class Work> static void spread(int items, int threads, const Work &work) {
    int stop = 0;
    bool interrupted = false;
    {
        nb::gil_scoped_release free;
        cnf::run(
            items, threads, stop, [&](int, int item) { work(item, &stop); },
            [&] {
                nb::gil_scoped_acquire hold;
                if (!interrupted && PyErr_CheckSignals() != 0) interrupted = true;
                return !interrupted;
            });
    }
    if (interrupted) throw nb::python_error();
}

static double largest(const Matrix &d) {
    double most = 0;
    for (size_t k = 0; k < size_t(d.n) * size_t(d.n); ++k) most = std::max(most, d.values[k]);
    return most;
}

static bool symmetric(const Matrix &d) {
    for (int a = 0; a < d.n; ++a)
        for (int b = 0; b < a; ++b)
            if (d(a, b) != d(b, a)) return false;
    return true;
}

static constexpr double SMALLEST = 1e-10;  // gains below this share of the longest edge are rounding

static void tours(Array<const double, 3> distances, Array<int32_t, 2> order, Array<const uint64_t, 1> seeds, int near, int reach,
                  double heat, int64_t rounds, double seconds, Array<int64_t, 1> made, int threads) {
    const int b = int(order.shape(0)), n = int(order.shape(1));
    require(int(distances.shape(0)) == b && int(distances.shape(1)) == n && int(distances.shape(2)) == n, "distances are not b x n x n");
    require(int(seeds.shape(0)) == b && int(made.shape(0)) == b, "one seed and one count for every tour");
    require(near >= 1 && reach >= 1 && heat >= 0 && threads >= 1 && (rounds > 0 || seconds > 0), "a setting is out of range");
    require_distances(distances.data(), distances.size());
    for (int i = 0; i < b; ++i) {
        std::vector<char> seen(size_t(n), 0);
        for (int p = 0; p < n; ++p) {
            const int node = order.data()[size_t(i) * size_t(n) + size_t(p)];
            require(node >= 0 && node < n && !seen[size_t(node)], "a tour does not visit every node once");
            seen[size_t(node)] = 1;
        }
    }
    spread(b, threads, [&](int i, const int *stop) {
        const Matrix d{distances.data() + size_t(i) * size_t(n) * size_t(n), n};
        int32_t *row = order.data() + size_t(i) * size_t(n);
        Budget budget(rounds, seconds, stop);
        const Neighbours neighbours(d, near);
        const double least = SMALLEST * largest(d);
        Tour tour(row, n);
        const Climb how{reach, heat};
        const Draws draws(seeds.data()[i]);
        if (symmetric(d)) {
            Symmetric descent(d, neighbours, least, stop);
            made.data()[i] = climb(tour, descent, d, how, least, draws, budget);
        } else {
            Directed descent(d, neighbours, least, stop);
            made.data()[i] = climb(tour, descent, d, how, least, draws, budget);
        }
        std::copy(tour.nodes().begin(), tour.nodes().end(), row);
    });
}

static void routes(Array<const double, 3> distances, Array<const double, 2> demand, Array<const double, 1> limit, Array<int32_t, 2> walks,
                   Array<const uint64_t, 1> seeds, double removed, double longest, double hot, double cold, int64_t rounds, double seconds,
                   Array<int64_t, 1> made, int threads) {
    const int b = int(distances.shape(0)), n = int(distances.shape(1)), room = int(walks.shape(1));
    require(int(distances.shape(2)) == n && int(demand.shape(0)) == b && int(demand.shape(1)) == n, "shapes differ");
    require(int(limit.shape(0)) == b && int(walks.shape(0)) == b && int(seeds.shape(0)) == b && int(made.shape(0)) == b, "shapes differ");
    require(n >= 2 && room / 2 >= n, "there is no room for every customer in a route of its own");
    require(removed > 0 && longest >= 1 && hot > 0 && cold > 0 && threads >= 1 && (rounds > 0 || seconds > 0), "a setting is out of range");
    require_distances(distances.data(), distances.size());
    for (int i = 0; i < b; ++i) {
        std::vector<char> seen(size_t(n), 0);
        int customers = 0;
        for (int t = 0; t < room; ++t) {
            const int node = walks.data()[size_t(i) * size_t(room) + size_t(t)];
            require(node >= 0 && node < n, "a walk names a node that is not there");
            if (node == 0) continue;
            require(!seen[size_t(node)], "a walk serves a customer twice");
            require(demand.data()[size_t(i) * size_t(n) + size_t(node)] <= limit.data()[i], "a demand is larger than the capacity");
            seen[size_t(node)] = 1;
            ++customers;
        }
        require(customers == n - 1, "a walk does not serve every customer");
    }
    spread(b, threads, [&](int i, const int *stop) {
        const Matrix d{distances.data() + size_t(i) * size_t(n) * size_t(n), n};
        int32_t *walk = walks.data() + size_t(i) * size_t(room);
        Budget budget(rounds, seconds, stop);
        const Neighbours neighbours(d, std::min(n - 1, 400));
        Fleet fleet(d, neighbours, demand.data() + size_t(i) * size_t(n), limit.data()[i]);
        fleet.read(walk, room);
        std::vector<Route> best;
        const Ruin how{removed, longest, hot, cold};
        made.data()[i] = anneal(fleet, best, how, SMALLEST * largest(d), Draws(seeds.data()[i]), budget);
        std::fill(walk, walk + room, 0);
        for (const Route &route : best) {
            ++walk;  // the depot before each route
            walk = std::copy(route.stops.begin(), route.stops.end(), walk);
        }
    });
}

NB_MODULE(_search, m) {
    m.def("tours", &tours, "Improves closed tours in place.");
    m.def("routes", &routes, "Improves walks through the depot in place; 0 fills the rest of a row.");
}
