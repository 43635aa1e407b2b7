#include "sim/cost/user_calibration.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

bool is_of_collectives(const Json& json) {
  return json.is_object() && (json.contains("node_classes") || json.contains("network_classes"));
}

template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void UserCalibration::apply(Cluster& cluster) const {
  if (device) cluster.device = *device;
}

Calibration UserCalibration::kernels_of(const Device& wanted) const {
  Calibration calibration = *kernels;
  if (calibration.name == wanted.name) return calibration;
  calibration.measured = false;
  calibration.borrowed_from = std::exchange(calibration.name, wanted.name);
  calibration.note = "given by --calibration";
  return calibration;
}

UserCalibration read_user_calibration(const Json& json, const InputError::Where& where) {
  UserCalibration user;
  if (is_of_collectives(json)) {
    user.collectives = read_collective_classes(json, where);
    return user;
  }
  if (json.is_object() && !json.contains("name"))
    throw InputError(where, "neither a calibration of kernels nor one of collectives",
                     "a file from `orrery calibrate`, for a device's kernels or for collectives");
  user.kernels = read_calibration(json, where);
  if (const auto device = json.find("device"); device != json.end()) {
    const InputError::Where at{where.file, where.pointer + "/device"};
    user.device = read_device(*device, at);
    if (user.device->name != user.kernels->name)
      throw InputError({where.file, at.pointer + "/name"}, describe(user.device->name),
                       fmt::format("\"{}\", the name of the calibration", user.kernels->name));
  }
  if (const auto overlap = json.find("overlap"); overlap != json.end())
    user.copy_overlaps = read_copy_overlaps(*overlap, {where.file, where.pointer + "/overlap"});
  if (const auto collectives = json.find("collectives"); collectives != json.end())
    user.collectives = read_collective_classes(*collectives, {where.file, where.pointer + "/collectives"});
  return user;
}

UserCalibration read_user_calibration(std::span<const std::string> paths) {
  UserCalibration all;
  for (const std::string& path : paths) {
    UserCalibration one = read_user_calibration(parse_json_file(path), {path, ""});
    if (one.kernels) {
      if (all.kernels)
        throw InputError({path, ""}, "a second calibration of kernels",
                         "one file with kernels; others may hold collectives");
      all.kernels = std::move(one.kernels);
      all.device = std::move(one.device);
    }
    append(all.collectives.node_classes, std::move(one.collectives.node_classes));
    append(all.collectives.network_classes, std::move(one.collectives.network_classes));
  }
  return all;
}

double rank_share(const Calibration& calibration, std::int64_t ranks) {
  const std::int64_t processors = calibration.host_processors;
  if (processors == 0 || ranks <= 1) return 1;
  if (ranks > processors) return calibration.busy_share * static_cast<double>(processors) / static_cast<double>(ranks);
  return 1 - (1 - calibration.busy_share) * static_cast<double>(ranks - 1) / static_cast<double>(processors - 1);
}

void take_share(double share, Device& device, Calibration& calibration) {
  if (!(share > 0 && share <= 1))
    throw InputError({}, fmt::format("a share of {}", share), "a share of a device above 0 and at most 1");
  for (double& peak : device.peak_flops_per_second) peak *= share;
  for (double* rate : {&device.vector_flops_per_second, &device.memory_bytes_per_second}) *rate *= share;
  for (MatmulCurve& curve : calibration.matmul)
    for (double* seconds : {&curve.fixed_seconds, &curve.sustained_seconds}) *seconds /= share;
  calibration.attention.fixed_seconds /= share;
  for (auto* curves : {&calibration.attention_kernels, &calibration.narrow_attention})
    for (AttentionCurve& curve : *curves) curve.fixed_seconds /= share;
  calibration.kernel_fixed_seconds /= share;
  for (MemoryCurve& curve : calibration.memory_kinds) curve.fixed_seconds /= share;
}

}  // namespace orrery
