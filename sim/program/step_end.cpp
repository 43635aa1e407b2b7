#include "sim/program/step_end.h"

namespace orrery {

UpdateParts::UpdateParts(const Piece& piece, std::span<const TensorId> storage, bool sums_over_stages) {
  const std::vector<Op>& ops = piece.update.ops;
  std::size_t stages = 0, norm = 0;
  if (sums_over_stages) {
    while (stages < ops.size() && is_communication(ops[stages].kind) && !ops[stages].stages.has_value()) ++stages;
    for (norm = stages; norm < ops.size() && ops[norm].stages.has_value();) ++norm;
  }
  std::size_t update = norm;  // one past the last op that belongs to the norms
  for (std::size_t i = norm; i < ops.size(); ++i) {
    if (ops[i].kind == OpKind::gradient_norm) update = i + 1;
    if (!is_communication(ops[i].kind) || update == norm) continue;
    for (std::size_t j = norm; j < i; ++j)
      if (ops[j].kind == OpKind::gradient_norm && storage[ops[j].writes[0]] == storage[ops[i].reads[0]]) update = i + 1;
  }
  begins_ = {0, stages, norm, update, ops.size()};
}

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
