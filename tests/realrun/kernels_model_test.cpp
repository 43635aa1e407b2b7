// Whole models on the kernels: a chain of pieces as models/ builds and differentiates them, its loss and its gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string_view>

#include "models/layers.h"
#include "tests/realrun/kernel_devices.h"

namespace orrery::cpu {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 6, kVocab = 11;

// A small decoder; the tests change what they ask about.
Model small() {
  Model m;
  m.layers = 2;
  m.hidden = 8;
  m.heads = 4;
  m.kv_heads = 2;
  m.ffn = 12;
  m.vocab = kVocab;
  m.max_positions = 7;
  return m;
}

// One micro-batch through the embedding, the layers (a Machine each, with its own parameters) and the head.
class Chain {
 public:
  explicit Chain(Model model, std::uint32_t seed = 1) {
    model.complete();
    KernelChoices kernels;
    kernels.activation = kernels.parameter = Dtype::fp32;
    Workload workload;
    workload.sequence_length = kSequence;
    workload.global_batch_size = kBatch;
    std::vector<Piece> pieces;
    ModelPieces built;
    built.pieces = &pieces;
    build_pieces(model, workload, kBatch, kernels, built);
    for (const PieceRun& run : built.runs)
      for (std::int64_t i = 0; i < run.count; ++i) add(pieces[run.piece], model, seed);
  }

  double loss() {
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      Machine& m = *machines_[i];
      if (i > 0) m.values(m.piece.input) = output(i - 1);
      m.forward();
    }
    return machines_.back()->loss();
  }
  void backward() {
    for (std::size_t i = machines_.size(); i-- > 0;) {
      machines_[i]->backward();
      if (i == 0) break;
      Machine& before = *machines_[i - 1];
      before.values(before.piece.output_gradient) = machines_[i]->values(machines_[i]->piece.input_gradient);
    }
  }
  std::vector<std::unique_ptr<Machine>>& machines() { return machines_; }

 private:
  const Values& output(std::size_t i) { return machines_[i]->values(machines_[i]->piece.output); }

  void add(const Piece& piece, const Model& model, std::uint32_t seed) {
    constexpr std::uint64_t kStreamsPerPiece = 1000;
    const auto n = static_cast<std::uint32_t>(machines_.size());
    machines_.push_back(std::make_unique<Machine>(piece, kStreamsPerPiece * n));
    Machine& m = *machines_.back();
    m.context.pool_mean = model.kind == ModelKind::swin;
    for (std::size_t id = 0; id < piece.tensors.size(); ++id) {
      const Tensor& t = piece.tensors[id];
      if (t.alias_of != kNoTensor) continue;
      Values& values = m.values(static_cast<TensorId>(id));
      if (t.category == Category::parameter) {
        values = random_values(t.elements(), seed + 100 * n + static_cast<std::uint32_t>(id), 0.4);
        if (t.rank == 1)  // weights of norms about 1
          for (float& v : values) v += 1;
      } else if (t.dtype == Dtype::int64) {  // ids and targets
        const std::int64_t below =
            std::string_view(t.name) == "token_types" || std::string_view(t.name) == "next_sentence" ? 2 : kVocab;
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((7 * i + seed + n) % below);
      } else if (std::string_view(t.name) == "patches") {
        values = random_values(t.elements(), seed + 100 * n);
      }
    }
  }

  std::vector<std::unique_ptr<Machine>> machines_;
};

void expect_right_gradients(
    const Model& model, const std::function<void(Chain&)>& prepare = [](Chain&) {}) {
  for (const std::uint32_t seed : {1u, 2u}) {
    Chain chain(model, seed);
    prepare(chain);
    const double first = chain.loss();
    ASSERT_TRUE(std::isfinite(first));
    chain.backward();
    for (const auto& m : chain.machines())
      expect_gradients(
          *m, [&] { return chain.loss(); }, 1e-2, seed, 2e-3);
  }
}

KERNEL_TEST(ModelOnKernels, ALlamaHasRightGradients) {
  Model m = small();
  m.norm = NormKind::rmsnorm;
  m.positions = Positions::rotary;
  m.activation = ActivationFunction::swiglu;
  m.linear_bias = m.output_bias = m.qkv_bias = false;
  m.tied_embeddings = false;
  expect_right_gradients(m);
  m.qk_norm = true;
  m.sliding_window = 3;
  expect_right_gradients(m);
  m.qk_norm_across_heads = true;
  m.input_norm = false;
  m.output_norm = true;
  expect_right_gradients(m);
}

KERNEL_TEST(ModelOnKernels, AGptHasRightGradientsUnderDropout) {
  Model m = small();
  m.dropout = 0.2;
  expect_right_gradients(m);
}

KERNEL_TEST(ModelOnKernels, AParallelBlockHasRightGradients) {
  Model m = small();
  m.parallel_block = true;
  m.positions = Positions::rotary;
  m.norm_bias = false;
  m.head_bias = true;
  expect_right_gradients(m);
  m.parallel_norms = true;
  expect_right_gradients(m);
}

KERNEL_TEST(ModelOnKernels, ABertHasRightGradients) {
  Model m = small();
  m.kind = ModelKind::encoder;
  m.post_norm = m.embedding_norm = m.pooler = m.head_bias = true;
  m.token_types = 2;
  expect_right_gradients(m);
}

KERNEL_TEST(ModelOnKernels, AVisionTransformerHasRightGradients) {
  Model m = small();
  m.kind = ModelKind::vit;
  m.vocab = m.max_positions = 0;
  m.image_size = 6;
  m.patch_size = 2;
  m.classes = kVocab;
  expect_right_gradients(m);
}

// A map of patches that is stored window by window; a window's side and the map's, in patches.
struct PatchMap {
  explicit PatchMap(const Tensor& t, std::int64_t images)
      : window(std::lround(std::sqrt(static_cast<double>(t.sizes[1])))),
        side(window * std::lround(std::sqrt(static_cast<double>(t.sizes[0] / images)))) {}
  std::int64_t at(std::int64_t image, std::int64_t row, std::int64_t column) const {
    const std::int64_t in = row / window * (side / window) + column / window;
    return image * side * side + (in * window + row % window) * window + column % window;
  }
  std::int64_t window, side;
};

RunKernel* other_kernels = nullptr;

// Swin's patch merging, a pooling to vectors of four times the width, which real runs have no kernels for yet. The four
// neighbours have the order of PatchMerging in the authors' code (Liu et al. 2021, arXiv 2103.14030).
void merge_or_run(const Op& op, std::span<const orrery::Operand> reads, std::span<const orrery::Operand> writes,
                  const KernelContext& context) {
  const bool backward = op.kind == OpKind::pool_backward;
  if (op.kind != OpKind::pool && !backward) return other_kernels(op, reads, writes, context);
  const orrery::Operand &x = backward ? writes[0] : reads[0], &y = backward ? reads[0] : writes[0];
  const std::int64_t width = x.tensor->sizes[2];
  if (y.tensor->sizes[2] != 4 * width) return other_kernels(op, reads, writes, context);
  const PatchMap from(*x.tensor, kBatch), to(*y.tensor, kBatch);
  for (std::int64_t image = 0; image < kBatch; ++image)
    for (std::int64_t row = 0; row < from.side; ++row)
      for (std::int64_t column = 0; column < from.side; ++column) {
        float* const large = static_cast<float*>(x.data) + from.at(image, row, column) * width;
        float* const small = static_cast<float*>(y.data) +
                             (4 * to.at(image, row / 2, column / 2) + 2 * (column % 2) + row % 2) * width;
        std::copy_n(backward ? small : large, width, backward ? large : small);
      }
}

KERNEL_TEST(ModelOnKernels, ASwinHasRightGradients) {
  other_kernels = std::exchange(kernel_runner(), merge_or_run);
  Model m;
  m.kind = ModelKind::swin;
  m.positions = Positions::relative;
  m.hidden = 4;
  m.stage_layers = {1, 1};
  m.stage_heads = {1, 2};
  m.window = 3;
  m.image_size = 12;
  m.patch_size = 2;
  m.classes = kVocab;
  m.layers = 2;
  m.heads = 1;
  expect_right_gradients(m);
}

KERNEL_TEST(ModelOnKernels, ADecoderLayerHasRightGradientsTowardsItsMemory) {
  Model model = small();
  model.kind = ModelKind::encoder_decoder;
  model.complete();
  KernelChoices kernels;
  kernels.activation = kernels.parameter = Dtype::fp32;
  Workload workload;
  workload.sequence_length = kSequence + 1;
  workload.decoder_sequence_length = kSequence;
  std::vector<Piece> pieces;
  ModelPieces built;
  built.pieces = &pieces;
  build_pieces(model, workload, kBatch, kernels, built);
  const auto found =
      std::ranges::find_if(pieces, [](const Piece& p) { return p.sides[kEncoderOutput].input != kNoTensor; });
  ASSERT_NE(found, pieces.end());
  Piece piece = *found;
  // The streams that come in are compared as the parameters are.
  piece.parameters.push_back({piece.input, piece.input_gradient});
  const SideStream& memory = piece.sides[kEncoderOutput];
  piece.parameters.push_back({memory.input, memory.input_gradient});
  expect_derivative(
      Machine(piece), [](Machine&) {}, 1e-2);
}

KERNEL_TEST(ModelOnKernels, AdamOnTheseGradientsLearnsTheTargets) {
  Model model = small();
  Chain chain(model);
  const double first = chain.loss();
  struct Moments {
    Values m, v;
  };
  std::vector<std::vector<Moments>> moments;
  for (const auto& m : chain.machines()) {
    moments.emplace_back();
    for (const ParameterGradient& p : m->piece.parameters) {
      const std::size_t n = m->values(p.parameter).size();
      moments.back().push_back({Values(n), Values(n)});
    }
  }
  Op adam;
  adam.kind = OpKind::adam;
  KernelContext context;
  context.learning_rate = 0.02;
  for (context.step = 1; context.step <= 60; ++context.step) {
    chain.loss();
    chain.backward();
    for (std::size_t i = 0; i < moments.size(); ++i)
      for (std::size_t j = 0; j < moments[i].size(); ++j) {
        Machine& m = *chain.machines()[i];
        const TensorId parameter = m.piece.parameters[j].parameter, gradient = m.piece.parameters[j].gradient;
        const Tensor& t = m.piece.tensors[parameter];
        const orrery::Operand w{m.values(parameter).data(), &t}, first_moment{moments[i][j].m.data(), &t},
            second_moment{moments[i][j].v.data(), &t};
        const std::array<orrery::Operand, 4> reads{orrery::Operand{m.values(gradient).data(), &t}, w, first_moment,
                                                   second_moment};
        const std::array<orrery::Operand, 3> writes{w, first_moment, second_moment};
        kernel_runner()(adam, reads, writes, context);
      }
  }
  EXPECT_LT(chain.loss(), first / 20);
}

}  // namespace
}  // namespace orrery::cpu
