// Proves a Program before anybody runs it: every op's operands are laid out as it needs, every collective is a step
// between the layouts that its tensors state (sim/program/layout.h), no sum that ranks owe each other is lost or taken
// twice, and every parameter's gradient ends where its state lives. What a tensor owes is written nowhere: it follows
// from what ops sum over (a product over a divided width, a weight gradient over a divided batch) and from the
// collectives behind them.
//
// It reads no names. It takes layouts, not numbers: kernels are not run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/program/program.h"

namespace orrery {

// What is wrong with a Program, by rule; each has its smallest bad Program in tests/program/check_test.cpp.
enum class Rule : std::uint8_t {
  // Ops.
  operands_agree = 1,  // operands are divided alike along an axis of the model
  whole_for_op = 2,    // what an op normalises, pools or masks over is not divided
  owed_refused = 3,    // only ops that are linear in an operand read one whose sum is owed
  owed_alike = 4,      // what is added owes the same sum
  written_first = 5,   // a tensor is written before it is read
  written_once = 6,    // a collective writes a tensor that nothing else in the block writes
  // Collectives.
  gathers = 7,            // the result is the operand without the group's digits, the minor ones of one dimension
  scatters = 8,           // the operand owes the group's sum; the result is divided over the group's digits as well
  reduces = 9,            // the operand owes the group's sum, the result is laid out as the operand
  exchanges = 10,         // a redistribution: both layouts are of one whole, over digits of which the group's differ
  shifts = 11,            // a ring is of the digits that divide the operand
  sizes = 12,             // local sizes are those of the layouts
  last_micro_batch = 13,  // sums in place, of what later micro-batches add to, are taken in the last one
  // Attention in a ring.
  sees_all_keys = 14,  // every rank's queries meet all keys that the mask leaves, once
  // The step.
  packed_gradients = 15,      // a packed buffer has the owed elements of its gradients
  gradient_meets_state = 16,  // the optimizer's operands are shards of one kind, and its gradients owe nothing
  norm_of_all = 17,           // the gradient norm is summed over all ranks whose gradients differ
  parameters_gathered = 18,   // updated parameters are whole again before they are read
  pieces_fit = 19,            // a piece takes what the piece before it hands on, both ways
  sets_divided = 20,          // the buffers of a parameter set are divided over its groups, its parts in one order
  frozen_stays = 21,          // a frozen parameter has no gradient, and nothing updates it
  summed_over_holders = 22,   // the gradient of a parameter that several stages hold is summed over just these, once,
                              // behind the reductions of the update and before anything else reads it
  // Mixture of experts.
  own_rows = 23,  // slots are divided over what divides the tokens that are put into them, experts over nothing
  // Micro-batches whose work differs.
  classes_alike = 24,  // every micro-batch has a class, and every class the same layers in the same chunks: pieces that
                       // are variants of each other, with the same parameters
};

struct Violation {
  Rule rule;
  std::string text;  // op, tensor, the layouts or sums that were found and needed
};

// All that is found, in the order of the pieces; empty: proven. Takes as long as lowering: some 50 us a Program.
std::vector<Violation> check(const Program& program);

}  // namespace orrery
