"""Hosts as network namespaces, joined by shaped virtual links to switches: what the cases of netlab run on.

A host is a namespace with one interface, a veth pair to a bridge. Bridges (leaf switches, and a spine that joins them)
are in a namespace of their own. Every link is shaped by tbf at both of its ends, so that a link carries its rate in each
direction at once, as a full-duplex cable does. All names hold the process id; everything is gone when Lab ends, however
it ends. Root, Linux, iproute2; standard library only.
"""

import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

PREFIX = "orrerylab"
MTU = 1500
NODE_MTU = 65000  # of the link within a node
ETHERNET_HEADER = 14  # what tbf counts beside the IP packet: no preamble, no checksum
IP_AND_TCP_HEADERS = 20 + 32  # the TCP header carries timestamps
SEGMENT = MTU - IP_AND_TCP_HEADERS
FRAME = MTU + ETHERNET_HEADER
SEGMENTS_PER_ACK = 2  # RFC 5681, section 4.2: at least every second full segment

# A bucket holds what a late timer may catch up with, and no more: after a pause a bucket of bytes passes unshaped.
BURST_FRAMES = 8
# No queue overflows: a sender's window is what limits it, as on a fabric with link-level flow control.
QUEUE_BYTES = 64 << 20
SUBNET = "10.213.0.0/24"
FIRST_WINDOW_SEGMENTS = 128  # what a rate of 50 Mbit/s carries in 30 ms, more than a round trip takes
RETRANSMISSION = "5s"  # the soonest


class Unavailable(Exception):
    """This machine does not let us build the lab; says why."""


def wire_efficiency():
    """Payload over bytes on the wire, where a link carries data one way and the acknowledgements of as much data that
    flows the other way: every host of a ring sends both."""
    acknowledgement = ETHERNET_HEADER + IP_AND_TCP_HEADERS
    return SEGMENTS_PER_ACK * SEGMENT / (SEGMENTS_PER_ACK * FRAME + acknowledgement)


@dataclass(frozen=True)
class Topology:
    """hosts_per_leaf 0: one switch. Otherwise leaves of so many hosts under one spine; an up-link carries what all hosts
    of a leaf send, divided by `oversubscription`. So many hosts as a node has devices (`hosts_per_node`) reach each other
    over a link of their own that nothing shapes; beside it each has its own link to its switch, as a node has NICs."""

    name: str
    hosts: int
    bits_per_second: int
    hosts_per_leaf: int = 0
    oversubscription: int = 1
    hosts_per_node: int = 1

    @property
    def leaves(self):
        return -(-self.hosts // self.hosts_per_leaf) if self.hosts_per_leaf else 1

    @property
    def uplink_bits_per_second(self):
        return self.bits_per_second * self.hosts_per_leaf // self.oversubscription


def run(*command, check=True):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def go_ahead():
    """This process and all that it starts come before whatever else runs on the machine."""
    os.setpriority(os.PRIO_PROCESS, 0, -20)


def why_not():
    """None, or the sentence that says why no lab can be built here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("mpirun", "openmpi-bin")):
        if shutil.which(tool) is None:
            return f"there is no {tool} (Debian: {package})"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", probe)
        run("ip", "-n", probe, "link", "add", "end0", "type", "veth", "peer", "name", "end1")
        run("ip", "-n", probe, "link", "add", "switch", "type", "bridge")
        run("tc", "-n", probe, "qdisc", "add", "dev", "end0", "root", "tbf", "rate", "1mbit", "burst", "3000", "limit", "9000")
    except RuntimeError as error:
        return f"this machine permits no network namespaces with veth, bridge and tbf ({error})"
    finally:
        run("ip", "netns", "del", probe, check=False)
    return None


def end_processes(namespace):
    """Of a namespace: politely, then not."""
    for sig, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience
        while True:
            pids = [int(p) for p in run("ip", "netns", "pids", namespace, check=False).split()]
            pids = [p for p in pids if p != os.getpid()]
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, sig)
                except ProcessLookupError:
                    pass
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)


def namespaces():
    return [line.split()[0] for line in run("ip", "netns", "list", check=False).splitlines() if line.startswith(PREFIX + "-")]


def alive(pid):
    return pathlib.Path(f"/proc/{pid}").exists()


def clean():
    """Removes what labs left whose process is gone (killed outright). Returns the names."""
    gone = [name for name in namespaces() if not alive(name.split("-")[1])]
    for name in gone:
        end_processes(name)
        run("ip", "netns", "del", name, check=False)
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        if not alive(folder.name.split("-")[1]):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(str(folder))
    return gone


def without_segmentation_offload(device):
    """One frame a packet, as on a wire: tbf would otherwise let packets of 64 KiB pass at once. (ethtool -K, by ioctl.)"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for command in (0x1F, 0x24, 0x2C):  # ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(s, 0x8946, request)  # SIOCETHTOOL


class Lab:
    """with Lab(topology) as lab: lab.mpirun(ranks, command)"""

    def __init__(self, topology):
        self.topology = topology
        self.tag = f"{PREFIX}-{os.getpid()}"
        self.network = f"{self.tag}-net"
        self.folder = None
        self.made = []
        self.running = None
        self.handlers = {}

    def host(self, i):
        return f"{self.tag}-h{i}"

    def address(self, i):
        return f"10.213.0.{i + 1}"

    def __enter__(self):
        reason = why_not()
        if reason:
            raise Unavailable(reason)
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.handlers[sig] = signal.signal(sig, self._stop)
        try:
            self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(self, *_):
        self._tear_down()

    def _stop(self, sig, _frame):
        self._ignore_signals()  # `timeout` sends its twice
        raise SystemExit(128 + sig)

    def _namespace(self, name):
        run("ip", "netns", "add", name)
        self.made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _shape(self, namespace, device, bits_per_second):
        run("ip", "netns", "exec", namespace, sys.executable, __file__, device)
        run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{bits_per_second}bit",
            "burst", str(BURST_FRAMES * FRAME), "limit", str(QUEUE_BYTES))
        run("ip", "-n", namespace, "link", "set", device, "up")

    def _bridge(self, name):
        run("ip", "-n", self.network, "link", "add", name, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        run("ip", "-n", self.network, "link", "set", name, "up")

    def _build(self):
        t = self.topology
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.tag}-"))
        self._namespace(self.network)
        if t.hosts_per_leaf:
            self._bridge("spine")
        for leaf in range(t.leaves):
            self._bridge(f"leaf{leaf}")
            if not t.hosts_per_leaf:
                continue
            up, down = f"up{leaf}", f"down{leaf}"
            run("ip", "-n", self.network, "link", "add", up, "mtu", str(MTU), "type", "veth", "peer", "name", down, "mtu", str(MTU))
            for device, bridge in ((up, f"leaf{leaf}"), (down, "spine")):
                run("ip", "-n", self.network, "link", "set", device, "master", bridge)
                self._shape(self.network, device, t.uplink_bits_per_second)
        for i in range(t.hosts):
            self._namespace(self.host(i))
            run("ip", "-n", self.host(i), "link", "add", "eth0", "mtu", str(MTU), "type", "veth", "peer", "name", f"port{i}",
                "mtu", str(MTU), "netns", self.network)
            run("ip", "-n", self.network, "link", "set", f"port{i}", "master", f"leaf{i // t.hosts_per_leaf if t.hosts_per_leaf else 0}")
            run("ip", "-n", self.host(i), "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            self._shape(self.network, f"port{i}", t.bits_per_second)
            self._shape(self.host(i), "eth0", t.bits_per_second)
            # Nothing is ever lost here, so that nothing need be slow to start or be sent again when a busy host answers
            # late: windows begin wide and stay so. Reno, which every kernel allows; bbr paces by its own estimate.
            run("ip", "netns", "exec", self.host(i), "sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0",
                "net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_no_metrics_save=1")
            run("ip", "-n", self.host(i), "route", "replace", SUBNET, "dev", "eth0", "proto", "kernel", "scope", "link", "src",
                self.address(i), "initcwnd", str(FIRST_WINDOW_SEGMENTS), "rto_min", RETRANSMISSION)
        if t.hosts_per_node > 1:
            for first in range(0, t.hosts, t.hosts_per_node):
                self._join(range(first, first + t.hosts_per_node))
        agent = self.folder / "agent"
        agent.write_text("#!/bin/sh\n# mpirun's rsh: the last number of the address is the host's, from 1.\n"
                         "host=$1; shift\n"
                         f'export TMPDIR={self.folder}/$host; mkdir -p $TMPDIR\n'
                         f'exec ip netns exec {self.tag}-h$((${{host##*.}} - 1)) sh -c "$*"\n')
        agent.chmod(0o755)

    def _join(self, hosts):
        """A bridge for what these hosts send each other: their addresses stay, routes lead there."""
        bridge = f"node{hosts[0]}"
        self._bridge(bridge)
        for i in hosts:
            run("ip", "-n", self.host(i), "link", "add", "node", "mtu", str(NODE_MTU), "type", "veth", "peer", "name", f"in{i}",
                "mtu", str(NODE_MTU), "netns", self.network)
            run("ip", "-n", self.network, "link", "set", f"in{i}", "master", bridge)
            run("ip", "-n", self.network, "link", "set", f"in{i}", "up")
            run("ip", "-n", self.host(i), "link", "set", "node", "up")
            for mate in hosts:
                if mate != i:
                    run("ip", "-n", self.host(i), "route", "add", f"{self.address(mate)}/32", "dev", "node", "src",
                        self.address(i), "rto_min", RETRANSMISSION)

    def _ignore_signals(self):
        for sig in self.handlers:
            signal.signal(sig, signal.SIG_IGN)

    def _tear_down(self):
        self._ignore_signals()
        if self.running and self.running.poll() is None:
            self.running.terminate()
        for name in reversed(self.made):
            end_processes(name)
            run("ip", "netns", "del", name, check=False)
        if self.running:
            self.running.wait()
        self.made = []
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        for sig, handler in self.handlers.items():
            signal.signal(sig, handler)
        self.handlers = {}

    def mpirun_command(self, hosts, command):
        addresses = ",".join(self.address(i) for i in hosts)
        parameters = {
            "plm_rsh_agent": self.folder / "agent",
            "btl": "self,tcp",
            "btl_tcp_if_include": SUBNET,
            "oob_tcp_if_include": SUBNET,
            "pml": "ob1",
            "mpi_yield_when_idle": 1,
            "hwloc_base_binding_policy": "none",
            # What a stage sends leaves while it computes: the kernel has all of it.
            "btl_tcp_sndbuf": 4 << 20,
            "btl_tcp_rcvbuf": 4 << 20,
        }
        mca = [word for key, value in parameters.items() for word in ("--mca", key, str(value))]
        return ["ip", "netns", "exec", self.host(hosts[0]), "env", f"TMPDIR={self.folder}", "OMPI_ALLOW_RUN_AS_ROOT=1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun", "-n", str(len(hosts)), "--host", addresses, *mca, *map(str, command)]

    def mpirun(self, hosts, command, seconds=600):
        """One rank on each of `hosts`, by number. Returns standard output; raises RuntimeError with standard error."""
        self.running = subprocess.Popen(self.mpirun_command(list(hosts), command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = self.running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.running.terminate()
            raise RuntimeError(f"no end after {seconds} s: {' '.join(map(str, command))}") from None
        if self.running.returncode != 0:
            raise RuntimeError(err.strip() or f"mpirun ended with {self.running.returncode}")
        return out


if __name__ == "__main__":  # in a network namespace
    without_segmentation_offload(sys.argv[1])
