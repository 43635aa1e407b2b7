#include "realrun/cuda/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "realrun/cuda/backend.h"
#include "realrun/cuda/runtime.h"
#include "sim/base/digest.h"

namespace orrery {
namespace {

using cuda::check;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::milliseconds kWatchPeriod{50};  // period of the watchdog thread
constexpr std::chrono::microseconds kPollPeriod{50};   // period at which a waiting rank polls

// Communicators are non-blocking: a call in progress has not failed, also inside a group.
bool is_taken(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

ncclDataType_t type_of(Dtype dtype) {
  static const std::map<Dtype, ncclDataType_t> types{
      {Dtype::fp32, ncclFloat32}, {Dtype::fp16, ncclFloat16}, {Dtype::bf16, ncclBfloat16}, {Dtype::fp8, ncclFloat8e4m3},
      {Dtype::int64, ncclInt64},  {Dtype::int32, ncclInt32},  {Dtype::uint8, ncclUint8},   {Dtype::int8, ncclInt8},
      {Dtype::int4, ncclInt8},    {Dtype::sign, ncclInt8}};
  const auto found = types.find(dtype);
  if (found == types.end()) throw std::logic_error("NCCL has no such dtype");
  return found->second;
}

// Identifies a communicator: for a group's operations on a stream, for messages over a boundary, or for host values.
struct Channel {
  Members members;
  int stream = 0;  // a Stream, kMessages or kValues
  std::int64_t position = 0;
  bool backward = false;
  auto operator<=>(const Channel&) const = default;

  static constexpr int kMessages = kStreams, kValues = kStreams + 1;
  std::string file_name() const {
    return fmt::format("nccl_{}_{}_{}_{}", fmt::join(members, "-"), stream, position,
                       backward ? "backward" : "forward");
  }
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(CudaBackend& backend, const NcclOptions& options) : backend_(backend), options_(options) {
    if (options.rank >= options.ranks)
      throw ExecutionError(fmt::format("rank {} of {} ranks: ranks count from 0", options.rank, options.ranks));
    if (options.ranks > 1 && !std::filesystem::is_directory(options.id_directory))
      throw ExecutionError(
          fmt::format("NCCL: the ranks meet in the directory \"{}\", which is not there: make it, where "
                      "all of them see it",
                      options.id_directory));
    // Must precede NCCL's first call, when it reads its environment.
    if (options.one_device) setenv("NCCL_HOSTID", fmt::format("orrery-rank-{}", options.rank).c_str(), 1);
    watcher_ = std::thread([this] { watch(); });
  }
  ~NcclCommunicator() override {
    {
      const Lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    watcher_.join();
    cudaSetDevice(backend_.device());
    for (const auto& [channel, peer] : peers_) {
      // After a failure the communicators no longer exist.
      if (!failure_ && peer.comm != nullptr) {
        ncclCommFinalize(peer.comm);
        ncclResult_t state = ncclInProgress;
        const auto begun = Clock::now();
        while (ncclCommGetAsyncError(peer.comm, &state) == ncclSuccess && state == ncclInProgress &&
               Seconds(Clock::now() - begun).count() < options_.watchdog_seconds)
          std::this_thread::sleep_for(kPollPeriod);
        state == ncclSuccess ? ncclCommDestroy(peer.comm) : ncclCommAbort(peer.comm);
      }
      if (peer.stream != nullptr) cudaStreamDestroy(peer.stream);
    }
    for (const auto& [stream, pending] : pending_)
      for (const Pending& p : pending) cudaEventDestroy(p.begin), cudaEventDestroy(p.end);
    for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
  }

  std::size_t rank() const override { return options_.rank; }
  std::size_t ranks() const override { return options_.ranks; }
  void at(const PlaceInProgram& place) override {
    block_.store(place.block, std::memory_order_relaxed);
    op_.store(place.op, std::memory_order_relaxed);
    micro_batch_.store(place.micro_batch, std::memory_order_relaxed);
  }

  void all_reduce(const CollectiveCall& of, void* data, std::int64_t elements) override {
    if (of.members.size() == 1) return;
    group(of, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclAllReduce(data, data, static_cast<std::size_t>(elements), type_of(of.dtype), ncclSum, comm, on);
    });
  }

  void all_gather(const CollectiveCall& of, const void* part, void* whole, std::int64_t part_elements) override {
    if (of.members.size() == 1) return copy(of, whole, part, part_elements);
    group(of, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclAllGather(part, whole, static_cast<std::size_t>(part_elements), type_of(of.dtype), comm, on);
    });
  }

  void reduce_scatter(const CollectiveCall& of, const void* whole, void* part, std::int64_t part_elements) override {
    if (of.members.size() == 1) return copy(of, part, whole, part_elements);
    group(of, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclReduceScatter(whole, part, static_cast<std::size_t>(part_elements), type_of(of.dtype), ncclSum, comm,
                               on);
    });
  }

  void all_to_all_v(const CollectiveCall& of, const void* from, std::span<const std::int64_t> sends, void* to,
                    std::span<const std::int64_t> receives) override {
    if (of.members.size() == 1) return copy(of, to, from, sends[0]);
    group(of, [&](ncclComm_t comm, cudaStream_t on) {
      const auto* source = static_cast<const char*>(from);
      auto* target = static_cast<char*>(to);
      const ncclDataType_t type = type_of(of.dtype);
      ncclResult_t result = ncclGroupStart();
      for (std::size_t m = 0; m < of.members.size() && is_taken(result); ++m) {
        const int peer = static_cast<int>(m);
        // Both ends know which messages are empty.
        if (sends[m] > 0) result = ncclSend(source, static_cast<std::size_t>(sends[m]), type, peer, comm, on);
        if (is_taken(result) && receives[m] > 0)
          result = ncclRecv(target, static_cast<std::size_t>(receives[m]), type, peer, comm, on);
        source += sends[m] * bytes_of(of.dtype, 1);
        target += receives[m] * bytes_of(of.dtype, 1);
      }
      const ncclResult_t ended = ncclGroupEnd();
      return is_taken(result) ? ended : result;
    });
  }

  std::vector<std::vector<double>> gather_values(const Members& members, const std::string& what,
                                                 std::vector<double> values) override {
    if (members.size() == 1) return {std::move(values)};
    const std::uint64_t own_count = values.size();
    const std::vector<std::uint64_t> counts = gather_words(members, what, {&own_count, 1});
    const std::size_t most = std::ranges::max(counts);
    std::vector<std::uint64_t> words(most);
    for (std::size_t i = 0; i < values.size(); ++i) words[i] = std::bit_cast<std::uint64_t>(values[i]);
    const std::vector<std::uint64_t> all = gather_words(members, what, words);
    std::vector<std::vector<double>> result(members.size());
    for (std::size_t m = 0; m < members.size(); ++m)
      for (std::size_t i = 0; i < counts[m]; ++i) result[m].push_back(std::bit_cast<double>(all[m * most + i]));
    return result;
  }

  void send(std::size_t to, const MessageTag& tag, Stream stream, const void* data, std::int64_t elements,
            Dtype dtype) override {
    const auto [channel, what] = crossing(to, tag);
    const cudaStream_t callers = backend_.stream(stream);  // first, as it also selects the GPU
    cudaStream_t on = nullptr;
    {
      Lock lock(mutex_);
      rethrow(lock);
      Peer& made = peer(lock, channel, what);
      if (made.stream == nullptr)
        check(cudaStreamCreateWithFlags(&made.stream, cudaStreamNonBlocking), "creating a stream");
      on = made.stream;
    }
    // A copy that belongs to the message: the caller's stream continues, however late the receiver is.
    const auto bytes = static_cast<std::size_t>(elements * bytes_of(dtype, 1));
    void* copy = nullptr;
    check(cudaMallocAsync(&copy, std::max<std::size_t>(bytes, 1), callers), "allocating memory for a message");
    check(cudaMemcpyAsync(copy, data, bytes, cudaMemcpyDefault, callers), "copying a message");
    cudaEvent_t copied = nullptr;
    check(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming), "creating an event");
    check(cudaEventRecord(copied, callers), "recording an event");
    check(cudaStreamWaitEvent(on, copied, 0), "waiting for a message's copy");
    check(cudaEventDestroy(copied), "releasing an event");  // CUDA destroys it when it has passed
    issue(channel, what, on, [&](ncclComm_t comm) {
      return ncclSend(copy, static_cast<std::size_t>(elements), type_of(dtype), to < rank() ? 0 : 1, comm, on);
    });
    check(cudaFreeAsync(copy, on), "releasing a message");
  }

  void receive(std::size_t from, const MessageTag& tag, Stream stream, void* data, std::int64_t elements,
               Dtype dtype) override {
    const auto [channel, what] = crossing(from, tag);
    const cudaStream_t on = backend_.stream(stream);
    issue(channel, what, on, [&](ncclComm_t comm) {
      return ncclRecv(data, static_cast<std::size_t>(elements), type_of(dtype), from < rank() ? 0 : 1, comm, on);
    });
  }

  void fail(std::exception_ptr failure) override {
    const Lock lock(mutex_);
    stop(std::move(failure));
  }

  void finish() override {
    Lock lock(mutex_);
    const auto unfinished = [&] {
      return std::ranges::find_if(pending_, [](const auto& p) { return !p.second.empty(); });
    };
    const auto done = [&] {
      look(lock);
      rethrow(lock);
      return unfinished() == pending_.end();
    };
    if (done()) return;
    const Pending& oldest = unfinished()->second.front();
    poll(lock, "the end of the run, after " + oldest.what, Members(oldest.members), done);
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Peer {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;  // only for sends
  };
  struct Pending {
    cudaEvent_t begin = nullptr, end = nullptr;
    std::string what;
    Members members;
    std::optional<Clock::time_point> begun;
  };

  // The channel of a message between this rank and another, and the message's name.
  std::pair<Channel, std::string> crossing(std::size_t other, const MessageTag& tag) const {
    return {{{std::min(other, rank()), std::max(other, rank())}, Channel::kMessages, tag.position, tag.backward},
            fmt::format("message to position {}, micro-batch {}", tag.position, tag.micro_batch)};
  }

  // Performs a collective of this rank alone.
  void copy(const CollectiveCall& of, void* to, const void* from, std::int64_t elements) {
    if (to != from && elements > 0) backend_.copy(of.stream, to, from, elements * bytes_of(of.dtype, 1));
  }

  std::string waits_for(const std::string& what, const Members& members, double seconds) const {
    Members others;
    std::ranges::copy_if(members, std::back_inserter(others), [&](std::size_t m) { return m != options_.rank; });
    const std::int64_t micro_batch = micro_batch_.load(std::memory_order_relaxed);
    return fmt::format("rank {} has waited {:.0f} s for rank{} {} in \"{}\"; it was last at {} {}{}", options_.rank,
                       seconds, others.size() == 1 ? "" : "s", fmt::join(others, ", "), what,
                       block_.load(std::memory_order_relaxed), op_.load(std::memory_order_relaxed),
                       micro_batch < 0 ? "" : fmt::format(", micro-batch {}", micro_batch));
  }

  // REQUIRES: the lock is held.
  void stop(std::exception_ptr failure) {
    if (failure_) return;
    failure_ = std::move(failure);
    for (auto& [channel, peer] : peers_)
      if (peer.comm != nullptr) ncclCommAbort(std::exchange(peer.comm, nullptr));
  }

  // Throws the first failure, if there was one before.
  [[noreturn]] void stop_and_throw(const Lock&, const std::string& failure) {
    stop(std::make_exception_ptr(ExecutionError(failure)));
    std::rethrow_exception(failure_);
  }

  void check_nccl(Lock& lock, ncclResult_t result, ncclComm_t comm, const std::string& what, const Members& members) {
    if (is_taken(result)) return;
    const char* const detail = comm == nullptr ? "" : ncclGetLastError(comm);
    const char* const advice = result == ncclRemoteError ? "another rank ended or failed first: see its message"
                               : result == ncclSystemError
                                   ? "the ranks cannot reach each other: set NCCL_SOCKET_IFNAME to their common network"
                               : result == ncclInvalidUsage
                                   ? "two ranks have the same GPU: give each its own, or say that they share one"
                                   : "NCCL_DEBUG=INFO says more";
    stop_and_throw(lock, fmt::format("rank {}: NCCL failed in \"{}\" over ranks {} ({}): {}. {}", options_.rank, what,
                                     fmt::join(members, ", "), ncclGetErrorString(result), advice, detail));
  }

  // Polls until done(); after the watchdog's time stops the rank, which waited for `members` in `what`, and throws.
  template <class Done>
  void poll(Lock& lock, const std::string& what, const Members& members, Done done) {
    const auto begun = Clock::now();
    while (!done()) {
      const double waited = Seconds(Clock::now() - begun).count();
      if (waited > options_.watchdog_seconds) stop_and_throw(lock, waits_for(what, members, waited));
      std::this_thread::sleep_for(kPollPeriod);
    }
  }

  // Communicators are non-blocking: a call is complete when NCCL no longer reports "in progress".
  void settle(Lock& lock, ncclComm_t comm, const std::string& what, const Members& members) {
    poll(lock, what, members, [&] {
      ncclResult_t state = ncclSuccess;
      check_nccl(lock, ncclCommGetAsyncError(comm, &state), comm, what, members);
      check_nccl(lock, state, comm, what, members);
      return state == ncclSuccess;
    });
  }

  ncclUniqueId unique_id(Lock& lock, const Channel& channel, const std::string& what) {
    const std::filesystem::path path = std::filesystem::path(options_.id_directory) / channel.file_name();
    ncclUniqueId id{};
    if (options_.rank == channel.members.front()) {
      check_nccl(lock, ncclGetUniqueId(&id), nullptr, what, channel.members);
      const std::filesystem::path unfinished = path.string() + ".unfinished";
      {
        std::ofstream file(unfinished, std::ios::binary);
        file.write(id.internal, sizeof id.internal);
        if (!file) throw ExecutionError(fmt::format("NCCL: cannot write \"{}\"", unfinished.string()));
      }
      std::filesystem::rename(unfinished, path);  // the file appears at once, complete
      return id;
    }
    poll(lock, what, {channel.members.front()}, [&] {
      std::ifstream file(path, std::ios::binary);
      return file && file.read(id.internal, sizeof id.internal);
    });
    return id;
  }

  Peer& peer(Lock& lock, const Channel& channel, const std::string& what) {
    const auto found = peers_.find(channel);
    if (found != peers_.end()) return found->second;
    const auto self = std::ranges::find(channel.members, options_.rank);
    if (self == channel.members.end())
      throw std::logic_error(fmt::format("rank {} is not among the members of \"{}\"", options_.rank, what));
    Peer made;
    const ncclUniqueId id = unique_id(lock, channel, what);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const auto result = ncclCommInitRankConfig(&made.comm, static_cast<int>(channel.members.size()), id,
                                               static_cast<int>(self - channel.members.begin()), &config);
    Peer& peer = peers_.emplace(channel, made).first->second;  // stop() finds it from here on
    check_nccl(lock, result, peer.comm, what, channel.members);
    settle(lock, peer.comm, what, channel.members);
    // All members have joined, so all have read the id.
    if (options_.rank == channel.members.front()) {
      std::error_code ignored;
      std::filesystem::remove(std::filesystem::path(options_.id_directory) / channel.file_name(), ignored);
    }
    return peer;
  }

  cudaEvent_t new_event() {
    if (!free_events_.empty()) {
      const cudaEvent_t event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    return event;
  }

  // Issues to `on` and watches it. issue(comm) is one NCCL call, or calls inside a group.
  void issue(const Channel& channel, const std::string& what, cudaStream_t on,
             const std::function<ncclResult_t(ncclComm_t)>& issue_to) {
    Lock lock(mutex_);
    rethrow(lock);
    Peer& to = peer(lock, channel, what);
    Pending pending{.begin = new_event(), .end = new_event(), .what = what, .members = channel.members, .begun = {}};
    check(cudaEventRecord(pending.begin, on), "recording an event");
    check_nccl(lock, issue_to(to.comm), to.comm, what, channel.members);
    settle(lock, to.comm, what, channel.members);  // only now is its kernel in the stream
    check(cudaEventRecord(pending.end, on), "recording an event");
    pending_[on].push_back(std::move(pending));
  }

  void group(const CollectiveCall& of, const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& issue_to) {
    if (options_.check_names) gather_words(of.members, of.what, {});
    const cudaStream_t on = backend_.stream(of.stream);
    issue({of.members, static_cast<int>(of.stream), 0, false}, of.what, on,
          [&](ncclComm_t comm) { return issue_to(comm, on); });
  }

  // Sends the operation's name and the caller's words to every member; all members give equally many words.
  std::vector<std::uint64_t> gather_words(const Members& members, const std::string& what,
                                          std::span<const std::uint64_t> words) {
    std::vector<std::uint64_t> own{digest_of(what)};
    own.insert(own.end(), words.begin(), words.end());
    std::vector<std::uint64_t> all(own.size() * members.size());
    const Channel channel{members, Channel::kValues, 0, false};
    const cudaStream_t on = backend_.stream(Stream::device_to_host);
    const std::size_t bytes = own.size() * sizeof own[0];
    void* data = nullptr;  // this rank's words, then everyone's
    check(cudaMallocAsync(&data, bytes * (members.size() + 1), on), "allocating memory for values");
    void* const gathered = static_cast<char*>(data) + bytes;
    // If anything throws, `own` and `all` stay until the copies have passed. After a failure nothing else delays these.
    const struct Past {
      cudaStream_t stream;
      ~Past() { cudaStreamSynchronize(stream); }
    } past{on};
    check(cudaMemcpyAsync(data, own.data(), bytes, cudaMemcpyDefault, on), "copying values");
    issue(channel, what, on,
          [&](ncclComm_t comm) { return ncclAllGather(data, gathered, own.size(), ncclUint64, comm, on); });
    check(cudaMemcpyAsync(all.data(), gathered, all.size() * sizeof all[0], cudaMemcpyDefault, on), "copying values");
    check(cudaFreeAsync(data, on), "releasing values");
    Lock lock(mutex_);
    poll(lock, what, members, [&] {
      if (cuda::is_done(cudaStreamQuery(on), "work on the GPU")) return true;
      look(lock);
      rethrow(lock);
      return false;
    });
    rethrow(lock);
    std::vector<std::uint64_t> others;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(m * own.size());
      if (*begin != own[0])
        stop_and_throw(lock, fmt::format("ranks have diverged: rank {} is at \"{}\" ({} {}), rank {} somewhere else",
                                         options_.rank, what, block_.load(), op_.load(), members[m]));
      others.insert(others.end(), begin + 1, begin + static_cast<std::ptrdiff_t>(own.size()));
    }
    return others;
  }

  void watch() {
    cudaSetDevice(backend_.device());
    Lock lock(mutex_);
    while (!changed_.wait_for(lock, kWatchPeriod, [&] { return ending_; })) {
      if (failure_) continue;
      try {
        look(lock);
      } catch (...) {
        stop(std::current_exception());  // the rank's own thread throws it, at its next call
      }
    }
  }

  // Removes finished operations from the lists. Stops everything if an operation takes too long or NCCL reports an
  // error.
  void look(Lock& lock) {
    if (failure_) return;
    const auto now = Clock::now();
    for (auto& [stream, pending] : pending_) {
      while (!pending.empty()) {
        if (!cuda::is_done(cudaEventQuery(pending.front().end), "work on the GPU")) break;
        free_events_.push_back(pending.front().begin);
        free_events_.push_back(pending.front().end);
        pending.pop_front();
      }
      if (pending.empty()) continue;
      Pending& oldest = pending.front();
      if (!oldest.begun) {
        if (cuda::is_done(cudaEventQuery(oldest.begin), "work on the GPU")) oldest.begun = now;
        continue;
      }
      const double waited = Seconds(now - *oldest.begun).count();
      if (waited > options_.watchdog_seconds)
        return stop(std::make_exception_ptr(ExecutionError(waits_for(oldest.what, oldest.members, waited))));
    }
    for (const auto& [channel, peer] : peers_) {
      if (peer.comm == nullptr) continue;
      ncclResult_t state = ncclSuccess;
      check_nccl(lock, ncclCommGetAsyncError(peer.comm, &state), peer.comm, "a running operation", channel.members);
      check_nccl(lock, state, peer.comm, "a running operation", channel.members);
      if (failure_) return;
    }
  }

  void rethrow(const Lock&) const {
    if (failure_) std::rethrow_exception(failure_);
  }

  CudaBackend& backend_;
  NcclOptions options_;
  std::atomic<const char*> block_{"start"}, op_{""};
  std::atomic<std::int64_t> micro_batch_{-1};

  mutable std::mutex mutex_;  // protects everything below
  std::map<Channel, Peer> peers_;
  std::map<cudaStream_t, std::deque<Pending>> pending_;
  std::vector<cudaEvent_t> free_events_;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::condition_variable changed_;
  std::thread watcher_;
};

}  // namespace

bool built_with_nccl() { return true; }

std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const NcclOptions& options) {
  auto* const cuda = dynamic_cast<CudaBackend*>(&backend);
  if (cuda == nullptr) throw std::logic_error("NCCL moves data between GPUs: it needs the CUDA backend");
  return std::make_unique<NcclCommunicator>(*cuda, options);
}

}  // namespace orrery
