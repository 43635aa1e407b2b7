#include "sim/planning/presets.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "sim/base/fields_json.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/preset_catalog.h"
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

bool is_number(std::string_view text, std::size_t digits, int least, int most) {
  if (text.size() != digits) return false;
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = 10 * value + (c - '0');
  }
  return value >= least && value <= most;
}

bool is_date(std::string_view text) {
  if (text.size() < 4 || !is_number(text.substr(0, 4), 4, 1990, 2999)) return false;
  if (text.size() == 4) return true;
  if (text.size() < 7 || text[4] != '-' || !is_number(text.substr(5, 2), 2, 1, 12)) return false;
  if (text.size() == 7) return true;
  return text.size() == 10 && text[7] == '-' && is_number(text.substr(8), 2, 1, 31);
}

bool is_currency(std::string_view text) {
  return text.size() == 3 && std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

void check_date(const JsonReader& reader, const std::string& date) {
  if (!date.empty() && !is_date(date)) reader.fail("date", "a date as 2026, 2026-05 or 2026-05-31");
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
  check_date(reader, power.date);
}

void check(const JsonReader& reader, SiteOverhead& site) {
  if (!reader.has("pue") && !reader.has("base")) reader.fail("pue", "the site's energy over that of its computers");
  check_date(reader, site.date);
}

void check(const JsonReader& reader, Grid& grid) {
  if (!reader.has("grams_per_kwh") && !reader.has("base"))
    reader.fail("grams_per_kwh", "the grams of CO2-equivalent of a kWh");
  check_date(reader, grid.date);
}

void check(const JsonReader& reader, FailureRate& rate) {
  if (!reader.has("failures_per_node_day") && !reader.has("base"))
    reader.fail("failures_per_node_day", "how often a node of 8 devices fails in a day");
  check_date(reader, rate.date);
}

void check(const JsonReader& reader, CheckpointStorage& storage) {
  if (storage.write_bytes_per_second <= 0)
    reader.fail("write_bytes_per_second", "the rate at which all nodes together write a checkpoint");
  check_date(reader, storage.date);
}

void check(const JsonReader& reader, RestartOverhead& restart) {
  if (!reader.has("restart_seconds") && !reader.has("base"))
    reader.fail("restart_seconds", "the seconds from the detection of a failure until training goes on");
  check_date(reader, restart.date);
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
Preset read_object(const Json& json, const InputError::Where& where, const PresetCatalog& catalog);

template <class Preset>
Preset of_name(const std::string& name, const InputError::Where& where, const PresetCatalog& catalog) {
  const PresetCatalog::Entry& entry = catalog.at(name, where);
  auto preset = read_object<Preset>(*entry.json, entry.where, catalog);
  preset.name = entry.name;
  return preset;
}

template <class Preset>
Preset read_object(const Json& json, const InputError::Where& where, const PresetCatalog& catalog) {
  JsonReader reader(json, where);
  Preset preset;
  if (const Json* base = reader.take("base")) {
    if (!base->is_string()) reader.fail("base", "the name of a preset");
    preset = of_name<Preset>(base->template get_ref<const std::string&>(), reader.at("base"), catalog);
    preset.name.clear();
  }
  preset.visit_fields(reader);
  reader.finish();
  if (reader.has("base") && has_figure(json)) {  // the user's own figure: not of that source and date
    if (!reader.has("source")) preset.source = "the plan, changed from " + json["base"].template get<std::string>();
    if (!reader.has("date")) preset.date.clear();
  }
  check(reader, preset);
  return preset;
}

template <class Preset>
Preset read(const Json& json, const InputError::Where& where, const PresetCatalog& catalog, const char* what) {
  if (json.is_string()) return of_name<Preset>(json.get_ref<const std::string&>(), where, catalog);
  if (!json.is_object())
    throw InputError(where, describe(json), std::string("the name of a ") + what + " preset, or an object");
  return read_object<Preset>(json, where, catalog);
}

template <class Preset>
Json written(Preset preset) {  // a copy, because tables of fields take references
  Json json;
  FieldsJson writer(json);
  preset.visit_fields(writer);
  if (!preset.name.empty()) json["preset"] = preset.name;
  return json;
}

const PresetCatalog& price_catalog() {
  static const PresetCatalog catalog("sim/planning/presets/prices", "the name of a price preset");
  return catalog;
}
const PresetCatalog& power_catalog() {
  static const PresetCatalog catalog("sim/planning/presets/power", "the name of a power preset");
  return catalog;
}
const PresetCatalog& site_overhead_catalog() {
  static const PresetCatalog catalog("sim/planning/presets/pue", "the name of a PUE preset");
  return catalog;
}
const PresetCatalog& grid_catalog() {
  static const PresetCatalog catalog("sim/planning/presets/grids", "the name of a grid preset");
  return catalog;
}
const PresetCatalog& failure_rate_catalog() {
  static const PresetCatalog catalog("sim/planning/presets/failures", "the name of a failure-rate preset");
  return catalog;
}
const PresetCatalog& checkpoint_storage_catalog() {
  static const PresetCatalog catalog("sim/planning/presets/storage", "the name of a storage preset");
  return catalog;
}
const PresetCatalog& restart_overhead_catalog() {
  static const PresetCatalog catalog("sim/planning/presets/restarts", "the name of a restart preset");
  return catalog;
}

}  // namespace

void Price::visit_fields(FieldVisitor& v) {
  v.field("device", device, "device preset that the price is for");
  v.field("provider", provider, "provider that asks this price");
  v.field("term", term, kPriceTermNames, "length of the commitment");
  v.field("per_device_hour", per_device_hour, kAmount, "price of a device for an hour");
  v.field("currency", currency, "ISO 4217: USD, EUR");
  v.field("date", date, "date of the price: 2026, 2026-05 or 2026-05-31");
  v.field("source", source, "where the figure was read");
}

void Power::visit_fields(FieldVisitor& v) {
  v.field("device", device, "device preset that the power is for");
  v.field("busy_watts", busy_watts, kAmount, "power of a device while it trains");
  v.field("idle_watts", idle_watts, kAmount, "power of an idle device; 0: not known, busy_watts is used");
  v.field("node_watts", node_watts, kAmount, "power of a node without its devices");
  v.field("date", date, "date of the figure");
  v.field("source", source, "where the figure was read");
}

void SiteOverhead::visit_fields(FieldVisitor& v) {
  v.field("pue", pue, NumberRange{.least = 1, .most = 10}, "energy of the site divided by that of its computers");
  v.field("date", date, "date of the figure");
  v.field("source", source, "where the figure was read");
}

void Grid::visit_fields(FieldVisitor& v) {
  v.field("grams_per_kwh", grams_per_kwh, NumberRange{.least = 0, .most = 5000}, "grams of CO2-equivalent per kWh");
  v.field("basis", basis, "what is counted: lifecycle or direct, by location or by market");
  v.field("date", date, "date of the figure");
  v.field("source", source, "where the figure was read");
}

void FailureRate::visit_fields(FieldVisitor& v) {
  v.field("failures_per_node_day", failures_per_node_day, kNodeFailures, "interruptions per node of 8 devices and day");
  v.field("repair_share", repair_share, kShare, "share of interruptions after which the node is repaired");
  v.field("date", date, "date of the figure");
  v.field("source", source, "where the figure was read");
}

void CheckpointStorage::visit_fields(FieldVisitor& v) {
  v.field("write_bytes_per_second", write_bytes_per_second, kBandwidth, "write rate of all nodes together");
  v.field("read_bytes_per_second", read_bytes_per_second, or_none(kBandwidth),
          "read rate of all nodes together; 0: the write rate");
  v.field(
      "snapshot_bytes_per_second", snapshot_bytes_per_second, or_none(kBandwidth),
      "rate of the copy to memory, from which the write continues during training; 0: training waits for the write");
  v.field("date", date, "date of the figure");
  v.field("source", source, "where the figure was read");
}

void RestartOverhead::visit_fields(FieldVisitor& v) {
  v.field("detection_seconds", detection_seconds, kDuration, "time from a failure to its detection");
  v.field("restart_seconds", restart_seconds, kDuration,
          "time from detection until training goes on, without reading the checkpoint");
  v.field("date", date, "date of the figure");
  v.field("source", source, "where the figure was read");
}

Price read_price(const Json& json, const InputError::Where& where) {
  return read<Price>(json, where, price_catalog(), "price");
}
Power read_power(const Json& json, const InputError::Where& where) {
  return read<Power>(json, where, power_catalog(), "power");
}
SiteOverhead read_site_overhead(const Json& json, const InputError::Where& where) {
  return read<SiteOverhead>(json, where, site_overhead_catalog(), "PUE");
}
Grid read_grid(const Json& json, const InputError::Where& where) {
  return read<Grid>(json, where, grid_catalog(), "grid");
}
FailureRate read_failure_rate(const Json& json, const InputError::Where& where) {
  return read<FailureRate>(json, where, failure_rate_catalog(), "failure-rate");
}
CheckpointStorage read_checkpoint_storage(const Json& json, const InputError::Where& where) {
  return read<CheckpointStorage>(json, where, checkpoint_storage_catalog(), "storage");
}
RestartOverhead read_restart_overhead(const Json& json, const InputError::Where& where) {
  return read<RestartOverhead>(json, where, restart_overhead_catalog(), "restart");
}

Price find_price(std::string_view name) { return read_price(std::string(name), {}); }
Power find_power(std::string_view name) { return read_power(std::string(name), {}); }
SiteOverhead find_site_overhead(std::string_view name) { return read_site_overhead(std::string(name), {}); }
Grid find_grid(std::string_view name) { return read_grid(std::string(name), {}); }
FailureRate find_failure_rate(std::string_view name) { return read_failure_rate(std::string(name), {}); }
CheckpointStorage find_checkpoint_storage(std::string_view name) {
  return read_checkpoint_storage(std::string(name), {});
}
RestartOverhead find_restart_overhead(std::string_view name) { return read_restart_overhead(std::string(name), {}); }

Json to_json(const Price& price) { return written(price); }
Json to_json(const Power& power) { return written(power); }
Json to_json(const SiteOverhead& site) { return written(site); }
Json to_json(const Grid& grid) { return written(grid); }
Json to_json(const FailureRate& rate) { return written(rate); }
Json to_json(const CheckpointStorage& storage) { return written(storage); }
Json to_json(const RestartOverhead& restarts) { return written(restarts); }

std::vector<std::string> price_names() { return price_catalog().names(); }
std::vector<std::string> power_names() { return power_catalog().names(); }
std::vector<std::string> site_overhead_names() { return site_overhead_catalog().names(); }
std::vector<std::string> grid_names() { return grid_catalog().names(); }
std::vector<std::string> failure_rate_names() { return failure_rate_catalog().names(); }
std::vector<std::string> checkpoint_storage_names() { return checkpoint_storage_catalog().names(); }
std::vector<std::string> restart_overhead_names() { return restart_overhead_catalog().names(); }

}  // namespace orrery
