#include "realrun/bench/text.h"

#include "sim/report/format.h"

namespace orrery::bench {

std::string change_text(double ratio) { return signed_percent_text(ratio - 1); }

std::string_view kernel_name(std::string_view benchmark) {
  for (const std::string_view suffix : {"/real_time", "/manual_time"})
    if (benchmark.ends_with(suffix)) benchmark.remove_suffix(suffix.size());
  return benchmark;
}

}  // namespace orrery::bench
