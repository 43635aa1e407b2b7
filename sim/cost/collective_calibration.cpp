#include "sim/cost/collective_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kCollectivesFile = "results/calibration/collectives.json";

// Reads an object in which every parameter must be given.
class Parameters {
 public:
  Parameters(const Json& json, const InputError::Where& where) : reader_(json, where) {}

  void number(const char* name, double& value, NumberRange range) {
    reader_.need(name, "a number");
    reader_.field(name, value, range, "");
  }
  void integer(const char* name, std::int64_t& value, std::int64_t least) {
    reader_.need(name, "an integer");
    reader_.field(name, value, at_least(least), "");
  }
  void boolean(const char* name, bool& value) {
    reader_.need(name, "true or false");
    reader_.field(name, value, "");
  }
  void protocols(const char* name, ByProtocol& values, NumberRange range, bool with_ll128) {
    Parameters p(reader_.need(name, "an object with a number per protocol"), reader_.at(name));
    p.number("simple", values[0], range);
    if (with_ll128) p.number("ll128", values[1], range);
    p.number("ll", values[2], range);
    p.finish();
  }
  void protocols_or(const char* name, ByProtocol& values, const ByProtocol& usual, NumberRange range) {
    if (reader_.has(name))
      protocols(name, values, range, false);
    else
      values = usual;
  }
  void rates(const char* name, std::array<double, 3>& values) {
    const Json* json = reader_.take(name);
    if (json == nullptr || !json->is_array() || json->size() != values.size())
      reader_.fail(name, "3 numbers: the rate on 1, 2-3, and 4 or more nodes");
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Json& number = (*json)[i];
      if (!number.is_number() || !(number.get<double>() > 0))
        throw InputError(reader_.at(name), describe(number), "a rate above 0 for each number of nodes");
      values[i] = number.get<double>();
    }
  }
  void finish() const { reader_.finish(); }

 private:
  JsonReader reader_;
};

CollectiveResidual read_collective_residual(JsonReader& reader) {
  CollectiveResidual residual;
  reader.object("residual", [&](JsonReader& r) {
    r.field("curves", residual.curves, at_least(0), "");
    r.field("points", residual.points, at_least(0), "");
    r.field("points_from_1_mib", residual.points_from_1_mib, at_least(0), "");
    r.field("median_error", residual.median_error, NumberRange{}, "");
    r.field("median_error_from_1_mib", residual.median_error_from_1_mib, NumberRange{}, "");
  });
  return residual;
}

std::vector<std::string> read_texts(JsonReader& reader, const char* name) {
  const Json& json = reader.need(name, "an array of texts");
  if (!json.is_array()) reader.fail(name, "an array of texts");
  std::vector<std::string> texts;
  for (const Json& text : json) {
    if (!text.is_string()) reader.fail(name, "an array of texts");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

// Reads the array `name`. `read_scope`: what a class applies to.
template <class Class, class ReadScope>
void read_classes(JsonReader& reader, const char* name, std::vector<Class>& classes, ReadScope read_scope) {
  const Json* json = reader.take(name);
  if (json == nullptr) return;
  if (!json->is_array()) reader.fail(name, "an array of classes");
  for (std::size_t i = 0; i < json->size(); ++i) {
    InputError::Where where = reader.at(name);
    where.pointer += "/" + std::to_string(i);
    JsonReader r((*json)[i], where);
    // Keys of the fit to published curves: its start values, and the parameters that it fits.
    r.take("prior");
    r.take("fit");
    const Json& parameters = r.need("parameters", "an object");
    Class& c = classes.emplace_back();
    r.field("name", c.name, "");
    r.field("source", c.source, "");
    read_scope(r, c);
    Parameters p(parameters, r.at("parameters"));
    visit_parameters(c.parameters, p);
    p.finish();
    c.residual = read_collective_residual(r);
    r.finish();
  }
}

bool contains(const std::vector<std::string>& texts, std::string_view text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

const IntraClass* find_named(const std::vector<IntraClass>& classes, const Cluster& cluster, std::string_view fabric) {
  for (const IntraClass& c : classes)
    if (contains(c.architectures, cluster.device.architecture) && contains(c.fabrics, fabric) &&
        cluster.node.devices >= c.least_devices)
      return &c;
  return nullptr;
}

const IntraClass* find_generic(const std::vector<IntraClass>& classes, std::string_view fabric) {
  for (const IntraClass& c : classes)
    if (c.architectures.empty() && contains(c.fabrics, fabric)) return &c;
  return nullptr;
}

const InterClass* find_network(const std::vector<InterClass>& classes, const std::string& name) {
  for (const InterClass& c : classes)
    for (const std::string& word : c.words)
      if (name.find(word) != std::string::npos) return &c;
  return nullptr;
}

void add_note(std::string& note, std::string_view text) {
  if (!note.empty()) note += "; ";
  note += text;
}

}  // namespace

CollectiveClasses read_collective_classes(const nlohmann::json& json, const InputError::Where& where) {
  CollectiveClasses classes;
  JsonReader reader(json, where);
  for (const char* text : {"description", "method", "parameters"}) reader.take(text);
  read_classes(reader, "node_classes", classes.node_classes, [](JsonReader& r, IntraClass& c) {
    c.architectures = read_texts(r, "architectures");
    c.fabrics = read_texts(r, "fabrics");
    for (const std::string& fabric : c.fabrics)
      if (std::find(kIntraFabricNames.begin(), kIntraFabricNames.end(), fabric) == kIntraFabricNames.end())
        r.fail("fabrics", "nvswitch, direct_mesh, nvlink_pairs or pcie", nearest_name(fabric, kIntraFabricNames));
    r.field("least_devices", c.least_devices, at_least(1), "");
  });
  read_classes(reader, "network_classes", classes.network_classes,
               [](JsonReader& r, InterClass& c) { c.words = read_texts(r, "words"); });
  reader.finish();
  return classes;
}

const CollectiveClasses& bundled_collective_classes() {
  static const CollectiveClasses classes = [] {
    for (const EmbeddedFile& file : embedded_files(kCollectivesFile))
      return read_collective_classes(parse_json(file.text, std::string(kCollectivesFile)),
                                     {std::string(kCollectivesFile), ""});
    throw InputError({std::string(kCollectivesFile), ""}, "nothing", "the bundled calibration of collectives");
  }();
  return classes;
}

namespace {

// The "collectives" of the device's own calibration: those of ranks on one host.
CollectiveClasses classes_of_device(const Device& device) {
  const std::string path = fmt::format("results/calibration/{}.json", device.name);
  for (const EmbeddedFile& file : embedded_files(path)) {
    constexpr std::string_view kKey = "collectives";
    if (file.path != path || file.text.find(kKey) == std::string_view::npos) continue;
    const Json json = parse_json(file.text, path);
    if (const auto section = json.find(kKey); section != json.end())
      return read_collective_classes(*section, {path, "/collectives"});
  }
  return {};
}

void visit_parameters(ReductionCalibration& c, Parameters& fields) {
  fields.number("nic_share", c.nic_share, kPositiveShare);
  fields.number("step_seconds", c.step_seconds, NumberRange{});
  fields.number("rank_seconds", c.rank_seconds, NumberRange{});
  fields.number("network_seconds", c.network_seconds, NumberRange{});
  fields.number("nvls_network_seconds", c.nvls_network_seconds, NumberRange{});
}
void visit_parameters(TokenExchangeCalibration& c, Parameters& fields) {
  fields.number("link_share", c.link_share, kPositiveShare);
  fields.number("nic_share", c.nic_share, kPositiveShare);
}

template <class Class>
Class read_bundled(const char* file) {
  Class c;
  const Json json = parse_embedded(file);
  Parameters p(json, {file, ""});
  visit_parameters(c, p);
  return c;
}

}  // namespace

CollectiveCalibration find_collective_calibration(const Cluster& cluster, const CollectiveClasses& user) {
  const CollectiveClasses& bundled = bundled_collective_classes();
  const std::string_view fabric = kIntraFabricNames[static_cast<std::size_t>(cluster.node.intra)];
  CollectiveCalibration calibration;

  const IntraClass* intra = find_named(user.node_classes, cluster, fabric);
  if (intra == nullptr) intra = find_generic(user.node_classes, fabric);
  const CollectiveClasses own = intra == nullptr ? classes_of_device(cluster.device) : CollectiveClasses{};
  if (intra == nullptr) intra = find_named(own.node_classes, cluster, fabric);
  if (intra == nullptr) intra = find_named(bundled.node_classes, cluster, fabric);
  if (intra == nullptr) {
    intra = find_generic(bundled.node_classes, fabric);
    const bool any_architecture_measured = intra != nullptr && intra->residual.points > 0;
    if (intra == nullptr) intra = &bundled.node_classes.front();
    if (!any_architecture_measured)
      add_note(calibration.note, fmt::format("no collective measured on {} over {}: \"{}\" stands in",
                                             cluster.device.architecture, fabric, intra->name));
  } else if (intra->residual.points == 0) {
    add_note(calibration.note, fmt::format("\"{}\" holds published constants, no curve was measured", intra->name));
  }

  const std::string network = lower_case(cluster.fabric.name);
  const InterClass* inter = find_network(user.network_classes, network);
  if (inter == nullptr) inter = find_network(bundled.network_classes, network);
  if (inter == nullptr) {
    inter = &bundled.network_classes.front();
    calibration.inter_stands_in = true;
    if (cluster.nodes > 1)
      add_note(calibration.note, fmt::format("no network class for the fabric \"{}\": \"{}\" stands in",
                                             cluster.fabric.name, inter->name));
  }

  calibration.intra_class = intra->name;
  calibration.intra_source = intra->source;
  calibration.intra = intra->parameters;
  calibration.inter_class = inter->name;
  calibration.inter_source = inter->source;
  calibration.inter = inter->parameters;
  static const auto reduction = read_bundled<ReductionCalibration>("results/calibration/collectives_in_network.json");
  static const auto exchange = read_bundled<TokenExchangeCalibration>("results/calibration/collectives_by_token.json");
  calibration.reduction = reduction;
  calibration.token_exchange = exchange;
  return calibration;
}

CollectiveCalibration find_collective_calibration(const Cluster& cluster) {
  static const CollectiveClasses none;
  return find_collective_calibration(cluster, none);
}

}  // namespace orrery
