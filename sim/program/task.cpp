#include "sim/program/task.h"

#include "sim/program/program.h"

namespace orrery {

std::int64_t steps_of_iteration(const Program& program) {
  std::int64_t steps = 0;
  for (const Task& task : program.tasks) steps += task.block == 0 ? task.repeats : 0;
  return program.tasks.empty() ? 1 : steps;
}

void task_program(const Program& of, std::uint16_t block, Program& program) {
  program = of;
  program.tasks.clear();
  program.begin = 0;
  for (Piece& piece : program.pieces) {
    for (Block* of_step : {&piece.forward, &piece.backward, &piece.weight_gradient}) of_step->ops.clear();
    piece.update = std::move(piece.tasks[block - 1u]);
    piece.tasks.clear();
    // Nothing crosses from piece to piece.
    piece.input = piece.output = piece.input_gradient = piece.output_gradient = kNoTensor;
    piece.sides = {};
  }
}

}  // namespace orrery
