// What a strategy lowers to and what the engines interpret: pieces, where they sit, in which order they run, and the
// mesh of ranks. Ranks of one pipeline stage differ only in their coordinates: they are one rank class.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/program/collective_algorithm.h"
#include "sim/program/document_load.h"
#include "sim/program/load.h"
#include "sim/program/mesh.h"
#include "sim/program/piece.h"
#include "sim/program/placed_bytes.h"
#include "sim/program/schedule.h"

namespace orrery {

// `count` consecutive instances of a piece: 126 equal layers are one run.
struct Run {
  std::uint16_t piece = 0;
  std::int64_t count = 1;
  bool operator==(const Run&) const = default;
};

struct Chunk {
  std::vector<Run> runs;
  bool operator==(const Chunk&) const = default;
};

// Micro-batches that do other work than those of the first class.
struct MicroBatchClass {
  std::vector<Run> line;                   // as Program::line
  std::vector<std::vector<Chunk>> stages;  // as Program::stages
};

// What the numbers of the model are, independent of how it is laid out: for MFU and per-token figures.
struct ModelWork {
  // Forward and backward of the model, no recomputation; causal halved. Of the backward what the gradients of trained
  // parameters need.
  double flops_per_step = 0;
  double flops_per_step_full_attention = 0;  // the same, attention counted without the causal mask (PaLM appendix B)
  double executed_flops_per_step = 0;        // of the kernels that run: stored scores are computed unmasked
  double tokens_per_step = 0;                // positions of the global batch (decoder side for encoder-decoders)
  double sequences_per_step = 0;
  double parameters = 0;
  double active_parameters = 0;  // of them those that one token meets: fewer with experts
};

// How much of an output that it has sent to the next stage a rank keeps until the backward. `part`: where
// tensor-parallel ranks each send a part of it (Schedule::scattered_transfers), the rank keeps that part; elsewhere it
// keeps all.
enum class SentOutputs : std::uint8_t { freed, kept, part };

// What a rank's framework holds beside the Program's tensors, and how it issues work. From the plan's `framework`
// preset; sources there.
struct Runtime {
  double host_seconds_per_op = 0;          // CPU time to issue one kernel of the forward or the backward
  double host_seconds_per_collective = 0;  // one collective, or transfer between devices
  double host_seconds_per_update_op = 0;   // one kernel of the update
  bool cuda_graphs = false;                // a block is issued at the cost of one kernel
  // But for experts' kernels, whose shapes routing decides: the host issues them.
  bool graphs_leave_experts = false;
  bool launches_each_expert = false;         // grouped products are a kernel an expert
  double context_bytes = 0;                  // driver context and library handles
  double buffer_bytes_per_communicator = 0;  // NCCL channels' buffers
  Granularity granularity = 512;
  // Autograd is handed gradients of matrices that hold nothing, while the kernels add to the real ones: one for all
  // matrices of a shape, as long as the run (Transformer Engine).
  bool placeholder_gradients = false;
  // Buffers beside the tensors of pieces, into which gradients are copied to be reduced. They are allocated for each
  // backward, or (keeps_reduction_buffers) once for the whole run.
  double reduction_buffer_bytes = 0;
  bool keeps_reduction_buffers = false;
  // 16-bit gradients that an optimizer reads are copied into a flat buffer first, and then cast to fp32. It does so for
  // update_copy_elements at a time (0: for all at once). On the host the fp32 copies stay for the whole run.
  bool copies_gradients_for_update = false;
  double update_copy_elements = 0;
  // For gradients that are not reduced before the last micro-batch: a rank holds them whole only from a chunk's first
  // backward to its last one, and otherwise its own part. False: it holds them whole for the whole step.
  bool releases_gradients = false;
  SentOutputs sent_outputs = SentOutputs::freed;
  double host_bytes_per_rank = 0;  // what a rank's process takes of its node's memory, beside tensors
  // Forced on every collective that has them (NCCL_ALGO, NCCL_PROTO); others choose as NCCL does.
  CollectiveAlgorithm collective_algorithm = CollectiveAlgorithm::automatic;
  CollectiveProtocol collective_protocol = CollectiveProtocol::automatic;
};

struct Program {
  Mesh mesh;
  std::vector<Piece> pieces;
  std::vector<Run> line;                   // the model in order, before it is dealt to stages
  std::vector<std::vector<Chunk>> stages;  // [pipeline stage][chunk]
  Schedule schedule;

  // Micro-batches whose work differs: of each its class. 0 has `line` and `stages`, i has other_classes[i - 1]: layer
  // by layer the same, or variants (Piece::variant_of) with the same parameters. What is done once a step, and what is
  // held all step long, is that of class 0. Empty: all micro-batches are alike.
  std::vector<std::uint8_t> micro_batch_class;
  std::vector<MicroBatchClass> other_classes;

  DealTables tables;  // that dimensions of tensors are dealt by

  // Groups that no digits name (Op::stages). Ranks take sums over them in the order of the list.
  std::vector<StageGroup> stage_groups;

  // The expert in each slot of a layer's experts, rank by rank of the group that divides them, where experts have
  // copies (replicas): a token's rows for an expert go to its copies in turn, and their gradients are summed before the
  // update. Empty: every expert once, in order.
  std::vector<std::int64_t> expert_of_slot;

  // Of layers with experts (Tensor::load; none: routing is balanced), and of what is laid out anew (Op::load).
  std::vector<Load> loads;

  // Of sequences that are packed from documents; null: attention sees the whole sequence. And what each class of
  // micro-batches attends to then (Op::documents).
  std::shared_ptr<const PackedSequences> packed;
  std::vector<DocumentLoad> document_loads;

  Runtime runtime;
  ModelWork model;

  std::size_t micro_batch_classes() const { return 1 + other_classes.size(); }
  std::size_t class_of(std::int64_t micro_batch) const {
    return micro_batch_class.empty() ? 0 : micro_batch_class[static_cast<std::size_t>(micro_batch)];
  }
  std::int64_t micro_batches_of(std::size_t of_class) const;
  const std::vector<std::vector<Chunk>>& stages_of(std::size_t of_class) const {
    return of_class == 0 ? stages : other_classes[of_class - 1].stages;
  }
  // Calls visit(line, stages) of each class.
  template <class Visit>
  void for_each_class(Visit&& visit) {
    visit(line, stages);
    for (MicroBatchClass& other : other_classes) visit(other.line, other.stages);
  }

  // Empties the program but keeps its storage, so that a search lowers a million plans without allocating.
  void clear();
};

// Calls visit(stretch, instances) for each stretch of a chunk's runs over which instances are counted into buckets.
template <class Visit>
void for_each_stretch(const std::vector<Piece>& pieces, std::span<const Run> runs, Visit&& visit) {
  while (!runs.empty()) {
    std::size_t n = 0;
    std::int64_t instances = 0;
    do instances += runs[n++].count;
    while (n < runs.size() && share_buckets(pieces[runs[n - 1].piece], pieces[runs[n].piece]));
    visit(runs.first(n), instances);
    runs = runs.subspan(n);
  }
}

// A piece as reports name it: "layer", or with its layers where such layers have several plans or loads, as Python
// slices them: "layer[0:20]", "layer[0:32:2]". Where micro-batches differ, layers have it in some of them, and its load
// is said as well: "layer[0:32, load 2]".
std::string piece_title(const Program& program, std::size_t piece);

}  // namespace orrery
