// Prices, power, sites, electricity grids, failure rates, storage and restarts: bundled figures
// (sim/planning/presets/*.json), each with its source and date. Names match in any letter case, and '-', '_' and ' '
// count as equal.
//
// Each reader takes a preset's name, or an object: the fields of the struct and optionally "base", the preset that
// gives missing fields. It throws InputError for an unknown name or key (with the nearest known one), a rate below 0,
// and a missing figure. Figures that users write need no source.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/fields.h"

namespace orrery {

enum class PriceTerm : std::uint8_t { on_demand, one_year, three_year, reserved, spot };
inline constexpr std::array<std::string_view, 5> kPriceTermNames{"on-demand", "one-year", "three-year", "reserved",
                                                                 "spot"};

// Price of a device per hour, including its share of the node, network and electricity unless Candidate says otherwise.
// A price without currency or date is refused: it could not be compared.
struct Price {
  std::string name;    // of the preset; empty if the scenario writes the values itself
  std::string device;  // canonical (find_device); empty: any device
  std::string provider;
  PriceTerm term = PriceTerm::on_demand;
  double per_device_hour = 0;
  std::string currency;  // ISO 4217
  std::string date;      // YYYY, YYYY-MM or YYYY-MM-DD
  std::string source;

  void visit_fields(FieldVisitor& v);
};

// Electric power of the computers, without that of the building.
struct Power {
  std::string name, device;
  double busy_watts = 0;  // of a device while it trains; the preset's note says what of the node it includes
  double idle_watts = 0;  // the same while it waits; 0: not published
  double node_watts = 0;  // of a node beside its devices, at work or not
  std::string date, source;

  // busy_watts if idle_watts is unknown: an upper bound.
  double waiting_watts() const { return idle_watts > 0 ? idle_watts : busy_watts; }
  void visit_fields(FieldVisitor& v);
};

// Energy of the site over energy of the computers in it (power usage effectiveness, ISO/IEC 30134-2).
struct SiteOverhead {
  std::string name;
  double pue = 1;
  std::string date, source;

  void visit_fields(FieldVisitor& v);
};

// Greenhouse gases of electricity, CO2-equivalent. Sources differ by a tenth in their basis; `basis` names it.
struct Grid {
  std::string name;
  double grams_per_kwh = 0;
  std::string basis, date, source;

  void visit_fields(FieldVisitor& v);
};

// How often a job is interrupted, for each node of 8 devices that it runs on.
struct FailureRate {
  std::string name;
  double failures_per_node_day = 0;
  double repair_share = 1;  // share of failures after which the node is repaired; else it is used again
  std::string date, source;

  void visit_fields(FieldVisitor& v);
};

// Rates for all nodes of a job together.
struct CheckpointStorage {
  std::string name;
  double write_bytes_per_second = 0;
  double read_bytes_per_second = 0;      // 0: as write
  double snapshot_bytes_per_second = 0;  // of the copy behind which training goes on; 0: it waits for the write
  std::string date, source;

  void visit_fields(FieldVisitor& v);
};

// Time from a failure until training continues, without reading the checkpoint.
struct RestartOverhead {
  std::string name;
  double detection_seconds = 0;  // until the failure is noticed
  double restart_seconds = 0;    // processes, communicators, first step
  std::string date, source;

  void visit_fields(FieldVisitor& v);
};

Price read_price(const nlohmann::json& json, const InputError::Where& where);
Power read_power(const nlohmann::json& json, const InputError::Where& where);
SiteOverhead read_site_overhead(const nlohmann::json& json, const InputError::Where& where);
Grid read_grid(const nlohmann::json& json, const InputError::Where& where);
FailureRate read_failure_rate(const nlohmann::json& json, const InputError::Where& where);
CheckpointStorage read_checkpoint_storage(const nlohmann::json& json, const InputError::Where& where);
RestartOverhead read_restart_overhead(const nlohmann::json& json, const InputError::Where& where);

Price find_price(std::string_view name);
Power find_power(std::string_view name);
SiteOverhead find_site_overhead(std::string_view name);
Grid find_grid(std::string_view name);
FailureRate find_failure_rate(std::string_view name);
CheckpointStorage find_checkpoint_storage(std::string_view name);
RestartOverhead find_restart_overhead(std::string_view name);

// The complete object, with the preset's name as "preset"; each reader takes the remaining keys.
nlohmann::json to_json(const Price& price);
nlohmann::json to_json(const Power& power);
nlohmann::json to_json(const SiteOverhead& site);
nlohmann::json to_json(const Grid& grid);
nlohmann::json to_json(const FailureRate& rate);
nlohmann::json to_json(const CheckpointStorage& storage);
nlohmann::json to_json(const RestartOverhead& restarts);

// Canonical names, sorted.
std::vector<std::string> price_names();
std::vector<std::string> power_names();
std::vector<std::string> site_overhead_names();
std::vector<std::string> grid_names();
std::vector<std::string> failure_rate_names();
std::vector<std::string> checkpoint_storage_names();
std::vector<std::string> restart_overhead_names();

}  // namespace orrery
