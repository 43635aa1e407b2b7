#include "sim/program/gradient_norm.h"

namespace orrery {
namespace {

const Piece* first_with(const Program& program, std::uint8_t tied) {
  for (const PieceRun& run : program.line)
    for (const ParameterGradient& p : program.pieces[run.piece].parameters)
      if (p.tied == tied) return &program.pieces[run.piece];
  return nullptr;
}

}  // namespace

CountedInNorm counted_in_norm(const Program& program, const Piece& piece, const ParameterGradient& parameter,
                              TensorId gradients, MeshGroup summed) {
  const Tensor& t = piece.tensors[parameter.parameter];
  CountedInNorm counted;
  counted.here = parameter.tied == 0 || first_with(program, parameter.tied) == &piece;
  // Stages hold different pieces, or another copy of a tied parameter.
  counted.first_of =
      summed.without(piece.tensors[gradients].divided_over() | t.divided_over() | program.mesh.group(MeshAxis::pp));
  for (int d = 0; d < t.rank; ++d)
    if (t.deal(d) == Deal::query_heads) counted.first_of_behind = counted.first_of_behind | t.over[d].group();
  return counted;
}

bool is_behind_query_heads(const Tensor& local, std::int64_t e) {
  for (int d = local.rank; d-- > 0; e /= local.sizes[d])
    if (local.deal(d) == Deal::query_heads) return e % local.sizes[d] >= local.sizes[d] - local.kept;
  return true;
}

}  // namespace orrery
