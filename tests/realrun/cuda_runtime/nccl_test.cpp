// Ranks as processes over NCCL: on one GPU, where they call themselves different hosts (orrery-cuda-tests), or the
// communicator's host code over a stand-in of NCCL between processes (nccl_stand_in.cpp).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "realrun/agreement.h"
#include "realrun/cuda/nccl_communicator.h"
#include "realrun/executor.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"
#include "tests/realrun/cuda_runtime/support.h"

extern char** environ;

namespace orrery {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr double kTolerance = 1e-4;
#ifdef ORRERY_ON_DEVICE
constexpr double kShortWatchdog = 10;  // NCCL takes seconds to begin
#else
constexpr double kShortWatchdog = 2;
#endif
constexpr const char* kRank = "ORRERY_NCCL_TEST_RANK";
constexpr const char* kRanks = "ORRERY_NCCL_TEST_RANKS";
constexpr const char* kFolder = "ORRERY_NCCL_TEST_FOLDER";
constexpr const char* kPart = "ORRERY_NCCL_TEST_PART";
constexpr const char* kPlan = "ORRERY_NCCL_TEST_PLAN";
constexpr const char* kStart = "started by the tests of Nccl alone";

// --- What one process does; in the others' run it is skipped ---------------------------------------------------------

Scenario scenario_of(const std::string& patch) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"layers": 4, "hidden": 32, "heads": 4, "vocab": 256, "max_positions": 16, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 16, "global_batch_size": 4},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
  const nlohmann::json parsed = nlohmann::json::parse(patch);
  document.merge_patch(parsed.contains("model") ? parsed : nlohmann::json{{"plan", parsed}});
  return runnable(read_scenario(document, {}));
}

NcclOptions options_of_environment() {
  NcclOptions options;
  options.rank = std::stoul(std::getenv(kRank));
  options.ranks = std::stoul(std::getenv(kRanks));
  options.id_directory = std::getenv(kFolder);
  options.one_device = true;
  options.check_names = true;
  return options;
}

void compute_steps() {
  const Scenario scenario = scenario_of(std::getenv(kPlan));
  Program program;
  lower(scenario, program);
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, false);
  Backend& backend = *owned;
  const std::unique_ptr<Communicator> communicator = make_nccl_communicator(backend, options_of_environment());
  ExecutionOptions options;
  options.steps = 2;
  options.epsilon = 1e-4;
  options.find_undefined = false;  // it would wait for every op, and streams be in order by that alone
  const RunPart part{scenario, program, options.warmup_steps + options.steps};
  const RankResult own = execute_rank({&part, 1}, options, backend, *communicator);
  const std::vector<RankResult> results = gather_results(own, *communicator);
  communicator->finish();
  if (communicator->rank() != 0) return;
  const Execution found = assemble(scenario, results);
  const Agreement with_one_rank = agreement(execute(on_one_rank(scenario), options), found);
  EXPECT_TRUE(with_one_rank.within(kTolerance)) << with_one_rank.worst_gradient;
#ifndef ORRERY_ON_DEVICE  // whose sums are in an order of their own
  const auto factory = [](std::size_t) -> std::unique_ptr<Backend> { return make_cuda_backend(0, false); };
  const Agreement with_threads =
      agreement(assemble(scenario, execute_ranks(scenario, program, options, factory)), found);
  EXPECT_TRUE(with_threads.within(0)) << "gradients " << with_threads.gradients << with_threads.worst_gradient;
#endif
}

// Whole numbers, which every dtype holds and whose sums do.
Values values_of(std::size_t rank, std::int64_t elements) {
  Values values(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<float>((static_cast<std::int64_t>(rank) * 5 + i) % 11);
  return values;
}

// Every collective over the members: of the dtype, each in a tensor of its own.
void check_collectives(Backend& backend, Communicator& c, const Members& members, std::int64_t elements,
                       Dtype dtype) {
  const auto n = static_cast<std::int64_t>(members.size());
  const auto own = std::ranges::find(members, c.rank()) - members.begin();
  Values sums(static_cast<std::size_t>(n * elements)), gathered, exchanged;
  for (const std::size_t m : members) {
    const Values all = values_of(m, n * elements);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += all[i];
    gathered.insert(gathered.end(), all.begin(), all.begin() + elements);
    exchanged.insert(exchanged.end(), all.begin() + own * elements, all.begin() + (own + 1) * elements);
  }
  const auto part_of = [&](const Values& all, std::ptrdiff_t m) {
    return Values(all.begin() + m * elements, all.begin() + (m + 1) * elements);
  };
  const Tensor part = of({{elements}}, dtype), whole = of({{n * elements}}, dtype);
  const Values mine = values_of(c.rank(), n * elements);
  const Held all_mine(backend, whole, mine), first(backend, part, part_of(mine, 0)),
      sum(backend, part, part_of(mine, 0)), gather(backend, whole, Values(mine.size(), 0)),
      scatter(backend, part, Values(first.values().size(), 0)), exchange(backend, whole, Values(mine.size(), 0)),
      shifted(backend, part, Values(first.values().size(), 0));
  Values in_place_values(mine.size(), 0);
  std::ranges::copy(part_of(mine, 0), in_place_values.begin() + own * elements);
  const Held in_place(backend, whole, in_place_values);
  const auto offset = own * elements * bytes_of(dtype, 1);
  constexpr Stream kStream = Stream::tensor_communication;
  backend.wait(kStream, backend.record(Stream::compute));
  c.all_reduce({members, "sum", kStream, dtype}, sum.data, elements);
  c.all_gather({members, "gather", kStream, dtype}, first.data, gather.data, elements);
  c.all_gather({members, "gather in place", kStream, dtype}, static_cast<char*>(in_place.data) + offset, in_place.data,
               elements);
  c.reduce_scatter({members, "scatter", kStream, dtype}, all_mine.data, scatter.data, elements);
  c.all_to_all({members, "exchange", kStream, dtype}, all_mine.data, exchange.data, elements);
  const auto to = static_cast<std::size_t>((own + 1) % n), from = static_cast<std::size_t>((own + n - 1) % n);
  c.permute({members, "shift", kStream, dtype}, first.data, shifted.data, elements, to, from);
  backend.synchronize();
  EXPECT_EQ(sum.values(), part_of(sums, 0)) << name_of(dtype);
  EXPECT_EQ(gather.values(), gathered) << name_of(dtype);
  EXPECT_EQ(in_place.values(), gathered) << name_of(dtype);
  EXPECT_EQ(scatter.values(), part_of(sums, own)) << name_of(dtype);
  EXPECT_EQ(exchange.values(), exchanged) << name_of(dtype);
  EXPECT_EQ(shifted.values(), part_of(values_of(members[from], n * elements), 0)) << name_of(dtype);
}

// Of parts that differ: some are empty; all go to the first member; one pair alone has something to say.
void check_unequal_exchange(Backend& backend, Communicator& c, const Members& members, std::int64_t elements,
                            Dtype dtype) {
  const std::size_t n = members.size();
  const auto own = static_cast<std::size_t>(std::ranges::find(members, c.rank()) - members.begin());
  const auto count = [&](int which, std::size_t from, std::size_t to) -> std::int64_t {
    if (which == 0) return static_cast<std::int64_t>((from + 2 * to) % 3) * elements;
    if (which == 1) return to == 0 ? elements + static_cast<std::int64_t>(from) : 0;
    return from == 0 && to == 1 ? 3 * elements : 0;
  };
  for (const int which : {0, 1, 2}) {
    std::vector<std::int64_t> sends, receives;
    Values mine{-1}, truth{-1};  // one element that nobody exchanges: memory is never empty
    for (std::size_t m = 0; m < n; ++m) {
      sends.push_back(count(which, own, m));
      receives.push_back(count(which, m, own));
      const Values to = values_of(10 * own + m, sends.back()), from = values_of(10 * m + own, receives.back());
      mine.insert(mine.end() - 1, to.begin(), to.end());
      truth.insert(truth.end() - 1, from.begin(), from.end());
    }
    const auto shape = [&](const Values& values) { return of({{static_cast<std::int64_t>(values.size())}}, dtype); };
    const Held in(backend, shape(mine), mine), out(backend, shape(truth), Values(truth.size(), -1));
    c.all_to_all_v({members, "unequal exchange", Stream::compute, dtype}, in.data, sends, out.data, receives);
    backend.synchronize();
    EXPECT_EQ(out.values(), truth) << name_of(dtype) << ", case " << which;
  }
}

// Both ranks send before either receives, and write what they have sent at once.
void check_messages(Backend& backend, Communicator& c) {
  const std::size_t peer = 1 - c.rank();
  constexpr std::int64_t kElements = 1000, kMessages = 3;
  const Tensor t = of({{kElements}});
  // The direction to rank 1 is made first on both sides: as in a pipeline, whose first message is forward.
  const auto forward = [&](std::int64_t m) { return MessageTag{1, m, false}; };
  const auto backward = [&](std::int64_t m) { return MessageTag{0, m, true}; };
  const Held out(backend, t, Values(kElements, 0)), in(backend, t, Values(kElements, 0));
  const auto send = [&](const MessageTag& tag) {
    backend.fill(Stream::compute, out.slice(), static_cast<float>(c.rank() * 100 + 10 + tag.micro_batch));
    c.send(peer, tag, Stream::compute, out.data, kElements, Dtype::fp32);
    backend.fill(Stream::compute, out.slice(), -1);
  };
  const auto receive = [&](const MessageTag& tag) {
    c.receive(peer, tag, Stream::compute, in.data, kElements, Dtype::fp32);
    EXPECT_EQ(in.values(), Values(kElements, static_cast<float>(peer * 100 + 10 + tag.micro_batch)));
  };
  if (c.rank() == 0) send(forward(0));
  if (c.rank() == 1) receive(forward(0));
  if (c.rank() == 1) send(backward(0));
  if (c.rank() == 0) receive(backward(0));
  for (std::int64_t m = 1; m < kMessages; ++m) send(c.rank() == 0 ? forward(m) : backward(m));
  for (std::int64_t m = 1; m < kMessages; ++m) receive(c.rank() == 0 ? backward(m) : forward(m));
}

std::string failure_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const ExecutionError& error) {
    return error.what();
  }
  return "nothing failed";
}

TEST(NcclRank, DoesItsPart) {
  if (std::getenv(kRank) == nullptr) GTEST_SKIP() << kStart;
  const std::string part = std::getenv(kPart);
  if (part == "steps") return compute_steps();
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, false);
  Backend& backend = *owned;
  NcclOptions options = options_of_environment();
  if (part == "collectives") {
    EXPECT_TRUE(ranks_share_a_device(options, "0000:01:00.0"));
    const auto c = make_nccl_communicator(backend, options);
    for (const std::int64_t elements : {1, 7, 1001})
      for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16})
        check_collectives(backend, *c, c->everyone(), elements, dtype);
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) check_unequal_exchange(backend, *c, c->everyone(), 4, dtype);
    if (c->rank() > 0) {
      check_collectives(backend, *c, {1, 2}, 5, Dtype::fp32);
      check_unequal_exchange(backend, *c, {1, 2}, 5, Dtype::fp32);
    }
    const auto gathered = c->gather_values(c->everyone(), "values", std::vector<double>(c->rank(), 0.1));
    for (std::size_t m = 0; m < gathered.size(); ++m) EXPECT_EQ(gathered[m], std::vector<double>(m, 0.1));
    c->finish();
  } else if (part == "devices") {
    EXPECT_FALSE(ranks_share_a_device(options, std::to_string(options.rank)));
  } else if (part == "messages") {
    const auto c = make_nccl_communicator(backend, options);
    check_messages(backend, *c);
    c->finish();
  } else {
    options.watchdog_seconds = kShortWatchdog;
    const auto c = make_nccl_communicator(backend, options);
    const Held data(backend, of({{10}}), Values(10, 1));
    c->at({"forward", "linear", 3});
    const auto all_reduce = [&](const std::string& what) {
      c->all_reduce({c->everyone(), what}, data.data, 10);
      backend.synchronize();
    };
    const auto start = [&] { c->gather_values(c->everyone(), "start", {}); };
    if (part != "die") start();
    if (part == "diverge") {
      const std::string said = failure_of([&] { all_reduce(c->rank() == 0 ? "gradients" : "activations"); });
      EXPECT_THAT(said, HasSubstr("ranks have diverged"));
      EXPECT_THAT(said, HasSubstr("forward linear"));
      EXPECT_EQ(failure_of([&] { all_reduce("again"); }), said) << "the first failure is kept";
    } else if (part == "late") {
      if (c->rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(3 * kShortWatchdog));
      const std::string said = c->rank() == 1 ? "" : failure_of([&] { all_reduce("gradients"); });
      EXPECT_THAT(said,
                  HasSubstr(c->rank() == 1 ? std::string()
                                           : fmt::format("rank 0 has waited {:.0f} s for rank 1 in ", kShortWatchdog)));
    } else if (part == "die") {
      if (c->rank() == 1) start(), raise(SIGKILL);
      EXPECT_THAT(failure_of([&] { start(), all_reduce("gradients"), c->finish(); }),
                  AnyOf(HasSubstr("another rank ended or failed first"), HasSubstr("rank 0 has waited")));
    } else if (part == "unheard") {
      if (c->rank() == 0) {
        c->send(1, {1, 0, false}, Stream::compute, data.data, 10, Dtype::fp32);
        c->send(1, {1, 1, false}, Stream::compute, data.data, 10, Dtype::fp32);
        EXPECT_THAT(failure_of([&] { c->finish(); }), HasSubstr("message to position 1"));
      } else {
        c->receive(0, {1, 0, false}, Stream::compute, data.data, 10, Dtype::fp32);
        backend.synchronize();
        std::this_thread::sleep_for(std::chrono::duration<double>(2 * kShortWatchdog));
      }
    } else {
      FAIL() << part;
    }
  }
}

// --- The tests
// ---------------------------------------------------------------------------------------------------------

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_nccl()) GTEST_SKIP() << "built without NCCL";
    folder_ = (std::filesystem::temp_directory_path() / "orrery-nccl-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // The exit statuses of as many processes.
  std::vector<int> run(std::size_t ranks, const std::string& part, const std::string& plan = "{}") {
    const std::string ids = folder_ + "/" + std::to_string(runs_++);
    std::filesystem::create_directory(ids);
    std::vector<pid_t> processes;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> environment{
          std::string(kRank) + "=" + std::to_string(rank), std::string(kRanks) + "=" + std::to_string(ranks),
          std::string(kFolder) + "=" + ids, std::string(kPart) + "=" + part, std::string(kPlan) + "=" + plan};
      for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
      std::vector<char*> pointers;
      for (std::string& variable : environment) pointers.push_back(variable.data());
      pointers.push_back(nullptr);
      std::string program = "/proc/self/exe", filter = "--gtest_filter=NcclRank.*", output = "--gtest_output=";
      const std::array<char*, 4> arguments{program.data(), filter.data(), output.data(), nullptr};
      pid_t process = 0;
      EXPECT_EQ(posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments.data(), pointers.data()), 0);
      processes.push_back(process);
    }
    std::vector<int> statuses;
    for (const pid_t process : processes) {
      int status = -1;
      EXPECT_EQ(waitpid(process, &status, 0), process);
      statuses.push_back(status);
    }
    return statuses;
  }

  std::string folder_;
  int runs_ = 0;
};

const std::vector<int> kTwoPassed{0, 0};

TEST_F(Nccl, CollectivesGiveTheirSumsAndParts) { EXPECT_EQ(run(3, "collectives"), (std::vector<int>{0, 0, 0})); }

TEST_F(Nccl, RanksKnowWhetherTheyShareADevice) { EXPECT_EQ(run(2, "devices"), kTwoPassed); }

TEST_F(Nccl, MessagesAreSentBeforeTheyAreReceived) { EXPECT_EQ(run(2, "messages"), kTwoPassed); }

TEST_F(Nccl, ProcessesComputeWhatOneRankAndWhatThreadsCompute) {
  for (const char* plan :
       {R"({"data_parallel": 2})", R"({"data_parallel": 2, "zero_stage": 3})",
        R"({"tensor_parallel": 2, "sequence_parallel": true})", R"({"pipeline_parallel": 2})",
        R"({"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_schedule": "interleaved"})",
        R"({"context_parallel": 2})", R"({"context_parallel": 2, "context_parallel_type": "ulysses"})",
        R"({"context_parallel": 2, "context_parallel_type": "all_gather"})",
        R"({"model": {"experts": 4, "experts_per_token": 2, "expert_ffn": 24},
            "plan": {"data_parallel": 2, "expert_parallel": 2}})",
        R"({"model": {"experts": 4, "experts_per_token": 2, "expert_ffn": 24},
            "plan": {"data_parallel": 2, "expert_tensor_parallel": 2, "zero_stage": 1}})"}) {
    SCOPED_TRACE(plan);
    EXPECT_EQ(run(2, "steps", plan), kTwoPassed);
  }
}

TEST_F(Nccl, GroupsOfSomeProcessesDoSoToo) {
  for (const char* plan : {R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2})",
                           R"({"data_parallel": 4, "zero_stage": 3, "zero_hpz_partition_size": 2})",
                           R"({"data_parallel": 4, "zero_stage": 3, "mics_shard_size": 2})"}) {
    SCOPED_TRACE(plan);
    EXPECT_EQ(run(4, "steps", plan), (std::vector<int>{0, 0, 0, 0}));
  }
}

TEST_F(Nccl, RanksThatDivergeSaySo) { EXPECT_EQ(run(2, "diverge"), kTwoPassed); }

TEST_F(Nccl, AWaitThatIsInVainEndsWithTheRankItIsFor) { EXPECT_EQ(run(2, "late"), kTwoPassed); }

TEST_F(Nccl, ARankThatDiesEndsTheOthersWait) {
  const std::vector<int> statuses = run(2, "die");
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
}

TEST_F(Nccl, AMessageThatNobodyReceivesIsAnErrorAtTheEnd) { EXPECT_EQ(run(2, "unheard"), kTwoPassed); }

}  // namespace
}  // namespace orrery
