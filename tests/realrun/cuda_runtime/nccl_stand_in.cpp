// In place of NCCL, over the stand-in of the CUDA runtime (stand_in.h): the calls of
// realrun/cuda/nccl_communicator.cpp, between processes, for communicators of the kind that does not block.
//
// A communicator is a folder of temporary files, which its members find by its id. Every operation is messages from one
// member to another, each a file that its receiver takes away; sums are in the order of the members. It is as unkind as
// NCCL may be: a call only comes into its stream once somebody has asked whether it has; a communicator that is still
// under way takes no call; a message is sent when it has been received; members that call different operations fail,
// as do those of one GPU on one host, and those whose memory has been released meanwhile. A member that has died is an
// error of all others, whose streams stay where they are until they abort.
#include <fcntl.h>
#include <nccl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "realrun/cuda/host_numbers.h"
#include "tests/realrun/cuda_runtime/stand_in.h"

namespace {

namespace fs = std::filesystem;
using orrery::Dtype;
using Lock = std::lock_guard<std::mutex>;

enum class Kind : std::int64_t { all_reduce, all_gather, reduce_scatter, message };

struct Operation {
  Kind kind = Kind::message;
  const void* from = nullptr;  // nullptr: a message to be received
  void* to = nullptr;          // nullptr: one to be sent
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  int peer = 0;  // of a message
  cudaStream_t stream = nullptr;
};
using Group = std::vector<Operation>;

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
    case ncclFloat8e4m3:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
      return 8;
    default:
      throw std::logic_error("a type that no rank sends");
  }
}

Dtype dtype_of(ncclDataType_t type) {  // of what can be added
  switch (type) {
    case ncclFloat32:
      return Dtype::fp32;
    case ncclFloat16:
      return Dtype::fp16;
    case ncclBfloat16:
      return Dtype::bf16;
    default:
      throw std::logic_error("a type that no rank adds");
  }
}

// What two members must agree on.
struct Header {
  std::int64_t kind = 0, type = 0, count = 0;
  bool operator==(const Header&) const = default;
};

struct Communicator {
  std::mutex mutex;  // of all below
  fs::path folder;
  int ranks = 0, rank = 0, presence = -1;  // presence: a locked file, which the kernel unlocks where the process dies
  bool joined = false, finalized = false, aborted = false;
  ncclResult_t state = ncclInProgress;
  std::vector<Group> taken;     // not in a stream yet
  std::size_t under_way = 0;    // groups in streams
  std::vector<int> sent, come;  // messages so far, by peer

  fs::path member(int m) const { return folder / ("member_" + std::to_string(m)); }
  fs::path farewell(int m) const { return folder / ("left_" + std::to_string(m)); }
  fs::path message(int from, int to, int number) const {
    return folder / ("message_" + std::to_string(from) + "_" + std::to_string(to) + "_" + std::to_string(number));
  }
  bool is_dead(int m) const {
    if (m == rank || fs::exists(farewell(m))) return false;
    const int file = open(member(m).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool dead = flock(file, LOCK_SH | LOCK_NB) == 0;
    close(file);
    return dead;
  }

  void send(int to, const Header& header, const void* data) {
    const fs::path path = message(rank, to, sent[static_cast<std::size_t>(to)]++);
    const fs::path unfinished = path.string() + ".unfinished";
    std::ofstream file(unfinished, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.write(static_cast<const char*>(data),
               static_cast<std::streamsize>(bytes_of(static_cast<ncclDataType_t>(header.type)) * header.count));
    file.close();
    fs::rename(unfinished, path);
  }
  // Nothing where it has not come yet.
  std::optional<std::vector<char>> receive(int from, int number, const Header& expected) {
    const fs::path path = message(from, rank, number);
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      if (is_dead(from) && !fs::exists(path)) state = ncclRemoteError;  // not: died after it had sent
      return std::nullopt;
    }
    Header header;
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    if (!(header == expected)) {
      state = ncclInternalError;
      return std::nullopt;
    }
    std::vector<char> data(bytes_of(static_cast<ncclDataType_t>(header.type)) * header.count);
    file.read(data.data(), static_cast<std::streamsize>(data.size()));
    fs::remove(path);
    return data;
  }
  void leave() {
    if (presence < 0) return;
    std::ofstream(farewell(rank)).close();
    close(std::exchange(presence, -1));
    int left = 0;
    for (int m = 0; m < ranks; ++m) left += fs::exists(farewell(m)) || is_dead(m) ? 1 : 0;
    std::error_code ignored;
    if (left == ranks) fs::remove_all(folder, ignored);
  }
  // Once all have come.
  void join() {
    std::set<std::string> devices;
    for (int m = 0; m < ranks; ++m) {
      std::string device;
      if (!std::getline(std::ifstream(member(m)), device)) return;
      devices.insert(device);
    }
    joined = true;
    state = devices.size() == static_cast<std::size_t>(ranks) ? ncclSuccess : ncclInvalidUsage;
  }
};

// A group's operations on their way.
class Work {
 public:
  Work(std::shared_ptr<Communicator> communicator, Group group)
      : c_(std::move(communicator)), group_(std::move(group)) {}

  bool advance() {
    const Lock lock(c_->mutex);
    if (c_->aborted) return true;
    if (c_->state != ncclSuccess && c_->state != ncclInProgress) return false;
    for (const Operation& o : group_)
      if (!has_memory(o)) {
        c_->state = ncclUnhandledCudaError;
        return false;
      }
    if (!posted_) post();
    for (auto m = missing_.begin(); m != missing_.end();) {
      const Operation& o = group_[m->operation];
      auto data = c_->receive(m->from, m->number, header_of(o));
      if (data) parts_[{m->operation, m->from}] = std::move(*data);
      m = data ? missing_.erase(m) : std::next(m);
    }
    std::erase_if(untaken_, [](const fs::path& path) { return !fs::exists(path); });
    if (!missing_.empty() || !untaken_.empty()) return false;
    for (std::size_t i = 0; i < group_.size(); ++i) finish(i);
    --c_->under_way;
    return true;
  }

 private:
  struct Missing {
    std::size_t operation;
    int from, number;
  };

  static Header header_of(const Operation& o) {
    return {static_cast<std::int64_t>(o.kind), o.type, static_cast<std::int64_t>(o.count)};
  }
  static std::size_t bytes(const Operation& o) { return o.count * bytes_of(o.type); }

  // Released too early, it may be somebody else's by now.
  bool has_memory(const Operation& o) const {
    const auto from = bytes(o) * static_cast<std::size_t>(o.kind == Kind::reduce_scatter ? c_->ranks : 1);
    const auto to = bytes(o) * static_cast<std::size_t>(o.kind == Kind::all_gather ? c_->ranks : 1);
    const auto is_there = [](const void* memory, std::size_t size) {
      return memory == nullptr || orrery::cuda_stand_in::is_allocated(memory, static_cast<std::int64_t>(size));
    };
    return is_there(o.from, from) && is_there(o.to, to);
  }

  void post() {
    posted_ = true;
    for (std::size_t i = 0; i < group_.size(); ++i) {
      const Operation& o = group_[i];
      for (int m = 0; m < c_->ranks; ++m) {
        const auto peer = static_cast<std::size_t>(m);
        if (o.kind == Kind::message ? m != o.peer : m == c_->rank) continue;
        if (o.from != nullptr) {
          const auto part = o.kind == Kind::reduce_scatter ? peer * bytes(o) : 0;
          c_->send(m, header_of(o), static_cast<const char*>(o.from) + part);
          if (o.kind == Kind::message) untaken_.push_back(c_->message(c_->rank, m, c_->sent[peer] - 1));
        }
        if (o.to != nullptr) missing_.push_back({i, m, c_->come[peer]++});
      }
    }
  }

  void finish(std::size_t i) {
    const Operation& o = group_[i];
    if (o.to == nullptr) return;
    if (o.kind == Kind::message) {
      std::memcpy(o.to, parts_.at({i, o.peer}).data(), bytes(o));
      return;
    }
    const std::size_t own = o.kind == Kind::reduce_scatter ? static_cast<std::size_t>(c_->rank) * bytes(o) : 0;
    const char* const mine = static_cast<const char*>(o.from) + own;
    parts_[{i, c_->rank}] = {mine, mine + bytes(o)};
    if (o.kind == Kind::all_gather) {
      for (int m = 0; m < c_->ranks; ++m)
        std::memcpy(static_cast<char*>(o.to) + static_cast<std::size_t>(m) * bytes(o), parts_.at({i, m}).data(),
                    bytes(o));
      return;
    }
    std::vector<float> sum(o.count), values(o.count);
    const auto elements = static_cast<std::int64_t>(o.count);
    for (int m = 0; m < c_->ranks; ++m) {
      orrery::cuda::to_floats(parts_.at({i, m}).data(), dtype_of(o.type), values.data(), elements);
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += values[e];
    }
    orrery::cuda::from_floats(sum.data(), o.to, dtype_of(o.type), elements);
  }

  std::shared_ptr<Communicator> c_;
  Group group_;
  bool posted_ = false;
  std::vector<Missing> missing_;
  std::vector<fs::path> untaken_;
  std::map<std::pair<std::size_t, int>, std::vector<char>> parts_;  // of an operation, from a member
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Communicator> rep = std::make_shared<Communicator>();
};

namespace {

thread_local int depth = 0;
thread_local std::map<ncclComm_t, Group> grouped;

ncclResult_t take(ncclComm_t comm, Group group) {
  const Lock lock(comm->rep->mutex);
  if (comm->rep->state != ncclSuccess) return ncclInvalidUsage;
  comm->rep->taken.push_back(std::move(group));
  return comm->rep->state = ncclInProgress;
}

ncclResult_t issue(ncclComm_t comm, const Operation& operation) {
  if (depth == 0) return take(comm, {operation});
  grouped[comm].push_back(operation);
  return ncclInProgress;  // which it may say
}

std::string host() {
  if (const char* const chosen = std::getenv("NCCL_HOSTID"); chosen != nullptr) return chosen;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::string folder = (fs::temp_directory_path() / "orrery_nccl_XXXXXX").string();
  if (folder.size() >= sizeof id->internal || mkdtemp(folder.data()) == nullptr) return ncclSystemError;
  *id = {};
  std::memcpy(id->internal, folder.data(), folder.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  orrery::cuda_stand_in::keep_streams_going();
  *comm = new ncclComm;
  Communicator& c = *(*comm)->rep;
  c.folder = id.internal;
  c.ranks = ranks;
  c.rank = rank;
  c.sent.resize(static_cast<std::size_t>(ranks));
  c.come.resize(static_cast<std::size_t>(ranks));
  int device = 0;
  std::array<char, 32> address{};
  cudaGetDevice(&device);
  cudaDeviceGetPCIBusId(address.data(), address.size(), device);
  const fs::path unfinished = c.member(rank).string() + ".unfinished";
  std::ofstream(unfinished) << host() << ' ' << address.data() << '\n';
  c.presence = open(unfinished.c_str(), O_RDONLY | O_CLOEXEC);
  if (c.presence < 0 || flock(c.presence, LOCK_EX | LOCK_NB) != 0) return ncclSystemError;
  fs::rename(unfinished, c.member(rank));
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  std::vector<Group> taken;
  {
    const Lock lock(comm->rep->mutex);
    Communicator& c = *comm->rep;
    if (!c.joined) c.join();
    if (c.finalized && c.state == ncclInProgress && c.under_way == 0) c.state = ncclSuccess;
    *state = c.state;
    if (!c.taken.empty()) {
      taken = std::exchange(c.taken, {});
      c.under_way += taken.size();
      c.state = ncclSuccess;  // from the next time on
    }
  }
  for (Group& group : taken) {
    const cudaStream_t stream = group.front().stream;
    const auto work = std::make_shared<Work>(comm->rep, std::move(group));
    orrery::cuda_stand_in::push(stream, [work] { return work->advance(); });
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(comm->rep->mutex);
  if (comm->rep->state != ncclSuccess) return ncclInvalidUsage;
  comm->rep->finalized = true;
  return comm->rep->state = ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const Lock lock(comm->rep->mutex);
    comm->rep->leave();
  }
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const Lock lock(comm->rep->mutex);
    comm->rep->aborted = true;
    comm->rep->leave();
  }
  delete comm;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr std::array kTexts{"no error",         "unhandled cuda error", "unhandled system error", "internal error",
                              "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
  return static_cast<std::size_t>(result) < kTexts.size() ? kTexts[static_cast<std::size_t>(result)] : "unknown";
}
const char* ncclGetLastError(ncclComm_t) { return "the stand-in has no more to say"; }

ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, group] : std::exchange(grouped, {}))
    if (const ncclResult_t taken = take(comm, std::move(group)); taken != ncclSuccess) result = taken;
  return result;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  return issue(comm, {Kind::all_reduce, from, to, count, type, 0, stream});
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return issue(comm, {Kind::all_gather, from, to, count, type, 0, stream});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  return issue(comm, {Kind::reduce_scatter, from, to, count, type, 0, stream});
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue(comm, {Kind::message, from, nullptr, count, type, peer, stream});
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue(comm, {Kind::message, nullptr, to, count, type, peer, stream});
}

}  // extern "C"
