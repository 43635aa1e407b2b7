#include "models/swin.h"

#include <algorithm>

#include "models/ends.h"
#include "models/layer.h"

namespace orrery {
namespace {

// 2x2 neighbouring patches become one of twice the width.
void build_patch_merging(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& from) {
  Builder b(model, kernels, from, piece);
  piece.input = b.residual("input");
  const Dim quarter{std::max<std::int64_t>(from.batch / 4, 1), Axis::batch};
  const Dim wide{4 * from.hidden, Axis::hidden}, out{2 * from.hidden, Axis::hidden};
  const TensorId gathered = b.activation("patch_merging", {quarter, b.sequence(), wide});
  b.emit(OpKind::pool, "patch_merging", {piece.input}, {gathered});
  const TensorId n = b.norm("patch_merging_norm", gathered, {wide});
  piece.output = b.linear("patch_merging", n, {wide}, {out}, false);
  b.finish();
}

}  // namespace

void build_swin(const Model& model, std::int64_t micro_batch, const KernelChoices& kernels, PieceLine& line) {
  const std::int64_t side = model.image_size / model.patch_size;
  const std::int64_t window = model.window * model.window;
  // Tokens stay grouped by window: the batch dimension runs over images x windows.
  LayerSizes s{micro_batch * side * side / window, window, window, model.hidden, 0, 1, 0, 0};
  line.add("embedding", 1, [&](Piece& p) { build_patch_embedding(p, model, kernels, s); });
  for (std::size_t stage = 0; stage < model.stage_layers.size(); ++stage) {
    if (stage > 0) {
      line.add("patch_merging", 1, [&](Piece& p) { build_patch_merging(p, model, kernels, s); });
      s.batch = std::max<std::int64_t>(s.batch / 4, 1);
      s.hidden *= 2;
    }
    s.groups = model.stage_heads[stage];
    s.head_dim = s.hidden / s.groups;
    s.ffn = 4 * s.hidden;
    line.add("layer", model.stage_layers[stage],
             [&](Piece& p) { build_layer(p, model, kernels, s, LayerRole::encoder, 0); });
  }
  s.key_sequence = std::max<std::int64_t>(1, s.batch / micro_batch);  // windows per image, for the pooling
  line.add("head", 1, [&](Piece& p) { build_head(p, model, kernels, s); });
}

}  // namespace orrery
