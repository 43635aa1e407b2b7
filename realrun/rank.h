// One rank of a Program that runs: its tensors, its blocks, its part in collectives. Internal to the executor.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "realrun/executor.h"
#include "realrun/layout.h"
#include "realrun/storage.h"
#include "sim/program/borders.h"
#include "sim/program/issue.h"
#include "sim/program/step_end.h"

namespace orrery::realrun {

using StorageSet = std::vector<StoragePtr>;  // by tensor

// The number of the set to which a buffer of the update belongs. Throws ExecutionError where there is none.
std::size_t held_by(const Piece& piece, TensorId buffer);
inline bool is_vocabulary_table(const Tensor& t) { return t.rank == 2 && t.axes[0] == Axis::vocab; }

// Of a parameter set what a rank updates: all of it, or its part; of a frozen one, which has no gradients, what it has.
struct HeldSet {
  TensorId parameters = kNoTensor, gradients = kNoTensor;
  std::int64_t begin = 0, elements = 0;  // in the whole flat buffers; elements that these have
};

// What does not differ from one instance of a piece to the next.
struct PiecePlan {
  const Piece* piece = nullptr;
  std::vector<View> views;
  std::vector<std::int64_t> capacity;  // of each storage: shards may reach beyond the buffer they divide
  Liveness lives;
  UpdateParts update;
  // By block and op: storages that nothing uses after it, here or at a neighbour.
  std::array<std::vector<std::vector<TensorId>>, kBlocks.size()> ends;
  // The same of gradients that are one buffer for all micro-batches, and reduced in each: they begin anew.
  std::array<std::vector<std::vector<TensorId>>, kBlocks.size()> begins_anew;
  std::array<std::vector<std::uint8_t>, kBlocks.size()> ahead;  // by block and op: issued ahead; empty: none
  std::int64_t sequence = 0;  // whole length of the sequences that it works on
  std::vector<HeldSet> held;  // by set
  // By buffer of packed gradients: of each set, elements of the held gradients that it stands for.
  std::map<TensorId, std::vector<std::vector<std::int64_t>>> packed;
  std::vector<bool> of_norm;  // holds the gradient norm, or parts of it

  bool is_ahead(std::size_t block, std::size_t op) const { return !ahead[block].empty() && ahead[block][op] != 0; }
  std::int64_t longest_ahead(std::size_t block) const {
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < ahead[block].size(); ++i)
      if (is_ahead(block, i))
        longest = std::max(longest, static_cast<std::int64_t>((piece->*kBlocks[block]).ops[i].prefetch));
    return longest;
  }
  // Whether the storage lives for the whole run, not for a micro-batch.
  bool lasts(TensorId storage) const { return lives.of(storage).keeper == Keeper::step; }
  // Whether it ends once the block has handed it on.
  bool ends_handed_on(TensorId storage, std::size_t block) const {
    const Life& life = lives.of(storage);
    return life.keeper != Keeper::step && (life.handed_on & ~life.kept & bit_of_block(block)) != 0;
  }
  // Sums gradients in a buffer that no op fills.
  bool is_packed_reduction(const Op& op) const { return is_communication(op.kind) && packed.contains(op.reads[0]); }
  // Sums the ranks' norms; `sums_norms`: the instances'.
  bool reduces_norm(const Op& op) const { return is_communication(op.kind) && is_norm(op.reads[0]); }
  bool sums_norms(const Op& op) const { return op.kind == OpKind::gradient_norm && is_norm(op.reads[0]); }
  bool is_norm(TensorId id) const { return of_norm[views[id].root]; }
};

// Elements of a set's held gradients that this rank counts in the gradient norm.
struct CountedGradients {
  bool known = false;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // first, one past the last
  std::vector<std::int64_t> scattered;                        // that lie apart
};

struct Instance {
  const PiecePlan* plan = nullptr;
  std::size_t first_parameter = 0;  // in the model
  StorageSet lasting;
  std::map<std::int64_t, StorageSet> micro;
  std::vector<CountedGradients> counted;               // by set
  std::vector<std::vector<float>> captured_gradients;  // of each set what is held
};

// An instance where a line reaches it.
struct InLine {
  Instance* instance = nullptr;
  PlaceInStretch place;
};
struct RankChunk {
  std::int64_t position = 0;
  std::vector<Instance> instances;            // in the order of the model
  std::vector<InLine> forwards, backwards;    // lines of them
  std::array<std::int64_t, kBlocks.size()> longest_ahead{};  // of a block's ops

  const std::vector<InLine>& line(std::size_t block) const { return block == kForwardBlock ? forwards : backwards; }
};

struct RunSetup {
  const Scenario& scenario;
  const Program& program;
  const ExecutionOptions& options;
  const std::vector<WholeParameter>& parameters;
  std::int64_t sequence = 0, decoder_sequence = 0;  // the latter: of what the loss is of
};

class Rank {
 public:
  Rank(const RunSetup& setup, Backend& backend, Communicator& communicator);

  RankResult run();

 private:
  struct Located {
    Instance* instance = nullptr;
    TensorId id = kNoTensor;
  };
  struct Waiting {  // for a bucket to fill
    std::size_t block;
    std::size_t bucket;  // which of the block's: variants of a piece have the same
    std::vector<std::pair<Instance*, std::size_t>> ops;
  };
  // The op that runs: where its time is noted.
  struct Issue {
    std::uint16_t piece = 0;
    std::uint8_t block = 0;
    std::uint16_t op = 0;
    Stream stream = Stream::compute;
    Backend::Mark begin = 0, end = 0;
    std::uint64_t waited_for = 0;  // set of streams that it waited for
    std::int64_t micro_batch = -1;
    bool between_stages = false;  // no op: a message from or to the neighbouring stage
    bool receives = false;        // such a message comes in
    bool reduces_norm = false;    // no op of a block: the gradient norm of all pieces
  };
  struct StreamPart {  // what pieces hand on
    StoragePtr storage;
    std::int64_t elements = 0;
    Dtype dtype = Dtype::fp32;
  };
  using Streams = std::array<StreamPart, 1 + kSideStreams>;  // the residual stream, and those beside it

  struct Target {
    void* data = nullptr;
    Slice slice;
    StoragePtr copy;
  };

  void plan_piece(const Piece& piece, PiecePlan& plan);
  void find_ends(PiecePlan& plan) const;
  void find_packed_gradients(PiecePlan& plan) const;
  Position position_in(const PiecePlan& plan) const;
  void build_chunks();
  void initialise(Instance& instance);

  void step();
  void forward(RankChunk& chunk, std::int64_t micro_batch);
  void backward(RankChunk& chunk, std::int64_t micro_batch);
  void weight_gradient(RankChunk& chunk, std::int64_t micro_batch);
  void release(RankChunk& chunk, std::int64_t micro_batch);
  // The block of all instances of the chunk in a line: take(instance) before it, give(instance) behind it.
  template <class Take, class Give>
  void run_line(std::size_t block, RankChunk& chunk, std::int64_t micro_batch, Take take, Give give);
  // `begun`: when the first kernel has been issued.
  template <class Begun>
  void run_block(std::size_t block, const InLine& at, std::int64_t micro_batch, Begun begun);
  // Its ops that are issued so many instances ahead.
  void run_ahead(std::size_t block, Instance& instance, std::int64_t micro_batch, int least, int most);
  bool runs(const Op& op, std::int64_t micro_batch) const {
    return (bit(op.when) & conditions_of(micro_batch, program_.schedule.micro_batches)) != 0;
  }
  void end_lives(std::size_t block, std::size_t op, Instance& instance, std::int64_t micro_batch);
  void hand_in(Instance& instance, TensorId id, std::int64_t micro_batch, const StreamPart& part);
  StreamPart hand_on(Instance& instance, TensorId id, std::size_t block, std::int64_t micro_batch);
  StreamPart zeros(const Tensor& tensor);
  // All streams that cross a border on their way to the chunk at `position`.
  Streams receive(std::int64_t position, std::int64_t micro_batch, bool backward);
  void send(std::int64_t position, std::int64_t micro_batch, bool backward, Streams& streams);
  const std::array<const Tensor*, 1 + kSideStreams>& crossing_to(std::int64_t position, bool backward) const;
  StreamPart receive(const MessageTag& tag, const Tensor& tensor);
  void send(const MessageTag& tag, StreamPart& part);
  std::size_t rank_at(std::int64_t position) const;
  void end_step(UpdatePart part);
  void reduce_gradient_norm();
  void capture_gradients(Instance& instance);
  void gather_losses();

  void execute(const Op& op, Instance& instance, std::int64_t micro_batch, std::size_t block);
  void wait_for_operands(const Op& op, Instance& instance, std::int64_t micro_batch);
  void note_uses(const Op& op, Instance& instance, std::int64_t micro_batch);
  void kernel(const Op& op, Instance& instance, std::int64_t micro_batch);
  void gradient_norm(const Op& op, Instance& instance, std::int64_t micro_batch);
  void find_counted(Instance& instance, std::size_t set) const;
  Members members_of(const Op& op) const;
  void communicate(const Op& op, Instance& instance, std::int64_t micro_batch);
  void copy_between_memories(const Op& op, Instance& instance, std::int64_t micro_batch);
  void all_reduce(const Op& op, Instance& instance, std::int64_t micro_batch);
  void all_gather(const Op& op, Instance& instance, std::int64_t micro_batch);
  void reduce_scatter(const Op& op, Instance& instance, std::int64_t micro_batch);
  void redistribute(const Op& op, Instance& instance, std::int64_t micro_batch);
  void ring_shift(const Op& op, Instance& instance, std::int64_t micro_batch);
  void reduce_packed_gradients(const Op& op, Instance& instance);
  double tokens(const Tensor& targets) const;
  void note_loss(Instance& instance, TensorId statistics, std::int64_t micro_batch);

  Located resolve(Instance& instance, TensorId id);
  Storage& storage(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes, Stream stream);
  StoragePtr& storage_pointer(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes, Stream stream);
  void fill_input(const PiecePlan& plan, const Tensor& tensor, std::int64_t micro_batch, Storage& storage) const;
  // The tensor's part of its storage.
  Slice slice(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes, Stream stream);
  // The tensor dense in memory: where it is, or gathered into `scratch`.
  void* dense(Instance& instance, TensorId id, std::int64_t micro_batch, Stream stream, StoragePtr& scratch);
  Target target(Instance& instance, TensorId id, std::int64_t micro_batch, Stream stream);
  void put(const Target& target, Stream stream);
  StoragePtr scratch(std::int64_t elements, Dtype dtype, Stream stream);
  void* element(void* base, std::int64_t at, Dtype dtype) const;
  const std::vector<std::int64_t>& part_index(const Tensor& whole, int dim, std::int64_t begin, std::int64_t size);
  // Of what a group's collective gathers or scatters along a dimension the elements that `member` has.
  const std::vector<std::int64_t>& member_index(const Tensor& whole, const Tensor& part, int dim, std::size_t member,
                                                std::int64_t place);
  const std::vector<std::int64_t>& exchanged_index(const Tensor& tensor, std::size_t rank, const Tensor& in,
                                                   std::size_t other);
  std::int64_t longest_exchange(const Tensor& from, const Tensor& to, const Members& members);
  bool adds(const Op& op, const Instance& instance, TensorId id) const;
  std::vector<std::int64_t> sequence_positions(const PiecePlan& plan, const Tensor& tensor) const;
  void place_dropout(const Op& op, const Instance& instance, std::int64_t micro_batch, KernelContext& context) const;
  std::string describe(const Op& op, const Instance& instance) const;
  std::string meeting(const Op& op) const;

  void measure_step(Backend::Mark begin, Backend::Mark end);
  std::vector<HeldPart> held();

  template <class Visit>
  void for_each_instance(Visit visit) {
    for (RankChunk& chunk : chunks_)
      for (Instance& instance : chunk.instances) visit(instance);
  }

  const RunSetup& setup_;
  const Program& program_;
  Backend& backend_;
  Communicator& communicator_;
  StreamOrder order_;
  MemoryLedger memory_;
  const Position position_;
  std::vector<PiecePlan> plans_;
  std::vector<RankChunk> chunks_;
  std::vector<Waiting> waiting_;
  std::map<std::array<std::int64_t, 6>, std::vector<std::int64_t>> part_indices_;
  std::map<std::vector<std::int64_t>, std::vector<std::int64_t>> exchanged_indices_;
  std::map<MessageTag, StreamPart> own_messages_;  // between chunks of this stage
  Borders borders_;
  // Rows of a table of positions whose view is not dense.
  std::map<std::pair<const std::vector<std::int64_t>*, std::int64_t>, std::vector<std::int64_t>> row_indices_;
  Instance* embedding_ = nullptr;  // of this stage
  bool shares_table_ = false;      // other pieces of the stage use the embedding's
  TensorId table_ = kNoTensor, table_gradient_ = kNoTensor;
  std::int64_t step_ = 0;
  double squared_norm_ = 0;
  std::vector<StoragePtr> norm_parts_;
  std::vector<std::pair<StoragePtr, Tensor>> loss_statistics_;  // of this step's micro-batches
  std::vector<Issue> issues_;                                   // of this step
  std::uint64_t waited_for_ = 0;
  bool measuring_ = false;
  RankResult result_;
};

}  // namespace orrery::realrun
