"""What both engines say of a case: the orrery command's word, on a cluster written as JSON."""

import contextlib
import json
import pathlib
import subprocess
import tempfile

import lab

FABRIC = "netlab-mpi-tcp"  # a network class of results/calibration/collectives.json has this word
ENGINES = ("analytical", "des")
# Of a host, where computing matters: to begin with (device_as_fast).
FLOPS_PER_SECOND = 1e10


def cluster_of(topology):
    """One device a host; hosts that nothing shapes between are a node, whose NICs are their links. The rate is that of the
    link; what TCP leaves of it is in the class."""
    fabric = {"name": FABRIC, "source": "realrun/netlab", "kind": "single_switch", "latency_seconds": 0, "hop_latency_seconds": 0}
    if topology.hosts_per_leaf:
        fabric.update(kind="fat_tree", nodes_per_leaf=topology.hosts_per_leaf // topology.hosts_per_node,
                      oversubscription=topology.oversubscription)
    return {
        "device": {"name": "netlab host", "vendor": "none", "architecture": "CPU", "source": "realrun/netlab",
                   "fp32_flops_per_second": FLOPS_PER_SECOND, "vector_flops_per_second": FLOPS_PER_SECOND,
                   "memory_bytes_per_second": FLOPS_PER_SECOND, "memory_bytes": 4e9, "multiprocessors": 1,
                   "pcie_bytes_per_second": 1e12},
        "node": {"name": "netlab host", "source": "realrun/netlab", "devices": topology.hosts_per_node,
                 "intra_fabric": "pcie", "nics": topology.hosts_per_node,
                 "nic_bytes_per_second": topology.bits_per_second / 8},
        "nodes": topology.hosts // topology.hosts_per_node,
        "fabric": fabric,
    }


def orrery(command, *arguments):
    done = subprocess.run([command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"orrery {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


@contextlib.contextmanager
def json_file(document):
    """A document under a name, for as long as a command reads it."""
    with tempfile.TemporaryDirectory(prefix="orrery-netlab-") as folder:
        path = pathlib.Path(folder) / "document.json"
        path.write_text(json.dumps(document))
        yield path


def rows_option(rows):
    return ("--rows", ",".join(map(str, rows))) if rows else ()


def collective(command, topology, kind, size, groups, algorithm, rows=()):
    """Seconds by engine. One up-link of the whole rate is what sprayed routing makes of several."""
    with json_file(cluster_of(topology)) as cluster:
        found = orrery(command, "collective", kind, "--cluster", cluster, "-b", size, "-e", size, "--groups", groups,
                       "--algorithm", algorithm, "--engine", "both", "--routing", "sprayed", *rows_option(rows), "--json", "-")
    return {engine: found["points"][0][engine]["seconds"] for engine in ENGINES}


def step(command, scenario, engine):
    """The report of one engine."""
    routing = ("--routing", "sprayed") if engine == "des" else ()
    with json_file(scenario) as path:
        return orrery(command, "simulate", path, "--engine", engine, *routing, "--json", "-")


def step_seconds(command, scenario):
    """Seconds by engine."""
    return {engine: step(command, scenario, engine)["step_seconds"] for engine in ENGINES}


def device_as_fast(command, scenario, seconds):
    """The scenario with a device whose one-rank step takes as long as it was measured to: all its rates by one factor."""
    alone = json.loads(json.dumps(scenario))
    alone["cluster"]["nodes"] = 1
    alone["plan"] = {k: v for k, v in scenario["plan"].items() if k in ("precision", "framework", "micro_batch_size", "optimizer")}
    rates = [k for k in scenario["cluster"]["device"] if k in ("fp32_flops_per_second", "vector_flops_per_second", "memory_bytes_per_second")]
    for _ in range(20):  # what does not scale with the rates makes this take more than one turn
        factor = step(command, alone, "analytical")["step_seconds"] / seconds
        for document in (alone, scenario):
            for rate in rates:
                document["cluster"]["device"][rate] *= factor
        if abs(factor - 1) < 1e-3:
            return scenario
    raise RuntimeError(f"no device takes {seconds} s for the step of one rank")
