// Runs a lowered Program: one training step after another, all ranks in one process (a thread each), in fp32, on the
// kernels of realrun/cpu/kernels.h. The same Program that the engines time; what comes out is put together into the
// layout of one rank, so that every layout of one scenario can be compared with every other.
//
// What the Program leaves open, and how it is taken here:
//  - The loss is the mean of the cross entropy over all positions of the global batch. Its gradient is scaled by that
//    count at the source, so every reduction over ranks is a sum.
//  - A tensor of category gradient is added to, by every op that writes it outside the update; it is zero when its
//    storage begins: at the step's start if it is resident, else when its micro-batch first touches it. Reduce-scatters
//    into a shard with storage of its own (ZeRO-2 and -3) add to the shard.
//  - Positions dealt to context-parallel ranks, and which part of the keys a ring step sees, follow from the plan's
//    balance: kernels get the positions of queries and keys and mask by them. An attention over "half of the keys" that
//    stands for the visible half of the square is computed on all keys, masked.
//  - Key gradients of a ring come home with the last shift, however many steps it took.
//  - The tied embedding's exchange between two stages (Program::tied_embedding_bytes) sums the table's gradients
//    before the norm.
//  - "replicated_gradients.all_reduce" packs the gradients of parameters that tensor-parallel ranks hold whole but
//    computed from their part of the tokens or of the heads.
//  - The gradient norm counts every parameter once. No op of the update reads it: clipping is up to ExecutionOptions.
//  - A ZeRO-3 layout with a tied embedding on one stage: the head reads the copy that the embedding's forward gathered.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery {

// A rank failed, or waited in vain: says which rank, where in the Program, and for whom it waits.
class ExecutionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct ExecutionOptions {
  std::uint64_t seed = 1;  // of parameters and inputs: a function of (seed, parameter, element), whatever the layout
  std::int64_t steps = 1;  // the same batch each step
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, momentum = 0.9;
  double maximum_gradient_norm = 0;  // 0: gradients are not clipped
  bool round_to_bf16 = false;
  // Storage that nothing has written holds NaN; an op that writes NaN ends the run, naming the op.
  bool find_undefined = true;
  double watchdog_seconds = 20;  // for one wait on other ranks
  // Added to one element of one parameter before the first step: for finite differences. -1: none.
  std::int64_t nudged_parameter = -1, nudged_element = 0;
  double nudge = 0;
};

// A tensor as one rank would hold it, row-major.
struct WholeTensor {
  std::string name;  // "layer 1 qkv"
  std::vector<std::int64_t> sizes;
  std::vector<float> values;
};

struct Execution {
  std::vector<double> losses, gradient_norms;  // by step
  // In the order of the model: piece by piece, in each in the order of Piece::parameters; a tied head's table is left
  // out.
  std::vector<WholeTensor> gradients;   // of the last step, before clipping
  std::vector<WholeTensor> parameters;  // after the last step
  // Where several ranks hold the same element: the largest difference between them, over the tensor's largest value.
  double gradient_disagreement = 0, parameter_disagreement = 0;
};

// The scenario on one rank: no parallelism, no recomputation, the same micro-batches one after another.
Scenario on_one_rank(const Scenario& scenario);

// Lowers and runs `scenario`. Throws InputError for what it cannot run (encoder-decoders, dropout, padded vocabularies
// that differ from one rank's), ExecutionError for failures on the way.
Execution execute(const Scenario& scenario, const ExecutionOptions& options = {});

// The same for a Program that the caller has lowered from `scenario` (and may have changed).
Execution execute(const Scenario& scenario, const Program& program, const ExecutionOptions& options);

}  // namespace orrery
