"""What the notebooks share: the look of their figures, where they are written, and the command orrery.

Importing it puts paper.mplstyle into force.
"""
import os
import pathlib
import shutil
import subprocess

import matplotlib.pyplot as plt

FOLDER = pathlib.Path(__file__).resolve().parent
WIDTH_INCHES = 3.3

plt.style.use(FOLDER / "paper.mplstyle")
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = plt.rcParams["axes.prop_cycle"].by_key()["color"]


def figure(rows=1, height=2.2, **options):
    """A figure of one column and its axes; options as of matplotlib.pyplot.subplots."""
    return plt.subplots(rows, 1, figsize=(WIDTH_INCHES, height), **options)


def save(drawn, name, measured_on=None):
    """Writes NAME.pdf and NAME.png into $ORRERY_FIGURES, without it into results/figures.

    The same input gives the same bytes. measured_on: the machine, where the notebook has measured: no two are alike.
    """
    folder = pathlib.Path(os.environ.get("ORRERY_FIGURES", FOLDER.parent / "results" / "figures"))
    drawn.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Subject": measured_on})
    drawn.savefig(folder / f"{name}.png", metadata={"Source": measured_on} if measured_on else {})


def orrery(*arguments, **environment):
    """What the command prints, for what the Python module does not answer: timelines and benchmarks."""
    command = shutil.which("orrery")
    if command is None:
        raise FileNotFoundError("found no orrery: export PATH=\"$PWD/build/default:$PATH\"")
    done = subprocess.run([command, *map(str, arguments)], env={**os.environ, **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1, 3):  # 1 and 3 are verdicts
        raise RuntimeError(done.stderr.strip())
    return done.stdout

