#include "realrun/bench/text.h"

#include <fmt/format.h>

#include "realrun/bench/machine_state.h"
#include "sim/report/format.h"

namespace orrery::bench {

std::string change_text(double ratio) { return signed_percent_text(ratio - 1); }

std::string p_text(double p) { return p < 1e-3 ? fmt::format("{:.0e}", p) : fmt::format("{:.3f}", p); }

std::string line_text(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = byte < 0x20 || byte == 0x7f;
    line += c == '\n' ? ' ' : is_control ? '?' : c;
  }
  return line;
}

std::string markdown_text(std::string_view text) {
  constexpr std::string_view kMarkup = "\\`*[]|";
  std::string out;
  for (const char c : line_text(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      if (kMarkup.find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string set_aside_text(std::size_t set_aside, std::size_t repetitions) {
  return fmt::format(
      "{} of {} repetitions are ignored: the machine was busy with other work, and a yardstick was more than {:g} % "
      "(memory: {:g} %) above its usual value",
      set_aside, repetitions, kPercent * kDisturbance[0], kPercent * kDisturbance[1]);
}

std::string_view kernel_name(std::string_view benchmark) {
  for (const std::string_view suffix : {"/real_time", "/manual_time"})
    if (benchmark.ends_with(suffix)) benchmark.remove_suffix(suffix.size());
  return benchmark;
}

}  // namespace orrery::bench
