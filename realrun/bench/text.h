// Text fragments that several benchmark reports share.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orrery::bench {

std::string change_text(double ratio);  // "+4.8 %"
std::string p_text(double p);           // "0.042", "3e-07"
// For one line of a terminal: replaces a newline by a blank, and other control characters by '?'.
std::string line_text(std::string_view text);
// For a cell or a line of GitHub's Markdown: escapes markup, HTML and ends of cells.
std::string markdown_text(std::string_view text);
// Returns "12 of 300 repetitions are set aside: ..." (machine_state.h).
std::string set_aside_text(std::size_t set_aside, std::size_t repetitions);
// Returns the name without Google Benchmark's suffix for the kind of time.
std::string_view kernel_name(std::string_view benchmark);

}  // namespace orrery::bench
