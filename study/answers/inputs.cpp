#include "study/answers/inputs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "orrery_commit.h"  // written by cmake/commit.cmake
#include "sim/base/digest.h"
#include "sim/base/input_file.h"

namespace orrery {
namespace {

enum InputColumn : std::size_t { kDigest, kCalibrations, kVersion, kCommit };

}  // namespace

nlohmann::ordered_json inputs_json(const nlohmann::json& document, const ScenarioSource& source,
                                   const std::vector<std::string>& calibrations) {
  return inputs_json("scenario", written_out(document, source), calibrations);
}

nlohmann::ordered_json inputs_json(const char* name, const nlohmann::json& asked,
                                   const std::vector<std::string>& calibrations) {
  const InputsOfMany of(calibrations);
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const InputsOfMany::File& file : of.files_) files.push_back({{"file", file.path}, {"digest", file.digest}});
  nlohmann::ordered_json inputs{
      {"digest", of.digest(scenario_digest(asked))}, {name, asked}, {"calibrations", std::move(files)}};
  if (*build_commit() != '\0') inputs["commit"] = build_commit();
  return inputs;
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

void InputsOfMany::write_json(std::optional<std::uint64_t> scenario, JsonWriter& writer) const {
  writer.begin_object();
  if (scenario) writer.field("digest", std::string_view(digest(*scenario)));
  writer.key("calibrations");
  writer.begin_array();
  for (const File& file : files_) {
    writer.begin_object();
    writer.field("file", std::string_view(file.path));
    writer.field("digest", std::string_view(file.digest));
    writer.end_object();
  }
  writer.end_array();
  if (*build_commit() != '\0') writer.field("commit", build_commit());
  writer.end_object();
}

std::string_view InputsOfMany::column(std::size_t index, std::optional<std::uint64_t> scenario) {
  switch (static_cast<InputColumn>(index)) {
    case kDigest:
      digest_ = scenario ? digest(*scenario) : "";
      return digest_;
    case kCalibrations:
      return files_text_;
    case kVersion:
      return ORRERY_VERSION;
    case kCommit:
      return build_commit();
  }
  return "";
}

std::vector<std::string> InputsOfMany::columns(std::uint64_t scenario) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < kInputColumns.size(); ++i) all.emplace_back(column(i, scenario));
  return all;
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
