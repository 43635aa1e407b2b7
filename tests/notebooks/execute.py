#!/usr/bin/env python3
"""Executes a notebook as nbconvert does, and holds its figures to those in results/figures.

    export PYTHONPATH=$PWD/build/default/python PATH=$PWD/build/default:$PATH
    tests/notebooks/execute.py notebooks/scaling.ipynb

Figures are drawn into a temporary folder. Each has to stand in results/figures as PDF and PNG, one column wide; and to
be the same picture, where the same Matplotlib draws it and nothing in it was measured meanwhile.
"""
import os
import pathlib
import re
import sys
import tempfile

import matplotlib.image
import nbformat
import numpy
import PIL.Image
from nbconvert.preprocessors import ExecutePreprocessor
from traitlets.config import Config

root = pathlib.Path(__file__).resolve().parents[2]
committed = root / "results" / "figures"
WIDTH_INCHES = 3.3
REFRESH = "notebooks/README.md says how figures are drawn anew"
# Most by which pixels may differ in the mean, from 0 (black) to 1 (white). Predictions that are half a per cent off
# change scaling.png eight times as much.
SAME_PICTURE = 2e-4


def problems_of_source(notebook) -> list:
    """A notebook is kept without what it has printed, and its links lead somewhere."""
    problems = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count):
            problems.append(f"cell {number} is kept with its output: jupyter nbconvert --clear-output --inplace")
        if cell.cell_type == "markdown":
            problems += [f"cell {number} links to {link}" for link in re.findall(r"\]\(([^)#]+)", cell.source)
                         if "://" not in link and not (root / "notebooks" / link).exists()]
    return problems


def execute(notebook, figures: pathlib.Path, runtime: str) -> None:
    os.environ.update(ORRERY_FIGURES=str(figures), JUPYTER_RUNTIME_DIR=runtime, IPYTHONDIR=runtime,
                      PYTHONDONTWRITEBYTECODE="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    config = Config()
    config.KernelManager.transport = "ipc"  # of kernels that start at a time, none takes another's port
    config.KernelManager.ip = f"{runtime}/kernel"  # sockets beside each other, whatever folder who uses them is in
    preprocessor = ExecutePreprocessor(timeout=600, startup_timeout=300, kernel_name="python3", config=config)
    preprocessor.preprocess(notebook, {"metadata": {"path": str(root / "notebooks")}})


def problems_of_figure(drawn: pathlib.Path) -> list:
    kept = committed / drawn.name
    if not kept.exists():
        return [f"{kept.relative_to(root)} is missing; {REFRESH}"]
    if drawn.suffix == ".pdf":
        box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", kept.read_bytes())
        width = float(box.group(1)) / 72 if box else 0
        return [] if abs(width - WIDTH_INCHES) < 0.01 else [f"{kept.name} is {width} inches wide"]
    problems = []
    with PIL.Image.open(kept) as old, PIL.Image.open(drawn) as new:
        width = old.width / old.info["dpi"][0]
        if abs(width - WIDTH_INCHES) > 0.01:
            problems.append(f"{kept.name} is {width} inches wide")
        if len(old.convert("RGB").getcolors(1 << 24)) < 3:
            problems.append(f"{kept.name} is empty")
        if "Source" in new.info or old.info.get("Software") != new.info.get("Software"):
            return problems
    pictures = [matplotlib.image.imread(path)[..., :3] for path in (kept, drawn)]
    if pictures[0].shape != pictures[1].shape or numpy.abs(pictures[0] - pictures[1]).mean() > SAME_PICTURE:
        problems.append(f"{kept.relative_to(root)} is not what the notebook draws now; {REFRESH}, "
                        "and what the notebook says beside it has to be read again")
    return problems


def main() -> int:
    path = pathlib.Path(sys.argv[1]).resolve()
    notebook = nbformat.read(path, as_version=4)
    problems = problems_of_source(notebook)
    with tempfile.TemporaryDirectory(prefix="orrery_notebook_") as folder:
        figures = pathlib.Path(folder) / "figures"
        figures.mkdir()
        execute(notebook, figures, folder)
        drawn = sorted(figures.iterdir())
        if {figure.name for figure in drawn} != {f"{path.stem}.pdf", f"{path.stem}.png"}:
            problems.append(f"draws {[figure.name for figure in drawn]}, not {path.stem}.pdf and {path.stem}.png")
        for figure in drawn:
            problems += problems_of_figure(figure)
    for problem in problems:
        print(f"{path.relative_to(root)}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
