#include "realrun/calibrate/nccl_log.h"

#include "tests/fuzz/targets.h"

void orrery::fuzz::nccl_log(std::string_view input) {
  for (const bool in_place : {false, true}) {
    const CollectiveLog log =
        parse_nccl_log(std::string(input), "all_reduce.log", {.in_place = in_place, .collective = {}});
    require(!log.curves.empty(), "a log has a test");
    for (const CollectiveCurve& curve : log.curves) {
      require(curve.ranks > 1 && curve.hosts > 0 && !curve.points.empty(), "a test is of ranks, and has points");
      require(curve.ranks % curve.hosts == 0, "a test has as many ranks on every host");
      for (const CollectivePoint& point : curve.points) require(point.seconds > 0, "a collective takes time");
    }
  }
}
