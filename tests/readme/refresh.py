#!/usr/bin/env python3
"""Runs the commands that README.md and docs/ show, and holds what they show to what is printed.

    tests/readme/refresh.py build/default/orrery                 rewrites what has changed: pages, tables, pictures
    tests/readme/refresh.py build/default/orrery --check PAGE    exit 1, and says what differs (readme_test.cpp does so)
    tests/readme/refresh.py build/default/orrery --check-tables  the same of tables in strategies/*/README.md
    tests/readme/refresh.py --not-run PAGE                       the lines of scripts that are not run: they must parse

In a page:
    ```console        "$ " begins a command, which lines of "> " continue; then its output, in which a line "..." stands
                      for any number of lines.
    ```sh             a script; each of its commands must succeed.
    ```sh needs=X     a script that is not run: it takes a GPU or minutes. needs=mpi: run where ranks can be.
    ```jsonc          where its first line is "// NAME": a file of this name for the commands behind it.
    ```python         where its first line is "# NAME": the same; else a script, which must succeed. It is run, as is
                      ```console needs=python, where the Python module is built.
The blocks of a page run in order in one folder, in which the repository's files are seen and `orrery` is on the PATH.

In strategies/*/README.md two kinds of table are held to what is predicted, to the digits that they show:
    | id | published | predicted | error | kernels alone |     of published points, by what `orrery validate` says of them
    <!-- orrery simulate NAME: FIELD, FIELD                   of scenarios: fields of --csv in the last columns, a line of
    --set plan.x=1                                            options a row; "des FIELD" by --engine des, "A + B" their
    -->                                                       sum, "A / 1e9" in another unit, "-" not held
Also rewritten: tables of errors in docs/accuracy.md, which tests/validation checks; collectives_errors.md, which
tests/cli/collective_test.cpp checks; the picture of an interleaved step.
"""
import csv
import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.S | re.M)


class Place:
    """A folder of its own, in which commands run."""

    def __init__(self, orrery: str):
        self.folder = tempfile.TemporaryDirectory(prefix="orrery_page_")
        self.path = pathlib.Path(self.folder.name)
        programs = pathlib.Path(orrery).resolve().parent
        for entry in root.iterdir():
            if not entry.name.startswith(".") and entry.name != "build":
                (self.path / entry.name).symlink_to(entry)
        (self.path / "build").mkdir()
        (self.path / "build" / "default").symlink_to(programs)
        self.has_mpi = (programs / "orrery-rank").exists() and shutil.which("mpirun") is not None
        self.has_module = any((programs / "python" / "orrery").glob("_orrery.*.so"))
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "200",
                            "PYTHONPATH": str(programs / "python")}

    def run(self, script: str) -> tuple[int, str]:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=self.path, env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, "\n".join(line.rstrip(" ") for line in done.stdout.splitlines())


def examples(block: str):
    """(lines of the command as shown, the command, what is shown of its output)"""
    for example in re.split(r"^\$ ", block, flags=re.M)[1:]:
        lines = example.rstrip("\n").split("\n")
        end = 1
        while end < len(lines) and lines[end].startswith("> "):
            end += 1
        command = "\n".join([lines[0]] + [line[2:] for line in lines[1:end]])
        yield "$ " + "\n".join(lines[:end]), command, "\n".join(lines[end:])


def matches(shown: list, printed: list) -> bool:
    """Is `printed` what `shown` says, with "..." for any lines?"""
    parts = [[]]
    for line in shown:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) == 1:
        return shown == printed
    first, last = parts[0], parts[-1]
    if printed[:len(first)] != first or (last and printed[len(printed) - len(last):] != last):
        return False
    at, end = len(first), len(printed) - len(last)
    for part in parts[1:-1]:
        while at + len(part) <= end and printed[at:at + len(part)] != part:
            at += 1
        if at + len(part) > end:
            return False
        at += len(part)
    return at <= end


def shape(line: str) -> str:
    """A line without its numbers and bars: what it is about."""
    return re.sub(" +", " ", re.sub(r"[\d.]+( [mun]s\b| s\b)?|[█▏▎▍▌▋▊▉]", " ", line)).strip()


def as_now(shown: str, printed: str) -> str:
    """What to show of `printed` where `shown` was shown: where lines are left out, those that differ in numbers alone."""
    if not re.search(r"^\.\.\.$", shown, flags=re.M):
        return printed
    now, lines = printed.split("\n"), []
    for line in shown.split("\n"):
        alike = [i for i, p in enumerate(now) if shape(p) == shape(line)]
        if line != "..." and alike:
            line = now[alike[0]]
            now = now[alike[0] + 1:]
        lines.append(line)
    return "\n".join(lines)


def run_page(page: pathlib.Path, orrery: str, problems: list) -> str:
    """The page with what is printed now; problems are told as they would be to a reader."""
    place = Place(orrery)

    def run_block(match: re.Match) -> str:
        info, body = match.group(1).split(), match.group(2)
        kind = info[0] if info else ""
        name = re.match(r"(?://|#) ([\w.-]+)\n", body)
        if kind in ("json", "jsonc", "python") and name:
            (place.path / name.group(1)).write_text(body)
        elif kind == "python" and place.has_module:
            code, printed = place.run(f"python3 - <<'END'\n{body}END\n")
            if code != 0:
                problems.append(f"{page}: this script ends with {code}:\n{body}{printed}")
        elif info == ["sh"] or (info == ["sh", "needs=mpi"] and place.has_mpi):
            code, printed = place.run(body)
            if code != 0:
                problems.append(f"{page}: this script ends with {code}:\n{body}{printed}")
        elif info == ["console"] or (info == ["console", "needs=python"] and place.has_module):
            lines = []
            for as_shown, command, shown in examples(body):
                _, printed = place.run(command)
                if not matches(shown.split("\n"), printed.split("\n")):
                    difference = "\n".join(difflib.unified_diff(shown.split("\n"), printed.split("\n"), "shown",
                                                                "printed", lineterm=""))
                    problems.append(f"{page}:\n{as_shown}\n{difference}")
                now = as_now(shown, printed)
                lines.append(as_shown + ("\n" + now if now else ""))
            return f"```{match.group(1)}\n" + "\n".join(lines) + "\n```"
        return match.group(0)

    return BLOCK.sub(run_block, page.read_text())


TABLE = re.compile(r"(?:^<!-- orrery simulate (?P<head>[^:]*): (?P<fields>[^\n]*)\n(?P<lines>.*?)^-->\n+)?"
                   r"(?P<table>(?:^\|[^\n]*\n)+)", flags=re.S | re.M)
UNITS = {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "%": 1e-2, "GiB": 2**30, "MiB": 2**20, "GB": 1e9}
NUMBER = re.compile(r"([+-]?)(\d[\d,]*(?:\.(\d+))?)( ?)([a-zA-Z%]*)")


def cell_as_now(cell: str, value: float) -> str:
    """The cell with its first number as `value` has it, in the cell's unit and to its digits."""
    shown = NUMBER.search(cell)
    if shown is None or shown.group(5) not in UNITS:
        raise ValueError(f"no number in a known unit in the cell {cell!r}")
    sign, digits = shown.group(1), len(shown.group(3) or "")
    in_unit = value / UNITS[shown.group(5)]
    now = f"{in_unit:{'+' if sign else ''}.{digits}f}"
    as_shown = float(sign + shown.group(2).replace(",", ""))
    if abs(as_shown - in_unit) <= 0.5000001 * 10**-digits:  # rounded either way
        return cell
    return cell[:shown.start()] + now + shown.group(4) + shown.group(5) + cell[shown.end():]


def cells_of(row: str) -> list:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


class Predictions:
    def __init__(self, orrery: str):
        self.place, self.known = Place(orrery), {}

    def of_points(self, seen: str) -> dict:
        if seen not in self.known:
            code, printed = self.place.run(f"orrery validate --seen {seen} --json -")
            assert code == 0, printed
            self.known[seen] = {point["id"]: point for point in json.loads(printed)["points"]}
        return self.known[seen]

    def of_scenario(self, arguments: str) -> dict:
        if arguments not in self.known:
            code, printed = self.place.run(f"orrery simulate {arguments} --csv -")
            if code != 0:
                raise ValueError(f"orrery simulate {arguments}: {printed}")
            row = list(csv.DictReader(printed.splitlines()))[-1]
            self.known[arguments] = row
        return self.known[arguments]

    def field(self, arguments: str, field: str) -> float:
        by_des = field.startswith("des ")
        total, scale = 0.0, 1.0
        for sign, term in re.findall(r"([+/]?)\s*([\w.]+)", field.removeprefix("des ")):
            if sign == "/":
                scale = float(term)
            else:
                total += float(self.of_scenario(arguments + (" --engine des" if by_des else ""))[term])
        return total / scale


def points_table(rows: list, predictions: Predictions) -> list:
    heads, now = cells_of(rows[0]), rows[:2]
    for row in rows[2:]:
        cells = cells_of(row)
        name = re.search(r"`([^`]+)`", cells[heads.index("id")])
        if name:
            for head, seen in (("predicted", "others"), ("error", "others"), ("kernels alone", "none")):
                if head in heads:
                    point = predictions.of_points(seen)[name.group(1)]
                    at = heads.index(head)
                    cells[at] = cell_as_now(cells[at], point["predicted" if head == "predicted" else "error"])
        now.append("| " + " | ".join(cells) + " |")
    return now


def scenarios_table(head: str, fields: str, lines: list, rows: list, predictions: Predictions) -> list:
    fields = [field.strip() for field in fields.split(",")]
    if len(lines) != len(rows) - 2:
        raise ValueError(f"{len(lines)} lines of options for {len(rows) - 2} rows")
    now = rows[:2]
    for options, row in zip(lines, rows[2:]):
        cells = cells_of(row)
        for at, field in enumerate(fields, len(cells) - len(fields)):
            if field != "-" and cells[at] != "-":
                cells[at] = cell_as_now(cells[at], predictions.field(f"{head} {options}".strip(), field))
        now.append("| " + " | ".join(cells) + " |")
    return now


def tables_as_now(page: pathlib.Path, predictions: Predictions, problems: list) -> str:
    """The page with its tables of predictions as they are now."""
    def table(match: re.Match) -> str:
        rows = match.group("table").rstrip("\n").split("\n")
        try:
            if match.group("head"):
                lines = [line.strip() for line in match.group("lines").rstrip("\n").split("\n")]
                now = scenarios_table(match.group("head"), match.group("fields"), lines, rows, predictions)
            elif "id" in cells_of(rows[0]) and "predicted" in cells_of(rows[0]):
                now = points_table(rows, predictions)
            else:
                return match.group(0)
        except (KeyError, ValueError) as error:
            problems.append(f"{page}, the table under {rows[0]}: {error}")
            return match.group(0)
        changed = [f"-{a}\n+{b}" for a, b in zip(rows, now) if cells_of(a) != cells_of(b)]
        if not changed:
            return match.group(0)
        problems.append(f"{page}:\n" + "\n".join(changed))
        return match.group(0)[:match.start("table") - match.start()] + "\n".join(now) + "\n"

    return TABLE.sub(table, page.read_text())


def strategies_pages() -> list:
    return sorted((root / "strategies").glob("*/README.md"))


def not_run(page: pathlib.Path):
    for info, body in BLOCK.findall(page.read_text()):
        if re.match(r"sh needs=", info):
            yield from re.sub(r"\\\n *", "", body).splitlines()


def refresh(orrery: str) -> None:
    place = Place(orrery)
    page = place.run("orrery validate --markdown -")[1]
    accuracy = root / "docs" / "accuracy.md"
    text = accuracy.read_text()
    for heading in ("| the step calibration has seen", "| framework"):
        table = re.compile(re.escape(heading) + r".*?\n(?!\|)", flags=re.S)
        text = table.sub(lambda _: table.search(page).group(0), text, count=1)
    accuracy.write_text(text)
    for guide in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        problems = []
        guide.write_text(run_page(guide, orrery, problems))
        for problem in problems:
            if "this script ends with" in problem:
                print(problem)
    predictions = Predictions(orrery)
    for strategy in strategies_pages():
        strategy.write_text(tables_as_now(strategy, predictions, []))
    place.run("orrery collective --measured --markdown results/published/collectives_errors.md")
    place.run("orrery simulate results/figures/interleaved.json --svg results/figures/interleaved.svg")


if len(sys.argv) == 3 and sys.argv[1] == "--not-run":
    print("\n".join(not_run(pathlib.Path(sys.argv[2]))))
elif len(sys.argv) == 3 and sys.argv[2] == "--check-tables":
    found, predicted = [], Predictions(sys.argv[1])
    for strategy in strategies_pages():
        tables_as_now(strategy, predicted, found)
    if found:
        sys.exit("\n".join(found) + f"\n{sys.argv[0]} brings tables up to date")
elif len(sys.argv) == 4 and sys.argv[2] == "--check":
    found = []
    run_page(pathlib.Path(sys.argv[3]), sys.argv[1], found)
    tables_as_now(pathlib.Path(sys.argv[3]), Predictions(sys.argv[1]), found)
    if found:
        sys.exit("\n".join(found) + f"\n{sys.argv[0]} brings pages up to date")
elif len(sys.argv) == 2:
    refresh(sys.argv[1])
else:
    sys.exit(__doc__)
