// Ranks as threads: exchanges whose parts differ. (Other collectives: every layout of executor_test.cpp; processes:
// mpi_test.cpp, cuda_runtime/nccl_test.cpp.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "realrun/in_process.h"

namespace orrery {
namespace {

using Counts = std::function<std::int64_t(std::size_t from, std::size_t to)>;

float value_of(std::size_t from, std::size_t to, std::int64_t i) {
  return static_cast<float>(1000 * from + 100 * to) + static_cast<float>(i);
}

// What `each` throws in any rank comes out.
void run_ranks(std::size_t ranks, const std::function<void(Communicator&)>& each) {
  InProcessRanks shared(ranks, 5);
  std::vector<std::unique_ptr<Backend>> backends;
  for (std::size_t r = 0; r < ranks; ++r) backends.push_back(make_cpu_backend());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        try {
          each(*shared.communicator(r, *backends[r]));
        } catch (...) {
          shared.fail(std::current_exception());
        }
      });
  }
  shared.rethrow();
}

void exchange(Communicator& c, const Members& members, const Counts& counts) {
  std::size_t own = 0;
  while (members[own] != c.rank()) ++own;
  std::vector<std::int64_t> sends, receives;
  std::vector<float> from, expected;
  for (std::size_t m = 0; m < members.size(); ++m) {
    sends.push_back(counts(own, m));
    receives.push_back(counts(m, own));
    for (std::int64_t i = 0; i < sends[m]; ++i) from.push_back(value_of(own, m, i));
    for (std::int64_t i = 0; i < receives[m]; ++i) expected.push_back(value_of(m, own, i));
  }
  std::vector<float> to(expected.size() + 1, -1);
  c.all_to_all_v({members, "rows", Stream::compute, Dtype::bf16}, from.data(), sends, to.data(), receives);
  expected.push_back(-1);  // behind what came nothing is written
  EXPECT_EQ(to, expected) << "rank " << c.rank();
}

TEST(UnequalExchange, GivesEachMemberItsPartInTheirOrder) {
  const Counts some = [](std::size_t from, std::size_t to) { return static_cast<std::int64_t>((from + 2 * to) % 3); };
  const Counts one_sided = [](std::size_t from, std::size_t to) { return to == 0 ? std::int64_t(from) + 2 : 0; };
  const Counts one_pair = [](std::size_t from, std::size_t to) { return std::int64_t{from == 0 && to == 1}; };
  const Counts none = [](std::size_t, std::size_t) { return std::int64_t{0}; };
  for (const Counts& counts : {some, one_sided, one_pair, none})
    for (const std::size_t ranks : {1, 2, 3, 5})
      run_ranks(ranks, [&](Communicator& c) {
        const Members all = c.everyone();
        exchange(c, all, counts);
        if (c.rank() >= 2) exchange(c, {all.begin() + 2, all.end()}, counts);
      });
}

TEST(UnequalExchange, OfCountsThatDoNotFitSaysWhose) {
  try {
    run_ranks(2, [](Communicator& c) {
      const std::vector<std::int64_t> none{0, 0}, sends{10, 0}, receives{0, 20};
      std::vector<float> from(20), to(20);
      c.all_to_all_v({{0, 1}, "rows"}, from.data(), c.rank() == 1 ? sends : none, to.data(),
                     c.rank() == 1 ? none : receives);
    });
    FAIL();
  } catch (const ExecutionError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("expects 20 elements from rank 1 in \"rows\", which sends 10"));
  }
}

}  // namespace
}  // namespace orrery
