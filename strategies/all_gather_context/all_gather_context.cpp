// Context parallelism in which each rank gathers the keys and values of all ranks before attention (Llama 3, arXiv
// 2407.21783, section 3.3.2; Megatron-Core's cp_comm_type all_gather).
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/strategy.h"

namespace orrery::all_gather_context {
namespace {

// Names of context_parallel_type: Megatron-Core's and Transformer Engine's.
constexpr std::array<std::string_view, 2> kTypes{"all_gather", "allgather"};

class Gathering {
 public:
  Gathering(const Mesh& mesh, Piece& piece)
      : group_(mesh.group(MeshAxis::cp)), ranks_(mesh.size(group_)), piece_(piece) {}

  void run() { context_parallel::replace_attention(piece_, out_, *this); }

  void forward(const Op& whole) {
    const auto [q, kv] = context_parallel::queries_and_keys(piece_, whole.reads[0], whole.reads[1]);
    const TensorId keys = of_all(kv);
    communicate(OpKind::all_gather, "context.keys", kv, keys, whole);
    out_.push_back(context_parallel::attention_of_parts(whole, q, keys, ranks_));
  }

  // Gathers again: a rank keeps only its own keys.
  void backward(const Op& whole) {
    const auto [q, kv] = context_parallel::queries_and_keys(piece_, whole.reads[3], whole.reads[4]);
    const auto [dq, dkv] = context_parallel::queries_and_keys(piece_, whole.writes[0], whole.writes[1]);
    const TensorId keys = of_all(kv), key_gradients = of_all(dkv);
    communicate(OpKind::all_gather, "context.keys", kv, keys, whole);
    Op op = context_parallel::attention_of_parts(whole, q, keys, ranks_);
    op.writes = {dq, key_gradients, kNoTensor, kNoTensor};
    out_.push_back(op);
    communicate(OpKind::reduce_scatter, "context.key_gradients", key_gradients, dkv, whole);
  }

 private:
  // Returns keys and values of the whole sequence, in the order of its positions.
  TensorId of_all(TensorId keys) {
    const TensorId id = clone_tensor(piece_, keys);
    Tensor& t = piece_.tensors[id];
    const int d = t.find(Axis::sequence);
    t.axes[d] = Axis::key_sequence;
    t.sizes[d] *= ranks_;
    t.over[d] = {};
    t.set_deal(d, Deal::contiguous);
    t.category = Category::communication_buffer;
    return id;
  }

  // Keys and values are sent separately, as in the published code.
  void communicate(OpKind kind, const char* name, TensorId from, TensorId to, const Op& cause) {
    Op op = communication(kind, name, cause.phase, Stream::context_communication, group_, from, to);
    op.count = 2;
    out_.push_back(op);
  }

  const MeshGroup group_;
  const std::int64_t ranks_;
  Piece& piece_;
  std::vector<Op> out_;
};

void check(const Scenario& scenario) { context_parallel::check_deal(scenario, kTypes, scenario.plan.context.degree); }

void add_digits(const Scenario& scenario, Mesh& mesh) {
  // Add the digit unless another strategy adds it for some layers.
  if (context_parallel::has_layers_of_type(scenario, kTypes))
    mesh.add(MeshAxis::cp, scenario.plan.context.degree / mesh.size(MeshAxis::cp));
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (!context_parallel::is_of_type(scenario, plan, kTypes)) return;
  const Deal deal = context_parallel::deal_over(scenario, plan, scenario.plan.context.degree, program.tables);
  context_parallel::divide_sequence(piece, program.mesh, {program.mesh.group(MeshAxis::cp)}, deal);
  Gathering(program.mesh, piece).run();
}

constexpr PlanWord kWords[]{
    {"all-gather-context", [](const Scenario& s) { return context_parallel::has_layers_of_type(s, kTypes); }}};

}  // namespace

Strategy describe() {
  return {.name = "all_gather_context",
          .summary = "sequences divided over ranks that gather all keys and values",
          .paper = "Llama Team 2024, arXiv 2407.21783",
          .check = check,
          .rewrite_piece = rewrite_piece,
          .add_digits = add_digits,
          .words = kWords,
          .context_types = kTypes};
}

}  // namespace orrery::all_gather_context
