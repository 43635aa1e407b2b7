#!/usr/bin/env python3
"""Holds both engines against a network that runs: MPI ranks in network namespaces behind shaped links.

    netlab.py run       [--cases TEXT]      measure the cases that are not yet in results/netlab/errors.json, print the table
    netlab.py run       --fresh             measure all of them again
    netlab.py table                         predictions again beside the measurements so far
    netlab.py calibrate                     measure the class "MPI over TCP" of results/calibration/collectives.json
    netlab.py exec      --hosts N -- COMMAND...     a command on N hosts, by mpirun
    netlab.py clean                         remove what a killed run left

Exit codes: 0, 1 for what failed, 77 where the lab cannot be built (says why). README.md beside this file.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True  # the folder is the repository

import cases  # noqa: E402
import lab  # noqa: E402
import predict  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results/netlab"
CLASSES = ROOT / "results/calibration/collectives.json"
SKIPPED = 77


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = re.search(r"model name\s*:\s*(.*)", text)
    mpi = subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, text=True).stdout.split("\n")[0]
    return {
        "date": datetime.date.today().isoformat(),
        "kernel": platform.release(),
        "cpu": f"{os.cpu_count()} x {found.group(1).strip() if found else platform.machine()}",
        "mpi": mpi.replace("mpirun (", "").replace(")", ""),
        "load_per_core": round(os.getloadavg()[0] / os.cpu_count(), 2),
    }


def setup():
    """How the lab is set, in one sentence; measurements under another setup are not kept."""
    return (f"MTU {lab.MTU}, buckets of {lab.BURST_FRAMES} frames, payload at most {lab.wire_efficiency():.4f} of a link's rate")


def read_results(path):
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    return {c["id"]: c for c in document["cases"]} if document["setup"] == setup() else {}


def write_rows(rows, arguments):
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = {"description": "Collectives and training steps over MPI between network namespaces, beside both engines.",
                "command": "realrun/netlab/netlab.py run", "setup": setup(), "cases": rows}
    (arguments.out / "errors.json").write_text(json.dumps(document, indent=1) + "\n")
    return document


def write_results(results, arguments):
    """Both files, with the predictions of now."""
    known = {c.id: c for c in cases.all_cases()}
    rows = []
    for id, row in results.items():
        if id not in known:
            continue
        row = dict(row)
        if row["measured_seconds"] is not None:
            row["predicted_seconds"] = known[id].predict(arguments.orrery, row)
            row["error"] = {e: s / row["measured_seconds"] - 1 for e, s in row["predicted_seconds"].items()}
        rows.append(row)
    order = {id: i for i, id in enumerate(known)}
    rows.sort(key=lambda r: order[r["id"]])
    (arguments.out / "errors.md").write_text(markdown(write_rows(rows, arguments)))


def percent(x):
    return f"{100 * x:+.1f} %"


def milliseconds(x):
    return f"{1e3 * x:.2f}" if x < 1 else f"{1e3 * x:.0f}"


def markdown(document):
    rows = document["cases"]
    done = [r for r in rows if "error" in r]
    machines = sorted({json.dumps({k: v for k, v in r["machine"].items() if k != "load_per_core"}) for r in rows})
    text = "# Predicted and measured: a network of namespaces\n\n"
    text += f"Written by `{document['command']}` (realrun/netlab/README.md). {document['setup']}.\n"
    for m in map(json.loads, machines):
        text += f"\n{m['date']}: Linux {m['kernel']}, {m['cpu']}, {m['mpi']}.\n"
    for kind in dict.fromkeys(r["table"] for r in done if r["table"] != "Links"):
        mine = [r for r in done if r["table"] == kind]
        for engine in predict.ENGINES:
            errors = sorted(abs(r["error"][engine]) for r in mine)
            text += (f"\n{kind}, {engine}: {sum(e <= 0.1 for e in errors)} of {len(errors)} within 10 %, median "
                     f"{100 * statistics.median(errors):.1f} %, largest {100 * errors[-1]:.1f} %.")
        text += "\n"
    for kind in dict.fromkeys(r["table"] for r in done):
        text += (f"\n## {kind}\n\n| case | hosts | topology | bytes | measured, ms | spread | analytical, ms | error | "
                 "discrete-event, ms | error |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|\n")
        for r in done:
            if r["table"] != kind:
                continue
            p, e = r["predicted_seconds"], r["error"]
            size = str(r["bytes"]) if r["bytes"] else ""
            text += (f"| {r['case']} | {r['hosts']} | {r['topology']} | {size} | {milliseconds(r['measured_seconds'])} | "
                     f"{100 * r['spread']:.1f} % | {milliseconds(p['analytical'])} | {percent(e['analytical'])} | "
                     f"{milliseconds(p['des'])} | {percent(e['des'])} |\n")
    text += ("\nMeasured: the median of the samples, each the slowest rank's time; spread: the largest over the smallest "
             "sample, minus 1.\n")
    failed = [r for r in rows if r["measured_seconds"] is None]
    if failed:
        text += "\n## Not measured\n\n" + "".join(f"- {r['id']}: {r['failure']}\n" for r in failed)
    return text


def measure(wanted, results, arguments):
    """Case by case, one lab for each topology; each result is written at once."""
    todo = [c for c in wanted if arguments.fresh or c.id not in results or results[c.id]["measured_seconds"] is None]
    failures = 0
    for topology in dict.fromkeys(c.topology for c in todo):
        with lab.Lab(topology) as network:
            lab.go_ahead()
            for case in (c for c in todo if c.topology == topology):
                row = {"id": case.id, "table": case.table, "case": case.name, "hosts": case.hosts_used, "topology": topology.name,
                       "bytes": case.bytes, "machine": machine(), "measured_seconds": None}
                try:
                    row.update(case.measure(network, arguments))
                    samples = row["samples"]
                    row["measured_seconds"] = statistics.median(samples)
                    row["spread"] = max(samples) / min(samples) - 1
                    print(f"{case.id}: {milliseconds(row['measured_seconds'])} ms", flush=True)
                except RuntimeError as error:
                    failures += 1
                    row["failure"] = str(error).splitlines()[0]
                    print(f"{case.id}: {error}", file=sys.stderr, flush=True)
                results[case.id] = row
                write_rows(list(results.values()), arguments)
    return failures


def command_run(arguments):
    wanted = [c for c in cases.all_cases() if arguments.cases in c.id]
    if not wanted:
        raise RuntimeError(f'no case has "{arguments.cases}" in its name; such as {cases.all_cases()[0].id}')
    results = read_results(arguments.out / "errors.json")
    failures = measure(wanted, results, arguments)
    write_results(results, arguments)
    print((arguments.out / "errors.md").read_text())
    return 1 if failures else 0


def command_table(arguments):
    write_results(read_results(arguments.out / "errors.json"), arguments)
    print((arguments.out / "errors.md").read_text())
    return 0


def set_classes(document, step_seconds, source):
    """The lab's classes. Rates are computed from headers, never fitted; there is one protocol, so the others never win."""
    share = round(lab.wire_efficiency(), 4)
    node, = (c for c in document["node_classes"] if c["name"] == "CPU ranks")
    network, = (c for c in document["network_classes"] if c["name"] == "MPI over TCP")
    node["source"] = network["source"] = source
    for numbers in (network["prior"], network["parameters"]):
        for name in ("ring_share", "tree_share", "all_to_all_share", "ll_share"):
            numbers[name] = share
        for name in ("ring_step_seconds", "tree_step_seconds"):
            numbers[name] = {protocol: step_seconds for protocol in numbers[name]}


def command_calibrate(arguments):
    """One number: what a message between two hosts takes beyond its bytes, sent both ways at once, one after another."""
    topology = cases.single_switch(2)
    extra = []
    with lab.Lab(topology) as network:
        lab.go_ahead()
        for size in (16384, 32768, 65536):
            found = cases.sweep(network, arguments.rank, range(2), "send_recv", size, samples=9, sample_seconds=0.5)
            ideal = size * 8 / topology.bits_per_second / lab.wire_efficiency()
            least = min(found)  # others on the machine only add
            extra.append(least - ideal)
            print(f"{size} bytes: {least * 1e6:.0f} us, of which the bytes {ideal * 1e6:.0f} us", flush=True)
    step = round(max(0.0, statistics.median(extra)), 7)
    m = machine()
    source = (f"realrun/netlab/netlab.py calibrate, {m['date']}: {m['mpi']} over TCP between network namespaces, "
              f"{topology.bits_per_second // 10**6} Mbit/s, Linux {m['kernel']}, {m['cpu']}; latency of a message measured, "
              "share computed from Ethernet, IP and TCP headers and acknowledgements")
    document = json.loads(CLASSES.read_text())
    set_classes(document, step, source)
    CLASSES.write_text(json.dumps(document, indent=1) + "\n")
    print(f"a message takes {step * 1e6:.1f} us beyond its bytes; written to {CLASSES.relative_to(ROOT)}: build again")
    return 0


def command_exec(arguments):
    topology = lab.Topology("exec", arguments.hosts, cases.HOST_BITS_PER_SECOND, arguments.hosts_per_leaf, arguments.oversubscription,
                            arguments.hosts_per_node)
    if topology.hosts_per_node < 1 or topology.hosts % topology.hosts_per_node:
        raise RuntimeError(f"--hosts-per-node: found {topology.hosts_per_node}, expected a divisor of {topology.hosts}, the hosts")
    if topology.hosts_per_leaf % topology.hosts_per_node:
        raise RuntimeError(f"--hosts-per-leaf: found {topology.hosts_per_leaf}, expected whole nodes of {topology.hosts_per_node} hosts")
    with lab.Lab(topology) as network:
        network.running = subprocess.Popen(network.mpirun_command(range(arguments.hosts), arguments.command))
        return network.running.wait()


def command_clean(_):
    gone = lab.clean()
    print("removed " + ", ".join(gone) if gone else "nothing was left")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/default", help="folder of orrery and orrery-rank")
    commands = parser.add_subparsers(dest="name", required=True)
    for name, function in (("run", command_run), ("table", command_table), ("calibrate", command_calibrate),
                           ("exec", command_exec), ("clean", command_clean)):
        command = commands.add_parser(name, help=function.__doc__)
        command.set_defaults(function=function)
        if name in ("run", "table"):
            command.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of errors.md and errors.json")
        if name == "run":
            command.add_argument("--cases", default="", help="those with this text in their name")
            command.add_argument("--fresh", action="store_true", help="measure again what is there")
        if name == "exec":
            command.add_argument("--hosts", type=int, required=True)
            command.add_argument("--hosts-per-leaf", type=int, default=0)
            command.add_argument("--oversubscription", type=int, default=1)
            command.add_argument("--hosts-per-node", type=int, default=1, help="so many reach each other over an unshaped link")
            command.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    arguments.orrery, arguments.rank = arguments.build / "orrery", arguments.build / "orrery-rank"
    try:
        return arguments.function(arguments)
    except lab.Unavailable as reason:
        print(f"netlab: skipped: {reason}")
        return SKIPPED
    except (RuntimeError, OSError) as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
