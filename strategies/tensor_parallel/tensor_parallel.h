// Megatron-LM tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053) and sequence parallelism (Korthikanti et al.
// 2022, arXiv 2205.05198), as a partitioning pass: dimensions along the heads, the MLP's inner width and the vocabulary
// are divided over the tensor-parallel ranks; a product that contracts a divided dimension yields a partial sum, which
// is all-reduced, or with sequence parallelism reduce-scattered along the sequence; a product that needs a
// sequence-sharded input gathers it first. Which layer is column- and which row-parallel follows from the shapes.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::tensor_parallel {

void check(const Scenario& scenario);
// Adds one digit; or two if there are fewer key/value heads than ranks: neighbouring ranks share a head ("tp.shared"),
// and "tp.groups" divides the heads.
void add_digits(const Scenario& scenario, Mesh& mesh);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
void disable(Plan& plan);
std::int64_t ranks(const Plan& plan);
std::span<const PlanWord> words();
void check_runnable(const Scenario& scenario);
std::span<const SearchAxis> search_axes();

}  // namespace orrery::tensor_parallel
