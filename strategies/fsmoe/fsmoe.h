// FSMoE's schedules, and those it is compared with, as Programs (Pan et al. 2025, arXiv 2501.10714, figure 3). What
// expert_parallel has laid out between permute and unpermute is cut along the slots into chunks:
//
//   rows                 [experts, slots, ..]  become  [experts, chunks, slots / chunks, ..]
//   one chunk            dispatch, all_gather, experts, reduce_scatter, combine, on views of these
//   streams              all-to-alls: expert_communication. Gathers and scatters of expert_tensor_parallel: the same,
//   or
//                        (fsmoe) expert_tensor_communication. All wait for their data alone, not for other kernels.
//
// Forward and backward may have other numbers of chunks, of which one divides the other. Slots are rounded up to a
// multiple of the larger one. On each stream all chunks leave before the first comes back, which is best where the
// stream is what the layer waits for (PipeMoE, section 4). Degrees are the plan's; what FSMoE would choose is in
// degree.h.
#pragma once

#include "sim/program/program.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/strategy.h"

namespace orrery::fsmoe {

void check(const Scenario& scenario);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
// Gradients of what is not an expert's, in pieces (moe_gradient_share_experts, moe_gradient_share_dense).
void shard(const Scenario& scenario, const Plan& plan, const Mesh& mesh, data_parallel::Sharding& sharding);
void disable(Plan& plan);
void check_runnable(const Scenario& scenario);
std::span<const SearchAxis> search_axes();

}  // namespace orrery::fsmoe
