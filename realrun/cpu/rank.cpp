#include "realrun/cpu/rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"

namespace orrery::cpu {
namespace {

constexpr std::array<Block Piece::*, 4> kBlocks{&Piece::forward, &Piece::backward, &Piece::weight_gradient,
                                                &Piece::update};

bool is_vocabulary_table(const Tensor& t) { return t.rank == 2 && t.axes[0] == Axis::vocab; }

constexpr bool is_divided(Axis axis) { return axis == Axis::groups || axis == Axis::ffn || axis == Axis::vocab; }
bool is_divided(const Tensor& t) {
  for (int d = 0; d < t.rank; ++d)
    if (is_divided(t.axes[d])) return true;
  return false;
}

bool is_named(const Op& op, std::string_view name) { return name == op.name; }

}  // namespace

template <class Visit>
void Rank::for_each_instance(Visit visit) {
  for (RankChunk& chunk : chunks_)
    for (RankRun& run : chunk.runs)
      for (Instance& instance : run.instances) visit(instance);
}

Rank::Rank(std::size_t rank, const RunSetup& setup, Exchange& exchange)
    : setup_(setup),
      program_(setup.program),
      exchange_(exchange),
      position_(position_of(rank, setup.scenario, setup.program, setup.sequence)),
      own_positions_(position_.positions(position_.cp)) {
  plans_.resize(program_.pieces.size());
  for (std::size_t p = 0; p < plans_.size(); ++p) plan_piece(program_.pieces[p], plans_[p]);
  build_chunks();
}

void Rank::plan_piece(const Piece& piece, PiecePlan& plan) {
  plan.piece = &piece;
  plan.views = views_of(piece, position_);
  const std::size_t n = piece.tensors.size();
  plan.capacity.assign(n, 0);
  std::vector<bool> written(n), in_update(n), in_step(n), conditional(n);
  for (std::size_t id = 0; id < n; ++id) {
    const View& v = plan.views[id];
    const std::int64_t elements = piece.tensors[id].elements();
    const std::int64_t end = v.dense() ? v.offset + elements : *std::max_element(v.index.begin(), v.index.end()) + 1;
    plan.capacity[v.root] = std::max(plan.capacity[v.root], end);
  }
  for (Block Piece::*block : kBlocks)
    for (const Op& op : (piece.*block).ops) {
      const auto touch = [&](TensorId id, bool write) {
        if (id == kNoTensor) return;
        const TensorId root = plan.views[id].root;
        if (write && !written[root] && op.when != When::every_micro_batch) conditional[root] = true;
        if (write) written[root] = true;
        (block == &Piece::update ? in_update : in_step)[root] = true;
      };
      for (TensorId id : op.reads) touch(id, false);
      for (TensorId id : op.writes) touch(id, true);
    }
  plan.lasting.assign(n, false);
  plan.input.assign(n, false);
  const auto root = [&](TensorId id) { return id == kNoTensor ? kNoTensor : plan.views[id].root; };
  for (std::size_t id = 0; id < n; ++id) {
    const Tensor& t = piece.tensors[id];
    if (t.alias_of != kNoTensor) continue;
    plan.lasting[id] =
        t.resident || in_update[id] || conditional[id] || (t.category == Category::parameter && !written[id]);
    const bool given = root(piece.input) == id || root(piece.output_gradient) == id;
    plan.input[id] =
        !plan.lasting[id] && !written[id] && !given && t.category == Category::activation && t.dtype == Dtype::int64;
  }
  plan.held_parameters = piece.flat_parameters;
  plan.held_gradients = piece.flat_gradients;
  for (std::size_t id = 0; id < n; ++id) {
    const std::string_view name = piece.tensors[id].name;
    if (name == "parameter_shard") plan.held_parameters = static_cast<TensorId>(id);
    if (name == "gradient_shard") plan.held_gradients = static_cast<TensorId>(id);
  }
  for (const ParameterGradient& p : piece.parameters)
    if (!piece.tensors[p.parameter].shared) plan.flat_elements += piece.tensors[p.parameter].elements();
  if (plan.held_parameters != kNoTensor &&
      std::string_view(piece.tensors[plan.held_parameters].name) == "parameter_shard")
    plan.shard_begin = position_.shard * piece.tensors[plan.held_parameters].sizes[0];
  find_partial_gradients(plan);
}

// The rule of replicated_gradients.all_reduce: whole parameters, computed from a part of the tokens or of the heads.
void Rank::find_partial_gradients(PiecePlan& plan) const {
  const Piece& piece = *plan.piece;
  const auto packed = std::find_if(piece.update.ops.begin(), piece.update.ops.end(),
                                   [](const Op& op) { return is_named(op, "replicated_gradients.all_reduce"); });
  if (packed == piece.update.ops.end()) return;
  const auto in_part = [&](TensorId id) {
    const Tensor& t = piece.tensors[id];
    const int d = t.find(Axis::sequence);
    return is_divided(t) || (d >= 0 && t.sizes[d] * position_.tp_degree * position_.cp_degree == position_.sequence);
  };
  const auto note = [&](TensorId gradient, TensorId source) {
    if (gradient == kNoTensor || is_divided(piece.tensors[gradient]) || !in_part(source)) return;
    plan.partial_gradients.push_back(gradient);
  };
  for (const Block* block : {&piece.backward, &piece.weight_gradient})
    for (const Op& op : block->ops) {
      if (op.kind == OpKind::norm_backward) note(op.writes[1], op.reads[0]), note(op.writes[2], op.reads[0]);
      if (op.kind == OpKind::bias_gradient) note(op.writes[0], op.reads[0]);
      if (op.kind == OpKind::linear_weight_gradient) note(op.writes[0], op.reads[1]);
    }
  std::int64_t elements = 0;
  for (TensorId id : plan.partial_gradients) {
    const bool rows = piece.tensors[id].find(Axis::sequence) >= 0;  // packed before context parallelism divided them
    elements += piece.tensors[id].elements() * (rows ? position_.cp_degree : 1);
  }
  if (elements != piece.tensors[packed->reads[0]].elements())
    throw ExecutionError(std::string("piece \"") + piece.name + "\" packs " +
                         std::to_string(piece.tensors[packed->reads[0]].elements()) + " replicated gradients, but " +
                         std::to_string(elements) + " are partial sums");
}

void Rank::build_chunks() {
  const auto stage = static_cast<std::size_t>(position_.pp);
  // Parameters of the model before each chunk, in the order of the chunks' positions.
  std::vector<std::size_t> before(program_.schedule.position.size() + 1, 0);
  const std::size_t chunks = program_.stages[stage].size();
  for (std::size_t s = 0; s < program_.stages.size(); ++s)
    for (std::size_t c = 0; c < chunks; ++c) {
      std::size_t n = 0;
      for (const Run& run : program_.stages[s][c].runs)
        n += static_cast<std::size_t>(run.count) * program_.pieces[run.piece].parameters.size();
      before[static_cast<std::size_t>(program_.schedule.position_of(s, c)) + 1] = n;
    }
  for (std::size_t q = 1; q < before.size(); ++q) before[q] += before[q - 1];
  if (before.back() != setup_.parameters.size())
    throw ExecutionError("the stages hold " + std::to_string(before.back()) + " parameters, the model has " +
                         std::to_string(setup_.parameters.size()));
  chunks_.resize(chunks);
  for (std::size_t c = 0; c < chunks; ++c) {
    chunks_[c].position = program_.schedule.position_of(stage, c);
    std::size_t parameter = before[static_cast<std::size_t>(chunks_[c].position)];
    for (const Run& run : program_.stages[stage][c].runs) {
      chunks_[c].runs.emplace_back();
      auto& instances = chunks_[c].runs.back().instances;
      instances.resize(static_cast<std::size_t>(run.count));
      for (Instance& instance : instances) {
        instance.plan = &plans_[run.piece];
        instance.first_parameter = parameter;
        parameter += instance.plan->piece->parameters.size();
        instance.lasting.resize(instance.plan->piece->tensors.size());
      }
    }
  }
  for_each_instance([&](Instance& instance) {
    const Piece& piece = *instance.plan->piece;
    if (piece.input == kNoTensor)
      for (const Op& op : piece.forward.ops)
        if (op.kind == OpKind::embedding && is_vocabulary_table(piece.tensors[op.reads[1]])) {
          embedding_ = &instance;
          table_ = op.reads[1];
        }
    if (embedding_ == &instance)
      for (const ParameterGradient& p : piece.parameters)
        if (is_vocabulary_table(piece.tensors[p.parameter])) table_gradient_ = p.gradient;
  });
  for_each_instance([&](Instance& instance) { initialise(instance); });
}

// Parameters by their place in the whole model; a master copy has the parameters' values, moments and gradients are
// zero.
void Rank::initialise(Instance& instance) {
  const PiecePlan& plan = *instance.plan;
  const Piece& piece = *plan.piece;
  std::vector<float> flat(static_cast<std::size_t>(plan.flat_elements), 0.0f);
  std::size_t begin = 0, ordinal = instance.first_parameter;
  for (const ParameterGradient& p : piece.parameters) {
    const std::size_t own = ordinal++;
    const Tensor& local = piece.tensors[p.parameter];
    if (local.shared) continue;
    const WholeParameter& whole = setup_.parameters[static_cast<std::size_t>(setup_.parameters[own].values_of)];
    const std::vector<std::int64_t> element = whole_elements(local, setup_.parameters[own].tensor, position_);
    for (std::size_t e = 0; e < element.size(); ++e) {
      const double u = counter_uniform(setup_.options.seed, static_cast<std::uint64_t>(whole.values_of),
                                       static_cast<std::uint64_t>(element[e]));
      constexpr double kUniform = 1.7320508075688772;  // deviation 1
      constexpr double kSmall = 0.2, kTable = 0.5;     // far enough from zero and one to show in every gradient
      double value = 0;
      switch (whole.initial) {
        case InitialValue::scale:
          value = 1 + kSmall * u;
          break;
        case InitialValue::shift:
          value = kSmall * u;
          break;
        case InitialValue::table:
          value = kTable * u;
          break;
        case InitialValue::matrix:
          value = kUniform * whole.deviation * u;
          break;
      }
      if (setup_.options.nudged_parameter == whole.values_of && setup_.options.nudged_element == element[e])
        value += setup_.options.nudge;
      flat[begin + e] = static_cast<float>(value);
    }
    begin += element.size();
  }
  if (plan.held_parameters == kNoTensor) return;
  for (std::size_t id = 0; id < piece.tensors.size(); ++id) {
    const Tensor& t = piece.tensors[id];
    if (!plan.lasting[id] || t.alias_of != kNoTensor || t.rank != 1) continue;
    const bool parameters = id == plan.views[plan.held_parameters].root;
    const std::string_view name = t.name;
    const bool master = name == "master_parameters" || name == "host_parameters";
    if (!parameters && !master && t.category != Category::optimizer_state && t.category != Category::gradient &&
        name != "first_moment" && name != "second_moment")
      continue;
    instance.lasting[id] = std::make_unique<Storage>();
    std::vector<float>& data = instance.lasting[id]->data;
    data.assign(static_cast<std::size_t>(plan.capacity[id]), 0.0f);
    if (!parameters && !master) continue;
    // A shard with storage of its own begins in the middle of the flat buffer.
    const bool whole = parameters && t.elements() == plan.flat_elements;
    const std::size_t from = whole ? 0 : static_cast<std::size_t>(plan.shard_begin);
    for (std::size_t e = 0; e < data.size() && from + e < flat.size(); ++e) data[e] = flat[from + e];
  }
}

std::string Rank::describe(const Op& op, const Instance& instance) const {
  return std::string(name_of(op.kind)) + " \"" + op.name + "\" (" + name_of(op.phase) + ") of piece \"" +
         instance.plan->piece->name + "\" at " +
         setup_.parameters[std::min(instance.first_parameter, setup_.parameters.size() - 1)].name;
}

Rank::Place Rank::resolve(Instance& instance, TensorId id) {
  const Piece& piece = *instance.plan->piece;
  if (!piece.tensors[id].shared) return {&instance, id};
  if (embedding_ == nullptr) throw ExecutionError("a shared table without its embedding on the same stage");
  return {embedding_, piece.tensors[id].category == Category::gradient ? table_gradient_ : table_};
}

Storage& Rank::storage(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes) {
  const PiecePlan& plan = *instance.plan;
  const TensorId root = plan.views[id].root;
  StorageSet& set = plan.lasting[root] ? instance.lasting : instance.micro[micro_batch];
  if (set.empty()) set.resize(plan.piece->tensors.size());
  std::unique_ptr<Storage>& s = set[root];
  if (s != nullptr) return *s;
  const Tensor& t = plan.piece->tensors[root];
  if (!writes && !plan.input[root])
    throw ExecutionError(std::string("tensor \"") + t.name + "\" of piece \"" + plan.piece->name +
                         "\" is read before it is written");
  s = std::make_unique<Storage>();
  const float nothing = t.category == Category::gradient ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  s->data.assign(static_cast<std::size_t>(plan.capacity[root]), setup_.options.find_undefined ? nothing : 0.0f);
  if (plan.input[root]) fill_input(t, micro_batch, *s);
  return *s;
}

// Inputs by sequence of the global batch and position in it.
void Rank::fill_input(const Tensor& t, std::int64_t micro_batch, Storage& s) const {
  constexpr std::uint64_t kInputs = std::uint64_t{1} << 40;  // streams apart from the parameters'
  const std::string_view name = t.name;
  const bool targets = name == "targets", ids = name == "ids", segments = name == "token_types",
             next = name == "next_sentence";
  if (!targets && !ids && !segments && !next)
    throw std::logic_error(std::string("nobody knows the input \"") + t.name + "\"");
  const std::int64_t kinds = segments ? setup_.scenario.model.token_types : next ? 2 : setup_.scenario.model.vocab;
  const std::uint64_t stream = kInputs + (targets ? 1u : ids ? 0u : segments ? 2u : 3u);
  const bool positions = t.find(Axis::sequence) >= 0;
  const std::int64_t sequences = setup_.scenario.plan.batch.micro_batch_size;
  const std::int64_t first = (position_.replica * program_.schedule.micro_batches + micro_batch) * sequences;
  const std::int64_t width = t.sizes[1];
  for (std::int64_t e = 0; e < t.elements(); ++e) {
    const std::int64_t at = positions ? own_positions_[static_cast<std::size_t>(e % width)] : e % width;
    const double u = counter_uniform(setup_.options.seed, stream,
                                     static_cast<std::uint64_t>((first + e / width) * setup_.sequence + at));
    s.data[static_cast<std::size_t>(e)] =
        static_cast<float>(std::min(kinds - 1, static_cast<std::int64_t>((u + 1) / 2 * static_cast<double>(kinds))));
  }
}

std::vector<float> Rank::pack(Instance& instance, TensorId id, std::int64_t micro_batch) {
  const Place place = resolve(instance, id);
  const Tensor& t = place.instance->plan->piece->tensors[place.id];
  const View& view = place.instance->plan->views[place.id];
  const Storage& s = storage(*place.instance, place.id, micro_batch, false);
  std::vector<float> values(static_cast<std::size_t>(t.elements()));
  for (std::size_t e = 0; e < values.size(); ++e)
    values[e] = s.data[static_cast<std::size_t>(view.at(static_cast<std::int64_t>(e)))];
  return values;
}

void Rank::unpack(Instance& instance, TensorId id, std::int64_t micro_batch, const std::vector<float>& values,
                  bool add) {
  const Place place = resolve(instance, id);
  const View& view = place.instance->plan->views[place.id];
  Storage& s = storage(*place.instance, place.id, micro_batch, true);
  for (std::size_t e = 0; e < values.size(); ++e) {
    float& to = s.data[static_cast<std::size_t>(view.at(static_cast<std::int64_t>(e)))];
    to = add ? to + values[e] : values[e];
  }
}

bool Rank::adds(const Op& op, const Instance& instance, TensorId id) const {
  const TensorId root = instance.plan->views[id].root;  // a view of a gradient may be called otherwise
  return op.phase != Phase::update && instance.plan->piece->tensors[root].category == Category::gradient;
}

// Positions of a tensor that runs along the sequence: of this context rank, or (sequence parallelism) its part of them.
std::vector<std::int64_t> Rank::sequence_positions(const Tensor& t) const {
  const int d = t.find(Axis::sequence);
  if (d < 0) return {};
  const auto size = static_cast<std::size_t>(t.sizes[d]);
  if (size == own_positions_.size()) return own_positions_;
  if (size * static_cast<std::size_t>(position_.tp_degree) != own_positions_.size()) return {};
  const auto begin = own_positions_.begin() + static_cast<std::ptrdiff_t>(size) * position_.tp;
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

// An op's place in the model is that of the first parameter of its layer; a piece of several layers repeats its ops.
void Rank::place_dropout(const Op& op, const Instance& instance, std::int64_t micro_batch,
                         KernelContext& context) const {
  const Piece& piece = *instance.plan->piece;
  std::int64_t repeats = 0, before = 0;
  for (const Block* block : {&piece.forward, &piece.backward}) {
    if (&op < block->ops.data() || &op >= block->ops.data() + block->ops.size()) continue;
    for (const Op& other : block->ops) {
      if (other.kind != op.kind || !is_named(other, op.name)) continue;
      before += &other < &op;
      ++repeats;
    }
  }
  const std::size_t layer = instance.first_parameter + static_cast<std::size_t>(before) * piece.parameters.size() /
                                                           static_cast<std::size_t>(repeats);
  std::uint64_t hash = layer;
  const auto append = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ull; };  // FNV-1a
  for (const char* c = op.name; *c != 0; ++c) append(static_cast<std::uint64_t>(*c));
  append(static_cast<std::uint64_t>(position_.replica * program_.schedule.micro_batches + micro_batch));
  append(static_cast<std::uint64_t>(step_));
  context.dropout_stream = hash;
  const Tensor& y = piece.tensors[op.writes[0]];
  const std::int64_t groups = setup_.scenario.model.heads / position_.group_heads;
  const std::int64_t sharing = std::max<std::int64_t>(1, position_.tp_degree / groups);
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    context.whole_sizes[i] = y.sizes[d];
    if (y.axes[d] == Axis::sequence) context.whole_sizes[i] = setup_.sequence;
    if (y.axes[d] == Axis::groups) {
      context.whole_sizes[i] = groups;
      context.part_begin[i] = position_.tp / sharing * y.sizes[d];
    } else if (y.axes[d] == Axis::group_heads) {
      context.whole_sizes[i] = position_.group_heads;
      context.part_begin[i] = position_.tp % sharing * y.sizes[d];
    } else if (is_divided(y.axes[d])) {
      context.whole_sizes[i] = y.sizes[d] * position_.tp_degree;
      context.part_begin[i] = position_.tp * y.sizes[d];
    }
  }
}

// ---- blocks -----------------------------------------------------------------------------------------------------

void Rank::run() {
  const std::int64_t steps = setup_.options.steps;
  losses_.assign(static_cast<std::size_t>(steps), 0);
  norms_.assign(static_cast<std::size_t>(steps), 0);
  for (step_ = 0; step_ < steps; ++step_) {
    program_.schedule.order(static_cast<std::size_t>(position_.pp)).for_each([&](Slot slot) {
      RankChunk& chunk = chunks_.at(slot.chunk);
      const auto m = static_cast<std::int64_t>(slot.micro_batch);
      switch (slot.kind) {
        case SlotKind::forward:
          forward(chunk, m);
          break;
        case SlotKind::backward:
          backward(chunk, m);
          break;
        case SlotKind::weight_gradient:
          weight_gradient(chunk, m);
          break;
      }
    });
    for_each_instance([&](Instance& instance) { instance.micro.clear(); });
    update();
  }
}

void Rank::run_block(const std::vector<Op>& ops, Instance& instance, bool last_of_run, std::int64_t micro_batch) {
  for (const Op& op : ops) {
    if (op.when == When::first_micro_batch && micro_batch != 0) continue;
    if (op.when == When::last_micro_batch && micro_batch + 1 != program_.schedule.micro_batches) continue;
    if (op.every == 1) {
      execute(op, instance, micro_batch);
      continue;
    }
    auto bucket = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.op == &op; });
    if (bucket == waiting_.end()) bucket = waiting_.insert(waiting_.end(), Waiting{&op, {}});
    bucket->instances.push_back(&instance);
    if (!last_of_run && bucket->instances.size() < op.every) continue;
    const std::vector<Instance*> covered = std::move(bucket->instances);
    waiting_.erase(bucket);
    for (Instance* i : covered) execute(op, *i, micro_batch);
  }
}

void Rank::forward(RankChunk& chunk, std::int64_t micro_batch) {
  std::vector<float> stream;
  bool has_stream = chunk.position > 0;
  if (has_stream)
    stream = exchange_.receive(position_.rank,
                               {static_cast<std::int64_t>(position_.rank), chunk.position, micro_batch, false});
  for (RankRun& run : chunk.runs)
    for (Instance& instance : run.instances) {
      const Piece& piece = *instance.plan->piece;
      if (piece.input != kNoTensor) unpack(instance, piece.input, micro_batch, stream, false);
      run_block(piece.forward.ops, instance, &instance == &run.instances.back(), micro_batch);
      if (piece.output != kNoTensor) stream = pack(instance, piece.output, micro_batch);
    }
  const std::int64_t last = static_cast<std::int64_t>(program_.schedule.position.size()) - 1;
  if (chunk.position == last) return;
  for (std::size_t s = 0; s < program_.stages.size(); ++s)
    for (std::size_t c = 0; c < chunks_.size(); ++c)
      if (program_.schedule.position_of(s, c) == chunk.position + 1) {
        const std::int64_t to = static_cast<std::int64_t>(position_.group(MeshAxis::pp).at(s));
        exchange_.send({to, chunk.position + 1, micro_batch, false}, stream);
      }
}

void Rank::backward(RankChunk& chunk, std::int64_t micro_batch) {
  std::vector<float> stream;
  const std::int64_t last = static_cast<std::int64_t>(program_.schedule.position.size()) - 1;
  if (chunk.position < last)
    stream = exchange_.receive(position_.rank,
                               {static_cast<std::int64_t>(position_.rank), chunk.position, micro_batch, true});
  for (auto run = chunk.runs.rbegin(); run != chunk.runs.rend(); ++run)
    for (auto instance = run->instances.rbegin(); instance != run->instances.rend(); ++instance) {
      const Piece& piece = *instance->plan->piece;
      if (piece.output_gradient != kNoTensor) unpack(*instance, piece.output_gradient, micro_batch, stream, false);
      run_block(piece.backward.ops, *instance, &*instance == &run->instances.front(), micro_batch);
      if (piece.input_gradient != kNoTensor) stream = pack(*instance, piece.input_gradient, micro_batch);
    }
  if (chunk.position > 0)
    for (std::size_t s = 0; s < program_.stages.size(); ++s)
      for (std::size_t c = 0; c < chunks_.size(); ++c)
        if (program_.schedule.position_of(s, c) == chunk.position - 1) {
          const std::int64_t to = static_cast<std::int64_t>(position_.group(MeshAxis::pp).at(s));
          exchange_.send({to, chunk.position - 1, micro_batch, true}, stream);
        }
  if (!program_.schedule.split_backward) release(chunk, micro_batch);
}

void Rank::weight_gradient(RankChunk& chunk, std::int64_t micro_batch) {
  for (auto run = chunk.runs.rbegin(); run != chunk.runs.rend(); ++run)
    for (auto instance = run->instances.rbegin(); instance != run->instances.rend(); ++instance)
      run_block(instance->plan->piece->weight_gradient.ops, *instance, &*instance == &run->instances.front(),
                micro_batch);
  release(chunk, micro_batch);
}

void Rank::release(RankChunk& chunk, std::int64_t micro_batch) {
  for (RankRun& run : chunk.runs)
    for (Instance& instance : run.instances) instance.micro.erase(micro_batch);
}

void Rank::update() {
  // Up to the gradient norm; what the norm needs; what follows it.
  const auto norm_begin = [](const std::vector<Op>& ops) {
    const auto it = std::find_if(
        ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::gradient_norm || is_optimizer(op.kind); });
    return static_cast<std::size_t>(it - ops.begin());
  };
  const auto run_ops = [&](auto selects) {
    for (RankChunk& chunk : chunks_)
      for (RankRun& run : chunk.runs) {
        const auto& ops = run.instances.front().plan->piece->update.ops;
        const std::size_t split = norm_begin(ops);
        for (std::size_t i = 0; i < ops.size(); ++i)
          if (selects(i < split, ops[i]))
            for (Instance& instance : run.instances) execute(ops[i], instance, -1);
      }
  };
  const auto of_norm = [](const Op& op) {
    return op.kind == OpKind::gradient_norm || is_named(op, "gradient_norm.all_reduce");
  };
  run_ops([](bool before, const Op&) { return before; });
  sum_tied_gradients();
  squared_norm_ = 0;
  clip_ = 1;
  run_ops([](bool, const Op& op) { return op.kind == OpKind::gradient_norm; });
  reduce_gradient_norm();
  capture_gradients();
  run_ops([&](bool before, const Op& op) { return !before && !of_norm(op); });
  for_each_instance([](Instance& instance) { instance.micro.clear(); });
}

// The table's gradients of the first and the last stage. Their places in the flat buffers differ, and with them their
// shards: everyone shows what it holds and adds what the other stage has of its own part.
void Rank::sum_tied_gradients() {
  if (program_.tied_embedding_bytes == 0) return;
  Deposit mine;
  std::int64_t first = 0;  // of the table in this rank's held part
  Instance* owner = nullptr;
  std::int64_t begin = 0, elements = 0;
  for_each_instance([&](Instance& instance) {
    const PiecePlan& plan = *instance.plan;
    std::int64_t at = 0;
    for (const ParameterGradient& p : plan.piece->parameters) {
      const Tensor& t = plan.piece->tensors[p.parameter];
      if (t.shared) continue;
      if (is_vocabulary_table(t)) owner = &instance, begin = at, elements = t.elements();
      at += t.elements();
    }
  });
  std::int64_t last = 0;
  if (owner != nullptr) {
    const PiecePlan& plan = *owner->plan;
    const std::int64_t held = plan.piece->tensors[plan.held_gradients].elements();
    first = std::clamp<std::int64_t>(plan.shard_begin - begin, 0, elements);
    last = std::clamp<std::int64_t>(plan.shard_begin + held - begin, 0, elements);
    const std::vector<float> values = pack(*owner, plan.held_gradients, -1);
    for (std::int64_t e = first; e < last; ++e)
      mine.values.push_back(values[static_cast<std::size_t>(begin + e - plan.shard_begin)]);
    mine.tag = first;
  }
  const MeshAxes axes = MeshAxis::pp | MeshAxis::dp_shard | MeshAxis::dp_replicate | MeshAxis::cp;
  const std::vector<std::size_t> members = position_.group(axes);
  const auto all = exchange_.meet(position_.rank, members, "tied embedding", std::move(mine));
  if (owner == nullptr || first == last) return;
  const PiecePlan& plan = *owner->plan;
  std::vector<float> values = pack(*owner, plan.held_gradients, -1);
  std::vector<bool> added(static_cast<std::size_t>(last - first), false);
  for (std::size_t m = 0; m < members.size(); ++m) {
    const Position other = position_of(members[m], setup_.scenario, program_, setup_.sequence);
    if (other.pp == position_.pp) continue;
    // Not yet reduced over replicas, or reduced: the same replica's is the right one where each holds all.
    const bool whole = last - first == elements;
    if (whole && (other.shard != position_.shard || other.replica != position_.replica)) continue;
    const Deposit& d = (*all)[m];
    for (std::size_t i = 0; i < d.values.size(); ++i) {
      const std::int64_t e = d.tag + static_cast<std::int64_t>(i);
      if (e < first || e >= last || added[static_cast<std::size_t>(e - first)]) continue;
      added[static_cast<std::size_t>(e - first)] = true;
      values[static_cast<std::size_t>(begin + e - plan.shard_begin)] += d.values[i];
    }
  }
  if (std::find(added.begin(), added.end(), false) != added.end())
    throw ExecutionError("the other stage lacks a part of the tied table");
  unpack(*owner, plan.held_gradients, -1, values, false);
}

void Rank::reduce_gradient_norm() {
  MeshAxes axes;
  bool has = false;
  for_each_instance([&](Instance& instance) {
    for (const Op& op : instance.plan->piece->update.ops)
      if (is_named(op, "gradient_norm.all_reduce")) axes = op.axes, has = true;
  });
  if (!has) return;
  Deposit mine;
  // Two floats carry a double's sum well enough to compare layouts.
  const auto high = static_cast<float>(squared_norm_);
  mine.values = {high, static_cast<float>(squared_norm_ - static_cast<double>(high))};
  const auto all = exchange_.meet(position_.rank, position_.group(axes), "gradient_norm.all_reduce", std::move(mine));
  double sum = 0;
  for (const Deposit& d : *all) sum += static_cast<double>(d.values[0]) + static_cast<double>(d.values[1]);
  const double norm = std::sqrt(sum);
  norms_[static_cast<std::size_t>(step_)] = norm;
  const double most = setup_.options.maximum_gradient_norm;
  if (most > 0 && norm > most) clip_ = most / norm;
}

void Rank::capture_gradients() {
  for_each_instance([&](Instance& instance) {
    if (instance.plan->held_gradients == kNoTensor) return;
    instance.captured_gradients = pack(instance, instance.plan->held_gradients, -1);
  });
}

std::vector<HeldPart> Rank::held() const {
  std::vector<HeldPart> parts;
  for (const RankChunk& chunk : chunks_)
    for (const RankRun& run : chunk.runs)
      for (const Instance& instance : run.instances) {
        const PiecePlan& plan = *instance.plan;
        if (plan.held_parameters == kNoTensor) continue;
        const View& view = plan.views[plan.held_parameters];
        const std::vector<float>& data = instance.lasting[view.root]->data;
        const std::int64_t held = plan.piece->tensors[plan.held_parameters].elements();
        std::int64_t begin = 0;
        std::size_t ordinal = instance.first_parameter;
        for (const ParameterGradient& p : plan.piece->parameters) {
          const std::size_t own = ordinal++;
          const Tensor& local = plan.piece->tensors[p.parameter];
          if (local.shared) continue;
          HeldPart part;
          part.parameter = static_cast<std::size_t>(setup_.parameters[own].values_of);
          const std::vector<std::int64_t> element = whole_elements(local, setup_.parameters[own].tensor, position_);
          for (std::int64_t e = 0; e < local.elements(); ++e) {
            const std::int64_t at = begin + e - plan.shard_begin;
            if (at < 0 || at >= held) continue;
            part.element.push_back(element[static_cast<std::size_t>(e)]);
            part.gradient.push_back(instance.captured_gradients[static_cast<std::size_t>(at)]);
            part.value.push_back(data[static_cast<std::size_t>(view.offset + at)]);
          }
          begin += local.elements();
          parts.push_back(std::move(part));
        }
      }
  return parts;
}

}  // namespace orrery::cpu
