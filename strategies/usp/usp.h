// Context parallelism by ranks that trade sequence positions for heads around attention (DeepSpeed-Ulysses: Jacobs et
// al. 2023, arXiv 2309.14509), optionally with such groups arranged in rings (USP: Fang & Zhao 2024, arXiv 2405.07719).
#pragma once

#include <array>
#include <string_view>

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::usp {

// Values of context_parallel_type; a2a and a2a+p2p are Megatron-Core's names.
inline constexpr std::array<std::string_view, 4> kTypes{"ulysses", "a2a", "usp", "a2a+p2p"};

}  // namespace orrery::usp
