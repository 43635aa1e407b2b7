#!/usr/bin/env python3
"""Can the tests fail? Plants the faults of faults.txt, all compiled into one copy of the tree, switches one on at a
time and looks which test sees it.

    plant.py --check                every site is found once, where faults.txt has it (ctest runs this)
    plant.py plant FOLDER           copies the tree into FOLDER, with all faults in it
    cmake -S FOLDER -B FOLDER/build -G Ninja -DCMAKE_UNITY_BUILD=ON && cmake --build FOLDER/build
    plant.py run FOLDER/build [ID ..]
                                    runs the tests fault by fault, and keeps who saw each in seen.json;
                                    --briefly: by the likely tests alone; --unseen: faults that nothing has seen yet
    plant.py markdown               writes the tables of docs/testing.md anew

A run takes some seconds a fault that is seen, and minutes for one that is not.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEEN = HERE / "seen.json"
PAGE = ROOT / "docs" / "testing.md"

# Tests that hold what is printed to what is kept: whoever makes the kept files anew turns them green.
GENERATED = ["*Guide.PrintsWhatIsShown*", "Readme.TablesOfStrategiesAreAsPredicted", "Readme.PicturesAreAsDrawn",
             "Accuracy.ThePageIsAsGenerated", "Accuracy.NoSourceIsPredictedWorseThanBefore",
             "Intervals.AreThoseOfTheCalibrationFile", "MeasuredCollectives.TheCommittedTableIsCurrent",
             "MeasuredCollectives.AnalyticalErrorsAreTheResidualsOfTheCalibration",
             "CollectiveResiduals.AreThoseStatedInTheCalibration", "*EveryCalibration.States*",
             "Schema.CheckedInCopyIsTheGeneratedOne"]
# Slow, and of what these faults are not in: the whole quick start, prompts of shells, GPUs' sessions, signals.
APART = ["DeviceSession.*", "RunOverMpi.AnInterruptEnds*", "Readme.DesignDocumentsUseTheCodesNames",
         "Readme.LinksAndPicturesExist"]
# Asked when all others have been: they take more time than the rest together.
SLOW = ["Cuda*", "StandIn*", "Mpi.*", "OpRules.NoneIsWrong*", "AgreementOfEngines.*", "RunOverMpi.*", "Sweep.Every*",
        "Batch.*", "NetlabTest.*"]
ORDER = ["base", "program", "memory", "cost", "hardware", "planning", "models", "pipeline", "report", "analytical",
         "traces", "packing", "strategies", "capacity", "training", "validation", "des", "realrun", "simulation", "search",
         "sweep", "cli", "smpi"]
BRIEF = ORDER[:ORDER.index("des")]  # some seconds together
ORDER_OF_SLOW = ["realrun", "simulation", "cli", "netlab"]
# Whose tests are asked first, by the beginning of the path.
FIRST = {
    "sim/des": ["des"], "sim/analytical": ["analytical", "pipeline", "des"], "study/prediction": ["strategies", "cli"],
    "study/simulation": ["simulation", "cli"], "study/validation": ["validation"],
    "study/answers": ["cli", "simulation"], "sim/report": ["report", "cli"],
    "sim/hardware": ["hardware"], "sim/planning": ["planning"],
    "study/capacity": ["capacity", "cli"], "study/search": ["search", "cli"], "study/sweep": ["sweep", "cli"],
    "sim/base": ["base", "cli"], "sim/cost": ["cost"], "sim/memory": ["memory"],
    "study/training": ["training", "cli"], "strategies/flexmoe": ["strategies", "training"],
    "strategies/dts_gate": ["strategies", "training"], "strategies": ["strategies", "realrun"], "traces": ["traces", "packing"],
    "models": ["models", "strategies", "realrun"], "realrun": ["realrun"], "cli": ["cli"],
}
# Test programs that are asked on purpose only: of commands in the documentation, and of readers, which have no faults.
NOT_ASKED = ["readme", "fuzz"]
LONGEST = 900  # seconds of a test program; a test that hangs has seen the fault
NONE = -1  # no fault

HEADER_PATH = "tests/faults/planted.h"
HEADER = """#pragma once
#include <cstdlib>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-variable"
namespace fault {
#ifdef __CUDACC__
// Kernels are tested on the stand-in of the device.
__host__ __device__ inline bool on(int) { return false; }
#else
inline bool on(int number) {
  static const int chosen = [] {
    const char* text = std::getenv("ORRERY_FAULT");
    return text == nullptr ? -1 : std::atoi(text);
  }();
  return chosen == number;
}
#endif
}  // namespace fault
"""


class Fault:
    def __init__(self, number: int, file: str, name: str, breaks: str):
        self.number, self.file, self.name, self.breaks = number, file, name, breaks
        self.site, self.wrong = [], []

    def parts(self):
        """What stands before the part that is replaced, the part, and what stands behind it."""
        site = "\n".join(self.site)
        if "<<" not in site or ">>" not in site.split("<<", 1)[1]:
            return "", site, ""
        before, rest = site.split("<<", 1)
        part, behind = rest.rsplit(">>", 1)
        return before, part, behind

    def text(self) -> str:
        return "".join(self.parts())

    def planted(self) -> str:
        before, part, behind = self.parts()
        wrong = "\n".join(self.wrong)
        if re.sub(r"\s*//.*$", "", part).endswith(";"):
            planted = f"{{ if (::fault::on({self.number})) {{ {wrong}\n}} else {{ {part}\n}} }}"
        else:
            planted = f"(::fault::on({self.number}) ? ({wrong}) : ({part}))"
        return before + planted + behind

    def library(self) -> str:
        folders = self.file.split("/")
        return "/".join(folders[:1 if folders[0] in ("cli", "models", "traces") or len(folders) < 3 else 2])


def faults() -> list:
    all_faults, file = [], ""
    for number, line in enumerate((HERE / "faults.txt").read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        kind, rest = line[:2], line[2:]
        if line.startswith("file "):
            file = line[5:]
        elif kind == "- ":
            all_faults[-1].site.append(rest)
        elif kind == "+ ":
            all_faults[-1].wrong.append(rest)
        else:
            name, colon, breaks = line.partition(": ")
            if not colon or not file:
                sys.exit(f"faults.txt:{number}: expected \"id: what it breaks\", \"- \", \"+ \" or \"file PATH\"")
            all_faults.append(Fault(len(all_faults), file, name, breaks))
    return all_faults


def check(all_faults: list) -> list:
    wrong = []
    names = collections.Counter(f.name for f in all_faults)
    wrong += [f"{name}: {n} faults of this name" for name, n in names.items() if n > 1]
    places = collections.defaultdict(list)
    for f in all_faults:
        path = ROOT / f.file
        if not path.exists():
            wrong.append(f"{f.name}: there is no {f.file}")
            continue
        text = path.read_text()
        found = text.count(f.text())
        if found != 1:
            wrong.append(f"{f.name}: found {found} times in {f.file}, expected once: {f.text()!r}")
        elif not f.wrong and not re.sub(r"\s*//.*$", "", f.parts()[1]).endswith(";"):
            wrong.append(f"{f.name}: an expression needs what stands in its place")
        else:
            begin = text.index(f.text())
            places[f.file].append((begin, begin + len(f.text()), f.name))
    for of_file in places.values():
        of_file.sort()
        wrong += [f"{a[2]} and {b[2]}: their sites overlap" for a, b in zip(of_file, of_file[1:]) if b[0] < a[1]]
    return wrong


def write_if_other(path: pathlib.Path, data: bytes, mode: int):
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    path.chmod(mode)


def plant(folder: pathlib.Path):
    all_faults = faults()
    if wrong := check(all_faults):
        sys.exit("\n".join(wrong))
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, text=True,
                            stdout=subprocess.PIPE).stdout.split("\n")
    by_file = collections.defaultdict(list)
    for f in all_faults:
        by_file[f.file].append(f)
    for name in filter(None, listed):
        path = ROOT / name
        if not path.is_file():
            continue
        data = path.read_bytes()
        if name in by_file:
            text = data.decode()
            for f in by_file[name]:
                text = text.replace(f.text(), f.planted())
            include = f'#include "{HEADER_PATH}"\n'
            once = "#pragma once\n"
            text = text.replace(once, once + include, 1) if name.endswith(".h") else include + text
            data = text.encode()
        write_if_other(folder / name, data, path.stat().st_mode)
    write_if_other(folder / HEADER_PATH, HEADER.encode(), 0o644)
    (folder / "tests/faults/numbers.json").write_text(json.dumps({f.name: f.number for f in all_faults}))


def failed_test(folder: pathlib.Path, program: str, chosen: str, fault: int):
    """The test that fails first, or why the program ended; None: all is well."""
    environment = {**os.environ, "ORRERY_FAULT": str(fault), "GTEST_COLOR": "no"}
    with subprocess.Popen([folder / f"test_{program}", "--gtest_fail_fast", f"--gtest_filter={chosen}"],
                          cwd=folder, env=environment, text=True, errors="replace", start_new_session=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            out, _ = process.communicate(timeout=LONGEST)
            ended = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, ended = process.communicate()[0], "does not end"
    if ended == 0:
        return None
    failed = re.findall(r"^\[  FAILED  \] (\S+?)(?:,| \()", out, flags=re.M)
    begun = re.findall(r"^\[ RUN      \] (\S+)", out, flags=re.M)
    return failed[0] if failed else f"{begun[-1] if begun else program} ({ended})"


def seen_by(folder: pathlib.Path, fault: Fault, number: int, known, briefly: bool, last_resort: bool):
    """(kind, program, test)"""
    if known:
        program, test = known[1], known[2].split(" ")[0]
        if failed := failed_test(folder, program, test, number):
            return [known[0], program, failed]
    first = next((programs for prefix, programs in FIRST.items() if fault.file.startswith(prefix)), [])
    quick = "*-" + ":".join(GENERATED + APART + SLOW)
    order = first + [p for p in ORDER if p not in first]
    for program in [p for p in order if p in first or p in BRIEF] if briefly else order:
        if failed := failed_test(folder, program, quick, number):
            return ["test", program, failed]
    for program in [] if briefly else ORDER_OF_SLOW:
        if failed := failed_test(folder, program, ":".join(SLOW) + "-" + ":".join(GENERATED + APART), number):
            return ["test", program, failed]
    if last_resort:
        for program in ["validation", "cost", "cli", "readme"]:
            if failed := failed_test(folder, program, ":".join(GENERATED), number):
                return ["generated", program, failed]
    return None


def numbers_of(folder: pathlib.Path):
    return (parent / "tests/faults/numbers.json" for parent in [folder, *folder.parents])


def run(folder: pathlib.Path, names: list, unseen: bool, briefly: bool, last_resort: bool):
    numbers = json.loads(next(p for p in numbers_of(folder) if p.exists()).read_text())
    seen = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    all_faults = faults()
    sound = set()  # tests that pass without a fault
    unknown = [n for n in names if n not in numbers]
    if unknown:
        sys.exit(f"no faults of {folder}: {', '.join(unknown)}")
    for f in all_faults:
        if (names and f.name not in names) or (unseen and seen.get(f.name)) or f.name not in numbers:
            continue
        begin = time.monotonic()
        seen[f.name] = seen_by(folder, f, numbers[f.name], seen.get(f.name), briefly, last_resort)
        if seen[f.name]:
            _, program, test = seen[f.name]
            if test not in sound and failed_test(folder, program, test.split(" ")[0], NONE):
                sys.exit(f"{test} fails without a fault, too: what is planted changes what it should not")
            sound.add(test)
        result = " ".join(seen[f.name]) if seen[f.name] else "NOT SEEN"
        print(f"{f.name:28} {time.monotonic() - begin:6.1f} s  {result}", flush=True)
        now = {other.name: seen[other.name] for other in all_faults if other.name in seen}
        SEEN.write_text(json.dumps(now, indent=0) + "\n")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def tables(all_faults: list) -> tuple[str, str]:
    seen = json.loads(SEEN.read_text())
    counts = collections.OrderedDict()
    for f in sorted(all_faults, key=lambda f: f.library()):
        count = counts.setdefault(f.library(), [0, 0, 0, 0, 0])
        kind = seen[f.name][0] if seen.get(f.name) else None
        count[0] += 1
        count[4 if f.name not in seen else 1 if kind == "test" else 2 if kind == "generated" else 3] += 1
    total = [sum(column) for column in zip(*counts.values())]
    summary = ["| library | faults | seen by tests | by generated files alone | not seen | not run yet |",
               "|---|---:|---:|---:|---:|---:|"]
    summary += [f"| {name} | " + " | ".join(map(str, count)) + " |" for name, count in counts.items()]
    summary += ["| all | " + " | ".join(map(str, total)) + " |"]
    rows = ["| library | fault | seen first by |", "|---|---|---|"]
    for f in sorted(all_faults, key=lambda f: f.library()):
        test = "not run yet" if f.name not in seen else seen[f.name][2] if seen[f.name] else "nothing"
        kept = " (kept file)" if seen.get(f.name) and seen[f.name][0] == "generated" else ""
        rows.append(f"| {f.library()} | {cell(f.breaks)} | {cell(test)}{kept} |")
    return "\n".join(summary), "\n".join(rows)


def markdown():
    text = PAGE.read_text()
    for name, table in zip(("libraries", "faults"), tables(faults())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            sys.exit(f"{PAGE}: no place for the table of {name}")
        text = text[:text.index(begin) + len(begin)] + "\n" + table + "\n\n" + text[text.index(end):]
    PAGE.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    commands = parser.add_subparsers(dest="command")
    one = commands.add_parser("plant")
    one.add_argument("folder", type=pathlib.Path)
    two = commands.add_parser("run")
    two.add_argument("folder", type=pathlib.Path)
    two.add_argument("ids", nargs="*")
    two.add_argument("--unseen", action="store_true")
    two.add_argument("--briefly", action="store_true", help="by the likely tests and the quickest ones alone")
    two.add_argument("--last-resort", action="store_true", help="ask the tests of generated files, too")
    commands.add_parser("markdown")
    arguments = parser.parse_args()
    if arguments.check:
        programs = {test.parent.name for test in ROOT.glob("tests/*/*_test.cpp")}
        if unasked := programs.difference(ORDER, ORDER_OF_SLOW, NOT_ASKED):
            sys.exit(f"no fault is shown to the tests of {', '.join(sorted(unasked))}: plant.py's ORDER lacks them")
        if wrong := check(faults()):
            sys.exit("faults.txt is not of this tree:\n" + "\n".join(wrong))
        print(f"{len(faults())} faults, each with its site")
    elif arguments.command == "plant":
        plant(arguments.folder.resolve())
    elif arguments.command == "run":
        run(arguments.folder.resolve(), arguments.ids, arguments.unseen, arguments.briefly, arguments.last_resort)
    elif arguments.command == "markdown":
        markdown()
    else:
        parser.print_help()


if __name__ == "__main__":
    main()
