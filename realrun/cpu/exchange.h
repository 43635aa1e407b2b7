// What ranks in one process give each other: rendezvous of groups, messages between stages; with a watchdog.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace orrery::cpu {

struct Deposit {
  std::vector<float> values;
  std::int64_t tag = -1;  // whatever the members agree on: e.g. whose keys these are
};

struct Message {
  std::int64_t to = 0, position = 0, micro_batch = 0;
  bool backward = false;
  auto operator<=>(const Message&) const = default;
};

// Thread-safe. Every wait ends: with what was waited for, by the failure of another rank, or after the watchdog's time
// with an ExecutionError that says which rank waits for whom.
class Exchange {
 public:
  Exchange(std::size_t ranks, double watchdog_seconds);

  // Where a rank stands, for the watchdog's report. Static storage.
  void at(std::size_t rank, const char* block, const char* op, std::int64_t micro_batch);

  // Collective over `members` (ascending): everyone's deposits in the order of the members. Throws if the members do
  // not name the same operation.
  std::shared_ptr<const std::vector<Deposit>> meet(std::size_t rank, const std::vector<std::size_t>& members,
                                                   const std::string& what, Deposit deposit);
  void send(const Message& message, std::vector<float> values);
  std::vector<float> receive(std::size_t rank, const Message& message);

  // Ends every wait, also of those to come. The first failure is kept.
  void fail(std::exception_ptr failure);
  void rethrow() const;
  // Messages that nobody received.
  std::size_t undelivered() const { return messages_.size(); }

 private:
  struct Meeting {
    std::string what;
    std::vector<bool> arrived;
    std::size_t missing = 0;
    std::vector<Deposit> deposits;
  };
  struct Place {
    const char *block = "start", *op = "";
    std::int64_t micro_batch = -1;
  };
  std::string place(std::size_t rank) const;
  template <class Ready, class Describe>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready, Describe describe);

  std::chrono::duration<double> patience_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::vector<std::size_t>, std::shared_ptr<Meeting>> open_;
  std::map<Message, std::vector<float>> messages_;
  std::vector<Place> places_;
  std::exception_ptr failure_;
};

}  // namespace orrery::cpu
