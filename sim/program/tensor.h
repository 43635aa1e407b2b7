// A tensor as one rank holds it: local shape, dtype, category, place. Dimensions carry the axis of the model they run
// along, so that a strategy can shard "every dimension along the heads" without knowing which layer it is in. Also
// here: dtypes, indices into a Program's tables (TableIndex), and bytes added up by place and category (PlacedBytes).
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "sim/program/layout.h"

namespace orrery {

// An optional index into one of a Program's tables. Takes one byte. T is the type of the table's entries: it keeps
// indices of different tables apart.
template <class T>
class TableIndex {
 public:
  static constexpr std::size_t kMost = 255;  // entries

  constexpr TableIndex() = default;
  // Throws std::logic_error for an index of kMost or more.
  explicit constexpr TableIndex(std::size_t index) : behind_(static_cast<std::uint8_t>(index + 1)) {
    if (index >= kMost) throw std::logic_error("a table of a Program has more than 255 entries");
  }
  constexpr bool has_value() const { return behind_ != 0; }
  constexpr std::size_t value() const { return behind_ - 1u; }  // REQUIRES: has_value()
  constexpr auto operator<=>(const TableIndex&) const = default;

 private:
  std::uint8_t behind_ = 0;
};

// The dtypes whose names do not say what they are:
//   fp8         e4m3 (OCP Microscaling Formats 1.0)
//   nvfp4       e2m1; a scale in e4m3 for each 16 elements (NVIDIA 2025, arXiv 2509.25149, section 2)
//   fp8_blocks  e4m3; a scale in fp32 for each 128 elements (DeepSeek-V3, arXiv 2412.19437, section 3.3.2)
//   mxfp8       e4m3; a scale of 8 bits for each 32 elements (OCP Microscaling Formats 1.0, section 5.2)
//   nf4         codes of 4 bits; a scale in 8 bits for each 64 elements, and one in fp32 for each 256 of these scales
//               (QLoRA, arXiv 2305.14314, section 3)
//   int4, int8, sign   codes of 4, 8 and 1 bits. Codes that travel have their scales in another tensor
//               (OpKind::quantise); scales of quantised optimizer states are not modelled.
enum class Dtype : std::uint8_t {
  fp32,
  fp16,
  bf16,
  fp8,
  nvfp4,
  int64,
  int32,
  uint8,
  int4,
  fp8_blocks,
  int8,
  sign,
  nf4,
  mxfp8
};
inline constexpr int kDtypes = 14;

// Bits of one element, without its block's scale. At namespace scope: a local array would be built in each call.
inline constexpr std::array<std::uint8_t, kDtypes> kBits{32, 16, 16, 8, 4, 64, 32, 8, 4, 8, 8, 1, 4, 8};
constexpr std::int64_t bits_of(Dtype dtype) { return kBits[static_cast<std::size_t>(dtype)]; }
// Returns how many elements share a scale that is stored beside them; 0: there is no scale. The scale of a whole tensor
// (fp8 has one) does not count.
constexpr std::int64_t block_of(Dtype dtype) {
  return dtype == Dtype::nvfp4        ? 16
         : dtype == Dtype::mxfp8      ? 32
         : dtype == Dtype::nf4        ? 64
         : dtype == Dtype::fp8_blocks ? 128
                                      : 0;
}
// Returns the bytes of `elements` contiguous elements, rounded up to whole bytes and blocks, with their scales.
constexpr std::int64_t bytes_of(Dtype dtype, std::int64_t elements) {
  constexpr std::int64_t kByte = 8;
  const std::int64_t codes = (elements * bits_of(dtype) + kByte - 1) / kByte, block = block_of(dtype);
  if (block == 0) return codes;
  const std::int64_t scales = (elements + block - 1) / block, fp32 = 4, scales_of_a_scale = 256;
  if (dtype == Dtype::fp8_blocks) return codes + scales * fp32;
  return codes + scales + (dtype == Dtype::nf4 ? (scales + scales_of_a_scale - 1) / scales_of_a_scale * fp32 : 0);
}
const char* name_of(Dtype dtype);

// The purpose of a byte of memory. Every tensor has exactly one.
enum class Category : std::uint8_t {
  parameter,
  gradient,
  optimizer_state,
  activation,            // saved by a forward block for a backward block, or alive inside a block
  communication_buffer,  // gathered inputs, ring buffers
  workspace,             // library scratch, unfused temporaries
};
inline constexpr int kCategories = 6;
const char* name_of(Category category);

// Where bytes lie: in a device's own memory, or in memory or storage that the devices of a node share.
enum class Place : std::uint8_t { device, host, storage };
inline constexpr int kPlaces = 3;
const char* name_of(Place place);

// The data that a tensor which no op writes receives from outside, with each micro-batch.
enum class Input : std::uint8_t {
  none,
  tokens,          // token ids of the first stack
  decoder_tokens,  // token ids of the second stack
  targets,         // targets of the loss
  next_targets,    // targets of the loss on the token after the next (multi-token prediction)
  token_types,     // segment ids (BERT)
  next_sentence,   // targets of BERT's next-sentence classifier
  patches,         // image patches: numbers, not ids
  distances,       // buckets of relative positions, for all keys
  past_distances,  // buckets of relative positions, for the keys that a causal mask leaves
  sinusoids,       // sinusoids of relative positions: numbers, for all keys
  directions,      // of a power iteration, before its first step: numbers that all differ
  preconditioner,  // what multiplies each parameter's momentum, as earlier steps have left it: positive numbers
  learning_rate,   // one number: the learning rate of the run's optimizer
};

// The axis of the model that a dimension runs along.
enum class Axis : std::uint8_t {
  none,          // never sharded
  batch,         // sequences of one micro-batch
  sequence,      // positions of the (query) sequence
  key_sequence,  // positions of the sequence attended to
  hidden,        // the residual width
  groups,        // key/value head groups: MHA one head each, GQA several, MQA a single group
  group_heads,   // query heads within a group
  group_qkv,     // a fused QKV projection: the group's query heads, its key and its value
  head_dim,
  ffn,            // the MLP's inner width
  vocab,          // rows of the embedding, columns of the logits
  experts,        // the experts of a layer
  slots,          // the slots of one expert, each of which takes one token
  expert_ffn,     // an expert's inner width
  chunks,         // chunks of slots that go through exchanges and experts one after the other; never sharded
  contributions,  // what each rank of a group adds to a sum that this rank is to take; never sharded
};
inline constexpr int kAxes = 16;
const char* name_of(Axis axis);

struct Dim {
  std::int64_t size = 1;
  Axis axis = Axis::none;
};

struct Load;

using TensorId = std::uint16_t;
inline constexpr TensorId kNoTensor = 0xffff;

struct Tensor {
  static constexpr int kMaxRank = 6;

  const char* name = "";                                       // static storage
  std::array<std::int64_t, kMaxRank> sizes{1, 1, 1, 1, 1, 1};  // 1 beyond the rank
  std::array<Axis, kMaxRank> axes{};
  std::uint8_t rank = 0;
  Dtype dtype = Dtype::bf16;
  Category category = Category::activation;
  Place place = Place::device;
  Input input = Input::none;

  // How the dimensions are divided over the mesh; `sizes` are those of one rank's part. Ranks that differ only in a
  // digit that divides no dimension hold equal values, or partial sums that are still to be reduced
  // (sim/program/check.h).
  std::uint8_t kept = 0;  // Deal::query_heads: number of last indices, those of key and value, that every rank has
  std::array<Division, kMaxRank> over{};
  // For rows that an unequal exchange has brought to their ranks (tokens at their experts): their load in
  // Program::loads. `sizes` are then those of the rank with the most rows. Unset: all ranks have equally many rows.
  TableIndex<Load> load;
  std::array<Deal::Kind, kMaxRank> deals{};
  const DealTable* table = nullptr;  // the one table of all dimensions that are dealt by a table
  Deal deal(int dim) const { return {deals[dim], deals[dim] == Deal::by_table ? table : nullptr}; }
  // Throws std::logic_error if another dimension is already dealt by another table.
  void set_deal(int dim, Deal deal) {
    deals[dim] = Deal::contiguous;
    const bool others = std::ranges::find(deals, Deal::by_table) != deals.end();
    if (others && deal.table != nullptr && deal.table != table)
      throw std::logic_error("a tensor is dealt by two tables");
    deals[dim] = deal.kind;
    if (!others) table = deal.table;
  }
  bool is_dealt_as(const Tensor& other) const { return deals == other.deals && table == other.table; }
  MeshGroup divided_over() const {  // the digits that divide any dimension
    MeshGroup group;
    for (int d = 0; d < rank; ++d) group = group | over[d].group();
    return group;
  }

  // True: lives for the whole step (parameters, their main gradients, optimizer states). False: lives from its
  // definition to its last use.
  bool resident = false;
  // True: the tensor belongs to another piece of the same stage (a tied embedding table) and adds no memory here. If
  // that piece gathers its tensor, this piece reads the gathered copy as well.
  bool shared : 1 = false;
  // True: other pieces of the stage use this tensor as `shared`. Unless it is resident, it lives from the first use by
  // any of these pieces to the last.
  bool lent : 1 = false;
  // True: workers that train copies of the model that differ (MeshAxis::worker) all have the same values of it.
  bool common : 1 = false;
  // The tensor of which this one is a view (a slice of a flat buffer, a part of a fused QKV, a reshape). A view adds no
  // bytes; its storage lives until the last use of any view. `alias_begin` is where a slice begins: an element of a
  // flat buffer, or an index along the sliced dimension (group_qkv, sequence).
  TensorId alias_of = kNoTensor;
  std::int64_t alias_begin = 0;
  // For a tensor that is a chunk of the sequence: the position in the sequence where it begins. The ranks' parts are
  // dealt out of the chunk.
  std::int64_t sequence_begin = 0;

  // Keeps the first `dims` dimensions.
  void truncate(int dims) {
    while (rank > dims) sizes[--rank] = 1;
  }
  // REQUIRES: fewer than kMaxRank dimensions.
  void append(const Dim& dim) {
    sizes[rank] = dim.size;
    axes[rank] = dim.axis;
    ++rank;
  }

  std::int64_t elements() const {
    static_assert(kMaxRank == 6);
    return sizes[0] * sizes[1] * (sizes[2] * sizes[3]) * (sizes[4] * sizes[5]);  // hottest call: no loop
  }
  std::int64_t bytes() const { return bytes_of(dtype, elements()); }

  // Returns the position of the first dimension along `axis`, or -1.
  int find(Axis axis) const {
    for (int i = 0; i < rank; ++i)
      if (axes[i] == axis) return i;
    return -1;
  }
};

// Bytes by the place where they lie and by category.
using CategoryBytes = std::array<double, kCategories>;

struct PlacedBytes {
  std::array<CategoryBytes, kPlaces> places{};

  CategoryBytes& at(Place place) { return places[static_cast<std::size_t>(place)]; }
  const CategoryBytes& at(Place place) const { return places[static_cast<std::size_t>(place)]; }
  double& of(Place place, Category category) { return at(place)[static_cast<std::size_t>(category)]; }
  double of(Place place, Category category) const { return at(place)[static_cast<std::size_t>(category)]; }
  double in(Place place) const {
    double sum = 0;
    for (const double bytes : at(place)) sum += bytes;
    return sum;
  }
  bool operator==(const PlacedBytes&) const = default;
};

// a + factor * b
inline PlacedBytes sum(PlacedBytes a, const PlacedBytes& b, double factor = 1) {
  for (std::size_t p = 0; p < kPlaces; ++p)
    for (std::size_t c = 0; c < kCategories; ++c) a.places[p][c] += factor * b.places[p][c];
  return a;
}
inline PlacedBytes& operator+=(PlacedBytes& a, const PlacedBytes& b) { return a = sum(a, b); }
inline PlacedBytes operator*(const PlacedBytes& a, double factor) { return sum({}, a, factor); }
inline double device_bytes(const PlacedBytes& bytes) { return bytes.in(Place::device); }

// The granularity of each place's allocator: sizes are rounded up to a multiple of these bytes; 0: no rounding.
struct Granularity {
  constexpr Granularity(double everywhere) { bytes.fill(everywhere); }  // NOLINT: a number stands for all places
  std::array<double, kPlaces> bytes{};
};

}  // namespace orrery
