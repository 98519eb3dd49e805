"""Best-improvement local search; every neighbourhood is priced as one array, so plain numpy is fast enough."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from cnf_cli.problems.distance import Array
from cnf_cli.problems.load import limit

Tour = NDArray[np.int64]
_SEGMENT = 3


def improve_tour(distances: Array, tour: list[int], seconds: float) -> list[int]:
    """The closed tour after 2-opt and Or-opt moves; distances need not be symmetric."""
    until = time.monotonic() + seconds
    now = np.asarray(tour, np.int64)
    least = 1e-10 * max(float(distances.max(initial=0.0)), 1e-300)  # below this a gain is rounding, and could cycle
    while len(now) > 3 and time.monotonic() < until:
        gain, better = max((_two_opt(distances, now), _or_opt(distances, now)), key=lambda m: m[0])
        if gain <= least:
            break
        now = better
    return [int(node) for node in now]


def _two_opt(d: Array, t: Tour) -> tuple[float, Tour]:
    """The best reversal of t[i+1..j]; the reversed legs are counted, so that asymmetric distances are right too."""
    after = np.roll(t, -1)
    legs = np.concatenate([[0.0], np.cumsum(d[t[:-1], t[1:]] - d[t[1:], t[:-1]])])  # what reversing t[0..k] saves
    gain = (d[t, after][:, None] + d[t, after][None, :]) - d[np.ix_(t, t)] - d[np.ix_(after, after)]
    n = len(t)
    inner = np.zeros((n, n))
    inner[:-1] = legs[None, :] - legs[1:, None]
    gain = np.where(np.triu(np.ones((n, n), bool), 2), gain + inner, -np.inf)
    i, j = np.unravel_index(int(gain.argmax()), gain.shape)
    return float(gain[i, j]), np.concatenate([t[: i + 1], t[i + 1 : j + 1][::-1], t[j + 1 :]])


def _or_opt(d: Array, t: Tour) -> tuple[float, Tour]:
    """The best move of up to three nodes in a row to another place, turned round or not."""
    n = len(t)
    best: tuple[float, int, int, int, bool] = (-np.inf, 0, 0, 0, False)
    after = np.roll(t, -1)
    for length in range(1, min(_SEGMENT, n - 2) + 1):
        first, last = t, np.roll(t, 1 - length)
        before, behind = np.roll(t, 1), np.roll(t, -length)
        saved = d[before, first] + d[last, behind] - d[before, behind]
        # Column j: between t[j] and t[j+1]; both must lie outside the segment, and not be its old place.
        offset = (np.arange(n)[None, :] - np.arange(n)[:, None]) % n
        outside = (offset >= length) & (offset < n - 1)
        turn = np.zeros(n)
        for k in range(length - 1):
            a, b = np.roll(t, -k), np.roll(t, -k - 1)
            turn += d[b, a] - d[a, b]
        for turned in (False, True) if length > 1 else (False,):
            head, tail = (last, first) if turned else (first, last)
            added = d[np.ix_(t, head)].T + d[np.ix_(tail, after)] - d[t, after][None, :]
            gain = np.where(outside, saved[:, None] - added - (turn[:, None] if turned else 0.0), -np.inf)
            at = int(gain.argmax())
            if gain.flat[at] > best[0]:
                best = (float(gain.flat[at]), at // n, at % n, length, turned)
    gain_, i, j, length, turned = best
    if not np.isfinite(gain_):
        return -np.inf, t
    turned_to = np.roll(t, -i)  # the segment first
    segment, rest = turned_to[:length], turned_to[length:]
    cut = (j - i) % n - length + 1
    return gain_, np.concatenate([rest[:cut], segment[::-1] if turned else segment, rest[cut:]])


def improve_routes(
    d: Array, demand: Array, capacity: float, routes: list[list[int]], seconds: float
) -> list[list[int]]:
    """Routes within the capacity after moves inside and between routes; the distances are taken as symmetric."""
    until = time.monotonic() + seconds
    most = float(limit(demand, capacity))
    least = 1e-10 * max(float(d.max(initial=0.0)), 1e-300)
    routes = [r for r in routes if r]
    while routes and time.monotonic() < until:
        routes = [improve_tour(d, [0, *r], max(0.0, until - time.monotonic())) for r in routes]
        routes = [t[t.index(0) + 1 :] + t[: t.index(0)] for t in routes]
        gain, better = max((move(d, demand, most, routes) for move in (_relocate, _swap, _tails)), key=lambda m: m[0])
        if gain <= least:
            break
        routes = [r for r in better if r]
    return routes


def _stops(routes: list[list[int]]) -> tuple[Tour, Tour, Tour, Tour]:
    """Every stop incl. each route's departure from the depot: its node, the next node, its route, its place there."""
    rows = [
        (a, b, r, k)
        for r, route in enumerate(routes)
        for k, (a, b) in enumerate(zip([0, *route], [*route, 0], strict=True))
    ]
    node, after, where, place = np.asarray(rows, np.int64).T
    return node, after, where, place


def _relocate(d: Array, demand: Array, most: float, routes: list[list[int]]) -> tuple[float, list[list[int]]]:
    """The best move of one customer into another route (or an empty one)."""
    node, after, where, place = _stops([*routes, []])
    load = np.array([demand[r].sum() for r in routes] + [0.0])
    own = np.flatnonzero(node > 0)
    before = node[own - 1]
    saved = d[before, node[own]] + d[node[own], after[own]] - d[before, after[own]]
    added = d[np.ix_(node[own], node)] + d[np.ix_(node[own], after)] - d[node, after][None, :]
    fits = (load[where][None, :] + demand[node[own]][:, None] <= most) & (where[own][:, None] != where[None, :])
    gain = np.where(fits, saved[:, None] - added, -np.inf)
    u, to = np.unravel_index(int(gain.argmax()), gain.shape)
    out = [list(r) for r in [*routes, []]]
    customer = int(node[own[u]])
    out[where[own[u]]].remove(customer)
    out[where[to]].insert(int(place[to]), customer)
    return float(gain[u, to]), out


def _swap(d: Array, demand: Array, most: float, routes: list[list[int]]) -> tuple[float, list[list[int]]]:
    """The best exchange of two customers of two routes."""
    node, after, where, place = _stops(routes)
    own = np.flatnonzero(node > 0)
    a, pre, post, route = node[own], node[own - 1], after[own], where[own]
    old = d[pre, a] + d[a, post]
    new = d[np.ix_(pre, a)] + d[np.ix_(a, post)].T  # row i, column j: customer j in the place of i
    load = np.array([demand[r].sum() for r in routes])[route]
    fits = load[:, None] - demand[a][:, None] + demand[a][None, :] <= most
    fits &= fits.T & (route[:, None] != route[None, :])
    gain = np.where(fits, old[:, None] + old[None, :] - new - new.T, -np.inf)
    i, j = np.unravel_index(int(gain.argmax()), gain.shape)
    out = [list(r) for r in routes]
    out[route[i]][place[own[i]] - 1], out[route[j]][place[own[j]] - 1] = int(a[j]), int(a[i])
    return float(gain[i, j]), out


def _tails(d: Array, demand: Array, most: float, routes: list[list[int]]) -> tuple[float, list[list[int]]]:
    """The best exchange of what follows two stops of two routes (2-opt*)."""
    node, after, where, place = _stops(routes)
    done = np.concatenate([np.cumsum(demand[[0, *r]]) for r in routes])
    left = np.array([demand[r].sum() for r in routes])[where] - done
    fits = (done[:, None] + left[None, :] <= most) & (done[None, :] + left[:, None] <= most)
    fits &= where[:, None] != where[None, :]
    old = d[node, after]
    gain = old[:, None] + old[None, :] - d[np.ix_(node, after)] - d[np.ix_(node, after)].T
    gain = np.where(fits, gain, -np.inf)
    i, j = np.unravel_index(int(gain.argmax()), gain.shape)
    out = [list(r) for r in routes]
    a, b = routes[where[i]], routes[where[j]]
    out[where[i]], out[where[j]] = a[: place[i]] + b[place[j] :], b[: place[j]] + a[place[i] :]
    return float(gain[i, j]), out
