#include "sim/program/step_end.h"

#include <algorithm>

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

}  // namespace orrery
