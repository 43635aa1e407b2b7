#include "sim/program/program.h"

namespace orrery {

void Program::clear() {
  // Pieces, line, stages and schedule keep their storage; whoever fills them clears each and sets the counts.
  mesh = Mesh{};
  boundary_bytes = tied_embedding_bytes = 0;
  runtime = Runtime{};
  model = ModelWork{};
}

}  // namespace orrery
