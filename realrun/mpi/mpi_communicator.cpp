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

std::string list_of(const Members& ranks) { return fmt::format("{{{}}}", fmt::join(ranks, ", ")); }

std::size_t index_of(const Members& members, std::size_t rank) {
  const auto found = std::lower_bound(members.begin(), members.end(), rank);
  if (found == members.end() || *found != rank)
    throw ExecutionError(fmt::format("rank {} is not one of the ranks {}", rank, list_of(members)));
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
  SentName sent;
  sent.hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : name) sent.hash = (sent.hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::copy_n(name.begin(), std::min(name.size(), sent.text.size()), sent.text.begin());
  return sent;
}
std::string text_of(const SentName& name) {
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

std::string name_of(const MessageTag& tag) {
  return fmt::format("the {} of position {}, micro-batch {}", tag.backward ? "output gradient" : "input", tag.position,
                     tag.micro_batch);
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) {
  int provided = 0;
  need(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  // Makes sleeps end on time: the default slack is as long as the sleeps themselves.
  prctl(PR_SET_TIMERSLACK, 1);
}

MpiSession::~MpiSession() { MPI_Finalize(); }

struct MpiCommunicator::Rep {
  explicit Rep(const MpiOptions& given) : options(given) {
    need(MPI_Comm_dup(MPI_COMM_WORLD, &collectives), "MPI_Comm_dup");
    need(MPI_Comm_dup(MPI_COMM_WORLD, &messages), "MPI_Comm_dup");
    for (const MPI_Comm c : {collectives, messages})
      need(MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int value = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &value);
    rank = static_cast<std::size_t>(value);
    MPI_Comm_size(MPI_COMM_WORLD, &value);
    ranks = static_cast<std::size_t>(value);
    void* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found);
    if (found != 0) largest_tag = *static_cast<int*>(bound);
  }

  std::string place() const {
    return fmt::format("rank {} ({} of micro-batch {}, op \"{}\")", rank, block, micro_batch, op);
  }

  // Waits until `done`. `progress` returns whether anything happened.
  template <class Progress, class Done, class Describe>
  void wait(Progress progress, Done done, Describe describe) {
    const auto yielding = std::chrono::duration<double>(options.yield_seconds);
    const auto patience = std::chrono::duration<double>(options.watchdog_seconds);
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
        sleep_for(options.sleep_seconds);
    }
  }

  // Removes messages between stages that have been sent.
  bool retire_sent() {
    bool any = false;
    for (auto m = sent.begin(); m != sent.end();) {
      int done = 0;
      need(MPI_Testall(static_cast<int>(m->requests.size()), m->requests.data(), &done, MPI_STATUSES_IGNORE),
           "MPI_Testall");
      any |= done != 0;
      m = done != 0 ? sent.erase(m) : std::next(m);
    }
    return any;
  }

  void run(const mpi::Transfers& schedule, const Members& members, const std::string& what, const Buffers& buffers);

  void run(OpKind kind, CollectiveAlgorithm algorithm, const Members& members, const std::string& what,
           std::int64_t elements, const Buffers& buffers) {
    const std::int64_t chunk = std::max<std::int64_t>(1, options.chunk_bytes / std::int64_t{sizeof(float)});
    run(mpi::schedule_of(kind, algorithm, members.size(), index_of(members, rank), elements, chunk), members, what,
        buffers);
  }
  std::size_t largest() const { return static_cast<std::size_t>(std::max<std::int64_t>(1, options.message_bytes)); }
  CollectiveAlgorithm gathering() const {
    return options.algorithm == CollectiveAlgorithm::halving_doubling ? options.algorithm : CollectiveAlgorithm::ring;
  }

  int tag_of(const MessageTag& tag) const {
    constexpr std::int64_t kMicroBatches = 1 << 20, kAcross = 1 + kSideStreams;
    const std::int64_t place = 2 * (tag.position * kMicroBatches + tag.micro_batch) + (tag.backward ? 1 : 0);
    const std::int64_t value = place * kAcross + static_cast<std::int64_t>(tag.stream);
    if (tag.micro_batch < 0 || tag.micro_batch >= kMicroBatches || tag.position < 0 || value > largest_tag)
      throw ExecutionError(fmt::format("{} has no MPI tag: more than {} micro-batches, or positions beyond {}",
                                       name_of(tag), kMicroBatches, largest_tag / (2 * kMicroBatches * kAcross)));
    return static_cast<int>(value);
  }

  const MpiOptions options;
  MPI_Comm collectives = MPI_COMM_NULL, messages = MPI_COMM_NULL;
  std::size_t rank = 0, ranks = 1;
  int largest_tag = 32767;  // the minimum that the MPI standard guarantees
  const char *block = "start", *op = "";
  std::int64_t micro_batch = -1;
  std::list<MpiMessage> sent;  // between stages, still being sent
};

namespace {

// A running schedule: which transfers are under way, and what waits for them.
class Running {
 public:
  Running(const mpi::Transfers& schedule, const Members& members, const Buffers& buffers, const std::string& name,
          std::size_t largest, MPI_Comm comm)
      : schedule_(schedule),
        members_(members),
        buffers_(buffers),
        name_(name),
        sent_name_(sent_name(name)),
        missing_(schedule.size()),
        waiting_(schedule.size()),
        packed_(schedule.size()) {
    std::map<std::size_t, int> sends, receives;  // so far, by partner
    for (std::size_t t = 0; t < schedule.size(); ++t) {
      const Transfer& transfer = schedule[t];
      const int number = (transfer.kind == Kind::send ? sends : receives)[transfer.member]++;
      ends_.push_back({.largest = largest, .comm = comm, .peer = members[transfer.member], .tag = number});
      first_slot_.push_back(transfer_of_.size());
      pieces_left_.push_back(ends_.back().pieces(bytes_of(transfer)));
      transfer_of_.insert(transfer_of_.end(), pieces_left_.back(), t);
      missing_[t] = transfer.after.size();
      for (const std::size_t before : transfer.after) waiting_[before].push_back(t);
    }
    names_.resize(schedule.size());
    left_ = transfer_of_.size();
    requests_.assign(left_, MPI_REQUEST_NULL);
    finished_.resize(left_);
    statuses_.resize(left_);
    for (std::size_t t = 0; t < schedule.size(); ++t)
      if (missing_[t] == 0) start(t);
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
      if (slot == first_slot_[t] && schedule_[t].kind != Kind::send && ends_[t].tag == 0) check_name(t);
    }
    for (int k = 0; k < count; ++k) {
      const auto i = static_cast<std::size_t>(k);
      if (code == MPI_ERR_IN_STATUS) need(statuses_[i].MPI_ERROR, "a message");
      const auto slot = static_cast<std::size_t>(finished_[i]);
      const std::size_t t = transfer_of_[slot];
      if (schedule_[t].kind != Kind::send) check_size(t, slot - first_slot_[t], statuses_[i]);
      --left_;
      if (--pieces_left_[t] == 0) finish(t);
    }
    return true;
  }

  // Returns the ranks that have not sent, or not received, what they should.
  std::string waited_for() const {
    std::vector<std::size_t> late;
    for (std::size_t slot = 0; slot < transfer_of_.size(); ++slot)
      if (requests_[slot] != MPI_REQUEST_NULL) late.push_back(ends_[transfer_of_[slot]].peer);
    std::sort(late.begin(), late.end());
    late.erase(std::unique(late.begin(), late.end()), late.end());
    return fmt::format("rank{} {}", late.size() == 1 ? "" : "s", fmt::join(late, ", "));
  }

 private:
  void check_name(std::size_t t) const {
    if (names_[t] != sent_name_)
      throw ExecutionError(fmt::format("comes to {}, but rank {} is in {}", name_, ends_[t].peer, text_of(names_[t])));
  }

  // Needed because MPI accepts a message that is shorter than its receiver expects.
  void check_size(std::size_t t, std::size_t piece, const MPI_Status& status) const {
    const std::size_t bytes = bytes_of(schedule_[t]), largest = ends_[t].largest;
    const std::size_t name = piece == 0 && ends_[t].tag == 0 ? sizeof(SentName) : 0,
                      expected = std::min(largest, bytes - piece * largest) + name;
    int received = 0;
    MPI_Get_elements(&status, MPI_BYTE, &received);
    if (static_cast<std::size_t>(received) != expected)
      throw ExecutionError(fmt::format("expects {} bytes from rank {}, which sends {}", expected - name, ends_[t].peer,
                                       static_cast<std::size_t>(received) - name));
  }

  std::size_t bytes_of(const Transfer& transfer) const {
    return static_cast<std::size_t>(transfer.elements()) * buffers_.element_bytes;
  }
  std::size_t bytes_of(const mpi::Range& range) const {
    return static_cast<std::size_t>(range.elements) * buffers_.element_bytes;
  }
  std::size_t offset_of(const mpi::Range& range) const {
    return static_cast<std::size_t>(range.begin) * buffers_.element_bytes;
  }

  void start(std::size_t t) {
    const Transfer& transfer = schedule_[t];
    const std::size_t bytes = bytes_of(transfer);
    const bool dense = transfer.ranges.size() == 1, named = ends_[t].tag == 0;
    if (!dense || transfer.kind == Kind::receive_and_add) packed_[t].resize(bytes);
    MPI_Request* requests = &requests_[first_slot_[t]];
    if (transfer.kind != Kind::send) {
      ends_[t].post_receive(
          packed_[t].empty() ? buffers_.target + offset_of(transfer.ranges.front()) : packed_[t].data(), bytes,
          named ? &names_[t] : nullptr, requests);
      return;
    }
    std::byte* to = packed_[t].data();
    if (!dense)
      for (const mpi::Range& range : transfer.ranges) {
        std::memcpy(to, buffers_.source + offset_of(range), bytes_of(range));
        to += bytes_of(range);
      }
    ends_[t].post_send(dense ? buffers_.source + offset_of(transfer.ranges.front()) : packed_[t].data(), bytes,
                       named ? &sent_name_ : nullptr, requests);
  }

  void finish(std::size_t t) {
    const Transfer& transfer = schedule_[t];
    if (transfer.kind != Kind::send && !packed_[t].empty()) {
      const std::byte* from = packed_[t].data();
      for (const mpi::Range& range : transfer.ranges) {
        std::byte* to = buffers_.target + offset_of(range);
        if (transfer.kind == Kind::receive) {
          std::memcpy(to, from, bytes_of(range));
        } else {
          const auto* values = reinterpret_cast<const float*>(from);
          auto* sums = reinterpret_cast<float*>(to);
          for (std::int64_t i = 0; i < range.elements; ++i) sums[i] += values[i];
        }
        from += bytes_of(range);
      }
    }
    packed_[t] = {};
    for (const std::size_t next : waiting_[t])
      if (--missing_[next] == 0) start(next);
  }

  const mpi::Transfers& schedule_;
  const Members& members_;
  const Buffers buffers_;
  const std::string name_;
  const SentName sent_name_;
  // Indexed by transfer:
  std::vector<Ends> ends_;
  std::vector<SentName> names_;  // as received
  std::vector<std::size_t> first_slot_, pieces_left_;
  // Indexed by slot, piece by piece of the transfers:
  std::vector<std::size_t> transfer_of_;
  std::vector<MPI_Request> requests_;
  std::vector<int> finished_;
  std::vector<MPI_Status> statuses_;
  std::size_t left_ = 0;
  std::vector<std::size_t> missing_;  // transfers to wait for
  std::vector<std::vector<std::size_t>> waiting_;
  std::vector<std::vector<std::byte>> packed_;
};

}  // namespace

void MpiCommunicator::Rep::run(const mpi::Transfers& schedule, const Members& members, const std::string& what,
                               const Buffers& buffers) {
  if (members.size() == 1) return;
  const std::string name = fmt::format("\"{}\" of ranks {}", what, list_of(members));
  try {
    Running running(schedule, members, buffers, name, largest(), collectives);
    wait([&] { return running.progress(); }, [&] { return running.done(); },
         [&] { return "in " + name + " for " + running.waited_for(); });
  } catch (const ExecutionError& error) {
    const std::string text = error.what();
    if (text.starts_with("rank ")) throw;
    throw ExecutionError(place() + " " + (text.starts_with("comes to ") ? "" : "in " + name + ": ") + text);
  }
}

MpiCommunicator::MpiCommunicator(const MpiOptions& options) : rep_(std::make_unique<Rep>(options)) {}

MpiCommunicator::~MpiCommunicator() {
  MPI_Comm_free(&rep_->collectives);
  MPI_Comm_free(&rep_->messages);
}

std::size_t MpiCommunicator::rank() const { return rep_->rank; }
std::size_t MpiCommunicator::ranks() const { return rep_->ranks; }

void MpiCommunicator::at(const char* block, const char* op, std::int64_t micro_batch) {
  rep_->block = block;
  rep_->op = op;
  rep_->micro_batch = micro_batch;
}

void MpiCommunicator::all_reduce(const Members& members, const std::string& what, Stream, void* data,
                                 std::int64_t elements, Dtype) {
  auto* bytes = static_cast<std::byte*>(data);
  rep_->run(OpKind::all_reduce, rep_->options.algorithm, members, what, elements, {.source = bytes, .target = bytes});
}

void MpiCommunicator::all_gather(const Members& members, const std::string& what, Stream, const void* part, void* whole,
                                 std::int64_t part_elements, Dtype) {
  auto* bytes = static_cast<std::byte*>(whole);
  const std::size_t part_bytes = static_cast<std::size_t>(part_elements) * sizeof(float);
  std::memmove(bytes + index_of(members, rep_->rank) * part_bytes, part, part_bytes);
  rep_->run(OpKind::all_gather, rep_->gathering(), members, what, part_elements, {.source = bytes, .target = bytes});
}

void MpiCommunicator::reduce_scatter(const Members& members, const std::string& what, Stream, const void* whole,
                                     void* part, std::int64_t part_elements, Dtype) {
  const std::size_t part_bytes = static_cast<std::size_t>(part_elements) * sizeof(float);
  std::vector<std::byte> sums(members.size() * part_bytes);
  std::memcpy(sums.data(), whole, sums.size());
  rep_->run(OpKind::reduce_scatter, rep_->gathering(), members, what, part_elements,
            {.source = sums.data(), .target = sums.data()});
  std::memcpy(part, sums.data() + index_of(members, rep_->rank) * part_bytes, part_bytes);
}

void MpiCommunicator::all_to_all(const Members& members, const std::string& what, Stream, const void* from, void* to,
                                 std::int64_t part_elements, Dtype) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  const std::size_t part_bytes = static_cast<std::size_t>(part_elements) * sizeof(float);
  const std::size_t own = index_of(members, rep_->rank) * part_bytes;
  std::memcpy(target + own, source + own, part_bytes);
  rep_->run(OpKind::all_to_all, CollectiveAlgorithm::direct, members, what, part_elements,
            {.source = source, .target = target});
}

void MpiCommunicator::all_to_all_v(const Members& members, const std::string& what, Stream, const void* from,
                                   std::span<const std::int64_t> sends, void* to,
                                   std::span<const std::int64_t> receives, Dtype) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  const std::size_t own = index_of(members, rep_->rank);
  const auto bytes_before = [&](std::span<const std::int64_t> parts) {
    const auto end = parts.begin() + static_cast<std::ptrdiff_t>(own);
    return static_cast<std::size_t>(std::accumulate(parts.begin(), end, std::int64_t{0})) * sizeof(float);
  };
  if (sends[own] != receives[own])
    throw ExecutionError(fmt::format("{} sends itself {} elements in \"{}\" and expects {}", rep_->place(), sends[own],
                                     what, receives[own]));
  if (sends[own] > 0)
    std::memcpy(target + bytes_before(receives), source + bytes_before(sends),
                static_cast<std::size_t>(sends[own]) * sizeof(float));
  rep_->run(mpi::unequal_all_to_all(own, sends, receives), members, what, {.source = source, .target = target});
}

void MpiCommunicator::permute(const Members& members, const std::string& what, Stream, const void* from, void* to,
                              std::int64_t elements, Dtype, std::size_t to_member, std::size_t from_member) {
  const std::size_t own = index_of(members, rep_->rank);
  if (to_member == own && from_member == own) {
    std::memcpy(to, from, static_cast<std::size_t>(elements) * sizeof(float));
    return;
  }
  const mpi::Transfers schedule{{Kind::receive, from_member, {{0, elements}}, {}},
                               {Kind::send, to_member, {{0, elements}}, {}}};
  rep_->run(schedule, members, what,
            {.source = static_cast<const std::byte*>(from), .target = static_cast<std::byte*>(to)});
}

std::vector<std::vector<double>> MpiCommunicator::gather_values(const Members& members, const std::string& what,
                                                                std::vector<double> values) {
  const std::size_t own = index_of(members, rep_->rank), n = members.size();
  const auto gather = [&](std::vector<double>& whole, std::size_t each) {
    auto* bytes = reinterpret_cast<std::byte*>(whole.data());
    rep_->run(OpKind::all_gather, CollectiveAlgorithm::ring, members, what, static_cast<std::int64_t>(each),
              {.source = bytes, .target = bytes, .element_bytes = sizeof(double)});
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

void MpiCommunicator::broadcast(const Members& members, const std::string& what, void* data, std::int64_t elements) {
  auto* bytes = static_cast<std::byte*>(data);
  rep_->run(OpKind::broadcast, CollectiveAlgorithm::ring, members, what, elements, {.source = bytes, .target = bytes});
}

void MpiCommunicator::send(std::size_t to, const MessageTag& tag, Stream, const void* data, std::int64_t elements,
                           Dtype) {
  for (const MpiMessage& m : rep_->sent)
    if (m.to == to && m.tag == tag) throw ExecutionError(rep_->place() + " sends " + name_of(tag) + " twice");
  MpiMessage& message = rep_->sent.emplace_back();
  const auto* values = static_cast<const float*>(data);
  message.data.assign(values, values + elements);
  message.to = to;
  message.tag = tag;
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  const Ends ends{.largest = rep_->largest(), .comm = rep_->messages, .peer = to, .tag = rep_->tag_of(tag)};
  message.requests.assign(ends.pieces(bytes), MPI_REQUEST_NULL);
  ends.post_send(reinterpret_cast<const std::byte*>(message.data.data()), bytes, nullptr, message.requests.data());
  rep_->retire_sent();
}

void MpiCommunicator::receive(std::size_t from, const MessageTag& tag, Stream, void* data, std::int64_t elements,
                              Dtype) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  const Ends ends{.largest = rep_->largest(), .comm = rep_->messages, .peer = from, .tag = rep_->tag_of(tag)};
  std::vector<MPI_Request> requests(ends.pieces(bytes), MPI_REQUEST_NULL);
  ends.post_receive(static_cast<std::byte*>(data), bytes, nullptr, requests.data());
  std::size_t left = requests.size();
  std::vector<int> finished(left);
  std::vector<MPI_Status> statuses(left);
  std::size_t received = 0;
  rep_->wait(
      [&] {
        int count = 0;
        need(MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count, finished.data(), statuses.data()),
             "a message between stages");
        if (count <= 0) return false;
        for (int k = 0; k < count; ++k) {
          int piece = 0;
          MPI_Get_count(&statuses[static_cast<std::size_t>(k)], MPI_BYTE, &piece);
          received += static_cast<std::size_t>(piece);
        }
        left -= static_cast<std::size_t>(count);
        return true;
      },
      [&] { return left == 0; }, [&] { return fmt::format("for {} from rank {}", name_of(tag), from); });
  if (received != bytes)
    throw ExecutionError(fmt::format("{} received {} bytes of {} from rank {}, but expected {}", rep_->place(),
                                     received, name_of(tag), from, bytes));
}

void MpiCommunicator::fail(std::exception_ptr failure) {
  try {
    std::rethrow_exception(std::move(failure));
  } catch (const std::exception& error) {
    fmt::print(stderr, "orrery-rank: {}\n", error.what());
  } catch (...) {
    fmt::print(stderr, "orrery-rank: {} failed\n", rep_->place());
  }
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();  // MPI_Abort need not be declared noreturn
}

void MpiCommunicator::finish() {
  Rep& rep = *rep_;
  rep.wait([] { return false; }, [&] { return rep.sent.empty(); },
           [&] { return fmt::format("for rank {} to take {}", rep.sent.front().to, name_of(rep.sent.front().tag)); });
  Members all(rep.ranks);
  for (std::size_t r = 0; r < rep.ranks; ++r) all[r] = r;
  gather_values(all, "the end", {});
  int left = 0;
  MPI_Status status{};
  need(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, rep.messages, &left, &status), "MPI_Iprobe");
  if (left != 0)
    throw ExecutionError(fmt::format("rank {} has never received a message from rank {}", rep.rank, status.MPI_SOURCE));
}

}  // namespace orrery
