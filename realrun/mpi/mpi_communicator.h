// Ranks as MPI processes, for backends whose memory is the host's and holds every dtype as fp32 (the CPU's).
//
// The algorithms are not the MPI library's: the messages of schedule.h go over MPI_Isend and MPI_Irecv, so that what
// runs is what is modelled, under every MPI. The first message to each partner also names the operation; ranks that
// meet under different names find out there. No communicators are made for groups: a rank does one thing after another,
// so the order of messages between two ranks is that of the Program.
//
// Waiting ranks sleep between looks at the network instead of spinning, since ranks that share cores would otherwise
// take them from those that compute.
#pragma once

#include <memory>

#include "realrun/communicator.h"
#include "sim/program/collective_algorithm.h"

namespace orrery {

// MPI from construction to destruction; once a process. Throws ExecutionError where MPI cannot start.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

struct MpiOptions {
  // For one wait in which nothing arrives and nothing leaves.
  double watchdog_seconds = 20;
  // Of all_reduce (ring, tree, halving_doubling), all_gather and reduce_scatter (ring unless halving_doubling).
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  // Larger messages are sent in pieces of this size. Below Open MPI's limit
  // for messages over TCP that need no handshake (btl_tcp_eager_limit, 64 KiB with its header): the handshake of one
  // direction would queue behind the data of the other on their common connection.
  std::int64_t message_bytes = 61440;
  std::int64_t chunk_bytes = 16384;  // pieces in which chains and trees pass on a message
  // A wait first yields for so long, then sleeps for so long between looks (realrun/netlab/README.md has the
  // measurement behind these).
  double yield_seconds = 20e-6, sleep_seconds = 200e-6;
};

// One thread; needs an MpiSession that outlives it.
class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(const MpiOptions& options = {});
  ~MpiCommunicator() override;

  std::size_t rank() const override;
  std::size_t ranks() const override;
  void at(const char* block, const char* op, std::int64_t micro_batch) override;

  void all_reduce(const Members& members, const std::string& what, Stream stream, void* data, std::int64_t elements,
                  Dtype dtype) override;
  void all_gather(const Members& members, const std::string& what, Stream stream, const void* part, void* whole,
                  std::int64_t part_elements, Dtype dtype) override;
  void reduce_scatter(const Members& members, const std::string& what, Stream stream, const void* whole, void* part,
                      std::int64_t part_elements, Dtype dtype) override;
  void all_to_all(const Members& members, const std::string& what, Stream stream, const void* from, void* to,
                  std::int64_t part_elements, Dtype dtype) override;
  void all_to_all_v(const Members& members, const std::string& what, Stream stream, const void* from,
                    std::span<const std::int64_t> sends, void* to, std::span<const std::int64_t> receives,
                    Dtype dtype) override;
  void permute(const Members& members, const std::string& what, Stream stream, const void* from, void* to,
               std::int64_t elements, Dtype dtype, std::size_t to_member, std::size_t from_member) override;
  std::vector<std::vector<double>> gather_values(const Members& members, const std::string& what,
                                                 std::vector<double> values) override;
  // From the first member; not part of the contract, as no Program broadcasts.
  void broadcast(const Members& members, const std::string& what, void* data, std::int64_t elements);

  void send(std::size_t to, const MessageTag& tag, Stream stream, const void* data, std::int64_t elements,
            Dtype dtype) override;
  void receive(std::size_t from, const MessageTag& tag, Stream stream, void* data, std::int64_t elements,
               Dtype dtype) override;

  // Says on standard error what failed and ends all ranks (MPI_Abort): does not return.
  [[noreturn]] void fail(std::exception_ptr failure) override;
  void finish() override;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace orrery
