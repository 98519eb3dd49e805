// Tours of some rollouts of one instance, greedy or sampled. The nodes still open are a sorted list, so a step costs
// what is left to visit; sorted, because draws go through the nodes in order and ties go to the lowest.
//
// A few rollouts walk in step: each step goes through the value rows of a band of nodes for all of them, then the next
// band, then the same with the pointer rows. A band stays in the first-level cache while all walks read it.
#pragma once
#include "random.h"
#include "scene.h"

namespace cnf {
namespace CNF_ISA {

constexpr int WALKS = 16;
constexpr int BAND_BYTES = 28 << 10;
constexpr float LEAST = 1e-37f;  // the smallest probability whose logarithm is taken

inline int words(int n) { return (n + 63) / 64; }

struct Walk {
    int p, c, t;          // rollout of those at hand, where it stands, position in the tour
    int size, fits, s;    // open nodes; candidates of the next move; how many of those are read
    bool done;
    float left;           // share of the load that is left, as the policy reads it
    double room;          // the same in the units that are counted
    float log_prob;       // of the moves that were drawn
    uint64_t stream;
    int16_t *moves;
    int *open, *allowed;  // not yet visited; with a depot, those that fit
    uint64_t *there;      // where only the nearest count, a bit for every node instead: is it open?
    int *nodes;           // the candidates: one of the two
    const float *factor;  // what weighs them beside scene.at: by the rollout's start, or by its load
    float *w;             // their weights, where stored; or room for the factor
    float *u;             // their scores
    float *sum, *glimpse;
};

template <int HP, int KV>
struct Rollout {
    typedef Heads<HP> H;
    static constexpr int P = H::PARTS;
    Scene<HP> scene;
    Walk walks[WALKS];
    float *weights;   // of the walk and band at hand
    uint64_t *close;  // the nearest open nodes of the walk at hand, a bit for every node
    bool sample;
    float clip, squash;

    void place(const Task &task, int rollouts, Arena &a) {
        scene.place(task, rollouts < WALKS ? rollouts : WALKS, a);
        for (Walk &x : walks) {
            x.open = a.take<int>(task.n + 64);
            x.allowed = a.take<int>(task.n + 64);
            x.there = a.take<uint64_t>(words(task.n));
            x.w = a.take<float>(size_t(task.n) * HP + 64);
            x.u = a.take<float>(task.n + 64);
            x.sum = a.take<float>(P * W);
            x.glimpse = a.take<float>(scene.y.D);
        }
        weights = a.take<float>(size_t(task.n) * HP + 64);
        close = a.take<uint64_t>(words(task.n));
        clip = task.clip;
        squash = 1.0f / __builtin_sqrtf(float(task.d));
        sample = task.seeds != nullptr;
    }

    // The next nodes below `end` join the sums over weights and weighted values, vectors [K0, K0 + N) of the latter, or
    // from `k0` on where K0 is negative. A weight is the product of two tables or, if STORED, was computed before.
    template <int N, int K0, bool STORED>
    CNF_MEMBER int attend(const Walk &x, int end, int k0 = 0) {
        constexpr int U = N < 8 ? 2 : 1;             // enough independent sums to hide the latency of an addition
        constexpr bool KEEP = K0 == 0 && N < KV && HP >= W;  // other vectors come later, with the same weights
        constexpr bool KEPT = K0 > 0 && HP >= W;
        if constexpr (K0 >= 0) k0 = K0;
        const size_t D = KV ? KV * W : scene.y.D;
        const float *value = scene.value + k0 * W;
        const float *e = scene.at + size_t(x.c) * scene.n * HP, *f = x.factor;
        const float *w = x.w;
        float *kept = weights;
        const int *nodes = x.nodes;
        vec acc[U][N] = {}, sum[U][P] = {};
        for (int k = 0; k < N; ++k) acc[0][k] = load(x.glimpse + (k0 + k) * W);
        for (int p = 0; p < P; ++p) sum[0][p] = load(x.sum + p * W);
        const auto add = [&](int s, int q) __attribute__((always_inline)) {
            const size_t j = nodes[s];
            const float *row = value + j * D;
            vec weight[P];
            for (int p = 0; p < P; ++p) {
                if constexpr (STORED)
                    weight[p] = H::spread(w + size_t(s) * HP, p);
                else if constexpr (KEPT)
                    weight[p] = load(kept + size_t(s) * HP + p * W);
                else
                    weight[p] = H::spread(e + j * HP, p) * H::spread(f + j * HP, p);
                if constexpr (KEEP && !STORED) store(kept + size_t(s) * HP + p * W, weight[p]);
                if constexpr (K0 <= 0) sum[q][p] += weight[p];
            }
            for (int k = 0; k < N; ++k) acc[q][k] += weight[k % P] * load(row + k * W);
        };
        int s = x.s;  // the list ends with the number of nodes, so it needs no other end
        if constexpr (U == 2)
            for (; nodes[s + 1] < end; s += 2) add(s, 0), add(s + 1, 1);
        for (; nodes[s] < end; ++s) add(s, 0);
        for (int q = 1; q < U; ++q) {
            for (int k = 0; k < N; ++k) acc[0][k] += acc[q][k];
            for (int p = 0; p < P; ++p) sum[0][p] += sum[q][p];
        }
        for (int k = 0; k < N; ++k) store(x.glimpse + (k0 + k) * W, acc[0][k]);
        if (!k0)
            for (int p = 0; p < P; ++p) store(x.sum + p * W, sum[0][p]);
        return s;
    }

    template <bool STORED, int K0 = 0>
    void attend_band(Walk &x, int end) {
        if constexpr (KV && KV % 8 == 0) {
            const int s = attend<8, K0, STORED>(x, end);
            if constexpr (K0 + 8 < KV)
                attend_band<STORED, K0 + 8>(x, end);
            else
                x.s = s;
        } else {
            int s = x.s;
            for (int k = 0; k < scene.y.D / W; k += 4) s = attend<4, -1, STORED>(x, end, k);
            x.s = s;
        }
    }

    static void clear(Walk &x, int D) {
        x.s = 0;
        __builtin_memset(x.sum, 0, sizeof(float) * P * W);
        __builtin_memset(x.glimpse, 0, sizeof(float) * D);
    }

    void normalise(Walk &x) {
        float inverse[HP];
        bool sound = true;
        for (int h = 0; h < HP; ++h) {
            sound &= x.sum[h] > TINY;
            inverse[h] = 1.0f / x.sum[h];
        }
        if (!sound) {
            float norm[HP];
            scene.safe_weights(x.p, x.c, x.left, x.nodes, x.fits, 0, nullptr, x.w, norm);
            clear(x, scene.y.D);
            attend_band<true>(x, scene.n);
            for (int h = 0; h < HP; ++h) inverse[h] = 1.0f / norm[h];
        }
        const int kv = KV ? KV : scene.y.D / W;
        float *glimpse = x.glimpse;
        for (int k = 0; k < kv; ++k) store(glimpse + k * W, load(glimpse + k * W) * H::spread(inverse, k));
    }

    // u[s] = glimpse . pointer + bias for the next nodes below `end`, W at a time: the last ones may lie above it.
    __attribute__((noinline)) void point_band(Walk &x, int end) {  // inlined, its row addresses leave their registers
        const int kv = KV ? KV : scene.y.D / W;
        const size_t D = size_t(kv) * W;
        const float *pointer = scene.pointer, *bias = scene.biases(x.c), *glimpse = x.glimpse;
        const int *nodes = x.nodes;
        int s = x.s;
        // A few nodes at a time: each vector of the glimpse is read once for all of them.
        constexpr int N = W < 8 ? W : 8;
        const auto few = [&](int at) __attribute__((always_inline)) {
            vec acc[N] = {};
            const float *row[N];
            for (int i = 0; i < N; ++i) {
                const size_t j = nodes[at + i];
                row[i] = pointer + j * D;
                acc[i][0] = bias[j];
            }
            for (int k = 0; k < kv; ++k) {
                const vec g = load(glimpse + k * W);
                for (int i = 0; i < N; ++i) acc[i] += g * load(row[i] + k * W);
            }
            const auto four = [&](int i) __attribute__((always_inline)) {
                return merge2(merge1(acc[i], acc[i + 1]), merge1(acc[i + 2], acc[i + 3]));
            };
            if constexpr (N == 4) return four(0);
            if constexpr (N == 8) return merge4(four(0), four(4));
        };
        for (; nodes[s] < end; s += W) {
            if constexpr (W == 16)
                store(x.u + s, merge8(few(s), few(s + 8)));
            else
                store(x.u + s, few(s));
        }
        x.s = s;
    }

    // Place of the largest score among the candidates, or -1 where one of them is not finite.
    int best(const Walk &x) const {
        vec top = all(-INFINITE), odd = {};  // odd: zero, or NaN once a score is NaN or infinite
        store(x.u + x.fits, all(x.u[0]));
        for (int s = 0; s < x.fits; s += W) {
            const vec score = load(x.u + s);
            top = larger(score, top);
            odd += score - score;
        }
        return sum(odd) == 0 ? find(x.u, x.fits, largest(top)) : -1;
    }

    // The first node whose cumulative probability exceeds the draw; the last one if rounding leaves none; -1 where a
    // score is not finite.
    int draw(Walk &x) const {
        const float most = logit_shift(x.u, x.fits, clip, squash);
        float before = 0, until[MAX_NODES / W + 2];
        int chunk = 0;
        vec odd = {};
        store(x.u + x.fits, all(x.u[0]));
        for (int s = 0; s < x.fits; s += W) {
            const vec score = load(x.u + s);
            odd += score - score;
            store(x.u + s, exp(clip * tanh(score * squash) - most));
            if (s + W > x.fits) store(x.u + x.fits, vec{});
            until[chunk] = before + sum(load(x.u + s));
            before = until[chunk++];
        }
        if (!(sum(odd) == 0 && before > 0 && before < INFINITE)) return -1;
        const float goal = uniform(x.stream, x.t) * before;
        int c = 0;
        while (c + 1 < chunk && !(until[c] > goal)) ++c;
        float reached = c ? until[c - 1] : 0;
        int s = c * W;
        for (; s < x.fits - 1; ++s) {
            reached += x.u[s];
            if (reached > goal) break;
        }
        if (scene.task->log_prob) x.log_prob += __builtin_logf(x.u[s] > LEAST ? x.u[s] / before : LEAST);
        return s;
    }

    // The candidates of the next move.
    void look(Walk &x) {
        if (scene.nearest) return look_near(x);
        x.nodes = x.open, x.fits = x.size;
        if (!scene.depot()) return;
        x.nodes = x.allowed, x.fits = 0;
        if (x.c) x.allowed[x.fits++] = 0;
        for (int s = 0; s < x.size; ++s) {
            x.allowed[x.fits] = x.open[s];
            x.fits += scene.units[x.open[s]] <= x.room;
        }
    }

    // The nearest of the open nodes that fit become candidates, in order. Branches would be guessed wrong half of the time.
    void look_near(Walk &x) {
        const uint64_t *chosen = x.there;
        if (x.size > scene.task->candidates) {
            __builtin_memset(close, 0, sizeof(uint64_t) * words(scene.n));
            scene.look_near(x.c, [&](int j) {
                const uint64_t good = (x.there[j >> 6] >> (j & 63) & 1) & uint64_t(fits(x, j));
                close[j >> 6] |= good << (j & 63);
                return int(good);
            });
            chosen = close;
        }
        x.nodes = x.allowed, x.fits = 0;
        if (scene.depot() && x.c) x.allowed[x.fits++] = 0;
        for (int w = 0; w < words(scene.n); ++w)
            for (uint64_t left = chosen[w]; left; left &= left - 1) {
                const int j = w * 64 + __builtin_ctzll(left);
                x.allowed[x.fits] = j;
                x.fits += fits(x, j);
            }
    }

    bool fits(const Walk &x, int j) const { return !scene.depot() || scene.units[j] <= x.room; }

    // Goes to node j, which is at or after position s of the open ones.
    void move(Walk &x, int j, int s) {
        x.moves[x.t++] = int16_t(x.c = j);
        if (scene.depot()) {
            x.left = j ? x.left - scene.demand[j] : 1.0f;
            x.room = j ? x.room - scene.units[j] : scene.limit;
        }
        if (!scene.depot() || j) {
            --x.size;
            if (scene.nearest) {
                x.there[j >> 6] &= ~(uint64_t(1) << (j & 63));
            } else {
                while (x.open[s] != j) ++s;
                __builtin_memmove(x.open + s, x.open + s + 1, sizeof(int) * (x.size - s));
            }
        }
        x.done = !x.size && !(scene.depot() && x.c);
    }

    void begin(const Task &task, Walk &x, int i, int from, int p) {
        const int first = scene.depot() ? 1 : 0;
        x.p = p, x.left = 1, x.room = scene.limit, x.size = 0, x.t = 0, x.log_prob = 0;
        x.moves = task.moves + (size_t(i) * task.p + from + p) * task.t;
        x.stream = sample ? stream(task.seeds[i], scene.start[p]) : 0;
        __builtin_memset(x.there, 0, sizeof(uint64_t) * words(scene.n));
        for (int j = first; j < scene.n; ++j) {
            x.open[x.size++] = j;
            x.there[j >> 6] |= uint64_t(1) << (j & 63);
        }
        if (first) x.moves[x.t++] = 0;
        move(x, scene.start[p], 0);
    }

    // One move of every walk in the list.
    Status step(Walk **list, int count) {
        const bool stored = bool(scene.vector) == bool(scene.from);  // two tables make a weight, not three or one
        ++scene.now;
        const int n = scene.n, D = scene.y.D, bands = (n * D * 4 + BAND_BYTES - 1) / BAND_BYTES;
        Walk *ask[WALKS];
        int asked = 0;
        for (int k = 0; k < count; ++k) {
            Walk &x = *list[k];
            look(x);
            if (!x.fits || x.t >= scene.task->t) return CANNOT_FINISH;
            if (x.fits == 1) {
                move(x, x.nodes[0], 0);
                continue;
            }
            for (int s = 0; s < W; ++s) x.nodes[x.fits + s] = n;
            float norm[HP];
            if (stored)
                scene.weights(x.p, x.c, x.left, x.nodes, x.fits, 0, nullptr, x.w, norm);
            else
                x.factor = scene.vector ? scene.level(x.left, x.w) : scene.from + size_t(x.p) * n * HP;
            clear(x, D);
            ask[asked++] = &x;
        }
        for (int b = 1; b <= bands; ++b)
            for (int k = 0; k < asked; ++k)
                stored ? attend_band<true>(*ask[k], n * b / bands) : attend_band<false>(*ask[k], n * b / bands);
        for (int k = 0; k < asked; ++k) normalise(*ask[k]), ask[k]->s = 0;
        for (int b = 1; b <= bands; ++b)
            for (int k = 0; k < asked; ++k) point_band(*ask[k], n * b / bands);
        for (int k = 0; k < asked; ++k) {
            Walk &x = *ask[k];
            const int s = sample ? draw(x) : best(x), home = scene.depot() && x.c;  // the depot comes first
            if (s < 0) return NOT_FINITE;
            move(x, x.nodes[s], s - home);
        }
        return DONE;
    }

    Status run(const Task &task, int i, int from, int to) {
        scene.prepare(i);
        if (!scene.servable()) return CANNOT_FINISH;
        for (int p = from; p < to; p += WALKS) {
            const int count = to - p < WALKS ? to - p : WALKS;
            scene.depart(p, count);  // their tables stay in the second-level cache
            if (scene.watch.stopped) return STOPPED;
            if (scene.odd) return NOT_FINITE;
            Walk *list[WALKS];
            int live = 0;
            for (int k = 0; k < count; ++k) {
                begin(task, walks[k], i, p, k);
                if (!walks[k].done) list[live++] = &walks[k];
            }
            while (live) {
                if (scene.watch.after(size_t(live) * scene.n * scene.y.D)) return STOPPED;
                const Status status = step(list, live);
                if (status != DONE) return status;
                int kept = 0;
                for (int k = 0; k < live; ++k)
                    if (!list[k]->done) list[kept++] = list[k];
                live = kept;
            }
            for (int k = 0; k < count; ++k) {
                task.length[size_t(i) * task.p + p + k] = walks[k].t;
                if (task.log_prob) task.log_prob[size_t(i) * task.p + p + k] = walks[k].log_prob;
                for (int t = walks[k].t; t < task.t; ++t) walks[k].moves[t] = 0;
            }
        }
        return DONE;
    }
};

}  // namespace CNF_ISA
}  // namespace cnf
