#include "study/validation/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/report/format.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFolder = "results/published/steps/";
constexpr std::string_view kSchema = "orrery published measurements, version 2";
constexpr std::int64_t kMostSteps = 1024;
constexpr std::array<std::string_view, 3> kQualities{"A", "B", "C"};

Json object(JsonReader& reader, const char* key) {
  const Json* found = reader.take(key);
  if (found == nullptr) return Json::object();
  if (!found->is_object()) reader.fail(key, "an object");
  return *found;
}

// What a file says for all its points.
struct Shared {
  std::string explanation, not_fitted;
  Json assumptions, models, clusters, scenario;
};

// A name that the file defines stands for what it defines.
void write_out(Json& scenario, const char* key, const Json& defined) {
  const auto part = scenario.find(key);
  if (part == scenario.end() || !part->is_string()) return;
  const auto found = defined.find(part->get<std::string>());
  if (found != defined.end()) *part = *found;
}

void read_measured(JsonReader& reader, PublishedPoint& point) {
  reader.field("quantity", point.quantity, kQuantityNames, "");
  point.value = reader.number("value");
  reader.field("steps", point.steps, IntegerRange{1, kMostSteps}, "");
  if (point.steps > 1 && !is_seconds(point.quantity)) reader.fail("steps", "1 for a quantity that is not a time");
  // How a rate became seconds: for readers.
  for (const char* key : {"tokens_per_step", "samples_per_step", "flops_per_step", "devices"}) reader.number(key);
  reader.text("flops_formula");
  reader.object("published", [&](JsonReader& published) {
    point.published_metric = published.text("metric", true);
    point.published_unit = published.text("unit");
    point.published_value = published.number("value");
  });
}

PublishedPoint read_point(JsonReader& reader, const Shared& shared) {
  PublishedPoint point;
  point.id = reader.text("id", true);
  if (const Json* place = reader.take("source"); place != nullptr && place->is_string()) point.where = *place;
  point.table = reader.text("table");
  point.quality = reader.text("quality", true);
  if (std::find(kQualities.begin(), kQualities.end(), point.quality) == kQualities.end())
    reader.fail("quality", "A, B or C");
  reader.object(
      "measured", [&](JsonReader& measured) { read_measured(measured, point); }, "an object");
  const Json claims = object(reader, "claims");
  for (const auto& [simulator, value] : claims.items()) {
    if (!value.is_number()) reader.fail("claims", "a number for each simulator");
    point.claims[simulator] = value;
  }
  if (const Json* ids = reader.take("assumptions")) {
    if (!ids->is_array()) reader.fail("assumptions", "an array");
    for (const Json& id : *ids) {
      const auto found = id.is_string() ? shared.assumptions.find(id.get<std::string>()) : shared.assumptions.end();
      if (found == shared.assumptions.end()) reader.fail("assumptions", "ids of the file's assumptions");
      point.assumptions.push_back(*found);
    }
  }
  point.explanation = reader.text("explanation");
  if (point.explanation.empty()) point.explanation = shared.explanation;
  point.memory_explanation = reader.text("memory_explanation");
  point.not_predicted = reader.text("not_predicted");
  point.not_fitted = reader.text("not_fitted");
  if (point.not_fitted.empty()) point.not_fitted = point.quality == "C" ? "doubtful (quality C)" : shared.not_fitted;
  const Json own = object(reader, "scenario");
  if (point.not_predicted.empty()) {
    Json scenario = shared.scenario;
    scenario.merge_patch(own);
    write_out(scenario, "model", shared.models);
    write_out(scenario, "cluster", shared.clusters);
    point.scenario = std::make_shared<const Json>(std::move(scenario));
    if (point.value < 0 || (point.value == 0 && point.quantity != Quantity::fits))
      reader.fail("measured", "a positive value");
  }
  return point;
}

}  // namespace

std::string value_text(Quantity quantity, double value) {
  if (is_seconds(quantity)) return seconds_text(value);
  if (is_bytes(quantity)) return bytes_text(value);
  return value > 0 ? "fits" : "out of memory";
}

PublishedSource read_published(const nlohmann::json& document, const std::string& file) {
  PublishedSource result;
  result.name = std::filesystem::path(file).stem().string();
  JsonReader reader(document, {file, ""});
  if (reader.text("schema") != kSchema) reader.fail("schema", fmt::format("\"{}\"", kSchema));
  result.title = reader.text("title", true);
  const Json* source = reader.take("source");
  if (source == nullptr || !source->is_string()) reader.fail("source", "a text");
  result.source = *source;
  result.system = reader.text("system");
  result.composed = reader.text("composed");
  const Json claims = object(reader, "claims");
  for (const auto& [simulator, where] : claims.items())  // where its predictions were published: for readers
    if (!where.is_string()) reader.fail("claims", "a text for each simulator");
  reader.take("notes");
  const Shared shared{reader.text("explanation"), reader.text("not_fitted"),  object(reader, "assumptions"),
                      object(reader, "models"),   object(reader, "clusters"), object(reader, "scenario")};
  for (const auto& [id, sentence] : shared.assumptions.items())
    if (!sentence.is_string()) reader.fail("assumptions", "a text for each id");
  std::set<std::string> ids;
  reader.each("points", "an array", [&](JsonReader& point) {
    result.points.push_back(read_point(point, shared));
    if (!ids.insert(result.points.back().id).second) point.fail("id", "a unique id");
  });
  reader.finish();
  return result;
}

const std::vector<PublishedSource>& published_sources() {
  static const std::vector<PublishedSource> sources = [] {
    std::vector<PublishedSource> all;
    std::set<std::string> ids;
    for (const EmbeddedFile& file : embedded_files(kFolder)) {
      const std::string path(file.path);
      all.push_back(read_published(parse_json(file.text, path), path));
      for (const PublishedPoint& point : all.back().points)
        if (!ids.insert(point.id).second) throw InputError({path, ""}, point.id, "an id that no other file has");
    }
    return all;
  }();
  return sources;
}

const PublishedSource& source_of(const PublishedPoint& point) {
  for (const PublishedSource& source : published_sources())
    if (!source.points.empty() && &point >= source.points.data() &&
        &point < source.points.data() + source.points.size())
      return source;
  throw std::logic_error("a point of no published source");
}

const PublishedPoint* find_published(std::string_view id) {
  for (const PublishedSource& source : published_sources())
    for (const PublishedPoint& point : source.points)
      if (point.id == id) return &point;
  return nullptr;
}

}  // namespace orrery
