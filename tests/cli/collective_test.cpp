// Does `orrery collective` predict what it is asked for, with both engines, and set all measured curves beside it?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "sim/base/json_reader.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr double kMiB = 1 << 20;

json predicted(const Workplace& place, const std::string& arguments) {
  const auto result = place.orrery("collective " + arguments + " --json -");
  EXPECT_EQ(result.code, 0) << arguments << ": " << result.err;
  return result.code == 0 ? json::parse(result.out) : json{{"points", json::array()}};
}

const json& published() {
  static const json document = parse_json_file(ORRERY_SOURCE_DIR "/results/published/collectives.json");
  return document;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values.at(half) : (values.at(half - 1) + values.at(half)) / 2;
}

TEST(Collective, APresetOfOtherDevicesOrSize) {
  const Workplace place;
  const auto points = [&](const std::string& of) {
    return predicted(place, "all_reduce " + of + " -b 64M -e 64M")["points"];
  };
  EXPECT_EQ(points("--cluster pcie-8 --device L40S"), points("--node pcie-8 --device L40S"));
  EXPECT_EQ(points("--cluster dgx-h100 --nodes 2"), points("--node dgx-h100 --nodes 2"));
  EXPECT_NE(points("--cluster eos --nodes 2"), points("--cluster eos"));
}

// Both engines: boards below one root meet faster than over the link between roots.
TEST(Collective, BoardsOfOneRootMeetFaster) {
  const Workplace place;
  for (const std::string kind : {"all_reduce", "all_to_all"}) {
    const json far = predicted(place, kind + " --node pcie-8 --device L40S -b 256M -e 256M --engine both"),
               two = predicted(place, kind + " --node pcie-8-root-4 --device L40S -b 256M -e 256M --engine both"),
               one = predicted(place, kind + " --node pcie-8-root-8 --device L40S -b 256M -e 256M --engine both");
    for (const char* engine : {"analytical", "des"}) {
      const auto seconds = [&](const json& of) { return of["points"][0][engine]["seconds"].get<double>(); };
      EXPECT_LT(seconds(one), 0.9 * seconds(two)) << kind << " " << engine;
    }
    for (const json* of : {&far, &two, &one})
      EXPECT_NEAR((*of)["points"][0]["des"]["seconds"].get<double>() /
                      (*of)["points"][0]["analytical"]["seconds"].get<double>(),
                  1, 0.02)
          << kind;
  }
}

TEST(Collective, GoesByTheUsersOwnCurves) {
  const Workplace place;
  const std::string log = ORRERY_SOURCE_DIR "/tests/fuzz/corpus/nccl_log/all_reduce.txt";  // 64 MiB in 400 us
  const auto imported = place.orrery("calibrate import " + log + " --cluster dgx-h100 --output nccl.json");
  ASSERT_EQ(imported.code, 0) << imported.err;
  const std::string asked = "all_reduce --cluster dgx-h100 --ranks 4 -b 64M -e 64M";
  const json own = predicted(place, asked + " --calibration nccl.json"), bundled = predicted(place, asked);
  EXPECT_NEAR(own["points"][0]["analytical"]["seconds"].get<double>(), 400e-6, 40e-6);
  EXPECT_NE(own["points"][0], bundled["points"][0]);
  EXPECT_EQ(own["inputs"]["calibrations"][0]["file"], "nccl.json");
  EXPECT_EQ(own["inputs"]["collective"], bundled["inputs"]["collective"]);
  EXPECT_NE(own["inputs"]["digest"], bundled["inputs"]["digest"]);
  EXPECT_EQ(bundled["inputs"]["digest"], predicted(place, asked)["inputs"]["digest"]);
  EXPECT_EQ(own["inputs"]["collective"]["cluster"]["node"]["devices"], 8);
  const auto refused =
      place.orrery("collective " + asked + " --calibration " ORRERY_SOURCE_DIR "/results/calibration/L40S.json");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("found no collectives, expected a calibration of collectives"));
}

TEST(Collective, BothEnginesTimeEverySizeOfEveryKind) {
  const Workplace place;
  // Bus over algorithm bandwidth of 16 ranks: nccl-tests, doc/PERFORMANCE.md.
  const std::map<std::string, double> factors{{"all_reduce", 2 * 15.0 / 16},
                                              {"all_gather", 15.0 / 16},
                                              {"reduce_scatter", 15.0 / 16},
                                              {"all_to_all", 15.0 / 16},
                                              {"broadcast", 1},
                                              {"reduce", 1},
                                              {"send_recv", 1}};
  for (const auto& [kind, factor] : factors) {
    const json result = predicted(place, kind + " --node dgx-h100 --nodes 2 -b 64K -e 1G -f 8");
    EXPECT_EQ(result.at("collective"), kind);
    EXPECT_EQ(result.at("ranks"), 16);
    EXPECT_EQ(result.at("nodes"), 2);
    EXPECT_EQ(result.at("fidelity"), "steady-flow");
    std::vector<double> sizes;
    double before = 0;
    for (const json& point : result.at("points")) {
      sizes.push_back(point.at("bytes"));
      EXPECT_TRUE(point.at("algorithm").is_string());
      EXPECT_TRUE(point.at("protocol").is_string());
      for (const char* engine : {"analytical", "des"}) {
        const double seconds = point.at(engine).at("seconds");
        const double algorithm = point.at(engine).at("algorithm_bytes_per_second");
        const double bus = point.at(engine).at("bus_bytes_per_second");
        EXPECT_DOUBLE_EQ(algorithm, sizes.back() / seconds);
        EXPECT_NEAR(bus, factor * algorithm, 1e-9 * bus) << kind;
      }
      EXPECT_GT(point["des"]["seconds"], before) << "more bytes take longer";
      before = point["des"]["seconds"];
      EXPECT_GT(point["des"]["flows"], 0);
    }
    EXPECT_EQ(sizes, (std::vector<double>{65536, 524288, 4194304, 33554432, 268435456}));
  }
}

TEST(Collective, TableAndCsvShowWhatJsonHas) {
  const Workplace place;
  const json result = predicted(place, "all_reduce --cluster dgx-h100 -b 1G -e 1G");
  const json& point = result.at("points").at(0);
  const auto table = place.orrery("collective all_reduce --cluster dgx-h100 -b 1G -e 1G");
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, AllOf(HasSubstr("all_reduce, 8 ranks"), HasSubstr("1073741824"), HasSubstr("nvls")));
  for (const char* engine : {"analytical", "des"})
    EXPECT_THAT(table.out,
                HasSubstr(fmt::format("{:.2f}", point.at(engine).at("bus_bytes_per_second").get<double>() * 1e-9)));
  const auto csv = place.orrery("collective all_reduce --cluster dgx-h100 -b 1G -e 1G --csv -");
  const std::vector<std::string> lines = lines_of(csv.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), ','), std::count(lines[1].begin(), lines[1].end(), ','));
  EXPECT_THAT(lines[1], HasSubstr(fmt::format(",{},", point["analytical"]["seconds"].get<double>())));
  EXPECT_THAT(lines[1], HasSubstr(fmt::format(",{},", point["des"]["seconds"].get<double>())));
}

// Four nodes of one device: what the busiest NIC carries over what each carries where all parts are equal.
TEST(Collective, UnequalPartsTakeAsLongAsTheBusiestRank) {
  const Workplace place;
  const std::string asked = "all_to_all --node dgx-h100 --nodes 4 --ranks-per-node 1 -b 1G -e 1G";
  const std::array engines{"analytical", "des"};
  const auto seconds = [&](const std::string& rows, const char* engine) {
    return predicted(place, asked + rows)["points"][0][engine]["seconds"].get<double>();
  };
  for (const char* engine : engines) {
    const double equal = seconds("", engine);
    EXPECT_NEAR(seconds(" --rows 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", engine), equal, 1e-9 * equal) << engine;
    EXPECT_NEAR(seconds(" --rows 4,4,4,4,0,0,0,0,0,0,0,0,0,0,0,0", engine) / equal, 4, 0.05) << "one sends: " << engine;
    EXPECT_NEAR(seconds(" --rows 2,1,1,0,2,1,1,0,2,1,1,0,2,1,1,0", engine) / equal, 2, 0.05) << "one gets: " << engine;
  }
  const json inputs = predicted(place, asked + " --rows 4,4,4,4,0,0,0,0,0,0,0,0,0,0,0,0")["inputs"]["collective"];
  EXPECT_EQ(inputs["rows"].size(), 16u);
}

TEST(Collective, OneEngineAloneShowsOnlyItself) {
  const Workplace place;
  const json result = predicted(place, "all_gather --node dgx-a100 -b 1M -e 1M --engine analytical");
  EXPECT_TRUE(result["points"][0].contains("analytical"));
  EXPECT_FALSE(result["points"][0].contains("des"));
  const auto table = place.orrery("collective all_gather --node dgx-a100 -b 1M -e 1M --engine des");
  EXPECT_THAT(table.out, AllOf(HasSubstr("des busbw"), Not(HasSubstr("analytical"))));
}

TEST(Collective, AnAlgorithmAndAProtocolCanBeForced) {
  const Workplace place;
  const json fastest = predicted(place, "all_reduce --node dgx-h100 --nodes 4 -b 1M -e 256M -f 4");
  for (const std::string forced : {"--algorithm ring", "--algorithm TREE", "--algorithm nvls", "--protocol simple"}) {
    const json result = predicted(place, "all_reduce --node dgx-h100 --nodes 4 -b 1M -e 256M -f 4 " + forced);
    ASSERT_EQ(result["points"].size(), fastest["points"].size());
    for (std::size_t i = 0; i < result["points"].size(); ++i) {
      const json& point = result["points"][i];
      std::string name = forced.substr(forced.find(' ') + 1);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      EXPECT_EQ(point.at(forced.starts_with("--p") ? "protocol" : "algorithm"), name);
      EXPECT_GE(point["analytical"]["seconds"], fastest["points"][i]["analytical"]["seconds"]);
    }
  }
}

TEST(Collective, RanksOnSeveralNodesAreBoundByTheirOwnNics) {
  const Workplace place;
  const auto bus = [&](const std::string& arguments) {
    const json result = predicted(place, "all_gather -b 8G -e 8G " + arguments);
    const double analytical = result["points"][0]["analytical"]["bus_bytes_per_second"];
    const double des = result["points"][0]["des"]["bus_bytes_per_second"];
    EXPECT_NEAR(des, analytical, 0.02 * analytical) << arguments;
    return des;
  };
  // A device of a DGX H100 has one NIC of 50 GB/s, one of a p5 four of 12.5 GB/s.
  for (const char* node : {"dgx-h100", "aws-p5"}) {
    const double one = bus(fmt::format("--node {} --nodes 4 --ranks-per-node 1", node));
    EXPECT_LT(one, 50e9) << node;
    EXPECT_GT(one, 0.7 * 50e9) << node;
    EXPECT_NEAR(bus(fmt::format("--node {} --nodes 4 --ranks-per-node 2", node)), 2 * one, 0.05 * one) << node;
  }
  // Without a second node there is no network.
  EXPECT_GT(bus("--node dgx-h100 --nodes 4 --ranks 8"), 300e9);
}

struct Agreement {
  const char* cluster;
  const char* collective;
};
// Where an idle cluster has no contention that the closed form leaves out: both engines say the same.
constexpr Agreement kAgreements[] = {
    {"--node dgx-h100", "all_reduce"},
    {"--node dgx-h100", "all_reduce --algorithm ring"},
    {"--node dgx-h100", "all_reduce --algorithm tree"},
    {"--node dgx-h100", "all_reduce --algorithm nvls"},
    {"--node dgx-h100", "all_reduce --algorithm halving_doubling"},
    {"--node dgx-h100", "all_reduce --algorithm bidirectional_ring"},
    {"--node dgx-h100", "all_gather"},
    {"--node dgx-h100", "reduce_scatter"},
    {"--node dgx-h100", "all_to_all"},
    {"--node dgx-h100", "broadcast"},
    {"--node dgx-h100", "reduce"},
    {"--node dgx-h100", "send_recv"},
    {"--node dgx-a100 --ranks 5", "all_reduce"},
    {"--node dgx-a100 --ranks 5", "all_to_all"},
    {"--node gb200-nvl72", "all_reduce"},
    {"--node gb200-nvl72", "all_to_all"},
    {"--node mi300x-8", "all_reduce"},
    {"--node mi300x-8", "all_to_all"},
    {"--node l40s-8", "all_reduce"},
    {"--node l40s-8", "all_to_all"},
    {"--node a100-pcie-4", "all_reduce"},
    {"--node dgx-h100 --nodes 2", "all_reduce"},
    {"--node dgx-h100 --nodes 2", "all_reduce --algorithm hierarchical"},
    {"--node dgx-h100 --nodes 2", "all_to_all"},
    {"--node dgx-h100 --nodes 3", "all_reduce --algorithm tree"},
    {"--node dgx-h100 --nodes 4", "all_reduce --algorithm tree"},
    {"--node dgx-h100 --nodes 4", "all_reduce --algorithm nvls"},
    {"--node dgx-h100 --nodes 4", "all_reduce --algorithm halving_doubling"},
    {"--node dgx-h100 --nodes 4", "all_to_all --algorithm hierarchical"},
    {"--node dgx-h100 --nodes 5", "all_reduce"},
    {"--node dgx-h100 --nodes 8", "all_reduce --algorithm tree"},
    {"--node dgx-h100 --nodes 8", "all_reduce --algorithm nvls"},
    {"--node dgx-h100 --nodes 16", "all_reduce --algorithm ring"},
    {"--node dgx-h100 --nodes 16", "all_gather"},
    {"--node dgx-h100 --nodes 16", "reduce_scatter"},
    {"--node dgx-h100 --nodes 16", "all_to_all"},
    {"--node dgx-h100 --nodes 16", "broadcast"},
    {"--node dgx-h100 --nodes 16", "send_recv"},
    {"--node dgx-a100 --nodes 4", "all_reduce"},
    {"--node aws-p4d --nodes 4", "all_reduce"},
    {"--node mi300x-8 --nodes 4", "all_reduce"},
    {"--node lumi-g --nodes 4", "all_gather"},
};
class EnginesAgree : public testing::TestWithParam<Agreement> {};
TEST_P(EnginesAgree, OnAnIdleCluster) {
  const Workplace place;
  const json result =
      predicted(place, fmt::format("{} {} -b 1K -e 4G -f 8", GetParam().collective, GetParam().cluster));
  EXPECT_EQ(result.at("points").size(), 8u);
  for (const json& point : result.at("points")) {
    const double analytical = point["analytical"]["seconds"], des = point["des"]["seconds"];
    EXPECT_NEAR(des, analytical, 0.02 * analytical)
        << point["bytes"] << " bytes, " << point["algorithm"] << " " << point["protocol"];
  }
}
INSTANTIATE_TEST_SUITE_P(Collective, EnginesAgree, testing::ValuesIn(kAgreements), [](const auto& agreement) {
  std::string name;  // words in camel case
  bool begins = true;
  for (const char c : fmt::format("{} {}", agreement.param.cluster, agreement.param.collective)) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) != 0) name += static_cast<char>(begins ? std::toupper(letter) : letter);
    begins = std::isalnum(letter) == 0;
  }
  return name;
});

struct BadArguments {
  const char* arguments;
  const char* sentence;
};
TEST(Collective, BadInputIsOneSentence) {
  const Workplace place;
  place.write("no.json", "{\"nodes\": 3}");
  const BadArguments cases[] = {
      {"", "found no collective, expected KIND or --measured"},
      {"all_reduce", "found no cluster, expected --cluster, --node or --device"},
      {"allreduce --cluster eos", "allreduce not in"},
      {"all_reduce --cluster es", "(did you mean \"eos\"?)"},
      {"all_reduce --cluster no.json", "no.json: "},
      {"all_reduce --cluster none.json", "none.json"},
      {"all_reduce --cluster eos --node dgx-h100", "--cluster: found --node as well"},
      {"all_reduce --node dgx-h100 --device RTX-4090", "its own node is rtx-4090-8"},
      {"all_reduce --cluster fsdp.json --device L40S",
       "--cluster: found \"fsdp.json\", expected the name of a cluster"},
      {"all_reduce --cluster pcie-8", "--device: found nothing, expected a device too, because --cluster pcie-8"},
      {"all_reduce --cluster pcie-8 --device L40", "--device: found \"L40\""},
      {"all_reduce --node dgx-h10", "--node: found \"dgx-h10\", expected the name of a node preset"},
      {"all_reduce --node pcie-8", "--device: found nothing"},
      {"all_reduce --node dgx-h100 --nodes 0", "--nodes: found 0, expected an integer from 1"},
      {"all_reduce --node dgx-h100 --nodes 99999999999999999999",
       "--nodes: found \"99999999999999999999\", expected a whole number of 64 bits"},
      {"all_reduce --node dgx-h100 --ranks 99999999999999999999", "--ranks: found \"99999999999999999999\""},
      {"all_reduce --node dgx-h100 --groups=-99999999999999999999", "--groups: found \"-99999999999999999999\""},
      {"all_reduce --node dgx-h100 --nodes 1.5", "--nodes: found \"1.5\", expected a whole number"},
      {"all_reduce --node dgx-h100 --nodes 0x10", "--nodes: found \"0x10\", expected a whole number"},
      {"all_reduce --node dgx-h100 --nodes ''", "--nodes: found \"\", expected a whole number"},
      {"all_reduce --node dgx-h100 --stepfactor 1.5", "--stepfactor: found \"1.5\", expected a whole number"},
      {"all_reduce --node dgx-h100 --nodes 00", "--nodes: found 0, expected an integer from 1"},
      {"all_reduce --node dgx-h100 -b 1X", "--minbytes: found \"1X\", expected a size"},
      {"all_reduce --node dgx-h100 -b 0", "--minbytes: found \"0\", expected a size"},
      {"all_reduce --node dgx-h100 -b ''", "--minbytes: found \"\", expected a size"},
      {"all_reduce --node dgx-h100 -e 1GB", "--maxbytes: found \"1GB\", expected a size"},
      {"all_reduce --node dgx-h100 -e 9999T", "--maxbytes: found \"9999T\", expected a size"},
      {"all_reduce --node dgx-h100 -b 2G -e 1G", "--maxbytes: found \"1G\", expected at least --minbytes, 2G"},
      {"all_reduce --node dgx-h100 -f 1", "--stepfactor: found 1, expected 2 or more"},
      {"all_reduce --node dgx-h100 --ranks 9", "--ranks: found 9, expected 2 to 8"},
      {"all_reduce --node dgx-h100 --ranks 1", "--ranks: found 1, expected 2 to 8"},
      {"all_reduce --node gh200-1", "--ranks: found 1, expected a cluster of at least 2 devices"},
      {"all_reduce --node dgx-h100 --ranks-per-node 9", "--ranks-per-node: found 9, expected 1 to 8"},
      {"all_reduce --node dgx-a100 --algorithm nvls", "--algorithm: found \"nvls\""},
      {"all_to_all --node dgx-h100 --protocol ll128", "--protocol: found \"ll128\""},
      {"all_reduce --node dgx-h100 --rows 1", "--rows: found \"all_reduce\", expected all_to_all"},
      {"all_to_all --node dgx-h100 --ranks 2 --rows 1,2,x,1", "--rows: found \"x\", expected numbers of at least 0"},
      {"all_to_all --node dgx-h100 --ranks 2 --rows 1,,1,1", "--rows: found \"\", expected numbers of at least 0"},
      {"all_to_all --node dgx-h100 --ranks 2 --rows 1,-1,1,1", "--rows: found \"-1\", expected numbers of at least 0"},
      {"all_to_all --node dgx-h100 --ranks 2 --rows 1,1,1", "--rows: found 3 numbers, expected 2 x 2"},
      {"all_to_all --node dgx-h100 --ranks 2 --rows 0,0,0,0", "--rows: found 4 numbers, expected 2 x 2"},
      {"all_reduce --node dgx-h100 --engine analytical --routing sprayed", "--routing: found \"sprayed\""},
      {"all_reduce --node dgx-h100 --json - --csv -", "standard output: found several outputs"},
      {"all_reduce --node dgx-h100 --markdown -", "--markdown: found no --measured"},
      {"all_reduce --node dgx-h100 --algorythm ring", "(did you mean \"--algorithm\"?)"},
      {"reduce --measured h200", "of a measured reduce"},
      {"--measured --cluster eos", "--cluster: found --measured as well"},
      {"--measured -b 1M", "--minbytes: found --measured as well"},
      {"--measured h20-2n", "--measured: found \"h20-2n\", expected part of the name"},
  };
  const auto files = place.files();
  for (const BadArguments& bad : cases) {
    const auto result = place.orrery(std::string("collective ") + bad.arguments);
    EXPECT_EQ(result.code, 2) << bad.arguments << ": " << result.err;
    EXPECT_THAT(result.out, IsEmpty()) << bad.arguments;
    EXPECT_THAT(result.err, AllOf(StartsWith("orrery: error: "), HasSubstr(bad.sentence))) << bad.arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_EQ(place.files(), files);
}

// ---- measured curves

TEST(MeasuredCollectives, EveryPublishedPointIsPredictedOrTheCurveSaysWhyNot) {
  const Workplace place;
  const json result = predicted(place, "--measured --engine analytical");
  const json& curves = published().at("curves");
  ASSERT_EQ(result.at("curves").size(), curves.size());
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const json& curve = result["curves"][i];
    EXPECT_EQ(curve.at("id"), curves[i].at("id"));
    EXPECT_EQ(curve.at("source"), curves[i].at("source"));
    EXPECT_EQ(curve.at("unpredicted"), "") << curve.at("id");
    ASSERT_EQ(curve.at("points").size(), curves[i].at("points").size());
    for (std::size_t k = 0; k < curve["points"].size(); ++k) {
      EXPECT_EQ(curve["points"][k].at("bytes"), curves[i]["points"][k][0]);
      EXPECT_NEAR(curve["points"][k].at("measured_seconds").get<double>() * 1e6,
                  curves[i]["points"][k][1].get<double>(), 1e-9 * curves[i]["points"][k][1].get<double>());
      EXPECT_GT(curve["points"][k].at("analytical"), 0);
    }
  }
  EXPECT_EQ(result.at("left_out").size(), published().at("left_out").size());
}

// The errors over fitted curves are those that the calibration states of itself, class by class.
TEST(MeasuredCollectives, AnalyticalErrorsAreTheResidualsOfTheCalibration) {
  const Workplace place;
  const json result = predicted(place, "--measured --engine analytical");
  std::map<std::string, std::vector<double>> errors;
  std::map<std::string, std::int64_t> curves;
  for (const json& curve : result.at("curves")) {
    if (curve.at("not_fitted") != "") continue;
    ++curves[curve.at("class")];
    for (const json& point : curve.at("points"))
      if (point.at("bytes") >= kMiB)
        errors[curve.at("class")].push_back(
            std::abs(point.at("analytical").get<double>() / point.at("measured_seconds").get<double>() - 1));
  }
  const json calibration = parse_json_file(ORRERY_SOURCE_DIR "/results/calibration/collectives.json");
  std::size_t compared = 0;
  for (const char* classes : {"node_classes", "network_classes"})
    for (const json& c : calibration.at(classes)) {
      const json& residual = c.at("residual");
      const std::string name = c.at("name");
      EXPECT_EQ(curves[name], residual.at("curves")) << name;
      if (residual.at("points_from_1_mib") == 0) continue;
      EXPECT_EQ(errors[name].size(), residual.at("points_from_1_mib")) << name;
      EXPECT_NEAR(median(errors[name]), residual.at("median_error_from_1_mib").get<double>(), 2e-4) << name;
      ++compared;
    }
  EXPECT_GE(compared, 10u);
}

TEST(MeasuredCollectives, SummaryIsThatOfItsPointsAndMeetsItsGoals) {
  const Workplace place;
  // Not the curves of more than 512 ranks, so that the test stays short in debug builds.
  std::map<std::string, std::vector<double>> errors;
  for (const char* filter : {"h200", "oci", "gtc24-nvlstree-h100-64"}) {
    const json result = predicted(place, fmt::format("--measured {}", filter));
    for (const char* engine : {"analytical", "des"}) {
      std::map<std::string, std::vector<double>> of_level;
      for (const json& curve : result.at("curves"))
        for (const json& point : curve.at("points"))
          if (point.at("bytes") >= kMiB)
            of_level[curve.at("nodes") > 1 ? "between nodes" : "within a node"].push_back(
                std::abs(point.at(engine).get<double>() / point.at("measured_seconds").get<double>() - 1));
      for (const json& row : result.at("summary")) {
        if (row.at("links") != "all") continue;
        const std::vector<double>& expected = of_level.at(row.at("level"));
        EXPECT_EQ(row.at("from_1_mib").at(engine).at("points"), expected.size());
        EXPECT_NEAR(row["from_1_mib"][engine].at("median_error").get<double>(), median(expected), 1e-12);
      }
      for (const auto& [level, values] : of_level) {
        auto& all = errors[std::string(engine) + " " + level];
        all.insert(all.end(), values.begin(), values.end());
      }
    }
  }
  for (const char* engine : {"analytical", "des"}) {
    EXPECT_LT(median(errors.at(std::string(engine) + " within a node")), 0.10);
    EXPECT_LT(median(errors.at(std::string(engine) + " between nodes")), 0.15);
  }
}

TEST(MeasuredCollectives, KindAndFilterChooseCurves) {
  const Workplace place;
  const json result = predicted(place, "all_to_all --measured H200 --engine analytical");
  EXPECT_EQ(result.at("curves").size(), 3u);
  for (const json& curve : result.at("curves")) {
    EXPECT_EQ(curve.at("collective"), "all_to_all");
    EXPECT_THAT(curve.at("device").get<std::string>(), HasSubstr("H200"));
  }
}

TEST(MeasuredCollectives, TableListsWhatIsLeftOutAndWhy) {
  const Workplace place;
  const auto table = place.orrery("collective --measured --engine analytical");
  EXPECT_EQ(table.code, 0) << table.err;
  for (const json& curve : published().at("left_out"))
    EXPECT_THAT(table.out, HasSubstr(fmt::format("{}: {}", curve.at("id").get<std::string>(),
                                                 curve.at("why").get<std::string>())));
  for (const json& curve : published().at("curves")) EXPECT_THAT(table.out, HasSubstr(curve.value("not_fitted", "")));
  const auto exactly = place.orrery("collective --measured gtc24-nvlstree-h100-4096 --fidelity step-exact");
  EXPECT_EQ(exactly.code, 0) << exactly.err;
  EXPECT_THAT(exactly.out, HasSubstr("Not predicted: gtc24-nvlstree-h100-4096: found 4096 ranks"));
}

TEST(MeasuredCollectives, CsvHasARowForEveryPoint) {
  const Workplace place;
  const auto csv = place.orrery("collective --measured --engine analytical --csv -");
  std::size_t points = 0;
  for (const json& curve : published().at("curves")) points += curve.at("points").size();
  const std::vector<std::string> lines = lines_of(csv.out);
  EXPECT_EQ(lines.size(), points + 1);
}

// The table in the repository: rewrite it with
//   orrery collective --measured --markdown results/published/collectives_errors.md
TEST(MeasuredCollectives, TheCommittedTableIsCurrent) {
  std::ifstream in(ORRERY_SOURCE_DIR "/results/published/collectives_errors.md");
  std::ostringstream text;
  text << in.rdbuf();
  const std::vector<std::string> committed = lines_of(text.str());
  for (const json& curve : published().at("curves"))
    EXPECT_THAT(text.str(), HasSubstr("| " + curve.at("id").get<std::string>() + " ")) << "no row";
  const Workplace place;
  std::size_t compared = 0;
  for (const char* filter : {"h200-roce", "mi300x", "gtc24-nvlstree-h100-64", "l40s"}) {
    const auto now = place.orrery(fmt::format("collective --measured {} --markdown -", filter));
    ASSERT_EQ(now.code, 0) << now.err;
    for (const std::string& line : lines_of(now.out)) {
      const bool of_a_curve = std::any_of(
          published()["curves"].begin(), published()["curves"].end(),
          [&](const json& curve) { return line.starts_with("| " + curve.at("id").get<std::string>() + " "); });
      if (!of_a_curve) continue;
      EXPECT_THAT(committed, testing::Contains(line));
      ++compared;
    }
  }
  EXPECT_GT(compared, 30u);
}

}  // namespace
}  // namespace orrery
