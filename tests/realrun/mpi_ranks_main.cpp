// What mpi_test.cpp starts with mpirun: `mpi_ranks CASE [ALGORITHM]`. A rank whose values are wrong ends the job.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "realrun/mpi/mpi_communicator.h"

namespace orrery {
namespace {

constexpr Stream kStream = Stream::compute;
constexpr Dtype kFp32 = Dtype::fp32;
constexpr double kShortWatchdog = 1;

float value_of(std::size_t rank, std::int64_t i) {
  return static_cast<float>((static_cast<std::int64_t>(rank + 1) * 13 + i) % 97);
}
std::vector<float> values_of(std::size_t rank, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i) values[static_cast<std::size_t>(i)] = value_of(rank, i);
  return values;
}
void expect_equal(const std::vector<float>& found, const std::vector<float>& truth, const std::string& what) {
  const auto [at, expected] = std::mismatch(found.begin(), found.end(), truth.begin(), truth.end());
  if (at == found.end() && expected == truth.end()) return;
  throw ExecutionError("wrong value in " + what + " at " + std::to_string(at - found.begin()));
}

struct Group {
  MpiCommunicator& communicator;
  Members members;
  std::size_t own = 0;
  std::size_t n() const { return members.size(); }
};

void check_collectives(const Group& g, std::int64_t elements) {
  MpiCommunicator& c = g.communicator;
  const auto n = static_cast<std::int64_t>(g.n()), own = static_cast<std::int64_t>(g.own);
  const std::string size = " of " + std::to_string(elements) + " over " + std::to_string(n);
  const auto whole = static_cast<std::size_t>(n * elements);
  std::vector<float> sums(whole), gathered, exchanged;
  for (const std::size_t m : g.members) {
    const std::vector<float> all = values_of(m, n * elements);
    for (std::size_t i = 0; i < whole; ++i) sums[i] += all[i];
    gathered.insert(gathered.end(), all.begin(), all.begin() + elements);
    exchanged.insert(exchanged.end(), all.begin() + own * elements, all.begin() + (own + 1) * elements);
  }
  const std::vector<float> mine = values_of(c.rank(), n * elements);
  const std::vector<float> part(mine.begin(), mine.begin() + elements);

  std::vector<float> out = part;
  c.all_reduce({g.members, "all_reduce"}, out.data(), elements);
  expect_equal(out, {sums.begin(), sums.begin() + elements}, "all_reduce" + size);

  out.assign(whole, -1);
  c.all_gather({g.members, "all_gather"}, part.data(), out.data(), elements);
  expect_equal(out, gathered, "all_gather" + size);
  out.assign(whole, -1);  // in place
  std::copy(part.begin(), part.end(), out.begin() + own * elements);
  c.all_gather({g.members, "all_gather"}, out.data() + own * elements, out.data(), elements);
  expect_equal(out, gathered, "all_gather in place" + size);

  out.assign(part.size(), -1);
  c.reduce_scatter({g.members, "reduce_scatter"}, mine.data(), out.data(), elements);
  expect_equal(out, {sums.begin() + own * elements, sums.begin() + (own + 1) * elements}, "reduce_scatter" + size);

  out.assign(whole, -1);
  c.all_to_all({g.members, "all_to_all"}, mine.data(), out.data(), elements);
  expect_equal(out, exchanged, "all_to_all" + size);

  const std::size_t to = (g.own + 1) % g.n(), from = (g.own + g.n() - 1) % g.n();
  out.assign(part.size(), -1);
  c.permute({g.members, "permute"}, part.data(), out.data(), elements, to, from);
  expect_equal(out, values_of(g.members[from], elements), "permute" + size);

  out = g.own == 0 ? part : std::vector<float>(part.size(), -1);
  c.broadcast({g.members, "broadcast"}, out.data(), elements);
  expect_equal(out, values_of(g.members.front(), elements), "broadcast" + size);
}

// Elements from one member to another: some none; all to the first; one pair alone.
std::int64_t unequal(int which, std::size_t from, std::size_t to, std::int64_t elements) {
  if (which == 0) return static_cast<std::int64_t>((from + 2 * to) % 3) * elements;
  if (which == 1) return to == 0 ? elements + static_cast<std::int64_t>(from) : 0;
  return from == 0 && to == 1 ? 3 * elements : 0;
}

void check_unequal_exchange(const Group& g, std::int64_t elements) {
  for (const int which : {0, 1, 2}) {
    std::vector<std::int64_t> sends, receives;
    std::vector<float> mine, truth;
    for (std::size_t m = 0; m < g.n(); ++m) {
      sends.push_back(unequal(which, g.own, m, elements));
      receives.push_back(unequal(which, m, g.own, elements));
      const std::vector<float> to = values_of(100 * g.own + m, sends.back()),
                               from = values_of(100 * m + g.own, receives.back());
      mine.insert(mine.end(), to.begin(), to.end());
      truth.insert(truth.end(), from.begin(), from.end());
    }
    std::vector<float> out(truth.size(), -1);
    g.communicator.all_to_all_v({g.members, "all_to_all_v"}, mine.data(), sends, out.data(), receives);
    expect_equal(out, truth, "all_to_all_v of " + std::to_string(elements) + " over " + std::to_string(g.n()));
  }
}

void gather_unequally(const Group& g) {
  std::vector<double> mine(g.own % 3, static_cast<double>(g.own));  // some have none
  const auto all = g.communicator.gather_values(g.members, "values", mine);
  for (std::size_t m = 0; m < g.n(); ++m)
    if (all[m] != std::vector<double>(m % 3, static_cast<double>(m))) throw ExecutionError("wrong values gathered");
}

// Both directions at once, in another order than they are received in.
void messages(MpiCommunicator& c, std::int64_t elements) {
  const std::size_t rank = c.rank(), last = c.ranks() - 1;
  constexpr std::int64_t kMicroBatches = 3;
  const auto tag = [](std::size_t position, std::int64_t micro, bool backward) {
    return MessageTag{static_cast<std::int64_t>(position), micro, backward};
  };
  for (std::int64_t m = 0; m < kMicroBatches; ++m) {
    if (rank < last)
      c.send(rank + 1, tag(rank + 1, m, false), kStream, values_of(rank, elements + m).data(), elements + m, kFp32);
    if (rank > 0)
      c.send(rank - 1, tag(rank - 1, m, true), kStream, values_of(rank + 50, elements + m).data(), elements + m, kFp32);
  }
  for (std::int64_t m = kMicroBatches; m-- > 0;) {
    std::vector<float> in(static_cast<std::size_t>(elements + m));
    if (rank > 0) {
      c.receive(rank - 1, tag(rank, m, false), kStream, in.data(), elements + m, kFp32);
      expect_equal(in, values_of(rank - 1, elements + m), "message");
    }
    if (rank < last) {
      c.receive(rank + 1, tag(rank, m, true), kStream, in.data(), elements + m, kFp32);
      expect_equal(in, values_of(rank + 51, elements + m), "message back");
    }
  }
}

void run(MpiCommunicator& c, const std::string& what) {
  const std::size_t rank = c.rank(), ranks = c.ranks();
  const Members all = c.everyone();
  float one = 1;
  std::vector<float> many(1000, 1);
  c.at({"forward", "linear", 3});
  if (what == "collectives") {
    for (const std::int64_t elements : {1, 2, 3, 7, 64, 1001, 40000}) {
      check_collectives({c, all, rank}, elements);
      check_unequal_exchange({c, all, rank}, elements);
      const Members third_from{all.begin() + static_cast<std::ptrdiff_t>(ranks / 3), all.end()};
      if (rank >= ranks / 3) check_collectives({c, third_from, rank - ranks / 3}, elements);
      Members alike;
      for (std::size_t r = rank % 2; r < ranks; r += 2) alike.push_back(r);
      check_collectives({c, alike, rank / 2}, elements);
    }
    gather_unequally({c, all, rank});
    for (const std::int64_t elements : {1, 40000}) messages(c, elements);
  } else if (what == "diverging") {
    c.all_reduce({all, rank == 1 ? "gradients" : "activations"}, &one, 1);
  } else if (what == "diverging_sizes") {
    const std::int64_t elements = rank == 1 ? 1000 : 10;
    c.all_reduce({all, rank == 1 ? "gradients" : "activations"}, many.data(), elements);
  } else if (what == "absent") {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::hours(1));
    c.all_reduce({all, "gradients"}, &one, 1);
  } else if (what == "no_message") {
    if (rank == 0) c.receive(1, {2, 5, true}, kStream, &one, 1, kFp32);
    std::this_thread::sleep_for(std::chrono::hours(1));
  } else if (what == "left_over") {
    if (rank == 0) c.send(1, {2, 5, false}, kStream, &one, 1, kFp32);
  } else if (what == "wrong_length") {
    if (rank == 0) c.send(1, {2, 5, false}, kStream, many.data(), 10, kFp32);
    if (rank == 1) c.receive(0, {2, 5, false}, kStream, many.data(), 1000, kFp32);
  } else if (what == "wrong_counts") {  // the second rank gives less than the first one takes
    const std::vector<std::int64_t> none{0, 0}, sends{10, 0}, receives{0, 20};
    c.all_to_all_v({all, "exchange"}, many.data(), rank == 1 ? sends : none, many.data() + 500,
                   rank == 1 ? none : receives);
  } else if (what == "killed") {
    if (rank == 1) raise(SIGKILL);
    c.all_reduce({all, "gradients"}, &one, 1);
  } else if (what == "throws") {
    if (rank == 1) throw ExecutionError("rank 1 has had enough");
    c.all_reduce({all, "gradients"}, &one, 1);
  } else {
    throw ExecutionError("no case \"" + what + "\"");
  }
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  using namespace orrery;
  const MpiSession session(&argc, &argv);
  const std::string what = argc > 1 ? argv[1] : "", algorithm = argc > 2 ? argv[2] : "ring";
  MpiOptions options;
  // Tiny pieces, so that small buffers already take several.
  options.message_bytes = 4096;
  options.chunk_bytes = 512;
  if (what != "collectives") options.watchdog_seconds = kShortWatchdog;
  for (std::size_t i = 0; i < kCollectiveAlgorithmNames.size(); ++i)
    if (kCollectiveAlgorithmNames[i] == algorithm) options.algorithm = static_cast<CollectiveAlgorithm>(i);
  const std::unique_ptr<MpiCommunicator> communicator = make_mpi_communicator(options);
  try {
    run(*communicator, what);
    communicator->finish();
  } catch (...) {
    communicator->fail(std::current_exception());
  }
  if (communicator->rank() == 0) std::puts("all ranks agree");
  return 0;
}
