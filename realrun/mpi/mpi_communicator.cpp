#include "realrun/mpi/mpi_communicator.h"

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <list>
#include <map>
#include <numeric>
#include <utility>

#include "realrun/mpi/transfers.h"
#include "sim/base/digest.h"
#include "sim/program/piece.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;
using mpi::Transfer;
using Kind = Transfer::Kind;

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void need(int code, const char* what) {
  if (code != MPI_SUCCESS) throw ExecutionError(fmt::format("{} failed: {}", what, error_text(code)));
}

std::size_t index_of(const Members& members, std::size_t rank) {
  const auto found = std::lower_bound(members.begin(), members.end(), rank);
  if (found == members.end() || *found != rank)
    throw ExecutionError(fmt::format("rank {} is not one of the ranks {}", rank, text_of(members)));
  return static_cast<std::size_t>(found - members.begin());
}

void sleep_for(double seconds) {
  constexpr double kNano = 1e9;
  const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(seconds * kNano)};
  nanosleep(&time, nullptr);
}

// The buffers that a schedule's elements refer to.
struct Buffers {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t element_bytes = sizeof(float);
};

// An operation's name as it is sent: a hash of all of it, and its beginning.
struct SentName {
  std::uint64_t hash = 0;
  std::array<char, 56> text{};
  bool operator==(const SentName&) const = default;
};
SentName sent_name(const std::string& name) {
  SentName sent{.hash = digest_of(name)};
  std::copy_n(name.begin(), std::min(name.size(), sent.text.size()), sent.text.begin());
  return sent;
}
std::string beginning_of(const SentName& name) {
  const auto end = std::find(name.text.begin(), name.text.end(), '\0');
  return std::string(name.text.begin(), end) + (end == name.text.end() ? "..." : "");
}

// One end of a message in pieces: bytes [k x largest, ...), one MPI message each. The last piece may be shorter; there
// is at least one. A name, if any, precedes the data in the first piece.
struct Ends {
  std::size_t largest = 0;
  MPI_Comm comm = MPI_COMM_NULL;
  std::size_t peer = 0;
  int tag = 0;

  std::size_t pieces(std::size_t bytes) const { return std::max<std::size_t>(1, (bytes + largest - 1) / largest); }

  void post_send(const std::byte* data, std::size_t bytes, const SentName* name, MPI_Request* requests) const {
    post(data, bytes, name, [&](const void* piece, int count, MPI_Datatype type, std::size_t k) {
      need(MPI_Isend(piece, count, type, static_cast<int>(peer), tag, comm, requests + k), "MPI_Isend");
    });
  }
  void post_receive(std::byte* data, std::size_t bytes, SentName* name, MPI_Request* requests) const {
    post(data, bytes, name, [&](void* piece, int count, MPI_Datatype type, std::size_t k) {
      need(MPI_Irecv(piece, count, type, static_cast<int>(peer), tag, comm, requests + k), "MPI_Irecv");
    });
  }

 private:
  template <class Byte, class Name, class Post>
  void post(Byte* data, std::size_t bytes, Name* name, Post post_piece) const {
    for (std::size_t k = 0; k < pieces(bytes); ++k) {
      Byte* piece = data + k * largest;
      const auto count = static_cast<int>(std::min(largest, bytes - k * largest));
      if (k > 0 || name == nullptr) {
        post_piece(piece, count, MPI_BYTE, k);
        continue;
      }
      const std::array<int, 2> counts{static_cast<int>(sizeof(SentName)), count};
      std::array<MPI_Aint, 2> addresses{};
      MPI_Get_address(name, &addresses[0]);
      MPI_Get_address(piece, &addresses[1]);
      const std::array<MPI_Datatype, 2> types{MPI_BYTE, MPI_BYTE};
      MPI_Datatype both = MPI_DATATYPE_NULL;
      need(MPI_Type_create_struct(2, counts.data(), addresses.data(), types.data(), &both), "MPI_Type_create_struct");
      need(MPI_Type_commit(&both), "MPI_Type_commit");
      post_piece(MPI_BOTTOM, 1, both, k);
      MPI_Type_free(&both);  // MPI frees it when the message is complete
    }
  }
};

struct MpiMessage {
  std::vector<float> data;
  std::vector<MPI_Request> requests;
  std::size_t to = 0;
  MessageTag tag;
};

// A running schedule: which transfers are under way, and what waits for them.
class Running {
 public:
  // `first`: the first message of every pair. `is_named`: it carries the operation's name, which is checked.
  Running(const mpi::Transfers& schedule, const Members& members, const Buffers& buffers, const std::string& name,
          bool is_named, const Ends& first)
      : schedule_(schedule), buffers_(buffers), name_(name), sent_name_(sent_name(name)), states_(schedule.size()) {
    std::map<std::size_t, int> sends, receives;  // so far, by partner
    for (std::size_t t = 0; t < schedule.size(); ++t) {
      const Transfer& transfer = schedule[t];
      const int number = (transfer.kind == Kind::send ? sends : receives)[transfer.member]++;
      State& state = states_[t];
      state.ends = {first.largest, first.comm, members[transfer.member], first.tag + number};
      state.is_named = is_named && number == 0;
      state.first_slot = transfer_of_.size();
      state.pieces_left = state.ends.pieces(bytes_of(transfer.elements()));
      transfer_of_.insert(transfer_of_.end(), state.pieces_left, t);
      state.missing = transfer.after.size();
      for (const std::size_t before : transfer.after) states_[before].waiting.push_back(t);
    }
    left_ = transfer_of_.size();
    requests_.assign(left_, MPI_REQUEST_NULL);
    finished_.resize(left_);
    statuses_.resize(left_);
    for (std::size_t t = 0; t < schedule.size(); ++t)
      if (states_[t].missing == 0) start(t);
  }

  bool done() const { return left_ == 0; }

  bool progress() {
    int count = 0;
    const int code =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, finished_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) need(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED || count == 0) return false;
    // Checks names first: a message under a wrong name need not fit.
    for (int k = 0; k < count; ++k) {
      const auto slot = static_cast<std::size_t>(finished_[static_cast<std::size_t>(k)]);
      const std::size_t t = transfer_of_[slot];
      if (slot == states_[t].first_slot && schedule_[t].kind != Kind::send && states_[t].is_named)
        check_name(states_[t]);
    }
    for (int k = 0; k < count; ++k) {
      const auto i = static_cast<std::size_t>(k);
      if (code == MPI_ERR_IN_STATUS) need(statuses_[i].MPI_ERROR, "a message");
      const auto slot = static_cast<std::size_t>(finished_[i]);
      const std::size_t t = transfer_of_[slot];
      if (schedule_[t].kind != Kind::send) check_size(t, slot - states_[t].first_slot, statuses_[i]);
      --left_;
      if (--states_[t].pieces_left == 0) finish(t);
    }
    return true;
  }

  // Returns the ranks that have not sent, or not received, what they should.
  std::string waited_for() const {
    std::vector<std::size_t> late;
    for (std::size_t slot = 0; slot < transfer_of_.size(); ++slot)
      if (requests_[slot] != MPI_REQUEST_NULL) late.push_back(states_[transfer_of_[slot]].ends.peer);
    std::sort(late.begin(), late.end());
    late.erase(std::unique(late.begin(), late.end()), late.end());
    return fmt::format("rank{} {}", late.size() == 1 ? "" : "s", fmt::join(late, ", "));
  }

 private:
  struct State {  // of a transfer
    Ends ends;
    bool is_named = false;
    std::size_t first_slot = 0, pieces_left = 0;
    std::size_t missing = 0;           // transfers to wait for
    std::vector<std::size_t> waiting;  // transfers that wait for it
    SentName name;                     // as received
    std::vector<std::byte> packed;
  };

  void check_name(const State& state) const {
    if (state.name != sent_name_)
      throw ExecutionError(
          fmt::format("comes to {}, but rank {} is in {}", name_, state.ends.peer, beginning_of(state.name)));
  }

  // Needed because MPI accepts a message that is shorter than its receiver expects.
  void check_size(std::size_t t, std::size_t piece, const MPI_Status& status) const {
    const Ends& ends = states_[t].ends;
    const std::size_t name = piece == 0 && states_[t].is_named ? sizeof(SentName) : 0,
                      rest = bytes_of(schedule_[t].elements()) - piece * ends.largest,
                      expected = std::min(ends.largest, rest) + name;
    int received = 0;
    MPI_Get_elements(&status, MPI_BYTE, &received);
    if (static_cast<std::size_t>(received) != expected)
      throw ExecutionError(fmt::format("expects {} bytes from rank {}, which sends {}", expected - name, ends.peer,
                                       static_cast<std::size_t>(received) - name));
  }

  std::size_t bytes_of(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * buffers_.element_bytes;
  }

  void start(std::size_t t) {
    const Transfer& transfer = schedule_[t];
    State& state = states_[t];
    const std::size_t bytes = bytes_of(transfer.elements()), first = bytes_of(transfer.ranges.front().begin);
    const bool dense = transfer.ranges.size() == 1, named = state.is_named;
    if (!dense || transfer.kind == Kind::receive_and_add) state.packed.resize(bytes);
    MPI_Request* requests = &requests_[state.first_slot];
    if (transfer.kind != Kind::send) {
      state.ends.post_receive(state.packed.empty() ? buffers_.target + first : state.packed.data(), bytes,
                              named ? &state.name : nullptr, requests);
      return;
    }
    std::byte* to = state.packed.data();
    if (!dense)
      for (const mpi::Range& range : transfer.ranges) {
        std::memcpy(to, buffers_.source + bytes_of(range.begin), bytes_of(range.elements));
        to += bytes_of(range.elements);
      }
    state.ends.post_send(dense ? buffers_.source + first : state.packed.data(), bytes, named ? &sent_name_ : nullptr,
                         requests);
  }

  void finish(std::size_t t) {
    const Transfer& transfer = schedule_[t];
    State& state = states_[t];
    if (transfer.kind != Kind::send && !state.packed.empty()) {
      const std::byte* from = state.packed.data();
      for (const mpi::Range& range : transfer.ranges) {
        std::byte* to = buffers_.target + bytes_of(range.begin);
        if (transfer.kind == Kind::receive) {
          std::memcpy(to, from, bytes_of(range.elements));
        } else {
          const auto* values = reinterpret_cast<const float*>(from);
          auto* sums = reinterpret_cast<float*>(to);
          for (std::int64_t i = 0; i < range.elements; ++i) sums[i] += values[i];
        }
        from += bytes_of(range.elements);
      }
    }
    state.packed = {};
    for (const std::size_t next : state.waiting)
      if (--states_[next].missing == 0) start(next);
  }

  const mpi::Transfers& schedule_;
  const Buffers buffers_;
  const std::string name_;
  const SentName sent_name_;
  std::vector<State> states_;
  // Indexed by slot, piece by piece of the transfers:
  std::vector<std::size_t> transfer_of_;
  std::vector<MPI_Request> requests_;
  std::vector<int> finished_;
  std::vector<MPI_Status> statuses_;
  std::size_t left_ = 0;
};

class Ranks final : public MpiCommunicator {
 public:
  explicit Ranks(const MpiOptions& options) : options_(options) {
    need(MPI_Comm_dup(MPI_COMM_WORLD, &collectives_), "MPI_Comm_dup");
    need(MPI_Comm_dup(MPI_COMM_WORLD, &messages_), "MPI_Comm_dup");
    for (const MPI_Comm c : {collectives_, messages_})
      need(MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int value = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &value);
    rank_ = static_cast<std::size_t>(value);
    MPI_Comm_size(MPI_COMM_WORLD, &value);
    ranks_ = static_cast<std::size_t>(value);
    void* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found);
    if (found != 0) largest_tag_ = *static_cast<int*>(bound);
  }
  ~Ranks() override {
    MPI_Comm_free(&collectives_);
    MPI_Comm_free(&messages_);
  }

  std::size_t rank() const override { return rank_; }
  std::size_t ranks() const override { return ranks_; }
  void at(const PlaceInProgram& place) override { place_ = place; }
  std::unique_ptr<Communicator> beside(Backend&) override {
    int level = MPI_THREAD_SINGLE;
    need(MPI_Query_thread(&level), "MPI_Query_thread");
    return level == MPI_THREAD_MULTIPLE ? std::make_unique<Ranks>(options_) : nullptr;
  }

  void all_reduce(const CollectiveCall& of, void* data, std::int64_t elements) override {
    run_in_place(OpKind::all_reduce, options_.algorithm, of, data, elements);
  }

  void all_gather(const CollectiveCall& of, const void* part, void* whole, std::int64_t part_elements) override {
    std::memmove(own_part(of, whole, part_elements), part, bytes_of(part_elements));
    run_in_place(OpKind::all_gather, gathering(), of, whole, part_elements);
  }

  void reduce_scatter(const CollectiveCall& of, const void* whole, void* part, std::int64_t part_elements) override {
    std::vector<std::byte> sums(of.members.size() * bytes_of(part_elements));
    std::memcpy(sums.data(), whole, sums.size());
    run_in_place(OpKind::reduce_scatter, gathering(), of, sums.data(), part_elements);
    std::memcpy(part, own_part(of, sums.data(), part_elements), bytes_of(part_elements));
  }

  void all_to_all_v(const CollectiveCall& of, const void* from, std::span<const std::int64_t> sends, void* to,
                    std::span<const std::int64_t> receives) override {
    const auto* source = static_cast<const std::byte*>(from);
    auto* target = static_cast<std::byte*>(to);
    const std::size_t own = index_of(of.members, rank_);
    const auto bytes_before = [&](std::span<const std::int64_t> parts) {
      return bytes_of(std::reduce(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(own)));
    };
    if (sends[own] != receives[own])
      throw ExecutionError(fmt::format("{} sends itself {} elements in \"{}\" and expects {}", place(), sends[own],
                                       of.what, receives[own]));
    if (sends[own] > 0)
      std::memcpy(target + bytes_before(receives), source + bytes_before(sends), bytes_of(sends[own]));
    run(mpi::unequal_all_to_all(own, sends, receives), of, {.source = source, .target = target});
  }

  void permute(const CollectiveCall& of, const void* from, void* to, std::int64_t elements, std::size_t to_member,
               std::size_t from_member) override {
    const std::size_t own = index_of(of.members, rank_);
    if (to_member == own && from_member == own) {
      std::memcpy(to, from, bytes_of(elements));
      return;
    }
    const mpi::Transfers schedule{{Kind::receive, from_member, {{0, elements}}, {}},
                                  {Kind::send, to_member, {{0, elements}}, {}}};
    run(schedule, of, {.source = static_cast<const std::byte*>(from), .target = static_cast<std::byte*>(to)});
  }

  void broadcast(const CollectiveCall& of, void* data, std::int64_t elements) override {
    run_in_place(OpKind::broadcast, CollectiveAlgorithm::ring, of, data, elements);
  }

  std::vector<std::vector<double>> gather_values(const Members& members, const std::string& what,
                                                 std::vector<double> values) override {
    const std::size_t own = index_of(members, rank_), n = members.size();
    const auto gather = [&](std::vector<double>& whole, std::size_t each) {
      run_in_place(OpKind::all_gather, CollectiveAlgorithm::ring, {members, what}, whole.data(),
                   static_cast<std::int64_t>(each), sizeof(double));
    };
    std::vector<double> lengths(n);
    lengths[own] = static_cast<double>(values.size());
    gather(lengths, 1);
    const auto most = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    std::vector<double> whole(n * most);
    std::copy(values.begin(), values.end(), whole.begin() + static_cast<std::ptrdiff_t>(own * most));
    if (most > 0) gather(whole, most);
    std::vector<std::vector<double>> all(n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(i * most);
      all[i].assign(begin, begin + static_cast<std::ptrdiff_t>(lengths[i]));
    }
    return all;
  }

  void send(std::size_t to, const MessageTag& tag, Stream, const void* data, std::int64_t elements, Dtype) override {
    for (const MpiMessage& m : sent_)
      if (m.to == to && m.tag == tag) throw ExecutionError(place() + " sends " + text_of(tag) + " twice");
    MpiMessage& message = sent_.emplace_back();
    const auto* values = static_cast<const float*>(data);
    message.data.assign(values, values + elements);
    message.to = to;
    message.tag = tag;
    const Ends ends{.largest = largest(), .comm = messages_, .peer = to, .tag = tag_of(tag)};
    message.requests.assign(ends.pieces(bytes_of(elements)), MPI_REQUEST_NULL);
    ends.post_send(reinterpret_cast<const std::byte*>(message.data.data()), bytes_of(elements), nullptr,
                   message.requests.data());
    retire_sent();
  }

  void receive(std::size_t from, const MessageTag& tag, Stream, void* data, std::int64_t elements, Dtype) override {
    const mpi::Transfers schedule{{Kind::receive, from, {{0, elements}}, {}}};
    run(schedule, everyone(), {.target = static_cast<std::byte*>(data)}, text_of(tag), false,
        {.largest = largest(), .comm = messages_, .tag = tag_of(tag)},
        [&](const Running&) { return fmt::format("for {} from rank {}", text_of(tag), from); });
  }

  void fail(std::exception_ptr failure) override {
    try {
      std::rethrow_exception(std::move(failure));
    } catch (const std::exception& error) {
      fmt::print(stderr, "orrery-rank: {}\n", error.what());
    } catch (...) {
      fmt::print(stderr, "orrery-rank: {} failed\n", place());
    }
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();  // MPI_Abort need not be declared noreturn
  }

  void finish() override {
    wait([] { return false; }, [&] { return sent_.empty(); },
         [&] { return fmt::format("for rank {} to take {}", sent_.front().to, text_of(sent_.front().tag)); });
    gather_values(everyone(), "the end", {});
    int left = 0;
    MPI_Status status{};
    need(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, messages_, &left, &status), "MPI_Iprobe");
    if (left != 0)
      throw ExecutionError(fmt::format("rank {} has never received a message from rank {}", rank_, status.MPI_SOURCE));
  }

 private:
  std::string place() const { return text_of(rank_, place_); }
  static std::size_t bytes_of(std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(float); }
  std::byte* own_part(const CollectiveCall& of, void* whole, std::int64_t part_elements) const {
    return static_cast<std::byte*>(whole) + index_of(of.members, rank_) * bytes_of(part_elements);
  }

  // Waits until `done`. `progress` returns whether anything happened.
  template <class Progress, class Done, class Describe>
  void wait(Progress progress, Done done, Describe describe) {
    const auto yielding = std::chrono::duration<double>(options_.yield_seconds);
    const auto patience = std::chrono::duration<double>(options_.watchdog_seconds);
    Clock::time_point last = Clock::now();
    while (!done()) {
      const bool left = retire_sent();
      if (progress() || left) {
        last = Clock::now();
        continue;
      }
      const auto idle = Clock::now() - last;
      if (idle > patience) throw ExecutionError(place() + " waits " + describe());
      if (idle < yielding)
        sched_yield();
      else
        sleep_for(options_.sleep_seconds);
    }
  }

  // Removes messages between stages that have been sent.
  bool retire_sent() {
    bool any = false;
    for (auto m = sent_.begin(); m != sent_.end();) {
      int done = 0;
      need(MPI_Testall(static_cast<int>(m->requests.size()), m->requests.data(), &done, MPI_STATUSES_IGNORE),
           "MPI_Testall");
      any |= done != 0;
      m = done != 0 ? sent_.erase(m) : std::next(m);
    }
    return any;
  }

  void run(const mpi::Transfers& schedule, const CollectiveCall& of, const Buffers& buffers) {
    if (of.members.size() == 1) return;
    const std::string name = fmt::format("\"{}\" of ranks {}", of.what, text_of(of.members));
    run(schedule, of.members, buffers, name, true, {.largest = largest(), .comm = collectives_},
        [&](const Running& running) { return "in " + name + " for " + running.waited_for(); });
  }
  // The arguments are Running's. describe(what runs): what the rank waits for.
  template <class Describe>
  void run(const mpi::Transfers& schedule, const Members& members, const Buffers& buffers, const std::string& name,
           bool is_named, const Ends& first, Describe describe) {
    try {
      Running running(schedule, members, buffers, name, is_named, first);
      wait([&] { return running.progress(); }, [&] { return running.done(); }, [&] { return describe(running); });
    } catch (const ExecutionError& error) {
      const std::string text = error.what();
      if (text.starts_with("rank ")) throw;
      throw ExecutionError(place() + " " + (text.starts_with("comes to ") ? "" : "in " + name + ": ") + text);
    }
  }
  void run_in_place(OpKind kind, CollectiveAlgorithm algorithm, const CollectiveCall& of, void* data,
                    std::int64_t elements, std::size_t element_bytes = sizeof(float)) {
    const std::int64_t chunk = std::max<std::int64_t>(1, options_.chunk_bytes / std::int64_t{sizeof(float)});
    auto* bytes = static_cast<std::byte*>(data);
    run(mpi::schedule_of(kind, algorithm, of.members.size(), index_of(of.members, rank_), elements, chunk), of,
        {.source = bytes, .target = bytes, .element_bytes = element_bytes});
  }
  std::size_t largest() const { return static_cast<std::size_t>(std::max<std::int64_t>(1, options_.message_bytes)); }
  CollectiveAlgorithm gathering() const {
    return options_.algorithm == CollectiveAlgorithm::halving_doubling ? options_.algorithm : CollectiveAlgorithm::ring;
  }

  int tag_of(const MessageTag& tag) const {
    constexpr std::int64_t kMicroBatches = 1 << 20, kAcross = 1 + kSideStreams;
    const std::int64_t place = 2 * (tag.position * kMicroBatches + tag.micro_batch) + (tag.backward ? 1 : 0);
    const std::int64_t value = place * kAcross + static_cast<std::int64_t>(tag.stream);
    if (tag.micro_batch < 0 || tag.micro_batch >= kMicroBatches || tag.position < 0 || value > largest_tag_)
      throw ExecutionError(fmt::format("{} has no MPI tag: more than {} micro-batches, or positions beyond {}",
                                       text_of(tag), kMicroBatches, largest_tag_ / (2 * kMicroBatches * kAcross)));
    return static_cast<int>(value);
  }

  const MpiOptions options_;
  MPI_Comm collectives_ = MPI_COMM_NULL, messages_ = MPI_COMM_NULL;
  std::size_t rank_ = 0, ranks_ = 1;
  int largest_tag_ = 32767;  // the minimum that the MPI standard guarantees
  PlaceInProgram place_;
  std::list<MpiMessage> sent_;  // between stages, still being sent
};

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) {
  int provided = 0;
  need(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  // Makes sleeps end on time: the default slack is as long as the sleeps themselves.
  prctl(PR_SET_TIMERSLACK, 1);
}

MpiSession::~MpiSession() { MPI_Finalize(); }

std::unique_ptr<MpiCommunicator> make_mpi_communicator(const MpiOptions& options) {
  return std::make_unique<Ranks>(options);
}

}  // namespace orrery
