#include "realrun/mpi/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "realrun/mpi/rank_watch.h"
#include "realrun/sibling.h"
#include "sim/base/error.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepDone = "rank 0: step done: ";
constexpr int kBadInput = 2;               // the ranks' exit code for bad input
constexpr int kLookMilliseconds = 100;     // period of polling for signals and mpirun's end
constexpr int kGraceMilliseconds = 10000;  // time that mpirun has to end its ranks
constexpr const char* kResults = "results";
constexpr std::array kForwarded{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t received = 0;
void receive(int signal) { received = signal; }

// Records signals while it lives; its destructor then raises the last one with its normal effect.
class Signals {
 public:
  Signals() {
    received = 0;
    struct sigaction note {};
    note.sa_handler = receive;
    for (std::size_t i = 0; i < kForwarded.size(); ++i) sigaction(kForwarded[i], &note, &before_[i]);
  }
  ~Signals() {
    for (std::size_t i = 0; i < kForwarded.size(); ++i) sigaction(kForwarded[i], &before_[i], nullptr);
    if (received != 0) raise(received);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  std::array<struct sigaction, kForwarded.size()> before_{};
};

// A folder that is removed with the object or, if this process was killed, by the next object. The owner holds a lock
// on a file in it, which ends with the owner in any case.
class Folder {
 public:
  Folder() {
    remove_forsaken();
    std::string name = (fs::temp_directory_path() / (std::string(kPrefix) + "XXXXXX")).string();
    if (mkdtemp(name.data()) == nullptr)
      throw ExecutionError(fmt::format("no temporary folder {}: {}", name, std::strerror(errno)));
    path_ = name;
    // Others see the file only after it is locked.
    const std::string unseen = file("locked");
    lock_ = open(unseen.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) == 0) std::rename(unseen.c_str(), file(kLock).c_str());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (lock_ >= 0) close(lock_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const char* name) const { return (path_ / name).string(); }
  std::string directory(const char* name) const {
    fs::create_directory(path_ / name);
    return file(name);
  }

 private:
  static constexpr const char *kPrefix = "orrery_ranks_", *kLock = "lock";

  static void remove_forsaken() {
    std::error_code ignored;
    std::vector<fs::path> forsaken;
    for (fs::directory_iterator at(fs::temp_directory_path(ignored), ignored), end; at != end; at.increment(ignored)) {
      if (ignored || !at->path().filename().string().starts_with(kPrefix)) continue;
      const int lock = open((at->path() / kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
      if (lock < 0) continue;  // just created, or owned by somebody else
      if (flock(lock, LOCK_EX | LOCK_NB) == 0) forsaken.push_back(at->path());
      close(lock);
    }
    for (const fs::path& path : forsaken) fs::remove_all(path, ignored);
  }

  fs::path path_;
  int lock_ = -1;
};

// What mpirun starts, and how a sentence about a failure begins.
struct RankProgram {
  std::string name;
  fs::path path;
  const char* subcommand;
  std::string_view says;
};

RankProgram program_of(RankKind kind) {
  if (kind == RankKind::cuda) {
    const std::optional<fs::path> self = running_program();
    if (!self) throw ExecutionError("cannot start ranks: /proc/self/exe does not name this program");
    return {"orrery-gpu", *self, "rank", "orrery-gpu: error: "};
  }
  const std::optional<fs::path> sibling = sibling_program("orrery-rank");
  if (!sibling)
    throw InputError({"--ranks", ""}, "no program orrery-rank next to this one",
                     "a build with MPI (Debian: libopenmpi-dev openmpi-bin; then run cmake and build again)");
  return {"orrery-rank", *sibling, "run", "orrery-rank: "};
}

std::optional<fs::path> on_path(const char* program) {
  const char* path = std::getenv("PATH");
  for (const std::string_view folder : split(path == nullptr ? "" : path, ':')) {
    const fs::path candidate = fs::path(folder) / program;
    if (!folder.empty() && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::nullopt;
}

// Returns this process's environment with missing variables added.
std::vector<std::string> environment(const RankWatch& watch, RankKind kind) {
  std::vector<std::string> all{watch.variable()};
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  const auto add = [&all](const char* name, const char* value) {
    if (std::getenv(name) == nullptr) all.push_back(fmt::format("{}={}", name, value));
  };
  // mpirun protects root from accidental jobs; these ranks do no more than the threads that they replace.
  add("OMPI_ALLOW_RUN_AS_ROOT", "1");
  add("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  add("OMPI_MCA_rmaps_base_oversubscribe", "1");
  add("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
  if (kind == RankKind::cuda) {
    add("OMPI_MCA_hwloc_base_binding_policy", "none");
    add("PRTE_MCA_hwloc_default_binding_policy", "none");
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// mpirun, with its standard error in a pipe. It is ended, with all ranks, when the object is destroyed.
class Processes {
 public:
  Processes(std::vector<std::string> arguments, std::vector<std::string> variables) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw ExecutionError(fmt::format("no pipe: {}", std::strerror(errno)));
    const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      // A process group of its own: an interrupt from the terminal reaches it once, through this process (a second one
      // would make mpirun exit without its ranks). If this process is killed, the kernel signals it.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(1);
      const int nothing = open("/dev/null", O_RDWR);
      dup2(nothing, STDIN_FILENO);
      dup2(nothing, STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execve(argv[0], argv.data(), envp.data());
      constexpr int kNotExecuted = 127;
      _exit(kNotExecuted);
    }
    const int reason = errno;
    close(ends[1]);
    errors_ = ends[0];
    if (pid_ < 0) {
      close(errors_);
      throw ExecutionError(fmt::format("cannot start {}: {}", arguments.front(), std::strerror(reason)));
    }
    fcntl(errors_, F_SETFL, O_NONBLOCK);
  }
  ~Processes() {
    if (pid_ > 0) {
      kill(pid_, SIGTERM);
      end_within(kGraceMilliseconds);
    }
    close(errors_);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Waits until mpirun has ended or a signal has come, and passes lines of its standard error to `hear`. Returns its
  // exit code, or minus the signal that has ended it. Throws ExecutionError if `watch` sees a failure that mpirun does
  // not. Open MPI 4.1's mpirun sometimes never ends after its ranks have ended: PMIx_server_finalize waits for a mutex.
  // It is then killed, and the code is that of the ranks.
  template <class Hear>
  std::optional<int> wait(const Hear& hear, RankWatch& watch) {
    bool open = true;
    std::optional<std::chrono::steady_clock::time_point> seen, all_ended;
    while (received == 0) {
      pollfd look{open ? errors_ : -1, POLLIN, 0};  // negative: none
      poll(&look, 1, kLookMilliseconds);
      const bool ended = has_ended();
      open = read_lines(hear) && open;
      if (ended) {
        if (!line_.empty()) hear(line_);
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
      }
      const std::string wrong = watch.look();
      const auto now = std::chrono::steady_clock::now();
      if (!wrong.empty() && !seen) seen = now;
      if (seen && now - *seen > std::chrono::milliseconds(kGraceMilliseconds))
        throw ExecutionError(wrong + ", and mpirun has not noticed");
      const std::optional<int> code = watch.ended();
      if (code && !all_ended) all_ended = now;
      if (all_ended && now - *all_ended > std::chrono::milliseconds(kGraceMilliseconds)) {
        end_within(0);
        return code;
      }
    }
    kill(pid_, SIGTERM);
    end_within(kGraceMilliseconds);
    return std::nullopt;
  }

 private:
  bool has_ended() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ == 0;
  }
  void end_within(int milliseconds) {
    for (int waited = 0; waited < milliseconds; waited += kLookMilliseconds) {
      if (has_ended()) return;
      poll(nullptr, 0, kLookMilliseconds);
    }
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    pid_ = 0;
  }
  // Returns false at the end of the stream.
  template <class Hear>
  bool read_lines(const Hear& hear) {
    std::array<char, 4096> buffer{};
    while (true) {
      const ssize_t n = read(errors_, buffer.data(), buffer.size());
      if (n == 0) return false;
      if (n < 0) return true;
      for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(n))) {
        if (c != '\n') {
          line_ += c;
          continue;
        }
        hear(line_);
        line_.clear();
      }
    }
  }

  pid_t pid_ = 0;
  int errors_ = -1, status_ = 0;
  std::string line_;
};

std::vector<std::string> command_line(const fs::path& mpirun, const RankProgram& program, const RankJob& job,
                                      const ExecutionOptions& options, const Folder& folder) {
  std::vector<std::string> line{
      mpirun.string(), "-n",        fmt::format("{}", job.ranks), program.path.string(), program.subcommand,
      job.scenario,    "--results", folder.file(kResults)};
  if (job.kind == RankKind::cuda) line.insert(line.end(), {"--id-directory", folder.directory("ids")});
  for (const std::string& set : job.sets) line.insert(line.end(), {"--set", set});
  const auto give = [&line](const char* name, const auto& value) {
    line.insert(line.end(), {name, fmt::format("{}", value)});
  };
  give("--seed", options.seed);
  give("--watchdog-seconds", options.watchdog_seconds);
  give("--steps", options.steps);
  if (options.measure) {
    give("--warmup", options.warmup_steps);
  } else {
    line.emplace_back("--check");
  }
  if (options.round_to_bf16) line.emplace_back("--bf16-storage");
  return line;
}

// What ranks and mpirun wrote to standard error.
struct Heard {
  std::string first_rank;             // of the first rank that failed
  std::vector<std::string> all_else;  // without mpirun's separator lines
};

void hear(std::string_view line, std::string_view says, const ExecutionOptions& options, Heard& heard) {
  if (line.starts_with(kStepDone)) {
    if (options.after_step) options.after_step(0, number_of(line.substr(kStepDone.size())).value_or(0));
  } else if (line.starts_with(says)) {
    if (heard.first_rank.empty()) heard.first_rank = line.substr(says.size());
  } else if (line.find_first_not_of("- \t\r") != std::string_view::npos) {
    heard.all_else.emplace_back(line);
  }
}

// `code`: mpirun's exit code, or minus the signal that has ended it. `lost`: what the watch reports about the ranks, or
// "".
[[noreturn]] void fail(const std::string& program, int code, const Heard& heard, const std::string& lost) {
  std::string said = heard.first_rank;
  if (said.empty() && !lost.empty()) said = lost + " (killed, or out of memory?)";
  if (said.empty())
    for (const std::string& line : heard.all_else) said += (said.empty() ? "" : " ") + line;
  if (code == kBadInput)
    throw InputError({program, ""}, fmt::format("the ranks' error \"{}\"", said), "a scenario that they can run");
  const std::string end = code >= 0 ? fmt::format("exit code {}", code) : fmt::format("signal {} for mpirun", -code);
  throw ExecutionError(fmt::format("the ranks ended with {}: {}", end, said.empty() ? "there is no message" : said));
}

}  // namespace

JobResults execute_ranks_over_mpi(const RankJob& job, const ExecutionOptions& options) {
  if (job.scenario == "-")
    throw InputError({"--ranks", ""}, "a scenario on standard input", "a file or a name: every rank reads it");
  const RankProgram program = program_of(job.kind);
  const std::optional<fs::path> mpirun = on_path("mpirun");
  if (!mpirun) throw InputError({"--ranks", ""}, "no mpirun on the PATH", "an MPI (Debian: openmpi-bin)");

  const Signals signals;
  const Folder folder;
  Heard heard;
  RankWatch watch(static_cast<std::size_t>(job.ranks));
  Processes processes(command_line(*mpirun, program, job, options, folder), environment(watch, job.kind));
  const std::optional<int> code =
      processes.wait([&](std::string_view line) { hear(line, program.says, options, heard); }, watch);
  if (!code) throw ExecutionError("interrupted");
  if (*code != 0) fail(program.name, *code, heard, watch.look());
  for (const std::string& line : heard.all_else) fmt::print(stderr, "{}\n", line);
  return read_rank_results(folder.file(kResults));
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BackendFacts, kind, device, software, processors, memory_bytes, asynchronous_streams)

void write_rank_results(const std::string& path, const JobResults& results) {
  nlohmann::json json{{"facts", results.facts}, {"ranks", nlohmann::json::array()}};
  for (const RankResult& result : results.ranks) json["ranks"].push_back(nlohmann::json::binary(to_bytes(result)));
  std::ofstream file(path, std::ios::binary);
  nlohmann::json::to_cbor(json, file);
  file.close();
  if (!file) throw ExecutionError("cannot write the results to " + path);
}

JobResults read_rank_results(const std::string& path) {
  JobResults results;
  try {
    std::ifstream file(path, std::ios::binary);
    const nlohmann::json json = nlohmann::json::from_cbor(file);
    json.at("facts").get_to(results.facts);
    for (const nlohmann::json& rank : json.at("ranks")) results.ranks.push_back(result_of_bytes(rank.get_binary()));
  } catch (const nlohmann::json::exception&) {  // cut off
    results.ranks.clear();
  }
  if (results.ranks.empty()) throw ExecutionError("the ranks have not left complete results in " + path);
  return results;
}

void report_step(std::int64_t step) {
  fmt::print(stderr, "{}{}\n", kStepDone, step);
  std::fflush(stderr);
}

}  // namespace orrery
