#include "strategies/joints.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"

namespace orrery {
namespace {

bool laid_out_alike(const Tensor& a, const Tensor& b) {
  return a.over == b.over && a.is_dealt_as(b) && a.sizes == b.sizes;
}

Tensor handed_on(Tensor t) {
  t.alias_of = kNoTensor;
  t.alias_begin = 0;
  t.category = Category::activation;
  return t;
}

// Returns the joint between two of these layouts. `back`: it also hands gradients back.
std::uint16_t joint(Program& program, const Tensor& from, const Tensor& to, bool back, std::uint16_t plan) {
  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    const Piece& piece = program.pieces[p];
    if (is_joint(piece) && laid_out_alike(piece.tensors[piece.input], from) &&
        laid_out_alike(piece.tensors[piece.output], to) && back == !piece.backward.ops.empty())
      return static_cast<std::uint16_t>(p);
  }
  const auto by = redistribution(program.mesh, from, to);
  if (!by) throw std::logic_error(std::string("\"") + from.name + "\" cannot be redistributed between two pieces");
  Piece piece;
  piece.name = "joint";
  piece.plan = plan;
  piece.input = piece.add(handed_on(from));
  piece.output = piece.add(handed_on(to));
  Op op = communication(OpKind::redistribute, "redistribute", Phase::forward, Stream::context_communication, by->group,
                        piece.input, piece.output);
  op.share = by->share;
  piece.forward.ops.push_back(op);
  if (back) differentiate(piece, from.dtype);
  program.pieces.push_back(std::move(piece));
  return static_cast<std::uint16_t>(program.pieces.size() - 1);
}

void join_layouts(Program& program, std::vector<PieceRun>& of) {
  std::vector<PieceRun> line;
  bool differ = false;
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (i > 0) {
      const Piece& before = program.pieces[of[i - 1].piece];
      const Piece& behind = program.pieces[of[i].piece];
      const bool meet = before.output != kNoTensor && behind.input != kNoTensor;
      if (meet && !laid_out_alike(before.tensors[before.output], behind.tensors[behind.input])) {
        if (!differ) line.assign(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(i));
        differ = true;
        // Copies, as adding a piece may move the others.
        const Tensor from = before.tensors[before.output], to = behind.tensors[behind.input];
        line.push_back({joint(program, from, to, behind.input_gradient != kNoTensor, behind.plan), 1});
      }
    }
    if (differ) line.push_back(of[i]);
  }
  if (differ) of = std::move(line);
}

}  // namespace

void join_layouts(Program& program) {
  program.for_each_class([&](std::vector<PieceRun>& line, auto&) { join_layouts(program, line); });
}

}  // namespace orrery
