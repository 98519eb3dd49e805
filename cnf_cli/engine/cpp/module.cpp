// cnf_cli.engine._native: checks arrays, spreads instances over threads, lets Python run meanwhile.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel.h"
#include "workers.h"

namespace nb = nanobind;
using namespace cnf;

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Maybe = std::optional<Array<T, N>>;

static std::vector<const Kernel *> kernels() {
    std::vector<const Kernel *> found;
#if defined(CNF_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        found.push_back(kernel_avx512());
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(kernel_avx2());
#endif
    found.push_back(kernel_base());
    return found;
}

static const Kernel &pick(const std::string &isa) {
    for (const Kernel *k : kernels())
        if (isa.empty() || isa == k->name) return *k;
    throw nb::value_error(("this processor or build has no kernels for " + isa).c_str());
}

static void require(bool good, const char *what) {
    if (!good) throw nb::value_error(what);
}

struct CannotFinish : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct NotFinite : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr int MAX_THREADS = 1024;

// As many threads as were asked for, but at least one and no more than there is work for.
static int at_most(int threads, int work) {
    work = work < MAX_THREADS ? work : MAX_THREADS;
    return threads < 1 ? 1 : threads < work ? threads : work;
}

// One aligned buffer per worker.
class Scratch {
  public:
    Scratch(int workers, size_t bytes) {
        for (int k = 0; k < workers; ++k)
            pieces.emplace_back(static_cast<char *>(::operator new(bytes + 64, std::align_val_t(64))));
    }
    void *operator[](int k) { return pieces[k].get(); }

  private:
    struct Free {
        void operator()(char *p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::vector<std::unique_ptr<char, Free>> pieces;
};

template <class Job, class Work>
static void spread(Job &task, int items, int threads, const Work &work) {
    int stop = 0;
    std::atomic<int> failure{DONE};
    bool interrupted = false;
    task.stop = &stop;
    {
        nb::gil_scoped_release free;
        run(
            items, threads, stop,
            [&](int worker, int item) {
                const Status status = work(worker, item);
                if (status > STOPPED) {
                    failure = status;
                    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
                }
            },
            [&] {
                nb::gil_scoped_acquire hold;
                if (!interrupted && PyErr_CheckSignals() != 0) interrupted = true;
                return !interrupted;
            });
    }
    if (interrupted) throw nb::python_error();
    if (failure == CANNOT_FINISH) throw CannotFinish("some demand is larger than the vehicle's capacity");
    if (failure == NOT_FINITE) throw NotFinite("a score is no finite number");
    require(failure != BAD_TOUR, "a tour does not visit every node once from its start");
}

struct Tables {
    Array<const float, 3> last, key, value, pointer;
    Array<const float, 2> bias;
    Maybe<const float, 3> first;
    Maybe<const float, 1> load;
    Maybe<const float, 2> demand;
    Maybe<const double, 2> units;
    Maybe<const double, 1> limit;
    Array<const int64_t, 1> starts;
    Maybe<const float, 3> near, space;
    Maybe<const float, 1> fade;
    Maybe<const int16_t, 3> nearest;
    int candidates;
};

static Task task_of(const Tables &x, int heads, float clip) {
    Task task{};
    task.b = int(x.key.shape(0)), task.n = int(x.key.shape(1)), task.d = int(x.key.shape(2));
    task.p = int(x.starts.shape(0)), task.heads = heads, task.clip = clip;
    const auto fits = [&](const auto &a) {
        return int(a.shape(0)) == task.b && int(a.shape(1)) == task.n && (a.ndim() < 3 || int(a.shape(2)) == task.d);
    };
    require(fits(x.last) && fits(x.value) && fits(x.pointer) && fits(x.bias), "tables differ in shape");
    require(!x.first || fits(*x.first), "first differs in shape from key");
    require(!x.demand || fits(*x.demand), "demand is not b x n");
    require(!x.demand || (x.units && fits(*x.units)), "units is not b x n");
    require(!x.demand || (x.limit && int(x.limit->shape(0)) == task.b), "limit is not b");
    require(!x.load || int(x.load->shape(0)) == task.d, "load is not d wide");
    require(task.d >= 1 && heads >= 1 && heads <= MAX_HEADS && task.d % heads == 0, "heads must divide d and be at most 16");
    require(task.n >= 1 && task.n <= MAX_NODES, "too many nodes");
    task.last = x.last.data(), task.key = x.key.data(), task.value = x.value.data(), task.pointer = x.pointer.data();
    task.bias = x.bias.data(), task.starts = x.starts.data();
    task.first = x.first ? x.first->data() : nullptr;
    task.demand = x.demand ? x.demand->data() : nullptr;
    task.units = x.demand ? x.units->data() : nullptr;
    task.limit = x.demand ? x.limit->data() : nullptr;
    task.load = x.load && x.demand ? x.load->data() : nullptr;
    const auto square = [&](const auto &a) {
        return int(a.shape(0)) == task.b && int(a.shape(1)) == task.n && int(a.shape(2)) == task.n;
    };
    require(!x.near || square(*x.near), "near is not b x n x n");
    require(!x.space == !x.fade && (!x.space || square(*x.space)), "space is not b x n x n, or has no fade");
    require(!x.fade || int(x.fade->shape(0)) == heads, "fade is not one number for each head");
    require(!x.nearest || (square(*x.nearest) && x.candidates > 0), "nearest is not b x n x n, or for no candidates");
    for (size_t j = 0; x.nearest && j < x.nearest->size(); ++j)
        require(x.nearest->data()[j] >= 0 && x.nearest->data()[j] < task.n, "a candidate is not a node");
    task.nearest = x.nearest ? x.nearest->data() : nullptr, task.candidates = x.candidates;
    task.near = x.near ? x.near->data() : nullptr;
    task.space = x.space ? x.space->data() : nullptr;
    task.fade = x.fade ? x.fade->data() : nullptr;
    for (int p = 0; p < task.p; ++p) require(task.starts[p] >= 0 && task.starts[p] < task.n, "a start is not a node");
    return task;
}

static void rollout(const Tables &x, int heads, float clip, Maybe<const int64_t, 1> seeds, Array<int16_t, 3> moves,
                    Array<int32_t, 2> length, Maybe<float, 2> log_prob, int threads, const std::string &isa) {
    Task task = task_of(x, heads, clip);
    const Kernel &kernel = pick(isa);
    task.t = int(moves.shape(2));
    require(int(moves.shape(0)) == task.b && int(moves.shape(1)) == task.p, "moves is not b x p x t");
    require(int(length.shape(0)) == task.b && int(length.shape(1)) == task.p, "length is not b x p");
    require(task.t >= (task.demand ? 2 : task.n), "moves has too little room");
    require(!seeds || int(seeds->shape(0)) == task.b, "one seed per instance");
    task.seeds = seeds ? seeds->data() : nullptr;
    task.moves = moves.data(), task.length = length.data();
    require(!log_prob || (int(log_prob->shape(0)) == task.b && int(log_prob->shape(1)) == task.p), "log_prob is not b x p");
    task.log_prob = log_prob && seeds ? log_prob->data() : nullptr;
    if (!task.b || !task.p) return;
    // Few instances: give each thread a share of the rollouts. A rollout never looks at another, so nothing changes.
    threads = at_most(threads, MAX_THREADS);
    int parts = task.b >= 2 * threads || task.b % threads == 0 ? 1 : threads;
    parts = parts < task.p ? parts : task.p;
    threads = at_most(threads, task.b * parts);
    Scratch scratch(threads, kernel.rollout_bytes(task, (task.p + parts - 1) / parts));
    spread(task, task.b * parts, threads, [&](int worker, int item) {
        const int part = item % parts;
        return kernel.rollout(task, item / parts, int(int64_t(task.p) * part / parts),
                              int(int64_t(task.p) * (part + 1) / parts), scratch[worker]);
    });
}

static void score(const Tables &x, int heads, float clip, Array<const int64_t, 3> tours, Array<const float, 2> weight,
                  Array<float, 1> total, Array<float, 2> log_prob, std::vector<nb::ndarray<float, nb::c_contig>> grads,
                  int threads, const std::string &isa) {
    Task task = task_of(x, heads, clip);
    const Kernel &kernel = pick(isa);
    task.t = int(tours.shape(2));
    require(int(tours.shape(0)) == task.b && int(tours.shape(1)) == task.p, "tours is not b x p x t");
    require(int(weight.shape(0)) == task.b && int(weight.shape(1)) == task.p, "weight is not b x p");
    require(int(log_prob.shape(0)) == task.b && int(log_prob.shape(1)) == task.p, "log_prob is not b x p");
    require(int(total.shape(0)) == task.b, "total is not b");
    require(task.demand ? task.t >= 2 : task.t == task.n, "tours have the wrong length");
    task.tours = tours.data(), task.weight = weight.data(), task.log_prob = log_prob.data(), task.total = total.data();
    if (!grads.empty()) {
        constexpr int COUNT = 10;
        require(grads.size() == COUNT, "ten gradients or none");
        const size_t b = task.b, rows = b * task.n * task.d, pairs = b * task.n * task.n;
        const size_t size[COUNT] = {rows,
                                    rows,
                                    rows,
                                    rows,
                                    b * task.n,
                                    task.first ? rows : 0,
                                    task.load ? b * task.d : 0,
                                    task.near ? pairs : 0,
                                    task.space ? pairs : 0,
                                    task.fade ? b * heads : 0};
        float **out[COUNT] = {&task.d_last,  &task.d_key,  &task.d_value, &task.d_pointer, &task.d_bias,
                              &task.d_first, &task.d_load, &task.d_near,  &task.d_space,   &task.d_fade};
        for (int g = 0; g < COUNT; ++g) {
            require(grads[g].size() == size[g], "a gradient has the wrong size");
            *out[g] = grads[g].data();
        }
    }
    if (!task.b || !task.p) return;
    threads = at_most(threads, task.b);
    Scratch scratch(threads, kernel.score_bytes(task));
    spread(task, task.b, threads, [&](int worker, int item) { return kernel.score(task, item, scratch[worker]); });
}

typedef nb::ndarray<const float, nb::c_contig, nb::device::cpu> Weights;

// The weights of all layers, LAYER_TENSORS for each in the order of LayerWeights.
static std::vector<LayerWeights> layers_of(const std::vector<Weights> &tensors, Stack &stack) {
    require(!tensors.empty() && tensors.size() % LAYER_TENSORS == 0, "every layer has 13 tensors");
    require(tensors[7].ndim() == 2, "ff1 is not f x d");
    stack.f = int(tensors[7].shape(0));
    const size_t d = stack.d, f = stack.f;
    const size_t size[LAYER_TENSORS] = {d * d, d * d, d * d, d * d, d, d, d, f * d, f, d * f, d, d, d};
    std::vector<LayerWeights> layers(tensors.size() / LAYER_TENSORS);
    for (size_t i = 0; i < tensors.size(); ++i) {
        require(tensors[i].size() == size[i % LAYER_TENSORS], "a layer's tensor has the wrong size");
        reinterpret_cast<const float **>(&layers[i / LAYER_TENSORS])[i % LAYER_TENSORS] = tensors[i].data();
    }
    stack.layers = int(layers.size());
    return layers;
}

static Stack stack_of(const Array<const float, 3> &in, int heads, int group) {
    Stack stack{};
    stack.b = int(in.shape(0)), stack.n = int(in.shape(1)), stack.d = int(in.shape(2));
    stack.heads = heads, stack.group = group, stack.in = in.data();
    require(group >= 1 && stack.n >= 1 && stack.n <= MAX_NODES, "no instances or too many nodes");
    require(stack.d >= 1 && heads >= 1 && heads <= stack.d, "no width, or more heads than that");
    require(stack.d % 16 == 0 && stack.d % (4 * heads) == 0, "widths must be multiples of 16, heads of 4");
    return stack;
}

// Attention falls off with the distances in `space` as fast as `fade` says, for each layer and head.
static void fade_by(Stack &stack, const Maybe<const float, 3> &space, const Maybe<const float, 2> &fade) {
    require(!space == !fade, "space and fade go together");
    if (!space) return;
    require(space->size() == size_t(stack.b) * stack.n * stack.n, "space is not b x n x n");
    require(fade->size() == size_t(stack.layers) * stack.heads, "fade is not layers x heads");
    stack.space = space->data(), stack.fade = fade->data();
}

static int groups_of(int b, int group) { return b ? (b - 1) / group + 1 : 0; }

// Runs one of the two passes over all groups, with the weights packed for it.
static void over_groups(Stack &stack, bool backward, int threads, const Kernel &kernel) {
    if (!stack.b) return;
    threads = at_most(threads, groups_of(stack.b, stack.group));
    Scratch packed(1, packed_size(stack) * stack.layers * sizeof(float)), scratch(threads, kernel.stack_bytes(stack));
    stack.packed = static_cast<float *>(packed[0]);
    spread(stack, stack.layers, threads, [&](int, int layer) {
        kernel.pack(stack, layer, backward);
        return DONE;
    });
    const size_t size = weights_size(stack) * stack.layers;
    spread(stack, groups_of(stack.b, stack.group), threads, [&](int worker, int group) {
        if (!backward) return kernel.forward(stack, group, scratch[worker]);
        if (stack.d_weights) std::fill_n(stack.d_weights + size * group, size, 0.0f);
        return kernel.backward(stack, group, scratch[worker]);
    });
}

static size_t layers_room(int b, int n, int d, int f, int layers) {
    Stack stack{};
    stack.b = b, stack.n = n, stack.d = d, stack.f = f;
    return saved_size(stack) * layers;
}

static void layers(Array<const float, 3> in, const std::vector<Weights> &tensors, int heads, int group,
                   Maybe<const float, 3> space, Maybe<const float, 2> fade, Array<float, 3> out, Maybe<float, 1> saved,
                   int threads, const std::string &isa) {
    Stack stack = stack_of(in, heads, group);
    const std::vector<LayerWeights> weights = layers_of(tensors, stack);
    stack.weights = weights.data();
    fade_by(stack, space, fade);
    require(stack.f % 16 == 0, "widths must be multiples of 16");
    require(out.size() == in.size(), "the result has the wrong size");
    require(!saved || saved->size() >= saved_size(stack) * stack.layers, "too little room to keep what is needed");
    stack.out = out.data(), stack.saved = saved ? saved->data() : nullptr;
    over_groups(stack, false, threads, pick(isa));
}

static void layers_backward(Array<const float, 3> in, const std::vector<Weights> &tensors, int heads, int group,
                            Maybe<const float, 3> space, Maybe<const float, 2> fade, Array<float, 1> saved,
                            Array<const float, 3> d_out, Array<float, 3> d_in, Maybe<float, 2> d_weights,
                            Maybe<float, 3> d_space, Maybe<float, 3> d_fade, int threads, const std::string &isa) {
    Stack stack = stack_of(in, heads, group);
    const std::vector<LayerWeights> weights = layers_of(tensors, stack);
    stack.weights = weights.data();
    fade_by(stack, space, fade);
    require(stack.f % 16 == 0, "widths must be multiples of 16");
    require(d_out.size() == in.size() && d_in.size() == in.size(), "a gradient has the wrong size");
    require(saved.size() >= saved_size(stack) * stack.layers, "too little was kept");
    const size_t groups = groups_of(stack.b, group);
    require(!d_weights || (d_weights->shape(0) == groups && d_weights->shape(1) == weights_size(stack) * stack.layers),
            "the weights' gradients have the wrong size");
    stack.saved = saved.data(), stack.d_out = d_out.data(), stack.d_in = d_in.data();
    stack.d_weights = d_weights ? d_weights->data() : nullptr;
    if (space) {
        require(d_space && d_space->size() == space->size(), "the distances' gradient has the wrong size");
        require(d_fade && d_fade->size() == groups * fade->size(), "the gradient of fade has the wrong size");
        stack.d_space = d_space->data(), stack.d_fade = d_fade->data();
    }
    over_groups(stack, true, threads, pick(isa));
}

typedef std::vector<Array<float, 3>> Gradients;

// Forward into `out`, or backward from `d_out` into `grads` (of q, k and v, and of cost where it is wanted) and `d_weights`.
static void mixed(Array<const float, 3> q, Array<const float, 3> k, Array<const float, 3> v, Array<const float, 3> cost,
                  bool flipped, const std::vector<Weights> &net, int heads, int group, Maybe<float, 3> out,
                  Maybe<const float, 3> d_out, Gradients grads, Maybe<float, 2> d_weights, int threads,
                  const std::string &isa) {
    Mixed task{};
    task.b = int(q.shape(0)), task.n = int(q.shape(1)), task.d = int(q.shape(2));
    task.heads = heads, task.group = group, task.flipped = flipped;
    const size_t rows = q.size(), costs = size_t(task.b) * task.n * task.n, h = size_t(heads);
    require(group >= 1 && task.n >= 1 && task.n <= MAX_NODES, "no instances or too many nodes");
    require(task.d >= 1 && heads >= 1 && heads <= task.d && task.d % (4 * heads) == 0, "heads must be a multiple of 4 wide");
    require(k.size() == rows && v.size() == rows && cost.size() == costs, "arrays differ in shape");
    const size_t size[4] = {h * 2 * HIDDEN, h * HIDDEN, h * HIDDEN, h};
    require(net.size() == 4, "the mixing network has four tensors");
    for (int i = 0; i < 4; ++i) require(net[i].size() == size[i], "a tensor of the mixing network has the wrong size");
    task.q = q.data(), task.k = k.data(), task.v = v.data(), task.cost = cost.data();
    task.weight1 = net[0].data(), task.bias1 = net[1].data(), task.weight2 = net[2].data(), task.bias2 = net[3].data();
    const int groups = groups_of(task.b, group);
    if (d_out) {
        require(d_out->size() == rows && (grads.size() == 3 || grads.size() == 4), "a gradient is missing");
        for (size_t i = 0; i < grads.size(); ++i)
            require(grads[i].size() == (i < 3 ? rows : costs), "a gradient has the wrong size");
        require(d_weights && int(d_weights->shape(0)) == groups && d_weights->shape(1) == h * MIXING_WEIGHTS,
                "the weights' gradients have the wrong size");
        task.d_out = d_out->data(), task.d_weights = d_weights->data();
        task.d_q = grads[0].data(), task.d_k = grads[1].data(), task.d_v = grads[2].data();
        task.d_cost = grads.size() == 4 ? grads[3].data() : nullptr;
    } else {
        require(out && out->size() == rows, "the result has the wrong size");
        task.out = out->data();
    }
    if (!task.b) return;
    const Kernel &kernel = pick(isa);
    threads = at_most(threads, groups);
    Scratch scratch(threads, kernel.mixed_bytes(task));
    spread(task, groups, threads, [&](int worker, int item) { return kernel.mixed(task, item, scratch[worker]); });
}

NB_MODULE(_native, m) {
    nb::exception<CannotFinish>(m, "CannotFinish", PyExc_ValueError);
    nb::exception<NotFinite>(m, "NotFinite", PyExc_ValueError);
    m.doc() = "CPU kernels for encoder layers, rollouts and the gradients of both.";
    nb::class_<Tables>(m, "Tables")
        .def(nb::init<Array<const float, 3>, Array<const float, 3>, Array<const float, 3>, Array<const float, 3>,
                      Array<const float, 2>, Maybe<const float, 3>, Maybe<const float, 1>, Maybe<const float, 2>,
                      Maybe<const double, 2>, Maybe<const double, 1>, Array<const int64_t, 1>, Maybe<const float, 3>,
                      Maybe<const float, 3>, Maybe<const float, 1>, Maybe<const int16_t, 3>, int>(),
             nb::arg("last"), nb::arg("key"), nb::arg("value"), nb::arg("pointer"), nb::arg("bias"),
             nb::arg("first").none(), nb::arg("load").none(), nb::arg("demand").none(), nb::arg("units").none(),
             nb::arg("limit").none(), nb::arg("starts"), nb::arg("near").none(), nb::arg("space").none(),
             nb::arg("fade").none(), nb::arg("nearest").none(), nb::arg("candidates"));
    m.def("rollout", &rollout, nb::arg("tables"), nb::arg("heads"), nb::arg("clip"), nb::arg("seeds").none(),
          nb::arg("moves"), nb::arg("length"), nb::arg("log_prob").none(), nb::arg("threads"), nb::arg("isa"));
    m.def("score", &score, nb::arg("tables"), nb::arg("heads"), nb::arg("clip"), nb::arg("tours"), nb::arg("weight"),
          nb::arg("total"), nb::arg("log_prob"), nb::arg("grads"), nb::arg("threads"), nb::arg("isa"));
    m.def("layers_room", &layers_room, nb::arg("b"), nb::arg("n"), nb::arg("d"), nb::arg("f"), nb::arg("layers"));
    m.def("layers", &layers, nb::arg("x"), nb::arg("weights"), nb::arg("heads"), nb::arg("group"),
          nb::arg("space").none(), nb::arg("fade").none(), nb::arg("out"), nb::arg("saved").none(), nb::arg("threads"),
          nb::arg("isa"));
    m.def("layers_backward", &layers_backward, nb::arg("x"), nb::arg("weights"), nb::arg("heads"), nb::arg("group"),
          nb::arg("space").none(), nb::arg("fade").none(), nb::arg("saved"), nb::arg("d_out"), nb::arg("d_in"),
          nb::arg("d_weights").none(), nb::arg("d_space").none(), nb::arg("d_fade").none(), nb::arg("threads"),
          nb::arg("isa"));
    m.def("mixed", &mixed, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("cost"), nb::arg("flipped"), nb::arg("net"),
          nb::arg("heads"), nb::arg("group"), nb::arg("out").none(), nb::arg("d_out").none(), nb::arg("grads"),
          nb::arg("d_weights").none(), nb::arg("threads"), nb::arg("isa"));
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Kernel *k : kernels()) names.push_back(k->name);
        return names;
    });
    m.def("looks", [] { return __atomic_load_n(&looks, __ATOMIC_RELAXED); });
    m.attr("HIDDEN") = HIDDEN;
    m.attr("MIXING_WEIGHTS") = MIXING_WEIGHTS;
    m.attr("MAX_HEADS") = MAX_HEADS;
    m.attr("MAX_NODES") = MAX_NODES;
}
