#include "realrun/rank/tensor_memory.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery::realrun {
namespace {

// The number of different ids, and the stream of random numbers that draws them.
struct Ids {
  std::int64_t kinds = 0;
  std::uint64_t stream = 0;
};
Ids ids_of(Input input, const Model& model) {
  switch (input) {
    case Input::targets:
      return {model.vision() ? model.classes : model.vocab, 1};
    case Input::token_types:
      return {model.token_types, 2};
    case Input::next_sentence:
      return {2, 3};
    case Input::decoder_tokens:
      return {model.vocab, 5};
    case Input::next_targets:
      return {model.vocab, 6};
    default:
      return {model.vocab, 0};
  }
}
constexpr std::uint64_t kPatches = 4, kDirections = 7;  // different streams

// Returns the values of a tensor with an Input, in place of a data set: the Program says which tensor gets which input,
// the model how many different ids there are. They are functions of the seed, the sequence in the global batch, and the
// position in it (or patch and pixel), whatever the layout.
std::vector<float> input_values(const RunSetup& setup, const Position& position, const PiecePlan& plan, const Tensor& t,
                                std::int64_t micro_batch) {
  constexpr std::uint64_t kInputs = std::uint64_t{1} << 40;  // separate from the parameters' streams
  const Model& model = setup.scenario.model;
  std::vector<float> values(static_cast<std::size_t>(t.elements()));
  const std::int64_t sequences = t.sizes[0], width = t.elements() / sequences;
  const std::int64_t first = (position.replica * setup.program.schedule.micro_batches + micro_batch) * sequences;
  const auto draw = [&](std::uint64_t stream, std::int64_t index) {
    return counter_uniform(setup.options.seed, kInputs + stream, static_cast<std::uint64_t>(index));
  };
  const auto set = [&](std::int64_t e, auto value) { values[static_cast<std::size_t>(e)] = static_cast<float>(value); };
  switch (t.input) {
    case Input::none:
    case Input::sinusoids:  // for models that cannot be run yet (check_runnable)
      throw std::logic_error(std::string("\"") + t.name + "\" is given no values from outside");
    case Input::distances:
    case Input::past_distances:
      for (std::int64_t e = 0; e < t.elements(); ++e)
        set(e, position_bucket(e % width - e / width, t.input == Input::past_distances, model.relative_buckets));
      break;
    case Input::directions:
      for (std::int64_t e = 0; e < t.elements(); ++e) set(e, draw(kDirections, e));
      break;
    case Input::preconditioner:
      std::ranges::fill(values, 1.0f);
      break;
    case Input::learning_rate:
      set(0, setup.options.learning_rate);
      break;
    case Input::patches:
      for (std::int64_t e = 0; e < t.elements(); ++e) set(e, draw(kPatches, first * width + e));
      break;
    default: {
      const auto [kinds, stream] = ids_of(t.input, model);
      const std::vector<std::int64_t> positions = sequence_positions(plan, t, position);
      for (std::int64_t e = 0; e < t.elements(); ++e) {
        const std::int64_t at = positions.empty() ? e % width : positions[static_cast<std::size_t>(e % width)];
        const double u = draw(stream, (first + e / width) * plan.sequence() + at);
        set(e, std::min(kinds - 1, static_cast<std::int64_t>((u + 1) / 2 * static_cast<double>(kinds))));
      }
    }
  }
  return values;
}

}  // namespace

Use StreamOrder::issued(Stream stream) {
  State& state = states_[static_cast<std::size_t>(stream)];
  Use use{stream, ++state.issued, 0, false};
  if (stream != Stream::compute) {
    use.event = state.event = backend_.record(stream);
    state.recorded = state.issued;
    use.recorded = true;
  }
  return use;
}

Backend::Event StreamOrder::event_behind(Use& use) {
  if (use.recorded) return use.event;
  State& state = states_[static_cast<std::size_t>(use.stream)];
  if (state.recorded < use.serial) {
    state.event = backend_.record(use.stream);
    state.recorded = state.issued;
  }
  use.event = state.event;
  use.recorded = true;
  return use.event;
}

void StreamOrder::wait(Stream waiting, Use& use) {
  if (use.serial == 0 || use.stream == waiting) return;
  backend_.wait(waiting, event_behind(use));
}

void StreamOrder::wait_for_compute(Stream waiting) {
  Use use{Stream::compute, states_[static_cast<std::size_t>(Stream::compute)].issued, 0, false};
  wait(waiting, use);
}

Storage::Storage(MemoryLedger& l, std::int64_t n, Dtype type, Category of, Stream stream, Place where)
    : ledger(l), data(l.allocate(n, type, of, where, stream)), elements(n), dtype(type), category(of), place(where) {}
Storage::~Storage() { ledger.retire(*this); }

void Storage::note_read(const Use& use) {
  const auto same = std::find_if(read.begin(), read.end(), [&](const Use& u) { return u.stream == use.stream; });
  if (same != read.end()) {
    *same = use;
  } else {
    read.push_back(use);
  }
}

void Storage::note_written(const Use& use) {
  written = use;
  read.clear();
}

void* MemoryLedger::allocate(std::int64_t elements, Dtype dtype, Category category, Place place, Stream stream) {
  collect();
  if (place == Place::storage) throw ExecutionError("nothing is kept in storage yet");
  void* data = backend_.allocate(elements, dtype, place, stream);
  const double bytes = static_cast<double>(bytes_of(dtype, elements));
  now_.of(place, category) += bytes;
  if (place == Place::device) now_bytes_ += bytes;
  if (now_bytes_ > peak_bytes_) {
    peak_bytes_ = now_bytes_;
    at_peak_ = now_;
  }
  return data;
}

void MemoryLedger::retire(Storage& storage) {
  const double bytes = static_cast<double>(bytes_of(storage.dtype, storage.elements));
  now_.of(storage.place, storage.category) -= bytes;
  if (storage.place == Place::device) now_bytes_ -= bytes;
  Retired retired{storage.data, {}};
  const auto note = [&](Use& use) {
    if (use.serial > 0 && use.stream != Stream::compute) retired.events.push_back(order_.event_behind(use));
  };
  note(storage.written);
  for (Use& use : storage.read) note(use);
  retired_.push_back(std::move(retired));
  collect();
}

void MemoryLedger::collect() {
  std::erase_if(retired_, [&](const Retired& retired) {
    for (const Backend::Event event : retired.events)
      if (!backend_.done(event)) return false;
    backend_.release(retired.data);
    return true;
  });
}

void MemoryLedger::forget_peak() {
  at_peak_ = now_;
  peak_bytes_ = now_bytes_;
}

MemoryLedger::~MemoryLedger() {
  try {
    backend_.synchronize();
  } catch (const DeviceError&) {  // the device is lost, including its memory
  }
  for (const Retired& retired : retired_) backend_.release(retired.data);
}

// ---- tensors

TensorMemory::TensorMemory(const RunSetup& setup, const Position& position, const RankModel& model, Backend& backend)
    : setup_(setup),
      position_(position),
      model_(model),
      backend_(backend),
      order_(backend),
      ledger_(backend, order_),
      held_(model.instances()) {}

TensorMemory::StorageSet& TensorMemory::set_of(const Work& work, TensorId storage) {
  Held& held = held_[work.instance.number];
  StorageSet& set = work.instance.plan->lasts(storage) ? held.lasting : held.micro[work.micro_batch];
  if (set.empty()) set.resize(work.instance.piece().tensors.size());
  return set;
}

StoragePtr& TensorMemory::pointer(const Work& work, TensorId id, Access access) {
  const RankModel::Owner owner = model_.owner_of(work.instance, id);
  const TensorId root = owner.instance->plan->root(owner.id);
  const Work there{*owner.instance, work.micro_batch, work.stream};
  StoragePtr& s = set_of(there, root)[root];
  if (s == nullptr) s = begin(there, root, access);
  return s;
}

StoragePtr TensorMemory::begin(const Work& work, TensorId storage, Access access) {
  const PiecePlan& plan = *work.instance.plan;
  const Tensor& t = plan.tensor(storage);
  const bool given = access == Access::read && t.input != Input::none;
  const bool is_state = t.resident && t.category == Category::optimizer_state;  // begins at zero
  if (access == Access::read && !given && !is_state)
    throw ExecutionError(std::string("tensor \"") + t.name + "\" of piece \"" + plan.piece().name +
                         "\" is read before it is written");
  StoragePtr s = allocate(plan.capacity(storage), t.dtype, t.category, work.stream, t.place);
  if (given) {
    const std::vector<float> values = input_values(setup_, position_, plan, t, work.micro_batch);
    backend_.write({s->data, s->dtype, 0, t.elements(), nullptr}, values);
  } else if (is_state || plan.begins_at_zero(storage)) {
    fill(*s, 0, work.stream);
  } else if (setup_.options.find_undefined) {
    fill(*s, std::numeric_limits<float>::quiet_NaN(), work.stream);
  }
  return s;
}

Slice TensorMemory::slice(const Work& work, TensorId id, Access access) {
  Storage& s = storage(work, id, access);
  const RankModel::Owner owner = model_.owner_of(work.instance, id);
  const ElementMap& view = owner.instance->plan->view(owner.id);
  return {s.data, s.dtype, view.offset, owner.instance->tensor(owner.id).elements(),
          view.dense() ? nullptr : &view.index};
}

TensorMemory::Dense TensorMemory::dense(const Work& work, TensorId id) {
  const Slice s = slice(work, id, Access::read);
  if (s.index == nullptr) return {element(s), nullptr};
  const StoragePtr gathered = scratch(s.elements, s.dtype, work.stream);
  backend_.gather(work.stream, s, gathered->data);
  return {gathered->data, gathered};
}

TensorMemory::Target TensorMemory::target(const Work& work, TensorId id) {
  const Slice to = slice(work, id, Access::write);
  if (to.index == nullptr) return {element(to), to, nullptr};
  const StoragePtr copy = scratch(to.elements, to.dtype, work.stream);
  return {copy->data, to, copy};
}

void TensorMemory::put(const Target& target, Stream stream) {
  if (target.copy != nullptr) backend_.scatter(stream, target.copy->data, target.slice, false);
}

StoragePtr TensorMemory::scratch(std::int64_t elements, Dtype dtype, Stream stream) {
  const auto end = [this, stream](Storage* s) {
    try {
      s->note_read(order_.issued(stream));
    } catch (const DeviceError&) {  // the device is lost, including its memory
    }
    delete s;
  };
  return {new Storage(ledger_, elements, dtype, Category::workspace, stream), end};
}

StoragePtr TensorMemory::allocate(std::int64_t elements, Dtype dtype, Category category, Stream stream, Place place) {
  return std::make_shared<Storage>(ledger_, elements, dtype, category, stream, place);
}

void* TensorMemory::element(void* base, std::int64_t at, Dtype dtype) const {
  return static_cast<std::byte*>(base) + at * backend_.stored_bytes(dtype);
}

void TensorMemory::fill(Storage& s, float value, Stream stream) {
  backend_.fill(stream, {s.data, s.dtype, 0, s.elements, nullptr}, value);
  s.note_written(order_.issued(stream));
}

void TensorMemory::adopt(const Work& work, TensorId storage, StoragePtr memory) {
  set_of(work, storage)[storage] = std::move(memory);
}

void TensorMemory::end(const Work& work, TensorId storage) { set_of(work, storage)[storage].reset(); }

void TensorMemory::end_lives(const Work& work, std::size_t block, std::size_t op) {
  const PiecePlan& plan = *work.instance.plan;
  Held& held = held_[work.instance.number];
  for (const TensorId id : plan.begin_anew(block, op))
    if (!held.lasting.empty() && held.lasting[id] != nullptr) fill(*held.lasting[id], 0, work.stream);
  const auto set = held.micro.find(work.micro_batch);
  if (set == held.micro.end() || set->second.empty()) return;
  for (const TensorId id : plan.ends(block, op)) set->second[id].reset();
}

void TensorMemory::release(const Instance& instance, std::int64_t micro_batch) {
  held_[instance.number].micro.erase(micro_batch);
}

void TensorMemory::release_micro_batches() {
  for (Held& held : held_) held.micro.clear();
}

}  // namespace orrery::realrun
