// A rank's steps: the schedule's slots, the blocks of its pieces, the update.
#include "realrun/rank.h"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace orrery::realrun {
namespace {

constexpr Stream kStages = Stream::pipeline_communication;
constexpr std::int64_t kOfStep = -1;  // in place of a micro-batch

// Of the update: the gradient norm, or what would follow it.
std::size_t norm_begin(const std::vector<Op>& ops) {
  const auto it = std::find_if(ops.begin(), ops.end(), [](const Op& op) {
    return op.kind == OpKind::gradient_norm || is_optimizer(op.kind) || op.kind == OpKind::copy;
  });
  return static_cast<std::size_t>(it - ops.begin());
}

// What held gradients are still multiplied by behind their norm, or where the host has a copy, but for clipping: the
// inverse of a loss scale.
double later_factor(const PiecePlan& plan, std::size_t set) {
  const std::vector<Op>& ops = plan.piece->update.ops;
  const std::size_t norm = norm_begin(ops);
  double factor = 1;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind != OpKind::scale && !is_optimizer(ops[i].kind)) continue;
    if (held_by(*plan.piece, ops[i].writes[0]) != set) continue;
    const bool done = i < norm && plan.views[ops[i].writes[0]].root == plan.views[plan.held[set].gradients].root;
    if (!done) factor *= ops[i].factor;
  }
  return factor;
}

}  // namespace

RankResult Rank::run() {
  const ExecutionOptions& options = setup_.options;
  Members all(communicator_.ranks());
  for (std::size_t r = 0; r < all.size(); ++r) all[r] = r;
  for (step_ = 0; step_ < options.warmup_steps + options.steps; ++step_) {
    const std::int64_t measured = step_ - options.warmup_steps;
    if (options.measure && measured == 0) memory_.forget_peak();
    // Marks around every op would slow the steps whose time counts.
    measuring_ = options.measure && measured >= options.steps / 2;
    if (options.measure) {
      backend_.synchronize();
      backend_.forget_marks();
      communicator_.gather_values(all, "the start of a step", {});
    }
    const Backend::Mark begin = options.measure ? backend_.mark(Stream::compute) : 0;
    step();
    if (options.measure && measured >= 0) {
      for (int s = 1; s < kStreams; ++s) {  // the step ends when all streams have
        const auto stream = static_cast<Stream>(s);
        backend_.wait(Stream::compute, backend_.record(stream));
      }
      const Backend::Mark end = backend_.mark(Stream::compute);
      backend_.synchronize();
      measure_step(begin, end);
    }
    gather_losses();
    if (options.after_step) options.after_step(position_.rank, step_);
  }
  result_.rank = position_.rank;
  result_.stage = position_.pp;
  result_.peak_bytes = memory_.peak_bytes();
  result_.bytes_at_peak = memory_.at_peak();
  if (options.keep_tensors) result_.parts = held();
  backend_.synchronize();
  communicator_.finish();
  return std::move(result_);
}

void Rank::step() {
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
  for_each_instance([](Instance& instance) { instance.micro.clear(); });
  for (const UpdatePart part : kStepEnd) end_step(part);
  for_each_instance([](Instance& instance) { instance.micro.clear(); });
}

// ---- blocks -----------------------------------------------------------------------------------------------------

template <class Take, class Give>
void Rank::run_line(std::size_t block, RankChunk& chunk, std::int64_t micro_batch, Take take, Give give) {
  const std::vector<InLine>& line = chunk.line(block);
  const IssueAhead order{static_cast<std::int64_t>(line.size()), chunk.longest_ahead[block]};
  const auto issue = [&](std::int64_t at, int least, int most) {
    run_ahead(block, *line[static_cast<std::size_t>(at)].instance, micro_batch, least, most);
  };
  order.at_beginning(issue);
  for (std::size_t i = 0; i < line.size(); ++i) {
    take(*line[i].instance);
    run_block(block, line[i], micro_batch, [&] { order.when_starts(static_cast<std::int64_t>(i), issue); });
    give(*line[i].instance);
  }
}

void Rank::run_ahead(std::size_t block, Instance& instance, std::int64_t micro_batch, int least, int most) {
  const std::vector<Op>& ops = (instance.plan->piece->*kBlocks[block]).ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!instance.plan->is_ahead(block, i) || ops[i].prefetch < least || ops[i].prefetch > most) continue;
    if (!runs(ops[i], micro_batch)) continue;
    execute(ops[i], instance, micro_batch, block);
    end_lives(block, i, instance, micro_batch);
  }
}

template <class Begun>
void Rank::run_block(std::size_t block, const InLine& at, std::int64_t micro_batch, Begun begun) {
  const auto ops_of = [block](const Instance& of) -> const std::vector<Op>& {
    return (of.plan->piece->*kBlocks[block]).ops;
  };
  Instance& instance = *at.instance;
  const std::vector<Op>& ops = ops_of(instance);
  std::size_t buckets = 0;
  bool began = false;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const std::size_t own_bucket = op.every > 1 ? buckets++ : 0;
    if (instance.plan->is_ahead(block, i)) continue;
    const bool skipped = !runs(op, micro_batch);
    if (skipped || op.every == 1) {
      if (!skipped) execute(op, instance, micro_batch, block);
      end_lives(block, i, instance, micro_batch);
      if (skipped || began || op.stream != Stream::compute) continue;
      began = true;
      begun();
      continue;
    }
    auto bucket = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const Waiting& w) { return w.block == block && w.bucket == own_bucket; });
    if (bucket == waiting_.end()) bucket = waiting_.insert(waiting_.end(), Waiting{block, own_bucket, {}});
    bucket->ops.emplace_back(&instance, i);
    const std::int64_t instances = instances_covered(op.every, at.place);
    if (instances == 0) continue;
    const std::vector<std::pair<Instance*, std::size_t>> covered = std::move(bucket->ops);
    waiting_.erase(bucket);
    if (static_cast<std::int64_t>(covered.size()) != instances)
      throw std::logic_error("a bucket of " + std::to_string(instances) + " layers holds " +
                             std::to_string(covered.size()));
    for (const auto& [each, of_each] : covered) {
      execute(ops_of(*each)[of_each], *each, micro_batch, block);
      end_lives(block, of_each, *each, micro_batch);
    }
  }
  if (!began) begun();
}

void Rank::end_lives(std::size_t block, std::size_t op, Instance& instance, std::int64_t micro_batch) {
  const Stream stream = (instance.plan->piece->*kBlocks[block]).ops[op].stream;
  for (const TensorId id : instance.plan->begins_anew[block][op]) {
    if (instance.lasting[id] == nullptr) continue;
    Storage& s = *instance.lasting[id];
    backend_.fill(stream, {s.data, s.dtype, 0, s.elements, nullptr}, 0);
    s.note_written(order_.issued(stream));
  }
  const auto set = instance.micro.find(micro_batch);
  if (set == instance.micro.end() || set->second.empty()) return;
  for (const TensorId id : instance.plan->ends[block][op]) {
    // The head reads the table that the embedding has gathered, and adds to its gradient.
    const auto is = [&](TensorId of) { return of != kNoTensor && id == instance.plan->views[of].root; };
    if (shares_table_ && &instance == embedding_ && (is(table_) || is(table_gradient_))) continue;
    set->second[id].reset();
  }
}

void Rank::hand_in(Instance& instance, TensorId id, std::int64_t micro_batch, const StreamPart& stream) {
  const PiecePlan& plan = *instance.plan;
  const View& view = plan.views[id];
  const Tensor& t = plan.piece->tensors[id];
  if (stream.elements != t.elements())
    throw ExecutionError(std::string("piece \"") + plan.piece->name + "\" takes " + std::to_string(t.elements()) +
                         " elements, its neighbour hands on " + std::to_string(stream.elements));
  const bool same = view.dense() && view.offset == 0 && plan.capacity[view.root] == stream.elements &&
                    !plan.lasts(view.root) && t.dtype == stream.dtype;
  if (same) {
    StorageSet& set = instance.micro[micro_batch];
    if (set.empty()) set.resize(plan.piece->tensors.size());
    set[view.root] = stream.storage;
    return;
  }
  if (t.dtype != stream.dtype) throw std::logic_error("neighbouring pieces differ in their dtype");
  const Slice to = slice(instance, id, micro_batch, true, Stream::compute);
  order_.wait(Stream::compute, stream.storage->written);
  backend_.scatter(Stream::compute, stream.storage->data, to, false);
  const Use use = order_.issued(Stream::compute);
  stream.storage->note_read(use);
  storage(instance, id, micro_batch, true, Stream::compute).note_written(use);
}

Rank::StreamPart Rank::hand_on(Instance& instance, TensorId id, std::size_t block, std::int64_t micro_batch) {
  const PiecePlan& plan = *instance.plan;
  const View& view = plan.views[id];
  const Tensor& t = plan.piece->tensors[id];
  StreamPart stream{storage_pointer(instance, id, micro_batch, false, Stream::compute), t.elements(), t.dtype};
  if (!view.dense() || view.offset != 0 || stream.storage->elements != t.elements()) {
    const StoragePtr copy =
        std::make_shared<Storage>(memory_, t.elements(), t.dtype, Category::activation, Stream::compute);
    order_.wait(Stream::compute, stream.storage->written);
    backend_.gather(Stream::compute, slice(instance, id, micro_batch, false, Stream::compute), copy->data);
    const Use use = order_.issued(Stream::compute);
    stream.storage->note_read(use);
    copy->note_written(use);
    stream.storage = copy;
  }
  if (plan.ends_handed_on(view.root, block)) instance.micro[micro_batch][view.root].reset();
  return stream;
}

std::size_t Rank::rank_at(std::int64_t position) const {
  for (std::size_t s = 0; s < program_.stages.size(); ++s)
    for (std::size_t c = 0; c < chunks_.size(); ++c)
      if (program_.schedule.position_of(s, c) == position) return position_.group(MeshAxis::pp).at(s);
  throw std::logic_error("no stage holds position " + std::to_string(position));
}

Rank::StreamPart Rank::zeros(const Tensor& tensor) {
  StreamPart part{scratch(tensor.elements(), tensor.dtype, Stream::compute), tensor.elements(), tensor.dtype};
  backend_.fill(Stream::compute, {part.storage->data, part.dtype, 0, part.elements, nullptr}, 0);
  part.storage->note_written(order_.issued(Stream::compute));
  return part;
}

const std::array<const Tensor*, 1 + kSideStreams>& Rank::crossing_to(std::int64_t position, bool backward) const {
  return backward ? borders_[static_cast<std::size_t>(position)].backward
                  : borders_[static_cast<std::size_t>(position - 1)].forward;
}

Rank::Streams Rank::receive(std::int64_t position, std::int64_t micro_batch, bool backward) {
  Streams streams;
  const auto& crossing = crossing_to(position, backward);
  for (std::size_t s = 0; s < streams.size(); ++s)
    if (crossing[s] != nullptr) streams[s] = receive({position, micro_batch, backward, s}, *crossing[s]);
  return streams;
}

void Rank::send(std::int64_t position, std::int64_t micro_batch, bool backward, Streams& streams) {
  const auto& crossing = crossing_to(position, backward);
  for (std::size_t s = 0; s < streams.size(); ++s)
    if (crossing[s] != nullptr) send({position, micro_batch, backward, s}, streams[s]);
}

Rank::StreamPart Rank::receive(const MessageTag& tag, const Tensor& tensor) {
  const std::size_t from = rank_at(tag.backward ? tag.position + 1 : tag.position - 1);
  if (from == position_.rank) {
    auto node = own_messages_.extract(tag);
    if (node.empty()) throw ExecutionError("a stage waits for what it has to send itself");
    return std::move(node.mapped());
  }
  const std::int64_t n = tensor.elements();
  StreamPart part{std::make_shared<Storage>(memory_, n, tensor.dtype, Category::activation, kStages), n, tensor.dtype};
  Issue issue{.stream = kStages, .micro_batch = tag.micro_batch, .between_stages = true, .receives = true};
  if (measuring_) issue.begin = backend_.mark(kStages);
  communicator_.at("receive", tag.backward ? "output gradient" : "input", tag.micro_batch);
  communicator_.receive(from, tag, kStages, part.storage->data, n, tensor.dtype);
  if (measuring_) issue.end = backend_.mark(kStages), issues_.push_back(issue);
  part.storage->note_written(order_.issued(kStages));
  return part;
}

void Rank::send(const MessageTag& tag, StreamPart& part) {
  const std::size_t to = rank_at(tag.position);
  if (to == position_.rank) {
    own_messages_.emplace(tag, std::move(part));
    return;
  }
  order_.wait(kStages, part.storage->written);
  Issue issue{.stream = kStages, .micro_batch = tag.micro_batch, .between_stages = true};
  if (measuring_) issue.begin = backend_.mark(kStages);
  communicator_.at("send", tag.backward ? "input gradient" : "output", tag.micro_batch);
  communicator_.send(to, tag, kStages, part.storage->data, part.elements, part.dtype);
  if (measuring_) issue.end = backend_.mark(kStages), issues_.push_back(issue);
  part.storage->note_read(order_.issued(kStages));
}

void Rank::forward(RankChunk& chunk, std::int64_t micro_batch) {
  Streams streams;
  bool received = chunk.position == 0;
  const auto take = [&](Instance& instance) {
    const Piece& piece = *instance.plan->piece;
    if (!std::exchange(received, true)) streams = receive(chunk.position, micro_batch, false);
    if (piece.input != kNoTensor) hand_in(instance, piece.input, micro_batch, streams[0]);
    streams[0].storage.reset();
    for (std::size_t s = 0; s < kSideStreams; ++s)
      if (piece.sides[s].input != kNoTensor) hand_in(instance, piece.sides[s].input, micro_batch, streams[1 + s]);
  };
  const auto give = [&](Instance& instance) {
    const Piece& piece = *instance.plan->piece;
    if (piece.output != kNoTensor) streams[0] = hand_on(instance, piece.output, kForwardBlock, micro_batch);
    for (std::size_t s = 0; s < kSideStreams; ++s)
      if (piece.sides[s].output != kNoTensor)
        streams[1 + s] = hand_on(instance, piece.sides[s].output, kForwardBlock, micro_batch);
  };
  run_line(kForwardBlock, chunk, micro_batch, take, give);
  const std::int64_t last = static_cast<std::int64_t>(program_.schedule.position.size()) - 1;
  if (chunk.position < last) send(chunk.position + 1, micro_batch, false, streams);
}

void Rank::backward(RankChunk& chunk, std::int64_t micro_batch) {
  Streams streams;
  const std::int64_t last = static_cast<std::int64_t>(program_.schedule.position.size()) - 1;
  bool received = chunk.position == last;
  const auto take = [&](Instance& instance) {
    const Piece& piece = *instance.plan->piece;
    if (!std::exchange(received, true)) streams = receive(chunk.position, micro_batch, true);
    if (piece.output_gradient != kNoTensor) hand_in(instance, piece.output_gradient, micro_batch, streams[0]);
    streams[0].storage.reset();
    for (std::size_t s = 0; s < kSideStreams; ++s) {
      const TensorId id = piece.sides[s].output_gradient;
      if (id == kNoTensor) continue;
      StreamPart& part = streams[1 + s];
      hand_in(instance, id, micro_batch, part.storage != nullptr ? part : zeros(piece.tensors[id]));
      part = {};
    }
  };
  const auto give = [&](Instance& instance) {
    const Piece& piece = *instance.plan->piece;
    if (piece.input_gradient != kNoTensor)
      streams[0] = hand_on(instance, piece.input_gradient, kBackwardBlock, micro_batch);
    for (std::size_t s = 0; s < kSideStreams; ++s)
      if (piece.sides[s].input_gradient != kNoTensor)
        streams[1 + s] = hand_on(instance, piece.sides[s].input_gradient, kBackwardBlock, micro_batch);
  };
  run_line(kBackwardBlock, chunk, micro_batch, take, give);
  if (chunk.position > 0) send(chunk.position - 1, micro_batch, true, streams);
  if (!program_.schedule.split_backward) release(chunk, micro_batch);
}

void Rank::weight_gradient(RankChunk& chunk, std::int64_t micro_batch) {
  const auto nothing = [](Instance&) {};
  run_line(kWeightGradientBlock, chunk, micro_batch, nothing, nothing);
  release(chunk, micro_batch);
}

void Rank::release(RankChunk& chunk, std::int64_t micro_batch) {
  for (Instance& instance : chunk.instances) instance.micro.erase(micro_batch);
}

// ---- update -----------------------------------------------------------------------------------------------------

void Rank::end_step(UpdatePart part) {
  if (part == UpdatePart::norm) squared_norm_ = 0;
  for_each_instance([&](Instance& instance) {
    const std::vector<Op>& ops = instance.plan->piece->update.ops;
    const auto [begin, end] = instance.plan->update.range(part);
    const std::size_t reduced = norm_begin(ops);
    for (std::size_t i = begin; i < end; ++i) {
      if (i == reduced) capture_gradients(instance);
      if (!instance.plan->reduces_norm(ops[i])) execute(ops[i], instance, kOfStep, kUpdateBlock);
      end_lives(kUpdateBlock, i, instance, kOfStep);
    }
    if (part == kStepEnd.back() && reduced == ops.size()) capture_gradients(instance);
  });
  if (part == UpdatePart::norm) reduce_gradient_norm();
}

void Rank::capture_gradients(Instance& instance) {
  if (!setup_.options.keep_tensors) return;
  const PiecePlan& plan = *instance.plan;
  instance.captured_gradients.clear();
  for (std::size_t s = 0; s < plan.held.size(); ++s) {
    const TensorId id = plan.held[s].gradients;
    std::vector<float>& captured = instance.captured_gradients.emplace_back();
    if (id == kNoTensor) continue;
    captured.resize(static_cast<std::size_t>(plan.piece->tensors[id].elements()));
    backend_.synchronize();
    backend_.read(slice(instance, id, kOfStep, false, Stream::compute), captured);
    const double factor = later_factor(plan, s);
    for (float& g : captured) g = static_cast<float>(factor * g);
  }
}

void Rank::reduce_gradient_norm() {
  MeshGroup group;
  bool has = false;
  for_each_instance([&](Instance& instance) {
    for (const Op& op : instance.plan->piece->update.ops)
      if (instance.plan->reduces_norm(op)) group = op.group, has = true;
  });
  for (const StoragePtr& part : norm_parts_) {
    float square = 0;
    backend_.read({part->data, part->dtype, 0, 1, nullptr}, {&square, 1});
    squared_norm_ += static_cast<double>(square);
  }
  norm_parts_.clear();
  double sum = squared_norm_;
  if (has) {
    Issue issue{.stream = Stream::data_communication, .micro_batch = -1, .reduces_norm = true};
    if (measuring_) issue.begin = backend_.mark(issue.stream);
    communicator_.at("update", "gradient_norm.all_reduce", -1);
    const auto all = communicator_.gather_values(position_.group(group), "gradient_norm.all_reduce", {squared_norm_});
    if (measuring_) issue.end = backend_.mark(issue.stream), issues_.push_back(issue);
    sum = 0;
    for (const std::vector<double>& each : all) sum += each.at(0);
  }
  double factor = 1;
  for_each_instance([&](Instance& instance) {
    const Piece& piece = *instance.plan->piece;
    for (std::size_t s = 0; s < piece.sets.size(); ++s)
      if (!piece.sets[s].frozen()) factor = later_factor(*instance.plan, s);  // of all sets the same
    for (const Op& op : piece.update.ops) {
      if (!instance.plan->reduces_norm(op)) continue;
      const auto square = static_cast<float>(sum);
      const TensorId id = op.writes[0];
      backend_.write(slice(instance, id, -1, true, Stream::compute), {&square, 1});
      storage(instance, id, -1, true, Stream::compute).note_written(order_.issued(Stream::compute));
    }
  });
  result_.gradient_norms.push_back(factor * std::sqrt(sum));
}

void Rank::gather_losses() {
  double loss = 0;
  for (const auto& [storage, tensor] : loss_statistics_) {
    const auto n = static_cast<std::size_t>(storage->elements) / 3;
    std::vector<float> statistics(3 * n);
    backend_.synchronize();
    backend_.read({storage->data, storage->dtype, 0, storage->elements, nullptr}, statistics);
    double sum = 0;
    for (std::size_t t = 0; t < n; ++t)
      sum += static_cast<double>(statistics[t]) + std::log(static_cast<double>(statistics[n + t])) -
             static_cast<double>(statistics[2 * n + t]);
    loss += sum / tokens(tensor);
  }
  loss_statistics_.clear();
  result_.losses.push_back(loss);
}

// ---- what comes out ---------------------------------------------------------------------------------------------

std::vector<HeldPart> Rank::held() {
  std::vector<HeldPart> parts;
  backend_.synchronize();
  for_each_instance([&](Instance& instance) {
    const PiecePlan& plan = *instance.plan;
    std::vector<std::vector<float>> values;  // by set
    for (const HeldSet& set : plan.held) {
      values.emplace_back(static_cast<std::size_t>(plan.piece->tensors[set.parameters].elements()));
      backend_.read(slice(instance, set.parameters, -1, false, Stream::compute), values.back());
    }
    std::vector<std::int64_t> begins(plan.held.size());
    std::size_t ordinal = instance.first_parameter;
    for (const ParameterGradient& p : plan.piece->parameters) {
      const std::size_t own = ordinal++;
      const Tensor& local = plan.piece->tensors[p.parameter];
      if (local.shared) continue;
      HeldPart part;
      part.parameter = static_cast<std::size_t>(setup_.parameters[own].values_of);
      const std::vector<std::int64_t> element = whole_elements(local, setup_.parameters[own].tensor, position_);
      const std::vector<float>&value = values[p.set], &gradient = instance.captured_gradients[p.set];
      for (std::int64_t e = 0; e < local.elements(); ++e) {
        const std::int64_t at = begins[p.set] + e - plan.held[p.set].begin;
        if (at < 0 || at >= static_cast<std::int64_t>(value.size())) continue;
        part.element.push_back(element[static_cast<std::size_t>(e)]);
        if (p.gradient != kNoTensor) part.gradient.push_back(gradient[static_cast<std::size_t>(at)]);
        part.value.push_back(value[static_cast<std::size_t>(at)]);
      }
      begins[p.set] += local.elements();
      parts.push_back(std::move(part));
    }
  });
  return parts;
}

}  // namespace orrery::realrun
