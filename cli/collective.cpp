// orrery collective: predicts what nccl-tests measures, or compares predictions with measured curves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/measured_tables.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/words.h"
#include "sim/cost/exchange_skew.h"
#include "sim/cost/user_calibration.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"
#include "sim/report/format.h"
#include "study/answers/inputs.h"
#include "study/simulation/collective_prediction.h"
#include "study/validation/measured_collectives.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct CollectiveArguments {
  std::string kind;
  std::string cluster, node, device;
  std::optional<std::int64_t> nodes, ranks, ranks_per_node;
  std::int64_t groups = 1;
  std::string rows;
  std::string least_bytes = "8", most_bytes = "8G";
  std::int64_t step_factor = 2;
  std::string algorithm{kCollectiveAlgorithmNames.front()}, protocol{kCollectiveProtocolNames.front()};
  bool measured = false;
  std::string filter;
  std::vector<std::string> calibrations;
  EngineArguments engine;
  std::string json, csv, markdown;
};

constexpr const char* kCollectiveExamples = R"(Examples:
  orrery collective all_reduce --cluster dgx-h100             nccl-tests' all_reduce_perf on one node
  orrery collective all_to_all --node dgx-h100 --nodes 16 -b 1M -e 1G -f 4
  orrery collective all_gather --cluster eos --ranks-per-node 1 --ranks 32
  orrery collective all_reduce --cluster dgx-a100 --algorithm ring --protocol ll128
  orrery collective all_reduce --node dgx-h100 --nodes 4 --groups 8     the rings of tensor-parallel 8 at once
  orrery collective all_to_all --node dgx-h100 --ranks 2 --rows 1,1.5,0.5,1     unequal parts, as of tokens to experts
  orrery collective --measured                                every published curve beside its predictions
  orrery collective all_to_all --measured h200 --csv -        every point of some of them)";

// Parses a whole number of bytes.
double parse_bytes(const std::string& text, const char* option) {
  const std::optional<double> bytes = bytes_of_text(text);
  if (!bytes || *bytes != std::floor(*bytes))
    throw InputError({option, ""}, describe(text), "a size from 1 to 1024T, such as 8, 1K, 64M or 8G");
  return *bytes;
}

std::vector<double> sizes_of(const CollectiveArguments& arguments) {
  const double least = parse_bytes(arguments.least_bytes, "--minbytes");
  const double most = parse_bytes(arguments.most_bytes, "--maxbytes");
  if (most < least)
    throw InputError({"--maxbytes", ""}, describe(arguments.most_bytes),
                     fmt::format("at least --minbytes, {}", arguments.least_bytes));
  if (arguments.step_factor < 2)
    throw InputError({"--stepfactor", ""}, fmt::format("{}", arguments.step_factor), "2 or more");
  std::vector<double> sizes;
  for (double bytes = least; bytes <= most; bytes *= static_cast<double>(arguments.step_factor)) sizes.push_back(bytes);
  return sizes;
}

std::vector<double> rows_of(const CollectiveArguments& arguments, std::int64_t members) {
  if (arguments.rows.empty()) return {};
  if (arguments.kind != "all_to_all")
    throw InputError({"--rows", ""}, describe(arguments.kind), "all_to_all, the only collective with unequal parts");
  return rows_of_text(arguments.rows, members);
}

Cluster cluster_by_itself(const CollectiveArguments& arguments) {
  try {
    bool perturbed = false;
    Cluster cluster = read_cluster_argument(arguments.cluster, &perturbed);
    if (perturbed) fmt::print(stderr, "orrery: the perturbations of {} are ignored\n", arguments.cluster);
    return cluster;
  } catch (const InputError& error) {
    if (node_catalog().find(arguments.cluster) == nullptr || error.found() != describe(arguments.cluster)) throw;
    throw InputError({"--device", ""}, "nothing",
                     fmt::format("a device too, because --cluster {} accepts any: --device L40S", arguments.cluster));
  }
}

Cluster cluster_of(const CollectiveArguments& arguments) {
  const bool made_up = !arguments.node.empty() || !arguments.device.empty();
  if (arguments.cluster.empty() && !made_up)
    throw InputError({}, "no cluster", "--cluster, --node or --device (orrery collective --help)");
  nlohmann::json json = nlohmann::json::object();
  if (!arguments.cluster.empty()) {
    if (!arguments.node.empty()) throw InputError({"--cluster", ""}, "--node as well", "one of them");
    if (!made_up && !arguments.nodes) return cluster_by_itself(arguments);
    const bool is_cluster = cluster_catalog().find(arguments.cluster) != nullptr;
    if (!is_cluster && node_catalog().find(arguments.cluster) == nullptr)
      throw InputError({"--cluster", ""}, describe(arguments.cluster),
                       "the name of a cluster or node if --device or --nodes is given (a file gives them itself)");
    json[is_cluster ? "base" : "node"] = arguments.cluster;
  }
  if (!arguments.node.empty()) json["node"] = arguments.node;
  if (!arguments.device.empty()) json["device"] = arguments.device;
  if (arguments.nodes) json["nodes"] = *arguments.nodes;
  try {
    return read_cluster(json, {});
  } catch (const InputError& error) {  // "/node" comes from --node
    const std::string& pointer = error.where().pointer;
    if (!pointer.starts_with("/")) throw;
    throw InputError({"--" + pointer.substr(1), error.where().file}, error.found(), error.expected(), error.nearest());
  }
}

Engines engines_of(const CollectiveArguments& arguments) {
  Engines engines;
  for (std::size_t e = 0; e < kEngines; ++e)
    if (arguments.engine.both() || arguments.engine.engine == kEngineNames[e]) engines.push_back(e);
  return engines;
}

DiscreteEventOptions des_of(const CollectiveArguments& arguments) {
  const SimulationOptions options = arguments.engine.options();
  return {.fidelity = options.fidelity, .routing = options.routing, .most_works = options.most_works};
}

struct SizeRow {
  double bytes = 0;
  CollectivePrediction predicted;
};

struct Prediction {
  const CollectiveArguments& arguments;
  Engines engines;
  Cluster cluster;
  std::int64_t ranks_per_node = 1, ranks = 1;
  DiscreteEventOptions des;
  CollectiveCalibration calibration;
  std::vector<SizeRow> rows;
};

Prediction predict(const CollectiveArguments& arguments) {
  Prediction p{.arguments = arguments,
               .engines = engines_of(arguments),
               .cluster = cluster_of(arguments),
               .des = des_of(arguments),
               .calibration = {},
               .rows = {}};
  p.ranks_per_node = arguments.ranks_per_node.value_or(p.cluster.node.devices);
  p.ranks = arguments.ranks.value_or(p.cluster.nodes * p.ranks_per_node);
  const UserCalibration user = read_user_calibration(arguments.calibrations);
  if (!arguments.calibrations.empty() && user.collectives.node_classes.empty() &&
      user.collectives.network_classes.empty())
    throw InputError({arguments.calibrations.front(), ""}, "no collectives",
                     "a calibration of collectives (orrery calibrate import)");
  CollectivePredictor predictor(p.cluster, p.ranks_per_node, p.ranks, p.des, arguments.groups, user.collectives);
  predictor.set_rows(rows_of(arguments, p.ranks / arguments.groups));
  p.calibration = predictor.calibration();
  const CollectiveKind* kind = find_collective(arguments.kind);
  const auto algorithm = chosen<CollectiveAlgorithm>("--algorithm", arguments.algorithm, kForcedAlgorithmNames);
  const auto protocol = chosen<CollectiveProtocol>("--protocol", arguments.protocol, kCollectiveProtocolNames);
  const auto refuse = [&](const char* option, const std::string& wanted, std::string_view ran) {
    throw InputError({option, ""}, describe(wanted),
                     fmt::format("one that NCCL offers for {} of {} ranks on this cluster, such as {}", arguments.kind,
                                 p.ranks, ran));
  };
  const std::vector<double> sizes = sizes_of(arguments);
  if (has_des(p.engines)) {
    double works = 0;
    for (const double bytes : sizes) works += predictor.works(kind->op, bytes, algorithm, protocol);
    if (works > p.des.most_works)
      throw InputError({"--engine", ""},
                       fmt::format("{} with about {:.2g} flows of {} ranks to simulate, over {} size{}",
                                   arguments.engine.engine, works, p.ranks, sizes.size(), sizes.size() == 1 ? "" : "s"),
                       fmt::format("at most {:.2g}: --engine analytical, fewer sizes (-b, -e, -f), or a higher --limit",
                                   p.des.most_works));
    constexpr double kLong = 2, kGiga = 1e-9;  // kLong: seconds that are worth a message
    if (const double seconds = works * kFlowSeconds; seconds > kLong)
      fmt::print(stderr, "orrery: about {:.2g} flows of {} ranks to route, at {} size{}: about {:.0f} s, {:.1f} GB\n",
                 works, p.ranks, sizes.size(), sizes.size() == 1 ? "" : "s", seconds,
                 works / static_cast<double>(sizes.size()) * kFlowBytes * kGiga);
  }
  for (const double bytes : sizes) {
    SizeRow& row =
        p.rows.emplace_back(SizeRow{bytes, predictor.predict(kind->op, bytes, algorithm, protocol, p.engines)});
    if (algorithm != CollectiveAlgorithm::automatic && row.predicted.algorithm != algorithm)
      refuse("--algorithm", arguments.algorithm, name_of(row.predicted.algorithm));
    if (protocol != CollectiveProtocol::automatic && row.predicted.protocol != protocol)
      refuse("--protocol", arguments.protocol, name_of(row.predicted.protocol));
  }
  return p;
}

std::string difference_text(const SizeRow& row) {
  constexpr double kShownAsZero = 0.005;
  const double percent = kPercent * (row.predicted.seconds[1] / row.predicted.seconds[0] - 1);
  return fmt::format("{:.2f} %", std::abs(percent) < kShownAsZero ? 0.0 : percent);
}

std::string table_of(const Prediction& p) {
  constexpr double kMicro = 1e6, kGiga = 1e-9;
  const Cluster& c = p.cluster;
  std::string text = fmt::format("{}, {} ranks: {} node{} x {} {}", p.arguments.kind, p.ranks, c.nodes,
                                 c.nodes == 1 ? "" : "s", p.ranks_per_node, c.device.name);
  if (p.ranks_per_node < c.node.devices) text += fmt::format(" of {}", c.node.devices);
  if (!p.arguments.rows.empty()) text += ", unequal parts";
  if (p.arguments.groups > 1) text += fmt::format(", in {} groups at once", p.arguments.groups);
  if (c.nodes > 1) text += ", " + c.fabric.name;
  text += fmt::format("\nRates as measured on {}", p.calibration.intra_class);
  if (c.nodes > 1) text += " and " + p.calibration.inter_class;
  if (!p.calibration.note.empty()) text += " (" + p.calibration.note + ")";
  text += "; bandwidths in GB/s\n\n";

  std::string columns = "bytes|<algorithm|<protocol";
  for (const std::size_t e : p.engines) columns += fmt::format("|{0} us|{0} algbw|{0} busbw", kEngineNames[e]);
  if (p.arguments.engine.both()) columns += "|difference";
  std::vector<std::vector<std::string>> rows;
  for (const SizeRow& row : p.rows) {
    std::vector<std::string>& cells = rows.emplace_back();
    cells = {fmt::format("{:.0f}", row.bytes), name_of(row.predicted.algorithm),
             std::string(name_of(row.predicted.protocol))};
    for (const std::size_t e : p.engines) {
      const double seconds = row.predicted.seconds[e];
      cells.push_back(fmt::format("{:.2f}", seconds * kMicro));
      cells.push_back(fmt::format("{:.2f}", row.bytes / seconds * kGiga));
      cells.push_back(fmt::format("{:.2f}", row.predicted.bus_bytes_per_second[e] * kGiga));
    }
    if (p.arguments.engine.both()) cells.push_back(difference_text(row));
  }
  return text + grid(columns, rows);
}

std::string csv_of(const Prediction& p) {
  std::string text = "collective,ranks,nodes,bytes,algorithm,protocol";
  for (const std::size_t e : p.engines)
    text += fmt::format(",{0}_seconds,{0}_algorithm_bytes_per_second,{0}_bus_bytes_per_second", kEngineNames[e]);
  text += '\n';
  for (const SizeRow& row : p.rows) {
    text += fmt::format("{},{},{},{},{},{}", p.arguments.kind, p.ranks, p.cluster.nodes, row.bytes,
                        name_of(row.predicted.algorithm), name_of(row.predicted.protocol));
    for (const std::size_t e : p.engines)
      text += fmt::format(",{},{},{}", row.predicted.seconds[e], row.bytes / row.predicted.seconds[e],
                          row.predicted.bus_bytes_per_second[e]);
    text += '\n';
  }
  return text;
}

OrderedJson json_of(const Prediction& p) {
  OrderedJson points = OrderedJson::array();
  for (const SizeRow& row : p.rows) {
    OrderedJson& point = points.emplace_back(OrderedJson{{"bytes", row.bytes},
                                                         {"algorithm", name_of(row.predicted.algorithm)},
                                                         {"protocol", name_of(row.predicted.protocol)}});
    for (const std::size_t e : p.engines) {
      OrderedJson& engine = point[std::string(kEngineNames[e])];
      engine = {{"seconds", row.predicted.seconds[e]},
                {"algorithm_bytes_per_second", row.bytes / row.predicted.seconds[e]},
                {"bus_bytes_per_second", row.predicted.bus_bytes_per_second[e]}};
      if (e != kDes) continue;
      const CollectiveRun& run = *row.predicted.run;
      engine["flows"] = run.flows;
      engine["flow_classes"] = run.flow_classes;
      OrderedJson& kinds = engine["link_kinds"] = OrderedJson::array();
      for (const LinkReport& kind : run.link_kinds)
        kinds.push_back({{"name", kind.name}, {"utilisation", kind.utilisation}});
    }
  }
  OrderedJson json = {{"collective", p.arguments.kind},
                      {"ranks", p.ranks},
                      {"nodes", p.cluster.nodes},
                      {"ranks_per_node", p.ranks_per_node},
                      {"groups", p.arguments.groups},
                      {"device", p.cluster.device.name},
                      {"node", p.cluster.node.name},
                      {"fabric", p.cluster.fabric.name},
                      {"node_class", p.calibration.intra_class},
                      {"network_class", p.calibration.inter_class},
                      {"note", p.calibration.note}};
  if (has_des(p.engines)) {
    json["fidelity"] = kFidelityNames[static_cast<std::size_t>(p.des.fidelity)];
    json["routing"] = kRoutingNames[static_cast<std::size_t>(p.des.routing)];
  }
  json["points"] = std::move(points);
  const CollectiveArguments& a = p.arguments;
  OrderedJson asked{{"kind", a.kind},           {"cluster", to_json(p.cluster)},
                    {"ranks", p.ranks},         {"ranks_per_node", p.ranks_per_node},
                    {"groups", a.groups},       {"sizes", sizes_of(a)},
                    {"algorithm", a.algorithm}, {"protocol", a.protocol}};
  if (!a.rows.empty()) asked["rows"] = rows_of(a, p.ranks / a.groups);
  json["inputs"] = inputs_json("collective", asked, a.calibrations);
  json["version"] = ORRERY_VERSION;
  return json;
}

void compare_with_measured(const CollectiveArguments& arguments) {
  MeasuredOptions options{.filter = arguments.filter,
                          .kind = arguments.kind,
                          .engines = engines_of(arguments),
                          .des = des_of(arguments),
                          .progress = {}};
  MeasuredCollectives measured;
  {
    ProgressLine progress;
    options.progress = [&](std::size_t done, std::size_t total, const std::string& id) {
      progress.show(fmt::format("{} of {} curves: {}", done, total, id));
    };
    measured = predict_measured(options);
  }
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(measured_json(measured, options.engines), 2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return measured_csv(measured, options.engines); });
  outputs.add_wanted(arguments.markdown, [&] { return measured_markdown(measured, options.engines); });
  outputs.commit_with([&] { return measured_table(measured, options.engines); });
}

void collective(const CollectiveArguments& arguments) {
  arguments.engine.become_program_with_engine();
  check_outputs({arguments.json, arguments.csv, arguments.markdown});
  if (arguments.measured) return compare_with_measured(arguments);
  if (arguments.kind.empty()) throw InputError({}, "no collective", "KIND or --measured (orrery collective --help)");
  if (!arguments.markdown.empty())
    throw InputError({"--markdown", ""}, "no --measured", "--measured as well, or --json or --csv");
  const Prediction prediction = predict(arguments);
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(json_of(prediction), 2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return csv_of(prediction); });
  outputs.commit_with([&] { return table_of(prediction); });
}

}  // namespace

void add_collective(Command app) {
  auto arguments = std::make_shared<CollectiveArguments>();
  arguments->engine.engine = "both";
  const Command command =
      app.add_subcommand("collective", "How long a collective takes by itself, size by size, as nccl-tests times it");
  command.footer(kCollectiveExamples);
  command.add_option("KIND", arguments->kind, "The collective; --measured: of these alone").one_of(collective_names());
  std::vector<Option> of_kind;  // options without meaning for measured curves
  const auto text = [&](const char* names, std::string& value, const char* what, const char* type = "") {
    return of_kind.emplace_back(command.add_option(names, value, what, type));
  };
  const auto count = [&](const char* names, auto& value, const char* what) {
    return of_kind.emplace_back(command.add_option(names, value, what, "N"));
  };
  offer_clusters(text("--cluster", arguments->cluster, "A cluster, node or scenario, or the JSON file of one"));
  text("--node", arguments->node, "A node type; with --nodes several of them on their usual fabric")
      .offers_names({"nodes"});
  text("--device", arguments->device, "A device, in its usual node, --node or --cluster").offers_names({"devices"});
  count("--nodes", arguments->nodes, "Number of nodes [1, or those of --cluster]");
  count("--ranks", arguments->ranks, "Number of devices that take part, node by node [all]");
  count("--ranks-per-node", arguments->ranks_per_node, "Devices of each node that take part [all]");
  count("--groups", arguments->groups, "Number of groups at once; ranks are assigned to them in turn");
  text("--rows", arguments->rows,
       "all_to_all with unequal parts: what each rank sends to each other rank, relative to equal parts, first rank "
       "first",
       "N,N,...");
  text("-b,--minbytes", arguments->least_bytes, "Smallest size: 8, 1K, 64M, 8G", "SIZE").capture_default();
  text("-e,--maxbytes", arguments->most_bytes, "Largest size", "SIZE").capture_default();
  count("-f,--stepfactor", arguments->step_factor, "Factor from each size to the next");
  text("--algorithm", arguments->algorithm, "Use this algorithm instead of the fastest, like NCCL_ALGO")
      .one_of(texts(kForcedAlgorithmNames), /*in_any_case=*/true);
  text("--protocol", arguments->protocol, "Use this protocol instead of the fastest, like NCCL_PROTO")
      .one_of(texts(kCollectiveProtocolNames), /*in_any_case=*/true);
  of_kind.push_back(
      command.add_several("--calibration", arguments->calibrations,
                          "A result of `orrery calibrate import` to use instead of the bundled calibration", "FILE"));
  command
      .add_option(
          "--measured",
          [arguments](const std::string& filter) {
            arguments->measured = true;
            arguments->filter = filter;
          },
          "Predict published measurements: all, or those with this in their name, source, system, network or "
          "collective",
          "FILTER")
      .value_optional();
  command.add_file("--json", arguments->json, "Write all points as JSON; - for standard output");
  command.add_file("--csv", arguments->csv, "Write all points as CSV, a row each");
  command.add_file("--markdown", arguments->markdown, "Write the tables of --measured as Markdown");
  arguments->engine.add_to(command, /*both=*/true);
  command.callback([arguments, of_kind] {
    for (const Option& option : of_kind)
      if (arguments->measured && option.is_given())
        throw InputError(
            {option.name(), ""}, "--measured as well",
            "no option that measured curves give themselves: cluster, ranks, sizes, algorithm, calibration");
    collective(*arguments);
  });
}

}  // namespace orrery
