#!/usr/bin/env python3
"""Fits one kernel calibration per device type to measured kernels, and nothing else.

  realrun/calibrate/fit_published.py results/published/kernels.json results/calibration --date 2026-11-21

Reads points (id, source, device, op, dtype, shape, seconds; see the head of kernels.json), writes
<Device>.json for every device with enough points, and prints the residual table of results/calibration/README.md.
The formulas are those of sim/cost/kernel_cost.cpp; tests/cost/kernel_calibration_test.cpp recomputes the residuals
with the C++ side. Standard library only; deterministic.
"""
import argparse
import json
import math
import os
import statistics
import sys

# What the efficiencies are relative to: dense peaks (FLOP/s), memory rate (bytes/s), multiprocessors. Must equal the
# presets in sim/hardware/presets (a test compares them).
RELATIVE_TO = {
    "A100-SXM4-80GB": {"bf16": 312e12, "memory": 2039e9, "multiprocessors": 108},
    "A100-PCIe-80GB": {"bf16": 312e12, "memory": 1935e9, "multiprocessors": 108},
    "H100-SXM5-80GB": {"bf16": 989e12, "fp8": 1979e12, "memory": 3350e9, "multiprocessors": 132},
    "H200-SXM5-141GB": {"bf16": 989e12, "fp8": 1979e12, "memory": 4800e9, "multiprocessors": 132},
    "B200-SXM-180GB": {"bf16": 2250e12, "fp8": 4500e12, "nvfp4": 9000e12, "memory": 8000e9, "multiprocessors": 148},
    "B200-SXM-180GB-limited": {"bf16": 2250e12, "fp8": 4500e12, "memory": 8000e9, "multiprocessors": 148},
    "GB200": {"bf16": 2500e12, "fp8": 5000e12, "nvfp4": 10000e12, "memory": 8000e9, "multiprocessors": 152},
    "L40S": {"bf16": 362e12, "fp8": 733e12, "memory": 864e9, "multiprocessors": 142},
}

# Output tiles of the vendor libraries' kernels: what one multiprocessor computes in one wave. Of eleven sets tried
# on both A100s, H100 and B200 (with 128 x 128, 128 x 192, 256 x 256, ...) this short one has a geometric std within one
# percentage point of the best.
TILES = [[256, 128], [128, 256], [256, 64], [64, 256], [64, 64]]

# Points in the file that a fit leaves out, and why.
#  - best_of_search: the fastest shape of a long search, not a sample of shapes.
#  - L40S below its 96 MB of L2: the benchmark repeats a kernel, so that weights stay in the cache; a step's do not.
CACHE_BYTES = {"L40S": 96e6}


def usable(p):
    _, m, n, k = p["shape"]
    moved = BYTES[p["dtype"]] * (m * k + n * k) + 2 * m * n
    return not p.get("best_of_search") and moved > CACHE_BYTES.get(p["device"], 0)


# Not fitted here: kernels beside a collective, against the same kernels alone.
OVERLAP_SLOWDOWN = (0.189, "arXiv 2507.03114, abstract: mean slow-down of computation by overlapped communication, "
                    "18.9% (at the most 40%), over A100, H100, MI210 and MI250")

BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "nvfp4": 0.5 + 1 / 16, "fp32": 4}  # nvfp4: a code, and a scale of 16 elements
ATTENTION_QUERY_TILE = 128

# Kernel generation that training stacks ran by default on the device (README.md says why).
DEFAULT_ATTENTION = {
    "A100-SXM4-80GB": "flash_attention_2",
    "A100-PCIe-80GB": "flash_attention_2",
    "H100-SXM5-80GB": "cudnn",
    "B200-SXM-180GB": "cudnn",
}
# Curves whose points have only a forward pass, or only both passes together, take backward / forward efficiency from
# the curve (device, kernel) that has them apart.
BACKWARD_RATIO_FROM = {
    ("A100-SXM4-80GB", "flash_attention_1"): ("A100-PCIe-80GB", "flash_attention_2"),
    ("H100-SXM5-80GB", "flash_attention_1"): ("H100-SXM5-80GB", "flash_attention_2"),
    ("H100-SXM5-80GB", "cudnn"): ("H100-SXM5-80GB", "flash_attention_2"),
    ("H100-SXM5-80GB", "flash_attention_3"): ("H100-SXM5-80GB", "flash_attention_2"),
}
# The FlashAttention charts keep 16k tokens and 2048 hidden, so how many multiprocessors idle at the end is taken from
# points of the same device type that vary batch and heads. FlashAttention-2 on A100s has such points of its own.
LAST_WAVE_FROM = {
    ("A100-SXM4-80GB", "flash_attention_1"): ("A100-PCIe-80GB", "flash_attention_2"),
    ("H100-SXM5-80GB", "flash_attention_1"): ("H100-SXM5-80GB", "tensorrt_llm"),
    ("H100-SXM5-80GB", "flash_attention_2"): ("H100-SXM5-80GB", "tensorrt_llm"),
    ("H100-SXM5-80GB", "flash_attention_3"): ("H100-SXM5-80GB", "tensorrt_llm"),
    ("H100-SXM5-80GB", "cudnn"): ("H100-SXM5-80GB", "tensorrt_llm"),
}
# Kernels that were measured on one board of a die alone: on the other as much slower as the kernel named is there.
ATTENTION_LENT = {("A100-PCIe-80GB", "flash_attention_1"): ("A100-SXM4-80GB", "flash_attention_2")}
NOT_FOR_TRAINING = ("tensorrt_llm",)  # prefill kernels, fitted for the table above only
ATTENTION_CURVES = [  # in the order in which the tables above need them; of several boards fitted at once, as DIES
    (["A100-PCIe-80GB", "A100-SXM4-80GB"], "flash_attention_2"),
    (["A100-SXM4-80GB"], "flash_attention_1"),
    (["H100-SXM5-80GB"], "tensorrt_llm"),
    (["H100-SXM5-80GB"], "flash_attention_2"),
    (["H100-SXM5-80GB"], "flash_attention_1"),
    (["H100-SXM5-80GB"], "cudnn"),
    (["H100-SXM5-80GB"], "flash_attention_3"),
    (["B200-SXM-180GB"], "cudnn"),
]
# Boards of one die, the slower first: by the presets a later one is no slower in any rate, nor has it less power
# (tests/cost/device_order_test.cpp). What the die does is fitted to the points of all its boards at once, each board's
# counting alike, so that what tells two sweeps apart does not make the better board the slower one. A board's own are
# the rates of a multiprocessor, where its peak or its power is another's, and they are no lower than the board's before.
DIES = [
    ["A100-PCIe-80GB", "A100-SXM4-80GB"],
    ["H100-SXM5-80GB", "H200-SXM5-141GB"],
    ["B200-SXM-180GB-limited", "B200-SXM-180GB", "GB200"],
    ["L40S"],
]
SAME_RATES = {("H100-SXM5-80GB", "H200-SXM5-141GB")}  # in all but memory
# Grouped products: where a device type's own were measured, and on which boards of the same chip. `issue_seconds`, the
# host's time to launch a group's kernel, is what the smallest groups took there.
GROUPED_FROM = {
    ("A100-PCIe-80GB", "bf16"): "A100-PCIe-80GB",
    ("B200-SXM-180GB-limited", "bf16"): "B200-SXM-180GB-limited",
    ("H100-SXM5-80GB", "fp8"): "H800-SXM5-80GB",
}
GROUPED_ISSUE_FROM = "B200-SXM-180GB-limited"
# The others: the curve, relative to products, of the nearest generation measured with kernels of the same kind.
GROUPED_BORROWED = {
    "A100-SXM4-80GB": {"bf16": "A100-PCIe-80GB"},
    "H100-SXM5-80GB": {"bf16": "A100-PCIe-80GB"},
    "H200-SXM5-141GB": {"bf16": "A100-PCIe-80GB", "fp8": "H100-SXM5-80GB"},
    "L40S": {"bf16": "A100-PCIe-80GB"},
    "B200-SXM-180GB": {"bf16": "B200-SXM-180GB-limited"},
    "GB200": {"bf16": "B200-SXM-180GB-limited"},
}
# Devices whose attention points are only inference prefill kernels: the curve of another device, relative to the peak.
ATTENTION_BORROWED = {
    "H200-SXM5-141GB": "H100-SXM5-80GB",
    "GB200": "B200-SXM-180GB",
    "B200-SXM-180GB-limited": "B200-SXM-180GB",
    "L40S": "A100-SXM4-80GB",
}


def matmul_seconds(curve, device, shape, dtype, accumulate=False, out_bytes=None):
    """sim/cost/kernel_cost.cpp, KernelModel::matmul_seconds."""
    batch, m, n, k = shape
    sms = device["multiprocessors"]
    rate = device[dtype] * curve["efficiency"] / sms
    best = math.inf
    for tm, tn in curve["tiles"]:
        tiles = -(-m // tm) * -(-n // tn) * batch
        per_k = 2.0 * tm * tn * (1.0 + curve["operand_cost"] * (1.0 / tm + 1.0 / tn)) / rate
        best = min(best, -(-tiles // sms) * per_k * (k + curve["half_k"]))
        if 2 * tiles <= sms:  # split the inner dimension over the idle multiprocessors
            best = min(best, per_k * (k / (sms // tiles) + curve["half_k"] + curve["split_k"]))
    compute = best
    if 0 < curve["sustained_efficiency"] < curve["efficiency"]:
        compute *= 1.0 + (curve["efficiency"] / curve["sustained_efficiency"] - 1.0) * best / (
            best + curve["sustained_seconds"])
    width = BYTES[dtype]
    out = out_bytes or max(2, width)
    moved = batch * (width * (m * k + n * k) + out * m * n * (2 if accumulate else 1))
    memory = moved / (device["memory"] * curve["memory_efficiency"])
    return curve["fixed_seconds"] + max(compute, memory) + curve["overlap_loss"] * min(compute, memory)


def quantise_seconds(curve, device, shape):
    """What the fp8 and nvfp4 points contain beside the product: quantising the activations, a Program's own kernel."""
    if "point_quantise_seconds" not in curve:
        return 0.0
    _, m, _, k = shape
    return curve["point_quantise_seconds"] + curve["point_quantise_bytes"] * m * k / (
        device["memory"] * curve["memory_efficiency"])


def attention_seconds(curve, device, shape, dtype, causal, phase):
    """sim/cost/kernel_cost.cpp, KernelModel::attention_seconds."""
    if phase == "both":
        return sum(attention_seconds(curve, device, shape, dtype, causal, p) for p in ("forward", "backward"))
    batch, heads, _, sequence, head_dim, value_head_dim = shape
    keys = sequence / 2 if causal else sequence  # that a query attends to on average
    per_pair = 2 * (head_dim + value_head_dim) if phase == "forward" else 2 * (3 * head_dim + 2 * value_head_dim)
    rate = device[dtype] * curve[phase + "_efficiency"] * head_dim / (head_dim + curve["half_head_dim"])
    pairs = batch * heads * sequence * (keys + curve["half_sequence"])
    last_wave = curve[phase + "_last_wave"] * device["multiprocessors"] * ATTENTION_QUERY_TILE * sequence
    # No point is near the memory bound, which sim/cost takes the maximum with.
    return curve["fixed_seconds"] + per_pair * (pairs + last_wave) / rate


def nelder_mead(function, start, steps, iterations):
    """Minimises; the usual coefficients (Nelder & Mead 1965), restarted from its result until that gains nothing."""
    least = math.inf
    for _ in range(6):
        n = len(start)
        simplex = [list(start)] + [[v + (steps[i] if i == j else 0) for i, v in enumerate(start)] for j in range(n)]
        values = [function(p) for p in simplex]
        for _ in range(iterations):
            order = sorted(range(n + 1), key=values.__getitem__)
            simplex, values = [simplex[i] for i in order], [values[i] for i in order]
            if values[-1] - values[0] < 1e-9:
                break
            centre = [sum(p[i] for p in simplex[:-1]) / n for i in range(n)]
            worst = simplex[-1]

            def along(t):
                return [c + t * (w - c) for c, w in zip(centre, worst)]

            reflected = along(-1)
            value = function(reflected)
            if value < values[0]:
                expanded = along(-2)
                expanded_value = function(expanded)
                if expanded_value < value:
                    reflected, value = expanded, expanded_value
            elif value >= values[-2]:
                reflected = along(0.5 if value >= values[-1] else -0.5)
                value = function(reflected)
                if value >= values[-1]:
                    for i in range(1, n + 1):
                        simplex[i] = [(a + b) / 2 for a, b in zip(simplex[0], simplex[i])]
                        values[i] = function(simplex[i])
                    continue
            simplex[-1], values[-1] = reflected, value
        value, start = min(zip(values, simplex))
        if value > least * (1 - 1e-4):
            break
        least = value
    return start


def loss(logs):
    """Huber in log space: one odd shape must not bend a curve."""
    width = 0.1
    return sum(e * e if abs(e) < width else width * (2 * abs(e) - width) for e in logs) / len(logs)


def fit(parameters, predict, points_of, fixed, iterations=400):
    """parameters: {name: (start, least, most)}; the search runs over logarithms. points_of: lists that count alike."""
    names = list(parameters)

    def curve_at(vector):
        curve = dict(fixed)
        for name, x in zip(names, vector):
            _, least, most = parameters[name]
            curve[name] = min(max(math.exp(x), least), most)
        return curve

    def objective(vector):
        curve = curve_at(vector)
        penalty = sum(max(0, abs(x - math.log(parameters[n][0])) - 4) for n, x in zip(names, vector))
        losses = [loss([math.log(predict(curve, p) / p["seconds"]) for p in points]) for points in points_of]
        return sum(losses) / len(losses) + 1e-3 * penalty

    start = [math.log(parameters[n][0]) for n in names]
    best = nelder_mead(objective, start, [0.3] * len(names), iterations)
    curve = curve_at(best)
    return {key: float("%.4g" % v) if isinstance(v, float) else v for key, v in curve.items()}


def residual_of(predict, curve, points):
    logs = [math.log(predict(curve, p) / p["seconds"]) for p in points]
    errors = sorted(abs(math.exp(e) - 1) for e in logs)
    return {
        "points": len(points),
        "median": round(statistics.median(errors), 4),
        "percentile_90": round(errors[9 * len(errors) // 10], 4),
        "geometric_std": round(math.exp(math.sqrt(sum(e * e for e in logs) / len(logs))) - 1, 4),
        "bias": round(math.exp(sum(logs) / len(logs)) - 1, 4),
    }


def point_seconds(curve, device, p):
    return matmul_seconds(curve, device, p["shape"], p["dtype"], p.get("accumulate", False),
                          {"fp32": 4, "bf16": 2}.get(p.get("out"))) + quantise_seconds(curve, device, p["shape"])


def rate_of_multiprocessor(board, dtype):
    return RELATIVE_TO[board][dtype] / RELATIVE_TO[board]["multiprocessors"]


def gains(boards, names):
    """Parameters: by how much the boards' rates, by `names`, exceed those of the board before."""
    return {"%s gain of %s" % (name, board): (1.02, 1.0, 4.0) for before, board in zip(boards, boards[1:])
            if (before, board) not in SAME_RATES for name in names}


def board_curve(curve, boards, board, dtype, names):
    """The die's curve as the board has it; the die's own efficiencies, by `names`, are the first board's."""
    own = {key: value for key, value in curve.items() if " gain of " not in key}
    for name in names:
        rate = curve[name] * rate_of_multiprocessor(boards[0], dtype)
        for before in boards[1:boards.index(board) + 1]:
            rate *= curve.get("%s gain of %s" % (name, before), 1)
        own[name] = min(1.0, rate / rate_of_multiprocessor(board, dtype))
    return own


MATMUL_RATES = ("efficiency", "sustained_efficiency")


def fit_matmul(boards, dtype, points_of, bf16):
    """Of the boards of one die: {board: its curve}, {board: residual of its large products}."""
    def predict(curve, p):
        return point_seconds(board_curve(curve, boards, p["device"], dtype, MATMUL_RATES), RELATIVE_TO[p["device"]], p)

    parameters = {
        "efficiency": (0.85, 0.05, 1.0),
        "half_k": (100.0, 1.0, 2000.0),
        "operand_cost": (10.0, 0.5, 200.0),
        "split_k": (400.0, 10.0, 8000.0),
        "sustained_efficiency": (0.75, 0.05, 1.0),
        "sustained_seconds": (1e-3, 1e-5, 1e-1),
        "memory_efficiency": (0.8, 0.1, 1.0),
        "overlap_loss": (0.1, 1e-3, 1.0),
        "fixed_seconds": (4e-6, 1e-7, 5e-5),
    }
    parameters.update(gains(boards, MATMUL_RATES))
    fixed = {"tiles": TILES}
    if dtype in ("fp8", "nvfp4"):
        # One product's fixed time does not depend on the type; what is left over is the quantising kernels'.
        del parameters["fixed_seconds"]
        fixed["fixed_seconds"] = bf16["fixed_seconds"]
        parameters["point_quantise_seconds"] = (8e-6, 1e-7, 5e-5)
        parameters["point_quantise_bytes"] = (3.0, 0.1, 12.0)
    die = fit(parameters, predict, [points_of[board] for board in boards], fixed, iterations=2500)
    curves, large = {}, {}
    for board in boards:
        curve = curves[board] = board_curve(die, boards, board, dtype, MATMUL_RATES)
        for name in MATMUL_RATES:
            curve[name] = float("%.4g" % curve[name])
        if curve["sustained_efficiency"] >= curve["efficiency"]:
            curve["sustained_efficiency"] = curve["sustained_seconds"] = 0  # no slow-down seen

        def of_board(curve, p):
            return point_seconds(curve, RELATIVE_TO[p["device"]], p)

        curve["residual"] = residual_of(of_board, curve, points_of[board])
        large[board] = residual_of(of_board, curve,
                                   [p for p in points_of[board] if 2.0 * math.prod(p["shape"]) >= 2e10])
    return curves, large


def lend_matmul(lender, lender_bf16, bf16, name):
    """A type's curve for a board of the die that it was not measured on: limited in power as bf16 products are."""
    curve = {key: value for key, value in lender.items() if key != "residual" and not key.startswith("point_")}

    def sustained(of):
        return of["sustained_efficiency"] or of["efficiency"]

    for rate, share in (("efficiency", bf16["efficiency"] / lender_bf16["efficiency"]),
                        ("sustained_efficiency", sustained(bf16) / sustained(lender_bf16))):
        curve[rate] = float("%.4g" % ((curve[rate] or curve["efficiency"]) * min(1.0, share)))
    curve["sustained_seconds"] = curve["sustained_seconds"] or bf16["sustained_seconds"]
    return dict(curve, borrowed_from=name)


def grouped_shape(p):
    """[groups, m, n, k] of the product itself, of the layer's [groups, rows, outputs, inputs]."""
    groups, rows, outputs, inputs = p["shape"]
    return {"fwd": [groups, rows, outputs, inputs], "bwd_grad_act": [groups, rows, inputs, outputs],
            "bwd_grad_w": [groups, outputs, inputs, rows]}[p.get("stage", "fwd")]


def grouped_seconds(curve, product, device, p):
    """sim/cost/kernel_cost.cpp, KernelModel::grouped_seconds, no faster than the host of the measurement launched."""
    shape, dtype = grouped_shape(p), p["dtype"]
    groups, m, n, k = shape
    weight = p.get("stage") == "bwd_grad_w"
    out = {"fp32": 4, "bf16": 2}[p["main_grad"]] if weight else 2
    bare = dict(product, fixed_seconds=0, overlap_loss=0, memory_efficiency=math.inf)
    compute = matmul_seconds(bare, device, shape, dtype) / curve["relative"]
    moved = groups * (BYTES[dtype] * (m * k + n * k) + out * m * n * (2 if p.get("accumulate") else 1))
    memory = moved / (device["memory"] * product["memory_efficiency"])
    seconds = (product["fixed_seconds"] + (groups - 1) * curve["group_seconds"] + max(compute, memory) +
               product["overlap_loss"] * min(compute, memory))
    return max(seconds, groups * curve.get("issue_seconds", 0))


def fit_grouped(product, device, points, each_launched):
    def predict(curve, p):
        return grouped_seconds(curve, product, device, p)

    parameters = {"relative": (0.9, 0.2, 1.0), "group_seconds": (2e-6, 1e-9, 5e-5)}
    if each_launched:
        parameters["issue_seconds"] = (8e-6, 1e-7, 5e-5)
    curve = fit(parameters, predict, [points], {}, iterations=1500)
    curve["residual"] = residual_of(predict, curve, points)
    return curve


ATTENTION_RATES = ("forward_efficiency", "backward_efficiency")


def fit_attention(boards, points_of, ratio, last_wave):
    """{board: its curve}. `ratio` of backward to forward efficiency, `last_wave`: those of another curve, or None."""
    def complete(curve, board):
        if "backward_ratio" in curve:
            curve = dict(curve, backward_efficiency=curve["forward_efficiency"] * curve["backward_ratio"])
        # The last backward tile does 2.5 times the forward tile's work: it cannot take less time.
        least = curve["forward_last_wave"] * curve["backward_efficiency"] / curve["forward_efficiency"] / 2.5
        curve = dict(curve, backward_last_wave=max(curve["backward_last_wave"], least))
        return board_curve(curve, boards, board, "bf16", ATTENTION_RATES)

    def predict(curve, p):
        return attention_seconds(complete(curve, p["device"]), RELATIVE_TO[p["device"]], p["shape"], "bf16",
                                 p["causal"], p["phase"])

    parameters = {
        "forward_efficiency": (0.6, 0.05, 1.0),
        "half_sequence": (200.0, 1.0, 2000.0),
        "half_head_dim": (20.0, 0.1, 300.0),
        "forward_last_wave": (0.5, 1e-3, 2.5),
        "fixed_seconds": (4e-6, 1e-7, 1e-5),
    }
    parameters.update(gains(boards, ATTENTION_RATES))
    fixed = {}
    if last_wave is not None:
        del parameters["forward_last_wave"]
        fixed["forward_last_wave"], fixed["backward_last_wave"] = last_wave
    else:
        parameters["backward_last_wave"] = (0.3, 1e-3, 2.5)
    if ratio is None:
        parameters["backward_efficiency"] = (0.5, 0.05, 1.0)
    else:
        fixed["backward_ratio"] = ratio
    die = fit(parameters, predict, [points_of[board] for board in boards], fixed, iterations=1500)
    curves = {}
    for board in boards:
        curve = curves[board] = complete(die, board)
        curve.pop("backward_ratio", None)
        for name in ATTENTION_RATES + ("backward_last_wave",):
            curve[name] = float("%.4g" % curve[name])

        def of_board(curve, p):
            return attention_seconds(curve, RELATIVE_TO[p["device"]], p["shape"], "bf16", p["causal"], p["phase"])

        curve["residual"] = residual_of(of_board, curve, points_of[board])
    return curves


def fit_memory(boards, points_of):
    """Of all boards of a die, {board: its curve}: streaming weights through a matrix-vector product,
    seconds = fixed + bytes / (rate * efficiency)."""
    def moved(p):
        _, m, n, k = p["shape"]
        return 2.0 * (m * k + n * k + m * n)

    def predict(curve, p):
        return curve["fixed_seconds"] + moved(p) / (RELATIVE_TO[p["device"]]["memory"] * curve["efficiency"])

    curve = fit({"efficiency": (0.85, 0.1, 1.0), "fixed_seconds": (4e-6, 1e-7, 5e-5)}, predict,
                [points_of[board] for board in boards], {})
    return {board: dict(curve, residual=residual_of(predict, curve, points_of[board])) for board in boards}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", help="JSON file of measured kernels")
    parser.add_argument("output", help="folder for <Device>.json")
    parser.add_argument("--date", required=True, help="of the fit, YYYY-MM-DD")
    arguments = parser.parse_args()
    with open(arguments.points, encoding="utf-8") as file:
        document = json.load(file)
    points, sources = document["points"], document["sources"]

    rows = []
    attention, ratios, waves = {}, {}, {}
    for boards, kernel in ATTENTION_CURVES:
        key = (boards[0], kernel)
        chosen = {board: [p for p in points if p["device"] == board and p.get("kernel") == kernel] for board in boards}
        ratio_from, wave_from = BACKWARD_RATIO_FROM.get(key), LAST_WAVE_FROM.get(key)
        if kernel in NOT_FOR_TRAINING:
            curves = fit_attention(boards, chosen, 1.0, None)
            # Forward only: backward keeps the proportion seen where both were measured.
            forward, backward = waves["A100-PCIe-80GB", "flash_attention_2"]
            for curve in curves.values():
                curve["backward_last_wave"] = curve["forward_last_wave"] * backward / forward
        else:
            curves = fit_attention(boards, chosen, ratios[ratio_from] if ratio_from else None,
                                   waves[wave_from] if wave_from else None)
            for board, curve in curves.items():
                attention.setdefault(board, {})[kernel] = curve
        for board, curve in curves.items():
            ratios[board, kernel] = curve["backward_efficiency"] / curve["forward_efficiency"]
            waves[board, kernel] = (curve["forward_last_wave"], float("%.4g" % curve["backward_last_wave"]))
            curve["source"] = "; ".join(sorted({sources[p["source"]] for p in chosen[board]}))
            borrowed = ["%s of %s, %s" % (what, from_key[0], from_key[1]) for what, from_key in
                        (("backward / forward efficiency", ratio_from), ("last_wave", wave_from)) if from_key]
            if borrowed:
                curve["note"] = "; ".join(borrowed)
            rows.append((board, "attention " + kernel, curve["residual"]))

    for (board, kernel), (lender, known) in ATTENTION_LENT.items():
        curve = {key: value for key, value in attention[lender][kernel].items() if key not in ("residual", "note")}
        for rate in ATTENTION_RATES:
            curve[rate] = float("%.4g" % (curve[rate] * attention[board][known][rate] / attention[lender][known][rate]))
        curve["note"] = "of %s, slower by what %s is slower by" % (lender, known)
        attention[board][kernel] = curve

    grouped, issue, group_shapes = {}, None, {}

    def fit_groups(device_name, matmul):
        nonlocal issue
        for (name, dtype), measured_on in GROUPED_FROM.items():
            if name != device_name:
                continue
            chosen = [p for p in points if p["device"] == measured_on and p["op"] == "grouped_matmul" and
                      p["dtype"] == dtype and "multiprocessors" not in p]
            curve = fit_grouped(matmul[dtype], RELATIVE_TO[device_name], chosen, measured_on == GROUPED_ISSUE_FROM)
            curve["source"] = "; ".join(sorted({sources[p["source"]] for p in chosen}))
            if "issue_seconds" in curve:
                issue = {"seconds": curve.pop("issue_seconds"), "source": curve["source"]}
            grouped.setdefault(device_name, {})[dtype] = curve
            group_shapes.setdefault(device_name, {})[dtype] = sorted({tuple(grouped_shape(p)[1:]) for p in chosen})
            rows.append((device_name, "grouped " + dtype, curve["residual"]))

    def measured(board, dtype):
        return [p for p in points if p["device"] == board and p["op"] == "matmul" and p["dtype"] == dtype and usable(p)]

    def vectors(board):
        return [p for p in points if p["device"] == board and p["dtype"] == "bf16" and p["op"] in ("matmul", "gemv") and
                p["shape"][1] == 1 and usable(p)]

    matmuls, memories, larges = {}, {}, {}
    for die in DIES:
        for dtype in ("bf16", "fp8", "nvfp4"):
            chosen = {board: measured(board, dtype) for board in die}
            boards = [board for board in die if len(chosen[board]) >= 30]
            if not boards:
                continue
            curves, larges[die[0], dtype] = fit_matmul(boards, dtype, chosen, matmuls.get(die[0], {}).get("bf16"))
            for board in die:
                of_board = matmuls.setdefault(board, {})
                of_board[dtype] = curves.get(board) or lend_matmul(
                    curves[boards[0]], matmuls[boards[0]]["bf16"], of_board["bf16"], boards[0])
                print(board, dtype, {k: v for k, v in of_board[dtype].items() if k != "tiles"}, file=sys.stderr)
        memories.update(fit_memory([board for board in die if len(vectors(board)) >= 5],
                                   {board: vectors(board) for board in die}))

    results = []
    for device_name in RELATIVE_TO:
        own = [p for p in points if p["device"] == device_name]
        die = next(die for die in DIES if device_name in die)
        matmul, shapes = matmuls[device_name], {}
        for dtype, curve in matmul.items():
            if "residual" not in curve:
                continue
            shapes[dtype] = sorted({tuple(p["shape"][1:]) for p in measured(device_name, dtype)})
            rows.append((device_name, "matmul " + dtype, curve["residual"]))
            rows.append((device_name, "matmul %s, from 20 GFLOP" % dtype, larges[die[0], dtype][device_name]))
        others = [board for board in die if board != device_name]
        method = "Huber fit in log space, realrun/calibrate/fit_published.py results/published/kernels.json"
        if others:
            method += ", together with the points of the same die's " + ", ".join(others)
        result = {
            "name": device_name,
            "date": arguments.date,
            "source": "; ".join(sorted({sources[p["source"]] for p in own if p["op"] in ("matmul", "gemv")
                                        and not p.get("best_of_search")})),
            "method": method,
            "relative_to": RELATIVE_TO[device_name],
            "matmul": matmul,
        }
        fit_groups(device_name, matmul)
        result["grouped"] = {dtype: {"borrowed_from": lender}
                             for dtype, lender in GROUPED_BORROWED.get(device_name, {}).items()}
        result["grouped"].update(grouped.get(device_name, {}))
        if device_name in memories:
            result["memory"] = memories[device_name]
            rows.append((device_name, "memory-bound", result["memory"]["residual"]))
        else:
            result["memory"] = {"borrowed_from": next(board for board in die if board in memories)}
        if device_name in attention:
            result["attention"] = {"default": DEFAULT_ATTENTION[device_name], "kernels": attention[device_name]}
        else:
            result["attention"] = {"borrowed_from": ATTENTION_BORROWED[device_name]}
        result["overlap_slowdown"], result["overlap_source"] = OVERLAP_SLOWDOWN
        result["measured_shapes"] = shapes
        result["measured_attention"] = sorted({(p["shape"][3], p["shape"][4]) for p in own if p["op"] == "attention"})
        if device_name in group_shapes:
            result["measured_groups"] = group_shapes[device_name]
        results.append(result)

    for result in results:
        result["grouped"]["issue"] = issue
        path = os.path.join(arguments.output, result["name"] + ".json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(render(result) + "\n")

    print("| device | curve | points | median | 90th percentile | geometric std | bias |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for device_name, what, r in rows:
        print("| %s | %s | %d | %.1f%% | %.1f%% | %.1f%% | %+.1f%% |" % (
            device_name, what, r["points"], 100 * r["median"], 100 * r["percentile_90"], 100 * r["geometric_std"],
            100 * r["bias"]))


def render(value, indent=0):
    """JSON with objects of plain numbers and arrays on one line: short, and readable in a diff."""
    pad = "\n" + "  " * (indent + 1)
    if isinstance(value, dict):
        if all(isinstance(v, (int, float)) for v in value.values()):
            return json.dumps(value)
        inside = ("," + pad).join("%s: %s" % (json.dumps(k), render(v, indent + 1)) for k, v in value.items())
        return "{" + pad + inside + "\n" + "  " * indent + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(json.dumps(v, separators=(",", ":")) for v in value) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    main()
