// Proves a Program before anybody runs it. Every op's operands are laid out as the op needs. Every collective leads
// from one layout that its tensors state to another (sim/program/layout.h). No sum that ranks owe each other is lost or
// taken twice. Every parameter's gradient ends where its optimizer state lives. The sums that a tensor owes are not
// declared: they follow from the axes that ops sum over (a product over a divided width, a weight gradient over a
// divided batch) and from the collectives behind them.
//
// The check reads layouts only. It uses no names, and runs no kernels on numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/program/program.h"

namespace orrery {

// The rules that a Program can violate. Each has its smallest bad Program in tests/program/check_test.cpp.
enum class Rule : std::uint8_t {
  // Ops.
  operands_agree = 1,  // operands of an op are divided alike along each axis of the model
  whole_for_op = 2,    // a dimension that an op normalises, pools or masks over is not divided
  owed_refused = 3,    // an operand whose sum is owed is read only by ops that are linear in it
  owed_alike = 4,      // tensors that are added owe the same sum
  written_first = 5,   // a tensor is written before it is read
  written_once = 6,    // a collective writes a tensor that nothing else in the block writes
  // Collectives.
  // The result's layout is the operand's without the group's digits, which are the minor ones of one dimension.
  gathers = 7,
  scatters = 8,           // the operand owes the group's sum; the result is divided over the group's digits as well
  reduces = 9,            // the operand owes the group's sum; the result has the operand's layout
  exchanges = 10,         // both layouts of a redistribution are of one whole; only the group's digits differ
  shifts = 11,            // a ring consists of the digits that divide the operand
  sizes = 12,             // local sizes agree with the layouts
  last_micro_batch = 13,  // a sum in place, of a tensor that later micro-batches add to, is in the last one
  // Attention in a ring.
  sees_all_keys = 14,  // every rank's queries meet every key that the mask leaves, exactly once
  // The step.
  packed_gradients = 15,      // a packed buffer holds exactly the elements of its gradients whose sum is owed
  gradient_meets_state = 16,  // the optimizer's operands are shards of the same kind; its gradients owe nothing
  norm_of_all = 17,           // the gradient norm is summed over all ranks that hold different gradients
  parameters_gathered = 18,   // updated parameters are whole again before they are read
  pieces_fit = 19,            // a piece takes the tensors that the piece before it hands on, in both directions
  sets_divided = 20,          // a parameter set's buffers are divided over its groups, parts in the same order
  frozen_stays = 21,          // a frozen parameter has no gradient, and nothing updates it
  // The gradient of a parameter on several stages is summed over exactly these stages, once, after the reductions of the
  // update and before any other op reads it. The gradients of experts with copies are summed over the copies, once, after
  // all other reductions of these gradients and before any other op reads them.
  summed_over_holders = 22,
  // Mixture of experts.
  // Slots are divided over the same digits as the tokens put into them; experts are not divided over these digits.
  own_rows = 23,
  // Micro-batches whose work differs.
  classes_alike = 24,  // every micro-batch has a class; all classes have the same layers in the same chunks: the same
                       // pieces, or variants of them with the same parameters
  // Quantised numbers.
  // Only a gather, an exchange or a quantiser reads codes. A quantiser reads them together with their scales. After an
  // exchange one quantiser takes the sum over the ranks, from all contributions; if the ranks are workers, it takes the
  // mean: Op::scale is 1 over their number. The same holds for sparse numbers and their indices (OpKind::sparsify),
  // which are gathered.
  codes = 25,
  // Workers that train copies of the model that differ (MeshAxis::worker), and tasks (sim/program/task.h).
  // A tensor that all workers have alike (Tensor::common) is written only from such tensors, and from means over all
  // workers or gathers from all of them; or before the first iteration, when all workers are alike.
  common_to_workers = 26,
  // A task waits only for tasks that come before it. If it uses a tensor that a task beside it uses, and one of the two
  // writes it, then it waits for that task, or comes behind one that does. A tensor is written by `begin`, by the step
  // or by an earlier task before a task reads it. Tasks beside others have collectives only, and some task waits for
  // them.
  tasks_in_order = 27,
};

struct Violation {
  Rule rule;
  std::string text;  // names op and tensor; states the layouts or sums found and needed
};

// All violations in the order of the pieces; empty: the Program is proven. Cost: about that of lowering, 50 us per
// Program.
std::vector<Violation> check(const Program& program);

}  // namespace orrery
