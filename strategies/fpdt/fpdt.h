// FPDT: long sequences in chunks. Ulysses' exchanges, online attention, MLP and loss run chunk by chunk, and chunks
// wait in host memory between their uses (also called Ulysses-Offload: Yao et al. 2024, arXiv 2408.16978;
// deepspeed/sequence/fpdt_layer.py).
#pragma once

#include <array>
#include <string_view>

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::fpdt {

// Values of context_parallel_type.
inline constexpr std::array<std::string_view, 1> kTypes{"fpdt"};

void check(const Scenario& scenario);
void add_digits(const Scenario& scenario, Mesh& mesh);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
void disable(Plan& plan);
std::span<const PlanWord> words();

}  // namespace orrery::fpdt
