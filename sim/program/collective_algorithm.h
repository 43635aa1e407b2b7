// The algorithms and protocols of collectives: those of NCCL by its names (NCCL_ALGO, NCCL_PROTO), and others beside.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace orrery {

enum class CollectiveAlgorithm : std::uint8_t {
  automatic,
  ring,
  tree,                // double binary tree over the nodes, chains within them; all-reduce
  hierarchical,        // within the node, then rails across nodes, then within the node, one after the other
  nvls,                // reduction in NVSwitch; across nodes NCCL's NVLSTree; all-reduce
  collnet,             // reduction in the fabric's switches (SHARP), within the node as NVLS or direct; all-reduce
  halving_doubling,    // recursive halving, then doubling (sim/cost/halving_doubling.h); only when asked for
  bidirectional_ring,  // half of the bytes each way round the ring; only when asked for
  direct,              // each pair of ranks directly; all-to-all, sends
  // Tokens to experts: each token goes once to a node, and there once to each rank that needs it (DeepEP). No plan can
  // force it.
  by_token,
};
inline constexpr std::array<std::string_view, 10> kCollectiveAlgorithmNames{
    "automatic", "ring",   "tree", "hierarchical", "nvls", "collnet", "halving_doubling", "bidirectional_ring",
    "direct",    "by_token"};
// The algorithms that a plan can force.
inline constexpr std::span<const std::string_view> kForcedAlgorithmNames{kCollectiveAlgorithmNames.data(), 9};

enum class CollectiveProtocol : std::uint8_t { automatic, simple, ll128, ll };
inline constexpr std::array<std::string_view, 4> kCollectiveProtocolNames{"automatic", "simple", "ll128", "ll"};

inline constexpr std::array<const char*, 4> kNcclProtocolNames{"automatic", "Simple", "LL128",
                                                               "LL"};  // NCCL's spelling

inline const char* name_of(CollectiveAlgorithm a) {
  return kCollectiveAlgorithmNames[static_cast<std::size_t>(a)].data();
}
inline const char* name_of(CollectiveProtocol p) {
  return kCollectiveProtocolNames[static_cast<std::size_t>(p)].data();
}
inline const char* nccl_name_of(CollectiveProtocol p) { return kNcclProtocolNames[static_cast<std::size_t>(p)]; }

}  // namespace orrery
