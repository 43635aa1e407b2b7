#include "strategies/flexmoe/swipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sim/base/error.h"

namespace orrery::flexmoe {

SwipePass swipe_once(const RoutingMatrix& tokens, std::vector<std::int64_t>& room) {
  if (tokens.experts != static_cast<std::int64_t>(room.size()))
    throw InputError({}, fmt::format("tokens for {} workers", tokens.experts),
                     fmt::format("tokens for {} workers", room.size()));
  const std::int64_t all_room = std::accumulate(room.begin(), room.end(), std::int64_t{0}), all = tokens.total();
  if (all_room < all)
    throw InputError({}, fmt::format("room for {} tokens", all_room), fmt::format("room for all {} tokens", all));
  SwipePass pass{tokens, 0};
  const auto workers = room.size(), sources = static_cast<std::size_t>(tokens.source_ranks);
  std::vector<std::int64_t> overflow(sources);
  for (std::size_t w = 0; w < workers; ++w)
    for (std::size_t s = 0; s < sources; ++s) {
      std::int64_t& sent = pass.tokens.tokens[s * workers + w];
      const std::int64_t taken = std::min(sent, room[w]);
      overflow[s] += sent - taken;
      room[w] -= taken;
      sent = taken;
    }
  std::size_t w = 0;
  for (std::size_t s = 0; s < sources; ++s) {
    pass.moved += overflow[s];
    while (overflow[s] > 0) {
      const std::int64_t taken = std::min(overflow[s], room[w]);
      pass.tokens.tokens[s * workers + w] += taken;
      overflow[s] -= taken;
      room[w] -= taken;
      if (room[w] == 0) ++w;
    }
  }
  return pass;
}

}  // namespace orrery::flexmoe
