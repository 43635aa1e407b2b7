#!/usr/bin/env python3
"""Mean speed-ups of FSMoE's schedules over Tutel's on the layers of table 4 (arXiv 2501.10714), by Orrery's clock.

    strategies/fsmoe/grid.py ORRERY [--testbed a|b] [--sample N] [--engine des]

A layer is half of what three layers take more than one, without the optimizer's update. Each schedule has its best
degrees of 1, 2, 4 and 8, FSMoE's also its best partition of gradients: which part of a layer's is sent beside the next
layer's experts, the rest beside its attention, or all in buckets on a stream of their own. N: every N-th layer of the grid.
"""
import argparse
import csv
import io
import itertools
import json
import subprocess

DEGREES = (1, 2, 4, 8)
FP32_BYTES = 4
TESTBEDS = {
    "a": {"cluster": "fsmoe-testbed-a", "nodes": 6, "devices": 8, "lengths": (512, 1024, 2048)},
    "b": {"cluster": "fsmoe-testbed-b", "nodes": 8, "devices": 4, "lengths": (256, 512, 1024)},
}
# Parts of a layer's gradients that are sent beside experts; none: in buckets.
BUCKETS = (None,)
PIECES = (None, 0, 0.25, 0.5, 0.75, 1)
# Of each schedule: the plan's, whether gradients are reduced beside the backward, pairs of degrees, partitions.
ALIKE = [(r, r) for r in DEGREES]
ALL = list(itertools.product(DEGREES, DEGREES))
SCHEDULES = {
    "DeepSpeed-MoE": ("sequential", False, [(1, 1)], BUCKETS),
    "Tutel": ("tutel", False, ALIKE, BUCKETS),
    "Tutel-Improved": ("tutel", True, ALIKE, BUCKETS),
    "FSMoE-No-IIO, buckets": ("fsmoe_no_iio", True, ALL, BUCKETS),
    "FSMoE-No-IIO": ("fsmoe_no_iio", True, ALL, PIECES),
    "FSMoE, buckets": ("fsmoe", True, ALL, BUCKETS),
    "FSMoE": ("fsmoe", True, ALL, PIECES),
}


def layers(testbed):
    for b, heads, length, hidden, wide, factor, gated in itertools.product(
            (1, 2, 4), (8, 16, 32), testbed["lengths"], (1024, 2048, 4096), (2, 3, 4), (1.2, 2.4, 0), (False, True)):
        model = {"hidden": hidden, "heads": heads, "ffn": wide * hidden, "vocab": 512, "max_positions": length,
                 "experts": testbed["nodes"], "experts_per_token": 2}
        if gated:  # as Mixtral's
            model |= {"kv_heads": heads // 4, "activation": "swiglu", "norm": "rmsnorm", "positions": "rotary",
                      "linear_bias": False}
        yield model, b, length, factor


def scenarios(testbed, sample):
    """Each line's layer, schedule and degrees, and the line."""
    for at, (model, b, length, factor) in enumerate(layers(testbed)):
        if at % sample:
            continue
        # A layer's gradients of attention, all-reduced together: a bucket between one layer's and two.
        width = 2.5 if "kv_heads" in model else 4
        bucket = int(1.5 * width * model["hidden"] ** 2 / testbed["devices"] * FP32_BYTES)
        for name, (schedule, overlap, degrees, partitions) in SCHEDULES.items():
            for (forward, backward), piece in itertools.product(degrees, partitions):
                plan = {"precision": "fp32", "framework": "deepspeed", "flash_attention": False,
                        "tensor_parallel": testbed["devices"], "sequence_parallel": True,
                        "expert_parallel": testbed["nodes"], "expert_tensor_parallel": testbed["devices"],
                        "moe_expert_capacity_factor": factor, "micro_batch_size": b, "overlap_grad_reduce": overlap,
                        "bucket_bytes": bucket, "moe_schedule": schedule, "moe_pipeline_degree_forward": forward,
                        "moe_pipeline_degree_backward": backward}
                if piece is not None:
                    plan |= {"moe_gradient_share_experts": piece, "moe_gradient_share_dense": 1 - piece}
                for count in (1, 3):
                    yield (at, name, (forward, backward, piece)), {
                        "model": model | {"layers": count}, "cluster": testbed["cluster"],
                        "workload": {"sequence_length": length, "global_batch_size": b * testbed["nodes"]},
                        "plan": plan}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("orrery")
    parser.add_argument("--testbed", choices=TESTBEDS, action="append")
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--engine", choices=("analytical", "des"), default="analytical")
    arguments = parser.parse_args()
    for letter in arguments.testbed or TESTBEDS:
        asked = list(scenarios(TESTBEDS[letter], arguments.sample))
        result = subprocess.run(
            [arguments.orrery, "simulate", "--batch", "-", "--engine", arguments.engine, "--fields",
             "step_seconds,optimizer_seconds", "--csv", "-"],
            input="\n".join(json.dumps(line) for _, line in asked), capture_output=True, text=True, check=True)
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        assert len(rows) == len(asked), result.stderr
        seconds = [float(row["step_seconds"]) - float(row["optimizer_seconds"]) for row in rows]
        best = {}
        for i in range(0, len(asked), 2):
            layer, name, degrees = asked[i][0]
            time = ((seconds[i + 1] - seconds[i]) / 2, degrees)
            if (layer, name) not in best or time[0] < best[layer, name][0]:
                best[layer, name] = time
        grid = sorted({layer for layer, _ in best})
        print(f"testbed {letter.upper()}, {len(grid)} layers: mean speed-up over Tutel")
        for name in SCHEDULES:
            ratios = [best[layer, "Tutel"][0] / best[layer, name][0] for layer in grid]
            print(f"  {name:21} {sum(ratios) / len(ratios):.3f}  least {min(ratios):.2f}  most {max(ratios):.2f}")
        chosen = [best[layer, "FSMoE"][1] for layer in grid]
        differ = sum(forward != backward for forward, backward, _ in chosen)
        print(f"  FSMoE's degrees differ forward and backward for {differ} of {len(grid)} layers")
        partitions = {name: sum(piece == value for *_, piece in chosen) for name, value in
                      [("buckets", None)] + [(f"{value:g}", value) for value in PIECES[1:]]}
        print("  its parts beside experts: " + ", ".join(f"{name} {count}" for name, count in partitions.items()))


if __name__ == "__main__":
    main()
