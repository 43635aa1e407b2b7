#include "sim/program/check.h"

#include <algorithm>
#include <array>

#include "sim/program/piece_check.h"

namespace orrery {
namespace {

using proof::words;

// Checks that neighbouring pieces agree on the tensors that cross between them.
class LineCheck {
 public:
  // For one class of micro-batches.
  LineCheck(const Program& program, std::size_t of_class, std::vector<Violation>& found)
      : program_(program), stages_(program.stages_of(of_class)), found_(found) {}

  void run() {
    std::vector<const Chunk*> chunks(program_.schedule.position.size());
    for (std::size_t s = 0; s < stages_.size(); ++s)
      for (std::size_t c = 0; c < stages_[s].size(); ++c)
        chunks.at(static_cast<std::size_t>(program_.schedule.position_of(s, c))) = &stages_[s][c];
    for (const Chunk* chunk : chunks)
      for (const PieceRun& run : chunk->runs)
        for (std::int64_t i = 0; i < std::min<std::int64_t>(run.count, 2); ++i) pass(program_.pieces[run.piece]);
  }

 private:
  struct HandedOn {
    const Piece* piece = nullptr;
    TensorId forward = kNoTensor, backward = kNoTensor;
  };

  void pass(const Piece& piece) {
    meet(residual_, piece, piece.input, piece.input_gradient);
    residual_ = {&piece, piece.output, piece.output_gradient};
    for (std::size_t s = 0; s < kSideStreams; ++s) {
      const SideStream& side = piece.sides[s];
      if (side.input != kNoTensor) meet(sides_[s], piece, side.input, side.input_gradient);
      if (side.output != kNoTensor) sides_[s] = {&piece, side.output, side.output_gradient};
    }
  }

  void meet(const HandedOn& from, const Piece& to, TensorId forward, TensorId backward) {
    meet(from, from.forward, to, forward);
    meet(from, from.backward, to, backward);
    if (from.piece != nullptr && from.backward != kNoTensor && backward == kNoTensor)
      found_.push_back({Rule::pieces_fit, std::string("piece \"") + from.piece->name + "\" takes \"" +
                                              from.piece->tensors[from.backward].name +
                                              "\" for its backward, which piece \"" + to.name + "\" does not hand on"});
  }
  void meet(const HandedOn& from, TensorId handed_on, const Piece& to, TensorId taken) {
    if (from.piece == nullptr || handed_on == kNoTensor || taken == kNoTensor) return;
    const Tensor &a = from.piece->tensors[handed_on], &b = to.tensors[taken];
    if (a.elements() == b.elements() && a.over == b.over && a.is_dealt_as(b)) return;
    found_.push_back({Rule::pieces_fit, std::string("piece \"") + to.name + "\" takes \"" + b.name + "\" " +
                                            words(program_.mesh, b) + " of " + std::to_string(b.elements()) +
                                            " elements, piece \"" + from.piece->name + "\" hands on \"" + a.name +
                                            "\" " + words(program_.mesh, a) + " of " + std::to_string(a.elements())});
  }

  const Program& program_;
  const std::vector<std::vector<Chunk>>& stages_;
  std::vector<Violation>& found_;
  HandedOn residual_;
  std::array<HandedOn, kSideStreams> sides_;
};

// Checks that classes of micro-batches differ only in how they compute, not in what they compute.
class ClassCheck {
 public:
  ClassCheck(const Program& program, std::vector<Violation>& found) : program_(program), found_(found) {}

  // Returns false if the classes are not as required.
  bool run() {
    const std::size_t classes = program_.micro_batch_classes(), before = found_.size();
    const std::vector<std::uint8_t>& of = program_.micro_batch_class;
    if (of.empty() && classes == 1) return true;
    if (static_cast<std::int64_t>(of.size()) != program_.schedule.micro_batches)
      report("classes of " + std::to_string(of.size()) + " micro-batches, the schedule has " +
             std::to_string(program_.schedule.micro_batches));
    for (std::size_t m = 0; m < of.size(); ++m)
      if (of[m] >= classes)
        report("micro-batch " + std::to_string(m) + " is of class " + std::to_string(of[m]) + ", there are " +
               std::to_string(classes));
    for (std::size_t c = 1; c < classes; ++c) {
      const auto& stages = program_.stages_of(c);
      bool alike = stages.size() == program_.stages.size();
      for (std::size_t s = 0; alike && s < stages.size(); ++s) {
        alike = stages[s].size() == program_.stages[s].size();
        for (std::size_t k = 0; alike && k < stages[s].size(); ++k)
          alike = same_layers(stages[s][k], program_.stages[s][k]);
      }
      if (!alike)
        report("micro-batches of class " + std::to_string(c) +
               " have other layers, or other parameters, than those of "
               "class 0");
    }
    return found_.size() == before;
  }

 private:
  void report(std::string text) { found_.push_back({Rule::classes_alike, std::move(text)}); }

  bool same_parameters(const Piece& a, const Piece& b) const {
    if (&a == &b) return true;
    if (!share_buckets(a, b)) return false;
    if (a.layers != b.layers) return a.layers > 0 && b.layers > 0;
    if (a.parameters.size() != b.parameters.size()) return false;
    for (std::size_t i = 0; i < a.parameters.size(); ++i) {
      const Tensor &x = a.tensors[a.parameters[i].parameter], &y = b.tensors[b.parameters[i].parameter];
      if (x.axes != y.axes || x.sizes != y.sizes || x.over != y.over || x.dtype != y.dtype) return false;
    }
    return true;
  }
  // Compares layer by layer, whatever the division into runs, and into groups that are recomputed together.
  bool same_layers(const Chunk& a, const Chunk& b) const {
    const auto layers_of = [&](const PieceRun& run) {
      return run.count * std::max<std::int64_t>(1, program_.pieces[run.piece].layers);
    };
    std::size_t i = 0, j = 0;
    std::int64_t of_a = 0, of_b = 0;  // layers of the runs visited so far
    while (i < a.runs.size() && j < b.runs.size()) {
      const PieceRun &x = a.runs[i], &y = b.runs[j];
      if (!same_parameters(program_.pieces[x.piece], program_.pieces[y.piece])) return false;
      const std::int64_t both = std::min(layers_of(x) - of_a, layers_of(y) - of_b);
      of_a += both;
      of_b += both;
      if (of_a == layers_of(x)) ++i, of_a = 0;
      if (of_b == layers_of(y)) ++j, of_b = 0;
    }
    return i == a.runs.size() && j == b.runs.size();
  }

  const Program& program_;
  std::vector<Violation>& found_;
};

// All digits over which ranks hold different gradients: stages, parts of parameters, shards.
MeshGroup digits_of_gradients(const Program& program) {
  MeshGroup group = program.mesh.group(MeshAxis::pp);
  for (const Piece& piece : program.pieces) {
    for (const ParameterGradient& p : piece.parameters) group = group | piece.tensors[p.parameter].divided_over();
    for (const Block* block : {&piece.backward, &piece.weight_gradient, &piece.update})
      for (const Op& op : block->ops)
        if (op.kind == OpKind::gradient_norm) group = group | piece.tensors[op.reads[0]].divided_over();
  }
  return group;
}

}  // namespace

std::vector<Violation> check(const Program& program) {
  std::vector<Violation> found;
  const MeshGroup norm_group = digits_of_gradients(program);
  proof::Holders holders(program);
  std::vector<std::vector<MeshGroup>> contributed(program.pieces.size());
  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    proof::PieceCheck piece(program, program.pieces[p], norm_group, holders, found);
    piece.run();
    contributed[p] = piece.contributed();
  }
  // A parameter that lies in another piece of its stage is reduced there: both must owe the same sum.
  for (std::size_t p = 0; p < program.pieces.size(); ++p)
    for (std::size_t i = 0; i < program.pieces[p].parameters.size(); ++i) {
      const Piece& piece = program.pieces[p];
      const Tensor& t = piece.tensors[piece.parameters[i].parameter];
      if (!t.shared || piece.parameters[i].gradient == kNoTensor) continue;
      for (std::size_t q = 0; q < program.pieces.size(); ++q)
        for (std::size_t j = 0; j < program.pieces[q].parameters.size(); ++j) {
          const ParameterGradient& other = program.pieces[q].parameters[j];
          const Tensor& owner = program.pieces[q].tensors[other.parameter];
          if (owner.shared || other.gradient == kNoTensor || owner.axes != t.axes || owner.sizes != t.sizes) continue;
          if (contributed[p][i] != contributed[q][j])
            found.push_back({Rule::owed_alike, std::string("piece \"") + piece.name + "\": the gradient of \"" +
                                                   t.name + "\", which lies " + "in piece \"" + program.pieces[q].name +
                                                   "\", owes the sum over " + words(program.mesh, contributed[p][i]) +
                                                   ", there it owes " + words(program.mesh, contributed[q][j])});
        }
    }
  if (!ClassCheck(program, found).run()) return found;
  for (std::size_t c = 0; c < program.micro_batch_classes(); ++c) LineCheck(program, c, found).run();
  return found;
}

}  // namespace orrery
