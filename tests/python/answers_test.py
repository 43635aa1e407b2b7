"""Does Python say what the command line says, and refuse what it refuses?"""
import concurrent.futures
import copy
import inspect
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

import orrery
from orrery import _orrery

SMALL = {"model": "llama-3-8b", "cluster.nodes": 2, "workload.global_batch_size": 32}
SMALL_SETS = ["model=llama-3-8b", "cluster.nodes=2", "workload.global_batch_size=32"]
SCENARIO = "llama-3-70b-512-h100"
SWEEP = {"scenario": {"model": "llama-3-8b", "cluster": {"node": "dgx-h100", "nodes": 2},
                      "workload": {"sequence_length": 8192, "global_batch_size": 64}, "plan": {"recompute": "full"}},
         "axes": {"cluster.nodes": [2, 4], "plan.zero_stage": [1, 3]}}


def command(*arguments, code=0):
    done = subprocess.run([os.environ["ORRERY_COMMAND"], *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def answer(*arguments, code=0):
    return json.loads(command(*arguments, "--json", "-", code=code).stdout)


def options(name, values):
    return [word for value in values for word in (name, value)]


class SameAsTheCommandLine(unittest.TestCase):
    maxDiff = 4000

    def test_bundled_scenarios(self):
        plain = [s["name"] for s in orrery.scenarios() if "jobs" not in orrery.show(s["name"])["scenario"]]
        self.assertGreater(len(plain), 10)
        for name in [SCENARIO, *plain[::4]]:
            self.assertEqual(orrery.simulate(name), answer("simulate", name), name)

    def test_what_is_set_ops_and_label(self):
        sets = [*SMALL_SETS, "plan.tensor_parallel=2", "plan.pipeline_parallel=2"]
        self.assertEqual(orrery.simulate(SCENARIO, sets, ops=True, label="small"),
                         answer("simulate", SCENARIO, *options("--set", sets), "--ops", "--label", "small"))
        as_dict = {**SMALL, "plan.tensor_parallel": 2, "plan.pipeline_parallel": 2}
        self.assertEqual(orrery.simulate(SCENARIO, as_dict)["step_seconds"],
                         orrery.simulate(SCENARIO, sets)["step_seconds"])

    def test_a_published_measurement_a_path_and_a_dict(self):
        point = "korth-t5-megatron-1T-full"
        self.assertEqual(orrery.simulate(point), answer("simulate", point))
        scenario = orrery.show(SCENARIO)["scenario"]
        del scenario["path"]
        before = copy.deepcopy(scenario)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "mine.json")
            path.write_text(json.dumps(scenario))
            from_file, from_dict = orrery.simulate(path), orrery.simulate(scenario)
            self.assertEqual(from_file, answer("simulate", str(path)))
        self.assertEqual(scenario, before)
        self.assertEqual(from_dict.pop("scenario"), "<dict>")
        self.assertTrue(from_file.pop("scenario").endswith("mine.json"))
        self.assertEqual(from_dict, from_file)

    def test_discrete_events(self):
        for name in ("straggler", "two-jobs-one-spine"):
            self.assertEqual(orrery.simulate(name, engine="des"), answer("simulate", name, "--engine", "des"), name)
        self.assertEqual(orrery.simulate("straggler", engine="both"),
                         answer("simulate", "straggler", "--engine", "both"))

    def test_compare(self):
        self.assertEqual(orrery.compare(SCENARIO, sets_b={"plan.tensor_parallel": 4}),
                         answer("compare", SCENARIO, "--set-b", "plan.tensor_parallel=4"))
        report = orrery.simulate(SCENARIO, ops=True)
        compared = orrery.compare(report, SCENARIO)
        self.assertEqual(compared["change"]["step_seconds"], 0)
        self.assertEqual(compared["inputs"]["a"], compared["inputs"]["b"])

    def same_search(self, arguments, code=0, **keywords):
        by_python, by_command = orrery.search(SCENARIO, SMALL_SETS, **keywords), answer(
            "search", SCENARIO, *options("--set", SMALL_SETS), *arguments, code=code)
        for timed in (by_python, by_command):
            self.assertGreater(timed.pop("seconds"), 0)
        self.assertEqual(by_python, by_command)
        return by_python

    def test_search(self):
        found = self.same_search(["--top", "3", "--fix", "context_parallel", "--fix", "plan.micro_batch_size=1",
                                  "--over", "plan.zero_stage=1,3", "--max-memory", "70G", "--safe",
                                  "--network-within", "5"],
                                 top=3, fix=["context_parallel", "plan.micro_batch_size=1"],
                                 over={"plan.zero_stage": [1, 3]}, max_memory="70G", safe=True, network_within=5)
        self.assertEqual(len(found["plans"]), 3)
        self.assertIn("network", found)

    def test_search_over_batches(self):
        fix = ["context_parallel=1", "pipeline_parallel=1", "mesh_order"]
        found = self.same_search([*options("--fix", fix), "--global-batch", "16,32", "--threads", "1"], fix=fix,
                                 global_batch=[16, 32], threads=1)
        self.assertIn("global_batch_size", found["searched"])

    def test_search_where_nothing_fits(self):
        fix = ["context_parallel", "mesh_order", "recompute"]
        found = self.same_search([*options("--fix", fix), "--max-memory", "8G"], fix=fix, max_memory="8G", code=1)
        self.assertEqual(found["plans"], [])
        self.assertTrue(found["nothing_fits"]["what_fits"])

    def test_plan(self):
        name = "llama-3-70b-60-days"
        plan = orrery.plan(name)
        self.assertEqual(plan, answer("plan", name))
        self.assertTrue(plan["feasible"])
        sets = {"deadline_days": 45, "candidates.0.devices": 512}
        self.assertEqual(
            orrery.plan(name, sets, worst=True, of="wall_seconds", swing=0.1, against="H200", seed=7, histories=20,
                        shape=0.7),
            answer("plan", name, *options("--set", ["deadline_days=45", "candidates.0.devices=512"]), "--worst", "--of",
                   "wall_seconds", "--swing", "0.1", "--against", "H200", "--seed", "7", "--histories", "20", "--shape",
                   "0.7"))

    def test_plan_with_a_search_and_of_what_cannot_be(self):
        document = orrery.plan("llama-3-70b-60-days")["inputs"]["plan"]
        document["candidates"] = document["candidates"][-1:]
        document["candidates"][0]["devices"] = 2048
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "plan.json")
            path.write_text(json.dumps(document))
            fix = ["context_parallel", "plan.mesh_order", "recompute"]
            searched = orrery.plan(path, search=True, fix=fix)
            self.assertEqual(searched, answer("plan", str(path), "--search", *options("--fix", fix)))
            late = orrery.plan(path, {"deadline_days": 1})
            self.assertEqual(late, answer("plan", str(path), "--set", "deadline_days=1", code=1))
            from_dict = orrery.plan(document, {"deadline_days": 1})
        self.assertIsNone(late["cheapest"])
        self.assertEqual((from_dict.pop("plan"), late.pop("plan")), ("<dict>", str(path)))
        self.assertEqual(from_dict, late)

    def test_sweep(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "sweep.json")
            path.write_text(json.dumps(SWEEP))
            exported = pathlib.Path(folder, "rows.jsonl")
            said = command("sweep", str(path), "--db", f"{folder}/command.db", "--export", str(exported)).stdout
            self.assertIn("4 points", said)
            rows = [json.loads(line) for line in exported.read_text().splitlines()]
            database = pathlib.Path(folder, "python.db")
            answered = orrery.sweep(SWEEP, database)
            self.assertEqual(answered, {"database": str(database), "points": 4, "computed": 4, "there_before": 0,
                                        "without_result": 0, "first_error": None, "notes": [], "rows": rows})
            self.assertEqual(orrery.sweep_rows(database), rows)
            said = command("compare", f"{folder}/command.db", str(database), "--json", "-").stdout
            self.assertEqual(orrery.compare_sweeps(f"{folder}/command.db", database), json.loads(said))
            # Each finds what the other has computed.
            again = command("sweep", str(path), "--db", str(database)).stdout
            self.assertIn("0 computed, 4 there before", again)
            fields = ["plan.zero_stage", "step_seconds"]
            known = orrery.sweep(path, f"{folder}/command.db", fields=fields, threads=1)
            self.assertEqual((known["computed"], known["there_before"]), (0, 4))
            self.assertEqual(known["rows"], [{field: row[field] for field in fields} for row in rows])
            self.assertEqual(orrery.sweep_rows(database, fields), known["rows"])
            shard = orrery.sweep(path, f"{folder}/shard.db", shard="2/3", rows=False)
            self.assertEqual(shard["points"], 1)
            self.assertNotIn("rows", shard)

    def test_sweep_searches_and_draws(self):
        drawn = {**SWEEP["scenario"], "perturbations": [{"kind": "jitter", "coefficient_of_variation": 0.1}]}
        with tempfile.TemporaryDirectory() as folder:
            for sweep in ("scaling", {"scenario": drawn, "engine": "des", "seeds": [1, 2]}):
                argument = sweep if isinstance(sweep, str) else f"{folder}/sweep.json"
                if argument != sweep:
                    pathlib.Path(argument).write_text(json.dumps(sweep))
                exported = pathlib.Path(folder, "rows.jsonl")
                command("sweep", argument, "--db", f"{folder}/command.db", "--export", str(exported))
                rows = [json.loads(line) for line in exported.read_text().splitlines()]
                self.assertEqual(orrery.sweep(sweep, f"{folder}/python.db")["rows"], rows)

    def test_validate(self):
        points = orrery.validate(source="vtrain", gpu="A100")
        self.assertEqual(points, answer("validate", "--source", "vtrain", "--gpu", "A100")["points"])
        self.assertGreater(len(points), 10)

    def test_names(self):
        for kind in ("models", "clusters", "devices", "measurements", "fields"):
            self.assertEqual(orrery.presets(kind), json.loads(command("list", kind, "--json").stdout))
        self.assertEqual(orrery.show("dgx-h100"), json.loads(command("show", "dgx-h100", "--json").stdout))
        self.assertIn(SCENARIO, [scenario["name"] for scenario in orrery.scenarios()])


BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int64": 64, "int32": 32, "uint8": 8}


class Programs(unittest.TestCase):
    def test_pieces_add_up_to_the_report(self):
        """All that a stage computes, op by op, is what the report counts."""
        sets = {**SMALL, "plan.tensor_parallel": 2, "plan.pipeline_parallel": 1, "plan.virtual_pipeline": 1,
                "plan.pipeline_schedule": "1f1b", "plan.zero_stage": 1, "plan.recompute": "none"}
        program = orrery.program(SCENARIO, sets)
        report = orrery.simulate(SCENARIO, sets)
        self.assertEqual(program["mesh"]["ranks"], 16)
        self.assertEqual(sum(run["count"] * program["pieces"][run["piece"]]["layers"] for run in program["line"]), 32)
        (stage,) = program["stages"]
        products = 0
        for chunk in stage:
            for run in chunk:
                blocks = program["pieces"][run["piece"]]["blocks"]
                for op in blocks["forward"] + blocks["backward"]:
                    if op["kind"] in ("linear", "linear_input_gradient", "linear_weight_gradient", "attention",
                                      "attention_backward", "batched_matmul"):
                        products += run["count"] * op["flops"] * op["count"] / op["every"]
        executed = products * program["schedule"]["micro_batches"] * program["mesh"]["ranks"]
        # FlashAttention's backward computes the scores again, which a model's FLOPs do not count.
        self.assertGreater(executed, 0.99 * program["model"]["flops_per_step"])
        self.assertLess(executed, 1.1 * program["model"]["flops_per_step"])
        tokens = report["tokens_per_second"] * report["step_seconds"]
        self.assertAlmostEqual(tokens / program["model"]["tokens_per_step"], 1)

    def test_ops_name_tensors_and_groups(self):
        program = orrery.program(SCENARIO)
        digits = {digit["name"] for digit in program["mesh"]["digits"]}
        kinds, grouped = set(), 0
        for piece in program["pieces"]:
            for tensor in piece["tensors"]:
                elements = 1
                for size in tensor["sizes"]:
                    elements *= size
                self.assertEqual(tensor["bytes"], elements * BITS[tensor["dtype"]] // 8)
                self.assertEqual(len(tensor["sizes"]), len(tensor["axes"]))
            for op in (op for block in piece["blocks"].values() for op in block):
                kinds.add(op["kind"])
                grouped += bool(op["group"])
                self.assertLessEqual(set(op["group"]), digits)
                for number in op["reads"] + op["writes"]:
                    self.assertLess(number, len(piece["tensors"]))
        self.assertLessEqual({"linear", "attention", "adam"}, kinds)
        self.assertGreater(grouped, 0)


class WhatIsWrong(unittest.TestCase):
    def refused(self, call, *arguments, **keywords):
        with self.assertRaises(orrery.InputError) as raised:
            call(*arguments, **keywords)
        return raised.exception

    def test_says_where(self):
        error = self.refused(orrery.simulate, SCENARIO, ["plan.tensor_paralel=4"])
        self.assertIsInstance(error, ValueError)
        self.assertEqual((error.file, error.pointer, error.nearest),
                         ("--set plan.tensor_paralel=4", "/plan/tensor_paralel", "tensor_parallel"))
        said = command("simulate", SCENARIO, "--set", "plan.tensor_paralel=4", code=2).stderr
        self.assertEqual(said, f"orrery: error: {error}\n")
        self.assertIn(error.found, str(error))
        self.assertIn(error.expected, str(error))

    def test_in_a_dict(self):
        scenario = orrery.show(SCENARIO)["scenario"]
        del scenario["path"]
        scenario["plan"]["micro_batch_size"] = "two"
        error = self.refused(orrery.simulate, scenario)
        self.assertEqual((error.file, error.pointer), ("<dict>", "/plan/micro_batch_size"))
        for call in (orrery.search, orrery.program, orrery.compare):
            self.assertEqual(str(self.refused(call, scenario)), str(error))

    def test_bytes_that_are_no_text(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "config.json"
            config.write_bytes(b"true\x80")
            error = self.refused(orrery.simulate, SCENARIO, {"model": str(config)})
            self.assertEqual(error.file.split(" ")[0], str(config))
            error = self.refused(orrery.simulate, SCENARIO, [b"plan.framework=\xff"])
            self.assertIn("UTF-8", error.found)
            self.assertEqual(orrery.simulate(SCENARIO, label=b"a\xff")["label"], "a\ufffd")
            self.assertEqual(orrery.search("small-gpt", label=b"\xff", top=1)["label"], "\ufffd")
            axis = {**SWEEP, "axes": {"plan.zero_stage": [1, 3]}}
            self.assertEqual(orrery.sweep(axis, os.fsencode(folder) + b"/\xff.db")["computed"], 2)

    def test_arguments_are_called_as_in_python(self):
        for argument, value, found in (("max_memory", "many", '"many"'), ("global_batch", "9..3", '"9..3"'),
                                       ("top", 0, "0"), ("front", 0.5, "0.5"), ("engine", "dse", '"dse"'),
                                       ("threads", -1, "-1")):
            error = self.refused(orrery.search, SCENARIO, **{argument: value})
            self.assertEqual((error.file, error.found), (argument, found))
        self.assertEqual(self.refused(orrery.simulate, SCENARIO, engine="dse").nearest, "des")
        self.assertEqual(self.refused(orrery.simulate, SCENARIO, fidelity="step-exact").file, "fidelity")
        self.assertEqual(self.refused(orrery.presets, "model").nearest, "models")
        self.assertEqual(self.refused(orrery.validate, strategy="zero3").nearest, "zero-3")
        self.assertEqual(self.refused(orrery.show, "dgx-h10").nearest, "dgx-h100")
        self.assertEqual(self.refused(orrery.simulate, "llama-3-70b-512-h10").nearest, SCENARIO)

    def test_in_plans_and_sweeps(self):
        with tempfile.TemporaryDirectory() as folder:
            database = f"{folder}/results.db"
            error = self.refused(orrery.sweep, {**SWEEP, "axes": {"plan.zero_stag": [1]}}, database)
            self.assertEqual((error.file, error.pointer, error.nearest),
                             ("<dict>", "/axes/plan.zero_stag", "plan.zero_stage"))
            self.assertEqual(self.refused(orrery.sweep, "scalin", database).nearest, "scaling")
            self.assertEqual(self.refused(orrery.sweep, SWEEP, database, shard="4/3").file, "shard")
            self.assertEqual(self.refused(orrery.sweep, SWEEP, database, threads=-1).file, "threads")
            self.assertFalse(os.path.exists(database))
            self.assertEqual(self.refused(orrery.sweep, SWEEP, database, fields=["mfuu"]).nearest, "mfu")
            self.assertEqual(self.refused(orrery.sweep, SWEEP, __file__).file, __file__)
            never = {**SWEEP, "axes": {"plan.tensor_parallel": [3, 5]}}
            self.assertIn("each without a result", str(self.refused(orrery.sweep, never, database)))
        name = "llama-3-70b-60-days"
        self.assertEqual(self.refused(orrery.plan, "llama-3-70b-60-day").nearest, name)
        self.assertEqual(self.refused(orrery.plan, {"tokens": 1e12, "candidates": []}).file, "<dict>")
        error = self.refused(orrery.plan, name, {"deadline_dais": 45})
        self.assertEqual((error.file, error.pointer, error.nearest),
                         ("--set deadline_dais=45", "/deadline_dais", "deadline_days"))
        for argument, value in (("of", "csot"), ("swing", 2.0), ("histories", 0), ("shape", 0.01)):
            self.assertEqual(self.refused(orrery.plan, name, **{argument: value}).file, argument)
        self.assertEqual(self.refused(orrery.plan, name, search=True, fix=["tensor_paralel"]).nearest,
                         "tensor_parallel")
        self.assertEqual(self.refused(orrery.plan, name, fix=["tensor_parallel"]).file, "fix")

    def test_jobs_take_discrete_events(self):
        self.assertEqual(self.refused(orrery.simulate, "two-jobs-one-spine").pointer, "/jobs")
        self.assertEqual(self.refused(orrery.program, "two-jobs-one-spine").pointer, "/jobs")

    def test_a_text_for_a_list(self):
        with self.assertRaises(TypeError):
            orrery.simulate(SCENARIO, "plan.zero_stage=1")
        with self.assertRaises(ValueError):
            orrery.simulate({"model": float("nan")})

    def test_survives_a_process_boundary(self):
        error = self.refused(orrery.simulate, SCENARIO, ["plan.tensor_paralel=4"])
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), vars(again)), (str(error), vars(error)))


class Threads(unittest.TestCase):
    def test_many_at_once_say_what_one_says(self):
        cases = [(SCENARIO, {"cluster.nodes": nodes}, "analytical") for nodes in (64, 128, 256)]
        cases += [("straggler", {}, "des"), ("two-jobs-one-spine", {}, "des")]

        def run(case):
            scenario, sets, engine = case
            return orrery.simulate(scenario, sets, engine=engine)

        alone = [run(case) for case in cases]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for _ in range(3):
                self.assertEqual(list(pool.map(run, cases)), alone)

    def test_others_run_meanwhile(self):
        ticks, done = 0, threading.Event()

        def work():
            orrery.validate(source="vtrain")
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)
        thread.join()
        self.assertGreater(ticks, 3)

    def test_an_interrupt_ends_a_search(self):
        self.interrupt(f"search({SCENARIO!r}, {{'cluster.nodes': 512, 'workload.global_batch_size': 4096}}, all=True, "
                       "exhaustive=True, threads=1)")

    def test_an_interrupt_ends_the_histories_of_a_plan(self):
        # Some minutes of them: more than the child is waited for.
        self.interrupt("plan('llama-3-70b-60-days', {'tokens': 15e13}, histories=100000)")

    def interrupt(self, call):
        script = f"import orrery\nprint('begins', flush=True)\norrery.{call}\n"
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        child.stdout.readline()
        time.sleep(0.5)  # more than the call takes to begin; sooner, it is interrupted before it
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(child.returncode, -signal.SIGINT)

    def test_an_interrupted_sweep_goes_on(self):
        sweep = {**SWEEP, "axes": {"workload.sequence_length": {"from": 32, "to": 1 << 19, "step": 32},
                                   "plan.zero_stage": [1, 3]}}
        with tempfile.TemporaryDirectory() as folder:
            database = f"{folder}/results.db"
            script = (f"import orrery\norrery.sweep({sweep!r}, {database!r}, threads=1, rows=False)\n")
            child = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
            deadline = time.time() + 60
            while time.time() < deadline and not (os.path.exists(database) and self.count(database)):
                time.sleep(0.01)
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
            self.assertIn("KeyboardInterrupt", said)
            there = self.count(database)
            self.assertGreater(there, 0)
            self.assertLess(there, 2 * 16384)
            rest = orrery.sweep(sweep, database, rows=False)
            self.assertEqual((rest["computed"], rest["there_before"]), (2 * 16384 - there, there))

    def count(self, database):
        try:
            return len(orrery.sweep_rows(database, ["key"]))
        except orrery.InputError:  # not a database yet
            return 0


class Frames(unittest.TestCase):
    def setUp(self):
        self.pandas = sys.modules.get("pandas")

    def tearDown(self):
        sys.modules.pop("pandas", None)
        if self.pandas is not None:
            sys.modules["pandas"] = self.pandas

    def test_without_pandas(self):
        sys.modules["pandas"] = None
        with self.assertRaisesRegex(ImportError, "pip install pandas"):
            orrery.to_frame([])

    def test_rows(self):
        sys.modules["pandas"] = types.SimpleNamespace(DataFrame=lambda rows: rows)
        results = [orrery.simulate(SCENARIO, {"plan.zero_stage": stage}) for stage in (1, 3)]
        rows = orrery.to_frame(results)
        for row, result in zip(rows, results):
            self.assertEqual(row["step_seconds"], result["step_seconds"])
            self.assertEqual(row["memory.peak_bytes"], result["memory"]["peak_bytes"])
            self.assertEqual(row["inputs.digest"], result["inputs"]["digest"])
            self.assertFalse([value for value in row.values() if isinstance(value, (list, dict))])
        self.assertEqual(orrery.to_frame(results[0]), rows[:1])
        found = orrery.search(SCENARIO, SMALL, top=2, fix=["context_parallel", "mesh_order"])
        self.assertEqual([row["plan.tensor_parallel"] for row in orrery.to_frame(found)],
                         [plan["plan"]["tensor_parallel"] for plan in found["plans"]])
        with tempfile.TemporaryDirectory() as folder:
            swept = orrery.sweep(SWEEP, f"{folder}/results.db")
        self.assertEqual(orrery.to_frame(swept), swept["rows"])
        self.assertEqual([row["cluster.nodes"] for row in orrery.to_frame(swept)], [2, 2, 4, 4])
        plan = orrery.plan("llama-3-70b-60-days")
        self.assertEqual([row["name"] for row in orrery.to_frame(plan)],
                         [candidate["name"] for candidate in plan["candidates"]])


class Types(unittest.TestCase):
    """Annotations stand in the package; the extension has a stub."""

    def test_the_stub_is_the_extension(self):
        stub = pathlib.Path(orrery.__file__).with_name("_orrery.pyi").read_text()
        declared = dict(re.findall(r"^def (\w+)\((.*?)\) -> str", stub, flags=re.S | re.M))
        functions = {name for name, value in vars(_orrery).items() if inspect.isbuiltin(value)}
        self.assertEqual(set(declared), functions)
        for name, arguments in declared.items():
            said = getattr(_orrery, name).__doc__.splitlines()[0].replace("orrery._orrery.", "")
            types_of_arguments = ", ".join(re.findall(": ([^,]+)", arguments))
            self.assertEqual(re.sub(r"arg\d+: ", "", said), f"{name}({types_of_arguments}) -> str")

    def test_everything_public_is_annotated_and_described(self):
        self.assertTrue(pathlib.Path(orrery.__file__).with_name("py.typed").exists())
        for name in orrery.__all__:
            value = getattr(orrery, name)
            self.assertTrue(value.__doc__, name)
            if inspect.isfunction(value):
                signature = inspect.signature(value)
                self.assertIsNot(signature.return_annotation, inspect.Signature.empty, name)
                for parameter in signature.parameters.values():
                    self.assertIsNot(parameter.annotation, inspect.Parameter.empty, f"{name}: {parameter}")


if __name__ == "__main__":
    unittest.main()
