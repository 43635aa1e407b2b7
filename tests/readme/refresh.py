#!/usr/bin/env python3
"""Rewrites what README.md shows behind its commands with what they print now; the test beside this file holds them to it.
Also its tables of errors, which tests/validation checks, and results/published/collectives_errors.md, which
tests/cli/collective_test.cpp checks, and the picture of an interleaved step.

Usage: tests/readme/refresh.py build/default/orrery
Lines "..." in the README elide output: in a block that has one, each shown line becomes the printed one that differs in
its numbers alone.
"""
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
readme = root / "README.md"


def output(command: str) -> str:
    if command.startswith("orrery "):
        command = str(pathlib.Path(sys.argv[1]).resolve()) + command[len("orrery"):]
    done = subprocess.run(command, shell=True, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return "\n".join(line.rstrip(" ") for line in done.stdout.splitlines())


def shape(line: str) -> str:
    """A line without its numbers and bars: what it is about."""
    return re.sub(r"[\d.]+( [mun]s\b| s\b)?|[█▏▎▍▌▋▊▉]| +", " ", line).strip().replace("  ", " ")


def refresh_shown(command: str, shown: str) -> str:
    printed = output(command).splitlines()
    lines = []
    for line in shown.rstrip("\n").splitlines():
        alike = [p for p in printed if re.sub(" +", " ", shape(p)) == re.sub(" +", " ", shape(line))]
        lines.append(alike[0] if line != "..." and alike else line)
    return "\n".join(lines)


def refresh_block(match: re.Match) -> str:
    lines = []
    for example in re.split(r"^\$ ", match.group(1), flags=re.M)[1:]:
        command, _, shown = example.partition("\n")
        keep = re.search(r"^\.\.\.$", shown, flags=re.M)
        lines += ["$ " + command, refresh_shown(command, shown) if keep else output(command)]
    return "```console\n" + "\n".join(lines) + "\n```"


text = re.sub(r"```console\n(.*?)\n?```", refresh_block, readme.read_text(), flags=re.S)
page = output("orrery validate --markdown -")
for heading in ("| the step calibration has seen", "| framework"):
    table = re.compile(re.escape(heading) + r".*?\n(?!\|)", flags=re.S)
    text = table.sub(lambda _: table.search(page).group(0), text, count=1)
readme.write_text(text)
output("orrery collective --measured --markdown results/published/collectives_errors.md")
output("orrery simulate results/figures/interleaved.json --svg results/figures/interleaved.svg")
