#include "cli/inputs.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/bench_commit.h"
#include "sim/base/input_file.h"

namespace orrery {
namespace {

// FNV-1a of 64 bits: tells inputs apart, and is no protection from anybody.
std::uint64_t digest_of(std::string_view text, std::uint64_t digest = 0xcbf29ce484222325) {
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

std::string text_of(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace

nlohmann::ordered_json inputs_json(const nlohmann::json& document, const ScenarioSource& source,
                                   const std::vector<std::string>& calibrations) {
  return inputs_json("scenario", written_out(document, source), calibrations);
}

nlohmann::ordered_json inputs_json(const char* name, const nlohmann::json& asked,
                                   const std::vector<std::string>& calibrations) {
  std::uint64_t digest = digest_of(asked.dump());
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const std::string& path : calibrations) {
    const std::string text = read_file(path, "a readable JSON file");
    digest = digest_of(text, digest);
    files.push_back({{"file", path}, {"digest", text_of(digest_of(text))}});
  }
  nlohmann::ordered_json inputs{{"digest", text_of(digest)}, {name, asked}, {"calibrations", std::move(files)}};
  if (*build_commit() != '\0') inputs["commit"] = build_commit();
  return inputs;
}

}  // namespace orrery
