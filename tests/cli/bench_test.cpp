// orrery bench: compares, keeps and imports runs that the test writes; one short run of the real thing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kMatmul = "linear/fp32/8x8x8";
constexpr const char* kNorm = "norm/fp32/8x8";

// Ten repetitions of two kernels.
std::string run_file(double matmul_microseconds, double norm_microseconds,
                     const std::string& date = "2026-01-02T03:04:05+00:00", const std::string& device = "a CPU") {
  json run{{"context", {{"date", date}, {"device", device}, {"git_commit", "0123456789abcdef"}, {"num_cpus", 2}}},
           {"benchmarks", json::array()}};
  for (const auto& [name, microseconds] :
       {std::pair(kMatmul, matmul_microseconds), std::pair(kNorm, norm_microseconds)})
    for (int i = 0; i < 10; ++i)
      run["benchmarks"].push_back({{"name", name},
                                   {"run_name", name},
                                   {"run_type", "iteration"},
                                   {"repetition_index", i},
                                   {"iterations", 100},
                                   {"real_time", 2 * microseconds},
                                   {"cpu_time", microseconds * (1 + 0.001 * i)},
                                   {"time_unit", "us"}});
  return run.dump();
}

void expect_bench_refused(const Workplace& place, const std::string& arguments, const std::string& sentence) {
  const std::set<std::string> before = place.files();
  const CommandResult result = place.orrery(arguments);
  EXPECT_EQ(result.code, 2) << arguments << "\n" << result.err;
  EXPECT_THAT(result.out, IsEmpty()) << arguments;
  EXPECT_THAT(result.err, StartsWith("orrery: error: "));
  EXPECT_THAT(result.err, HasSubstr(sentence)) << arguments;
  EXPECT_EQ(place.files(), before) << arguments;
}

// ---- compare

TEST(BenchCompare, ExitsOneOnARegressionAndSaysWhich) {
  Workplace place;
  place.write("before.json", run_file(100, 10));
  place.write("after.json", run_file(112, 10));
  const CommandResult result = place.orrery("bench compare before.json after.json");
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("+12.0 %"));
  EXPECT_LT(result.out.find("the least slow-down that can be seen in these runs"), result.out.find("+12.0 %"));
  EXPECT_THAT(result.out, HasSubstr("1 regression, 1 unchanged"));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(BenchCompare, ExitsZeroWhereNothingIsSlower) {
  Workplace place;
  place.write("before.json", run_file(100, 10));
  place.write("after.json", run_file(80, 10));
  EXPECT_EQ(place.orrery("bench compare before.json before.json").code, 0);
  const CommandResult faster = place.orrery("bench compare before.json after.json");
  EXPECT_EQ(faster.code, 0);
  EXPECT_THAT(faster.out, HasSubstr("1 improvement, 1 unchanged"));
  EXPECT_EQ(place.orrery("bench compare before.json -", run_file(112, 10)).code, 1) << "from standard input";
}

TEST(BenchCompare, TakesThresholdsAndFilters) {
  Workplace place;
  place.write("before.json", run_file(100, 10));
  place.write("after.json", run_file(112, 10));
  EXPECT_EQ(place.orrery("bench compare before.json after.json --threshold 15%").code, 0);
  EXPECT_EQ(place.orrery("bench compare before.json after.json --threshold 0.1").code, 1);
  EXPECT_EQ(place.orrery("bench compare before.json after.json --filter '^norm'").code, 0);
  const CommandResult few = place.orrery("bench compare before.json after.json --alpha 1e-9");
  EXPECT_EQ(few.code, 3) << "silence would pass for good news";
  EXPECT_THAT(few.err, HasSubstr("nothing could be told of any benchmark: too few repetitions"));
}

TEST(BenchCompare, ExitsThreeWhereNothingCouldBeTold) {
  Workplace place;
  place.write("before.json", run_file(100, 10));
  const CommandResult none =
      place.orrery("bench compare before.json - --json - --junit o.xml", R"({"context": {}, "benchmarks": []})");
  EXPECT_EQ(none.code, 3) << none.err;
  EXPECT_THAT(none.err, HasSubstr("orrery: nothing could be told of any benchmark\n"));
  const json document = json::parse(none.out);
  EXPECT_EQ(document["exit_code"], 3);
  EXPECT_EQ(document["missing"], json({kMatmul, kNorm}));
  EXPECT_THAT(place.read("o.xml"), HasSubstr("tests=\"2\" failures=\"0\" errors=\"2\" skipped=\"0\""));
}

TEST(BenchCompare, StrictFailsWhatIsMissing) {
  Workplace place;
  json one = json::parse(run_file(100, 10));
  place.write("before.json", one.dump());
  one["benchmarks"].erase(one["benchmarks"].begin(), one["benchmarks"].begin() + 10);
  place.write("after.json", one.dump());
  const CommandResult lenient = place.orrery("bench compare before.json after.json");
  EXPECT_EQ(lenient.code, 0) << lenient.err;
  EXPECT_THAT(lenient.out,
              HasSubstr(std::string("missing: the new run lacks 1 of the baseline's benchmarks: ") + kMatmul));
  EXPECT_EQ(place.orrery("bench compare before.json after.json --strict").code, 1);
  EXPECT_EQ(place.orrery("bench compare after.json before.json --strict").code, 0) << "nothing is missing";
}

TEST(BenchCompare, WritesMarkdownJunitJsonAndCsv) {
  Workplace place;
  place.write("before.json", run_file(100, 10));
  place.write("after.json", run_file(112, 10));
  const CommandResult result =
      place.orrery("bench compare before.json after.json --markdown o.md --junit o.xml --json o.json --csv o.csv");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(place.read("o.md"), HasSubstr("| linear/fp32/8x8x8 |"));
  EXPECT_THAT(place.read("o.csv"), HasSubstr("linear/fp32/8x8x8,regression,10,10,"));
  EXPECT_EQ(json::parse(place.read("o.json"))["verdicts"]["regression"], 1);
  // The XML as a parser of the standard library reads it.
  place.write("check.py",
              "import xml.etree.ElementTree as e\n"
              "s = e.parse('o.xml').getroot().find('testsuite')\n"
              "assert (s.get('tests'), s.get('failures')) == ('2', '1')\n"
              "assert [c.get('name') for c in s if c.find('failure') is not None] == ['linear/fp32/8x8x8']\n");
  EXPECT_EQ(place.python("check.py"), 0) << place.read(".stderr");
  EXPECT_THAT(place.orrery("bench compare before.json after.json --markdown -").out, StartsWith("**1 regression"));
}

TEST(BenchCompare, WarnsOfAnotherDevice) {
  Workplace place;
  place.write("before.json", run_file(100, 10));
  place.write("after.json", run_file(100, 10, "2026-01-03T00:00:00+00:00", "another CPU"));
  const CommandResult result = place.orrery("bench compare before.json after.json");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("device was a CPU in the baseline and is another CPU in the new run"));
}

TEST(BenchCompare, RefusesWhatIsNoRun) {
  Workplace place;
  place.write("run.json", run_file(100, 10));
  place.write("empty.json", "");
  place.write("scenario.json", example_scenario());
  place.write("half.json", run_file(100, 10).substr(0, 300));
  place.write("none.json", R"({"context": {}, "benchmarks": []})");
  expect_bench_refused(place, "bench compare run.json missing.json", "missing.json: found nothing");
  expect_bench_refused(place, "bench compare run.json empty.json --json o.json", "empty.json");
  expect_bench_refused(place, "bench compare run.json half.json --json o.json", "half.json");
  expect_bench_refused(place, "bench compare scenario.json run.json", "the JSON of a Google Benchmark run");
  expect_bench_refused(place, "bench compare none.json none.json", "expected a run with benchmarks");
  expect_bench_refused(place, "bench compare run.json run.json --threshold soon", "expected a share: 5% or 0.05");
  expect_bench_refused(place, "bench compare run.json run.json --threshold -5%", "expected a share: 5% or 0.05");
  expect_bench_refused(place, "bench compare run.json run.json --filter '('", "expected a regular expression");
  expect_bench_refused(place, "bench compare run.json run.json --filter attention", "\"attention\"");
  expect_bench_refused(place, "bench compare run.json run.json --junit nowhere/o.xml", "nowhere/o.xml");
  expect_bench_refused(place, "bench compare run.json run.json --json o.json --junit nowhere/o.xml", "nowhere/o.xml");
  expect_bench_refused(place, "bench compare - -", "both runs on standard input");
}

// ---- history

TEST(BenchHistory, KeepsRunsInTheOrderOfTheirDatesAndOnlyOnce) {
  Workplace place;
  place.write("second.json", run_file(120, 10, "2026-02-01T00:00:00+00:00"));
  place.write("first.json", run_file(100, 10, "2026-02-01T00:30:00+01:00"));  // by UTC half an hour earlier
  EXPECT_THAT(place.orrery("bench import second.json first.json --history h.db").out, HasSubstr("2 runs in h.db"));
  const CommandResult again = place.orrery("bench import first.json --history h.db");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("is there already"));
  EXPECT_THAT(again.out, HasSubstr("2 runs in h.db"));
  EXPECT_EQ(place.files(), (std::set<std::string>{"first.json", "second.json", "h.db"}));

  const CommandResult table = place.orrery(std::string("bench history ") + kMatmul + " --history h.db");
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("+20.0 %"));
  EXPECT_LT(table.out.find("2026-02-01T00:30:00+01:00"), table.out.find("2026-02-01T00:00:00+00:00"));
  EXPECT_THAT(table.out, HasSubstr("0123456789ab"));
}

TEST(BenchHistory, WritesSvgCsvAndJson) {
  Workplace place;
  place.write("a.json", run_file(100, 10, "2026-02-01T00:00:00+00:00"));
  place.write("b.json", run_file(110, 10, "2026-02-02T00:00:00+00:00"));
  place.write("c.json", run_file(50, 10, "2026-02-03T00:00:00+00:00", "a <faster> CPU"));
  place.orrery("bench import a.json b.json c.json --history h.db");
  const CommandResult result =
      place.orrery(std::string("bench history ") + kMatmul + " --history h.db --svg o.svg --csv o.csv --json o.json");
  EXPECT_EQ(result.code, 0) << result.err;
  const json runs = json::parse(place.read("o.json"))["runs"];
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_NEAR(runs[0]["median_seconds"], 100e-6 * 1.0045, 1e-12);
  EXPECT_NEAR(runs[1]["ratio_to_previous"], 1.1, 1e-9);
  EXPECT_FALSE(runs[2].contains("ratio_to_previous")) << "another device";
  const std::string csv = place.read("o.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
  place.write("check.py",
              "import xml.etree.ElementTree as e\n"
              "s = e.parse('o.svg').getroot()\n"
              "n = '{http://www.w3.org/2000/svg}'\n"
              "assert len(s.findall(n + 'polyline')) == 2\n"
              "assert any('a <faster> CPU' == t.text for t in s.iter(n + 'text'))\n");
  EXPECT_EQ(place.python("check.py"), 0) << place.read(".stderr");
}

TEST(BenchHistory, RefusesWhatIsNoHistory) {
  Workplace place;
  place.write("run.json", run_file(100, 10));
  place.write("empty.db", "");
  place.write("text.db", std::string(4096, 'x'));
  place.orrery("bench import run.json --history h.db");
  const std::string before = place.read("h.db");
  expect_bench_refused(place, "bench history linear/fp32/8x8x9 --history h.db",
                       "(did you mean \"linear/fp32/8x8x8\"?)");
  expect_bench_refused(place, std::string("bench history ") + kMatmul + " --history missing.db",
                       "missing.db: found nothing");
  expect_bench_refused(place, std::string("bench history ") + kMatmul + " --history empty.db",
                       "empty.db: found an empty file");
  expect_bench_refused(place, std::string("bench history ") + kMatmul + " --history text.db", "text.db");
  expect_bench_refused(place, std::string("bench history ") + kMatmul + " --history h.db --svg nowhere/o.svg",
                       "nowhere/o.svg");
  expect_bench_refused(place, "bench import run.json --history text.db", "text.db");
  expect_bench_refused(place, "bench import run.json --history nowhere/h.db", "nowhere/h.db");
  expect_bench_refused(place, "bench import empty.db --history h.db", "empty.db");
  place.write("date.json", run_file(100, 10, "2026-01-01T00:00:00'; DROP TABLE runs;--"));
  expect_bench_refused(place, "bench import date.json --history h.db",
                       "date.json: /context/date: found \"2026-01-01T00");
  expect_bench_refused(place, "bench import run.json text.db --history new.db", "text.db");
  EXPECT_EQ(place.read("h.db"), before);
  EXPECT_EQ(place.read("text.db"), std::string(4096, 'x'));
}

TEST(BenchHistory, RefusesAnotherProgramsDatabase) {
  Workplace place;
  place.write("run.json", run_file(100, 10));
  place.write("make.py",
              "import sqlite3\nc = sqlite3.connect('other.db')\nc.execute('create table t (x)')\nc.commit()\n");
  if (place.python("make.py") != 0) GTEST_SKIP() << "this Python has no sqlite3";
  const std::string before = place.read("other.db");
  expect_bench_refused(place, "bench import run.json --history other.db", "an SQLite file of another program");
  EXPECT_EQ(place.read("other.db"), before);
}

// ---- drift

// Runs day by day, of which those from `slow_from` on take 4 % longer in the first kernel.
void keep_runs(const Workplace& place, int runs, int slow_from) {
  std::string files;
  for (int i = 0; i < runs; ++i) {
    const std::string file = "run" + std::to_string(i) + ".json";
    const double noise = 1 + 0.001 * ((7 * i) % 17);  // no two alike
    place.write(file, run_file((i < slow_from ? 100 : 104) * noise, 10 * noise,
                               "2026-03-" + std::to_string(10 + i) + "T00:00:00+00:00"));
    files += " " + file;
  }
  ASSERT_EQ(place.orrery("bench import" + files + " --history h.db").code, 0);
}

TEST(BenchDrift, ExitsOneWhereSomethingBecameSlowerAndSaysSinceWhen) {
  Workplace place;
  keep_runs(place, 16, 9);
  const CommandResult result = place.orrery("bench drift --history h.db --json o.json --csv o.csv --markdown o.md");
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("h.db: the last 16 runs"));
  EXPECT_THAT(result.out, HasSubstr("2026-03-19T00:00:00+00:00 0123456789ab"));
  EXPECT_THAT(result.out, HasSubstr("1 regression, 1 unchanged\n"));
  EXPECT_THAT(result.err, IsEmpty());
  const json document = json::parse(place.read("o.json"));
  EXPECT_EQ(document["benchmarks"][0]["name"], kMatmul);
  EXPECT_NEAR(document["benchmarks"][0]["changes"][0]["ratio_of_medians"], 1.04, 0.01);
  EXPECT_EQ(document["benchmarks"][0]["changes"][0]["previous_date"], "2026-03-18T00:00:00+00:00");
  EXPECT_THAT(place.read("o.csv"), HasSubstr(std::string(kMatmul) + ",a CPU,regression,16,"));
  EXPECT_THAT(place.read("o.md"), StartsWith("**1 regression, 1 unchanged**"));
}

TEST(BenchDrift, TakesThresholdsFiltersAndRuns) {
  Workplace place;
  keep_runs(place, 16, 9);
  const CommandResult lenient = place.orrery("bench drift --history h.db --threshold 5%");
  EXPECT_EQ(lenient.code, 0);
  EXPECT_THAT(lenient.out, HasSubstr("slower below the threshold"));
  EXPECT_EQ(place.orrery("bench drift --history h.db --filter '^norm'").code, 0);
  const CommandResult few = place.orrery("bench drift --history h.db --runs 7");
  EXPECT_EQ(few.code, 3) << "the last seven runs are too few";
  EXPECT_THAT(few.err, HasSubstr("nothing could be told of any benchmark: too few runs"));
}

TEST(BenchDrift, DevicesAreApart) {
  Workplace place;
  keep_runs(place, 16, 16);
  std::string files;
  for (int i = 0; i < 16; ++i) {
    const std::string file = "other" + std::to_string(i) + ".json";
    place.write(file, run_file(200, 20 + 0.01 * i, "2026-04-" + std::to_string(10 + i) + "T00:00:00+00:00", "b CPU"));
    files += " " + file;
  }
  place.orrery("bench import" + files + " --history h.db");
  const CommandResult result = place.orrery("bench drift --history h.db --json -");
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(json::parse(result.out)["benchmarks"].size(), 4u);
}

TEST(BenchDrift, RefusesWhatIsNoHistory) {
  Workplace place;
  place.write("run.json", run_file(100, 10));
  place.orrery("bench import run.json --history h.db");
  expect_bench_refused(place, "bench drift --history missing.db", "missing.db: found nothing");
  expect_bench_refused(place, "bench drift --history run.json", "run.json");
  expect_bench_refused(place, "bench drift --history h.db --filter attention", "\"attention\"");
  expect_bench_refused(place, "bench drift --history h.db --threshold soon", "expected a share: 5% or 0.05");
  expect_bench_refused(place, "bench drift --history h.db --runs 1", "--runs");
  expect_bench_refused(place, "bench drift --history h.db --json h.db", "h.db");
}

// ---- run

TEST(Bench, ListsEveryBenchmarkWithItsWork) {
  const CommandResult result = Workplace().orrery("bench --list");
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* name : {"linear/fp32/256x512x512", "attention_backward/causal/fp32/", "adam/master/fp32/",
                           "step/data_parallel_2_zero_1", "copy_to_host/fp32/"})
    EXPECT_THAT(result.out, HasSubstr(name));
  EXPECT_THAT(result.out, HasSubstr("134.2 M")) << "2 x 256 x 512 x 512";
}

TEST(Bench, MeasuresShapesOfTheUsersChoice) {
  Workplace place;
  place.write("shapes.json", R"([{"kernel": "multiply", "batch": 1, "sequence": 3, "hidden": 40, "dtype": "fp32"},
                                 {"kernel": "linear/bias", "m": 3, "k": 4, "n": 5}])");
  const CommandResult list = place.orrery("bench --list --shape adam/plain:elements=100 --shapes shapes.json");
  EXPECT_EQ(list.code, 0) << list.err;
  for (const char* name : {"adam/plain/fp32/100 ", "multiply/fp32/1x3x40 ", "multiply/row/fp32/1x3x40 ", "linear/bias/fp32/3x4x5 "})
    EXPECT_THAT(list.out, HasSubstr(name));
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 5) << "and nothing else\n" << list.out;
  const CommandResult run =
      place.orrery("bench --shapes - --filter mul --repetitions 2 --min-time 1e-6 --patience 0 --history h.db",
                   place.read("shapes.json"));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("multiply/fp32/1x3x40 "));
  EXPECT_EQ(place.orrery("bench history multiply/fp32/1x3x40 --history h.db").code, 0);

  expect_bench_refused(place, "bench --shape linaer:m=1,k=1,n=1", "(did you mean \"linear\"?)");
  expect_bench_refused(place, "bench --shape linear:m=2000000000,k=2000000000,n=1", "at most the device's memory");
  expect_bench_refused(place, "bench --shapes missing.json", "missing.json: found nothing");
  place.write("bad.json", R"([{"kernel": "linear", "m": 1, "k": 1, "n": "1"}])");
  expect_bench_refused(place, "bench --shapes bad.json", "bad.json: /0/n: found \"1\", expected a whole number");
  place.write("none.json", R"([{"m": 1}])");
  expect_bench_refused(place, "bench --shapes none.json", "none.json: /0: found no kernel");
  place.write("object.json", R"({"kernel": "linear"})");
  expect_bench_refused(place, "bench --shapes object.json", "expected an array of shapes");
}

TEST(Bench, ColdAndWarmCachesAreKeptApart) {
  Workplace place;
  const std::string options =
      "bench --filter '^(multiply/fp32|step/one_rank)' --repetitions 2 --min-time 1e-6 --patience 0 --history h.db "
      "--output ";
  ASSERT_EQ(place.orrery(options + "warm.json").code, 0);
  const CommandResult cold = place.orrery(options + "cold.json --cold-cache");
  if (cold.code == 2 && cold.err.find("does not report its cache sizes") != std::string::npos) GTEST_SKIP() << cold.err;
  ASSERT_EQ(cold.code, 0) << cold.err;
  EXPECT_THAT(cold.out, HasSubstr("caches: cold before each iteration\n"));
  const json warm = json::parse(place.read("warm.json")), document = json::parse(place.read("cold.json"));
  EXPECT_FALSE(warm["context"].contains("cache_state"));
  EXPECT_EQ(document["context"]["cache_state"], "cold");
  std::set<std::string> names;
  for (const json& entry : document["benchmarks"]) names.insert(entry["run_name"]);
  EXPECT_EQ(names, std::set<std::string>{"multiply/fp32/2x64x512"}) << "the warm run's name, and no step";

  expect_bench_refused(place, "bench compare warm.json cold.json",
                       "cold.json: /context/cache_state: found a run with cold caches, expected one with warm caches");
  expect_bench_refused(place, "bench compare cold.json warm.json", "expected one with cold caches, like cold.json");
  EXPECT_EQ(place.orrery("bench compare cold.json cold.json").code, 3) << "two repetitions are too few";
  const CommandResult history = place.orrery("bench history multiply/fp32/2x64x512 --history h.db --json -");
  const json runs = json::parse(history.out)["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_NE(runs[0]["device"], runs[1]["device"]);
  EXPECT_FALSE(runs[1].contains("ratio_to_previous")) << "another series";
  expect_bench_refused(place, "bench --cold-cache --filter '^step'", "\"^step\"");
}

TEST(Bench, ARunCanBeComparedAndKept) {
  Workplace place;
  const CommandResult run = place.orrery(
      "bench --filter '^(multiply/fp32|step/one_rank)' --repetitions 3 --min-time 1e-6 --patience 0 --output run.json "
      "--history h.db");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("multiply/fp32/"));
  const json document = json::parse(place.read("run.json"));
  for (const char* key :
       {"date", "library_build_type", "device", "orrery_version", "orrery_build_type", "peak_source", "processors"})
    EXPECT_TRUE(document["context"].contains(key)) << key;
  std::size_t repetitions = 0, aggregates = 0;
  for (const json& entry : document["benchmarks"]) {
    if (entry["run_type"] == "aggregate") {
      ++aggregates;
      continue;
    }
    ++repetitions;
    EXPECT_FALSE(entry.contains("error_occurred")) << entry;
    for (const char* counter : {"percent_of_peak", "yardstick_arithmetic_seconds", "yardstick_memory_seconds"})
      EXPECT_TRUE(entry[counter].is_number()) << counter;
    if (!std::string(entry["name"]).starts_with("multiply")) {
      EXPECT_GT(entry["flops"], 0);
      continue;
    }
    EXPECT_EQ(entry["bytes"], 3 * 4 * 2 * 64 * 512) << "two read, one written";
    EXPECT_NEAR(entry["bytes_per_second"].get<double>() * entry["cpu_time"].get<double>() * 1e-9, entry["bytes"], 1e-3);
  }
  EXPECT_EQ(repetitions, 6u);
  EXPECT_GT(aggregates, 0u);
  const CommandResult compared = place.orrery("bench compare run.json run.json --json -");
  EXPECT_EQ(compared.code, 3);
  const json comparison = json::parse(compared.out);
  EXPECT_EQ(comparison["verdicts"]["too few repetitions"], 2);
  EXPECT_THAT(place.orrery("bench import run.json --history h.db").out, HasSubstr("is there already"));
  EXPECT_EQ(place.orrery("bench history step/one_rank --history h.db").code, 0) << "without its /manual_time";
}

TEST(Bench, SaysWhatItCannotDoBeforeItRuns) {
  Workplace place;
  place.write("text.db", std::string(4096, 'x'));
  expect_bench_refused(place, "bench --filter '('", "expected a regular expression");
  expect_bench_refused(place, "bench --filter linaer/fp32/256x512x512", "(did you mean \"linear/fp32/256x512x512\"?)");
  expect_bench_refused(place, "bench --output nowhere/run.json", "nowhere/run.json");
  expect_bench_refused(place, "bench --history text.db", "text.db");
  expect_bench_refused(place, "bench --repetitions 0", "--repetitions");
  expect_bench_refused(place, "bench --device tpu", "--device");
  expect_bench_refused(place, "bench compair a.json b.json", "");
}

}  // namespace
}  // namespace orrery
