// FSMoE's schedules, and those it is compared with, as Programs (Pan et al. 2025, arXiv 2501.10714, figure 3). The ops
// that expert_parallel has placed between permute and unpermute are cut along the slots into chunks:
//
//   rows        [experts, slots, ..] become [experts, chunks, slots / chunks, ..]
//   one chunk   dispatch, all_gather, experts, reduce_scatter, combine, on views of these
//   streams     all-to-alls run on expert_communication. Gathers and scatters of expert_tensor_parallel run on the same
//               stream or, with fsmoe, on expert_tensor_communication. Each waits for its data only, not for other
//               kernels.
//
// Forward and backward may have different numbers of chunks; one must divide the other. Slots are rounded up to a
// multiple of the larger number. On each stream all chunks are dispatched before the first one comes back, which is
// best if the layer waits for this stream (PipeMoE, section 4). The plan gives the degrees; degree.h computes those
// that FSMoE would choose.
#pragma once

#include "sim/program/program.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/strategy.h"

namespace orrery::fsmoe {

void check(const Scenario& scenario);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
// Splits the gradients of non-expert parameters into pieces (moe_gradient_share_experts, moe_gradient_share_dense).
void shard(const Scenario& scenario, const Plan& plan, const Mesh& mesh, data_parallel::Sharding& sharding);
void disable(Plan& plan);
void check_runnable(const Scenario& scenario);
std::span<const SearchAxis> search_axes();

}  // namespace orrery::fsmoe
