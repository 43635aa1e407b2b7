// Does the command show what the discrete-event engine finds: perturbations, jobs, contention, failures?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/report/trace_format.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

json report_of(const Workplace& place, const std::string& arguments) {
  const auto result = place.orrery("simulate " + arguments + " --json -");
  EXPECT_EQ(result.code, 0) << arguments << ": " << result.err;
  return result.code == 0 ? json::parse(result.out) : json();
}

double step(const json& report) { return report.at("step_seconds").get<double>(); }

// `orrery` itself is linked without SimGrid.
TEST(DiscreteEvent, ProgramOnItsOwnSaysWhatIsMissing) {
  const Workplace place;
  const auto simulated = place.shell("cp $ORRERY alone && ./alone simulate straggler --engine des");
  EXPECT_EQ(simulated.code, 2);
  EXPECT_THAT(simulated.err, HasSubstr("without the program orrery-des next to this one"));
  const auto predicted = place.shell("./alone simulate straggler");
  EXPECT_EQ(predicted.code, 0) << predicted.err;
}

// Refused before it starts, not after minutes.
TEST(DiscreteEvent, WorkIsBounded) {
  const Workplace place;
  const auto endless = place.orrery("simulate tensor_parallel --engine des --set workload.global_batch_size=1000000");
  EXPECT_EQ(endless.code, 2);
  EXPECT_THAT(endless.err, AllOf(HasSubstr("--engine: found des with "), HasSubstr("kernels and transfers of "),
                                 HasSubstr("or a higher --limit")));
  const double events = report_of(place, "straggler --engine des").at("discrete_event").at("events").get<double>();
  const auto limited = [&](double share) {
    return place.orrery("simulate straggler --engine des --limit " + std::to_string(std::llround(share * events))).code;
  };
  EXPECT_EQ(limited(0.4), 2);
  EXPECT_EQ(limited(2.5), 0);
  EXPECT_THAT(place.orrery("simulate straggler --limit 10").err, HasSubstr("--limit: found 10, expected --engine des"));
  for (const std::string limit : {"0", "-5", "nan", "inf", "1.5", "1e400", "10x", "''"})
    for (const std::string command : {"simulate straggler --engine des", "compare straggler --engine des",
                                      "collective all_reduce --node dgx-h100 --engine des"}) {
      const auto refused = place.orrery(command + " --limit " + limit);
      EXPECT_EQ(refused.code, 2) << command << limit;
      EXPECT_THAT(refused.err, HasSubstr("--limit: found ")) << command;
      EXPECT_THAT(refused.err, HasSubstr(", expected a whole number of at least 1")) << command;
    }
  EXPECT_THAT(place.orrery("simulate straggler --exact").err, HasSubstr("--exact: found it, expected --engine des"));
}

// What is said of one size bounds one size, but not three.
TEST(DiscreteEvent, WorkOfACollectiveIsOfAllItsSizes) {
  const Workplace place;
  const std::string one = "collective all_reduce --node dgx-h100 --nodes 2 -b 4M -e 4M",
                    three = "collective all_reduce --node dgx-h100 --nodes 2 -b 1M -e 4M";
  const std::string refusal = place.orrery(one + " --limit 1").err;
  const std::size_t at = refusal.find("about ");
  ASSERT_NE(at, std::string::npos) << refusal;
  const std::string limit = " --limit " + std::to_string(1.5 * std::stod(refusal.substr(at + 6)));
  EXPECT_EQ(place.orrery(one + limit).code, 0);
  EXPECT_EQ(place.orrery(three + limit).code, 2);
}

// All sizes together, by the default of both engines.
TEST(DiscreteEvent, WorkOfACollectiveIsBounded) {
  const Workplace place;
  for (const char* endless :
       {"all_to_all --node dgx-h100 --nodes 1024",
        "all_to_all --node dgx-h100 --nodes 8192 -b 1M -e 1M --engine des"}) {
    SCOPED_TRACE(endless);
    const auto refused = place.orrery(std::string("collective ") + endless);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("--engine: found "), HasSubstr(" flows of "), HasSubstr("higher --limit")));
  }
  const std::string few = "collective all_reduce --node dgx-h100 --nodes 2 -b 1M -e 4M";
  EXPECT_EQ(place.orrery(few + " --limit 10").code, 2);
  EXPECT_EQ(place.orrery(few + " --limit 1e4").code, 0);
  EXPECT_EQ(place.orrery("collective all_to_all --node dgx-h100 --nodes 1024 --engine analytical").code, 0);
}

TEST(DiscreteEvent, ReportHasThePublicKeysAndTheyAgree) {
  const Workplace place;
  const json report = report_of(place, "straggler --engine des");
  EXPECT_EQ(report.at("engine"), "des");
  EXPECT_TRUE(report.at("version").is_string());
  EXPECT_FALSE(report.contains("ops"));
  double total = 0;
  for (const auto& [term, seconds] : report.at("time").items()) total += seconds.get<double>();
  EXPECT_NEAR(total, step(report), 1e-6 * step(report));

  const json& found = report.at("discrete_event");
  EXPECT_EQ(found.at("fidelity"), "steady-flow");
  EXPECT_EQ(found.at("ranks"), 32);
  EXPECT_LE(found.at("rank_classes").get<int>(), 32);
  EXPECT_GT(found.at("events").get<int>(), 0);
  double path = 0;
  for (const json& part : found.at("critical_path")) path += part.at("seconds").get<double>();
  EXPECT_NEAR(path, step(report), 1e-6 * step(report));
  bool network = false;
  for (const json& kind : found.at("link_kinds")) {
    network = network || kind.at("name") == "nic";
    const json& over_time = kind.at("over_time");
    ASSERT_EQ(over_time.size(), 100u);
    double mean = 0;
    for (const json& share : over_time) mean += share.get<double>() / 100;
    EXPECT_NEAR(mean, kind.at("utilisation").get<double>(), 1e-6 + 1e-3 * mean) << kind.at("name");
  }
  EXPECT_TRUE(network) << "four nodes exchange gradients";
}

TEST(DiscreteEvent, WithoutPerturbationsStartsFromTheAnalyticalStep) {
  const Workplace place;
  const json analytical = report_of(place, "straggler --set perturbations=[]");
  const json des = report_of(place, "straggler --set perturbations=[] --engine des");
  EXPECT_DOUBLE_EQ(des["discrete_event"]["uncontended_step_seconds"].get<double>(), step(analytical));
  EXPECT_THAT(des.at("notes").dump(), Not(HasSubstr("perturbations")));
  EXPECT_THAT(report_of(place, "straggler --engine des").at("notes").dump(), Not(HasSubstr("are ignored")));
}

TEST(DiscreteEvent, EveryoneWaitsForTheStraggler) {
  const Workplace place;
  const double usual = step(report_of(place, "straggler --engine des --set perturbations=[]"));
  const json slow = report_of(place, "straggler --engine des");
  EXPECT_GT(step(slow), 1.2 * usual) << "nearly all of the step is kernels, at 0.8 of their rate";
  EXPECT_LT(step(slow), 1.26 * usual);
  const json& found = slow["discrete_event"];
  EXPECT_THAT(found.at("critical_path").at(0).at("who").get<std::string>(), HasSubstr("13"));
  ASSERT_FALSE(found.at("waits").empty());
  EXPECT_THAT(found["waits"][0].at("for_whom").get<std::string>(), HasSubstr("13"));
  const auto table = place.orrery("simulate straggler --engine des");
  EXPECT_THAT(table.out, AllOf(StartsWith("llama-3-8b on 4 x "), HasSubstr("Discrete-event simulation"),
                               HasSubstr("Busiest links"), HasSubstr("Critical path"), HasSubstr("Who waited for whom"),
                               Not(HasSubstr("\x1b"))));
}

// Collectives of several streams wait at once, so that all rows may add up to more than the step; those of one stream
// do not, however many ranks wait for however many slow ones.
TEST(DiscreteEvent, NoStreamOfARankWaitsLongerThanTheStep) {
  const Workplace place;
  const std::map<std::string, std::string> streams{
      {".tensor.", "tensor"}, {".parameters.", "parameters"}, {".gradients.", "gradients"}, {".ring.", "context"}};
  const std::string slow =
      " --engine des --set plan.recompute_layers=-1 --set model.layers=4 --set 'perturbations=[{\"kind\": "
      "\"slow_device\", \"devices\": [3, 13, 14], \"factor\": 0.5}]'";
  for (const char* plan : {"--set plan.zero_stage=3", "--set plan.tensor_parallel=8",
                           "--set plan.tensor_parallel=8 --set plan.pipeline_parallel=4",
                           "--set plan.zero_stage=3 --set plan.context_parallel=2 --set plan.tensor_parallel=2"}) {
    const json report = report_of(place, "straggler " + (plan + slow));
    const json& waits = report.at("discrete_event").at("waits");
    EXPECT_FALSE(waits.empty()) << plan;
    std::map<std::string, double> seconds;
    for (const json& row : waits) {
      const std::string op = row.at("op");
      const auto stream =
          std::find_if(streams.begin(), streams.end(), [&](const auto& s) { return op.find(s.first) != op.npos; });
      const std::string of = stream == streams.end() ? op : stream->second;
      seconds[row.at("who").get<std::string>() + " on " + of] += row.at("seconds").get<double>();
    }
    for (const auto& [who, sum] : seconds) EXPECT_LE(sum, step(report) * (1 + 1e-9)) << plan << ": " << who;
  }
}

// What scattering would cost is said by either engine, in closed form by both.
TEST(DiscreteEvent, SaysWhatPlacementCosts) {
  const Workplace place;
  const std::string fabric =
      "straggler --set perturbations=[] --set model.layers=4 --set plan.recompute_layers=-1 --set cluster.nodes=8 "
      "--set cluster.fabric.nodes_per_leaf=4 --set cluster.fabric.oversubscription=2";
  const auto note_of = [&](const std::string& arguments) {
    const json report = report_of(place, arguments);
    for (const json& note : report.at("notes"))
      if (note.get<std::string>().find("leaf by leaf") != std::string::npos) return note.get<std::string>();
    return std::string();
  };
  for (const char* placement : {"", " --set 'cluster.placement={\"nodes\": \"scattered\"}'"}) {
    const std::string analytical = note_of(fabric + placement);
    EXPECT_THAT(analytical, HasSubstr("the step would take"));
    EXPECT_EQ(note_of(fabric + placement + " --engine des"), "in closed form, " + analytical);
  }
  EXPECT_EQ(note_of("straggler --engine des"), "");
}

TEST(DiscreteEvent, ASlowNicCostsTimeThatContentionNames) {
  const Workplace place;
  const double usual = step(report_of(place, "slow-nic --engine des --set perturbations=[]"));
  const json slow = report_of(place, "slow-nic --engine des");
  EXPECT_GT(step(slow), usual);
  ASSERT_FALSE(slow["discrete_event"].at("contention").empty());
  for (const json& row : slow["discrete_event"]["contention"]) {
    EXPECT_GT(row.at("seconds").get<double>(), row.at("seconds_alone").get<double>());
    EXPECT_THAT(row.at("link").get<std::string>(), HasSubstr(".nic"));
  }
}

TEST(DiscreteEvent, IsDeterministic) {
  const Workplace place;
  const std::string jitter =
      "simulate straggler --engine des --json - --set "
      "'perturbations=[{\"kind\":\"jitter\",\"coefficient_of_variation\":0.05,\"seed\":3}]'";
  const auto first = place.orrery(jitter);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(place.orrery(jitter).out, first.out);
  EXPECT_NE(place.orrery(jitter + " --set perturbations.0.seed=4").out, first.out);
}

TEST(DiscreteEvent, FidelityAndRoutingAreChosenByName) {
  const Workplace place;
  const std::string small =
      "slow-nic --engine des --set model.layers=2 --set cluster.nodes=2 --set workload.global_batch_size=16";
  const json exact = report_of(place, small + " --fidelity step-exact --routing sprayed");
  EXPECT_EQ(exact["discrete_event"]["fidelity"], "step-exact");
  EXPECT_GT(exact["discrete_event"]["events"].get<double>(),
            report_of(place, small)["discrete_event"]["events"].get<double>());
}

TEST(DiscreteEvent, AStepThatCannotEndIsAnErrorOfItsOwn) {
  const Workplace place;
  const auto result = place.orrery(
      "simulate straggler --engine des --json out.json --trace t.json --set "
      "'perturbations=[{\"kind\":\"failing_node\",\"nodes\":[2],\"from_seconds\":0.5}]'");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, StartsWith("orrery: error: the step does not end"));
  EXPECT_THAT(result.err, Not(HasSubstr("internal")));
  EXPECT_THAT(place.files(), IsEmpty());
}

TEST(DiscreteEvent, APerturbationOfNoLinkIsRefusedWithItsPlace) {
  const Workplace place;
  const auto result = place.orrery("simulate slow-nic --engine des --set perturbations.0.link=node1.nick3");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--set perturbations.0.link=node1.nick3: /perturbations/0/link: found"));
}

TEST(DiscreteEvent, PerturbationsAreBoundedByWhatTheyComeToTogether) {
  const Workplace place;
  const auto run = [&](const std::vector<json>& list) {
    return place.orrery("simulate straggler --engine des --set 'perturbations=" + json(list).dump() + "'");
  };
  json device{{"kind", "slow_device"}, {"devices", {1, 2}}, {"factor", 1e-6}};
  json link{{"kind", "slow_link"}, {"link", "node0.nic0.out"}, {"factor", 1e-4}};
  json jitter{{"kind", "jitter"}, {"coefficient_of_variation", 10}};
  for (const json& one : {device, link, jitter}) EXPECT_EQ(run({one}).code, 0) << one;

  auto refused = run({device, device, device});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("/perturbations/1/factor: found a device with 1e-12 of its rate, together with 1 "
                                     "other perturbation at that time, expected at least 1e-06 of its rate"));
  refused = run({link, device, link});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("/perturbations/2/factor: found a link with 1e-08 of its rate"));
  refused = run({jitter, jitter});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("/perturbations/1/coefficient_of_variation: found a device with a "),
                                 HasSubstr("expected at most a coefficient of variation of 10 in total")));

  json other = device;
  other["devices"] = {3};
  EXPECT_EQ(run({device, other}).code, 0) << "of other devices";
  device["factor"] = link["factor"] = 1e-4;
  device["until_seconds"] = link["until_seconds"] = 1e-3;
  json later = device, later_link = link;
  for (json* p : {&later, &later_link}) {
    (*p)["from_seconds"] = 1e-3;
    (*p)["until_seconds"] = 2e-3;
  }
  EXPECT_EQ(run({later, device, link, later_link}).code, 0) << "one after the other";
}

TEST(DiscreteEvent, BothEnginesStandSideBySide) {
  Workplace place;
  const auto table = place.orrery("simulate slow-nic --engine both");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("analytical           des"), HasSubstr("What makes the difference"),
                               HasSubstr("Discrete-event simulation"), HasSubstr("Busiest links")));
  const json both = report_of(place, "slow-nic --engine both");
  EXPECT_EQ(both.at("analytical"), [&] {
    json alone = report_of(place, "slow-nic");
    for (const char* key : {"version", "scenario", "set", "inputs"}) alone.erase(key);
    return alone;
  }());
  EXPECT_EQ(both.at("des").at("engine"), "des");
  EXPECT_NEAR(both.at("change").at("step_seconds").get<double>(), step(both["des"]) - step(both["analytical"]), 1e-12);
  EXPECT_FALSE(both["des"].contains("ops"));

  ASSERT_EQ(place.orrery("simulate slow-nic --engine both --csv r.csv --trace t.json --svg s.svg").code, 0);
  std::istringstream rows(place.read("r.csv"));
  std::string header, analytical, des;
  std::getline(rows, header);
  std::getline(rows, analytical);
  std::getline(rows, des);
  EXPECT_THAT(analytical, HasSubstr(",analytical,"));
  EXPECT_THAT(des, HasSubstr(",des,"));
}

TEST(DiscreteEvent, TracesFollowTheFormatAndCountUtilisation) {
  Workplace place;
  for (const char* scenario : {"slow-nic", "llama-3-70b-512-h100"}) {
    SCOPED_TRACE(scenario);
    const auto result = place.orrery(std::string("simulate --engine des --trace t.json --svg s.svg ") + scenario);
    ASSERT_EQ(result.code, 0) << result.err;
    const json trace = json::parse(place.read("t.json"));
    expect_trace_format(trace);
    std::set<std::string> counters, slices;
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] == "C") counters.insert(event["name"]);
      if (event["ph"] == "X") slices.insert(event["name"]);
    }
    EXPECT_TRUE(counters.contains("nic utilisation %"));
    EXPECT_TRUE(counters.contains("memory bytes"));
    EXPECT_TRUE(slices.contains("F 0")) << "slots";
    EXPECT_TRUE(std::any_of(slices.begin(), slices.end(), [](const std::string& s) {
      return s.find("gradients.reduce_scatter") != s.npos;
    })) << "collectives";
    EXPECT_THAT(place.read("s.svg"), AllOf(StartsWith("<svg"), HasSubstr(">forward<"), HasSubstr("</svg>")));
  }
}

// Who is late, and who waits, have tracks under the names that the table has.
TEST(DiscreteEvent, TraceShowsTheRanksThatTheReportNames) {
  const Workplace place;
  for (const std::string scenario :
       {"straggler", "straggler --set plan.pipeline_parallel=2 --set plan.zero_stage=1 --set plan.tensor_parallel=2"}) {
    SCOPED_TRACE(scenario);
    const auto result = place.orrery("simulate --engine des --trace t.json --json r.json " + scenario);
    ASSERT_EQ(result.code, 0) << result.err;
    const json trace = json::parse(place.read("t.json"));
    expect_trace_format(trace);
    std::map<std::string, int> process;
    std::map<int, double> seconds;  // of the process's slots
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] == "M" && event["name"] == "process_name") {
        EXPECT_TRUE(process.emplace(event["args"]["name"], event["pid"]).second) << event;
      }
      if (event["ph"] == "X" && event["cat"] == "forward")
        seconds[event["pid"]] += event["args"]["seconds"].get<double>();
    }
    const json found = json::parse(place.read("r.json"))["discrete_event"];
    std::set<std::string> named;
    for (const json& part : found["critical_path"]) named.insert(part["who"]);
    for (const json& wait : found["waits"]) named.insert({wait["who"], wait["for_whom"]});
    EXPECT_GE(named.size(), 2u);
    int late = -1;
    for (const std::string& who : named) {
      ASSERT_TRUE(process.contains(who)) << who;
      if (who.ends_with("rank 13")) late = process[who];
    }
    ASSERT_GE(late, 0);
    if (scenario != "straggler") continue;  // elsewhere its neighbours' slots wait for its tensor-parallel sums
    for (const auto& [pid, of_process] : seconds) EXPECT_LE(of_process, seconds[late]) << pid;
  }
}

TEST(DiscreteEvent, ComparesAScenarioWithItsUndisturbedSelf) {
  const Workplace place;
  const auto result = place.orrery("compare straggler --engine des --set-a perturbations=[] --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const json difference = json::parse(result.out);
  EXPECT_EQ(difference["a"]["engine"], "des");
  EXPECT_GT(difference["change"]["step_seconds"].get<double>(), 0);
}

TEST(DiscreteEvent, ExplainsOpsAndListsThem) {
  const Workplace place;
  const auto explained = place.orrery("simulate slow-nic --engine des --explain layer.forward.fc1");
  ASSERT_EQ(explained.code, 0) << explained.err;
  EXPECT_THAT(explained.out, HasSubstr("layer.forward.fc1"));
  EXPECT_FALSE(report_of(place, "slow-nic --engine des --ops").at("ops").empty());
}

TEST(Jobs, SlowEachOtherDownOnTheLinkTheyShare) {
  Workplace place;
  const json result = report_of(place, "two-jobs-one-spine --engine des");
  const json& jobs = result.at("jobs");
  ASSERT_EQ(jobs.size(), 2u);
  for (const json& job : jobs) {
    const double slowdown = job.at("slowdown"), alone = job.at("alone_seconds");
    EXPECT_GT(slowdown, 1.05) << job.at("name");
    EXPECT_NEAR(step(job.at("together")), slowdown * alone, 1e-9 * alone);
    EXPECT_THAT(job.at("most_shared_link").get<std::string>(), StartsWith("leaf"));
    EXPECT_EQ(job.at("together").at("engine"), "des");
  }
  EXPECT_EQ(jobs[1].at("first_node"), 1);

  const auto table = place.orrery("simulate two-jobs-one-spine --engine des");
  EXPECT_THAT(table.out, AllOf(HasSubstr("slowdown"), HasSubstr("replicas"), HasSubstr("zero-3"),
                               HasSubstr("leaf0.spine0"), Not(HasSubstr("Critical path"))));
  EXPECT_THAT(place.orrery("simulate two-jobs-one-spine --engine des --verbose").out,
              AllOf(HasSubstr("replicas: gpt2-1.5b on 4 x "), HasSubstr("Critical path")));
}

TEST(Jobs, ThatShareNoLinkLeaveEachOtherAlone) {
  const Workplace place;
  // Nodes 0 to 3 are one leaf, 4 to 7 the other.
  const json result = report_of(place,
                                "two-jobs-one-spine --engine des --set jobs.0.node_stride=1 --set "
                                "jobs.1.node_stride=1 --set jobs.1.first_node=4");
  for (const json& job : result.at("jobs")) {
    EXPECT_NEAR(job.at("slowdown").get<double>(), 1, 1e-9);
    EXPECT_EQ(job.at("most_shared_link"), "");
  }
}

TEST(Jobs, WriteOneTraceAndARowEach) {
  Workplace place;
  const auto result = place.orrery("simulate two-jobs-one-spine --engine des --trace t.json --csv r.csv --json r.json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(place.files(), ElementsAre("r.csv", "r.json", "t.json"));
  const json trace = json::parse(place.read("t.json"));
  expect_trace_format(trace);
  std::set<std::string> processes;
  for (const json& event : trace["traceEvents"])
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
  EXPECT_THAT(processes, testing::IsSupersetOf({"replicas: every rank", "replicas: links", "zero-3: every rank"}));
  const std::string rows = place.read("r.csv");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 3);
  EXPECT_THAT(rows, AllOf(HasSubstr("#replicas,des,32,"), HasSubstr("#zero-3,des,32,")));
}

TEST(Batch, OfTheDiscreteEventEngineTakesScenariosAndJobs) {
  Workplace place;
  json plain = json::parse(place.orrery("show straggler --json").out)["scenario"];
  json jobs = json::parse(place.orrery("show two-jobs-one-spine --json").out)["scenario"];
  plain.erase("path");
  jobs.erase("path");
  json stalled = plain, bad = plain;
  stalled["perturbations"] = json::parse(R"([{"kind": "failing_link", "link": "node1.nic*"}])");
  bad["perturbations"][0]["factor"] = 2;
  place.write("batch.jsonl", plain.dump() + "\n" + jobs.dump() + "\n" + stalled.dump() + "\n" + bad.dump() + "\n");
  const auto result = place.orrery("simulate --batch batch.jsonl --engine des");
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<json> results;
  for (std::string line; std::getline(lines, line);) results.push_back(json::parse(line));
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].at("step_seconds"), report_of(place, "straggler --engine des").at("step_seconds"));
  EXPECT_EQ(results[1].at("jobs").size(), 2u);
  EXPECT_EQ(results[2].at("error").at("stalled"), true);
  EXPECT_EQ(results[3].at("error").at("pointer"), "/perturbations/0/factor");
}

}  // namespace
}  // namespace orrery
