#include "realrun/calibrate/nccl_log.h"

#include "tests/fuzz/targets.h"

void orrery::fuzz::nccl_log(std::string_view input) {
  for (const bool in_place : {false, true}) {
    const CollectiveCurve curve =
        parse_nccl_log(std::string(input), "all_reduce.log", {.in_place = in_place, .collective = {}});
    require(curve.ranks > 0 && curve.nodes > 0 && !curve.points.empty(), "a log is of ranks, and has points");
    for (const CollectivePoint& point : curve.points) require(point.seconds > 0, "a collective takes time");
  }
}
