// Does the command do what its help says: outputs, overrides, comparisons, listings, exit codes?
#include "tests/cli/command.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/hardware/presets.h"
#include "strategies/read_scenario.h"
#include "tests/report/trace_format.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
constexpr const char* kInput = ".stdin";
constexpr const char* kOutput = ".stdout";
constexpr const char* kErrors = ".stderr";
constexpr const char* kScript = ".script";

}  // namespace

Workplace::Workplace() {
  std::string name = (fs::path(testing::TempDir()) / "orrery_cli_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = name;
}

Workplace::~Workplace() { fs::remove_all(folder_); }

int Workplace::run(const std::string& command) const {
  const std::string line =
      "cd '" + folder_.string() + "' && " + command + " <" + kInput + " >" + kOutput + " 2>" + kErrors;
  const int status = std::system(line.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

CommandResult Workplace::orrery(const std::string& arguments, const std::string& input) const {
  return program(ORRERY_COMMAND, arguments, input);
}

CommandResult Workplace::program(const std::string& path, const std::string& arguments,
                                 const std::string& input) const {
  write(kInput, input);
  const int code = run("'" + path + "' " + arguments);
  return {code, read(kOutput), read(kErrors)};
}

CommandResult Workplace::shell(const std::string& script) const {
  write(kInput, "");
  write(kScript, script);
  const int code = run("ORRERY='" + std::string(ORRERY_COMMAND) + "' bash " + kScript);
  return {code, read(kOutput), read(kErrors)};
}

int Workplace::python(const std::string& arguments) const {
  write(kInput, "");
  return run("python3 " + arguments);
}

void Workplace::write(const std::string& name, const std::string& text) const {
  fs::create_directories((folder_ / name).parent_path());
  std::ofstream(folder_ / name, std::ios::binary) << text;
}

std::string Workplace::read(const std::string& name) const {
  std::ostringstream text;
  text << std::ifstream(folder_ / name, std::ios::binary).rdbuf();
  return text.str();
}

std::set<std::string> Workplace::files() const {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder_))
    if (entry.is_regular_file()) names.insert(fs::relative(entry.path(), folder_).string());
  for (const char* own : {kInput, kOutput, kErrors, kScript}) names.erase(own);
  return names;
}

std::string example_scenario() {
  return R"({
  "model": "llama-3-70b",
  "cluster": { "node": "dgx-h100", "nodes": 64 },
  "workload": { "sequence_length": 8192, "global_batch_size": 512 },
  "plan": { "tensor_parallel": 8, "sequence_parallel": true, "context_parallel": 1, "pipeline_parallel": 4,
            "virtual_pipeline": 5, "pipeline_schedule": "interleaved", "micro_batch_size": 1, "zero_stage": 1,
            "recompute": "selective", "precision": "bf16", "flash_attention": true }
})";
}

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(Simulate, VerifiesTheProgram) {
  const CommandResult verified = Workplace().orrery("simulate tensor_parallel --verify");
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_THAT(verified.out, AllOf(HasSubstr("verified: "), HasSubstr(" pieces, no violation")));
  EXPECT_THAT(verified.err, IsEmpty());
  const CommandResult in_json = Workplace().orrery("simulate tensor_parallel --verify --json -");
  EXPECT_TRUE(json::accept(in_json.out));
  EXPECT_THAT(in_json.err, AllOf(StartsWith("orrery: verified: "), HasSubstr(" pieces, no violation")));
}

TEST(Simulate, TakesAModelAsShowWritesIt) {
  const Workplace place;
  place.write("model.json", place.orrery("show llama-3-8b --json").out);
  const auto shown = place.orrery("show model.json --json");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.out, place.read("model.json"));
  const auto of_file = place.orrery("simulate data_parallel --set model=model.json --csv -");
  EXPECT_EQ(of_file.code, 0) << of_file.err;
  const auto line = [](const std::string& csv) { return csv.substr(csv.rfind(',')); };
  EXPECT_EQ(line(of_file.out), line(place.orrery("simulate data_parallel --set model=llama-3-8b --csv -").out));
}

TEST(Simulate, SaysWhichRangeOfLayersChangesNothing) {
  const Workplace place;
  const auto notes = [&](const char* range) {
    return place.orrery(std::string("simulate data_parallel --set plan.recompute=full --set 'plan.layers=[") + range +
                        "]'");
  };
  EXPECT_THAT(notes(R"({"to": 4, "recompute": "full"})").out, HasSubstr("plan.layers.0 changes nothing"));
  EXPECT_THAT(notes(R"({"to": 4, "recompute": "none"})").out, Not(HasSubstr("changes nothing")));
}

TEST(Simulate, JobsHaveTheirPlanningNotes) {
  const auto result =
      Workplace().orrery("simulate two-jobs-one-spine --engine des --set jobs.0.workload.sequence_length=0 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json jobs = nlohmann::json::parse(result.out)["jobs"];
  EXPECT_THAT(jobs[0]["together"]["notes"].dump(), HasSubstr("workload.sequence_length is not given"));
  EXPECT_THAT(jobs[1]["together"].value("notes", nlohmann::json()).dump(), Not(HasSubstr("is not given")));
}

TEST(Run, SharesOfThePeakAreThoseOfAPrediction) {
  const Workplace place;
  const std::string run = "run small-gpt --set plan.data_parallel=4 --steps 2 --warmup 0 --json -";
  const auto peak = [](const nlohmann::json& report) {
    return report.at("model_flops_per_second_per_device").get<double>() / report.at("mfu").get<double>();
  };
  const auto alone = place.orrery(run), beside = place.orrery(run + " --predict");
  ASSERT_EQ(alone.code, 0) << alone.err;
  ASSERT_EQ(beside.code, 0) << beside.err;
  const double predicted = peak(nlohmann::json::parse(beside.out)["predicted"]);
  EXPECT_NEAR(peak(nlohmann::json::parse(beside.out)["measured"]) / predicted, 1, 1e-9);
  EXPECT_NEAR(peak(nlohmann::json::parse(alone.out)) / predicted, 1, 1e-9);
}

TEST(Batch, VerifiesEveryProgram) {
  const Workplace place;
  place.write("batch.jsonl", "\"tensor_parallel\"\n\"usp\"\n");
  const auto verified = place.orrery("simulate --batch batch.jsonl --verify --fields scenario,step_seconds");
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_EQ(verified.out, place.orrery("simulate --batch batch.jsonl --fields scenario,step_seconds").out);
  EXPECT_EQ(verified.err, "orrery: verified: 2 programs, none with violations\n");
  const auto jobs = place.orrery("simulate --batch - --engine des --verify", "\"two-jobs-one-spine\"\n");
  EXPECT_EQ(jobs.code, 2);
  EXPECT_THAT(jobs.out, HasSubstr("--verify: found jobs"));
}

TEST(Simulate, PrintsATableOfTheHeadline) {
  const auto result = Workplace().orrery("simulate llama-3-70b-512-h100");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out, StartsWith("llama-3-70b on 64 x "));
  for (const char* word :
       {"step time", "tokens/s per device", "model TFLOP/s per device", "MFU", "HFU", "pipeline bubble",
        "exposed communication", "bound by", "matrix products", "optimizer states", "peak"})
    EXPECT_THAT(result.out, HasSubstr(word));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b"))) << "colour is for terminals";
}

TEST(Simulate, JsonHasThePublicKeysAndTheyAgree) {
  Workplace place;
  place.write("scenario.json", example_scenario());
  const auto result = place.orrery("simulate scenario.json --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  for (const char* key : {"step_seconds", "tokens_per_second_per_device", "model_flops_per_second_per_device", "mfu"})
    EXPECT_GT(report.at(key).get<double>(), 0) << key;
  EXPECT_EQ(report.at("engine"), "analytical");
  EXPECT_TRUE(report.at("version").is_string());
  const json& memory = report.at("memory");
  EXPECT_GT(memory.at("capacity_bytes").get<double>(), 60e9);
  EXPECT_EQ(memory.at("fits").get<bool>(),
            memory.at("peak_bytes").get<double>() <= memory.at("capacity_bytes").get<double>());
  EXPECT_FALSE(report.contains("ops"));

  const double step = report["step_seconds"];
  EXPECT_NEAR(report["tokens_per_second_per_device"].get<double>(), 512 * 8192 / step / 512, 1e-6 * 8192);
  double total = 0;
  for (const auto& [term, seconds] : report.at("time").items()) total += seconds.get<double>();
  EXPECT_NEAR(total, step, 1e-6 * step);
  double parts = 0;
  for (const auto& [part, bytes] : memory.at("parts").items())
    if (!part.starts_with("host_") && !part.starts_with("storage_")) parts += bytes.get<double>();
  EXPECT_NEAR(parts, memory["peak_bytes"].get<double>(), 1e-6 * parts);
}

TEST(Simulate, RunsEveryBundledScenario) {
  const Workplace place;
  ASSERT_FALSE(bundled_scenarios().empty());
  for (const BundledDocument& scenario : bundled_scenarios()) {
    const std::string name(scenario.name);
    const auto result = place.orrery("simulate " + name + (scenario.json().contains("jobs") ? " --engine des" : ""));
    EXPECT_EQ(result.code, 0) << name << ": " << result.err;
  }
}

// Its alpha is the largest that the host's memory allows, the ranks' processes counted.
TEST(Simulate, TheExampleOfMemoFitsAndALargerAlphaDoesNot) {
  const Workplace place;
  const auto fits = [&](const std::string& set) {
    return json::parse(place.orrery("simulate memo --json - " + set).out)["memory"]["fits"].get<bool>();
  };
  EXPECT_TRUE(fits(""));
  EXPECT_FALSE(fits("--set plan.memo_alpha=0.42"));
}

TEST(Simulate, IsDeterministic) {
  Workplace place;
  EXPECT_EQ(place.orrery("simulate llama-3-70b-512-h100 --ops --json -").out,
            place.orrery("simulate llama-3-70b-512-h100 --ops --json -").out);
}

TEST(Simulate, ReadsStandardInputAndComments) {
  const auto result = Workplace().orrery("simulate - --json -", "// a comment\n" + example_scenario());
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Simulate, GivesTheStepTimeOfWhatDoesNotFit) {
  const auto result = Workplace().orrery(
      "simulate llama-3-70b-512-h100 --set plan.micro_batch_size=4 --set plan.tensor_parallel=2 --set "
      "plan.zero_stage=0 --set workload.global_batch_size=2048 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_FALSE(report["memory"]["fits"].get<bool>());
  EXPECT_GT(report["step_seconds"].get<double>(), 0);
}

TEST(Simulate, WritesEveryFormatInOneRun) {
  Workplace place;
  const auto result =
      place.orrery("simulate llama-3-70b-512-h100 --json r.json --csv r.csv --trace t.json --svg s.svg");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(place.files(), ElementsAre("r.csv", "r.json", "s.svg", "t.json"));
  EXPECT_THAT(result.out, HasSubstr("step time"));
  EXPECT_THAT(place.read("r.csv"), StartsWith("scenario,engine,devices,step_seconds,"));
  EXPECT_THAT(place.read("s.svg"), AllOf(StartsWith("<svg"), HasSubstr("stage 3"), HasSubstr("</svg>")));
}

TEST(Simulate, TracesFollowTheFormatForEverySchedule) {
  Workplace place;
  for (const char* sets :
       {"", "--set plan.virtual_pipeline=1 --set plan.pipeline_schedule=1f1b",
        "--set plan.virtual_pipeline=1 --set plan.pipeline_schedule=zb-h1 --set plan.zero_stage=3",
        "--set plan.pipeline_parallel=1 --set plan.virtual_pipeline=1 --set plan.pipeline_schedule=gpipe"}) {
    SCOPED_TRACE(sets);
    const auto result = place.orrery(std::string("simulate llama-3-70b-512-h100 --trace t.json ") + sets);
    ASSERT_EQ(result.code, 0) << result.err;
    const json trace = json::parse(place.read("t.json"));
    expect_trace_format(trace);
    const auto& events = trace["traceEvents"];
    const auto count = [&](const char* phase) {
      return std::count_if(events.begin(), events.end(), [&](const json& e) { return e["ph"] == phase; });
    };
    EXPECT_GT(count("X"), 0);
    EXPECT_GT(count("C"), 0);
    EXPECT_EQ(count("s") > 0, std::string(sets).find("pipeline_parallel=1 ") == std::string::npos)
        << "messages between stages";
    const auto is_ops_thread = [](const json& e) {
      return e["name"] == "thread_name" && e["args"]["name"] == "compute ops";
    };
    EXPECT_EQ(std::count_if(events.begin(), events.end(), is_ops_thread),
              static_cast<std::ptrdiff_t>(trace["otherData"]["stages_with_ops"].size()));
    EXPECT_GT(trace["otherData"]["slots_with_ops"], 0);
    EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const json& e) {
      return e["ph"] == "X" && e["name"] == "layer.forward.fc1" && e["args"]["flops"] > 0 &&
             e["args"].contains("bound");
    }));
  }
}

TEST(Simulate, TracesOfLongPipelinesAreBounded) {
  Workplace place;
  const auto result = place.orrery("simulate korth-t5-megatron-1T-full --trace t.json");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string text = place.read("t.json");
  EXPECT_LT(text.size(), 10'000'000u);
  const json trace = json::parse(text);
  expect_trace_format(trace);
  const json& bounds = trace["otherData"];
  EXPECT_EQ(bounds["only_those_stages"], true);
  EXPECT_GT(bounds["slots_with_ops"], 0);
  EXPECT_LT(bounds["slots_with_ops"], bounds["slots"]);
}

TEST(Simulate, SetOverridesWhatTheScenarioSays) {
  Workplace place;
  place.write("scenario.json", example_scenario());
  const auto report = [&](const std::string& sets) {
    const auto result = place.orrery("simulate scenario.json --json - " + sets);
    EXPECT_EQ(result.code, 0) << sets << ": " << result.err;
    return result.code == 0 ? json::parse(result.out) : json();
  };
  const json usual = report("");
  EXPECT_EQ(usual["devices"], 512);
  EXPECT_EQ(report("--set cluster.nodes=32")["devices"], 256);
  EXPECT_NE(report("--set plan.tensor_parallel=4")["step_seconds"], usual["step_seconds"]);
  EXPECT_LT(report("--set model=llama-3-8b --set plan.virtual_pipeline=2")["step_seconds"].get<double>(),
            usual["step_seconds"].get<double>());
  EXPECT_LT(report("--set model.layers=60")["step_seconds"].get<double>(), usual["step_seconds"].get<double>());
  const auto figures = [](json of) {
    of.erase("set"), of.erase("inputs");
    return of;
  };
  EXPECT_EQ(figures(report("--set cluster.nodes=32 --set cluster.nodes=64")), figures(usual)) << "the last one counts";
  EXPECT_EQ(figures(report("--set=plan.precision=bf16")), figures(usual));
  EXPECT_EQ(report("--set plan.pipeline_stage_layers=[4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4]")["step_seconds"],
            usual["step_seconds"]);
  // A node's rate, where the scenario only names the node.
  EXPECT_GE(report("--set cluster.node.nic_bytes_per_second=5e9")["step_seconds"].get<double>(),
            usual["step_seconds"].get<double>());
}

TEST(Simulate, PartsMayBeFilesBesideTheScenario) {
  Workplace place;
  const json scenario = json::parse(example_scenario());
  place.write("parts/plan.json", scenario["plan"].dump());
  place.write("parts/workload.json", scenario["workload"].dump());
  place.write("parts/cluster.json", scenario["cluster"].dump());
  place.write("scenarios/scenario.json", R"({"model": "llama-3-70b", "cluster": "../parts/cluster.json",
                                             "workload": "../parts/workload.json", "plan": "../parts/plan.json"})");
  place.write("whole.json", example_scenario());
  const auto split = place.orrery("simulate scenarios/scenario.json --json -");
  ASSERT_EQ(split.code, 0) << split.err;
  json whole = json::parse(place.orrery("simulate whole.json --json -").out);
  whole["scenario"] = "scenarios/scenario.json";
  EXPECT_EQ(json::parse(split.out), whole);
  const auto changed = place.orrery("simulate scenarios/scenario.json --set plan.zero_stage=0 --json -");
  EXPECT_EQ(changed.code, 0) << changed.err;
}

TEST(Simulate, SaysWhyAPartsFileCannotBeReached) {
  Workplace place;
  place.shell("ln -s l2 l1; ln -s l1 l2; mkdir folder");
  const std::string long_name = "./" + std::string(300, 'x');
  const struct {
    std::string path;
    const char* reason;
  } cases[] = {{"./l1", "Too many levels of symbolic links"},
               {long_name, "File name too long"},
               {"./folder", "Is a directory"},
               {"./none.json", "there is no "}};
  for (const auto& [path, reason] : cases) {
    for (const std::string part : {"model=", "cluster=", "workload=", "plan=", "perturbations="}) {
      const auto result = place.orrery("simulate llama-3-70b-512-h100 --set " + part + path);
      EXPECT_EQ(result.code, 2) << part << path;
      EXPECT_THAT(result.err, AllOf(StartsWith("orrery: error: "), HasSubstr(reason), Not(HasSubstr("internal"))));
    }
    for (const std::string command : {"run small-gpt --set model=", "compare llama-3-70b-512-h100 --set-b plan="}) {
      const auto result = place.orrery(command + path);
      EXPECT_EQ(result.code, 2) << command << path;
      EXPECT_THAT(result.err, AllOf(StartsWith("orrery: error: "), HasSubstr(reason), Not(HasSubstr("internal"))));
    }
    const json line{{"model", path}, {"cluster", "dgx-h100"}, {"workload", {{"global_batch_size", 8}}}};
    EXPECT_THAT(place.orrery("simulate --batch -", line.dump()).out,
                AllOf(HasSubstr(reason), Not(HasSubstr("internal"))));
  }
}

TEST(Simulate, ErrorsOfAPartsFileSayWhoNamesIt) {
  Workplace place;
  json scenario = json::parse(example_scenario());
  scenario["plan"] = "p.json";
  const json jobs{
      {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
      {"jobs",
       {{{"name", "a"}, {"model", "llama-3-8b"}, {"workload", json::object()}, {"plan", "p.json"}, {"nodes", 1}}}}};
  place.write("p.json", R"({"zero_stag": 1})");
  place.write("list.json", "[");
  place.write("s.json", scenario.dump());
  place.write("jobs.json", jobs.dump());
  place.write("lines.jsonl", "{}\n" + scenario.dump() + "\n");
  const auto error = [&](const std::string& arguments) { return place.orrery(arguments).err; };
  EXPECT_THAT(error("simulate s.json"),
              HasSubstr("error: p.json (s.json: /plan): /zero_stag: found the unknown key \"zero_stag\""));
  EXPECT_THAT(error("simulate jobs.json --engine des"), HasSubstr("p.json (jobs.json: /jobs/0/plan): /zero_stag: "));
  EXPECT_THAT(error("simulate llama-3-70b-512-h100 --set plan=./p.json"),
              HasSubstr("p.json (--set plan=./p.json: /plan): /zero_stag: found"));
  EXPECT_THAT(error("simulate s.json --set plan=list.json --set plan.zero_stage=1"),
              HasSubstr("list.json (s.json: /plan): found a syntax error"));
  EXPECT_THAT(error("compare llama-3-70b-512-h100 --set-b plan=./p.json"),
              HasSubstr("p.json (--set-b plan=./p.json: /plan): /zero_stag: found"));
  const std::string lines = place.orrery("simulate --batch lines.jsonl").out;
  const json line = json::parse(lines.substr(lines.find('\n') + 1));
  EXPECT_EQ(line["error"]["file"], "p.json (lines.jsonl:2: /plan)");
  EXPECT_EQ(line["error"]["pointer"], "/zero_stag");
  // A bundled one's that does not fit this cluster.
  EXPECT_THAT(
      error("simulate small-gpt --engine des --set perturbations=straggler"),
      HasSubstr("straggler.json (--set perturbations=straggler: /perturbations): /perturbations/0/devices/0: "));
}

// A name is a title, a cell of a table, a line of a terminal.
TEST(Simulate, RefusesControlCharactersInNames) {
  const Workplace place;
  for (const std::string set :
       {"'model.name=\"a\\nb\"'", "'cluster.name=\"a\\u001b[31m\"'", "'cluster.device.name=\"a\\u0000b\"'",
        "'cluster.node.name=\"a\\u007f\"'", "'cluster.fabric.name=\"a\\u009b1m\"'", "'model.name=\"a\\u202eb\"'",
        "\"model.name=$(printf 'a\\033b')\""}) {
    const auto result = place.orrery("simulate llama-3-70b-512-h100 --set " + set);
    EXPECT_EQ(result.code, 2) << set;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("/name: found \"a"), HasSubstr("expected a text without control characters")));
    EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
  }
  const auto job = place.orrery("simulate two-jobs-one-spine --engine des --set 'jobs.0.name=\"a\\rb\"'");
  EXPECT_THAT(job.err, HasSubstr("/jobs/0/name: found \"a\\rb\", expected a text without control characters"));
  EXPECT_EQ(place.orrery("simulate llama-3-70b-512-h100 --set 'cluster.device.source=\"two\\nlines\"'").code, 0)
      << "prose";
}

// What people type is bytes, and JSON, CSV and SVG are texts.
TEST(Simulate, TakesArgumentsThatAreNoUtf8) {
  const Workplace place;
  place.write("scenario.json", example_scenario());
  const CommandResult run = place.shell(R"sh(
label=$(printf 'a\377\342\200\256')
$ORRERY simulate small-gpt --label "$label" --json one.json --csv one.csv &&
$ORRERY search small-gpt --label "$label" --top 1 --json search.json &&
cp scenario.json "$label.json" && $ORRERY simulate "$label.json" --json named.json --svg named.svg &&
$ORRERY simulate "$label.json"
)sh");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, Not(HasSubstr("\xe2\x80\xae")));
  EXPECT_THAT(place.read("named.svg"), AllOf(Not(HasSubstr("\xff")), Not(HasSubstr("\xe2\x80\xae"))));
  EXPECT_EQ(json::parse(place.read("one.json"))["label"], "a\xef\xbf\xbd\xe2\x80\xae");
  EXPECT_EQ(json::parse(place.read("search.json"))["label"], "a\xef\xbf\xbd\xe2\x80\xae");
  EXPECT_THAT(place.read("one.csv"), HasSubstr("\na\\xff\\u202e,"));
  const CommandResult set = place.shell("$ORRERY simulate small-gpt --set \"plan.framework=$(printf '\\377')\"");
  EXPECT_EQ(set.code, 2);
  EXPECT_THAT(set.err,
              HasSubstr("--set plan.framework=\\xff: found bytes that are not UTF-8, expected KEY=VALUE in UTF-8"));
}

TEST(Compare, KeepsControlCharactersOfAReportOffTheTerminal) {
  Workplace place;
  json report = json::parse(place.orrery("simulate llama-3-70b-512-h100 --json -").out);
  report["scenario"] = "a\x1b[31m\nb";
  place.write("title.json", report.dump());
  const auto table = place.orrery("compare title.json llama-3-70b-512-h100");
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("a prediction of a\\x1b[31m b"), Not(HasSubstr("\x1b"))));
  report["bound_by"] = "a\x1b[31m";
  place.write("text.json", report.dump());
  EXPECT_THAT(place.orrery("compare text.json llama-3-70b-512-h100").err,
              HasSubstr("text.json: /bound_by: found \"a\\u001b[31m\", expected a text without control characters"));
}

TEST(Simulate, FindsPathsOfSetFromTheWorkingDirectory) {
  Workplace place;
  place.write("cluster.json", R"({"node": "dgx-h100", "nodes": 32})");
  std::ostringstream topology;
  topology << std::ifstream(ORRERY_SOURCE_DIR "/tests/hardware/data/rtx_a6000_pairs.txt").rdbuf();
  place.write("topo.txt", topology.str());
  place.write("scenarios/scenario.json", example_scenario());
  for (const char* scenario : {"llama-3-70b-512-h100", "scenarios/scenario.json"}) {
    const auto result = place.orrery(std::string("simulate ") + scenario + " --set cluster=cluster.json --json -");
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(json::parse(result.out).at("devices"), 256);
    const auto described =
        place.orrery(std::string("simulate ") + scenario + " --set model=gpt2-124m --set plan={}" +
                     R"( --set 'workload={"sequence_length": 128, "global_batch_size": 4}')" +
                     R"( --set 'cluster={"device": "RTX-A6000", "topology_file": "topo.txt"}')" + " --json -");
    ASSERT_EQ(described.code, 0) << described.err;
    EXPECT_EQ(json::parse(described.out).at("devices"), 4);
  }
}

// Whose errors it is made of, and what widens it: no step of the device, more devices than any.
TEST(Simulate, ExplainsTheInterval) {
  Workplace place;
  const std::string command = "simulate llama-3-70b-512-h100 --explain interval";
  EXPECT_THAT(place.orrery(command).out, AllOf(HasSubstr("megatron-core on measured devices"), HasSubstr("sources")));
  EXPECT_THAT(place.orrery(command + " --set cluster.node=pcie-8 --set cluster.device=L40S").out,
              HasSubstr("no step of L40S was measured"));
  EXPECT_THAT(place.orrery(command + " --set cluster.nodes=16384 --set workload.global_batch_size=131072").out,
              HasSubstr("per doubling beyond 11616"));
  EXPECT_THAT(place.orrery("simulate straggler --engine des --explain interval").out,
              HasSubstr("only for the analytical engine"));
}

TEST(Simulate, TakesModelsByTheirNameOnTheHub) {
  Workplace place;
  const auto model_of = [&](const std::string& command) {
    const auto result = place.orrery(command + " --set plan={}");
    EXPECT_EQ(result.code, 0) << command << ": " << result.err;
    return result.out.substr(0, result.out.find(" on "));
  };
  place.write("scenarios/plain.json", example_scenario());
  json named = json::parse(example_scenario());
  named["model"] = "meta-llama/Meta-Llama-3-8B";
  place.write("scenarios/named.json", named.dump());
  EXPECT_EQ(model_of("simulate scenarios/named.json"), "llama-3-8b");
  EXPECT_EQ(model_of("simulate scenarios/plain.json --set model=meta-llama/Meta-Llama-3-8B"), "llama-3-8b");
  EXPECT_EQ(model_of("simulate scenarios/plain.json --set model=meta-llama/Meta-Llama-3-8B --set model.layers=16"),
            "llama-3-8b, changed");
  place.write("sweep.json", R"({"scenario": "scenarios/plain.json",
                                "zip": [{"model": ["meta-llama/Meta-Llama-3-8B", "llama-3-70b"]}]})");
  const auto sweep = place.orrery("sweep sweep.json --db sweep.db");
  EXPECT_EQ(sweep.code, 0) << sweep.err;
  // A file of that path is meant first.
  place.write("scenarios/meta-llama/Meta-Llama-3-8B", R"({"preset": "llama-3-8b", "layers": 8, "name": "mine"})");
  EXPECT_EQ(model_of("simulate scenarios/named.json"), "mine");
  const auto unknown = place.orrery("simulate scenarios/plain.json --set model=meta-llama/Meta-Llama-3-9B");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("the path of a file (there is no "));
  EXPECT_THAT(unknown.err, HasSubstr("or the name of a model"));
  EXPECT_THAT(unknown.err, HasSubstr("did you mean \"meta-llama/meta-llama-3-8b\"?"));
}

TEST(Show, ReadsWhatPythonWritesForInfinity) {
  Workplace place;
  place.write("config.json", R"({"model_type": "nemotron_h", "ssm_state_size": 256, "time_step_limit": [0.0, Infinity],
                                 "x": [-Infinity, NaN], "name": "Infinity"})");
  const auto result = place.orrery("show ./config.json");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("state-space layers"));
}

TEST(Simulate, ExplainsOpsAndTerms) {
  Workplace place;
  EXPECT_THAT(place.orrery("simulate llama-3-70b-512-h100 --explain activations").out,
              AllOf(HasSubstr("268.26 MiB x 20 x 4.6 micro-batches"), HasSubstr("1 x 8192 x 2 x 3584 of bf16")));
  EXPECT_THAT(place.orrery("simulate llama-3-70b-512-h100 --explain head.logits").out,
              AllOf(HasSubstr("head.forward.logits"), HasSubstr("head.backward.logits")))
      << "as shapes without a measurement are listed";
  EXPECT_THAT(place.orrery("simulate llama-3-70b-512-h100 --explain logits").out,
              AllOf(HasSubstr("head.forward.logits"), HasSubstr("head.backward.logits")))
      << "by the end of its name";
  EXPECT_THAT(place.orrery("simulate llama-3-70b-512-h100 --explain attention").out, HasSubstr("% of the step"))
      << "the term, whose ops have its name";
  EXPECT_THAT(place.orrery("simulate offload --explain memory").out,
              AllOf(HasSubstr("host: "), HasSubstr("per node, shared by its devices"), HasSubstr("optimizer states")));
  // A host that is too small is said in one sentence with its field; the prediction stands, as for a device.
  const auto small = place.orrery("simulate offload --set cluster.host_memory_bytes=1e9");
  EXPECT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.out, AllOf(HasSubstr("DOES NOT FIT"), HasSubstr("does not fit in host memory"),
                               HasSubstr("/cluster/node/host_memory_bytes")));
}

// A list of one length is one, too; and a search says at once what no plan mends.
TEST(Documents, AreListedByTheirLengths) {
  const Workplace place;
  const std::string of = " packed_documents --set workload.packing=concat --set workload.documents=";
  const auto one = place.orrery("simulate" + of + "32768"),
             several = place.orrery("simulate" + of + "'16384,16384;8192'");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, ContainsRegex("attention within documents +100\\.0 %"));
  EXPECT_EQ(several.code, 0) << several.err;
  const auto wrong = place.orrery("search" + of + "'2048,0'");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("--set workload.documents=2048,0: /workload/documents: found \"0\" in a list"),
                               Not(HasSubstr("--over"))));
}

TEST(Explain, AFigureThatALineOnlyMentionsIsExplained) {
  EXPECT_THAT(Workplace().orrery("simulate packed_documents --explain longest_document").out,
              HasSubstr("longest_document: 32768, positions of the longest document"));
}

// Ranks that have fewer tokens than the fullest take their share of its kernels, and the formula has it.
TEST(Explain, SharesOfRowsAreSaid) {
  const Workplace place;
  const std::string command =
      "simulate zeppelin --set plan.zeppelin_partition=flexsp --set workload.documents=code "
      "--set workload.documents_seed=3 --explain layer.forward.qkv --set plan.zeppelin_remapping=";
  EXPECT_THAT(place.orrery(command + "false").out, ContainsRegex("times 0\\.[0-9]+, the share of these rows on rank"));
  EXPECT_THAT(place.orrery(command + "true").out, AllOf(HasSubstr("qkv"), Not(HasSubstr("the share of these rows"))));
}

// A result's inputs are a scenario that gives the same result, wherever it is taken.
TEST(Simulate, ResultsNameTheirInputs) {
  Workplace place;
  json parts = json::parse(example_scenario());
  for (const char* part : {"model", "cluster", "workload", "plan"})
    if (parts.contains(part) && parts[part].is_object()) {
      place.write(std::string("sub/") + part + ".json", parts[part].dump());
      parts[part] = std::string("./") + part + ".json";
    }
  place.write("sub/parts.json", parts.dump());
  const auto result = [&](const std::string& arguments) {
    const auto run = place.orrery("simulate " + arguments + " --json -");
    EXPECT_EQ(run.code, 0) << arguments << ": " << run.err;
    return run.code == 0 ? json::parse(run.out) : json::object();
  };
  for (const char* arguments : {"sub/parts.json --set plan.zero_stage=1", "offload", "straggler --engine des",
                                "two-jobs-one-spine --engine des"}) {
    const json first = result(arguments);
    place.write("again.json", first.at("inputs").at("scenario").dump());
    const std::string engine = std::string_view(arguments).ends_with("des") ? " --engine des" : "";
    json again = result("again.json" + engine);
    EXPECT_EQ(again.at("inputs").at("digest"), first["inputs"]["digest"]) << arguments;
    json figures = first;
    for (json* of : {&figures, &again})
      for (const char* key : {"scenario", "set"}) of->erase(key);
    EXPECT_EQ(again, figures) << arguments;
  }
  const json digest = result("offload")["inputs"]["digest"];
  EXPECT_EQ(digest.get<std::string>().size(), 16u);
  EXPECT_NE(result("offload --set cluster.nodes=2 --set workload.global_batch_size=1024")["inputs"]["digest"], digest);
  EXPECT_NE(result("offload --set cluster.device.memory_bytes=5e10")["inputs"]["digest"], digest);
  const json labelled = result("offload --label 'a name'");
  EXPECT_EQ(labelled.at("label"), "a name");
  EXPECT_EQ(labelled["inputs"]["digest"], digest);
  EXPECT_THAT(place.orrery("simulate offload --label 'a, name' --csv -").out, HasSubstr("\n\"a, name\","));
  const json compared = json::parse(place.orrery("compare offload --set-b plan.optimizer_offload=false --json -").out);
  EXPECT_EQ(compared.at("inputs").at("a").at("digest"), digest);
  EXPECT_NE(compared["inputs"]["b"]["digest"], digest);
}

TEST(Show, AModelsFileAsItIsRead) {
  Workplace place;
  std::ostringstream config;
  config << std::ifstream(ORRERY_SOURCE_DIR "/tests/models/data/llama-3-8b.json").rdbuf();
  place.write("config.json", config.str());
  const auto shown = place.orrery("show ./config.json --json");
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(json::parse(shown.out).at("model").at("parameters"), 8030261248);
  EXPECT_EQ(place.orrery("show scenario.json").code, 2) << "no such file";
  place.write("scenario.json", example_scenario());
  EXPECT_THAT(place.orrery("show scenario.json").err,
              HasSubstr("scenario.json: found a scenario, expected a model's file"));
}

TEST(Show, TheParametersThatOneTokenMeets) {
  Workplace place;
  const auto shown = place.orrery("show mixtral-8x7b --json");
  ASSERT_EQ(shown.code, 0) << shown.err;
  const json model = json::parse(shown.out).at("model");
  EXPECT_EQ(model.at("parameters"), 46702792704);
  EXPECT_EQ(model.at("active_parameters"), 12879925248);
  EXPECT_FALSE(json::parse(place.orrery("show llama-3-8b --json").out).at("model").contains("active_parameters"));
  EXPECT_THAT(place.orrery("list models").out, HasSubstr("46.70 G parameters (12.88 G active)"));

  // What is shown reads as the same model.
  place.write("mine.json", shown.out);
  EXPECT_EQ(json::parse(place.orrery("show ./mine.json --json").out).at("model"), model);

  place.write("moe.json", json{{"model", "mixtral-8x7b"},
                               {"cluster", {{"node", "dgx-h100"}, {"nodes", 4}}},
                               {"workload", {{"sequence_length", 4096}, {"global_batch_size", 64}}},
                               {"plan", {{"expert_parallel", 8}, {"zero_stage", 1}}}}
                              .dump());
  EXPECT_THAT(place.orrery("simulate moe.json --explain mfu").out,
              HasSubstr("only experts that a token goes to count: 12.88 G of 46.70 G parameters"));
  EXPECT_THAT(place.orrery("simulate llama-3-70b-512-h100 --explain mfu").out, Not(HasSubstr("expert")));
}

TEST(Simulate, ShowsRangesOfLayersInTitleOpsAndExplanations) {
  const Workplace place;
  const std::string command =
      "simulate llama-3-70b-512-h100 --set plan.recompute=none "
      "--set 'plan.layers=[{\"from\":0,\"to\":20,\"recompute\":\"full\"},{\"from\":40,\"step\":2}]' "
      "--set plan.layers.1.recompute=full ";
  const auto table = place.orrery(command);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("layers[0:20]: recompute full\n"), HasSubstr("layers[40:80:2]: recompute full\n")));
  // The first stage has layers 0 to 19 only in its first chunks: both plans, each by its layers.
  const auto op = place.orrery(command + "--explain layer.forward.fc1");
  ASSERT_EQ(op.code, 0) << op.err;
  EXPECT_THAT(op.out,
              AllOf(HasSubstr("layer[0:20,40:80:2].forward.fc1"), HasSubstr("layer[20:40,41:80:2].forward.fc1")));
  const auto one = place.orrery(command + "--explain 'layer[0:20,40:80:2].forward.fc1'");
  EXPECT_THAT(one.out, Not(HasSubstr("layer[20:40")));
  const auto fifth = place.orrery(command + "--explain 'layer[5].forward.fc1'");
  EXPECT_EQ(fifth.out, one.out) << "the layers that have layer 5's plan";
  const auto both = place.orrery(command + "--explain 'layer[10:30].forward.fc1'");
  EXPECT_EQ(both.out, op.out);
  const auto update = place.orrery(command + "--explain 'layer[5].update.adam'");
  EXPECT_THAT(update.out, HasSubstr("layer.update.adam")) << "one launch for all layers: " << update.err;
  EXPECT_EQ(place.orrery(command + "--explain 'layer[90].forward.fc1'").code, 2);
  const auto term = place.orrery(command + "--explain recompute");
  EXPECT_THAT(term.out, AllOf(HasSubstr("layer[0:20,40:80:2].backward.fc1"), Not(HasSubstr("layer[20:40"))));
}

std::vector<std::string> text_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}
std::string example_scenario_line() { return json::parse(example_scenario()).dump() + "\n"; }
std::vector<json> results_of(const std::string& text) {
  std::vector<json> results;
  for (const std::string& line : text_lines(text)) results.push_back(json::parse(line));
  return results;
}

TEST(Batch, AnswersLineByLineInOrderWithErrorsInPlace) {
  Workplace place;
  json good = json::parse(example_scenario());
  json smaller = good;
  smaller["cluster"]["nodes"] = 32;
  json bad = good;
  bad["plan"]["tensor_paralel"] = 8;
  place.write("batch.jsonl", good.dump() + "\n" + bad.dump() + "\nnot json\n\n \t\r\n" + smaller.dump() + "\n");
  const auto result = place.orrery("simulate --batch batch.jsonl");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> results = results_of(result.out);
  ASSERT_EQ(results.size(), 4u) << "blank lines are none";
  EXPECT_EQ(results[0].at("devices"), 512);
  EXPECT_EQ(results[1].at("error").at("pointer"), "/plan/tensor_paralel");
  EXPECT_EQ(results[1].at("error").at("nearest"), "tensor_parallel");
  EXPECT_EQ(results[1].at("error").at("file"), "batch.jsonl:2");
  EXPECT_EQ(results[2].at("error").at("file"), "batch.jsonl:3");
  EXPECT_EQ(results[3].at("devices"), 256);

  const auto one = place.orrery("simulate - --json -", good.dump());
  json alone = json::parse(one.out);
  json first = results[0];
  for (json* of : {&alone, &first})
    for (const char* key : {"scenario", "set", "inputs"}) of->erase(key);
  EXPECT_EQ(alone, first) << "a batch says the same as single runs";
  EXPECT_EQ(place.orrery("simulate --batch -", place.read("batch.jsonl")).out.size(),
            place.orrery("simulate --batch - --json -", place.read("batch.jsonl")).out.size());
}

// Parts that stand in a line as in an earlier one are not read again: that must not show, whatever is written how.
TEST(Batch, SaysOfEveryLineWhatASingleRunSays) {
  const json good = json::parse(example_scenario());
  const auto with = [&](const char* patch) {
    json changed = good;
    changed.merge_patch(json::parse(patch));
    return changed.dump();
  };
  const std::string plain = good.dump(), open = plain.substr(0, plain.size() - 1);
  const std::vector<std::string> lines{
      plain,
      plain,
      with(R"({"plan": {"tensor_parallel": 4}})"),
      with(R"({"plan": {"tensor_parallel": 3}})"),
      with(R"({"plan": null})"),
      with(R"({"plan": "optimizer"})"),
      with(R"({"plan": {"framework": "fsdp"}})"),
      with(R"({"plan": {"framework": "deepspeed", "zero_stage": 2, "optimizer_offload": true, "virtual_pipeline": 1,
                        "pipeline_schedule": "1f1b"}})"),
      with(R"({"cluster": {"nodes": 32}})"),
      with(R"({"cluster": {"device": "A100-SXM4-80GB"}})"),
      with(R"({"cluster": "dgx-h100"})"),
      with(R"({"model": {"preset": "llama-3-70b", "layers": 40}})"),
      with(R"({"model": "lama-3-70b"})"),
      with(R"({"workload": {"global_batch_size": 1024}})"),
      with(R"({"workload": null})"),
      with(R"({"comment": "a } of \"no\" meaning, \u00e9"})"),
      with(R"({"colour": 1})"),
      with(R"({"perturbations": [{"kind": "slow_device", "devices": [1], "factor": 0.5}]})"),
      open + R"(, "comment": {"a": 1, "a": 2}})",
      open + R"(, "comment": "\q"})",
      open + R"(, "model": "llama-3-8b"})",
      open + R"(, "note": 1} // said in the end)",
      open + " /* here */}",
      open + "} {}",
      open,
      open + "]",
      open + ",}",
      "[" + plain + "]",
      "  " + plain + " ",
      "\"" + plain,
      R"({"plan": {"tensor_parallel": 8}, "plan": {"tensor_parallel": 4}})",
      "{}",
      "null",
  };
  for (const std::string sets :
       {"", " --set plan.zero_stage=1 --set cluster.nodes=32", " --set plan=optimizer", " --set colour=1"}) {
    Workplace place;
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    const std::vector<json> results = results_of(place.orrery("simulate --batch -" + sets, all).out);
    ASSERT_EQ(results.size(), lines.size()) << sets;
    int good_ones = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const auto one = place.orrery("simulate -" + sets + " --json -", lines[i]);
      if (one.code == 0) {
        json report = json::parse(one.out);
        EXPECT_EQ(report["scenario"], "<stdin>");
        EXPECT_EQ(results[i]["inputs"]["digest"], report["inputs"]["digest"]) << lines[i] << sets;
        EXPECT_EQ(results[i]["set"], report["set"]);
        EXPECT_EQ(results[i]["scenario"], "<stdin>:" + std::to_string(i + 1));
        json figures = results[i];
        for (json* of : {&report, &figures})
          for (const char* key : {"scenario", "set", "inputs"}) of->erase(key);
        EXPECT_EQ(report, figures) << lines[i] << sets;
        ++good_ones;
        continue;
      }
      ASSERT_TRUE(results[i].contains("error")) << lines[i] << sets;
      std::string message = results[i]["error"]["message"];
      const std::string name = "<stdin>:" + std::to_string(i + 1);
      if (const auto at = message.find(name); at != std::string::npos) message.replace(at, name.size(), "<stdin>");
      EXPECT_THAT(one.err, HasSubstr(message)) << lines[i] << sets;
    }
    EXPECT_TRUE(sets.ends_with("colour=1") ? good_ones == 0 : good_ones > 10) << sets;
  }
}

TEST(Batch, GivesTheFieldsThatAreAskedFor) {
  Workplace place;
  json smaller = json::parse(example_scenario()), bad = smaller;
  smaller["cluster"]["nodes"] = 32;
  bad["plan"]["tensor_paralel"] = 8;
  place.write("batch.jsonl", example_scenario_line() + smaller.dump() + "\n" + bad.dump() + "\n");
  const std::vector<json> whole = results_of(place.orrery("simulate --batch batch.jsonl").out);
  const std::string fields = "scenario,step_seconds,memory_fits,bound_by,exposed_tensor_communication_seconds,devices";
  const auto result = place.orrery("simulate --batch batch.jsonl --fields " + fields);
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> results = results_of(result.out);
  ASSERT_EQ(results.size(), 3u);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(results[i],
              json({{"scenario", "batch.jsonl:" + std::to_string(i + 1)},
                    {"step_seconds", whole[i]["step_seconds"]},
                    {"memory_fits", whole[i]["memory"]["fits"]},
                    {"bound_by", whole[i]["bound_by"]},
                    {"exposed_tensor_communication_seconds", whole[i]["time"]["exposed_tensor_communication_seconds"]},
                    {"devices", whole[i]["devices"]}}));
  EXPECT_THAT(result.out, StartsWith("{\"scenario\":\"batch.jsonl:1\",\"step_seconds\":")) << "in the order asked for";
  EXPECT_EQ(results[2], whole[2]) << "errors are whole";
  // What is no part of the report unless the ops are worked out.
  json no_plan = smaller;
  no_plan.erase("plan");
  const json unmeasured = json::parse(place.orrery("simulate --batch - --fields unmeasured_share", no_plan.dump()).out);
  EXPECT_EQ(unmeasured["unmeasured_share"],
            json::parse(place.orrery("simulate - --json -", no_plan.dump()).out)["unmeasured_share"]);
  EXPECT_GT(unmeasured["unmeasured_share"], 0);
}

TEST(Batch, WritesRowsOfCsv) {
  Workplace place;
  const std::string line = example_scenario_line();
  place.write("batch.jsonl", line + "\nnot json\n" + line);
  // Alone it takes the place of the lines of JSON; with them it stands beside them.
  auto result = place.orrery("simulate --batch batch.jsonl --csv - --fields mfu,scenario");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<std::string> rows = text_lines(result.out);
  ASSERT_EQ(rows.size(), 1 + 3u);
  EXPECT_EQ(rows[0], "mfu,scenario,error");
  EXPECT_THAT(rows[1], AllOf(StartsWith("0."), EndsWith(",batch.jsonl:1,")));
  EXPECT_THAT(rows[2], AllOf(StartsWith(",batch.jsonl:3,"), HasSubstr("batch.jsonl:3: found a syntax error")));
  EXPECT_THAT(rows[3], EndsWith(",batch.jsonl:4,"));
  result = place.orrery("simulate --batch batch.jsonl --csv all.csv --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(results_of(result.out).size(), 3u);
  const std::vector<std::string> all = text_lines(place.read("all.csv"));
  ASSERT_EQ(all.size(), 1 + 3u);
  place.write("one.json", example_scenario());
  ASSERT_EQ(place.orrery("simulate one.json --csv one.csv").code, 0);
  const std::vector<std::string> one = text_lines(place.read("one.csv"));
  EXPECT_EQ(all[0], one[0] + ",error");
  EXPECT_EQ(all[1].substr(all[1].find(',')), one[1].substr(one[1].find(',')) + ",") << "the same columns";
}

// Every row says what it was made of: which line, its scenario's digest, calibrations and program.
TEST(Batch, ResultsNameTheirInputs) {
  const Workplace place;
  const std::string line = example_scenario_line(), name = "\"offload\"";
  std::stringstream calibration;
  calibration << std::ifstream(ORRERY_SOURCE_DIR "/results/calibration/A100-SXM4-80GB.json").rdbuf();
  place.write("mine.json", calibration.str());
  place.write("one.json", line);
  place.write("sub/plan.json", json::parse(line).at("plan").dump());
  json named = json::parse(line);
  named["plan"] = "./sub/plan.json";
  json too_few = json::parse(line);
  too_few["workload"]["global_batch_size"] = 1;
  place.write("batch.jsonl", line + name + "\n" + named.dump() + "\n" + too_few.dump() + "\nnot json\n");
  const std::string set = " --set plan.micro_batch_size=2";
  for (const std::string calibrated : {"", " --calibration mine.json"}) {
    const auto single = [&](const std::string& scenario) {
      return json::parse(place.orrery("simulate " + scenario + set + calibrated + " --json -").out).at("inputs");
    };
    const json of_line = single("one.json"), of_name = single("offload");
    const auto run =
        place.orrery("simulate --batch batch.jsonl --label mine --json all.jsonl --csv all.csv" + set + calibrated);
    ASSERT_EQ(run.code, 0) << run.err;
    const std::vector<json> results = results_of(place.read("all.jsonl"));
    ASSERT_EQ(results.size(), 5u);
    const std::vector<std::string> rows = text_lines(place.read("all.csv"));
    ASSERT_EQ(rows.size(), 6u);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const json& result = results[i];
      EXPECT_EQ(result.at("label"), "mine");
      EXPECT_EQ(result.at("set"), json({"plan.micro_batch_size=2"}));
      EXPECT_EQ(result.at("version"), results[0]["version"]);
      EXPECT_EQ(result.at("inputs").at("calibrations"), of_line.at("calibrations"));
      EXPECT_EQ(result["inputs"].value("commit", ""), of_line.value("commit", ""));
      EXPECT_EQ(result.contains("error"), i >= 3);
      const std::string digest = result["inputs"].value("digest", "");
      const std::string files =
          calibrated.empty() ? "bundled" : "mine.json " + of_line["calibrations"][0]["digest"].get<std::string>();
      EXPECT_THAT(rows[i + 1], StartsWith("mine:" + std::to_string(i + 1) + ","));
      EXPECT_THAT(rows[i + 1], HasSubstr("," + digest + "," + files + "," + result["version"].get<std::string>() + "," +
                                         of_line.value("commit", "") + ","));
    }
    EXPECT_EQ(results[0]["inputs"]["digest"], of_line["digest"]);
    EXPECT_EQ(results[0]["scenario"], "batch.jsonl:1");
    EXPECT_EQ(results[1]["inputs"]["digest"], of_name["digest"]);
    EXPECT_EQ(results[2]["inputs"]["digest"], of_line["digest"]) << "what a file holds, not its name";
    EXPECT_NE(results[3]["inputs"]["digest"], of_line["digest"]) << "of an error, where the line could be read";
    EXPECT_FALSE(results[4]["inputs"].contains("digest"));
    const auto fields =
        place.orrery("simulate --batch batch.jsonl --fields digest,scenario,version" + set + calibrated);
    EXPECT_EQ(results_of(fields.out)[2],
              json({{"digest", of_line["digest"]}, {"scenario", "batch.jsonl:3"}, {"version", results[0]["version"]}}));
    const auto csv = place.orrery("simulate one.json --csv -" + set + calibrated);
    EXPECT_THAT(text_lines(csv.out).at(1), HasSubstr("," + of_line["digest"].get<std::string>() + ","));
  }
}

TEST(Batch, FailsWhereNoLineIsAScenarioThatCanBeSimulated) {
  Workplace place;
  place.write("batch.jsonl", "not json\n\n{}\n");
  auto result = place.orrery("simulate --batch batch.jsonl");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("batch.jsonl: found 2 scenarios, each in error"));
  EXPECT_EQ(results_of(result.out).size(), 2u) << "with what is wrong with each";
  EXPECT_EQ(place.orrery("simulate --batch batch.jsonl --json results.jsonl").code, 2);
  EXPECT_EQ(results_of(place.read("results.jsonl")).size(), 2u);
  for (const char* blank : {"", "\n \n"}) {
    result = place.orrery("simulate --batch - --json none.jsonl", blank);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("found no scenario, expected one scenario per line"));
  }
  EXPECT_THAT(place.files(), ElementsAre("batch.jsonl", "results.jsonl"));
}

TEST(Batch, ErrorsAreWholeAndShort) {
  const auto error_of = [](const json& line) {
    const json result = json::parse(Workplace().orrery("simulate --batch - --json -", line.dump()).out);
    return result.at("error");
  };
  const std::string null("a\0b", 3), huge(1 << 20, 'k');
  EXPECT_THAT(error_of({{null, 1}})["message"].get<std::string>(),
              AllOf(HasSubstr("/a\\x00b: found the unknown key \"a\\u0000b\""), HasSubstr("expected")));
  EXPECT_THAT(
      error_of({{"model", null}, {"cluster", "dgx-h100"}, {"workload", json::object()}})["message"].get<std::string>(),
      AllOf(HasSubstr("/model: found \"a"), HasSubstr("b\", expected the name of a model")));
  for (const json& line :
       {json{{huge, 1}}, json{{"model", huge}, {"cluster", "dgx-h100"}, {"workload", json::object()}},
        json{{"model", huge + ".json"}, {"cluster", "dgx-h100"}, {"workload", json::object()}},
        json{{"model", {{huge, 1}}}, {"cluster", "dgx-h100"}, {"workload", json::object()}}}) {
    const json error = error_of(line);
    EXPECT_LT(error.dump().size(), 20000u);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("expected"));
  }
}

TEST(Batch, ALineHasAnEnd) {
  const Workplace place;
  const auto endless = place.shell("(ulimit -v 1000000; timeout 60 $ORRERY simulate --batch - </dev/zero)");
  EXPECT_EQ(endless.code, 2) << endless.err;
  EXPECT_THAT(endless.err,
              HasSubstr("<stdin>:1: found a line of more than 16 MiB, expected a readable file of JSON lines"));
  EXPECT_THAT(place.orrery("simulate --batch /dev/zero").err, HasSubstr("/dev/zero:1: found a line of more than"));
  // Long lines, and a last one without its end, are read whole.
  json scenario = json::parse(example_scenario());
  scenario["comment"] = std::string(1 << 20, 'x');
  const std::string line = scenario.dump();
  const std::vector<json> results = results_of(place.orrery("simulate --batch -", line + "\n" + line).out);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1].at("devices"), 512);
}

TEST(Batch, RefusesASetThatNoLineCanHaveBeforeAnythingIsWritten) {
  Workplace place;
  place.write("batch.jsonl", example_scenario_line());
  place.write("results.csv", "of yesterday");
  const auto result = place.orrery("simulate --batch batch.jsonl --set nonsense --csv results.csv");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("found \"nonsense\", expected key.key=value"));
  EXPECT_EQ(place.read("results.csv"), "of yesterday");
}

TEST(Batch, TakesNamesOfScenariosAndCountsErrors) {
  const std::string lines = "\"llama-3-70b-512-h100\"\n{}\n\"korth-t5-megatron-1T-full\"\n\"no-such-scenario\"\n";
  const auto result = Workplace().orrery("simulate --batch - --fields 'step_seconds, mfu' --csv -", lines);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("2 of 4 scenarios in error, the first: <stdin>:2"));
  const auto one = Workplace().orrery("simulate --batch - --fields mfu --json -", "\"korth-t5-megatron-1T-full\"\n");
  const auto alone = Workplace().orrery("simulate korth-t5-megatron-1T-full --json -");
  EXPECT_EQ(json::parse(one.out)["mfu"], json::parse(alone.out)["mfu"]);
}

// Validation predicts steps without their own source, and what is timed like a kernel without what steps show.
TEST(Simulate, SaysHowValidationPredictsAPublishedMeasurement) {
  const auto shown = [](const std::string& id) { return Workplace().orrery("simulate " + id).out; };
  EXPECT_THAT(shown("korth-t5-megatron-1T-full"), HasSubstr("by a calibration without this source"));
  EXPECT_THAT(shown("usp-t4-a100-32K-u8-zigzag"), HasSubstr("from kernels and collectives alone"));
  EXPECT_THAT(shown("korth-t4-baseline-no-recompute-fwd"), HasSubstr("from kernels and collectives alone"));
}

TEST(Simulate, CountsMfuAgainstTheFastestPrecisionOfTheLayers) {
  const auto mfu = [](const std::string& precision) {
    const auto result = Workplace().orrery("simulate llama-3-70b-512-h100 --json - --set " + precision);
    return result.code == 0 ? json::parse(result.out)["mfu"].get<double>() : 0.0;
  };
  const double plan = mfu("plan.precision=fp8");
  EXPECT_GT(plan, 0);
  EXPECT_NEAR(mfu("'plan.layers=[{\"precision\":\"fp8\"}]'"), plan, 0.02 * plan) << "the same step, but for the ends";
}

TEST(Compare, SaysWhatAStoredReportIsOf) {
  Workplace place;
  place.orrery("simulate llama-3-70b-512-h100 --set plan.zero_stage=0 --json then.json");
  const auto table = place.orrery("compare then.json llama-3-70b-512-h100");
  EXPECT_THAT(table.out, HasSubstr("a prediction of strategies/pipeline_parallel/example-llama-3-70b-512-h100.json, "
                                   "plan.zero_stage=0 (then.json)"))
      << table.err;
}

TEST(Batch, AppliesSetsToEveryLineAndWritesFiles) {
  Workplace place;
  const std::string line = example_scenario_line();
  place.write("batch.jsonl", line + line);
  const auto result = place.orrery("simulate --batch batch.jsonl --set cluster.nodes=32 --json results.jsonl");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(place.files(), ElementsAre("batch.jsonl", "results.jsonl"));
  EXPECT_EQ(json::parse(place.read("results.jsonl").substr(0, place.read("results.jsonl").find('\n')))["devices"], 256);
}

TEST(Simulate, ExplainsNothingThatHasNoName) {
  const auto result = Workplace().orrery("simulate straggler --explain ''");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--explain: found nothing, expected the name of an op or a term"));
}

TEST(Simulate, AReportIsNoScenarioAndCompareNamesEnginesThatDiffer) {
  const Workplace place;
  ASSERT_EQ(place.orrery("simulate straggler --json report.json").code, 0);
  const auto wrong = place.orrery("simulate report.json");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("report.json: found a report, expected a scenario"));
  EXPECT_THAT(place.orrery("run report.json").err, HasSubstr("report.json: found a report, expected a scenario"));
  EXPECT_THAT(place.orrery("show report.json").err, HasSubstr("report.json: found a report, expected a model's file"));
  const std::string by = ", by --engine ";
  EXPECT_THAT(place.orrery("compare report.json straggler").out, Not(HasSubstr(by)));
  EXPECT_THAT(place.orrery("compare report.json straggler --engine des").out,
              AllOf(HasSubstr("(report.json)" + by + "analytical\n"), HasSubstr("straggler.json)" + by + "des\n")));
}

TEST(Compare, SaysWhichTermsDifferAndByHowMuch) {
  Workplace place;
  place.write("a.json", example_scenario());
  const auto table = place.orrery("compare a.json --set-b plan.tensor_parallel=4");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("step time"), HasSubstr("plan.tensor_parallel=4"), HasSubstr("matrix products")));

  const auto result = place.orrery("compare a.json llama-3-70b-512-h100 --set-a plan.tensor_parallel=4 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const json difference = json::parse(result.out);
  const double a = difference["a"]["step_seconds"], b = difference["b"]["step_seconds"];
  EXPECT_NEAR(difference["change"]["step_seconds"].get<double>(), b - a, 1e-12);
  double total = 0;
  for (const auto& [term, seconds] : difference["change"]["time"].items()) total += seconds.get<double>();
  EXPECT_NEAR(total, b - a, 1e-6 * a);
}

// What is set for one side is set there, and what is set for both on both.
TEST(Compare, SidesAreWhatSimulateSaysOfThem) {
  const Workplace place;
  const auto step = [&](const std::string& arguments) {
    return json::parse(place.orrery("simulate optimizer " + arguments + " --json -").out)
        .at("step_seconds")
        .get<double>();
  };
  const json compared = json::parse(place
                                        .orrery("compare optimizer --set plan.recompute=full --set-a plan.zero_stage=0 "
                                                "--set-b plan.zero_stage=3 --json -")
                                        .out);
  const double a = step("--set plan.recompute=full --set plan.zero_stage=0"),
               b = step("--set plan.recompute=full --set plan.zero_stage=3");
  EXPECT_NE(a, b);
  EXPECT_EQ(compared.at("a").at("step_seconds"), a);
  EXPECT_EQ(compared.at("b").at("step_seconds"), b);
  EXPECT_EQ(compared.at("change").at("step_seconds"), b - a);
}

// A report knows its inputs again, the calibrations that it was made by among them.
TEST(Simulate, DigestsCalibrationsToo) {
  const Workplace place;
  const std::string file = std::string(ORRERY_SOURCE_DIR) + "/results/calibration/A100-SXM4-80GB.json";
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  json changed = json::parse(text.str());
  changed["note"] = "as before";
  place.write("mine.json", text.str());
  place.write("other.json", changed.dump());
  const auto digest = [&](const std::string& arguments) {
    return json::parse(place.orrery("simulate optimizer " + arguments + " --json -").out).at("inputs").at("digest");
  };
  EXPECT_NE(digest("--calibration mine.json"), digest(""));
  EXPECT_EQ(digest("--calibration mine.json"), digest("--calibration mine.json"));
  EXPECT_NE(digest("--calibration mine.json"), digest("--calibration other.json"));
}

// Whatever stands in an argument: nothing of it acts on a terminal.
TEST(CommandLine, WritesControlCharactersOut) {
  const auto result = Workplace().orrery("simulate \"$(printf 'a\\033b\\177c')\"");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("b\\x7fc"), Not(HasSubstr("\x1b")), Not(HasSubstr("\x7f"))));
}

TEST(Compare, WritesTheColumnsOfSimulateAsRowsOfCsv) {
  Workplace place;
  const auto result =
      place.orrery("compare llama-3-70b-512-h100 --set-b plan.recompute=full --csv o.csv --json o.json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step time")) << "the table too";
  std::istringstream lines(place.read("o.csv"));
  std::map<std::string, std::vector<std::string>> rows;
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line + ",");
    std::vector<std::string> row;
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
    ASSERT_EQ(row.size(), 4u) << line;
    names.push_back(row[0]);
    rows[row[0]] = {row.begin() + 1, row.end()};
  }
  EXPECT_EQ(rows["column"], (std::vector<std::string>{"a", "b", "difference"}));
  const json compared = json::parse(place.read("o.json"));
  const std::vector<std::string>& step = rows["step_seconds"];
  EXPECT_EQ(std::stod(step[0]), compared["a"]["step_seconds"].get<double>());
  EXPECT_EQ(std::stod(step[1]), compared["b"]["step_seconds"].get<double>());
  EXPECT_EQ(std::stod(step[2]), compared["change"]["step_seconds"].get<double>());
  EXPECT_EQ(rows["memory_fits"][2], "");
  EXPECT_EQ(rows["digest"][0], compared["inputs"]["a"]["digest"]);
  EXPECT_EQ(rows["digest"][1], compared["inputs"]["b"]["digest"]);
  EXPECT_NE(rows["digest"][0], rows["digest"][1]);
  EXPECT_EQ(rows["calibrations"], (std::vector<std::string>{"bundled", "bundled", ""}));
  EXPECT_EQ(rows["version"][1], compared["version"]);
  EXPECT_EQ(rows["devices"], (std::vector<std::string>{"512", "512", "0"}));
  std::string header = place.orrery("simulate llama-3-70b-512-h100 --csv -").out;
  header.resize(header.find('\n'));
  for (const std::string& name : names)
    EXPECT_THAT(header + ",column", HasSubstr(',' + name)) << "as simulate names it";
  EXPECT_THAT(place.orrery("compare llama-3-70b-512-h100 --csv -").out, testing::StartsWith("column,a,b,difference\n"));
}

TEST(Compare, OfAScenarioWithItselfIsNoDifference) {
  const auto result = Workplace().orrery("compare llama-3-70b-512-h100 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["change"]["step_seconds"], 0.0);
}

TEST(List, KnowsEveryKindAndShowKnowsEveryName) {
  Workplace place;
  const std::map<std::string, std::string> members{{"models", "llama-3-70b"},
                                                   {"nodes", "dgx-h100"},
                                                   {"devices", "H100-SXM5-80GB"},
                                                   {"fabrics", ""},
                                                   {"clusters", ""},
                                                   {"strategies", "tensor_parallel"},
                                                   {"scenarios", "llama-3-70b-512-h100"},
                                                   {"plans", "llama-3-70b-60-days"},
                                                   {"profiles", "bert-huge-8-titan"},
                                                   {"prices", "lambda-h100"},
                                                   {"power", "h100-board"},
                                                   {"sites", "google"},
                                                   {"grids", "united-states"},
                                                   {"failures", "llama-3-405b"},
                                                   {"storage", "llama-3-tectonic"},
                                                   {"restarts", "megascale"}};
  for (const auto& [kind, member] : members) {
    const auto text = place.orrery("list " + kind);
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr(member));
    const auto result = place.orrery("list " + kind + " --json");
    ASSERT_EQ(result.code, 0) << result.err;
    const json rows = json::parse(result.out);
    ASSERT_FALSE(rows.empty()) << kind;
    for (const json& row : {rows.front(), rows.back()}) {
      const std::string name = row.at("name");
      const auto shown = place.orrery("show '" + name + "' --json");
      ASSERT_EQ(shown.code, 0) << shown.err;
      const json found = json::parse(shown.out);
      EXPECT_TRUE(found.contains(kind == "strategies" ? "strategy" : kind.substr(0, kind.size() - 1)) ||
                  found.contains(kind))
          << name;
      EXPECT_EQ(place.orrery("show '" + name + "'").code, 0);
    }
  }
}

TEST(Show, NamesTheSourceOfTheFigures) {
  Workplace place;
  EXPECT_THAT(place.orrery("show dgx-h100").out, AllOf(HasSubstr("source"), HasSubstr("nic_bytes_per_second")));
  EXPECT_THAT(place.orrery("show llama-3-70b").out, AllOf(HasSubstr("source"), HasSubstr("parameters")));
}

TEST(Simulate, SaysWhichGroupsLieAcrossNodes) {
  const Workplace place;
  const auto notes = [&](const std::string& sets) {
    const auto result = place.orrery("simulate llama-3-70b-512-h100 --json - " + sets);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out).at("notes").dump();
  };
  const std::string racks = "--set cluster.node=gb200-nvl72 --set cluster.nodes=8 --set plan.tensor_parallel=16 ";
  EXPECT_THAT(
      notes(racks + "--set workload.global_batch_size=576"),
      AllOf(HasSubstr("4 of 36 tensor-parallel groups lie on more than one node"),
            HasSubstr("16 ranks do not divide a node's 72 devices"), HasSubstr("cluster.devices_per_node=64, keeps")));
  EXPECT_THAT(notes(racks + "--set cluster.devices_per_node=64"), Not(HasSubstr("groups lie")));
  EXPECT_THAT(notes("--set plan.tensor_parallel=16"),
              AllOf(HasSubstr("32 of 32 tensor-parallel groups"), HasSubstr("more than a node's 8 devices")));
  EXPECT_THAT(notes(""), Not(HasSubstr("groups lie")));
  // Of groups that would fit it is the order's doing.
  EXPECT_THAT(notes("--set plan.mesh_order=pp-dp-ep-cp-tp"),
              AllOf(HasSubstr("64 of 64 tensor-parallel groups"), HasSubstr("they would fit into one"),
                    HasSubstr("plan.mesh_order puts other axes between their 8 ranks"),
                    Not(HasSubstr("a plan.tensor_parallel that"))));
  EXPECT_THAT(notes("--set plan.mesh_order=pp-dp-ep-cp-tp --set plan.tensor_parallel=16"),
              AllOf(HasSubstr("32 of 32 tensor-parallel groups"), HasSubstr("a plan.tensor_parallel that fits")));
  // Context groups of whole nodes are meant to be.
  EXPECT_THAT(notes("--set plan.context_parallel=4"), Not(HasSubstr("groups lie")));
  EXPECT_THAT(notes("--set cluster.node=gb200-nvl72 --set cluster.nodes=8 --set plan.tensor_parallel=8 "
                    "--set plan.context_parallel=2 --set workload.global_batch_size=576"),
              AllOf(HasSubstr("32 of 288 context-parallel groups"), HasSubstr("2 ranks times 8 inside them"),
                    Not(HasSubstr("tensor-parallel groups lie"))));
}

TEST(Simulate, NodesOfWholeLeavesAreNotCalledScattered) {
  const Workplace place;
  const auto notes = [&](const std::string& nodes) {
    const auto result =
        place.orrery("simulate llama-3-70b-512-h100 --json - --set 'cluster.placement={\"nodes\": \"" + nodes + "\"}'");
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out).at("notes").dump();
  };
  EXPECT_THAT(notes("node[064-127]"), Not(HasSubstr("spread over")));
  EXPECT_THAT(notes("node[065-128]"), HasSubstr("spread over"));
}

TEST(Simulate, SaysWhichLengthItTookWhereNoneIsGiven) {
  const Workplace place;
  const std::string note = "8192 tokens, the model's max_positions: workload.sequence_length is not given";
  const std::string scenario = "simulate llama-3-70b-512-h100 --json - ";
  for (const std::string length : {"workload.sequence_length=0", "workload={\"global_batch_size\":512}"})
    EXPECT_THAT(json::parse(place.orrery(scenario + "--set '" + length + "'").out).at("notes").dump(), HasSubstr(note));
  EXPECT_THAT(json::parse(place.orrery(scenario).out).at("notes").dump(), Not(HasSubstr("max_positions")));
  // A vision model's sequence is its image.
  EXPECT_THAT(place
                  .orrery("simulate llama-3-70b-512-h100 --set model=vit-b-16 --set 'plan={}' --set "
                          "'workload={\"global_batch_size\":512}'")
                  .out,
              AllOf(HasSubstr("step time"), Not(HasSubstr("max_positions"))));
}

TEST(Simulate, SaysThatPlacementByLeavesHidesOversubscription) {
  const Workplace place;
  json scenario = json::parse(example_scenario());
  scenario["cluster"]["nodes"] = 128;
  scenario["cluster"]["fabric"] = {{"base", "ib-ndr-rail"}, {"oversubscription", 1}};
  scenario["workload"]["global_batch_size"] = 1024;
  const auto report = [&](const json& of) { return json::parse(place.orrery("simulate - --json -", of.dump()).out); };
  const auto narrow = [](json of) {
    of["cluster"]["fabric"]["oversubscription"] = 8;
    return of;
  };
  const std::string note = "oversubscription of 8 has no effect";
  // Rings of the data-parallel groups of a pipeline's stage lie interleaved, and leave a leaf more than once.
  const json slower = report(narrow(scenario));
  EXPECT_GT(slower.at("step_seconds"), report(scenario).at("step_seconds"));
  EXPECT_THAT(slower.at("notes").dump(), Not(HasSubstr("oversubscription")));

  scenario["plan"] = {{"zero_stage", 3}, {"framework", "fsdp-compiled"}, {"recompute", "full"}};
  const json wide = report(scenario), hidden = report(narrow(scenario));
  EXPECT_THAT(wide.at("notes").dump(), Not(HasSubstr("oversubscription")));
  EXPECT_EQ(hidden.at("step_seconds"), wide.at("step_seconds"));
  EXPECT_THAT(hidden.at("notes").dump(), HasSubstr(note));
  const json line = json::parse(place.orrery("simulate --batch -", narrow(scenario).dump() + "\n").out);
  EXPECT_EQ(line.at("notes"), hidden.at("notes"));
  EXPECT_THAT(hidden.at("notes").dump(), HasSubstr("with nodes in random order the step would take"));

  // It shows where nodes are scattered, and the note says what that costs.
  scenario["cluster"]["placement"] = {{"nodes", "scattered"}};
  const json scattered = report(scenario), narrow_and_scattered = report(narrow(scenario));
  EXPECT_GT(scattered.at("step_seconds"), hidden.at("step_seconds"));
  EXPECT_GT(narrow_and_scattered.at("step_seconds"), scattered.at("step_seconds"));
  EXPECT_THAT(narrow_and_scattered.at("notes").dump(), HasSubstr("the nodes are spread over the fabric"));
  const json scattered_line = json::parse(place.orrery("simulate --batch -", narrow(scenario).dump() + "\n").out);
  EXPECT_EQ(scattered_line.at("notes"), narrow_and_scattered.at("notes"));
  EXPECT_EQ(scattered_line.at("step_seconds"), narrow_and_scattered.at("step_seconds"));
  scenario["cluster"]["placement"]["ring_order"] = "leaf";
  EXPECT_EQ(report(narrow(scenario)).at("step_seconds"), hidden.at("step_seconds"));
  scenario["cluster"].erase("placement");
  scenario["cluster"]["nodes"] = 32;  // one leaf
  EXPECT_THAT(report(narrow(scenario)).at("notes").dump(), Not(HasSubstr("oversubscription")));
}

TEST(Simulate, APlacementThatIsNoneIsNamedByItsField) {
  const Workplace place;
  const auto bad = place.orrery("simulate data_parallel --set 'cluster.placement.nodes=node[004-001]'");
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("/cluster/placement/nodes"), HasSubstr("004-001")));
  EXPECT_EQ(place.orrery("simulate data_parallel --set plan.mesh_order=dp-dp").code, 2);
}

// Devices that a plan leaves idle, and sequences that a model was not made for, are seen in no figure.
TEST(Simulate, SaysWhichDevicesStandIdleAndWhichSequencesAreTooLong) {
  const Workplace place;
  const auto notes = [&](const std::string& sets) {
    return json::parse(place.orrery("simulate llama-3-70b-512-h100 --json -" + sets).out).at("notes").dump();
  };
  EXPECT_THAT(notes(""), AllOf(Not(HasSubstr("devices are idle")), Not(HasSubstr("max_positions"))));
  EXPECT_THAT(notes(" --set plan.data_parallel=8"), HasSubstr("256 of the cluster's 512 devices are idle"));
  EXPECT_THAT(notes(" --set plan.data_parallel=8 --engine des"), HasSubstr("256 of the cluster's 512 devices"));
  EXPECT_THAT(notes(" --set plan.data_parallel=16"), Not(HasSubstr("devices are idle")));
  EXPECT_THAT(notes(" --set workload.sequence_length=16384"),
              HasSubstr("16384 tokens, more than the model's max_positions of 8192"));
  EXPECT_THAT(notes(" --set cluster.devices_per_node=16 --set cluster.nodes=32"),
              HasSubstr("nodes have 16 devices, but dgx-h100 has 8; they share its 8 NICs"));
}

// Zero-bubble schedules can be slower than the bubble that they spare, and a share of the peak above it looks like a
// mistake.
TEST(Simulate, SaysWhatWeightGradientsApartGatherAgain) {
  const Workplace place;
  const auto notes = [&](const std::string& sets) {
    return json::parse(place.orrery("simulate llama-3-70b-512-h100 --set plan.virtual_pipeline=1 --json -" + sets).out)
        .at("notes")
        .dump();
  };
  const auto said = HasSubstr("weight gradients run separately from the backward and gather");
  EXPECT_THAT(notes(" --set plan.pipeline_schedule=zb-h1"), AllOf(said, HasSubstr("4 all-gathers per layer")));
  EXPECT_THAT(notes(" --set plan.pipeline_schedule=zb-v --engine des"), said);
  EXPECT_THAT(notes(" --set plan.pipeline_schedule=1f1b"), Not(said));
  EXPECT_THAT(notes(" --set plan.pipeline_schedule=zb-h1 --set plan.sequence_parallel=false"), Not(said));
}

TEST(Simulate, SaysWhyAShareOfThePeakIsAboveIt) {
  Workplace place;
  place.write("long.json", R"({"model": "llama-3.2-3b", "cluster": {"node": "mi100-4", "nodes": 2},
      "workload": {"global_batch_size": 8192, "sequence_length": 131072},
      "plan": {"micro_batch_size": 8, "recompute": "selective", "framework": "orrery"}})");
  const json full = json::parse(place.orrery("simulate long.json --json -").out);
  ASSERT_GT(full.at("mfu_full_attention"), 1);
  const std::string share = fmt::format("{:.1f}", 100 * full.at("mfu_full_attention").get<double>());
  EXPECT_THAT(full.at("notes").dump(),
              AllOf(HasSubstr("MFU with full attention, " + share + " %, is above the device's peak"),
                    Not(HasSubstr("is wrong"))));
  EXPECT_THAT(place.orrery("simulate long.json --set workload.sequence_length=8192").out,
              Not(HasSubstr("above the device's peak")));
}

// A timeline of millions of slots is neither drawn nor kept: nobody could read it.
TEST(Simulate, RefusesATimelineOfTooManySlotsBeforeItStarts) {
  const Workplace place;
  const std::string many = "simulate llama-3-70b-512-h100 --set workload.global_batch_size=";
  for (const char* output : {" --trace t", " --svg t", " --svg t --engine des"}) {
    const auto refused = place.orrery(many + "1048576" + output);
    EXPECT_EQ(refused.code, 2) << output;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("found a timeline of 2621440 slots (65536 micro-batches, 2 times on each "
                                             "of 4 stages of 5 chunks), expected at most 100000"),
                                   HasSubstr("a smaller workload.global_batch_size")));
    EXPECT_THAT(place.files(), testing::IsEmpty()) << output;
  }
  EXPECT_EQ(place.orrery(many + "1048576").code, 0) << "without a timeline its length does not matter";
  EXPECT_EQ(place.orrery(many + "32768 --svg t").code, 0);
  EXPECT_LT(place.read("t").size(), 50000u);
  const auto events = place.orrery(many + "32768 --trace d --engine des");
  EXPECT_EQ(events.code, 2);
  EXPECT_THAT(events.err, HasSubstr("found a timeline of up to 4.3e+06 kernels and transfers, expected at most 2e+06"));
}

TEST(Simulate, RefusesAMemoryTraceOfTooManyAllocationsBeforeItStarts) {
  const Workplace place;
  const std::string many = "simulate llama-3-70b-512-h100 --set workload.global_batch_size=";
  const auto refused = place.orrery(many + "1048576 --memory-trace t");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("allocations and frees in a step of 65536 micro-batches on stage 0, expected at most 1e+06 "
                              "for --memory-trace"),
                    HasSubstr("a smaller workload.global_batch_size")));
  EXPECT_THAT(place.files(), testing::IsEmpty());
  EXPECT_EQ(place.orrery(many + "1024 --memory-trace t").code, 0);
  EXPECT_LT(place.read("t").size(), 130'000'000u);
}

TEST(List, SaysInWhichTypeADevicesRateIs) {
  const Workplace place;
  const std::string listed = place.orrery("list devices").out;
  EXPECT_THAT(listed, AllOf(HasSubstr("NVIDIA Volta: 125 TFLOP/s fp16"), HasSubstr("NVIDIA Hopper: 989 TFLOP/s bf16"),
                            HasSubstr("AMD CPU: 0.032 TFLOP/s fp32")));
  for (const json& row : json::parse(place.orrery("list devices --json").out)) {
    const std::string name = row.at("name"), summary = row.at("summary");
    EXPECT_EQ(summary.find("bf16") != std::string::npos,
              find_device(name).peak_flops_per_second[static_cast<std::size_t>(Dtype::bf16)] > 0)
        << name;
  }
}

TEST(Simulate, SaysWhyATorusHasNoPlacement) {
  const auto result = Workplace().orrery(
      "simulate data_parallel --set cluster.fabric=torus --set 'cluster.placement={\"nodes\": \"scattered\"}'");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("/cluster/placement: "), HasSubstr("a job gets a block of the shape"),
                                HasSubstr("cluster.fabric.dimensions"), HasSubstr("plan.mesh_order")));
}

// Fused attention keeps no scores, so that repeating the core is asked of nothing.
TEST(Simulate, SaysWhereSelectiveRecomputationRepeatsNothing) {
  const Workplace place;
  const auto report = [&](const std::string& sets) {
    return json::parse(place.orrery("simulate llama-3-70b-512-h100 --json - --set " + sets).out);
  };
  const std::string note = "recomputes nothing";
  const json none = report("plan.recompute=none"), selective = report("plan.recompute=selective");
  EXPECT_THAT(none.at("notes").dump(), Not(HasSubstr(note)));
  EXPECT_THAT(selective.at("notes").dump(), HasSubstr(note));
  EXPECT_EQ(selective.at("step_seconds"), none.at("step_seconds"));
  EXPECT_EQ(selective.at("memory"), none.at("memory"));
  EXPECT_THAT(
      report("plan.recompute=none --set 'plan.layers=[{\"to\": 4, \"recompute\": \"selective\"}]'").at("notes").dump(),
      HasSubstr(note))
      << "in a range of layers, too";
  const json scores = report("plan.recompute=selective --set plan.flash_attention=false");
  EXPECT_THAT(scores.at("notes").dump(), Not(HasSubstr(note)));
  EXPECT_GT(scores.at("time").at("recompute_seconds"), 0);
  const json modules = report("plan.recompute=selective --set 'plan.recompute_modules=[\"mlp\"]'");
  EXPECT_THAT(modules.at("notes").dump(), Not(HasSubstr(note)));
  EXPECT_GT(modules.at("time").at("recompute_seconds"), 0);
}

TEST(Simulate, SaysThatTheAnalyticalEngineLeavesPerturbationsOut) {
  const Workplace place;
  const std::string note = "perturbations are ignored";
  EXPECT_THAT(place.orrery("simulate straggler").out, HasSubstr(note));
  EXPECT_THAT(place.orrery("simulate straggler --set perturbations=[]").out, Not(HasSubstr(note)));
  EXPECT_THAT(json::parse(place.orrery("simulate straggler --json -").out).at("notes").dump(), HasSubstr(note));
}

TEST(Show, ListsLinksByKindAndByName) {
  Workplace place;
  place.write("scenario.json", example_scenario());
  place.write("cluster.json", json::parse(example_scenario())["cluster"].dump());
  const auto kinds = place.orrery("show links scenario.json");
  ASSERT_EQ(kinds.code, 0) << kinds.err;
  EXPECT_THAT(kinds.out, AllOf(HasSubstr("scale_up"), HasSubstr("nic"), HasSubstr("node0.nic0.out")));
  EXPECT_EQ(place.orrery("show links cluster.json").out, kinds.out);
  // 64 nodes of 8 NICs, both directions of each.
  std::int64_t nics = 0;
  for (const json& kind : json::parse(place.orrery("show links scenario.json --json").out))
    if (kind.at("kind") == "nic") nics = kind.at("links");
  EXPECT_EQ(nics, 64 * 8 * 2);

  const auto matching = place.orrery("show links scenario.json 'node3.nic*' --json");
  ASSERT_EQ(matching.code, 0) << matching.err;
  const json links = json::parse(matching.out);
  EXPECT_EQ(links.size(), 16u);
  for (const json& link : links) {
    EXPECT_THAT(link.at("name").get<std::string>(), StartsWith("node3.nic"));
    EXPECT_EQ(link.at("bytes_per_second").get<double>(), 50e9);
  }
  EXPECT_EQ(json::parse(place.orrery("show links scenario.json node3.nic2 --json").out).size(), 2u);
  for (const char* of : {"eos", "dgx-h100", "straggler", "two-jobs-one-spine"})
    EXPECT_EQ(place.orrery(std::string("show links ") + of).code, 0) << of;
  // Sprayed up-links act as one.
  EXPECT_LT(place.orrery("show links two-jobs-one-spine 'leaf*' --routing sprayed").out.size(),
            place.orrery("show links two-jobs-one-spine 'leaf*' --routing per_flow").out.size());
}

TEST(Help, IsThereForEveryCommandWithExamples) {
  Workplace place;
  for (const char* command : {"", "simulate", "compare", "list", "show", "schema"}) {
    const auto result = place.orrery(std::string(command) + " --help");
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_THAT(result.out, HasSubstr("Examples:")) << command;
  }
  EXPECT_THAT(place.orrery("--version").out, StartsWith("orrery "));
}

TEST(Output, ReplacesAFileWholeAndKeepsTheOldOneOnError) {
  Workplace place;
  place.write("r.json", "old");
  EXPECT_EQ(place.orrery("simulate llama-3-70b-512-h100 --set plan.zero_stage=9 --json r.json").code, 2);
  EXPECT_EQ(place.read("r.json"), "old");
  EXPECT_EQ(place.orrery("simulate llama-3-70b-512-h100 --json r.json").code, 0);
  EXPECT_NO_THROW(json::parse(place.read("r.json")));
  EXPECT_THAT(place.files(), ElementsAre("r.json"));
}

}  // namespace
}  // namespace orrery
