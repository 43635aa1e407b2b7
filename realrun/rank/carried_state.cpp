#include "realrun/rank/carried_state.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

namespace orrery::realrun {

void append(std::vector<CarriedState::Stretch>& stretches, const CarriedState::Key& key, std::int64_t element) {
  if (!stretches.empty() && stretches.back().key == key &&
      stretches.back().element + stretches.back().elements == element) {
    ++stretches.back().elements;
  } else {
    stretches.push_back({key, element, 1});
  }
}

void CarriedState::add(const Key& key, std::int64_t element, std::span<const float> values) {
  std::map<std::int64_t, std::vector<float>>& stretches = held_[key];
  for (std::size_t i = 0; i < values.size();) {
    const std::int64_t at = element + static_cast<std::int64_t>(i);
    const auto behind = stretches.upper_bound(at);
    std::vector<float>* before = nullptr;
    if (behind != stretches.begin()) {
      const auto last = std::prev(behind);
      const std::int64_t end = last->first + static_cast<std::int64_t>(last->second.size());
      if (at < end) {  // already there, from another copy
        i += static_cast<std::size_t>(end - at);
        continue;
      }
      if (at == end) before = &last->second;
    }
    std::size_t n = values.size() - i;
    if (behind != stretches.end()) n = std::min(n, static_cast<std::size_t>(behind->first - at));
    if (before == nullptr) before = &stretches[at];
    const auto own = values.subspan(i, n);
    before->insert(before->end(), own.begin(), own.end());
    i += n;
  }
}

const float* CarriedState::find(const Key& key, std::int64_t element) const {
  const auto of_key = held_.find(key);
  if (of_key == held_.end()) return nullptr;
  const auto behind = of_key->second.upper_bound(element);
  if (behind == of_key->second.begin()) return nullptr;
  const auto& [first, values] = *std::prev(behind);
  const auto at = static_cast<std::size_t>(element - first);
  return at < values.size() ? &values[at] : nullptr;
}

namespace {

using Stretch = CarriedState::Stretch;

// The same elements as stretches that do not meet, ascending.
std::vector<Stretch> disjoint(std::vector<Stretch> stretches) {
  std::ranges::sort(stretches);
  std::vector<Stretch> apart;
  for (const Stretch& s : stretches) {
    if (apart.empty() || apart.back().key != s.key || apart.back().end() < s.element)
      apart.push_back(s);
    else
      apart.back().elements = std::max(apart.back().end(), s.end()) - apart.back().element;
  }
  return apart;
}

// Takes out of `left` the elements that `held` has, and returns them. Both are disjoint(), and so are the results.
std::vector<Stretch> take(std::vector<Stretch>& left, const std::vector<Stretch>& held) {
  std::vector<Stretch> taken, rest;
  auto at = held.begin();
  for (Stretch s : left) {
    while (s.elements > 0) {
      while (at != held.end() && (at->key < s.key || (at->key == s.key && at->end() <= s.element))) ++at;
      const bool meets = at != held.end() && at->key == s.key && at->element < s.end();
      const std::int64_t begin = meets ? std::max(at->element, s.element) : s.end(),
                         end = meets ? std::min(at->end(), s.end()) : s.end();
      if (begin > s.element) rest.push_back({s.key, s.element, begin - s.element});
      if (end > begin) taken.push_back({s.key, begin, end - begin});
      s = {s.key, end, s.end() - end};
    }
  }
  left = std::move(rest);
  return taken;
}

// Every rank's stretches.
std::vector<std::vector<Stretch>> of_all_ranks(Communicator& communicator, const char* what,
                                               const std::vector<Stretch>& own) {
  constexpr std::size_t kNumbers = 4;
  std::vector<double> numbers;
  for (const Stretch& s : own)
    for (const std::int64_t number : {s.key.parameter, s.key.what, s.element, s.elements})
      numbers.push_back(static_cast<double>(number));
  std::vector<std::vector<Stretch>> all;
  for (const std::vector<double>& of_rank :
       communicator.gather_values(communicator.everyone(), what, std::move(numbers))) {
    const auto number = [&](std::size_t i) { return static_cast<std::int64_t>(of_rank[i]); };
    std::vector<Stretch>& stretches = all.emplace_back();
    for (std::size_t i = 0; i < of_rank.size(); i += kNumbers)
      stretches.push_back({{number(i), number(i + 1)}, number(i + 2), number(i + 3)});
  }
  return all;
}

std::int64_t elements_of(const std::vector<Stretch>& stretches) {
  std::int64_t elements = 0;
  for (const Stretch& s : stretches) elements += s.elements;
  return elements;
}

}  // namespace

void CarriedState::complete(Communicator& communicator, Backend& backend, const std::vector<Stretch>& lacks) {
  const std::vector<std::vector<Stretch>> asked = of_all_ranks(communicator, "what ranks lack", disjoint(lacks));
  std::vector<Stretch> questions, found;
  for (const std::vector<Stretch>& of_rank : asked) questions.insert(questions.end(), of_rank.begin(), of_rank.end());
  if (questions.empty()) return;
  for (const Stretch& s : disjoint(std::move(questions)))
    for (std::int64_t e = s.element; e < s.end(); ++e)
      if (find(s.key, e) != nullptr) append(found, s.key, e);
  const std::vector<std::vector<Stretch>> held = of_all_ranks(communicator, "what ranks hold", found);

  // Each element comes from the first rank that holds it. All ranks find the same.
  const std::size_t ranks = communicator.ranks(), own = communicator.rank();
  std::vector<std::vector<Stretch>> received(ranks);
  std::vector<std::int64_t> sends(ranks), receives(ranks);
  std::vector<float> values;
  for (std::size_t asker = 0; asker < ranks; ++asker) {
    std::vector<Stretch> left = asked[asker];
    for (std::size_t holder = 0; holder < ranks && !left.empty(); ++holder) {
      std::vector<Stretch> taken = take(left, held[holder]);
      if (holder == own) {
        sends[asker] = elements_of(taken);
        for (const Stretch& s : taken)
          for (std::int64_t e = s.element; e < s.end(); ++e) values.push_back(*find(s.key, e));
      }
      if (asker == own) {
        receives[holder] = elements_of(taken);
        received[holder] = std::move(taken);
      }
    }
    if (asker == own && !left.empty())
      throw ExecutionError("no rank holds element " + std::to_string(left.front().element) + " of parameter " +
                           std::to_string(left.front().key.parameter) + " for the next Program of the run");
  }

  const auto memory_for = [&](std::int64_t elements) {
    const auto release = [&backend](void* memory) { backend.release(memory); };
    return std::unique_ptr<void, decltype(release)>(
        backend.allocate(std::max<std::int64_t>(elements, 1), Dtype::fp32, Place::device, Stream::compute), release);
  };
  const auto slice_of = [](void* base, std::size_t elements) {
    return Slice{base, Dtype::fp32, 0, static_cast<std::int64_t>(elements), nullptr};
  };
  const auto from = memory_for(static_cast<std::int64_t>(values.size()));
  if (!values.empty()) backend.write(slice_of(from.get(), values.size()), values);
  values.resize(static_cast<std::size_t>(std::reduce(receives.begin(), receives.end())));
  const auto to = memory_for(static_cast<std::int64_t>(values.size()));
  communicator.all_to_all_v({communicator.everyone(), "states for the next Program", Stream::compute, Dtype::fp32},
                            from.get(), sends, to.get(), receives);
  backend.synchronize();
  if (!values.empty()) backend.read(slice_of(to.get(), values.size()), values);
  std::span<const float> rest = values;
  for (const std::vector<Stretch>& of_rank : received)
    for (const Stretch& s : of_rank) {
      add(s.key, s.element, rest.first(static_cast<std::size_t>(s.elements)));
      rest = rest.subspan(static_cast<std::size_t>(s.elements));
    }
}

}  // namespace orrery::realrun
