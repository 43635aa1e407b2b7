#!/usr/bin/env python3
"""Rewrites what README.md shows behind its commands with what they print now; the test beside this file holds them to it.
Also results/published/collectives_errors.md, which tests/cli/collective_test.cpp checks.

Usage: tests/readme/refresh.py build/default/orrery [build/default/test_validation]
The second program prints the table of measured and predicted steps. Lines "..." in the README elide output: a block that
has one keeps its shape as long as the shown lines are still printed.
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


def refresh_block(match: re.Match) -> str:
    lines = []
    for example in re.split(r"^\$ ", match.group(1), flags=re.M)[1:]:
        command, _, shown = example.partition("\n")
        keep = re.search(r"^\.\.\.$", shown, flags=re.M)
        lines += ["$ " + command, shown.rstrip("\n") if keep else output(command)]
    return "```console\n" + "\n".join(lines) + "\n```"


text = re.sub(r"```console\n(.*?)\n?```", refresh_block, readme.read_text(), flags=re.S)
if len(sys.argv) > 2:
    printed = subprocess.run([sys.argv[2]], text=True, stdout=subprocess.PIPE).stdout
    table = re.search(r"(\| model and recomputation .*?\n)(?!\|)", printed, flags=re.S).group(1)
    text = re.sub(r"@@KORTHIKANTI@@\n|\| model and recomputation .*?\n(?!\|)", lambda _: table, text, flags=re.S)
readme.write_text(text)
output("orrery collective --measured --markdown results/published/collectives_errors.md")
