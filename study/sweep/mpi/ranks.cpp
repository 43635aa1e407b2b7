#include "study/sweep/mpi/ranks.h"

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/base/threads.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Tags of messages. To rank 0: kReady (prepared, or why not) and kRequest; from it: kTask, kStart and, to a thread of a
// rank, kReply and the thread's number.
enum Tag : int { kTask, kReady, kStart, kRequest, kReply };

enum class Ask : std::uint8_t {
  points,  // most -> points
  kept,    // rows of numbers and keys -> what is kept of each
  add,     // rows
  fail,    // a message
  done,    // no thread of the rank evaluates any more: a message if one could not go on
};

void need(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(fmt::format("{} failed: {}", what, std::string_view(text.data(), length)));
}

// Between looks for messages: at first others only go before, then so long that looking costs next to nothing.
class Pause {
 public:
  void wait() {
    if (std::chrono::steady_clock::now() - start_ < kYield) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  void reset() { start_ = std::chrono::steady_clock::now(); }

 private:
  static constexpr std::chrono::microseconds kYield{100}, kSleep{200};
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Returns this process's share of the hardware threads that it may run on, if other ranks may run on the same.
int share_of_hardware_threads() {
  MPI_Comm machine = MPI_COMM_NULL;
  need(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
  int ranks = 1;
  MPI_Comm_size(machine, &ranks);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  std::vector<cpu_set_t> all(static_cast<std::size_t>(ranks));
  need(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, machine), "MPI_Allgather");
  MPI_Comm_free(&machine);
  double share = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mine)) continue;
    share += 1.0 / static_cast<double>(std::count_if(all.begin(), all.end(),
                                                     [&](const cpu_set_t& set) { return CPU_ISSET(cpu, &set); }));
  }
  constexpr double kRounding = 1e-9;
  return std::max(1, static_cast<int>(share + kRounding));
}

std::string name_of_rank(int rank) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("rank {} on {}", rank, host.data());
}

// Messages are JSON as CBOR: only for ranks of one build.
std::string bytes_of(const Json& message) {
  std::string bytes;
  Json::to_cbor(message, bytes);
  return bytes;
}

Json json_of(const SweepRow& row) {
  return Json::array({row.number, row.key, row.scenario, row.fields, row.known, row.error, row.plan, row.values});
}

SweepRow row_of(const Json& json) {
  return {json[0], json[1], json[2], json[3], json[4], json[5], json[6], json[7].get<std::vector<Json>>()};
}

// The task that rank 0 has sent, as this rank reads it. prepare_task() throws std::runtime_error if this rank's version,
// scenario or calibrations differ from rank 0's; its text says what this rank has.
struct PreparedTask {
  std::optional<SweepDocument> sweep;
  SweepEvaluation evaluation;
  std::int64_t threads = 1;
};

PreparedTask prepare_task(const std::string& bytes, const std::string& version, int threads_here) {
  const Json message = Json::from_cbor(bytes);
  const std::string file = message[1], calibrations = message[5];
  const std::vector<std::string> files = message[4];
  const int threads = message[6];
  PreparedTask task;
  if (version != message[3]) throw std::runtime_error("orrery " + version);
  task.sweep = read_sweep(message[0], file);
  if (digest_text(digest_of(task.sweep->whole.dump())) != message[2])
    throw std::runtime_error("another scenario of " + file);
  task.evaluation.user = read_user_calibration(files);
  if (digests_of_calibrations(files) != calibrations) throw std::runtime_error("other files for --calibration");
  task.evaluation.program = program_of(version, calibrations);
  task.threads = threads > 0 ? threads : threads_here;
  return task;
}

}  // namespace

// What one thread of a rank asks rank 0.
class SweepRanks::RemoteWork final : public SweepWork {
 public:
  RemoteWork(SweepRanks& ranks, int thread) : ranks_(ranks), thread_(thread) {}

  std::vector<SweepPoint> take(std::size_t most) override {
    std::vector<SweepPoint> points;
    for (const Json& point : ask(Ask::points, most)) points.push_back({point[0], point[1]});
    return points;
  }
  std::vector<Kept> kept(std::span<const SweepRow> points) override {
    Json asked = Json::array();
    for (const SweepRow& point : points) asked.push_back({point.number, point.key});
    return ask(Ask::kept, std::move(asked)).get<std::vector<Kept>>();
  }
  void add(std::vector<SweepRow> rows) override {
    Json all = Json::array();
    for (const SweepRow& row : rows) all.push_back(json_of(row));
    if (!rows.empty()) send(Ask::add, std::move(all));
  }
  void fail(const std::string& message) override { send(Ask::fail, message); }

 private:
  void send(Ask what, Json with) { ranks_.send(0, kRequest, bytes_of(Json::array({what, thread_, std::move(with)}))); }
  Json ask(Ask what, Json with) {
    send(what, std::move(with));
    return Json::from_cbor(ranks_.wait_for(0, kReply + thread_).bytes);
  }

  SweepRanks& ranks_;
  int thread_;
};

SweepRanks::SweepRanks(int* argc, char*** argv) {
  int provided = 0;
  need(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  if (provided < MPI_THREAD_SERIALIZED) throw std::runtime_error("this MPI can be used by one thread only");
  threads_here_ = share_of_hardware_threads();
  prctl(PR_SET_TIMERSLACK, 1);  // pauses end when they should
  if (ranks_ == 1) return;
  prctl(PR_SET_PDEATHSIG, rank_ == 0 ? SIGTERM : SIGKILL);
  if (rank_ == 0) return;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_IGN);
}

SweepRanks::~SweepRanks() {
  try {
    if (rank_ == 0 && (state_ == State::waiting || state_ == State::prepared))
      for (int to = 1; to < ranks_; ++to) send(to, state_ == State::waiting ? kTask : kStart, "");
  } catch (const std::exception& error) {
    fmt::print(stderr, "orrery-mpi: rank {}: {}\n", rank_, error.what());
  }
  MPI_Finalize();
}

void SweepRanks::send(int to, int tag, const std::string& bytes) {
  if (bytes.size() > INT_MAX) throw std::runtime_error("a message between ranks of more than 2 GiB");
  std::unique_lock lock(calls_);
  MPI_Request request = MPI_REQUEST_NULL;
  need(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, MPI_COMM_WORLD, &request),
       "MPI_Isend");
  int sent = 0;
  for (Pause pause;;) {
    need(MPI_Test(&request, &sent, MPI_STATUS_IGNORE), "MPI_Test");
    if (sent != 0) return;
    lock.unlock();
    pause.wait();
    lock.lock();
  }
}

std::optional<SweepRanks::Message> SweepRanks::receive(int from, int tag) {
  const std::lock_guard lock(calls_);
  int there = 0;
  MPI_Status status;
  need(MPI_Iprobe(from, tag, MPI_COMM_WORLD, &there, &status), "MPI_Iprobe");
  if (there == 0) return std::nullopt;
  int size = 0;
  MPI_Get_count(&status, MPI_BYTE, &size);
  Message message{status.MPI_SOURCE, std::string(static_cast<std::size_t>(size), '\0')};
  need(MPI_Recv(message.bytes.data(), size, MPI_BYTE, message.from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
       "MPI_Recv");
  return message;
}

SweepRanks::Message SweepRanks::wait_for(int from, int tag) {
  for (Pause pause;; pause.wait())
    if (std::optional<Message> message = receive(from, tag)) return std::move(*message);
}

void SweepRanks::abort(int code) {
  std::fflush(nullptr);
  // Whoever holds the lock may never give it back, where a rank has gone.
  if (calls_.try_lock_for(std::chrono::milliseconds(100))) MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

void SweepRanks::prepare(const SweepDocument& sweep, const std::vector<std::string>& calibration_files,
                         const SweepRunOptions& options, int threads) {
  const std::string asked = bytes_of(Json::array({sweep.given, sweep.file, digest_text(digest_of(sweep.whole.dump())),
                                                  options.version, calibration_files, options.calibrations, threads}));
  for (int to = 1; to < ranks_; ++to) send(to, kTask, asked);
  state_ = State::prepared;
  std::string rank, refused;
  for (int from = 1; from < ranks_; ++from) {
    const Json ready = Json::from_cbor(wait_for(MPI_ANY_SOURCE, kReady).bytes);
    threads_ += ready[0].get<std::int64_t>();
    if (ready[2] == "" || !refused.empty()) continue;
    rank = ready[1];
    refused = ready[2];
  }
  if (!refused.empty()) throw InputError({rank, ""}, refused, "the same program and files as on rank 0");
}

void SweepRanks::share(SweepWork& work, std::int64_t points, int here) {
  state_ = State::at_work;
  for (int to = 1; to < ranks_; ++to) send(to, kStart, bytes_of(Json::array({points, threads_ + here})));
  int working = ranks_ - 1;
  for (Pause pause; working > 0;) {
    const std::optional<Message> message = receive(MPI_ANY_SOURCE, kRequest);
    if (!message) {
      pause.wait();
      continue;
    }
    pause.reset();
    const Json asked = Json::from_cbor(message->bytes);
    const Json& with = asked[2];
    std::vector<SweepRow> rows;
    Json reply = Json::array();
    switch (asked[0].get<Ask>()) {
      case Ask::points:
        for (const SweepPoint& point : work.take(with)) reply.push_back({point.number, point.choices});
        break;
      case Ask::kept:
        for (const Json& point : with) {
          SweepRow& row = rows.emplace_back();
          row.number = point[0];
          row.key = point[1];
        }
        reply = work.kept(rows);
        break;
      case Ask::add:
        for (const Json& row : with) rows.push_back(row_of(row));
        work.add(std::move(rows));
        continue;
      case Ask::fail:
        work.fail(with.get<std::string>());
        continue;
      case Ask::done:
        if (with != "") throw std::runtime_error(with.get<std::string>());
        --working;
        continue;
    }
    send(message->from, kReply + asked[1].get<int>(), bytes_of(reply));
  }
  state_ = State::gone;
}

void SweepRanks::help(const std::string& version) {
  PreparedTask task;
  {
    const Message message = wait_for(0, kTask);
    if (message.bytes.empty()) return;
    std::string refusal;
    try {
      task = prepare_task(message.bytes, version, threads_here_);
    } catch (const InputError& error) {
      refusal = fmt::format("\"{}\"", error.what());
    } catch (const std::exception& error) {
      refusal = error.what();
    }
    send(0, kReady, bytes_of(Json::array({task.threads, name_of_rank(rank_), refusal})));
  }
  const Message message = wait_for(0, kStart);
  if (message.bytes.empty()) return;
  const Json start = Json::from_cbor(message.bytes);
  const std::int64_t points = start[0], all_threads = start[1];
  const int threads = evaluating_threads(points, task.threads, all_threads);
  task.evaluation.search_threads = std::max(1, static_cast<int>(task.threads) / threads);
  std::string broken;
  try {
    for_each_index(static_cast<std::size_t>(threads), threads, [&](std::size_t, std::size_t thread) {
      RemoteWork work(*this, static_cast<int>(thread));
      evaluate_points(*task.sweep, task.evaluation, work);
    });
  } catch (const std::exception& error) {
    broken = fmt::format("{}: {}", name_of_rank(rank_), error.what());
  }
  send(0, kRequest, bytes_of(Json::array({Ask::done, 0, broken})));
}

}  // namespace orrery
