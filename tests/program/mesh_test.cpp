// Are axes folded over the digits of others as ranks lie, whatever cuts the digits?
#include "sim/program/mesh.h"

#include <gtest/gtest.h>

#include <set>

namespace orrery {
namespace {

// By definition: of all ranks but those of pp, counted from neighbours outwards.
void expect_folded(const Mesh& mesh, MeshAxis axis, std::int64_t inner, std::int64_t size) {
  const MeshGroup stages = mesh.group(MeshAxis::pp), group = mesh.group(axis);
  ASSERT_EQ(mesh.size(group), size);
  MeshGroup others;
  for (int d = 0; d < static_cast<int>(mesh.digits().size()); ++d)
    if (!stages.contains(d)) others = others | MeshGroup::of_digit(d);
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const std::int64_t place = mesh.coordinate(rank, others);
    EXPECT_EQ(mesh.coordinate(rank, group), place / inner % size) << rank;
  }
}

TEST(MeshFold, LaysAnAxisOverRanksOfOthers) {
  // tp, cp, dp_shard, dp_replicate, pp; etp, ep.
  struct Case {
    std::int64_t tp, cp, shard, replicate, pp, etp, ep;
  };
  for (const Case& c : {Case{2, 1, 8, 1, 1, 1, 8}, Case{2, 1, 8, 1, 4, 2, 4}, Case{8, 1, 4, 1, 1, 1, 16},
                        Case{4, 2, 4, 2, 2, 2, 8}, Case{1, 1, 64, 1, 16, 1, 64}, Case{2, 3, 4, 1, 1, 1, 6},
                        Case{8, 1, 2, 1, 1, 1, 4}, Case{4, 1, 4, 1, 1, 8, 2}}) {
    for (const bool pipeline_inside : {false, true}) {
      Mesh mesh;
      mesh.add(MeshAxis::tp, c.tp);
      if (pipeline_inside) mesh.add(MeshAxis::pp, c.pp);
      mesh.add(MeshAxis::cp, c.cp);
      mesh.add(MeshAxis::dp_shard, c.shard);
      mesh.add(MeshAxis::dp_replicate, c.replicate);
      if (!pipeline_inside) mesh.add(MeshAxis::pp, c.pp);
      const Mesh before = mesh;
      ASSERT_TRUE(mesh.fold(MeshAxis::etp, 1, c.etp));
      ASSERT_TRUE(mesh.fold(MeshAxis::ep, c.etp, c.ep));
      expect_folded(mesh, MeshAxis::etp, 1, c.etp);
      expect_folded(mesh, MeshAxis::ep, c.etp, c.ep);
      EXPECT_FALSE(mesh.group(MeshAxis::ep).meets(mesh.group(MeshAxis::etp)));
      // What was laid before lies where it lay.
      EXPECT_EQ(mesh.ranks(), before.ranks());
      for (const MeshAxis axis :
           {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::pp})
        for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank)
          EXPECT_EQ(mesh.coordinate(rank, axis), before.coordinate(rank, axis)) << name_of(axis) << " " << rank;
    }
  }
}

TEST(MeshFold, LaysNothingWhereADigitCannotBeCut) {
  Mesh mesh;
  mesh.add(MeshAxis::tp, 4);
  mesh.add(MeshAxis::dp_shard, 6);
  EXPECT_FALSE(mesh.fold(MeshAxis::ep, 1, 3));   // cuts tp
  EXPECT_FALSE(mesh.fold(MeshAxis::ep, 2, 3));   // begins within tp, ends within dp_shard
  EXPECT_FALSE(mesh.fold(MeshAxis::ep, 1, 48));  // more than there are
  EXPECT_EQ(mesh.digits().size(), 2u);
  EXPECT_TRUE(mesh.group(MeshAxis::ep).empty());
  EXPECT_TRUE(mesh.fold(MeshAxis::ep, 4, 3));
  EXPECT_EQ(mesh.stride(MeshAxis::ep), 4);
  EXPECT_EQ(mesh.digits().size(), 3u);
}

}  // namespace
}  // namespace orrery
