// A Program: the result of lowering by a strategy and the input of the engines. It holds the pieces, the stages they
// are on, the order in which they run, and the mesh of ranks. Ranks of one pipeline stage differ only in their
// coordinates: they are one rank class.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/program/load.h"
#include "sim/program/mesh.h"
#include "sim/program/op.h"
#include "sim/program/piece.h"
#include "sim/program/schedule.h"
#include "sim/program/task.h"
#include "sim/program/tensor.h"

namespace orrery {

// `count` consecutive instances of a piece: 126 equal layers are one run.
struct PieceRun {
  std::uint16_t piece = 0;
  std::int64_t count = 1;
  bool operator==(const PieceRun&) const = default;
};

struct Chunk {
  std::vector<PieceRun> runs;
  bool operator==(const Chunk&) const = default;
};

// A class of micro-batches whose work differs from that of class 0.
struct MicroBatchClass {
  std::vector<PieceRun> line;              // as Program::line
  std::vector<std::vector<Chunk>> stages;  // as Program::stages
};

// Size and work of the model, independent of how it is laid out: for MFU and per-token figures.
struct ModelWork {
  // Forward and backward FLOPs of the model, without recomputation; causal attention counts half. The backward counts
  // only what the gradients of trained parameters need.
  double flops_per_step = 0;
  double flops_per_step_full_attention = 0;  // the same, attention counted without the causal mask (PaLM appendix B)
  double executed_flops_per_step = 0;        // of the kernels that run: stored scores are computed unmasked
  double tokens_per_step = 0;                // positions of the global batch (of the decoder in encoder-decoder models)
  double sequences_per_step = 0;
  double parameters = 0;
  double active_parameters = 0;  // those that one token uses: fewer in a mixture of experts
};

// How much of an output that it has sent to the next stage a rank keeps until the backward. `part`: where
// tensor-parallel ranks each send a part of it (Schedule::scattered_transfers), the rank keeps that part; elsewhere it
// keeps all.
enum class SentOutputs : std::uint8_t { freed, kept, part };

// The memory that a rank's framework holds beside the Program's tensors, and how it issues work. The plan's `framework`
// preset has the values and their sources.
struct Runtime {
  double host_seconds_per_op = 0;          // CPU time to issue one kernel of the forward or the backward
  double host_seconds_per_collective = 0;  // CPU time to issue one collective, or one transfer between devices
  double host_seconds_per_update_op = 0;   // CPU time to issue one kernel of the update, for all layers at once
  bool cuda_graphs = false;                // a whole block is issued at the cost of one kernel
  // Before the host issues the kernels that put tokens into rows of experts, it waits until the device has routed them:
  // it reads how many rows each rank and each expert gets.
  bool reads_row_counts = false;
  // Kernels of experts are left out of CUDA graphs, because routing decides their shapes: the host issues each of them.
  bool graphs_leave_experts = false;
  bool launches_each_expert = false;         // a grouped product is one kernel per expert
  double context_bytes = 0;                  // driver context and library handles
  double buffer_bytes_per_communicator = 0;  // buffers of NCCL's channels
  Granularity granularity = 512;
  // Autograd receives empty gradient placeholders for matrices, while the kernels add to the real gradients. There is
  // one placeholder per matrix shape, for the whole run (Transformer Engine).
  bool placeholder_gradients = false;
  // Buffers outside the pieces' tensors, into which gradients are copied for reduction. They are allocated for each
  // backward, or once for the whole run if keeps_reduction_buffers.
  double reduction_buffer_bytes = 0;
  bool keeps_reduction_buffers = false;
  // 16-bit gradients that an optimizer reads are first copied into a flat buffer and then cast to fp32,
  // update_copy_elements at a time (0: all at once). On the host the fp32 copies stay for the whole run.
  bool copies_gradients_for_update = false;
  double update_copy_elements = 0;
  // For gradients that are reduced only in the last micro-batch. True: a rank holds them whole only from a chunk's
  // first backward to its last one, and its own part otherwise. False: it holds them whole for the whole step.
  bool releases_gradients = false;
  SentOutputs sent_outputs = SentOutputs::freed;
  double host_bytes_per_rank = 0;  // memory of the node that a rank's process uses beside tensors
  // Forced on every collective that has this algorithm or protocol (NCCL_ALGO, NCCL_PROTO). The others choose as NCCL
  // does.
  CollectiveAlgorithm collective_algorithm = CollectiveAlgorithm::automatic;
  CollectiveProtocol collective_protocol = CollectiveProtocol::automatic;
};

struct Program {
  Mesh mesh;
  std::vector<Piece> pieces;
  std::vector<PieceRun> line;              // the whole model in order, before it is divided into stages
  std::vector<std::vector<Chunk>> stages;  // [pipeline stage][chunk]
  Schedule schedule;

  // The class of each micro-batch, where micro-batches do different work; empty: all are alike. Class 0 has `line` and
  // `stages`; class i has other_classes[i - 1]. All classes have the same layers in the same order, as the same pieces
  // or as variants with the same parameters (Piece::variant_of). What is done once a step, or held for the whole step,
  // is that of class 0.
  std::vector<std::uint8_t> micro_batch_class;
  std::vector<MicroBatchClass> other_classes;

  // One iteration of what a training repeats; empty: it repeats the step. `begin`: the block that runs once, before the
  // first iteration; 0: there is none.
  std::vector<Task> tasks;
  std::uint16_t begin = 0;

  DealTables tables;  // the tables by which dimensions of tensors are dealt

  // Groups of ranks given by lists of pipeline stages rather than by digits (Op::stages). Ranks sum over them in the
  // order of the list.
  std::vector<StageGroup> stage_groups;

  // Copies of experts: the expert in each slot, for the ranks of the group that divides the experts, rank by rank. The
  // rows of an expert go to its copies in turn, and the copies' gradients are summed before the update. Empty: every
  // expert once, in order; or layers differ, and only loads say what copies send. A real run needs the table.
  std::vector<std::int64_t> expert_of_slot;
  bool has_copies() const;  // whether an expert has several slots, or a load is of gradients

  // Loads of layers with experts (Tensor::load), of redistributions and of sums over copies (Op::load). If none is of
  // tokens, routing is balanced.
  std::vector<Load> loads;

  // The sequences that are packed from documents, and what each class of micro-batches attends to then (Op::documents).
  // Null: attention sees the whole sequence.
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
  // The class's chunks by position in the model (Schedule::position).
  std::vector<const Chunk*> chunks_in_order(std::size_t of_class) const;
  // Calls visit(line, stages) for each class.
  template <class Visit>
  void for_each_class(Visit&& visit) {
    visit(line, stages);
    for (MicroBatchClass& other : other_classes) visit(other.line, other.stages);
  }

  // Empties the program but keeps its storage, so that a search lowers a million plans without allocating.
  void clear();
};

// Calls visit(runs, instances) for each stretch: consecutive runs of a chunk over which instances are counted into
// buckets (Op::every).
template <class Visit>
void for_each_stretch(const std::vector<Piece>& pieces, std::span<const PieceRun> runs, Visit&& visit) {
  while (!runs.empty()) {
    std::size_t n = 0;
    std::int64_t instances = 0;
    do instances += runs[n++].count;
    while (n < runs.size() && share_buckets(pieces[runs[n - 1].piece], pieces[runs[n].piece]));
    visit(runs.first(n), instances);
    runs = runs.subspan(n);
  }
}

// Returns the name of a piece in reports: "layer". Where layers have several plans or loads, the piece's layers follow
// as Python slices: "layer[0:20]", "layer[0:32:2]". Where micro-batches differ, the piece has those layers in some
// micro-batches only, and its load is named as well: "layer[0:32, load 2]".
std::string piece_title(const Program& program, std::size_t piece);

}  // namespace orrery
