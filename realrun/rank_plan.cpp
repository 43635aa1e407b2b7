// What a rank holds: storages, views, parameters, inputs.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "realrun/rank.h"
#include "sim/base/error.h"
#include "sim/program/rewrite.h"

namespace orrery::realrun {

std::size_t held_by(const Piece& piece, TensorId buffer) {
  const ParameterSet* set = set_of(piece, buffer);
  if (set == nullptr)
    throw ExecutionError(std::string("\"") + piece.tensors[buffer].name + "\" of piece \"" + piece.name +
                         "\" belongs to no parameter set");
  return static_cast<std::size_t>(set - piece.sets.data());
}

Rank::Rank(const RunSetup& setup, Backend& backend, Communicator& communicator)
    : setup_(setup),
      program_(setup.program),
      backend_(backend),
      communicator_(communicator),
      order_(backend),
      memory_(backend, order_),
      position_(position_of(communicator.rank(), setup.program, setup.sequence)) {
  plans_.resize(program_.pieces.size());
  for (std::size_t p = 0; p < plans_.size(); ++p) plan_piece(program_.pieces[p], plans_[p]);
  build_chunks();
}

void Rank::plan_piece(const Piece& piece, PiecePlan& plan) {
  plan.piece = &piece;
  const SideStream& memory = piece.sides[kEncoderOutput];
  const bool of_decoder = memory.input != kNoTensor || memory.output != kNoTensor || piece.output == kNoTensor;
  plan.sequence = of_decoder ? setup_.decoder_sequence : setup_.sequence;
  plan.views = views_of(piece, position_in(plan));
  const std::size_t n = piece.tensors.size();
  plan.capacity.assign(n, 0);
  for (std::size_t id = 0; id < n; ++id) {
    const View& v = plan.views[id];
    const std::int64_t elements = piece.tensors[id].elements();
    const std::int64_t end = v.dense() ? v.offset + elements : *std::max_element(v.index.begin(), v.index.end()) + 1;
    plan.capacity[v.root] = std::max(plan.capacity[v.root], end);
  }
  for (Block Piece::*block : kBlocks)
    for (const Op& op : (piece.*block).ops) {
      if (op.kind != OpKind::all_gather || piece.tensors[op.writes[0]].rank != 1) continue;
      const View& whole = plan.views[op.writes[0]];  // of a flat buffer: with the padding of the last parts
      plan.capacity[whole.root] =
          std::max(plan.capacity[whole.root],
                   whole.offset + piece.tensors[op.reads[0]].elements() * program_.mesh.size(op.group));
    }
  plan.of_norm.assign(n, false);
  for (Block Piece::*block : kBlocks)
    for (const Op& op : (piece.*block).ops)
      if (op.kind == OpKind::gradient_norm) plan.of_norm[plan.views[op.writes[0]].root] = true;
  for (const ParameterSet& set : piece.sets)
    plan.held.push_back(
        {set.own_parameters, set.own_gradients, position_.begin(piece.tensors[set.own_parameters], 0), 0});
  for (const ParameterGradient& p : piece.parameters)
    if (!piece.tensors[p.parameter].shared) plan.held.at(p.set).elements += piece.tensors[p.parameter].elements();
  find_packed_gradients(plan);
  plan.lives.find(piece);
  plan.update = UpdateParts(piece, plan.lives.storage(), !program_.stage_groups.empty());
  FindAhead find_ahead;
  for (std::size_t b = 0; b < kBlocks.size(); ++b)
    if (!find_ahead((piece.*kBlocks[b]).ops, plan.lives.storage(), boundary_of(piece, b).input, plan.ahead[b]))
      plan.ahead[b].clear();
  find_ends(plan);
}

void Rank::find_ends(PiecePlan& plan) const {
  const Piece& piece = *plan.piece;
  for (std::size_t b = 0; b < kBlocks.size(); ++b)
    for (auto* of : {&plan.ends, &plan.begins_anew}) (*of)[b].resize((piece.*kBlocks[b]).ops.size());
  for (const TensorId storage : plan.lives.storages()) {
    const Tensor& t = piece.tensors[storage];
    const Life& life = plan.lives.of(storage);
    if (t.shared) continue;
    if (plan.lasts(storage)) {
      const bool reduced = t.category == Category::gradient && !t.resident && life.read && !life.touches(kUpdateBlock);
      if (reduced && life.touches(kWeightGradientBlock))
        plan.begins_anew[kWeightGradientBlock][life.last[kWeightGradientBlock]].push_back(storage);
      continue;
    }
    for (std::size_t b = 0; b < kBlocks.size(); ++b)
      if (life.touches(b) && !life.outlives(b)) plan.ends[b][life.last[b]].push_back(storage);
  }
}

// Where the gradients that the Program packs lie in what this rank holds.
void Rank::find_packed_gradients(PiecePlan& plan) const {
  const Piece& piece = *plan.piece;
  for (const PackedGradients& packing : piece.packed) {
    std::vector<std::vector<std::int64_t>>& packed = plan.packed[packing.buffer];
    packed.resize(plan.held.size());
    std::vector<std::int64_t> begins(plan.held.size()), elements(plan.held.size());
    for (const ParameterGradient& p : piece.parameters) {
      const Tensor& t = piece.tensors[p.parameter];
      if (t.shared || p.gradient == kNoTensor) continue;
      const HeldSet& held = plan.held[p.set];
      const View& view = plan.views[held.gradients];
      const std::int64_t size = piece.tensors[held.gradients].elements();
      std::int64_t& begin = begins[p.set];
      const auto partial = std::find_if(packing.gradients.begin(), packing.gradients.end(), [&](TensorId id) {
        return id == p.gradient || piece.tensors[id].alias_of == p.gradient;  // rows of a table of positions
      });
      for (std::int64_t e = 0; partial != packing.gradients.end() && e < t.elements(); ++e) {
        if (packing.shared_heads && !is_behind_query_heads(t, e)) continue;
        ++elements[p.set];
        const std::int64_t at = begin + e - held.begin;
        if (at >= 0 && at < size) packed[p.set].push_back(view.at(at));
      }
      if (partial != packing.gradients.end() && *partial != p.gradient) {
        // Packed as many rows as the sequence has, of a table that may have more.
        elements[p.set] -= t.elements();
        elements[p.set] +=
            piece.tensors[*partial].elements() * program_.mesh.size(piece.tensors[*partial].divided_over());
      }
      begin += t.elements();
    }
    // Of shards, each packs what it has of them: the Program counts the mean.
    std::int64_t all = 0;
    for (std::size_t s = 0; s < elements.size(); ++s) {
      if (piece.sets[s].frozen()) continue;
      const std::int64_t shards = program_.mesh.size(piece.tensors[piece.sets[s].gradients].divided_over());
      all += (elements[s] + shards - 1) / shards;
    }
    const Tensor& buffer = piece.tensors[packing.buffer];
    if (all != buffer.elements())
      throw ExecutionError(std::string("piece \"") + piece.name + "\" packs " + std::to_string(buffer.elements()) +
                           " gradients into " + buffer.name + ", but " + std::to_string(all) + " are partial sums");
  }
}

Position Rank::position_in(const PiecePlan& plan) const {
  Position position = position_;
  position.sequence = plan.sequence;
  return position;
}

void Rank::build_chunks() {
  borders_.find(program_);
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
    const std::vector<Run>& runs = program_.stages[stage][c].runs;
    std::vector<Instance>& instances = chunks_[c].instances;
    for (const Run& run : runs)
      for (std::int64_t i = 0; i < run.count; ++i) {
        Instance& instance = instances.emplace_back();
        instance.plan = &plans_[run.piece];
        instance.first_parameter = parameter;
        parameter += instance.plan->piece->parameters.size();
        instance.lasting.resize(instance.plan->piece->tensors.size());
        for (std::size_t b = 0; b < kBlocks.size(); ++b)
          chunks_[c].longest_ahead[b] = std::max(chunks_[c].longest_ahead[b], instance.plan->longest_ahead(b));
      }
    std::size_t next = 0;
    for_each_in_line(program_.pieces, runs, false, [&](const Run& run, PlaceInStretch place) {
      for (std::int64_t i = 0; i < run.count; ++i, ++place.before)
        chunks_[c].forwards.push_back({&instances[next++], place});
    });
    for_each_in_line(program_.pieces, runs, true, [&](const Run& run, PlaceInStretch place) {
      for (std::int64_t i = 0; i < run.count; ++i, ++place.before)
        chunks_[c].backwards.push_back({&instances[--next], place});
    });
  }
  for_each_instance([&](Instance& instance) {
    const Piece& piece = *instance.plan->piece;
    for (const Tensor& t : piece.tensors) shares_table_ = shares_table_ || t.shared;
    for (const Op& op : piece.forward.ops)
      if (embedding_ == nullptr && op.kind == OpKind::embedding && is_vocabulary_table(piece.tensors[op.reads[1]])) {
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
  std::vector<std::vector<float>> flats;  // by set
  for (const HeldSet& held : plan.held) flats.emplace_back(static_cast<std::size_t>(held.elements), 0.0f);
  std::vector<std::size_t> begins(plan.held.size());
  std::size_t ordinal = instance.first_parameter;
  for (const ParameterGradient& p : piece.parameters) {
    const std::size_t own = ordinal++;
    const Tensor& local = piece.tensors[p.parameter];
    if (local.shared) continue;
    const WholeParameter& whole = setup_.parameters[static_cast<std::size_t>(setup_.parameters[own].values_of)];
    const Tensor& shape = setup_.parameters[own].tensor;
    const auto n = static_cast<std::size_t>(local.elements());
    std::vector<float>& flat = flats[p.set];
    std::size_t& begin = begins[p.set];
    const std::vector<std::int64_t> element =
        is_whole(local, shape) ? std::vector<std::int64_t>{} : whole_elements(local, shape, position_);
    for (std::size_t e = 0; e < n; ++e) {
      const std::int64_t at = element.empty() ? static_cast<std::int64_t>(e) : element[e];
      const double u = counter_uniform(setup_.options.seed, static_cast<std::uint64_t>(whole.values_of),
                                       static_cast<std::uint64_t>(at));
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
      if (setup_.options.nudged_parameter == whole.values_of && setup_.options.nudged_element == at)
        value += setup_.options.nudge;
      flat[begin + e] = static_cast<float>(value);
    }
    begin += n;
  }
  if (plan.held.empty()) return;
  // The optimizer's second operand is the weights that it updates; its first result are the parameters.
  constexpr std::size_t kNoSet = kNoTensor;
  std::vector<std::size_t> weights(piece.tensors.size(), kNoSet), parameters(piece.tensors.size(), kNoSet);
  std::vector<bool> states(piece.tensors.size());
  for (const Op& op : piece.update.ops) {
    if (!is_optimizer(op.kind)) continue;
    const std::size_t set = held_by(piece, op.writes[0]);
    for (const auto& ids : {std::span<const TensorId>(op.reads), std::span<const TensorId>(op.writes)})
      for (const TensorId id : ids)
        if (id != kNoTensor) states[plan.views[id].root] = true;
    for (const TensorId id : {op.reads[1], op.writes[0]}) weights[plan.views[id].root] = set;
  }
  for (std::size_t s = 0; s < plan.held.size(); ++s) parameters[plan.views[plan.held[s].parameters].root] = s;
  for (std::size_t id = 0; id < piece.tensors.size(); ++id) {
    const Tensor& t = piece.tensors[id];
    if (t.alias_of != kNoTensor || t.rank != 1 || !plan.lasts(static_cast<TensorId>(id))) continue;
    const bool device = parameters[id] != kNoSet;  // or a copy of the weights elsewhere, in more bits
    const std::size_t set = device ? parameters[id] : weights[id];
    if (!device && !states[id] && t.category != Category::gradient) continue;
    const std::int64_t capacity = plan.capacity[id];
    const auto s = std::make_shared<Storage>(memory_, capacity, t.dtype, t.category, Stream::compute, t.place);
    instance.lasting[id] = s;
    backend_.fill(Stream::compute, {s->data, t.dtype, 0, capacity, nullptr}, 0);
    s->note_written(order_.issued(Stream::compute));
    if (set == kNoSet) continue;
    // A part with storage of its own begins in the middle of the flat buffer.
    const std::int64_t from = position_.part(t.over[0]) * t.sizes[0];
    const std::int64_t n = std::min(capacity, plan.held[set].elements - from);
    if (n > 0)
      backend_.write({s->data, t.dtype, 0, n, nullptr},
                     std::span(flats[set]).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(n)));
  }
}

std::string Rank::describe(const Op& op, const Instance& instance) const {
  return std::string(name_of(op.kind)) + " \"" + op.name + "\" (" + name_of(op.phase) + ") of piece \"" +
         instance.plan->piece->name + "\" at " +
         setup_.parameters[std::min(instance.first_parameter, setup_.parameters.size() - 1)].name;
}

Rank::Located Rank::resolve(Instance& instance, TensorId id) {
  const Piece& piece = *instance.plan->piece;
  if (!piece.tensors[id].shared) return {&instance, id};
  if (embedding_ == nullptr) throw ExecutionError("a shared table without its embedding on the same stage");
  return {embedding_, piece.tensors[id].category == Category::gradient ? table_gradient_ : table_};
}

StoragePtr& Rank::storage_pointer(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes,
                                  Stream stream) {
  const PiecePlan& plan = *instance.plan;
  const TensorId root = plan.views[id].root;
  StorageSet& set = plan.lasts(root) ? instance.lasting : instance.micro[micro_batch];
  if (set.empty()) set.resize(plan.piece->tensors.size());
  StoragePtr& s = set[root];
  if (s != nullptr) return s;
  const Tensor& t = plan.piece->tensors[root];
  if (!writes && t.input == Input::none)
    throw ExecutionError(std::string("tensor \"") + t.name + "\" of piece \"" + plan.piece->name +
                         "\" is read before it is written");
  s = std::make_shared<Storage>(memory_, plan.capacity[root], t.dtype, t.category, stream, t.place);
  if (!writes && t.input != Input::none) {
    fill_input(plan, t, micro_batch, *s);
  } else if (t.category == Category::gradient || setup_.options.find_undefined) {
    const float nothing = t.category == Category::gradient ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    backend_.fill(stream, {s->data, t.dtype, 0, plan.capacity[root], nullptr}, nothing);
    s->note_written(order_.issued(stream));
  }
  return s;
}

Storage& Rank::storage(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes, Stream stream) {
  return *storage_pointer(instance, id, micro_batch, writes, stream);
}

// Inputs by sequence of the global batch and position in it, or patch and pixel.
void Rank::fill_input(const PiecePlan& plan, const Tensor& t, std::int64_t micro_batch, Storage& s) const {
  constexpr std::uint64_t kInputs = std::uint64_t{1} << 40;  // streams apart from the parameters'
  const Model& model = setup_.scenario.model;
  std::vector<float> values(static_cast<std::size_t>(t.elements()));
  const std::int64_t sequences = setup_.scenario.plan.batch.micro_batch_size, width = t.elements() / t.sizes[0];
  const std::int64_t first = (position_.replica * program_.schedule.micro_batches + micro_batch) * sequences;
  const auto draw = [&](std::uint64_t stream, std::int64_t index) {
    return counter_uniform(setup_.options.seed, kInputs + stream, static_cast<std::uint64_t>(index));
  };
  const auto ids = [&](std::int64_t kinds, std::uint64_t stream) {
    const std::vector<std::int64_t> positions = sequence_positions(plan, t);
    for (std::int64_t e = 0; e < t.elements(); ++e) {
      const std::int64_t at = positions.empty() ? e % width : positions[static_cast<std::size_t>(e % width)];
      const double u = draw(stream, (first + e / width) * plan.sequence + at);
      values[static_cast<std::size_t>(e)] =
          static_cast<float>(std::min(kinds - 1, static_cast<std::int64_t>((u + 1) / 2 * static_cast<double>(kinds))));
    }
  };
  const auto distances = [&](bool past) {
    for (std::int64_t e = 0; e < t.elements(); ++e)
      values[static_cast<std::size_t>(e)] =
          static_cast<float>(position_bucket(e % width - e / width, past, model.relative_buckets));
  };
  switch (t.input) {
    case Input::none:
      throw std::logic_error(std::string("\"") + t.name + "\" is not given from outside");
    case Input::tokens:
      ids(model.vocab, 0);
      break;
    case Input::targets:
      ids(model.vision() ? model.classes : model.vocab, 1);
      break;
    case Input::token_types:
      ids(model.token_types, 2);
      break;
    case Input::next_sentence:
      ids(2, 3);
      break;
    case Input::decoder_tokens:
      ids(model.vocab, 5);
      break;
    case Input::distances:
      distances(false);
      break;
    case Input::past_distances:
      distances(true);
      break;
    case Input::patches:
      for (std::int64_t e = 0; e < t.elements(); ++e)
        values[static_cast<std::size_t>(e)] = static_cast<float>(draw(4, first * width + e));
      break;
  }
  backend_.write({s.data, s.dtype, 0, t.elements(), nullptr}, values);
}

Slice Rank::slice(Instance& instance, TensorId id, std::int64_t micro_batch, bool writes, Stream stream) {
  const Located place = resolve(instance, id);
  const PiecePlan& plan = *place.instance->plan;
  const View& view = plan.views[place.id];
  Storage& s = storage(*place.instance, place.id, micro_batch, writes, stream);
  return {s.data, s.dtype, view.offset, plan.piece->tensors[place.id].elements(), view.dense() ? nullptr : &view.index};
}

StoragePtr Rank::scratch(std::int64_t elements, Dtype dtype, Stream stream) {
  return std::make_shared<Storage>(memory_, elements, dtype, Category::workspace, stream);
}

void* Rank::element(void* base, std::int64_t at, Dtype dtype) const {
  return static_cast<std::byte*>(base) + at * backend_.stored_bytes(dtype);
}

void* Rank::dense(Instance& instance, TensorId id, std::int64_t micro_batch, Stream stream, StoragePtr& held) {
  const Slice s = slice(instance, id, micro_batch, false, stream);
  if (s.index == nullptr) return element(s.base, s.offset, s.dtype);
  held = scratch(s.elements, s.dtype, stream);
  backend_.gather(stream, s, held->data);
  held->note_written(order_.issued(stream));
  return held->data;
}

// Elements of a part of a tensor along one dimension. A flat buffer's last part may reach beyond it: it has fewer.
const std::vector<std::int64_t>& Rank::part_index(const Tensor& whole, int dim, std::int64_t begin, std::int64_t size) {
  std::int64_t inner = 1, outer = 1;
  for (int d = dim + 1; d < whole.rank; ++d) inner *= whole.sizes[d];
  for (int d = 0; d < dim; ++d) outer *= whole.sizes[d];
  auto [found, fresh] = part_indices_.try_emplace({outer, whole.sizes[dim], inner, begin, size, 0});
  if (!fresh) return found->second;
  const std::int64_t inside = std::clamp<std::int64_t>(whole.sizes[dim] - begin, 0, size);
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inside * inner; ++i)
      found->second.push_back((o * whole.sizes[dim] + begin) * inner + i);
  return found->second;
}

const std::vector<std::int64_t>& Rank::member_index(const Tensor& whole, const Tensor& part, int dim,
                                                    std::size_t member, std::int64_t place) {
  const std::int64_t size = part.sizes[dim];
  if (is_contiguous_part(whole, part, dim)) return part_index(whole, dim, place * size, size);
  std::int64_t inner = 1, outer = 1;
  for (int d = dim + 1; d < whole.rank; ++d) inner *= whole.sizes[d];
  for (int d = 0; d < dim; ++d) outer *= whole.sizes[d];
  const std::vector<std::int64_t> dealt = dealt_indices(part.deal(dim), part.over[dim], whole.sizes[dim], size,
                                                        program_.mesh, static_cast<std::int64_t>(member));
  std::int64_t dealt_so = static_cast<std::int64_t>(part.deal(dim));
  for (int n = 0; n < part.over[dim].count(); ++n) dealt_so = dealt_so << 4 | (part.over[dim].digit(n) + 1);
  auto [found, fresh] = part_indices_.try_emplace({outer, whole.sizes[dim], inner, dealt.front(), size, dealt_so});
  if (!fresh) return found->second;
  for (std::int64_t o = 0; o < outer; ++o)
    for (const std::int64_t at : dealt)
      for (std::int64_t i = 0; i < inner; ++i)
        found->second.push_back((o * whole.sizes[dim] + at) * inner + i);
  return found->second;
}

// Of the elements that `rank` has in one layout those that `other` has in another one, as elements of the first and in
// the order of the whole.
const std::vector<std::int64_t>& Rank::exchanged_index(const Tensor& tensor, std::size_t rank, const Tensor& in,
                                                       std::size_t other) {
  const Mesh& mesh = program_.mesh;
  std::vector<std::int64_t> key{static_cast<std::int64_t>(rank), static_cast<std::int64_t>(other)};
  for (const Tensor* t : {&tensor, &in})
    for (int d = 0; d < t->rank; ++d) {
      key.insert(key.end(), {t->sizes[d], static_cast<std::int64_t>(t->deal(d))});
      for (int n = 0; n < t->over[d].count(); ++n) key.push_back(-1 - t->over[d].digit(n));
    }
  auto [found, fresh] = exchanged_indices_.try_emplace(std::move(key));
  if (!fresh) return found->second;
  std::vector<std::int64_t>& elements = found->second;
  elements.push_back(0);
  for (int d = 0; d < tensor.rank; ++d) {
    std::vector<std::int64_t> here;  // along this dimension
    if (tensor.over[d] == in.over[d] && tensor.deal(d) == in.deal(d)) {
      for (std::int64_t i = 0; i < tensor.sizes[d]; ++i) here.push_back(i);
    } else {
      const std::int64_t whole = tensor.sizes[d] * mesh.size(tensor.over[d].group());
      const auto of = [&](const Tensor& t, std::size_t r) {
        return dealt_indices(t.deal(d), t.over[d], whole, t.sizes[d], mesh, static_cast<std::int64_t>(r));
      };
      const std::vector<std::int64_t> own = of(tensor, rank);
      std::vector<std::int64_t> theirs = of(in, other);
      std::sort(theirs.begin(), theirs.end());
      for (std::size_t i = 0; i < own.size(); ++i)
        if (std::binary_search(theirs.begin(), theirs.end(), own[i])) here.push_back(static_cast<std::int64_t>(i));
      std::sort(here.begin(), here.end(), [&](std::int64_t a, std::int64_t b) {
        return own[static_cast<std::size_t>(a)] < own[static_cast<std::size_t>(b)];
      });
    }
    std::vector<std::int64_t> next;
    next.reserve(elements.size() * here.size());
    for (const std::int64_t at : elements)
      for (const std::int64_t i : here) next.push_back(at * tensor.sizes[d] + i);
    elements = std::move(next);
  }
  return elements;
}

// Of what any member sends another.
std::int64_t Rank::longest_exchange(const Tensor& from, const Tensor& to, const Members& members) {
  std::size_t longest = 0;
  for (const std::size_t a : members)
    for (const std::size_t b : members) longest = std::max(longest, exchanged_index(from, a, to, b).size());
  return static_cast<std::int64_t>(longest);
}

bool Rank::adds(const Op& op, const Instance& instance, TensorId id) const {
  const TensorId root = instance.plan->views[id].root;  // a view of a gradient may be called otherwise
  return op.phase != Phase::update && instance.plan->piece->tensors[root].category == Category::gradient;
}

// Positions of a tensor that runs along the sequence; none of another sequence than the piece's.
std::vector<std::int64_t> Rank::sequence_positions(const PiecePlan& plan, const Tensor& t) const {
  const int d = t.find(Axis::sequence);
  if (d < 0 || t.sizes[d] * program_.mesh.size(t.over[d].group()) != plan.sequence) return {};
  return dealt_indices(t.deal(d), t.over[d], plan.sequence, t.sizes[d], program_.mesh,
                       static_cast<std::int64_t>(position_.rank));
}

// An op's place in the model is that of the first parameter of its layer; a piece of several layers repeats its ops.
void Rank::place_dropout(const Op& op, const Instance& instance, std::int64_t micro_batch,
                         KernelContext& context) const {
  const Piece& piece = *instance.plan->piece;
  std::int64_t repeats = 0, before = 0;
  for (const Block* block : {&piece.forward, &piece.backward}) {
    if (&op < block->ops.data() || &op >= block->ops.data() + block->ops.size()) continue;
    for (const Op& other : block->ops) {
      if (other.kind != op.kind || other.draw != op.draw) continue;
      before += &other < &op;
      ++repeats;
    }
  }
  const std::size_t layer = instance.first_parameter + static_cast<std::size_t>(before) * piece.parameters.size() /
                                                           static_cast<std::size_t>(repeats);
  std::uint64_t hash = layer;
  const auto append = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ull; };  // FNV-1a
  append(op.draw);
  append(static_cast<std::uint64_t>(position_.replica * program_.schedule.micro_batches + micro_batch));
  append(static_cast<std::uint64_t>(step_));
  context.dropout_stream = hash;
  const Tensor& y = piece.tensors[op.writes[0]];
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    context.whole_sizes[i] = y.sizes[d];
    if (y.axes[d] == Axis::sequence) {
      context.whole_sizes[i] = instance.plan->sequence;
    } else if (y.axes[d] != Axis::batch) {  // whose parts have numbers of their own
      context.whole_sizes[i] = y.sizes[d] * program_.mesh.size(y.over[d].group());
      context.part_begin[i] = position_.begin(y, d);
    }
  }
}

}  // namespace orrery::realrun
