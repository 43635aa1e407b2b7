// Sizes as users write them.
#pragma once

#include <optional>
#include <string_view>

namespace orrery {

// "8", "64M", "70.5GiB", "8g": bytes, in powers of 1024 as nccl-tests reads them. None where that is no size ("8GB" may
// mean powers of 1000), or one outside 1 byte to 1 PiB (sums of whole counts up to there are exact).
std::optional<double> bytes_of_text(std::string_view text);

}  // namespace orrery
