#include "study/answers/inputs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "orrery_commit.h"  // written by cmake/commit.cmake
#include "sim/base/digest.h"
#include "sim/base/input_file.h"

namespace orrery {

nlohmann::ordered_json inputs_json(const nlohmann::json& document, const ScenarioSource& source,
                                   const std::vector<std::string>& calibrations) {
  return inputs_json("scenario", written_out(document, source), calibrations);
}

nlohmann::ordered_json inputs_json(const char* name, const nlohmann::json& asked,
                                   const std::vector<std::string>& calibrations) {
  const nlohmann::ordered_json all = InputsOfMany(calibrations).json(scenario_digest(asked));
  nlohmann::ordered_json inputs{{"digest", all["digest"]}, {name, asked}};
  inputs.update(all);
  return inputs;
}

InputCells input_cells(const nlohmann::json& document, const ScenarioSource& source,
                       const std::vector<std::string>& calibrations) {
  return InputsOfMany(calibrations).columns(scenario_digest(written_out(document, source)));
}

InputsOfMany::InputsOfMany(const std::vector<std::string>& calibrations) {
  for (const std::string& path : calibrations) {
    files_.push_back({path, digest_text(digest_of(read_file(path, "a readable JSON file")))});
    files_text_ += fmt::format("{}{} {}", files_text_.empty() ? "" : ", ", path, files_.back().digest);
  }
  if (files_.empty()) files_text_ = "bundled";
}

std::string InputsOfMany::digest(std::uint64_t scenario) const {
  for (const File& file : files_) scenario = digest_of(file.digest, scenario);
  return digest_text(scenario);
}

nlohmann::ordered_json InputsOfMany::json(std::optional<std::uint64_t> scenario) const {
  nlohmann::ordered_json inputs;
  if (scenario) inputs["digest"] = digest(*scenario);
  nlohmann::ordered_json& files = inputs["calibrations"] = nlohmann::ordered_json::array();
  for (const File& file : files_) files.push_back({{"file", file.path}, {"digest", file.digest}});
  if (*build_commit() != '\0') inputs["commit"] = build_commit();
  return inputs;
}

InputCells InputsOfMany::columns(std::optional<std::uint64_t> scenario) const {
  return {scenario ? digest(*scenario) : "", files_text_, ORRERY_VERSION, build_commit()};
}

const char* build_commit() { return ORRERY_COMMIT; }
const char* build_date() { return ORRERY_COMMIT_DATE; }
std::string version_and_commit() {
  std::string text = ORRERY_VERSION;
  if (*build_commit() != '\0') text += std::string(" ") + build_commit();
  return text;
}
const char* build_type() { return ORRERY_BUILD_TYPE; }

}  // namespace orrery
