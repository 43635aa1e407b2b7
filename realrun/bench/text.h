// Texts that several reports of benchmarks share.
#pragma once

#include <string>
#include <string_view>

namespace orrery::bench {

std::string change_text(double ratio);  // "+4.8 %"
// The name without what Google Benchmark appends about the kind of time.
std::string_view kernel_name(std::string_view benchmark);

}  // namespace orrery::bench
