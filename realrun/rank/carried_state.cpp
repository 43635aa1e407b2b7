#include "realrun/rank/carried_state.h"

#include <algorithm>
#include <set>
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

void CarriedState::complete(Communicator& communicator, const std::vector<Stretch>& lacks) {
  const Members all = communicator.everyone();
  std::vector<double> asked;
  for (const Stretch& s : lacks)
    for (const std::int64_t number : {s.key.parameter, s.key.what, s.element, s.elements})
      asked.push_back(static_cast<double>(number));
  std::vector<std::vector<double>> questions = communicator.gather_values(all, "what ranks lack", std::move(asked));
  constexpr std::size_t kNumbers = 4;  // per stretch
  std::set<std::vector<double>> different;
  for (const std::vector<double>& of_rank : questions)
    for (std::size_t i = 0; i < of_rank.size(); i += kNumbers)
      different.emplace(of_rank.begin() + static_cast<std::ptrdiff_t>(i),
                        of_rank.begin() + static_cast<std::ptrdiff_t>(i + kNumbers));
  if (different.empty()) return;

  std::vector<double> answer;
  std::vector<Stretch> found;
  for (const std::vector<double>& q : different) {
    const Key key{static_cast<std::int64_t>(q[0]), static_cast<std::int64_t>(q[1])};
    const auto first = static_cast<std::int64_t>(q[2]), elements = static_cast<std::int64_t>(q[3]);
    found.clear();
    for (std::int64_t e = first; e < first + elements; ++e)
      if (find(key, e) != nullptr) append(found, key, e);
    for (const Stretch& s : found) {
      for (const std::int64_t number : {s.key.parameter, s.key.what, s.element, s.elements})
        answer.push_back(static_cast<double>(number));
      for (std::int64_t e = s.element; e < s.element + s.elements; ++e)
        answer.push_back(static_cast<double>(*find(key, e)));
    }
  }
  std::vector<float> values;
  for (const std::vector<double>& of_rank : communicator.gather_values(all, "what others hold", std::move(answer)))
    for (std::size_t i = 0; i < of_rank.size();) {
      const Key key{static_cast<std::int64_t>(of_rank[i]), static_cast<std::int64_t>(of_rank[i + 1])};
      const auto element = static_cast<std::int64_t>(of_rank[i + 2]);
      const auto begin = of_rank.begin() + static_cast<std::ptrdiff_t>(i + kNumbers),
                 end = begin + static_cast<std::ptrdiff_t>(of_rank[i + 3]);
      values.assign(begin, end);
      add(key, element, values);
      i += kNumbers + values.size();
    }
  for (const Stretch& s : lacks)
    for (std::int64_t e = s.element; e < s.element + s.elements; ++e)
      if (find(s.key, e) == nullptr)
        throw ExecutionError("no rank holds element " + std::to_string(e) + " of parameter " +
                             std::to_string(s.key.parameter) + " for the next Program of the run");
}

}  // namespace orrery::realrun
