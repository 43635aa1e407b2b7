#include "realrun/calibrate/rank_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "realrun/calibrate/measure.h"
#include "realrun/in_process.h"

namespace orrery {
namespace {

constexpr double kWatchdogSeconds = 60;
constexpr int kRepetitions = 41;

void run(const RankCollective& c, Communicator& communicator, const Members& members, void* from, void* to) {
  const auto elements = static_cast<std::int64_t>(c.bytes) / bytes_of(Dtype::fp32, 1);
  const std::int64_t part = std::max<std::int64_t>(1, elements / c.ranks);
  switch (c.kind) {
    case OpKind::all_reduce:
      return communicator.all_reduce(members, c.id, Stream::compute, to, elements, Dtype::fp32);
    case OpKind::all_gather:
      return communicator.all_gather(members, c.id, Stream::compute, from, to, part, Dtype::fp32);
    case OpKind::reduce_scatter:
      return communicator.reduce_scatter(members, c.id, Stream::compute, from, to, part, Dtype::fp32);
    case OpKind::all_to_all:
      return communicator.all_to_all(members, c.id, Stream::compute, from, to, part, Dtype::fp32);
    default: {
      const std::size_t rank = communicator.rank(), n = members.size();
      return communicator.permute(members, c.id, Stream::compute, from, to, elements, Dtype::fp32, (rank + 1) % n,
                                  (rank + n - 1) % n);
    }
  }
}

}  // namespace

std::vector<RankCollective> rank_collectives(std::int64_t ranks) {
  constexpr std::array<std::pair<const char*, OpKind>, 5> kKinds{{{"all_reduce", OpKind::all_reduce},
                                                                  {"all_gather", OpKind::all_gather},
                                                                  {"reduce_scatter", OpKind::reduce_scatter},
                                                                  {"all_to_all", OpKind::all_to_all},
                                                                  {"send_recv", OpKind::ring_shift}}};
  constexpr std::array<std::int64_t, 8> kKibibytes{64, 1024, 4, 16384, 1, 256, 4096, 16};
  std::vector<RankCollective> all;
  for (const std::int64_t size : kKibibytes)
    for (const auto& [name, kind] : kKinds)
      all.push_back({fmt::format("collective {} {} ranks {} KiB", name, ranks, size), name, kind, ranks,
                     static_cast<double>(size) * 1024});
  return all;
}

double time_rank_collective(const RankCollective& collective,
                            const std::function<std::unique_ptr<Backend>()>& make_backend) {
  const auto ranks = static_cast<std::size_t>(collective.ranks);
  InProcessRanks shared(ranks, kWatchdogSeconds);
  Members members(ranks);
  std::iota(members.begin(), members.end(), std::size_t{0});
  std::vector<double> seconds;
  std::vector<std::thread> threads;
  const auto work = [&](std::size_t rank) {
    try {
      const std::unique_ptr<Backend> backend = make_backend();
      const std::unique_ptr<Communicator> communicator = shared.communicator(rank, *backend);
      const auto elements = static_cast<std::int64_t>(collective.bytes) / bytes_of(Dtype::fp32, 1);
      std::array<void*, 2> buffers{};
      for (void*& buffer : buffers) {
        buffer = backend->allocate(elements, Dtype::fp32, Place::device, Stream::compute);
        backend->fill(Stream::compute, {.base = buffer, .dtype = Dtype::fp32, .offset = 0, .elements = elements}, 0);
      }
      for (int i = 0; i < kRepetitions; ++i) {
        communicator->gather_values(members, "start", {});
        const double begin = wall_seconds();
        run(collective, *communicator, members, buffers[0], buffers[1]);
        backend->synchronize();
        if (rank == 0) seconds.push_back(wall_seconds() - begin);
      }
      communicator->finish();
      for (void* buffer : buffers) backend->release(buffer);
    } catch (...) {
      shared.fail(std::current_exception());
    }
  };
  try {
    for (std::size_t rank = 0; rank < ranks; ++rank) threads.emplace_back(work, rank);
  } catch (const std::system_error&) {  // also ends the ranks that wait for the missing one
    shared.fail(std::current_exception());
  }
  for (std::thread& thread : threads) thread.join();
  shared.rethrow();
  std::sort(seconds.begin(), seconds.end());
  constexpr double kPercentile = 0.1;
  return seconds[static_cast<std::size_t>(kPercentile * static_cast<double>(seconds.size()))];
}

}  // namespace orrery
