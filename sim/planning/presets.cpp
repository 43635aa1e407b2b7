#include "sim/planning/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Far above any real value, and small enough for products to stay finite.
constexpr NumberRange kAmount{.least = 0, .most = 1e9};
constexpr NumberRange kBandwidth{.least = 1, .most = 1e18};
constexpr NumberRange kShare{.least = 0, .most = 1};
constexpr NumberRange kDuration{.least = 0, .most = 1e9};
constexpr NumberRange kNodeFailures{.least = 0, .most = 1e6};

bool is_date(const std::string& text) {
  static const std::regex form("(199[0-9]|2[0-9]{3})(-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?)?");
  return std::regex_match(text, form);
}

bool is_currency(std::string_view text) {
  return text.size() == 3 && std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

void require(const JsonReader& reader, const char* figure, const char* expected) {
  if (!reader.has(figure) && !reader.has("base")) reader.fail(figure, expected);
}

void check_device(const JsonReader& reader, std::string& device) {
  if (!device.empty()) device = find_device(device, reader.at("device")).name;
}

void check(const JsonReader& reader, Price& price) {
  if (price.per_device_hour == 0 && !reader.has("per_device_hour"))
    reader.fail("per_device_hour", "the price of a device for an hour");
  if (!is_currency(price.currency)) reader.fail("currency", "the price's currency, three letters of ISO 4217 as USD");
  if (!is_date(price.date)) reader.fail("date", "the day of the price as 2026, 2026-05 or 2026-05-31");
  check_device(reader, price.device);
}

void check(const JsonReader& reader, Power& power) {
  if (power.busy_watts <= 0) reader.fail("busy_watts", "the power of a device that trains");
  if (power.idle_watts > power.busy_watts) reader.fail("idle_watts", "at most busy_watts");
  check_device(reader, power.device);
}

void check(const JsonReader& reader, SiteOverhead&) {
  require(reader, "pue", "the site's energy over that of its computers");
}

void check(const JsonReader& reader, Grid&) {
  require(reader, "grams_per_kwh", "the grams of CO2-equivalent of a kWh");
}

void check(const JsonReader& reader, FailureRate&) {
  require(reader, "failures_per_node_day", "how often a node of 8 devices fails in a day");
}

void check(const JsonReader& reader, CheckpointStorage& storage) {
  if (storage.write_bytes_per_second <= 0)
    reader.fail("write_bytes_per_second", "the rate at which all nodes together write a checkpoint");
}

void check(const JsonReader& reader, RestartOverhead&) {
  require(reader, "restart_seconds", "the seconds from the detection of a failure until training goes on");
}

// Whether a preset has a figure, besides the keys that identify it.
bool has_figure(const Json& preset) {
  constexpr std::array<std::string_view, 7> kOfWhat{"base", "device", "provider", "term", "basis", "date", "source"};
  const auto items = preset.items();
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    return std::find(kOfWhat.begin(), kOfWhat.end(), item.key()) == kOfWhat.end();
  });
}

template <class Preset>
void visit(Preset& preset, FieldVisitor& v) {
  preset.visit_fields(v);
  v.field("date", preset.date, "date of the figure: 2026, 2026-05 or 2026-05-31");
  v.field("source", preset.source, "where the figure was read");
}

template <class Preset>
const PresetCatalog& catalog() {
  static const PresetCatalog all(fmt::format("sim/planning/presets/{}", Preset::kFile),
                                 fmt::format("the name of a {} preset", Preset::kWord));
  return all;
}

template <class Preset>
Preset read_object(const Json& json, const InputError::Where& where);

template <class Preset>
Preset of_name(const std::string& name, const InputError::Where& where) {
  const PresetCatalog::Entry& entry = catalog<Preset>().at(name, where);
  auto preset = read_object<Preset>(*entry.json, entry.where);
  preset.name = entry.name;
  return preset;
}

template <class Preset>
Preset read_object(const Json& json, const InputError::Where& where) {
  JsonReader reader(json, where);
  Preset preset;
  if (const Json* base = reader.take("base")) {
    if (!base->is_string()) reader.fail("base", "the name of a preset");
    preset = of_name<Preset>(base->template get_ref<const std::string&>(), reader.at("base"));
    preset.name.clear();
  }
  visit(preset, reader);
  reader.finish();
  if (reader.has("base") && has_figure(json)) {  // the user's own figure: not of that source and date
    if (!reader.has("source")) preset.source = "the plan, changed from " + json["base"].template get<std::string>();
    if (!reader.has("date")) preset.date.clear();
  }
  check(reader, preset);
  if (!preset.date.empty() && !is_date(preset.date)) reader.fail("date", "a date as 2026, 2026-05 or 2026-05-31");
  return preset;
}

}  // namespace

void Price::visit_fields(FieldVisitor& v) {
  v.field("device", device, "device preset that the price is for");
  v.field("provider", provider, "provider that asks this price");
  v.field("term", term, kPriceTermNames, "length of the commitment");
  v.field("per_device_hour", per_device_hour, kAmount, "price of a device for an hour");
  v.field("currency", currency, "ISO 4217: USD, EUR");
}

void Power::visit_fields(FieldVisitor& v) {
  v.field("device", device, "device preset that the power is for");
  v.field("busy_watts", busy_watts, kAmount, "power of a device while it trains");
  v.field("idle_watts", idle_watts, kAmount, "power of an idle device; 0: not known, busy_watts is used");
  v.field("node_watts", node_watts, kAmount, "power of a node without its devices");
}

void SiteOverhead::visit_fields(FieldVisitor& v) {
  v.field("pue", pue, NumberRange{.least = 1, .most = 10}, "energy of the site divided by that of its computers");
}

void Grid::visit_fields(FieldVisitor& v) {
  v.field("grams_per_kwh", grams_per_kwh, NumberRange{.least = 0, .most = 5000}, "grams of CO2-equivalent per kWh");
  v.field("basis", basis, "what is counted: lifecycle or direct, by location or by market");
}

void FailureRate::visit_fields(FieldVisitor& v) {
  v.field("failures_per_node_day", failures_per_node_day, kNodeFailures, "interruptions per node of 8 devices and day");
  v.field("repair_share", repair_share, kShare, "share of interruptions after which the node is repaired");
}

void CheckpointStorage::visit_fields(FieldVisitor& v) {
  v.field("write_bytes_per_second", write_bytes_per_second, kBandwidth, "write rate of all nodes together");
  v.field("read_bytes_per_second", read_bytes_per_second, or_none(kBandwidth),
          "read rate of all nodes together; 0: the write rate");
  v.field(
      "snapshot_bytes_per_second", snapshot_bytes_per_second, or_none(kBandwidth),
      "rate of the copy to memory, from which the write continues during training; 0: training waits for the write");
}

void RestartOverhead::visit_fields(FieldVisitor& v) {
  v.field("detection_seconds", detection_seconds, kDuration, "time from a failure to its detection");
  v.field("restart_seconds", restart_seconds, kDuration,
          "time from detection until training goes on, without reading the checkpoint");
}

template <class Preset>
Preset PresetsOf<Preset>::read(const Json& json, const InputError::Where& where) {
  if (json.is_string()) return of_name<Preset>(json.get_ref<const std::string&>(), where);
  if (!json.is_object())
    throw InputError(where, describe(json), fmt::format("the name of a {} preset, or an object", Preset::kWord));
  return read_object<Preset>(json, where);
}

template <class Preset>
Preset PresetsOf<Preset>::find(std::string_view name) {
  return of_name<Preset>(std::string(name), {});
}

template <class Preset>
Json PresetsOf<Preset>::written(Preset preset) {
  Json json = visited_json([&](FieldVisitor& v) { visit(preset, v); });
  if (!preset.name.empty()) json["preset"] = preset.name;
  return json;
}

template <class Preset>
std::vector<std::string> PresetsOf<Preset>::names() {
  return catalog<Preset>().names();
}

template struct PresetsOf<Price>;
template struct PresetsOf<Power>;
template struct PresetsOf<SiteOverhead>;
template struct PresetsOf<Grid>;
template struct PresetsOf<FailureRate>;
template struct PresetsOf<CheckpointStorage>;
template struct PresetsOf<RestartOverhead>;

}  // namespace orrery
