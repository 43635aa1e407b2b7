// Bytes by the place where they lie and by category.
#pragma once

#include <array>

#include "sim/program/tensor.h"

namespace orrery {

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
