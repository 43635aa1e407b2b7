// One rank of a Program that runs: its tensors, its blocks, its part in collectives. Internal to the executor.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "realrun/cpu/exchange.h"
#include "realrun/cpu/kernels.h"
#include "realrun/cpu/layout.h"
#include "realrun/executor.h"

namespace orrery::cpu {

// Memory of a tensor that is no view.
struct Storage {
  std::vector<float> data;
  // Context parallelism: the rank whose keys (or gradients of keys) these are. -1: its own.
  std::int64_t owner = -1;
};
using StorageSet = std::vector<std::unique_ptr<Storage>>;  // by tensor

// What does not differ from one instance of a piece to the next.
struct PiecePlan {
  const Piece* piece = nullptr;
  std::vector<View> views;
  std::vector<std::int64_t> capacity;       // of each storage: shards may reach beyond the buffer they divide
  std::vector<bool> lasting;                // lives for the whole run, not for a micro-batch
  std::vector<bool> input;                  // ids, targets: given from outside
  std::vector<TensorId> partial_gradients;  // for replicated_gradients.all_reduce
  TensorId held_parameters = kNoTensor, held_gradients = kNoTensor;  // what this rank updates: all, or its shard
  std::int64_t shard_begin = 0, flat_elements = 0;                   // of the flat buffers
};

struct Instance {
  const PiecePlan* plan = nullptr;
  std::size_t first_parameter = 0;  // in the model
  StorageSet lasting;
  std::map<std::int64_t, StorageSet> micro;
  std::vector<float> captured_gradients;
};

struct RankRun {
  std::vector<Instance> instances;  // of equal pieces, in order
};
struct RankChunk {
  std::int64_t position = 0;
  std::vector<RankRun> runs;
};

// A gathered part of a parameter or of its gradient.
struct HeldPart {
  std::size_t parameter = 0;
  std::vector<std::int64_t> element;  // of the whole parameter
  std::vector<float> gradient, value;
};

struct RunSetup {
  const Scenario& scenario;
  const Program& program;
  const ExecutionOptions& options;
  const std::vector<WholeParameter>& parameters;
  std::int64_t sequence = 0;
};

class Rank {
 public:
  Rank(std::size_t rank, const RunSetup& setup, Exchange& exchange);

  void run();
  // After run().
  double loss(std::int64_t step) const { return losses_[static_cast<std::size_t>(step)]; }  // this rank's share
  double gradient_norm(std::int64_t step) const { return norms_[static_cast<std::size_t>(step)]; }
  std::vector<HeldPart> held() const;

 private:
  struct Place {
    Instance* instance = nullptr;
    TensorId id = kNoTensor;
  };
  struct Operand;
  struct Waiting {  // for a bucket to fill
    const Op* op;
    std::vector<Instance*> instances;
  };

  void plan_piece(const Piece& piece, PiecePlan& plan);
  void find_partial_gradients(PiecePlan& plan) const;
  void build_chunks();
  void initialise(Instance& instance);

  void forward(RankChunk& chunk, std::int64_t micro_batch);
  void backward(RankChunk& chunk, std::int64_t micro_batch);
  void weight_gradient(RankChunk& chunk, std::int64_t micro_batch);
  void release(RankChunk& chunk, std::int64_t micro_batch);
  void run_block(const std::vector<Op>& ops, Instance& instance, bool last_of_run, std::int64_t micro_batch);
  void update();
  void sum_tied_gradients();
  void reduce_gradient_norm();
  void capture_gradients();

  void execute(const Op& op, Instance& instance, std::int64_t micro_batch);
  void kernel(const Op& op, Instance& instance, std::int64_t micro_batch);
  void communicate(const Op& op, Instance& instance, std::int64_t micro_batch);
  void all_gather_or_scatter(const Op& op, Instance& instance, std::int64_t micro_batch);
  void ring_shift(const Op& op, Instance& instance, std::int64_t micro_batch);
  void reduce_replicated_gradients(const Op& op, Instance& instance);
  std::shared_ptr<const std::vector<Deposit>> meet(const Op& op, MeshAxes axes, Deposit deposit);
  void merge_statistics(const std::vector<Deposit>& parts, std::vector<float>& out) const;
  double tokens(const Tensor& targets) const;
  void note_loss(const Tensor& tensor, const std::vector<float>& statistics);

  Place resolve(Instance& instance, TensorId id);
  Storage& storage(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes);
  void fill_input(const Tensor& tensor, std::int64_t micro_batch, Storage& storage) const;
  std::vector<float> pack(Instance& instance, TensorId id, std::int64_t micro_batch);
  void unpack(Instance& instance, TensorId id, std::int64_t micro_batch, const std::vector<float>& values, bool add);
  bool adds(const Op& op, const Instance& instance, TensorId id) const;
  std::vector<std::int64_t> sequence_positions(const Tensor& tensor) const;
  void place_dropout(const Op& op, const Instance& instance, std::int64_t micro_batch, KernelContext& context) const;
  std::string describe(const Op& op, const Instance& instance) const;

  template <class Visit>
  void for_each_instance(Visit visit);

  const RunSetup& setup_;
  const Program& program_;
  Exchange& exchange_;
  const Position position_;
  std::vector<PiecePlan> plans_;
  std::vector<RankChunk> chunks_;
  std::vector<Waiting> waiting_;
  std::vector<std::int64_t> own_positions_;
  Instance* embedding_ = nullptr;  // of this stage
  TensorId table_ = kNoTensor, table_gradient_ = kNoTensor;
  bool ring_causal_ = false;
  std::int64_t ring_window_ = 0;
  std::int64_t step_ = 0;
  double squared_norm_ = 0, clip_ = 1;
  std::vector<double> losses_, norms_;
};

}  // namespace orrery::cpu
