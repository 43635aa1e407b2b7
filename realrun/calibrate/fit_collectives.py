#!/usr/bin/env python3
"""Fits results/calibration/collectives.json on the measured collectives of results/published/collectives.json.

    realrun/calibrate/fit_collectives.py            # fit, write, print every curve's residual
    realrun/calibrate/fit_collectives.py --only "Hopper NVLink4"    # that class alone; all others stay as they stand
    realrun/calibrate/fit_collectives.py --check    # residuals of the calibration as it stands; writes nothing

One set of parameters per node class (accelerator generation and scale-up fabric) and per network class, never one per
curve. NCCL's and RCCL's own tuning constants are the prior: a parameter that the curves say nothing about keeps its
published value. The model is that of sim/cost/collective_cost.cpp, restricted to what the curves cover (one group, no
oversubscription); tests/cost/collective_calibration_test.cpp recomputes the residuals with the C++ model.
Only the Python standard library is used; the result is deterministic.
"""

import argparse
import json
import math
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[2]
CURVES = ROOT / "results/published/collectives.json"
CALIBRATION = ROOT / "results/calibration/collectives.json"
PROTOCOLS = ("simple", "ll128", "ll")


# --- The model (sim/cost/collective_cost.cpp) -------------------------------------------------------------------------

def intra_rate(system, node, r):
    """Bytes per second of each rank within the node, for a ring over r neighbouring devices."""
    link, pair = system["intra_bytes_per_second"], system["pair_bytes_per_second"]
    fabric = system["intra"]
    if fabric == "direct_mesh" and pair > 0:
        return min(link, (r - 1) * pair) * node["ring_share"]
    if fabric == "nvlink_pairs" and r == 2:
        return (pair or link) * node["ring_share"]
    if fabric in ("nvlink_pairs", "pcie"):
        root = system.get("devices_per_pcie_root", 0)
        within = r <= (max(root, system["devices_per_pcie_switch"]) if fabric == "pcie" else root)
        return system["pcie_bytes_per_second"] * (node["ring_share"] if within else node["host_bridge_share"])
    return link * node["ring_share"]


def all_to_all_seconds(system, node, n, r, size):
    """Bandwidth term of the pairwise exchange within a node."""
    volume = (r - 1 + node["local_steps"]) / n * size
    fabric = system["intra"]
    if fabric == "nvlink_pairs" and r == 2:
        return volume / ((system["pair_bytes_per_second"] or system["intra_bytes_per_second"]) * node["all_to_all_share"])
    if fabric in ("nvlink_pairs", "pcie"):
        pcie = system["pcie_bytes_per_second"]
        switch = system["devices_per_pcie_switch"] if fabric == "pcie" else 1
        root = min(r, max(switch, system.get("devices_per_pcie_root", 0)))
        across = switch * max(0, root - switch) / n * size / (pcie * node["all_to_all_share"])
        across += switch * max(0, r - root) / n * size / (pcie * node["host_bridge_share"])
        return max(volume / (pcie * node["all_to_all_share"]), across)
    rate = system["intra_bytes_per_second"]
    if fabric == "direct_mesh" and system["pair_bytes_per_second"] > 0:
        rate = min(rate, (r - 1) * system["pair_bytes_per_second"])
    return volume / (rate * node["all_to_all_share"])


def candidates(kind, size, n, nodes, system, node, net, in_switch):
    """(algorithm, protocol, seconds) of every legal pair."""
    r = n // nodes
    nic_total = system["nics"] * system["nic_bytes_per_second"]
    rank_cap = max(system["nic_bytes_per_second"], nic_total / system["devices_per_node"])
    if system["pcie_bytes_per_second"] > 0:
        rank_cap = min(rank_cap, system["pcie_bytes_per_second"])
    nic = min(nic_total, r * rank_cap)
    llmax = node["ll_bytes_per_second"][0 if nodes == 1 else 1 if nodes < 4 else 2]
    rate = intra_rate(system, node, r) if r > 1 else math.inf
    depth = (nodes - 1).bit_length()
    fill = net["tree_fill_seconds"] * size / (size + net["tree_fill_bytes"])
    ring_fill = net["ring_fill_seconds"] * size / (size + net["ring_fill_bytes"])
    base = {p: net["base_seconds"][p] + node["network_base_seconds"] for p in PROTOCOLS}

    def intra_share(p):
        return min(node["protocol_share"][p], llmax / (rate if r > 1 else nic)) if p == "ll" else node["protocol_share"][p]

    def inter_share(p):
        share = node["protocol_share"][p]
        return min(share, net["ll_share"], llmax / nic) if p == "ll" else share

    def allowed(protocol):
        return protocol != "ll128" or (node["ll128"] and (nodes == 1 or net["ll128"]))

    if kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        steps = 2 * (n - 1) if kind == "all_reduce" else n - 1
        across = 0 if nodes == 1 else 2 * (nodes - 1) if kind == "all_reduce" else nodes - 1
        local = 0 if kind in ("broadcast", "reduce") else node["local_steps"]
        moved = size if kind in ("broadcast", "reduce") else steps / n * size
        stretched = size if kind in ("broadcast", "reduce") else (steps + local) / n * size
        inside = 1 if nodes == 1 else (r - 1) / r
        for p in PROTOCOLS:
            if not allowed(p):
                continue
            seconds = stretched * inside / (rate * intra_share(p))
            if nodes > 1:
                seconds = max(seconds, moved / (nic * net["ring_share"] * inter_share(p)))
            latency = node["base_seconds"][p] + (steps - across) * node["step_seconds"][p]
            if nodes > 1:
                latency += base[p] + across * (net["ring_step_seconds"][p] + (ring_fill if p == "simple" else 0))
            yield "ring", p, latency + seconds
    if kind == "all_reduce" and nodes > 1:
        busiest = {2: 1.0, 3: 1.5}.get(nodes, 2.0)
        for p in PROTOCOLS:
            if not allowed(p):
                continue
            share = node["tree_share"][p]
            intra = 0 if r == 1 else 2 * size / (rate * intra_share(p) * share)
            inter = busiest * size / (nic * net["tree_share"] * inter_share(p) * share)
            latency = node["base_seconds"][p] + base[p] + 2 * (r - 1) * node["step_seconds"][p]
            latency += 2 * depth * (net["tree_step_seconds"][p] + (fill if p == "simple" else 0))
            yield "tree", p, latency + max(intra, inter)
    if kind == "all_reduce" and in_switch and r >= node["nvls_least_ranks"]:
        seconds = (r + 1) / r * size / (system["intra_bytes_per_second"] * node["nvls_share"])
        latency = node["nvls_seconds"] + node["nvls_fill_seconds"] * size / (size + node["nvls_fill_bytes"])
        latency += r * node["nvls_rank_seconds"] * size / (size + r * node["nvls_fill_bytes"])
        if nodes > 1:
            busiest = {2: 1.0, 3: 1.5}.get(nodes, 2.0)
            channel = {2: 1.0, 3: 2.0}.get(nodes, 3.0) / node["nvls_channels"]
            seconds = max(seconds / node["nvls_network_share"], max(busiest / nic, channel / rank_cap) * size / net["tree_share"])
            latency += base["simple"] + 2 * depth * (net["tree_step_seconds"]["simple"] + fill)
        yield "nvls", "simple", latency + seconds
    if kind == "all_to_all":
        for p in ("simple", "ll"):
            share = node["protocol_share"][p]
            seconds = all_to_all_seconds(system, node, n, r, size) / share if r > 1 else 0
            latency = node["all_to_all_base_seconds"][p] + (r - 1) * node["send_step_seconds"]
            if nodes > 1:
                seconds = max(seconds, r * (n - r) / n * size / (nic * net["all_to_all_share"] * inter_share(p)))
                latency += base[p] + (n - r) * net["send_step_seconds"][p]
            yield "direct", p, latency + seconds
    if kind == "send_recv":
        for p in ("simple", "ll"):
            link = system["pair_bytes_per_second"] or system["intra_bytes_per_second"]
            yield "direct", p, node["send_base_seconds"][p] + node["send_step_seconds"] + size / (
                link * node["send_share"] * node["protocol_share"][p])


def predict(curve, size, system, node, net):
    in_switch = system["in_switch_reduction"] and curve.get("in_switch_reduction", True)
    forced = curve["algorithm"]
    times = [t for a, _, t in candidates(curve["collective"], size, curve["ranks"], curve["nodes"], system, node, net,
                                         in_switch) if forced in ("automatic", a)]
    return min(times)


# --- Classes ----------------------------------------------------------------------------------------------------------

def node_class(classes, system):
    for c in classes:
        if (system["architecture"] in c["architectures"] and system["intra"] in c["fabrics"] and
                system["devices_per_node"] >= c["least_devices"]):
            return c
    for c in classes:
        if not c["architectures"] and system["intra"] in c["fabrics"]:
            return c
    raise SystemExit("no node class for %s" % system)


def network_class(classes, system):
    name = system["network"].lower()
    for c in classes:
        if any(word in name for word in c["words"]):
            return c
    return classes[0]


def errors(curve, data, calibration, least=0):
    system = data["systems"][curve["system"]]
    node = node_class(calibration["node_classes"], system)["parameters"]
    net = network_class(calibration["network_classes"], system)["parameters"]
    return [predict(curve, b, system, node, net) / (us * 1e-6) - 1 for b, us in curve["points"] if b >= least]


# --- Fitting ----------------------------------------------------------------------------------------------------------

def get(parameters, path):
    for key in path:
        parameters = parameters[key]
    return parameters


def put(parameters, path, value):
    get(parameters, path[:-1])[path[-1]] = value


def bounds(name, prior):
    """Shares stay shares. Latencies per step extrapolate to large groups, so they stay near the published constants."""
    if name == "ring_share":
        return 0.65, 1.0
    if name == "tree_share":
        return 0.85, 1.0
    if name == "ll_share":
        return 0.02, 0.5
    if "share" in name:
        return 0.5 * prior, min(1.0 if name != "send_share" else 0.9, 2 * prior)
    if name == "ring_step_seconds.simple":
        return prior / 1.5, 1.5 * prior
    if "step_seconds" in name or "fill" in name:
        return prior / 4, 4 * prior
    return prior / 20, 20 * prior


def fit(free, curves, seconds_of):
    """Pattern search in the logarithm of each free parameter, (parameters, path, low, high). Each curve counts alike, its
    points below 1 MiB half; a small pull towards the published value keeps undetermined parameters there."""
    prior = [get(parameters, path) for parameters, path, _, _ in free]

    def loss():
        total = 0.0
        for curve in curves:
            points = [p for p in curve["points"] if p[0] >= curve.get("fit_from_bytes", 0)]
            weights = [1.0 if b >= 1 << 20 else 0.5 for b, _ in points]
            total += sum(w * abs(math.log(seconds_of(curve, b) / (us * 1e-6))) for w, (b, us) in zip(weights, points)) / sum(
                weights)
        total /= len(curves)
        return total + PULL * sum(abs(math.log(get(q, path) / p)) for p, (q, path, _, _) in zip(prior, free))

    best = loss()

    def attempt(parameters, path, value):
        nonlocal best
        old = get(parameters, path)
        put(parameters, path, value)
        reached = loss()
        if reached < best - 1e-7:
            best = reached
            return True
        put(parameters, path, old)
        return False

    for _ in range(2):  # over the whole range of each, which leaves poor valleys; then downhill
        for parameters, path, low, high in free:
            for k in range(SCAN + 1):
                attempt(parameters, path, low * (high / low) ** (k / SCAN))
        step = 0.3
        while step > 0.004:
            improved = False
            for parameters, path, low, high in free:
                for factor in (math.exp(step), math.exp(-step)):
                    if attempt(parameters, path, min(max(get(parameters, path) * factor, low), high)):
                        improved = True
                        break
            if not improved:
                step /= 2
    for parameters, path, _, _ in free:
        put(parameters, path, float("%.4g" % get(parameters, path)))


PULL = 5e-4
SCAN = 12


def fit_all(data, calibration, only):
    def seconds_of(curve, size):
        system = data["systems"][curve["system"]]
        return predict(curve, size, system, node_class(calibration["node_classes"], system)["parameters"],
                       network_class(calibration["network_classes"], system)["parameters"])

    by_name = {c["name"]: c for c in calibration["node_classes"] + calibration["network_classes"]}
    fitted = [c for c in data["curves"] if "not_fitted" not in c]
    for multi_node, classes, find in ((False, calibration["node_classes"], node_class),
                                      (True, calibration["network_classes"], network_class)):
        for cls in classes:
            curves = [c for c in fitted if (c["nodes"] > 1) == multi_node and
                      find(classes, data["systems"][c["system"]]) is cls]
            if not curves or not cls["fit"] or only and cls["name"] not in only:
                continue
            free = []
            for entry in cls["fit"]:  # "parameter", or "class: parameter" for one of another class
                owner, _, name = entry.rpartition(": ")
                parameters = (by_name[owner] if owner else cls)["parameters"]
                path = tuple(name.split("."))
                free.append((parameters, path) + bounds(name, get(parameters, path)))
            fit(free, curves, seconds_of)


def state_residuals(data, calibration):
    """Median relative error of each class: all points, and those of at least 1 MiB."""
    for multi_node, classes, find in ((False, calibration["node_classes"], node_class),
                                      (True, calibration["network_classes"], network_class)):
        for cls in classes:
            curves = [c for c in data["curves"] if (c["nodes"] > 1) == multi_node and "not_fitted" not in c and
                      find(classes, data["systems"][c["system"]]) is cls]
            every = [abs(e) for c in curves for e in errors(c, data, calibration)]
            large = [abs(e) for c in curves for e in errors(c, data, calibration, 1 << 20)]
            cls["residual"] = {
                "curves": len(curves),
                "points": len(every),
                "median_error": round(statistics.median(every), 4) if every else 0,
                "points_from_1_mib": len(large),
                "median_error_from_1_mib": round(statistics.median(large), 4) if large else 0,
            }


def print_table(data, calibration):
    print("%-46s %-26s %6s %5s  %9s %9s %9s" % ("curve", "system", "ranks", "nodes", "med all", "med>=1MiB", "largest"))
    totals = {False: [], True: []}
    for curve in data["curves"]:
        every = errors(curve, data, calibration)
        large = errors(curve, data, calibration, 1 << 20)
        mark = "" if "not_fitted" not in curve else "  (not fitted: %s)" % curve["not_fitted"]
        if not mark:
            totals[curve["nodes"] > 1] += [abs(e) for e in large]
        print("%-46s %-26s %6d %5d  %8.1f%% %9s %+8.1f%%%s" % (
            curve["id"], curve["system"], curve["ranks"], curve["nodes"], 100 * statistics.median(map(abs, every)),
            "%8.1f%%" % (100 * statistics.median(map(abs, large))) if large else "", 100 * every[-1], mark))
    for multi_node, name in ((False, "within a node"), (True, "across nodes")):
        values = sorted(totals[multi_node])
        print("%s, >= 1 MiB: median error %.1f%%, 90th percentile %.1f%% (%d points)" % (
            name, 100 * statistics.median(values), 100 * values[int(0.9 * len(values))], len(values)))


def dump(value, indent=0):
    """JSON, one key per line, flat objects and arrays on one."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and any(isinstance(v, (dict, list, str)) for v in value.values()):
        return "{\n%s\n%s}" % (",\n".join("%s%s: %s" % (pad, json.dumps(k), dump(v, indent + 1)) for k, v in value.items()),
                               " " * indent)
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[\n%s\n%s]" % (",\n".join(pad + dump(v, indent + 1) for v in value), " " * indent)
    return json.dumps(value)


def write(calibration):
    CALIBRATION.write_text(dump(calibration) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="print residuals, fit and write nothing")
    parser.add_argument("--only", action="append", metavar="CLASS", help="fit this class alone, and others named so")
    arguments = parser.parse_args()
    data = json.loads(CURVES.read_text())
    calibration = json.loads(CALIBRATION.read_text())
    if not arguments.check:
        for classes in (calibration["node_classes"], calibration["network_classes"]):
            for cls in classes:
                if not arguments.only:
                    cls["parameters"] = json.loads(json.dumps(cls["prior"]))
                elif cls["name"] in arguments.only:  # what another class frees of it stays
                    for path in (tuple(name.split(".")) for name in cls["fit"] if ": " not in name):
                        put(cls["parameters"], path, get(cls["prior"], path))
        fit_all(data, calibration, arguments.only)
        state_residuals(data, calibration)
        write(calibration)
    print_table(data, calibration)


if __name__ == "__main__":
    main()
