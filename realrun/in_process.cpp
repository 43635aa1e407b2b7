#include "realrun/in_process.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

namespace orrery {
namespace {

constexpr const char* kStopped = "stopped: another rank failed";

// What a rank shows the others when they meet.
struct Shown {
  const void* data = nullptr;
  std::vector<double> values;
};
using AllShown = std::shared_ptr<const std::vector<Shown>>;

struct Message {
  void* data = nullptr;
  std::size_t from = 0;
};

}  // namespace

struct InProcessRanks::Rep {
  Rep(std::size_t ranks, double watchdog_seconds)
      : patience(watchdog_seconds), changed(ranks), places(ranks), returned(ranks) {}

  struct Open {  // a meeting that some members have come to
    std::string what;
    std::vector<bool> arrived;
    std::size_t missing = 0;
    std::vector<Shown> shown;
  };

  std::string place(std::size_t rank) const { return text_of(rank, places[rank]); }
  template <class Ready, class Describe>
  void wait(std::size_t rank, std::unique_lock<std::mutex>& lock, Ready ready, Describe describe) {
    const bool in_time = changed[rank].wait_for(lock, patience, [&] { return failure != nullptr || ready(); });
    if (failure != nullptr) throw ExecutionError(kStopped);
    if (!in_time) throw ExecutionError(describe());
  }

  AllShown meet(std::size_t rank, const Members& members, const std::string& what, Shown own) {
    std::unique_lock lock(mutex);
    if (failure != nullptr) throw ExecutionError(kStopped);
    std::shared_ptr<Open>& open = meetings[members];
    if (open == nullptr) {
      open = std::make_shared<Open>();
      open->what = what;
      open->arrived.assign(members.size(), false);
      open->shown.resize(members.size());
      open->missing = members.size();
    }
    const std::shared_ptr<Open> meeting = open;
    if (meeting->what != what)
      throw ExecutionError(place(rank) + " comes to \"" + what + "\" of ranks " + text_of(members) +
                           ", but other ranks wait in \"" + meeting->what + "\"");
    const auto index = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
    meeting->shown.at(index) = std::move(own);
    meeting->arrived[index] = true;
    if (--meeting->missing == 0) {
      meetings.erase(members);
      lock.unlock();  // who wakes finds it free
      for (const std::size_t member : members)
        if (member != rank) changed[member].notify_one();
    } else {
      wait(
          rank, lock, [&] { return meeting->missing == 0; },
          [&] {
            std::string text = place(rank) + " waits in \"" + what + "\" of ranks " + text_of(members) + " for";
            for (std::size_t i = 0; i < members.size(); ++i)
              if (!meeting->arrived[i]) text += " " + place(members[i]);
            return text;
          });
    }
    return {meeting, &meeting->shown};
  }

  void fail(std::exception_ptr first) {
    const std::lock_guard lock(mutex);
    if (failure == nullptr) failure = std::move(first);
    for (std::condition_variable& rank : changed) rank.notify_one();
    if (beside) beside->fail(failure);
  }

  std::chrono::duration<double> patience;
  mutable std::mutex mutex;
  std::vector<std::condition_variable> changed;  // what each rank waits for: only those concerned wake up
  std::map<Members, std::shared_ptr<Open>> meetings;
  std::map<std::pair<std::size_t, MessageTag>, Message> messages;  // by receiver
  std::vector<PlaceInProgram> places;
  // Buffers that receivers no longer need, by the sender that owns them.
  std::vector<std::vector<void*>> returned;
  std::exception_ptr failure;
  std::unique_ptr<InProcessRanks> beside;  // for the ranks' other threads
};

namespace {

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::size_t rank, InProcessRanks::Rep& shared, Backend& backend)
      : rank_(rank), shared_(shared), backend_(backend) {}
  ~InProcessCommunicator() override { release_returned(); }

  std::size_t rank() const override { return rank_; }
  std::size_t ranks() const override { return shared_.places.size(); }
  void at(const PlaceInProgram& place) override {
    const std::lock_guard lock(shared_.mutex);
    shared_.places[rank_] = place;
  }

  std::unique_ptr<Communicator> beside(Backend& backend) override {
    const std::lock_guard lock(shared_.mutex);
    if (!shared_.beside) shared_.beside = std::make_unique<InProcessRanks>(ranks(), shared_.patience.count());
    if (shared_.failure != nullptr) shared_.beside->fail(shared_.failure);
    return shared_.beside->communicator(rank_, backend);
  }

  // Every rank sums its part of the elements, then takes the others' sums: a reduce-scatter and an all-gather.
  void all_reduce(const CollectiveCall& of, void* data, std::int64_t elements) override {
    if (of.members.size() == 1) return;
    const auto n = static_cast<std::int64_t>(of.members.size());
    const std::int64_t part = (elements + n - 1) / n, own = index_in(of);
    const auto begin = [&](std::int64_t i) { return std::min(i * part, elements); };
    const auto size = [&](std::int64_t i) { return std::min((i + 1) * part, elements) - begin(i); };
    const AllShown all = show(of, data);
    const std::shared_ptr<void> sum = scratch(of, part);
    sum_of(*all, of, begin(own), sum.get(), size(own));
    const AllShown sums = show(of, sum.get());  // after this nobody reads the inputs
    for (std::int64_t i = 0; i < n; ++i)
      copy(of, at_element(data, begin(i), of.dtype), (*sums)[static_cast<std::size_t>(i)].data, size(i));
    show(of, nullptr);  // after this nobody reads the sums
  }

  void all_gather(const CollectiveCall& of, const void* part, void* whole, std::int64_t part_elements) override {
    const AllShown all = show(of, part);
    for (std::size_t i = 0; i < of.members.size(); ++i) {
      void* to = at_element(whole, static_cast<std::int64_t>(i) * part_elements, of.dtype);
      if (to != (*all)[i].data) copy(of, to, (*all)[i].data, part_elements);
    }
    show(of, nullptr);
  }

  void reduce_scatter(const CollectiveCall& of, const void* whole, void* part, std::int64_t part_elements) override {
    const AllShown all = show(of, whole);
    const std::shared_ptr<void> sum = scratch(of, part_elements);  // other ranks may still read `part`
    sum_of(*all, of, index_in(of) * part_elements, sum.get(), part_elements);
    show(of, nullptr);
    copy(of, part, sum.get(), part_elements);
    backend_.synchronize(of.stream);
  }

  void all_to_all_v(const CollectiveCall& of, const void* from, std::span<const std::int64_t> sends, void* to,
                    std::span<const std::int64_t> receives) override {
    const AllShown all = show(of, from, {sends.begin(), sends.end()});
    std::int64_t at = 0;
    for (std::size_t i = 0; i < of.members.size(); ++i) {
      const std::vector<double>& sent = (*all)[i].values;
      const auto own = sent.begin() + index_in(of);
      const auto elements = static_cast<std::int64_t>(*own);
      if (elements != receives[i])
        throw ExecutionError(shared_.place(rank_) + " expects " + std::to_string(receives[i]) + " elements from rank " +
                             std::to_string(of.members[i]) + " in \"" + of.what + "\", which sends " +
                             std::to_string(elements));
      const auto before = static_cast<std::int64_t>(std::accumulate(sent.begin(), own, 0.0));
      if (elements > 0) copy(of, at_element(to, at, of.dtype), at_element((*all)[i].data, before, of.dtype), elements);
      at += elements;
    }
    show(of, nullptr);
  }

  std::vector<std::vector<double>> gather_values(const Members& members, const std::string& what,
                                                 std::vector<double> values) override {
    const AllShown all = shared_.meet(rank_, members, what, {nullptr, std::move(values)});
    std::vector<std::vector<double>> result;
    for (const Shown& shown : *all) result.push_back(shown.values);
    return result;
  }

  void send(std::size_t to, const MessageTag& tag, Stream stream, const void* data, std::int64_t elements,
            Dtype dtype) override {
    release_returned();
    void* copy = backend_.allocate(elements, dtype, Place::device, stream);
    backend_.copy(stream, copy, data, elements * backend_.stored_bytes(dtype));
    backend_.synchronize(stream);
    const std::lock_guard lock(shared_.mutex);
    if (!shared_.messages.try_emplace({to, tag}, Message{copy, rank_}).second)
      throw ExecutionError("micro-batch " + std::to_string(tag.micro_batch) + " is sent to position " +
                           std::to_string(tag.position) + " twice");
    shared_.changed[to].notify_one();
  }

  void receive(std::size_t, const MessageTag& tag, Stream stream, void* data, std::int64_t elements,
               Dtype dtype) override {
    Message message;
    {
      std::unique_lock lock(shared_.mutex);
      if (shared_.failure != nullptr) throw ExecutionError(kStopped);
      const std::pair key(rank_, tag);
      shared_.wait(
          rank_, lock, [&] { return shared_.messages.contains(key); },
          [&] {
            std::string text = shared_.place(rank_) + " waits for " + text_of(tag) + ", from the stage of position " +
                               std::to_string(tag.backward ? tag.position + 1 : tag.position - 1) + ". Meanwhile:";
            for (std::size_t r = 0; r < shared_.places.size(); ++r)
              if (r != rank_) text += " " + shared_.place(r);
            return text;
          });
      message = shared_.messages.extract(key).mapped();
    }
    backend_.copy(stream, data, message.data, elements * backend_.stored_bytes(dtype));
    backend_.synchronize(stream);
    const std::lock_guard lock(shared_.mutex);
    shared_.returned[message.from].push_back(message.data);
  }

  void fail(std::exception_ptr failure) override { shared_.fail(std::move(failure)); }

  void finish() override {
    shared_.meet(rank_, everyone(), "the end", {});
    const std::lock_guard lock(shared_.mutex);
    if (!shared_.messages.empty())
      throw ExecutionError(std::to_string(shared_.messages.size()) + " messages between stages were never received");
  }

 private:
  std::shared_ptr<void> scratch(const CollectiveCall& of, std::int64_t elements) {
    return {backend_.allocate(elements, of.dtype, Place::device, of.stream), [this](void* m) { backend_.release(m); }};
  }
  std::int64_t index_in(const CollectiveCall& of) const {
    return std::find(of.members.begin(), of.members.end(), rank_) - of.members.begin();
  }
  void* at_element(void* data, std::int64_t element, Dtype dtype) const {
    return static_cast<std::byte*>(data) + element * backend_.stored_bytes(dtype);
  }
  const void* at_element(const void* data, std::int64_t element, Dtype dtype) const {
    return static_cast<const std::byte*>(data) + element * backend_.stored_bytes(dtype);
  }
  // Meets the others when everything issued to the stream is done.
  AllShown show(const CollectiveCall& of, const void* data, std::vector<double> values = {}) {
    backend_.synchronize(of.stream);
    return shared_.meet(rank_, of.members, of.what, {data, std::move(values)});
  }
  void copy(const CollectiveCall& of, void* to, const void* from, std::int64_t elements) {
    backend_.copy(of.stream, to, from, elements * backend_.stored_bytes(of.dtype));
  }
  void sum_of(const std::vector<Shown>& all, const CollectiveCall& of, std::int64_t begin, void* to,
              std::int64_t elements) {
    std::vector<const void*> parts;
    for (const Shown& shown : all) parts.push_back(at_element(shown.data, begin, of.dtype));
    backend_.sum(of.stream, parts, to, elements, of.dtype);
  }
  void release_returned() {
    std::vector<void*> mine;
    {
      const std::lock_guard lock(shared_.mutex);
      mine.swap(shared_.returned[rank_]);
    }
    for (void* memory : mine) backend_.release(memory);
  }

  std::size_t rank_;
  InProcessRanks::Rep& shared_;
  Backend& backend_;
};

}  // namespace

InProcessRanks::InProcessRanks(std::size_t ranks, double watchdog_seconds)
    : rep_(std::make_unique<Rep>(ranks, watchdog_seconds)) {}
InProcessRanks::~InProcessRanks() = default;

std::unique_ptr<Communicator> InProcessRanks::communicator(std::size_t rank, Backend& backend) {
  return std::make_unique<InProcessCommunicator>(rank, *rep_, backend);
}

void InProcessRanks::fail(std::exception_ptr failure) { rep_->fail(std::move(failure)); }

void InProcessRanks::rethrow() const {
  const std::lock_guard lock(rep_->mutex);
  if (rep_->failure != nullptr) std::rethrow_exception(rep_->failure);
}

void run_in_threads(std::size_t ranks, double watchdog_seconds, const BackendFactory& make_backend,
                    const std::function<void(Backend&, Communicator&)>& work) {
  InProcessRanks shared(ranks, watchdog_seconds);
  std::vector<std::unique_ptr<Backend>> backends(ranks);  // must outlive what other ranks still read
  {
    std::vector<std::jthread> threads;
    const auto run = [&](std::size_t r) {
      try {
        backends[r] = make_backend(r);
        work(*backends[r], *shared.communicator(r, *backends[r]));
      } catch (...) {
        shared.fail(std::current_exception());
      }
    };
    try {
      for (std::size_t r = 0; r < ranks; ++r) threads.emplace_back(run, r);
    } catch (const std::system_error& why) {  // also ends the ranks that wait for the missing one
      shared.fail(std::make_exception_ptr(
          ExecutionError(fmt::format("cannot start a thread for each of {} ranks ({}): use a plan with fewer ranks, or "
                                     "a higher limit of processes and memory (ulimit -u, ulimit -v)",
                                     ranks, why.what()))));
    }
  }
  shared.rethrow();
}

}  // namespace orrery
