#!/usr/bin/env python3
"""How much do the tests see? Draws small faults at random, compiles all of them into one copy of the tree, switches
one on at a time and looks which test fails.

    mutants.py draw FOLDER [--sites 150] [--seed N]     copies the tree into FOLDER, with the faults in it
    mutants.py build FOLDER [TARGET ..]                 builds the copy; leaves out faults that do not compile
    mutants.py reach FOLDER [TARGET ..] [--longest 60]  runs each suite once: how long it takes, what it reaches
    mutants.py run FOLDER [--longest 60]                asks the suites that reach a fault, the quickest first
    mutants.py report FOLDER [--equivalent FILE]        a table by library, and the faults that no test has seen
    mutants.py check                                    each fault of physics.txt has its place (ctest runs this)

draw: the seed is today's date unless given. Libraries get sites in proportion to their lines, two each at least. It
needs libclang's Python module (Debian: python3-clang); the other commands do not. --only PATH draws in a folder or file
alone. --physics adds physics.txt, the faults that no random operator makes; with --sites 0 it plants these alone.

Both reach and run may be interrupted and go on where they were; with a larger --longest they ask the suites that are
left. run takes the faults in a random order, so that what it has asked when it is interrupted is a sample, too. A suite
that takes longer than --longest seconds, or that fails without a fault, is left out, and the report says so. Tests that
compare output with a kept file are asked last: whoever makes the file anew turns them green, so what they alone see is
counted apart.

--equivalent: a text file with lines "NUMBER: reason" for survivors that change nothing anybody can see.
"""
import argparse
import collections
import concurrent.futures
import datetime
import fnmatch
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROOMS = ["sim/", "study/", "models/", "strategies/", "traces/", "realrun/", "cli/"]
BUILD = "build/default"
NOT_DRAWN = ["realrun/cuda/"]  # compiled where nvcc is
SKIPPED_CALLS = {"fail", "InputError", "warn", "note"}  # what follows is the text of a message
# Tests that hold what is printed to what is kept.
KEPT = ["*Guide.PrintsWhatIsShown*", "Readme.TablesOfStrategiesAreAsPredicted", "Readme.PicturesAreAsDrawn",
        "Accuracy.ThePageIsAsGenerated", "Accuracy.NoSourceIsPredictedWorseThanBefore",
        "Intervals.AreThoseOfTheCalibrationFile", "MeasuredCollectives.TheCommittedTableIsCurrent",
        "MeasuredCollectives.AnalyticalErrorsAreTheResidualsOfTheCalibration",
        "CollectiveResiduals.AreThoseStatedInTheCalibration", "*EveryCalibration.States*",
        "Schema.CheckedInCopyIsTheGeneratedOne"]
TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-",
          "-": "+", "*": "/", "/": "*", "|": "&", "&": "|"}
HEADER = "tests/mutants/planted.h"


# --- Sites: dicts of file, line, function, kind, begin and end (bytes), original and mutated text, whether a statement.


def planted(site: dict) -> str:
    number, original, mutated = site["number"], site["original"], site["mutated"]
    if site["statement"]:
        return f"{{ if (orrery_mutant({number})) {{ {mutated} }} else {{ {original} }} }}"
    return f"(orrery_mutant({number}) ? ({mutated}) : ({original}))"


def with_sites(data: bytes, sites: list) -> bytes:
    for site in sorted(sites, key=lambda s: -s["begin"]):
        data = data[:site["begin"]] + planted(site).encode() + data[site["end"]:]
    include = f'#include "{HEADER}"\n'.encode()
    once = b"#pragma once\n"
    return data.replace(once, once + include, 1) if once in data else include + data


def library(file: str) -> str:
    folders = file.split("/")
    return "/".join(folders[:2 if folders[0] in ("sim", "study", "realrun") and len(folders) > 2 else 1])


def of_site(site: dict) -> str:
    return "faults of physics" if site.get("physics") else library(site["file"])


class Finder:
    """The sites of a source, from the extents of clang's syntax tree."""

    def __init__(self):
        try:
            import clang.cindex
        except ImportError:
            sys.exit("draw needs libclang's Python module: Debian's package python3-clang, for /usr/bin/python3")
        self.clang, self.kinds = clang.cindex, clang.cindex.CursorKind
        self.index = clang.cindex.Index.create()
        self.known = {}
        types = clang.cindex.TypeKind
        self.integers = {types.INT, types.UINT, types.LONG, types.ULONG, types.LONGLONG, types.ULONGLONG, types.SHORT}
        system = ["/usr/include/eigen3", "/usr/include/coin", "/usr/lib/x86_64-linux-gnu/openmpi/include"]
        self.options = ["-xc++", "-std=c++20", "-w", f"-I{ROOT}", '-DORRERY_VERSION="0"']
        self.options += [f"-isystem{folder}" for folder in system]

    def parse(self, file: str, data: bytes):
        return self.index.parse(str(ROOT / file), self.options, unsaved_files=[(str(ROOT / file), data.decode())])

    @staticmethod
    def sound(unit) -> bool:  # clang 14 lacks captures of structured bindings, which C++20 has
        return all(d.severity < 3 or "reference to local binding" in d.spelling for d in unit.diagnostics)

    def sites(self, file: str) -> list:
        if file not in self.known:
            self.file, self.data, self.found = file, (ROOT / file).read_bytes(), []
            unit = self.parse(file, self.data)
            if not self.sound(unit):
                print(f"{file}: libclang does not parse it", file=sys.stderr)
            else:
                for cursor in unit.cursor.get_children():
                    if cursor.location.file and cursor.location.file.name == str(ROOT / file):
                        self.walk(cursor, None, "")
            self.known[file] = list({(s["begin"], s["end"], s["mutated"]): s for s in self.found}.values())
        return self.known[file]

    def of(self, cursor) -> str:
        return self.data[cursor.extent.start.offset:cursor.extent.end.offset].decode()

    def add(self, kind: str, cursor, function: str, mutated: str, statement: bool = False):
        begin, end = cursor.extent.start.offset, cursor.extent.end.offset
        if statement:
            end = self.data.index(b";", end) + 1
        if function and begin < end:
            self.found.append({"file": self.file, "line": cursor.extent.start.line, "function": function, "kind": kind,
                               "begin": begin, "end": end, "original": self.data[begin:end].decode(),
                               "mutated": mutated, "statement": statement})

    def walk(self, cursor, parent, function: str):
        k, kind = self.kinds, cursor.kind
        if kind in (k.FUNCTION_DECL, k.CXX_METHOD, k.CONSTRUCTOR, k.FUNCTION_TEMPLATE, k.CONVERSION_FUNCTION):
            of = cursor.semantic_parent
            function = (of.spelling + "::" if of and of.kind in (k.CLASS_DECL, k.STRUCT_DECL) else "") + cursor.spelling
        if kind in (k.STATIC_ASSERT, k.ENUM_DECL, k.CXX_THROW_EXPR, k.STRING_LITERAL):
            return
        children = list(cursor.get_children())
        if function:
            self.look_at(cursor, parent, children, function)
        if kind == k.CALL_EXPR and cursor.spelling in SKIPPED_CALLS:
            return
        for child in children[1:] if kind == k.CASE_STMT else children:
            self.walk(child, cursor, function)

    def look_at(self, cursor, parent, children: list, function: str):
        k, kind = self.kinds, cursor.kind
        if kind == k.BINARY_OPERATOR and len(children) == 2:
            left, right = self.of(children[0]), self.of(children[1])
            between = self.data[children[0].extent.end.offset:children[1].extent.start.offset].decode()
            operator = re.sub(r"//.*|\s", "", between)
            if operator in TURNED:
                of = "logic" if operator in "&&||" else "arithmetic" if operator in "+-*/" else "comparison"
                self.add(of, cursor, function, f"({left}) {TURNED[operator]} ({right})")
            if operator in ("+", "-", "*", "/", "&&", "||"):
                self.add("term", cursor, function, left)
                if operator in ("+", "*", "&&", "||"):
                    self.add("term", cursor, function, right)
        elif kind == k.UNARY_OPERATOR and self.of(cursor)[:1] in ("!", "-"):
            self.add("negation", cursor, function, self.of(cursor)[1:])
        elif kind == k.INTEGER_LITERAL:
            if digits := re.fullmatch(r"(\d+)(\w*)", self.of(cursor)):
                self.add("constant", cursor, function, f"{int(digits[1]) + 1}{digits[2]}")
        elif kind == k.CONDITIONAL_OPERATOR and len(children) == 3:
            self.add("condition", children[0], function, f"!({self.of(children[0])})")
        elif kind == k.IF_STMT and children and children[0].kind.is_expression():
            before = self.data[cursor.extent.start.offset:children[0].extent.start.offset]
            if re.fullmatch(rb"if\s*\(\s*", before):
                leaves = any(c.kind in (k.RETURN_STMT, k.CONTINUE_STMT, k.BREAK_STMT) for c in children[1:2])
                self.add("condition", children[0], function, f"!({self.of(children[0])})")
                self.add("exit" if leaves else "body", children[0], function, "false")
        elif kind == k.INIT_LIST_EXPR and len(children) > 1:
            for child in children:
                self.forget(child, function)
        elif kind == k.CALL_EXPR:
            self.look_at_call(cursor, function)
        self.look_at_statement(cursor, parent, function)

    def forget(self, cursor, function: str):
        value = self.of(cursor)
        if cursor.kind.is_expression() and not value.startswith(("{", "[", '"', ".", "std::move")) and len(value) > 1:
            self.add("member", cursor, function, f"std::remove_cvref_t<decltype({value})>{{}}")

    def look_at_call(self, cursor, function: str):
        text, name = self.of(cursor), cursor.spelling
        arguments = [a for a in cursor.get_arguments() if a is not None]
        if name in ("min", "max"):
            other = {"min": "max", "max": "min"}[name]
            self.add("min or max", cursor, function, re.sub(rf"\b{name}\b", other, text, count=1))
        elif text.startswith(("std::tuple(", "std::make_tuple(", "std::pair(", "std::tie(")):
            for argument in arguments:
                self.forget(argument, function)
        elif not name.startswith("operator") or name == "operator[]":
            for argument in arguments[-1:] if name == "operator[]" else arguments:
                if argument.type.get_canonical().kind in self.integers and self.of(argument):
                    self.add("argument", argument, function, f"({self.of(argument)}) + 1")

    def look_at_statement(self, cursor, parent, function: str):
        k, text, inner = self.kinds, self.of(cursor), cursor
        while inner.kind == k.UNEXPOSED_EXPR and len(list(inner.get_children())) == 1:
            inner = next(inner.get_children())
        before = self.data[:cursor.extent.start.offset].rstrip()[-4:]
        if (not self.data[cursor.extent.end.offset:].lstrip().startswith(b";") or text.startswith("(void)")
                or parent is None or (parent.kind != k.COMPOUND_STMT and not before.endswith((b")", b"else")))):
            return
        assigns = (inner.kind in (k.COMPOUND_ASSIGNMENT_OPERATOR, k.BINARY_OPERATOR)
                   or inner.spelling.startswith("operator"))
        resets = re.search(r"=\s*(\{\}|0|std::nullopt|nullptr|false)$|\b(clear|reset)\(\)$", text)
        if assigns or inner.kind == k.CALL_EXPR:
            kind = "reset" if resets else "assignment" if assigns else "call"
            self.add(kind, cursor, function, "", statement=True)


def tracked() -> list:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, text=True,
                            stdout=subprocess.PIPE).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


def drawn(count: int, seed: int, only: list, sites: list) -> list:
    """Beside those that there are already."""
    lines = collections.defaultdict(dict)
    for name in tracked():
        if name.startswith(tuple(only)) and name.endswith((".cpp", ".h")) and not name.startswith(tuple(NOT_DRAWN)):
            lines[library(name)][name] = len((ROOT / name).read_bytes().splitlines())
    total = sum(sum(files.values()) for files in lines.values())
    finder, dice = Finder(), random.Random(seed)
    for of, files in sorted(lines.items()):
        quota = max(2, round(count * sum(files.values()) / total))
        for _ in range(20 * quota):
            if sum(of_site(s) == of for s in sites) == quota:
                break
            file = dice.choices(sorted(files), [files[name] for name in sorted(files)])[0]
            free = collections.defaultdict(list)  # by kind, so that no kind drowns the others
            for site in finder.sites(file):
                if all(site["end"] <= s["begin"] or s["end"] <= site["begin"] for s in sites if s["file"] == file):
                    free[site["kind"]].append(site)
            if not free:
                continue
            site = dice.choice(free[dice.choice(sorted(free))])
            site = {"number": len(sites) + 1, **site}
            if finder.sound(finder.parse(file, with_sites((ROOT / file).read_bytes(), [site]))):
                sites.append(site)
        print(f"{of}: {sum(of_site(s) == of for s in sites)} sites", file=sys.stderr)
    return sites


# --- Faults of physics: written by hand, found by file, function and expression.


def bodies(text: str, function: str):
    """What is defined under that name: from its first line to the brace that stands as far to the left."""
    for match in re.finditer(rf"^( *)[^\s/(=][^(=;\n]*?\b{re.escape(function)}\(.*\n", text, flags=re.M):
        line = match[0].rstrip()
        if line.endswith("}"):
            yield match.start(), match.end()
        elif not line.endswith(";") and (brace := re.compile(rf"^{match[1]}\}}", re.M).search(text, match.end())):
            yield match.start(), brace.end()


def physics() -> tuple[list, list]:
    """The sites of physics.txt, and what is wrong with it."""
    sites, wrong = [], []
    for block in (HERE / "physics.txt").read_text().split("\n\n"):
        lines = [line for line in block.strip().splitlines() if not line.startswith("#")]
        if not lines:
            continue
        head = re.fullmatch(r"(\S+) (\S+): (.*)", lines[0])
        if not head:
            sys.exit(f'physics.txt: expected "FILE FUNCTION: what it breaks", found "{lines[0]}"')
        file, function, breaks = head.groups()
        site = "\n".join(line[2:] for line in lines[1:] if line.startswith("- "))
        mutated = "\n".join(line[2:] for line in lines[1:] if line.startswith("+ "))
        marked = re.fullmatch(r"(.*)<<(.*)>>(.*)", site, re.S)
        before, part, behind = marked.groups() if marked else ("", site, "")
        text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        whole = before + part + behind
        found = {at.start() for begin, end in bodies(text, function)
                 for at in re.finditer(re.escape(whole), text) if begin <= at.start() < end}
        if len(found) != 1:
            wrong.append(f"{file} {function}: found {len(found)} times, expected once: {whole}")
            continue
        begin = len((text[:found.pop()] + before).encode())
        sites.append({"number": len(sites) + 1, "file": file, "line": text.encode()[:begin].count(b"\n") + 1,
                      "function": function, "kind": breaks, "begin": begin, "end": begin + len(part.encode()),
                      "original": part, "mutated": mutated, "statement": part.rstrip().endswith(";"), "physics": True})
    return sites, wrong


# --- The copy, its build and its runs.


def plant(folder: pathlib.Path, sites: list):
    of_file = collections.defaultdict(list)
    for site in sites:
        if not site.get("dropped"):
            of_file[site["file"]].append(site)
    for name in tracked():
        data = (ROOT / name).read_bytes()
        data = with_sites(data, of_file[name]) if name in of_file else data
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod((ROOT / name).stat().st_mode)
    write_json(folder / "mutants.json", sites)


def read_json(path: pathlib.Path, otherwise):
    return json.loads(path.read_text()) if path.exists() else otherwise


def write_json(path: pathlib.Path, value):
    path.with_suffix(".new").write_text(json.dumps(value, indent=1) + "\n")
    path.with_suffix(".new").replace(path)


def build(folder: pathlib.Path, targets: list):
    sites = json.loads((folder / "mutants.json").read_text())
    if not (folder / BUILD / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", folder, "-B", folder / BUILD, "-G", "Ninja", "-DCMAKE_UNITY_BUILD=ON",
                        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG -w", "-DORRERY_CUDA=OFF",
                        "-DORRERY_PYTHON=OFF", "-DORRERY_BENCHMARKS=OFF"], check=True)
    while True:
        made = subprocess.run(["cmake", "--build", folder / BUILD, *targets, "--", "-k", "0"], text=True,
                              stdout=subprocess.PIPE)
        if made.returncode == 0:
            return
        numbers = set()
        for file, line in re.findall(r"^(/[^:\n]+):(\d+):\d+: error", made.stdout, flags=re.M):
            near = pathlib.Path(file).read_text().splitlines()[max(0, int(line) - 4):int(line)]
            numbers.update(map(int, re.findall(r"orrery_mutant\((\d+)\)", "\n".join(near))))
        if not numbers:
            sys.exit(made.stdout[-4000:])
        print(f"do not compile, and are left out: {sorted(numbers)}", flush=True)
        for site in sites:
            site["dropped"] = site.get("dropped") or site["number"] in numbers
        plant(folder, sites)


def asked(build_folder: pathlib.Path, unit: dict, limit: float, **environment) -> tuple[str, float]:
    """What failed: a test, or how the program ended; "": all is well. And the seconds."""
    begin = time.monotonic()
    with subprocess.Popen([build_folder / unit["program"], "--gtest_fail_fast", f"--gtest_filter={unit['filter']}"],
                          cwd=build_folder, env={**os.environ, **environment, "GTEST_COLOR": "no"}, text=True,
                          errors="replace", start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as process:
        try:
            out, ended = process.communicate(timeout=limit)[0], ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, ended = process.communicate()[0], "does not end"
    seconds = time.monotonic() - begin
    if process.returncode == 0:
        return "", seconds
    failed = re.findall(r"^\[  FAILED  \] (\S+?)(?:,| \()", out, flags=re.M)
    begun = re.findall(r"^\[ RUN      \] (\S+)", out, flags=re.M)
    return (failed or [f"{begun[-1] if begun else unit['program']} ({ended or process.returncode})"])[0], seconds


def units(build_folder: pathlib.Path) -> dict:
    """The suites of all test programs: kept output apart, and large ones in parts."""
    found, most = {}, 25
    for program in sorted(build_folder.glob("test_*")):
        if not os.access(program, os.X_OK) or program.is_dir():
            continue
        suite, suites = "", collections.defaultdict(list)
        listed = subprocess.run([program, "--gtest_list_tests"], text=True, stdout=subprocess.PIPE).stdout
        for line in listed.splitlines():
            name = line.split("#")[0].strip()
            if not line.startswith(" "):
                suite = name
            else:
                suites[suite, any(fnmatch.fnmatch(suite + name, pattern) for pattern in KEPT)].append(suite + name)
        for (suite, kept), tests in suites.items():
            for i in range(0, len(tests), most):
                part = f" {i // most + 1}" if len(tests) > most else ""
                name = f"{program.name} {suite}{'kept' if kept else '*'}{part}"
                found[name] = {"program": program.name, "kept": kept, "filter": ":".join(tests[i:i + most])}
    return found


def in_parallel(work, items: list, jobs: int, then):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, item): item for item in items}
        try:
            for future in concurrent.futures.as_completed(futures):
                then(futures[future], future.result())
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            sys.exit("interrupted; the same command goes on")


def reach(folder: pathlib.Path, longest: float, jobs: int, programs: list):
    known = read_json(folder / "reached.json", {})
    every = {name: unit for name, unit in units(folder / BUILD).items() if not programs or unit["program"] in programs}

    def one(name: str):
        log = folder / f"log {name.replace('/', '_')}"
        log.unlink(missing_ok=True)
        failed, seconds = asked(folder / BUILD, every[name], longest, ORRERY_MUTANT_LOG=str(log))
        reached = sorted(set(map(int, log.read_text().split()))) if log.exists() else []
        log.unlink(missing_ok=True)
        return {**every[name], "failed": failed, "seconds": round(seconds, 2), "reached": reached}

    def note(name: str, result: dict):
        known[name] = result
        write_json(folder / "reached.json", known)
        print(f"{len(known)}/{len(every)} {name}: {result['seconds']} s, {len(result['reached'])} sites"
              + (f", left out: {result['failed']}" if result["failed"] else ""), flush=True)

    def again(name: str) -> bool:
        return name not in known or ("does not end" in known[name]["failed"] and known[name]["seconds"] < longest - 1)

    in_parallel(one, [name for name in every if again(name)], jobs, note)


def results_of(folder: pathlib.Path) -> dict:
    path = folder / "mutants_asked.jsonl"
    return {r["number"]: r for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def run(folder: pathlib.Path, longest: float, jobs: int):
    sites = [s for s in json.loads((folder / "mutants.json").read_text()) if not s.get("dropped")]
    known, done = json.loads((folder / "reached.json").read_text()), results_of(folder)

    def left(site: dict) -> list:
        before = done.get(site["number"], {"state": "", "asked": []})
        able = [name for name, u in known.items() if site["number"] in u["reached"] and not u["failed"]
                and u["seconds"] < longest and name not in before["asked"] and before["state"] not in ("seen", "kept")]
        return sorted(able, key=lambda name: (known[name]["kept"], known[name]["seconds"]))

    def one(site: dict):
        begin, asked_now = time.monotonic(), done.get(site["number"], {"asked": []})["asked"][:]
        state, by = "not reached", ""
        for name in left(site):
            unit = known[name]
            by, _ = asked(folder / BUILD, unit, 20 + 8 * unit["seconds"], ORRERY_MUTANT=str(site["number"]))
            asked_now.append(name)
            if by:
                break
        if asked_now:
            state = "not seen" if not by else "kept" if known[asked_now[-1]]["kept"] else "seen"
        return {"number": site["number"], "state": state, "by": by, "seconds": round(time.monotonic() - begin, 1),
                "asked": asked_now}

    def note(site: dict, result: dict):
        with (folder / "mutants_asked.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        done[site["number"]] = result
        print(f"{len(done)}/{len(sites)} {site['file']}:{site['line']} {site['kind']}: {result['state']} {result['by']}"
              f" ({result['seconds']} s)", flush=True)

    todo = [s for s in sites if s["number"] not in done or left(s)]
    random.Random(0).shuffle(todo)  # so that what an interrupted run has asked is a sample, too
    in_parallel(one, todo, jobs, note)


def report(folder: pathlib.Path, equivalent: dict) -> str:
    sites = [s for s in json.loads((folder / "mutants.json").read_text()) if not s.get("dropped")]
    known, done = read_json(folder / "reached.json", {}), results_of(folder)
    counts = collections.defaultdict(collections.Counter)
    for site in sites:
        state = done.get(site["number"], {"state": "not run"})["state"]
        state = "equivalent" if state not in ("seen", "kept") and site["number"] in equivalent else state
        for name in (of_site(site), *([] if site.get("physics") else ["all"])):
            counts[name][state] += 1
    columns = ["seen", "kept", "not seen", "not reached", "equivalent", "not run"]
    lines = ["| library | drawn | seen by tests | by kept output alone | not seen | not reached | equivalent | not run "
             "| seen |", "|---|" + "---:|" * 8]
    for name in sorted(counts, key=lambda n: ("faults" in n, n == "all", n)):
        c = counts[name]
        of = sum(c[column] for column in columns[:4])
        lines.append(f"| {name} | {c.total()} | " + " | ".join(str(c[column]) for column in columns)
                     + (f" | {c['seen'] / of:.0%} |" if of else " | - |"))
    left = sorted(f"{name} ({u['failed']})" for name, u in known.items() if u["failed"])
    lines += ["", "Suites left out: " + ("; ".join(left) or "none") + "."]
    for state in ("kept", "not seen", "not reached"):
        lines += ["", f"## {state.capitalize()}", ""]
        for s in sites:
            if done.get(s["number"], {}).get("state") == state:
                why = f" Equivalent: {equivalent[s['number']]}" if s["number"] in equivalent else ""
                shown = [" ".join(s[text].split()).replace("`", "'")[:160] for text in ("original", "mutated")]
                lines.append(f"- {s['number']}. `{s['file']}:{s['line']}` {s['function']}, {s['kind']}: `{shown[0]}` "
                             f"became `{shown[1] or 'nothing'}`.{why}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["draw", "build", "reach", "run", "report", "check"])
    parser.add_argument("folder", type=lambda p: pathlib.Path(p).resolve(), nargs="?")
    parser.add_argument("targets", nargs="*", help="test programs to build and to reach, where not all are to be asked")
    parser.add_argument("--sites", type=int, default=150)
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    parser.add_argument("--physics", action="store_true")
    parser.add_argument("--only", action="append", help="a folder or file, as git names it", metavar="PATH")
    parser.add_argument("--longest", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--equivalent", type=pathlib.Path)
    a = parser.parse_args()
    if a.command == "check":
        sites, wrong = physics()
        if wrong:
            sys.exit("physics.txt is not of this tree:\n" + "\n".join(wrong))
        return print(f"{len(sites)} faults, each in its place")
    if a.folder is None:
        parser.error(f"{a.command} needs a folder")
    if a.command == "draw":
        sites = physics()[0] if a.physics else []
        plant(a.folder, drawn(a.sites, a.seed, a.only or ROOMS, sites) if a.sites else sites)
    elif a.command == "build":
        build(a.folder, ["--target", *a.targets] if a.targets else [])
    elif a.command == "reach":
        reach(a.folder, a.longest, a.jobs, a.targets)
    elif a.command == "run":
        run(a.folder, a.longest, a.jobs)
    elif a.command == "report":
        pairs = (line.partition(": ") for line in a.equivalent.read_text().splitlines()) if a.equivalent else ()
        print(report(a.folder, {int(number): reason for number, _, reason in pairs}))


if __name__ == "__main__":
    main()
