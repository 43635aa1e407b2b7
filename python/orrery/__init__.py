"""How long a training step of a deep network takes on a cluster, and why.

The functions answer what the commands of ``orrery`` answer, in the same documents: what ``--json`` writes, as dicts.
A scenario is a dict, the name of a bundled one (:func:`scenarios`), a path, or the id of a published measurement.
Other Python threads run while one of these works.
"""
import json as _json
import os as _os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from . import _orrery
from ._errors import InputError, StalledError

__all__ = ["InputError", "StalledError", "compare", "compare_sweeps", "plan", "presets", "program", "scenarios", "search", "show",
           "simulate", "sweep", "sweep_rows", "to_frame", "validate"]
__version__: str = _orrery.version

Document = Dict[str, Any]
Scenario = Union[Mapping[str, Any], str, "_os.PathLike[str]"]
Sets = Union[Mapping[str, Any], Sequence[str]]  # {"plan.zero_stage": 3} or ["plan.zero_stage=3"]
Fields = Union[Mapping[str, Any], Sequence[str]]  # the same, or ["plan.zero_stage"] without a value
Paths = Sequence[Union[str, "_os.PathLike[str]"]]


def _document(text: str) -> Document:
    document: Document = _json.loads(text)
    return document


def _documents(text: str) -> List[Document]:
    documents: List[Document] = _json.loads(text)
    return documents


def _text(value: Any) -> str:
    try:
        return _json.dumps(value, allow_nan=False)
    except ValueError as error:
        found, expected = "NaN or an infinite number", "finite numbers"
        raise InputError(f"<dict>: found {found}, expected {expected}", "<dict>", "", found, expected) from error


def _argument(scenario: Scenario) -> _orrery.Argument:
    if isinstance(scenario, Mapping):
        return _orrery.Argument("<dict>", _text(dict(scenario)))
    return _orrery.Argument(_os.fspath(scenario))


def _engine(engine: str, fidelity: str, routing: str, limit: Optional[float], exact: bool) -> _orrery.Engine:
    return _orrery.Engine(engine, fidelity, routing, None if limit is None else str(limit), exact)


def _sets(sets: Fields) -> List[str]:
    """As the command line has them."""
    if isinstance(sets, Mapping):
        return [f"{field}={_text(value)}" for field, value in sets.items()]
    if isinstance(sets, str):
        raise TypeError(f"a list of fields, or a dict: [{sets!r}]")
    return list(sets)


def _listed(values: Paths, what: str = "files") -> List[str]:
    if isinstance(values, (str, _os.PathLike)):
        raise TypeError(f"a list of {what}: [{values!r}]")
    return [_os.fspath(value) for value in values]


def simulate(scenario: Scenario, sets: Sets = (), *, engine: str = "analytical", fidelity: str = "", routing: str = "",
             limit: Optional[float] = None, exact: bool = False, ops: bool = False, calibrations: Paths = (),
             label: str = "") -> Document:
    """What ``orrery simulate`` says of a training step.

    sets: fields that are overridden. engine: "analytical", "des" (discrete events: contention, slow parts, failures,
    jobs that share a cluster) or "both"; fidelity, routing, limit and exact are choices of "des". ops: keeps the list
    of ops. calibrations: files that ``orrery calibrate`` has written, in place of the bundled calibration.
    """
    return _document(_orrery.simulate(_argument(scenario), _sets(sets),
                                      _engine(engine, fidelity, routing, limit, exact), ops, _listed(calibrations),
                                      label))


def compare(a: Scenario, b: Optional[Scenario] = None, sets: Sets = (), *, sets_a: Sets = (), sets_b: Sets = (),
            engine: str = "analytical", fidelity: str = "", routing: str = "", limit: Optional[float] = None,
            exact: bool = False, calibrations: Paths = ()) -> Document:
    """What ``orrery compare`` says of two scenarios, or of reports of :func:`simulate` and ``orrery run``.

    b: a again where it is left out. sets: of both; sets_a, sets_b: of one. The rest is that of :func:`simulate`.
    """
    return _document(_orrery.compare(_argument(a), _argument(a if b is None else b), _sets(sets), _sets(sets_a),
                                     _sets(sets_b), _engine(engine, fidelity, routing, limit, exact),
                                     _listed(calibrations)))


def search(scenario: Scenario, sets: Sets = (), *, fix: Fields = (), over: Fields = (), all: bool = False,
           global_batch: Union[int, str, Iterable[int], None] = None, max_memory: Union[int, str, None] = None,
           at_most: Sets = (), safe: bool = False, top: int = 10, front: float = 1.1,
           network_within: Optional[float] = None, exhaustive: bool = False, threads: int = 0,
           engine: str = "analytical", fidelity: str = "", routing: str = "", limit: Optional[float] = None,
           exact: bool = False, calibrations: Paths = (), label: str = "") -> Document:
    """What ``orrery search`` answers: the fastest plans that fit, and the front of time and memory.

    sets, fix: fields of the plan that are not searched. over: fields that are, with their values or those that their
    strategy declares. global_batch: "256..4096" (doubling) or a list of batches. max_memory: bytes of a device, or
    "64G". at_most: the largest values of figures of the report, {"staleness": 24}. safe: predicted peaks must fit with
    the upper end of their interval. front: of plans that take at most so many times the fastest's time.
    network_within: also the slowest network that costs so many per cent at most. threads: 0 for as many as the machine
    has. Where nothing fits, "nothing_fits" says why and what would. Ctrl-C ends a search.
    """
    if global_batch is None or isinstance(global_batch, (int, str)):
        batches = "" if global_batch is None else str(global_batch)
    else:
        batches = ",".join(str(batch) for batch in global_batch)
    return _document(_orrery.search(_argument(scenario), _sets(sets), _sets(fix), _sets(over), all, batches,
                                    "" if max_memory is None else str(max_memory), _sets(at_most), safe, top, front,
                                    network_within, exhaustive, threads,
                                    _engine(engine, fidelity, routing, limit, exact), _listed(calibrations), label))


def plan(plan: Scenario, sets: Sets = (), *, worst: bool = False, search: bool = False, fix: Sequence[str] = (),
         of: str = "cost", swing: float = 0.2, against: str = "", seed: int = 1, histories: int = 100,
         shape: float = 1.0, calibrations: Paths = ()) -> Document:
    """What ``orrery plan`` answers: which cluster trains a model by a deadline and within a budget, for how much.

    plan: a dict, the name of a bundled one, or a path. sets: fields that are overridden. worst: deadline and budget
    hold at the slow end of the step's interval. search: the fastest plan that surely fits, for each size of each
    candidate; fix: fields of plans that it leaves. of, swing: what sensitivities are of, and by which share inputs are
    less and more. against: the candidate to whose price others are compared. seed, histories, shape: of simulated
    failures. Where nothing meets all constraints, "cheapest" is None and "relaxations" says what would let something in.
    """
    return _document(_orrery.plan(_argument(plan), _sets(sets), worst, search, _listed(fix, "names"), of, swing,
                                  against, seed, histories, shape, _listed(calibrations)))


def sweep(sweep: Scenario, database: Union[str, "_os.PathLike[str]"], *, rows: bool = True, fields: Sequence[str] = (),
          threads: int = 0, shard: str = "", calibrations: Paths = ()) -> Document:
    """What ``orrery sweep`` does: a scenario at every combination of values of its fields, kept in a database.

    sweep: a dict, the name of a bundled one, or a path. database: a file, made if it is not there; points whose results
    it has are not computed again. rows: "rows" of the answer are those of the sweep's points that are there, a dict
    each; fields: only these of them (those of axes, columns of ``simulate --csv``, "error", "sweep", "number", "key").
    threads: 0 for as many as the machine has. shard: "2/3" is the second of three parts. A point that cannot be laid
    out is a row with its "error"; :class:`InputError` is raised where all are. Ctrl-C ends the points under way and
    keeps what is computed: the same call goes on.
    """
    return _document(_orrery.sweep(_argument(sweep), _os.fspath(database), shard, threads, _listed(calibrations), rows,
                                   _listed(fields, "names")))


def sweep_rows(database: Union[str, "_os.PathLike[str]"], fields: Sequence[str] = ()) -> List[Document]:
    """The points that a database of sweeps holds, a dict each, as ``orrery sweep export`` has them.

    fields: only these, as of :func:`sweep`.
    """
    return _documents(_orrery.sweep_rows(_os.fspath(database), _listed(fields, "names")))


def compare_sweeps(a: Union[str, "_os.PathLike[str]"], b: Union[str, "_os.PathLike[str]"], *, threshold: float = 0.01,
                   fields: Sequence[str] = ("step_seconds", "memory_peak_bytes", "memory_fits")) -> Document:
    """What ``orrery compare`` says of two databases of sweeps: which points moved, by more than the threshold.

    "alike" is whether none did and none is gone. fields: the columns that are compared.
    """
    return _document(_orrery.compare_sweeps(_os.fspath(a), _os.fspath(b), threshold, _listed(fields, "names")))


def validate(*, source: str = "", gpu: str = "", strategy: str = "", seen: str = "others") -> List[Document]:
    """The points of ``orrery validate``: published measurements, what is predicted of each, and the error.

    source, gpu: parts of a name. strategy: a word of plans, as "zero-3". seen: the sources that the calibration of
    steps has been fitted on: all "others" than the point's own, "all", or "none".
    """
    return _documents(_orrery.validate(source, gpu, strategy, seen))


def program(scenario: Scenario, sets: Sets = (), *, calibrations: Paths = ()) -> Document:
    """What the scenario is lowered to, which all engines take: its mesh, pieces, stages and schedule.

    A piece has "tensors" (those of one rank) and "blocks" of ops: "forward", "backward", "weight_gradient", "update".
    An op has its kind, name, stream, what it reads and writes (numbers in "tensors") and the digits of the mesh that
    its group runs over; a tensor its dtype, sizes, axes, category, place and bytes.
    """
    return _document(_orrery.program(_argument(scenario), _sets(sets), _listed(calibrations)))


def presets(kind: str) -> List[Document]:
    """Names with a summary each, as ``orrery list`` has them.

    kind: "models", "clusters", "nodes", "devices", "fabrics", "strategies", "scenarios", "measurements" or "fields".
    """
    return _documents(_orrery.list(kind))


def scenarios() -> List[Document]:
    """The bundled scenarios."""
    return presets("scenarios")


def show(name: str) -> Document:
    """All that is known of a name, by kind, as ``orrery show`` has it."""
    return _document(_orrery.show(name))


def _columns(value: Any, before: str, row: Document) -> None:
    for key, item in value.items():
        if isinstance(item, Mapping):
            _columns(item, f"{before}{key}.", row)
        elif not isinstance(item, list):
            row[before + key] = item


def to_frame(results: Union[Mapping[str, Any], Iterable[Mapping[str, Any]]]) -> Any:
    """A pandas.DataFrame of results, a row each: columns "step_seconds", "memory.peak_bytes", ...

    results: of :func:`simulate`, :func:`validate`, :func:`presets`, :func:`sweep_rows`, a list of such, or an answer of
    :func:`search`, :func:`sweep` or :func:`plan`, whose plans, rows or candidates are the rows. Lists inside results,
    and scenarios, have no columns.
    """
    try:
        import pandas  # type: ignore[import]
    except ImportError as error:
        raise ImportError("orrery.to_frame takes pandas, which is not installed: pip install pandas") from error
    if isinstance(results, Mapping):
        results = next((results[key] for key in ("plans", "rows", "candidates") if key in results), [results])
    rows = []
    for result in results:
        row: Document = {}
        _columns({key: value for key, value in result.items() if key != "inputs"}, "", row)
        if isinstance(result.get("inputs"), Mapping) and "digest" in result["inputs"]:
            row["inputs.digest"] = result["inputs"]["digest"]
        rows.append(row)
    return pandas.DataFrame(rows)
