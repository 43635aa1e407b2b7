#include "models/layers.h"

#include <algorithm>
#include <array>

#include "models/builder.h"
#include "sim/program/work.h"

namespace orrery {

std::int64_t sequence_length(const Model& model, const Workload& workload) {
  if (model.vision()) {
    const std::int64_t side = model.image_size / model.patch_size;
    return side * side + (model.kind == ModelKind::vit ? 1 : 0);
  }
  return workload.sequence_length > 0 ? workload.sequence_length : model.max_positions;
}

std::int64_t decoder_sequence_length(const Model& model, const Workload& workload) {
  return workload.decoder_sequence_length > 0 ? workload.decoder_sequence_length : sequence_length(model, workload);
}

namespace {

// Fills ModelPieces with pieces and runs in order, and reuses the storage of the pieces that were there.
class PieceLine {
 public:
  PieceLine(const Model& model, const KernelChoices& kernels, ModelPieces& into)
      : model_(model), kernels_(kernels), into_(into) {
    into_.runs.clear();
  }
  ~PieceLine() { into_.pieces->resize(used_); }
  PieceLine(const PieceLine&) = delete;
  PieceLine& operator=(const PieceLine&) = delete;

  // Adds a piece that build(builder) fills. Returns its index in the table.
  template <class Build>
  std::uint16_t piece(const char* name, const LayerSizes& sizes, Build&& build) {
    if (used_ == into_.pieces->size()) into_.pieces->emplace_back();
    Piece& piece = (*into_.pieces)[used_];
    piece.clear();
    piece.name = name;
    Builder builder(model_, kernels_, sizes, piece);
    build(builder);
    return static_cast<std::uint16_t>(used_++);
  }
  void run(std::uint16_t piece, std::int64_t count) { into_.runs.push_back({piece, count}); }
  template <class Build>
  void add(const char* name, const LayerSizes& sizes, std::int64_t count, Build&& build) {
    run(piece(name, sizes, std::forward<Build>(build)), count);
  }

 private:
  const Model& model_;
  const KernelChoices& kernels_;
  ModelPieces& into_;
  std::size_t used_ = 0;
};

LayerSizes layer_sizes(const Model& model, std::int64_t batch, std::int64_t sequence, std::int64_t key_sequence) {
  const std::int64_t groups = model.effective_kv_heads();
  return {batch, sequence, key_sequence, model.hidden, groups, model.heads / groups, model.head_dim, model.ffn};
}

// Positions that a layer attends to; 0: all, as in every n-th layer (Gemma 3, arXiv 2503.19786).
std::int64_t window_of(const Model& model, std::int64_t layer) {
  const std::int64_t period = model.full_attention_period;
  return period > 0 && (layer + 1) % period == 0 ? 0 : model.sliding_window;
}

// Adds the layers: all alike, or of several kinds (with and without a window, with and without experts).
void add_layers(const Model& model, const LayerSizes& sizes, PieceLine& line) {
  const LayerRole role = model.kind == ModelKind::decoder ? LayerRole::decoder : LayerRole::encoder;
  constexpr std::uint16_t kUnbuilt = 0xffff;
  std::array<std::array<std::uint16_t, 2>, 2> built{{{kUnbuilt, kUnbuilt}, {kUnbuilt, kUnbuilt}}};
  const auto kind_of = [&](std::int64_t layer) -> std::uint16_t {
    const std::int64_t window = window_of(model, layer);
    const bool experts = model.has_experts() && model.is_expert_layer(layer);
    std::uint16_t& piece = built[window > 0 ? 1 : 0][experts ? 1 : 0];
    if (piece == kUnbuilt)
      piece = line.piece(experts ? "expert_layer" : "layer", sizes,
                         [&](Builder& b) { build_layer(b, role, window, experts); });
    return piece;
  };
  for (std::int64_t first = 0, next = 0; first < model.layers; first = next) {
    const std::uint16_t piece = kind_of(first);
    // If the kind never changes, it is computed once.
    next = model.full_attention_period == 0 && !model.has_experts() ? model.layers : first + 1;
    while (next < model.layers && kind_of(next) == piece) ++next;
    line.run(piece, next - first);
  }
}

// 2x2 neighbouring patches become one of twice the width.
void build_patch_merging(Builder& b) {
  b.piece.input = b.residual("input");
  const Dim quarter{std::max<std::int64_t>(b.sizes.batch / 4, 1), Axis::batch};
  const Dim wide{4 * b.sizes.hidden, Axis::hidden}, out{2 * b.sizes.hidden, Axis::hidden};
  const TensorId gathered = b.activation("patch_merging", {quarter, b.sequence(), wide});
  b.emit(OpKind::pool, "patch_merging", {b.piece.input}, {gathered});
  const TensorId n = b.norm("patch_merging_norm", gathered, {wide});
  b.piece.output = b.linear("patch_merging", n, {wide}, {out}, false);
  b.finish();
}

// Swin (Liu et al. 2021, arXiv 2103.14030): each stage of layers has its own width; attention stays within windows.
void build_swin(const Model& model, std::int64_t micro_batch, PieceLine& line) {
  const std::int64_t side = model.image_size / model.patch_size;
  const std::int64_t window = model.window * model.window;
  // Tokens stay grouped by window: the batch dimension runs over images x windows.
  LayerSizes s{micro_batch * side * side / window, window, window, model.hidden, 0, 1, 0, 0};
  line.add("embedding", s, 1, build_patch_embedding);
  for (std::size_t stage = 0; stage < model.stage_layers.size(); ++stage) {
    if (stage > 0) {
      line.add("patch_merging", s, 1, build_patch_merging);
      s.batch = std::max<std::int64_t>(s.batch / 4, 1);
      s.hidden *= 2;
    }
    s.groups = model.stage_heads[stage];
    s.head_dim = s.hidden / s.groups;
    s.ffn = 4 * s.hidden;
    line.add("layer", s, model.stage_layers[stage], [](Builder& b) { build_layer(b, LayerRole::encoder, 0); });
  }
  s.key_sequence = std::max<std::int64_t>(1, s.batch / micro_batch);  // windows per image, for the pooling
  line.add("head", s, 1, build_head);
}

// Counts attention within documents, averaged over all sequences.
void count_documents(const Op& op, std::span<const Tensor> tensors, const PackedSequences& packed, ProductFlops& f) {
  Op unmasked = op;
  unmasked.causal = false;
  DocumentPairs masked, full;
  const double share = 1 / static_cast<double>(packed.count());
  for (std::int64_t s = 0; s < packed.count(); ++s) {
    masked.add(document_pairs(op, tensors, 0, packed.ends_of(s), 1), share);
    if (op.window > 0) full.add(document_pairs(unmasked, tensors, 0, packed.ends_of(s), 1), share);
  }
  const AttentionShape shape = attention_shape(op, tensors);
  const double per_pair = flops_per_pair(shape, false) * static_cast<double>(shape.batch * shape.heads);
  f.attention_masked = f.attention_executed = per_pair * masked.counted;
  f.attention_full = per_pair * (op.window > 0 ? full.counted : masked.rectangle);
}

}  // namespace

double expert_rows(const Model& model, const Workload& workload, std::int64_t micro_batch) {
  const auto tokens = static_cast<double>(micro_batch * sequence_length(model, workload));
  return tokens * (model.mean_experts_per_token > 0 ? model.mean_experts_per_token
                                                    : static_cast<double>(model.experts_per_token));
}

ProductFlops product_flops(const Op& op, std::span<const Tensor> tensors, double expert_rows,
                           const PackedSequences* packed) {
  ProductFlops f;
  if (op.kind == OpKind::attention && packed != nullptr) {
    count_documents(op, tensors, *packed, f);
  } else if (op.kind == OpKind::batched_matmul) {
    f.attention_full = f.attention_executed = flops(op, tensors);
    f.attention_masked = op.causal ? f.attention_full / 2 : f.attention_full;
  } else if (op.kind == OpKind::attention) {
    f.attention_masked = f.attention_executed = flops(op, tensors);
    Op unmasked = op;
    unmasked.causal = false;
    f.attention_full = flops(unmasked, tensors);
  } else if (is_matmul(op.kind)) {
    f.linear = f.linear_executed = flops(op, tensors);
    if (op.group_dims > 0) {  // reads[0] is [experts, slots, ..]
      const Tensor& rows = tensors[op.reads[0]];
      f.linear *= expert_rows / static_cast<double>(rows.sizes[0] * rows.sizes[1]);
    }
  }
  return f;
}

void build_pieces(const Model& model, const Workload& workload, std::int64_t micro_batch, const KernelChoices& kernels,
                  ModelPieces& out) {
  PieceLine line(model, kernels, out);
  if (model.kind == ModelKind::swin) return build_swin(model, micro_batch, line);

  const std::int64_t length = sequence_length(model, workload);
  const LayerSizes s = layer_sizes(model, micro_batch, length, length);
  line.add("embedding", s, 1, model.kind == ModelKind::vit ? build_patch_embedding : build_embedding);
  add_layers(model, s, line);
  if (model.mtp_num_layers > 0) {
    line.add("mtp_embedding", s, 1, build_prediction_embedding);
    line.add("mtp_layer", s, 1, [&](Builder& b) {
      build_layer(b, LayerRole::decoder, window_of(model, model.layers - 1), model.mtp_has_experts());
      b.piece.layers = 0;  // stages count only the model's layers; this module goes with the last one
    });
  }
  LayerSizes last = s;
  if (model.kind == ModelKind::encoder_decoder) {
    last = layer_sizes(model, micro_batch, decoder_sequence_length(model, workload), length);
    line.add("decoder_embedding", last, 1, build_decoder_embedding);
    line.add("decoder_layer", last, model.decoder_layers,
             [](Builder& b) { build_layer(b, LayerRole::decoder_with_memory, 0); });
  }
  last.key_sequence = 1;
  line.add("head", last, 1, build_head);
}

ModelWork model_work(const Model& model, const Workload& workload, std::int64_t micro_batch,
                     std::span<const Piece> pieces, std::span<const PieceRun> line, const PackedSequences* packed) {
  ModelWork work;
  ProductFlops total;
  const double rows = expert_rows(model, workload, micro_batch);
  for (const PieceRun& run : line) {
    const Piece& piece = pieces[run.piece];
    ProductFlops forward;
    for (const Op& op : piece.forward.ops) forward.add(product_flops(op, piece.tensors, rows, packed), 1);
    total.add(forward, static_cast<double>(run.count));
  }
  if (model.mean_experts_per_token > 0) total.linear_executed = total.linear;  // only rows that exist, not all slots
  // The backward computes two products for each of the forward's (Narayanan et al. 2021, appendix).
  const double micro_batches = static_cast<double>(workload.global_batch_size) / static_cast<double>(micro_batch);
  work.flops_per_step = 3 * micro_batches * (total.linear + total.attention_masked);
  work.executed_flops_per_step = 3 * micro_batches * (total.linear_executed + total.attention_executed);
  work.flops_per_step_full_attention = 3 * micro_batches * (total.linear + total.attention_full);
  work.sequences_per_step = static_cast<double>(workload.global_batch_size);
  const std::int64_t length = model.kind == ModelKind::encoder_decoder ? decoder_sequence_length(model, workload)
                                                                       : sequence_length(model, workload);
  work.tokens_per_step = work.sequences_per_step * static_cast<double>(length);
  work.parameters = static_cast<double>(parameters(model));
  work.active_parameters = static_cast<double>(active_parameters(model));
  return work;
}

}  // namespace orrery
