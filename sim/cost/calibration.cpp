#include "sim/cost/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using Where = InputError::Where;

constexpr std::string_view kFolder = "results/calibration/";
constexpr std::array<Dtype, 5> kMatrixDtypes{Dtype::fp32, Dtype::fp16, Dtype::bf16, Dtype::fp8, Dtype::nvfp4};

std::string path_of(std::string_view name) { return fmt::format("{}{}.json", kFolder, name); }

// Whether it is a device's file: borrowed.json and the files of collectives and steps lie in the same folder.
bool is_device_file(std::string_view name) {
  return name != "borrowed" && name != "scale" && !name.starts_with("steps") && !name.starts_with("collective");
}

double need_number(JsonReader& reader, const char* key, NumberRange range) {
  if (!reader.has(key)) reader.fail(key, "a number");
  double value = 0;
  reader.field(key, value, range, "");
  return value;
}

Residual read_residual(JsonReader& reader, const char* key = "residual") {
  Residual residual;
  reader.object(key, [&](JsonReader& r) {
    r.field("points", residual.points, at_least(0), "");
    r.field("median", residual.median, NumberRange{}, "");
    r.field("percentile_90", residual.percentile_90, NumberRange{}, "");
    r.field("geometric_std", residual.geometric_std, NumberRange{}, "");
    r.field("bias", residual.bias, NumberRange{.least = -1}, "");
  });
  return residual;
}

// Rows of `columns` positive integers.
std::vector<std::array<std::int64_t, 3>> read_rows(const Json& json, const Where& where, std::size_t columns,
                                                   const char* expected) {
  if (!json.is_array()) throw InputError(where, describe(json), "an array");
  std::vector<std::array<std::int64_t, 3>> rows;
  rows.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const Json& row = json[i];
    const auto fail = [&] {
      throw InputError({where.file, fmt::format("{}/{}", where.pointer, i)}, describe(row), expected);
    };
    if (!row.is_array() || row.size() != columns) fail();
    auto& values = rows.emplace_back();
    for (std::size_t j = 0; j < columns; ++j) {
      if (!row[j].is_number_integer()) fail();
      values[j] = row[j].get<std::int64_t>();
      if (values[j] < 1) fail();
    }
  }
  return rows;
}

template <class Curve>
void read_numbers(JsonReader& reader, Curve& curve) {
  for (const CurveNumber<Curve>& number : numbers_of(curve)) {
    if (number.needed && !reader.has(number.name)) reader.fail(number.name, "a number");
    reader.field(number.name, curve.*number.value, number.range, "");
  }
}

MatmulCurve read_matmul(const Json& json, const Where& where) {
  MatmulCurve curve;
  JsonReader reader(json, where);
  read_numbers(reader, curve);
  for (const auto& row : read_rows(reader.need("tiles", "an array of 1 to 8 tiles"), reader.at("tiles"), 2,
                                   "a tile [m, n] of positive integers"))
    curve.tiles.push_back({row[0], row[1]});
  if (curve.tiles.empty() || curve.tiles.size() > 8) reader.fail("tiles", "an array of 1 to 8 tiles");
  curve.residual = read_residual(reader);
  std::string from;
  reader.field("borrowed_from", from, "");
  curve.measured = from.empty();
  reader.finish();
  return curve;
}

template <class Curve>
Curve read_curve(const Json& json, const Where& where) {
  Curve curve;
  JsonReader reader(json, where);
  read_numbers(reader, curve);
  if constexpr (requires { curve.source; }) reader.field("source", curve.source, "");
  curve.residual = read_residual(reader);
  reader.finish();
  return curve;
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : ", \"") + name + '"';
  return text;
}

Calibration load(std::string_view device);

// The device of a section {"borrowed_from": device}, which must be a calibrated one that has the section; empty for any
// other section.
std::string lender_of(const Json& json, const Where& where) {
  std::string from;
  if (!json.is_object() || !json.contains("borrowed_from")) return from;
  JsonReader reader(json, where);
  reader.field("borrowed_from", from, "");
  reader.finish();
  const auto names = calibrated_devices();
  if (std::find(names.begin(), names.end(), from) == names.end())
    reader.fail("borrowed_from", "a calibrated device", nearest_name(from, names));
  return from;
}
std::optional<Calibration> borrowed_section(const Json& json, const Where& where) {
  const std::string from = lender_of(json, where);
  return from.empty() ? std::nullopt : std::optional(load(from));
}

// Types without a curve use bf16's, nvfp4 uses fp8's: the launch of kernels does not depend on the type.
void read_grouped(const Json& json, const Where& where, Calibration& calibration) {
  JsonReader reader(json, where);
  calibration.grouped.assign(kDtypes, {});
  const auto at = [&](Dtype dtype) -> GroupedCurve& { return calibration.grouped[static_cast<std::size_t>(dtype)]; };
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp8, Dtype::nvfp4}) {
    const Json* own = reader.take(name_of(dtype));
    if (own == nullptr) {
      at(dtype) = at(dtype == Dtype::nvfp4 ? Dtype::fp8 : Dtype::bf16);
    } else if (const std::string from = lender_of(*own, reader.at(name_of(dtype))); !from.empty()) {
      // Only that section: the lender's other sections may be borrowed from this device.
      const std::string file = path_of(from);
      const Json document = parse_embedded(file.c_str());
      const Json lent = document.value("grouped", Json::object()).value(name_of(dtype), Json());
      if (lent.is_null() || lent.contains("borrowed_from"))
        reader.fail(name_of(dtype), "borrowed from a device with curves of grouped products of its own");
      at(dtype) = read_curve<GroupedCurve>(lent, {file, fmt::format("/grouped/{}", name_of(dtype))});
      at(dtype).borrowed_from = from;
    } else {
      at(dtype) = read_curve<GroupedCurve>(*own, reader.at(name_of(dtype)));
    }
  }
  reader.object("issue", [&](JsonReader& r) {
    calibration.group_issue_seconds = need_number(r, "seconds", NumberRange{});
    std::string source;
    r.field("source", source, "");
  });
  reader.finish();
}

void read_attention(const Json& json, const Where& where, Calibration& calibration) {
  if (auto lender = borrowed_section(json, where)) {
    calibration.attention = std::move(lender->attention);
    calibration.attention_kernels = std::move(lender->attention_kernels);
    calibration.narrow_attention = std::move(lender->narrow_attention);
    calibration.attention_borrowed_from = lender->name;
    return;
  }
  JsonReader reader(json, where);
  std::string chosen;
  const Json& kernels = reader.need("kernels", "an object of attention curves by kernel");
  if (!kernels.is_object() || kernels.empty()) reader.fail("kernels", "an object of attention curves by kernel");
  std::vector<std::string> names;
  for (const auto& [name, curve] : kernels.items()) {
    names.push_back(name);
    calibration.attention_kernels.push_back(
        read_curve<AttentionCurve>(curve, {where.file, where.pointer + "/kernels/" + name}));
    calibration.attention_kernels.back().name = name;
  }
  if (!reader.has("default")) reader.fail("default", "one of " + quoted_list(names));
  reader.field("default", chosen, "");
  if (!use_attention_kernel(calibration, chosen))
    reader.fail("default", "one of " + quoted_list(names), nearest_name(chosen, names));
  reader.object("narrow", [&](JsonReader& narrow) {
    for (const Dtype dtype : {Dtype::fp8, Dtype::mxfp8})
      if (const Json* curve = narrow.take(name_of(dtype))) {
        calibration.narrow_attention.push_back(read_curve<AttentionCurve>(*curve, narrow.at(name_of(dtype))));
        calibration.narrow_attention.back().name = name_of(dtype);
        calibration.narrow_attention.back().dtype = dtype;
      }
  });
  reader.finish();
}

void read_memory_kinds(const Json& json, const Where& where, Calibration& calibration) {
  if (!json.is_object()) throw InputError(where, describe(json), "an object of curves by kind of op");
  const std::vector<std::string> names = memory_curve_names();
  for (const auto& [name, value] : json.items()) {
    const Where at{where.file, pointer_to(where.pointer, name)};
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw InputError(at, "unknown key \"" + name + '"', "a kind of memory-bound op", nearest_name(name, names));
    calibration.memory_kinds.push_back(read_curve<MemoryCurve>(value, at));
    calibration.memory_kinds.back().name = name;
  }
}

void read_memory(const Json& json, const Where& where, Calibration& calibration) {
  if (const auto lender = borrowed_section(json, where)) {
    calibration.memory_efficiency = lender->memory_efficiency;
    calibration.kernel_fixed_seconds = lender->kernel_fixed_seconds;
    calibration.memory_source = fmt::format("{} (of {})", lender->memory_source, lender->name);
    calibration.memory_residual = lender->memory_residual;
    calibration.memory_kinds = lender->memory_kinds;
    return;
  }
  JsonReader reader(json, where);
  calibration.memory_efficiency = need_number(reader, "efficiency", kEfficiency);
  reader.field("fixed_seconds", calibration.kernel_fixed_seconds, NumberRange{}, "");
  reader.field("source", calibration.memory_source, "");
  calibration.memory_residual = read_residual(reader);
  if (const Json* kinds = reader.take("kinds")) read_memory_kinds(*kinds, reader.at("kinds"), calibration);
  reader.finish();
}

Calibration load(std::string_view device) {
  const std::string file = path_of(device);
  return read_calibration(parse_embedded(file.c_str()), {file, ""});
}

// Scales the borrowed efficiency so that the formula gives one large GEMM that was measured on this device.
void apply_anchor(const Device& device, const Json& json, const Where& where, Calibration& calibration) {
  JsonReader reader(json, where);
  std::string dtype_name = "bf16", source;
  std::vector<std::int64_t> mnk;
  reader.field("dtype", dtype_name, "");
  reader.field("shape", mnk, at_least(1), "");
  const double seconds = need_number(reader, "seconds", positive());
  reader.field("source", source, "");
  reader.finish();
  if (mnk.size() != 3) reader.fail("shape", "[m, n, k]");
  // fp16, bf16 and fp32 are scaled together; narrower types by their own products only.
  const auto scaled_as = [](Dtype scaled) { return bits_of(scaled) < bits_of(Dtype::bf16) ? scaled : Dtype::bf16; };
  Dtype dtype = Dtype::bf16;
  for (const Dtype narrow : {Dtype::fp8, Dtype::nvfp4})
    if (dtype_name == name_of(narrow)) dtype = narrow;
  const GemmShape shape{1, mnk[0], mnk[1], mnk[2]};
  const auto bytes = static_cast<double>(bytes_of(dtype, shape.m * shape.k) + bytes_of(dtype, shape.k * shape.n) +
                                         bytes_of(Dtype::bf16, shape.m * shape.n));
  for (int round = 0; round < 3; ++round) {  // fixed and memory terms make one scaling approximate
    const double scale = KernelModel(device, calibration).matmul_seconds(shape, dtype, bytes) / seconds;
    for (const Dtype scaled : kMatrixDtypes) {
      if (scaled_as(scaled) != dtype) continue;
      MatmulCurve& curve = calibration.matmul[static_cast<std::size_t>(scaled)];
      curve.efficiency = std::min(1.0, curve.efficiency * scale);
      curve.sustained_efficiency = std::min(1.0, curve.sustained_efficiency * scale);
      curve.residual = {};
    }
  }
  calibration.note += fmt::format("; {} matmul efficiency scaled to one measured GEMM ({})", dtype_name, source);
}

// The pointer to the entry of borrowed.json that is for the device.
std::string entry_for(const Device& device, const Json& borrowed) {
  for (const auto& [table, key] :
       {std::pair{"devices", &device.name}, {"architectures", &device.architecture}, {"vendors", &device.vendor}})
    if (const auto entries = borrowed.find(table); entries != borrowed.end() && entries->contains(*key))
      return pointer_to(pointer_to("", table), *key);
  return "/any";
}

}  // namespace

std::vector<std::string> calibrated_devices() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_files(kFolder)) {
    std::string_view name = file.path.substr(kFolder.size());
    name.remove_suffix(std::string_view(".json").size());
    if (is_device_file(name)) names.emplace_back(name);
  }
  return names;
}

Calibration find_calibration(const Device& device) {
  const std::vector<std::string> calibrated = calibrated_devices();
  if (std::ranges::find(calibrated, device.name) != calibrated.end()) return load(device.name);

  const std::string file = path_of("borrowed");
  const Json borrowed = parse_embedded(file.c_str());
  const std::string entry = entry_for(device, borrowed);
  JsonReader reader(borrowed.at(Json::json_pointer(entry)), {file, entry});
  std::string from, why, attention_kernel;
  reader.field("from", from, "");
  reader.field("why", why, "");
  reader.field("attention_kernel", attention_kernel, "");

  Calibration calibration = load(from);
  calibration.measured = false;
  calibration.borrowed_from = from;
  calibration.borrowed_from_vendor = find_device(from).vendor;
  calibration.name = device.name;
  calibration.note = why;
  if (!attention_kernel.empty() && !use_attention_kernel(calibration, attention_kernel))
    reader.fail("attention_kernel", "a kernel measured on " + from);
  reader.object("memory_efficiency", [&](JsonReader& r) {
    calibration.memory_efficiency = need_number(r, "value", kEfficiency);
    r.field("source", calibration.memory_source, "");
    calibration.memory_residual = {};
  });
  if (const Json* anchors = reader.take("matmul_anchors")) {
    for (std::size_t i = 0; i < anchors->size(); ++i) {
      Where where = reader.at("matmul_anchors");
      where.pointer += fmt::format("/{}", i);
      apply_anchor(device, (*anchors)[i], where, calibration);
    }
  }
  reader.finish();
  return calibration;
}

Calibration read_calibration(const Json& json, const Where& where) {
  Calibration calibration;
  JsonReader reader(json, where);
  if (!reader.has("name")) reader.fail("name", "the name of a device");
  reader.field("name", calibration.name, "");
  reader.field("source", calibration.source, "");
  reader.field("date", calibration.date, "");
  reader.field("note", calibration.note, "");
  std::string method;
  reader.field("method", method, "");

  // The peaks against which the efficiencies were fitted: for readers of the file, and for the tests.
  reader.object("relative_to", [](JsonReader& r) {
    double rate = 0;
    std::int64_t count = 0;
    for (const Dtype dtype : kMatrixDtypes) r.field(name_of(dtype), rate, positive(), "");
    r.field("memory", rate, positive(), "");
    r.field("multiprocessors", count, at_least(1), "");
  });

  reader.take("device");  // sim/cost/user_calibration.h reads "device" and the key after it, and keeps the third
  reader.take("collectives");
  if (const Json* overlap = reader.take("overlap")) read_copy_overlaps(*overlap, reader.at("overlap"));

  const Json& matmul = reader.need("matmul", "matmul curves by dtype, bf16 at least");
  JsonReader curves(matmul, reader.at("matmul"));
  // Types without a curve of their own use bf16's, nvfp4 uses fp8's; on a device that multiplies only in fp32, all use
  // fp32's.
  const Dtype common = curves.has("bf16") || !curves.has("fp32") ? Dtype::bf16 : Dtype::fp32;
  calibration.matmul.assign(kDtypes,
                            read_matmul(curves.need(name_of(common), "a matmul curve"), curves.at(name_of(common))));
  for (const Dtype dtype : kMatrixDtypes) {
    if (dtype == common) continue;
    MatmulCurve& curve = calibration.matmul[static_cast<std::size_t>(dtype)];
    if (const Json* own = curves.take(name_of(dtype))) {
      curve = read_matmul(*own, curves.at(name_of(dtype)));
    } else {
      if (dtype == Dtype::nvfp4) curve = calibration.matmul[static_cast<std::size_t>(Dtype::fp8)];
      curve.measured = common == Dtype::bf16 && dtype == Dtype::fp16;  // the same units at the same rate as bf16
    }
  }
  curves.finish();

  if (const Json* grouped = reader.take("grouped")) read_grouped(*grouped, reader.at("grouped"), calibration);
  read_memory(reader.need("memory", "the curve of memory-bound kernels"), reader.at("memory"), calibration);
  if (calibration.memory_source.empty()) calibration.memory_source = calibration.source;
  read_attention(reader.need("attention", "the attention curves"), reader.at("attention"), calibration);
  reader.field("overlap_slowdown", calibration.overlap_slowdown, kAtMostOne, "");
  reader.field("overlap_source", calibration.overlap_source, "");
  reader.object("host", [&](JsonReader& r) {
    r.field("processors", calibration.host_processors, at_least(1), "");
    r.field("busy_share", calibration.busy_share, kEfficiency, "");
  });

  const auto read_shapes = [&](const char* key, std::vector<MeasuredShape>& measured) {
    reader.object(key, [&](JsonReader& by_dtype) {
      for (const Dtype dtype : kMatrixDtypes)
        if (const Json* rows = by_dtype.take(name_of(dtype)))
          for (const auto& row :
               read_rows(*rows, by_dtype.at(name_of(dtype)), 3, "a shape [m, n, k] of positive integers"))
            measured.push_back({dtype, row[0], row[1], row[2]});
    });
  };
  read_shapes("measured_shapes", calibration.measured_shapes);
  read_shapes("measured_groups", calibration.measured_groups);
  if (const Json* shapes = reader.take("measured_attention"))
    for (const auto& row :
         read_rows(*shapes, reader.at("measured_attention"), 2, "a shape [sequence, head_dim] of positive integers"))
      calibration.measured_attention.push_back({row[0], row[1]});
  reader.finish();
  return calibration;
}

std::optional<CopyOverlaps> read_copy_overlaps(const Json& json, const Where& where) {
  JsonReader reader(json, where);
  if (reader.has("not_measured")) {
    std::string why;
    reader.field("not_measured", why, "");
    reader.finish();
    return std::nullopt;
  }
  CopyOverlaps overlaps;
  reader.field("source", overlaps.source, "");
  const auto direction = [&](const char* name, CopyOverlap& overlap) {
    JsonReader r(reader.need(name, "the slow-downs of a product and a copy"), reader.at(name));
    overlap.product_slowdown = need_number(r, "product_slowdown", NumberRange{});
    overlap.copy_slowdown = need_number(r, "copy_slowdown", NumberRange{});
    overlap.product_residual = read_residual(r, "product_residual");
    overlap.copy_residual = read_residual(r, "copy_residual");
    r.finish();
  };
  direction("copy_to_device", overlaps.to_device);
  direction("copy_to_host", overlaps.to_host);
  if (const Json* rows = reader.take("attention")) {
    const Where at = reader.at("attention");
    if (!rows->is_array()) reader.fail("attention", "an array of attentions beside copies");
    for (std::size_t i = 0; i < rows->size(); ++i) {
      JsonReader r((*rows)[i], {at.file, fmt::format("{}/{}", at.pointer, i)});
      AttentionOverlap& row = overlaps.attention.emplace_back();
      r.field("attention", row.attention, "");
      r.field("copy", row.copy, "");
      row.attention_seconds = need_number(r, "attention_seconds", positive());
      row.attention_slowdown = need_number(r, "attention_slowdown", NumberRange{});
      row.copy_bytes_per_second = need_number(r, "copy_bytes_per_second", positive());
      row.copy_slowdown = need_number(r, "copy_slowdown", NumberRange{});
      r.finish();
    }
  }
  reader.finish();
  return overlaps;
}

bool use_attention_kernel(Calibration& calibration, std::string_view kernel) {
  for (const AttentionCurve& curve : calibration.attention_kernels) {
    if (curve.name != kernel) continue;
    calibration.attention = curve;
    return true;
  }
  return false;
}

}  // namespace orrery
