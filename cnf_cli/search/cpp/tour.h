// A closed tour as an array with the place of every node, and a journal by which changes are taken back.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace cnf::search {

class Tour {
  public:
    static constexpr int LONGEST = 3;  // nodes that `carry` moves at once

    Tour(const int32_t *nodes, int count) : n(count), order(nodes, nodes + count), place(order.size()) {
        for (int p = 0; p < n; ++p) place[size_t(at(p))] = p;
    }
    int size() const { return n; }
    int at(int position) const { return order[size_t(position)]; }
    int position(int node) const { return place[size_t(node)]; }
    int next(int node) const {
        const int p = position(node) + 1;
        return at(p == n ? 0 : p);
    }
    int prev(int node) const {
        const int p = position(node);
        return at(p == 0 ? n - 1 : p - 1);
    }
    const std::vector<int32_t> &nodes() const { return order; }

    // The path from node a forward to node b runs the other way; the shorter side of the tour is rewritten.
    void reverse(int a, int b) {
        int i = position(a), j = position(b);
        int length = wrap(j - i + n) + 1;
        if (2 * length > n) {
            const int after = wrap(j + 1);
            j = wrap(i - 1 + n);
            i = after;
            length = n - length;
        }
        for (int swaps = length / 2; swaps > 0; --swaps) {
            const int u = at(i), v = at(j);
            set(i, v);
            set(j, u);
            i = i + 1 == n ? 0 : i + 1;
            j = j == 0 ? n - 1 : j - 1;
        }
    }

    // The path of `length` nodes that begins at `head` is laid between `left` and the node after it, turned around if
    // asked; what lies between is shifted, the shorter way round.
    void carry(int head, int length, int left, bool turned) {
        int moved[LONGEST];
        const int i = position(head), j = wrap(i + length - 1);
        for (int t = 0; t < length; ++t) moved[t] = at(wrap(i + t));
        const int ahead = wrap(position(left) - j + n), behind = n - length - ahead;
        int into;
        if (ahead <= behind) {
            for (int t = 0; t < ahead; ++t) set(wrap(i + t), at(wrap(i + t + length)));
            into = wrap(i + ahead);
        } else {
            for (int t = 0; t < behind; ++t) set(wrap(j - t + n), at(wrap(j - t - length + 2 * n)));
            into = wrap(j - behind - length + 1 + 2 * n);
        }
        for (int t = 0; t < length; ++t) set(wrap(into + t), moved[turned ? length - 1 - t : t]);
    }

    // Two paths that follow each other, the first from position `first`, change places.
    void exchange(int first, int one, int two) {
        const int rest = n - one - two;
        // Of the tour's three paths any two may change places; the longest stays.
        if (one >= two && one >= rest) {
            first = wrap(first + one);
            one = two;
            two = rest;
        } else if (two >= rest) {
            first = wrap(first + one + two);
            two = one;
            one = rest;
        }
        buffer.clear();
        for (int t = 0; t < two; ++t) buffer.push_back(at(wrap(first + one + t)));
        for (int t = 0; t < one; ++t) buffer.push_back(at(wrap(first + t)));
        for (int t = 0; t < one + two; ++t) set(wrap(first + t), buffer[size_t(t)]);
    }

    // From here on changes can be taken back.
    void remember() {
        journal.clear();
        remembering = true;
    }
    void take_back() {
        for (size_t k = journal.size(); k-- > 0;) {
            order[size_t(journal[k].first)] = journal[k].second;
            place[size_t(journal[k].second)] = journal[k].first;
        }
        journal.clear();
    }

  private:
    int wrap(int position) const {
        while (position >= n) position -= n;
        return position;
    }
    void set(int position, int node) {
        if (remembering) journal.emplace_back(position, at(position));
        order[size_t(position)] = node;
        place[size_t(node)] = position;
    }

    int n;
    std::vector<int32_t> order, place, buffer;
    std::vector<std::pair<int32_t, int32_t>> journal;
    bool remembering = false;
};

}  // namespace cnf::search
