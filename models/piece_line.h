// Fills ModelPieces with pieces and runs in order, and reuses the storage of the pieces that were there.
#pragma once

#include <utility>
#include <vector>

#include "models/layers.h"

namespace orrery {

class PieceLine {
 public:
  explicit PieceLine(ModelPieces& into) : into_(into) { into_.runs.clear(); }
  ~PieceLine() { into_.pieces->resize(used_); }
  PieceLine(const PieceLine&) = delete;
  PieceLine& operator=(const PieceLine&) = delete;

  // Adds a piece that build(piece) fills. Returns its index in the table.
  template <class Build>
  std::uint16_t piece(const char* name, Build&& build) {
    if (used_ == into_.pieces->size()) into_.pieces->emplace_back();
    Piece& piece = (*into_.pieces)[used_];
    piece.clear();
    piece.name = name;
    build(piece);
    return static_cast<std::uint16_t>(used_++);
  }
  void run(std::uint16_t piece, std::int64_t count) { into_.runs.push_back({piece, count}); }
  template <class Build>
  void add(const char* name, std::int64_t count, Build&& build) {
    run(piece(name, std::forward<Build>(build)), count);
  }

 private:
  ModelPieces& into_;
  std::size_t used_ = 0;
};

}  // namespace orrery
