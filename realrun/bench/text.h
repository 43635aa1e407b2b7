// Texts that several reports of benchmarks share.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orrery::bench {

std::string change_text(double ratio);  // "+4.8 %"
std::string p_text(double p);               // "0.042", "3e-07"
// For a line of a terminal: a blank for a line's end, '?' for what else would act on it.
std::string line_text(std::string_view text);
// For a cell or a line of GitHub's Markdown: nothing in it is markup, HTML or the end of a cell.
std::string markdown_text(std::string_view text);
// "12 of 300 repetitions are set aside: ..." (machine_state.h)
std::string set_aside_text(std::size_t set_aside, std::size_t repetitions);
// The name without what Google Benchmark appends about the kind of time.
std::string_view kernel_name(std::string_view benchmark);

}  // namespace orrery::bench
