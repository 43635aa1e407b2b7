// Parsers for single-word arguments: sizes, shares, lists.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

// Bytes from "8", "64M", "70.5GiB", "8g", in powers of 1024 as in nccl-tests. Nothing if the text is not a size ("8GB"
// may mean powers of 1000) or lies outside 1 byte to 1 PiB (up to there, sums of whole counts are exact).
std::optional<double> bytes_of_text(std::string_view text);

// A share from "5%" or "0.05", not below 0. Throws InputError for other text; `option` names where it was given.
double share_of_text(std::string_view text, const char* option);

// The parts of "a,b" between commas, without surrounding blanks; "" has one part, which is empty.
std::vector<std::string> list_of_text(std::string_view text);

}  // namespace orrery
