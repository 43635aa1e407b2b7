#include "strategies/data_parallel/data_parallel.h"

#include <algorithm>
#include <string>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"

namespace orrery::data_parallel {
namespace {

struct Layout {
  const Options& options;
  MeshGroup shard_group, replicate_group;
  std::int64_t shards, replicas;
  double bucket_bytes;
  bool in_every_micro_batch;  // gradients are reduced as soon as they are there, and do not wait whole
  bool keeps_parameters;      // gathered once a step
};

class Shard {
 public:
  Shard(const Layout& layout, Piece& piece) : l_(layout), piece_(piece) {}

  void run() {
    if (piece_.flat_parameters == kNoTensor) return;
    if (l_.options.zero_stage == 0) return reduce_whole(l_.shard_group | l_.replicate_group);
    const TensorId whole_parameters = piece_.flat_parameters, whole_gradients = piece_.flat_gradients;
    shard_states();
    if (l_.options.zero_stage == 3) {
      gather_parameters_in_blocks(whole_parameters);
    } else {
      gather_updated_parameters(whole_parameters);
    }
    scatter_gradients(whole_gradients);
  }

 private:
  std::int64_t sharded(std::int64_t elements) const { return (elements + l_.shards - 1) / l_.shards; }
  void divide(Tensor& flat) const {
    flat.sizes[0] = sharded(flat.sizes[0]);
    flat.over[0].append(l_.shard_group);
  }
  When when() const { return l_.in_every_micro_batch ? When::every_micro_batch : When::last_micro_batch; }

  // Runs `op` on the data-communication stream once per bucket. A bucket holds several small layers or a part of a
  // large one.
  void bucketed(Op op, double bytes, When when) {
    op.when = when;
    // Gradients of one micro-batch never exist whole for longer than a bucket: without overlap the backward waits.
    if (!l_.options.overlap_gradients && l_.in_every_micro_batch) {
      op.account = op.stream;
      op.stream = Stream::compute;
    }
    if (l_.options.overlap_gradients || l_.in_every_micro_batch) {
      if (l_.bucket_bytes == 0 || (l_.in_every_micro_batch && bytes < l_.bucket_bytes)) {
        // One collective per piece: FSDP's wrapped unit. What does not stay whole does not wait for a bucket to fill.
      } else if (bytes >= l_.bucket_bytes) {
        op.count = static_cast<std::uint16_t>(std::clamp(bytes / l_.bucket_bytes + 0.5, 1.0, 60000.0));
      } else {
        op.every = static_cast<std::uint16_t>(std::clamp(l_.bucket_bytes / std::max(bytes, 1.0), 1.0, 60000.0));
      }
      op.phase = Phase::weight_gradient;
      // Behind the weight gradients, which zero-bubble schedules run apart.
      Block& block = piece_.weight_gradient.ops.empty() ? piece_.backward : piece_.weight_gradient;
      block.ops.push_back(op);
    } else {
      op.when = When::every_micro_batch;
      op.phase = Phase::update;
      op.every = kAllInstances;
      piece_.update.ops.insert(piece_.update.ops.begin() + reductions_before_update_++, op);
    }
  }

  // `whole`: whose bytes fill the buckets.
  void reduce_replicated(TensorId gradients, TensorId whole, When when, MeshGroup group) {
    bucketed(communication(OpKind::all_reduce, "gradients.all_reduce", Stream::data_communication, group, gradients,
                           gradients),
             static_cast<double>(piece_.tensors[whole].bytes()), when);
  }

  // All ranks keep all of the sum. That of every micro-batch is added to what they have of those before.
  void reduce_whole(MeshGroup group) {
    const TensorId whole = piece_.flat_gradients;
    if (!l_.in_every_micro_batch) return reduce_replicated(whole, whole, When::last_micro_batch, group);
    Tensor sum = piece_.tensors[whole];
    sum.name = "reduced_gradients";
    piece_.flat_gradients = piece_.add(sum);
    piece_.tensors[whole].resident = false;
    for (Op& op : piece_.update.ops) replace(op, whole, piece_.flat_gradients);
    Op op = communication(OpKind::all_reduce, "gradients.all_reduce", Stream::data_communication, group, whole,
                          piece_.flat_gradients);
    op.accumulate = true;
    bucketed(op, static_cast<double>(piece_.tensors[whole].bytes()), When::every_micro_batch);
  }

  static void replace(Op& op, TensorId from, TensorId to) {
    std::replace(op.reads.begin(), op.reads.end(), from, to);
    std::replace(op.writes.begin(), op.writes.end(), from, to);
  }

  // Optimizer states, and whatever else the stage shards, become this rank's part.
  void shard_states() {
    for (Tensor& t : piece_.tensors)
      if (t.category == Category::optimizer_state) divide(t);

    Tensor shard = piece_.tensors[piece_.flat_parameters];
    divide(shard);
    shard.name = "parameter_shard";
    if (l_.options.zero_stage < 3) {
      shard.alias_of = piece_.flat_parameters;
      shard.resident = false;
    }
    const TensorId parameter_shard = piece_.add(shard);

    Tensor gradient = piece_.tensors[piece_.flat_gradients];
    divide(gradient);
    gradient.name = "gradient_shard";
    if (!l_.in_every_micro_batch) {
      gradient.alias_of = piece_.flat_gradients;
      gradient.resident = false;
    }
    const TensorId gradient_shard = piece_.add(gradient);

    for (Op& op : piece_.update.ops) {
      // Every micro-batch adds to the whole buffer: all of it starts from zero.
      if (op.kind == OpKind::zero_fill && !l_.in_every_micro_batch) continue;
      replace(op, piece_.flat_parameters, parameter_shard);
      replace(op, piece_.flat_gradients, gradient_shard);
      if (op.kind == OpKind::all_reduce && is_gradient_norm(piece_, op.reads[0]))
        op.group = op.group | l_.shard_group;                      // each rank now knows the norm of its shard only
      if (l_.in_every_micro_batch && sums_packed_gradients(op)) {  // and packs what its shard has of them
        std::int64_t& elements = piece_.tensors[op.reads[0]].sizes[0];
        elements = sharded(elements);
      }
    }
    if (l_.in_every_micro_batch) {
      piece_.tensors[piece_.flat_gradients].resident = false;
      piece_.flat_gradients = gradient_shard;
    }
    if (l_.options.zero_stage == 3) {
      piece_.tensors[piece_.flat_parameters].resident = false;
      piece_.flat_parameters = parameter_shard;
    }
    parameter_shard_ = parameter_shard;
    gradient_shard_ = gradient_shard;
  }

  bool sums_packed_gradients(const Op& op) const {
    return op.kind == OpKind::all_reduce && piece_.tensors[op.reads[0]].category == Category::communication_buffer;
  }

  void scatter_gradients(TensorId whole) {
    Op op = communication(OpKind::reduce_scatter, "gradients.reduce_scatter", Stream::data_communication, l_.shard_group,
                          whole, gradient_shard_);
    op.accumulate = l_.in_every_micro_batch;  // the shard outlives the whole gradient
    bucketed(op, static_cast<double>(piece_.tensors[whole].bytes()), when());
    // The scattered shards of a bucket, and no bucket before it is scattered.
    if (l_.replicas > 1) reduce_replicated(gradient_shard_, whole, When::last_micro_batch, l_.replicate_group);
  }

  // Stages 1 and 2: the updated shards are gathered under the next step's first forward, or right after the update.
  void gather_updated_parameters(TensorId whole) {
    Op op = communication(OpKind::all_gather, "parameters.all_gather", Stream::parameter_communication, l_.shard_group,
                          parameter_shard_, whole);
    if (l_.options.overlap_parameters) {
      op.when = When::first_micro_batch;
      op.free_running = true;
      op.prefetch = 1;
      piece_.forward.ops.insert(piece_.forward.ops.begin(), op);
    } else {
      op.phase = Phase::update;
      op.every = kAllInstances;
      piece_.update.ops.push_back(op);
    }
  }

  // Stage 3: each block works on gathered copies of its piece's parameters. The forward's may serve the backward, too,
  // and all micro-batches of the step.
  void gather_parameters_in_blocks(TensorId whole) {
    const TensorId forward_copy = gathered(piece_.forward, whole);
    if (!l_.options.reshard_after_forward) {  // kept for the backward
      rename_parameters(piece_.backward, whole, forward_copy);
      rename_parameters(piece_.weight_gradient, whole, forward_copy);
      return;
    }
    gathered(piece_.backward, whole);
  }

  // Prepends the gather to `block` and lets its ops read slices of the gathered copy.
  TensorId gathered(Block& block, TensorId whole) {
    Tensor copy = piece_.tensors[whole];
    copy.resident = false;
    copy.name = "gathered_parameters";
    const TensorId id = piece_.add(copy);
    rename_parameters(block, whole, id);
    Op op = communication(OpKind::all_gather, "parameters.all_gather", Stream::parameter_communication, l_.shard_group,
                          parameter_shard_, id);
    op.phase = &block == &piece_.forward ? Phase::forward : Phase::input_gradient;
    op.prefetch = static_cast<std::uint16_t>(std::min<std::int64_t>(l_.options.prefetch, 60000));
    op.free_running = op.prefetch > 0;
    if (l_.keeps_parameters) op.when = When::first_micro_batch;
    block.ops.insert(block.ops.begin(), op);
    return id;
  }

  void rename_parameters(Block& block, TensorId whole, TensorId copy) {
    std::vector<TensorId> renamed(piece_.tensors.size(), kNoTensor);
    const std::size_t count = piece_.tensors.size();
    for (std::size_t id = 0; id < count; ++id) {  // a view of a view comes after what it views
      const TensorId base = piece_.tensors[id].alias_of;
      if (base == kNoTensor || piece_.tensors[id].category != Category::parameter) continue;
      const TensorId renamed_base = base == whole ? copy : renamed[base];
      if (renamed_base == kNoTensor) continue;
      Tensor view = piece_.tensors[id];
      view.alias_of = renamed_base;
      renamed[id] = piece_.add(view);
    }
    for (Op& op : block.ops)
      for (TensorId& id : op.reads)
        if (id != kNoTensor && id < count && renamed[id] != kNoTensor) id = renamed[id];
  }

  const Layout& l_;
  Piece& piece_;
  TensorId parameter_shard_ = kNoTensor, gradient_shard_ = kNoTensor;
  std::ptrdiff_t reductions_before_update_ = 0;
};

}  // namespace

bool reduces_in_every_micro_batch(const Scenario& scenario, std::int64_t micro_batches) {
  const Options& options = scenario.plan.data;
  if (options.zero_stage >= 2 && micro_batches == 1) return true;
  if (options.reduce_gradients != Reduction::automatic) return options.reduce_gradients == Reduction::every_micro_batch;
  return options.zero_stage >= 2 && framework::reduces_shards_in_every_micro_batch(scenario.plan);
}

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.data;
  const std::int64_t degree = data_parallel_degree(scenario);
  const auto fail = [](const char* field, std::int64_t found, const std::string& expected) {
    throw InputError({"", std::string("/plan/") + field}, std::to_string(found), expected);
  };
  if (options.shard_degree > 0) {
    if (options.zero_stage == 0)
      fail("zero_shard_degree", options.shard_degree, "0 with zero_stage 0, which shards nothing");
    if (degree % options.shard_degree != 0)
      fail("zero_shard_degree", options.shard_degree,
           "a divisor of the data-parallel degree " + std::to_string(degree));
  }
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (plan.data.prefetch > 1000)
      throw InputError({"", at + "prefetch"}, std::to_string(plan.data.prefetch), "at most 1000 layers");
  });
}

void add_digits(const Scenario& scenario, Mesh& mesh) {
  const Options& options = scenario.plan.data;
  const std::int64_t degree = data_parallel_degree(scenario);
  const std::int64_t shard = options.zero_stage == 0 || options.shard_degree == 0 ? degree : options.shard_degree;
  mesh.add(MeshAxis::dp_shard, shard);
  mesh.add(MeshAxis::dp_replicate, degree / shard);
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  const Options& options = plan.data;
  const MeshGroup shard_group = program.mesh.group({MeshAxis::dp_shard, MeshAxis::cp}),
                  replicate_group = program.mesh.group(MeshAxis::dp_replicate);
  const std::int64_t shards = program.mesh.size(shard_group), replicas = program.mesh.size(replicate_group);
  if (shards * replicas == 1) return;
  const double bucket = options.bucket_bytes > 0 ? static_cast<double>(options.bucket_bytes)
                                                 : framework::gradient_bucket_bytes(scenario.plan, shards * replicas);
  const bool every = reduces_in_every_micro_batch(scenario, program.schedule.micro_batches);
  const Layout layout{
      options,  shard_group, replicate_group, shards,
      replicas, bucket,      every,           options.zero_stage == 3 && !options.reshard_after_forward && !every};
  Shard(layout, piece).run();
}

void disable(Plan& plan) {
  plan.data = {};
  plan.data.degree = 1;
}

std::span<const PlanWord> words() {
  static constexpr PlanWord kWords[]{{"data", [](const Scenario& s) { return data_parallel_degree(s) > 1; }},
                                     {"zero-1", [](const Scenario& s) { return s.plan.data.zero_stage == 1; }},
                                     {"zero-2", [](const Scenario& s) { return s.plan.data.zero_stage == 2; }},
                                     {"zero-3", [](const Scenario& s) { return s.plan.data.zero_stage == 3; }}};
  return kWords;
}

}  // namespace orrery::data_parallel
