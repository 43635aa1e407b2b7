// Context parallelism in which each rank gathers the keys and values of all ranks before attention (Llama 3, arXiv
// 2407.21783, section 3.3.2; Megatron-Core's cp_comm_type all_gather).
#pragma once

#include <array>
#include <string_view>

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::all_gather_context {

// Values of context_parallel_type: the first is Megatron-Core's name, the second Transformer Engine's.
inline constexpr std::array<std::string_view, 2> kTypes{"all_gather", "allgather"};

void check(const Scenario& scenario);
void add_digits(const Scenario& scenario, Mesh& mesh);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
std::span<const PlanWord> words();

}  // namespace orrery::all_gather_context
