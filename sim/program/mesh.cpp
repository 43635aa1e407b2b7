#include "sim/program/mesh.h"

namespace orrery {

std::int64_t Mesh::stride(MeshAxis axis) const {
  std::int64_t stride = 1;
  for (MeshAxis inner : order) {
    if (inner == axis) break;
    stride *= size(inner);
  }
  return stride;
}

std::int64_t Mesh::ranks() const {
  std::int64_t n = 1;
  for (std::int64_t d : degree) n *= d;
  return n;
}

std::int64_t Mesh::group_size(MeshAxes axes) const {
  std::int64_t n = 1;
  for (int i = 0; i < kMeshAxes; ++i)
    if (axes.contains(static_cast<MeshAxis>(i))) n *= degree[static_cast<std::size_t>(i)];
  return n;
}

Mesh cut_innermost(const Mesh& mesh, std::int64_t neighbours) {
  Mesh cut = mesh;
  cut.size(mesh.order[1]) *= mesh.size(mesh.order[0]) / neighbours;
  cut.size(mesh.order[0]) = neighbours;
  return cut;
}

}  // namespace orrery
