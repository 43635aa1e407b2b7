// The inputs of a result: they distinguish results, and results can be made again from them. And the commit and build
// type of the program that makes it.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strategies/read_scenario.h"

namespace orrery {

// { "digest", "scenario", "calibrations": [{ "file", "digest" }], "commit" }: the complete scenario, which any command
// accepts, the user's calibrations, and a digest of both; "commit" if it is known. REQUIRES: `document` and the
// calibrations have been read.
nlohmann::ordered_json inputs_json(const nlohmann::json& document, const ScenarioSource& source,
                                   const std::vector<std::string>& calibrations);
// The same for inputs that are not a scenario: the key `name` instead of "scenario", with the value `asked`.
nlohmann::ordered_json inputs_json(const char* name, const nlohmann::json& asked,
                                   const std::vector<std::string>& calibrations);

// CSV columns that follow the report's: the digest of inputs_json(), the user's calibrations ("FILE DIGEST", or
// "bundled"), and the program's version and commit.
inline constexpr std::array<std::string_view, 4> kInputColumns{"digest", "calibrations", "version", "commit"};
using InputCells = std::array<std::string, kInputColumns.size()>;

// The cells of these columns for one scenario.
InputCells input_cells(const nlohmann::json& document, const ScenarioSource& source,
                       const std::vector<std::string>& calibrations);

// The same for many results with one set of calibrations.
class InputsOfMany {
 public:
  // REQUIRES: the calibrations have been read.
  explicit InputsOfMany(const std::vector<std::string>& calibrations);

  // inputs_json() without the scenario, and kInputColumns. Both take the scenario's digest
  // (strategies/read_scenario.h); nullopt: the scenario could not be read.
  nlohmann::ordered_json json(std::optional<std::uint64_t> scenario) const;
  InputCells columns(std::optional<std::uint64_t> scenario) const;

 private:
  struct File {
    std::string path, digest;
  };
  std::vector<File> files_;
  std::string files_text_;

  std::string digest(std::uint64_t scenario) const;
};

// ---- the program

// The git commit, followed by "+" if files differed from it; empty if there was none.
const char* build_commit();
// The day of the commit, YYYY-MM-DD; empty if there was none.
const char* build_date();
// The version followed by the commit.
std::string version_and_commit();
// CMake's build type: "Release", "Debug"; empty if none was chosen.
const char* build_type();

}  // namespace orrery
