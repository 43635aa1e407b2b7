// Prices, power, sites, electricity grids, failure rates, storage and restarts: bundled figures
// (sim/planning/presets/*.json), each with its source and date. Names match in any letter case, and '-', '_' and ' '
// count as equal.
//
// PresetsOf<Preset>::read takes a preset's name, or an object: the fields of the struct and optionally "base", the
// preset that gives missing fields. It throws InputError for an unknown name or key (with the nearest known one), a
// rate below 0, and a missing figure. Figures that users write need no source.
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

// The members that every preset has.
struct Sourced {
  std::string name;    // of the preset; empty if the scenario writes the values itself
  std::string date;    // YYYY, YYYY-MM or YYYY-MM-DD
  std::string source;  // where the figure was read
};

// Price of a device per hour, including its share of the node, network and electricity unless Candidate says otherwise.
// A price without currency or date is refused: it could not be compared.
struct Price : Sourced {
  // Its presets' file in sim/planning/presets, and what messages call one.
  static constexpr std::string_view kFile = "prices", kWord = "price";
  std::string device;  // canonical (find_device); empty: any device
  std::string provider;
  PriceTerm term = PriceTerm::on_demand;
  double per_device_hour = 0;
  std::string currency;  // ISO 4217

  void visit_fields(FieldVisitor& v);
};

// Electric power of the computers, without that of the building.
struct Power : Sourced {
  static constexpr std::string_view kFile = "power", kWord = "power";
  std::string device;
  double busy_watts = 0;  // of a device while it trains; the preset's note says what of the node it includes
  double idle_watts = 0;  // the same while it waits; 0: not published
  double node_watts = 0;  // of a node beside its devices, at work or not

  // busy_watts if idle_watts is unknown: an upper bound.
  double waiting_watts() const { return idle_watts > 0 ? idle_watts : busy_watts; }
  void visit_fields(FieldVisitor& v);
};

// Energy of the site over energy of the computers in it (power usage effectiveness, ISO/IEC 30134-2).
struct SiteOverhead : Sourced {
  static constexpr std::string_view kFile = "pue", kWord = "PUE";
  double pue = 1;

  void visit_fields(FieldVisitor& v);
};

// Greenhouse gases of electricity, CO2-equivalent. Sources differ by a tenth in their basis; `basis` names it.
struct Grid : Sourced {
  static constexpr std::string_view kFile = "grids", kWord = "grid";
  double grams_per_kwh = 0;
  std::string basis;

  void visit_fields(FieldVisitor& v);
};

// How often a job is interrupted, for each node of 8 devices that it runs on.
struct FailureRate : Sourced {
  static constexpr std::string_view kFile = "failures", kWord = "failure-rate";
  double failures_per_node_day = 0;
  double repair_share = 1;  // share of failures after which the node is repaired; else it is used again

  void visit_fields(FieldVisitor& v);
};

// Rates for all nodes of a job together.
struct CheckpointStorage : Sourced {
  static constexpr std::string_view kFile = "storage", kWord = "storage";
  double write_bytes_per_second = 0;
  double read_bytes_per_second = 0;      // 0: as write
  double snapshot_bytes_per_second = 0;  // of the copy behind which training goes on; 0: it waits for the write

  void visit_fields(FieldVisitor& v);
};

// Time from a failure until training continues, without reading the checkpoint.
struct RestartOverhead : Sourced {
  static constexpr std::string_view kFile = "restarts", kWord = "restart";
  double detection_seconds = 0;  // until the failure is noticed
  double restart_seconds = 0;    // processes, communicators, first step

  void visit_fields(FieldVisitor& v);
};

// The presets of one kind: Price, Power, ... `find` takes a preset's name alone.
template <class Preset>
struct PresetsOf {
  static Preset read(const nlohmann::json& json, const InputError::Where& where);
  static Preset find(std::string_view name);
  static std::vector<std::string> names();  // canonical names, sorted
  static nlohmann::json written(Preset preset);
};

// The complete object, with the preset's name as "preset"; read() takes the remaining keys.
template <class Preset>
requires requires { Preset::kWord; }
auto to_json(const Preset& preset) { return PresetsOf<Preset>::written(preset); }

}  // namespace orrery
