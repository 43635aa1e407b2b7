// Folding: the coarsest equitable partition of a graph, by colour refinement (1-dimensional Weisfeiler-Leman; Grohe et
// al. 2014, "Dimension reduction via colour refinement"). Vertices of one class have equal colours and equally many
// neighbours of each class. A max-min fair network of flows and links that is folded this way has the rates of the
// whole network: the average of the whole network's unique solution over the classes is still feasible and still fair.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

class ColourRefinement {
 public:
  using Vertex = std::uint32_t;
  using Colour = std::uint64_t;

  // Vertices are numbered 0, 1, ... in the order of these calls.
  Vertex add_vertex(Colour colour) {
    colours_.push_back(colour);
    return static_cast<Vertex>(colours_.size() - 1);
  }
  std::size_t vertices() const { return colours_.size(); }
  // Adds an undirected edge; parallel edges count.
  void add_edge(Vertex a, Vertex b) { edges_.push_back({a, b}); }

  // The class of each vertex: 0, 1, ... in the order of their first vertex. Colours that are equal at the end share a
  // class. Deterministic. Time and memory proportional to vertices and edges, times the rounds it takes (typically
  // below ten; at most as many as classes).
  std::vector<std::uint32_t> refine() { return refine(0, 0); }
  // The same, but returns an empty vector as soon as the first `watched` vertices have more than `most` colours, for
  // callers that cannot use more.
  std::vector<std::uint32_t> refine(std::size_t watched, std::size_t most);

 private:
  struct Edge {
    Vertex a, b;
  };
  std::vector<Colour> colours_;
  std::vector<Edge> edges_;
};

// Mixes values into a colour; order matters.
ColourRefinement::Colour mix_colour(ColourRefinement::Colour seed, std::uint64_t value);
ColourRefinement::Colour mix_colour(ColourRefinement::Colour seed, double value);
// The amount that a vertex of this colour adds to its neighbours' sums.
ColourRefinement::Colour scatter_colour(ColourRefinement::Colour colour);

// Numbers equal colours 0, 1, ... in the order in which they first appear.
std::vector<std::uint32_t> classes_of(std::span<const ColourRefinement::Colour> colours);

}  // namespace orrery
