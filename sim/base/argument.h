// What users write in one word: sizes, shares, lists.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

// "8", "64M", "70.5GiB", "8g": bytes, in powers of 1024 as nccl-tests reads them. None where that is no size ("8GB" may
// mean powers of 1000), or one outside 1 byte to 1 PiB (sums of whole counts up to there are exact).
std::optional<double> bytes_of_text(std::string_view text);

// "5%" or "0.05": a share, not below 0. Throws InputError where that is none; `option`: where it was given.
double share_of_text(std::string_view text, const char* option);

// "a,b": what is between commas, without the blanks around it; of "" one that is empty.
std::vector<std::string> list_of_text(std::string_view text);

}  // namespace orrery
