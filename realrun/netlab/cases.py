"""What is measured and predicted: collectives on every topology, groups that contend, training steps."""

import functools
import json
import statistics
from dataclasses import dataclass

import lab
import predict

# Slow enough that the links, not a core or two for all hosts together, set the time.
HOST_BITS_PER_SECOND = 50_000_000

KIB, MIB = 1 << 10, 1 << 20
# (samples, seconds of a sample) by how long one takes.
SAMPLES, SAMPLE_SECONDS = 5, 0.25
LARGE, LARGE_SAMPLES = 4 * MIB, 2


def single_switch(hosts):
    return lab.Topology("one switch", hosts, HOST_BITS_PER_SECOND)


def nodes_of(devices):
    """Two of them, each device with a link of its own to one switch."""
    return lab.Topology(f"2 nodes of {devices}", 2 * devices, HOST_BITS_PER_SECOND, hosts_per_node=devices)


def two_leaves(hosts, oversubscription):
    return lab.Topology(f"2 leaves, {oversubscription}:1", hosts, HOST_BITS_PER_SECOND, hosts // 2, oversubscription)


def sweep(network, rank, hosts, kind, size, groups=1, algorithm="automatic", rows=(), samples=SAMPLES,
          sample_seconds=SAMPLE_SECONDS):
    nodes = ("--ranks-per-node", network.topology.hosts_per_node) if algorithm == "hierarchical" else ()
    found = json.loads(network.mpirun(hosts, [
        rank, "collective", kind, "-b", size, "-e", size, "--groups", groups, "--algorithm", algorithm, "--samples", samples,
        "--sample-seconds", sample_seconds, *nodes, *predict.rows_option(rows)]))
    return found["points"][0]["seconds"]


@dataclass(frozen=True)
class Collective:
    """An all-to-all may have parts that differ, as of tokens to experts that are not equally popular. Then `bytes` is what a
    host sends on average, itself included; `rows`, host by host, what each sends each other one over what equal parts are;
    and `loads` says in words which get more."""

    topology: lab.Topology
    kind: str
    bytes: int
    groups: int = 1
    algorithm: str = "ring"
    rows: tuple = ()
    loads: str = ""

    @property
    def table(self):
        return "Unequal exchanges" if self.rows else "Collectives" if self.groups == 1 else "Groups at once"

    @property
    def name(self):
        text = self.kind if self.algorithm in ("ring", "direct") else f"{self.kind}, {self.algorithm}"
        if self.kind == "send_recv":
            text = f"to the next rank, {'over all links of a node' if self.algorithm == 'hierarchical' else 'over its own link'}"
        if self.rows:
            text += f", {self.loads}"
        return text if self.groups == 1 else f"{text}, {self.groups} groups of {self.topology.hosts // self.groups}"

    @property
    def hosts_used(self):
        return self.topology.hosts

    @property
    def id(self):
        return f"{self.name}, {self.hosts_used} hosts, {self.topology.name}, {self.bytes} bytes"

    def measure(self, network, arguments):
        samples = sweep(network, arguments.rank, range(self.topology.hosts), self.kind, self.bytes, self.groups, self.algorithm,
                        self.rows, LARGE_SAMPLES if self.bytes >= LARGE else SAMPLES)
        return {"rows": self.rows, "samples": samples} if self.rows else {"samples": samples}

    def predict(self, orrery, _):
        return predict.collective(orrery, self.topology, self.kind, self.bytes, self.groups, self.algorithm, self.rows)


@dataclass(frozen=True)
class Link:
    """A message there and back between two hosts, nobody else sending: half of the time. Acknowledgements have the other
    direction for themselves."""

    topology: lab.Topology
    name: str
    pair: tuple
    bytes: int

    table = "Links"
    hosts_used = 2

    @property
    def id(self):
        return f"ping-pong, {self.name}, {self.topology.name}, {self.bytes} bytes"

    def measure(self, network, arguments):
        return {"samples": sweep(network, arguments.rank, self.pair, "ping_pong", self.bytes)}

    def predict(self, orrery, _):
        # No link on the way is narrower than a host's.
        return predict.collective(orrery, single_switch(2), "send_recv", self.bytes, 1, "direct")


def hot_host(hosts, share):
    """Every host sends `share` of its bytes to the first."""
    return tuple(hosts * (share if to == 0 else (1 - share) / (hosts - 1)) for _ in range(hosts) for to in range(hosts))


def zipf(hosts):
    """Host number k is wanted as the k-th of Zipf's law with exponent 1."""
    total = sum(1 / (to + 1) for to in range(hosts))
    return tuple(round(hosts / (to + 1) / total, 6) for _ in range(hosts) for to in range(hosts))


def one_sender(hosts):
    """The first host has all tokens, and sends every host as many."""
    return tuple(float(hosts) if sender == 0 else 0.0 for sender in range(hosts) for _ in range(hosts))


# A GPT of half a million parameters: two megabytes of gradients take some 0.4 s, its computing some hundredths.
MODEL = {"layers": 4, "hidden": 96, "heads": 4, "vocab": 512, "max_positions": 64, "dropout": 0}
STEPS, WARMUP = 8, 1
# Positions of a sequence that ranks share: what attention moves is then more than the gradients.
LONG = 2048


@dataclass(frozen=True)
class Training:
    topology: lab.Topology
    name: str
    sequences: int
    plan: tuple  # of (field, value)
    tokens: int = MODEL["max_positions"]
    steps: int = STEPS  # half of them give the step time
    warmup: int = WARMUP

    table = "Training steps"
    bytes = 0

    @property
    def hosts_used(self):
        return self.topology.hosts

    @property
    def id(self):
        return f"step, {self.name}, {self.hosts_used} hosts, {self.topology.name}"

    def scenario(self):
        # A CPU does one thing after the other, so nothing overlaps but what a stage has sent: the kernel has it.
        plan = {"precision": "fp32", "framework": "orrery", "micro_batch_size": 1, "overlap_grad_reduce": False,
                "overlap_param_gather": False, "overlap_p2p_communication": True, **dict(self.plan)}
        return {"model": {**MODEL, "max_positions": self.tokens}, "cluster": predict.cluster_of(self.topology),
                "workload": {"sequence_length": self.tokens, "global_batch_size": self.sequences}, "plan": plan}

    def measure(self, network, arguments):
        """The steps; and, as the one thing about computing that the engines are told, how long all hosts take for the
        scenario of one rank, each by itself, at the same time."""
        with predict.json_file(self.scenario()) as path:
            def run(steps, warmup, *options):
                return json.loads(network.mpirun(range(self.topology.hosts), [
                    arguments.rank, "run", path, "--steps", steps, "--warmup", warmup, *options]))
            alone = run(STEPS, WARMUP, "--alone")
            found = run(self.steps, self.warmup)
        return {"samples": found["step_samples"], "alone_seconds": statistics.median(alone["step_samples"]),
                "measured_time": found["time"]}

    def predict(self, orrery, row):
        return predict.step_seconds(orrery, predict.device_as_fast(orrery, self.scenario(), row["alone_seconds"]))


@functools.cache
def all_cases():
    found = []

    def add(topology, kind, sizes, groups=1, algorithm=None):
        for size in sizes:
            found.append(Collective(topology, kind, size, groups, algorithm or ("direct" if kind == "all_to_all" else "ring")))

    for size in (8, MIB):
        found.append(Link(single_switch(2), "through one switch", (0, 1), size))
        found.append(Link(two_leaves(8, 4), "through the spine", (0, 4), size))
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    for hosts in (2, 4, 8):
        for kind in kinds:
            add(single_switch(hosts), kind, (64 * KIB, MIB) if hosts > 2 or kind != "all_reduce" else (64 * KIB, MIB, 16 * MIB))
        if hosts > 2:
            add(single_switch(hosts), "all_reduce", (MIB,), algorithm="halving_doubling")
            add(single_switch(hosts), "all_reduce", (4 * MIB,), algorithm="tree")
    for oversubscription in (1, 2, 4):
        topology = two_leaves(8, oversubscription)
        for kind in ("all_reduce", "all_gather", "all_to_all"):
            add(topology, kind, (64 * KIB, MIB))
        add(topology, "all_reduce", (256 * KIB, MIB), groups=4)
        add(topology, "all_reduce", (MIB,), groups=2)
        add(topology, "all_to_all", (MIB,), groups=2)
    for kind in ("all_reduce", "all_to_all"):
        add(two_leaves(4, 2), kind, (MIB,))

    # What leaves a node goes over one link, or over those of all its devices (Zeppelin's routing).
    for devices in (2, 4):
        for algorithm in ("direct", "hierarchical"):
            add(nodes_of(devices), "send_recv", (64 * KIB, MIB), algorithm=algorithm)

    for topology in (single_switch(2), single_switch(4), two_leaves(4, 2), two_leaves(8, 4)):
        hosts = topology.hosts
        for name, rows in (("half to one host", hot_host(hosts, 0.5)), ("Zipf", zipf(hosts)), ("from one host", one_sender(hosts))):
            if hosts > 2 or name != "half to one host":  # of two hosts half is equal
                found.append(Collective(topology, "all_to_all", MIB, algorithm="direct", rows=rows, loads=name))

    def train(topology, name, sequences, tokens=MODEL["max_positions"], **plan):
        found.append(Training(topology, name, sequences, tuple(plan.items()), tokens))

    train(single_switch(2), "data parallel 2", 4, data_parallel=2)
    train(single_switch(4), "data parallel 4", 4, data_parallel=4)
    for stage in (1, 2, 3):
        train(single_switch(4), f"ZeRO {stage}, data parallel 4", 4, data_parallel=4, zero_stage=stage)
    train(single_switch(2), "tensor parallel 2", 2, tensor_parallel=2)
    train(single_switch(4), "tensor parallel 4", 2, tensor_parallel=4)
    train(single_switch(2), "pipeline 2, 8 micro-batches", 8, pipeline_parallel=2)
    for oversubscription in (1, 4):
        train(two_leaves(8, oversubscription), "tensor parallel 2, data parallel 4", 4, tensor_parallel=2, data_parallel=4)
    # Heads that are exchanged, keys that go round, and that go round each leaf while others cross the slow link.
    for topology in (single_switch(4), two_leaves(4, 4)):
        train(topology, "Ulysses 4", 1, LONG, context_parallel=4, context_parallel_type="ulysses")
        train(topology, "ring 4", 1, LONG, context_parallel=4)
    train(two_leaves(4, 4), "ring of 2 rings of 2", 1, LONG, context_parallel=4, inner_ring_degree=2)
    # Workers of one host that agree every few steps: they wait for the mean of their copies, or take it beside the next
    # steps, on another thread. Two iterations give the step time, after those in which nothing has been agreed on yet.
    for local_steps in (1, 4, 12, 24, 96):
        for name, delay in (("SlowMo", 0), ("CO2", 1)):
            plan = {"data_parallel": 4, "local_steps": local_steps, "local_workers": 4, "outer_optimizer": "momentum",
                    "outer_delay": delay}
            found.append(Training(single_switch(4), f"{name} every {local_steps}", 4, tuple(plan.items()),
                                  steps=4 * max(2, local_steps), warmup=2 * local_steps))
    return tuple(found)
