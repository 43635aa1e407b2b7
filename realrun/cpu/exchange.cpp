#include "realrun/cpu/exchange.h"

#include <algorithm>
#include <utility>

#include "realrun/executor.h"

namespace orrery::cpu {
namespace {

// Of a rank that stops because another one failed.
class Stopped : public ExecutionError {
 public:
  Stopped() : ExecutionError("stopped: another rank failed") {}
};

std::string list(const std::vector<std::size_t>& ranks) {
  std::string text = "{";
  for (std::size_t r : ranks) text += (text.size() > 1 ? ", " : "") + std::to_string(r);
  return text + "}";
}

}  // namespace

Exchange::Exchange(std::size_t ranks, double watchdog_seconds) : patience_(watchdog_seconds), places_(ranks) {}

void Exchange::at(std::size_t rank, const char* block, const char* op, std::int64_t micro_batch) {
  const std::lock_guard lock(mutex_);
  places_[rank] = {block, op, micro_batch};
}

std::string Exchange::place(std::size_t rank) const {
  const Place& p = places_[rank];
  return "rank " + std::to_string(rank) + " (" + p.block + " of micro-batch " + std::to_string(p.micro_batch) +
         ", op \"" + p.op + "\")";
}

template <class Ready, class Describe>
void Exchange::wait(std::unique_lock<std::mutex>& lock, Ready ready, Describe describe) {
  const bool done = changed_.wait_for(lock, patience_, [&] { return failure_ != nullptr || ready(); });
  if (failure_ != nullptr) throw Stopped();
  if (!done) throw ExecutionError(describe());
}

std::shared_ptr<const std::vector<Deposit>> Exchange::meet(std::size_t rank, const std::vector<std::size_t>& members,
                                                           const std::string& what, Deposit deposit) {
  std::unique_lock lock(mutex_);
  if (failure_ != nullptr) throw Stopped();
  std::shared_ptr<Meeting>& open = open_[members];
  if (open == nullptr) {
    open = std::make_shared<Meeting>();
    open->what = what;
    open->arrived.assign(members.size(), false);
    open->deposits.resize(members.size());
    open->missing = members.size();
  }
  const std::shared_ptr<Meeting> meeting = open;
  if (meeting->what != what)
    throw ExecutionError(place(rank) + " comes to \"" + what + "\" of ranks " + list(members) +
                         ", where others wait in \"" + meeting->what + "\"");
  const auto index = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  meeting->deposits.at(index) = std::move(deposit);
  meeting->arrived[index] = true;
  if (--meeting->missing == 0) {
    open_.erase(members);
    changed_.notify_all();
  } else {
    wait(
        lock, [&] { return meeting->missing == 0; },
        [&] {
          std::string text = place(rank) + " waits in \"" + what + "\" of ranks " + list(members) + " for";
          for (std::size_t i = 0; i < members.size(); ++i)
            if (!meeting->arrived[i]) text += " " + place(members[i]);
          return text;
        });
  }
  return {meeting, &meeting->deposits};
}

void Exchange::send(const Message& message, std::vector<float> values) {
  const std::lock_guard lock(mutex_);
  if (!messages_.emplace(message, std::move(values)).second)
    throw ExecutionError("micro-batch " + std::to_string(message.micro_batch) + " is sent to position " +
                         std::to_string(message.position) + " twice");
  changed_.notify_all();
}

std::vector<float> Exchange::receive(std::size_t rank, const Message& message) {
  std::unique_lock lock(mutex_);
  if (failure_ != nullptr) throw Stopped();
  wait(
      lock, [&] { return messages_.contains(message); },
      [&] {
        std::string text = place(rank) + " waits for the " + (message.backward ? "output gradient" : "input") +
                           " of position " + std::to_string(message.position) + ", micro-batch " +
                           std::to_string(message.micro_batch) + ", from the stage of position " +
                           std::to_string(message.backward ? message.position + 1 : message.position - 1) +
                           ". Meanwhile:";
        for (std::size_t r = 0; r < places_.size(); ++r)
          if (r != rank) text += " " + place(r);
        return text;
      });
  auto node = messages_.extract(message);
  return std::move(node.mapped());
}

void Exchange::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr) failure_ = std::move(failure);
  changed_.notify_all();
}

void Exchange::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

}  // namespace orrery::cpu
