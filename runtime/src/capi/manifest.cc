#include "capi/manifest.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "capi/dtypes.h"
#include "capi/failure.h"
#include "capi/json.h"
#include "capi/sha256.h"
#include "capi/signature.h"

namespace needle::capi {

namespace {

constexpr uint64_t kLargestManifest = 64 << 20;  // bytes
constexpr int64_t kFormat = 2;
// Pairs of TVM and tvm_ffi whose code this runtime runs.
constexpr struct {
  const char *tvm, *tvm_ffi;
} kRuns[] = {
#include "runs.inc"
};

void expect(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

std::string checked_name(const std::string& name, const char* what) {
  for (const char letter : name) expect(static_cast<unsigned char>(letter) >= ' ', what);
  return name;
}

Extent extent_of(const json::ffi::Any& entry, const std::vector<Dim>& dims) {
  if (const auto number = entry.as<int64_t>()) return Extent(*number);
  return Extent(json::as<json::ffi::String>(entry, "extent"), dims);
}

Shape shape_of(const json::Array& entry, const std::vector<Dim>& dims) {
  Shape shape;
  for (const auto& each : entry) {
    shape.push_back(extent_of(each, dims));
    expect(shape.back().is_open() || shape.back().at({}) >= 0, "shape");
  }
  expect(shape.size() <= 64, "shape");
  return shape;
}

std::vector<ArraySpec> specs_of(const json::Object& entry, const char* kind,
                                const std::vector<Dim>& dims) {
  std::vector<ArraySpec> specs;
  for (const auto& each : json::get<json::Array>(entry, kind)) {
    const auto fields = json::as<json::Object>(each, kind);
    ArraySpec spec;
    const bool is_output = std::string(kind) == "outputs";
    spec.name = is_output && !json::find(fields, "name")
                    ? "output." + std::to_string(specs.size())
                    : checked_name(json::text(fields, "name"), "name");
    spec.shape = shape_of(json::get<json::Array>(fields, "shape"), dims);
    const std::string dtype = json::text(fields, "dtype");
    const auto known = find_dtype(&Dtype::name, dtype);
    if (!known) throw std::invalid_argument("dtype " + quote(dtype));
    spec.dtype = *known;
    if (const auto range = json::find(fields, "range")) {
      const auto ends = json::as<json::Array>(*range, "range");
      expect(ends.size() == 2, "range");
      spec.range.emplace(extent_of(ends[0], dims), extent_of(ends[1], dims));
    }
    int64_t bytes = static_cast<int64_t>(needle_dtype_size(spec.dtype));
    for (const Extent& extent : spec.shape) {
      spec.described.push_back(extent.is_open() ? -1 : extent.at({}));
      if (!extent.is_open())
        expect(!__builtin_mul_overflow(bytes, std::max<int64_t>(extent.at({}), 1), &bytes),
               "an array of more than 2^63 - 1 bytes");
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<Dim> dims_of(const json::Object& entry) {
  std::vector<Dim> dims;
  std::set<std::string> names;
  for (const auto& each : json::get<json::Array>(entry, "dims", json::Array())) {
    const auto fields = json::as<json::Object>(each, "dims");
    Dim dim{json::text(fields, "name"), json::get<int64_t>(fields, "min"),
            json::get<int64_t>(fields, "max"), json::get<int64_t>(fields, "multiple_of")};
    expect(dim.min >= 1 && dim.max >= dim.min && dim.multiple_of >= 1, "dims");
    expect(names.insert(dim.name).second, "names of dims");
    dims.push_back(std::move(dim));
  }
  return dims;
}

bool is_like(const ArraySpec& one, const ArraySpec& other) {
  const auto same = [](const Extent& a, const Extent& b) {
    return a.text() == b.text() && (a.is_open() || a.at({}) == b.at({}));
  };
  return one.dtype == other.dtype && one.shape.size() == other.shape.size() &&
         std::equal(one.shape.begin(), one.shape.end(), other.shape.begin(), same);
}

Function function_of(const json::Object& entry) {
  Function main;
  const std::vector<Dim> dims = dims_of(entry);
  main.inputs = specs_of(entry, "inputs", dims);
  main.outputs = specs_of(entry, "outputs", dims);
  main.params = specs_of(entry, "params", {});
  for (const auto& each : json::get<json::Array>(entry, "ties", json::Array())) {
    std::vector<std::string> names;
    for (const auto& name : json::as<json::Array>(each, "ties"))
      names.push_back(json::as<json::ffi::String>(name, "ties"));
    main.ties.push_back(std::move(names));
  }
  if (json::find(entry, "transform")) main.transform = json::text(entry, "transform");
  main.any_address = json::get<bool>(entry, "any_address", false);
  const auto states = json::get<json::Array>(entry, "state", json::Array());
  main.states = states.size();
  expect(main.states <= main.inputs.size() && main.states <= main.outputs.size(), "state");
  const size_t inputs = main.inputs.size() - main.states;
  const size_t outputs = main.outputs.size() - main.states;
  for (size_t i = 0; i < main.states; ++i) {
    const std::string name = json::as<json::ffi::String>(states[static_cast<int64_t>(i)], "state");
    const ArraySpec& spec = main.inputs[inputs + i];
    expect(spec.name == name && is_like(spec, main.outputs[outputs + i]), "state");
    expect(std::none_of(spec.shape.begin(), spec.shape.end(),
                        [](const Extent& extent) { return extent.is_open(); }),
           "state");
  }
  if (const auto fixed = json::find(entry, "fixed"))
    for (const auto& [name, digest] : json::as<json::Object>(*fixed, "fixed")) {
      std::optional<std::string> known;
      if (digest != nullptr) known = json::as<json::ffi::String>(digest, "fixed");
      main.fixed[json::as<json::ffi::String>(name, "fixed")] = known;
    }
  for (const auto& each : json::get<json::Array>(entry, "in_place", json::Array())) {
    const auto pair = json::as<json::Array>(each, "in_place");
    expect(pair.size() == 2, "in_place");
    const auto output = json::as<int64_t>(pair[0], "in_place");
    const auto input = json::as<int64_t>(pair[1], "in_place");
    const auto within = [](int64_t i, size_t n) { return i >= 0 && static_cast<size_t>(i) < n; };
    expect(within(output, main.outputs.size()) && within(input, main.inputs.size()), "in_place");
    expect(is_like(main.outputs[output], main.inputs[input]), "in_place");
    main.in_place.emplace_back(output, input);
  }
  std::vector<NamedShape> shapes;
  for (const ArraySpec& spec : main.inputs) shapes.push_back({spec.name, spec.shape});
  main.sizes = Sizes(dims, shapes);
  return main;
}

// The digest covers the manifest without its own entry, as Python's json.dumps writes it in one
// line. The file has the same tokens, indented, and the digest last.
std::string digest_of(const Bytes& data) {
  std::string line;
  line.reserve(data.size());
  json::TextScanner scanner;
  for (size_t i = 0; i < data.size(); ++i) {
    const char letter = data[i];
    if (scanner.is_text(letter) || letter != '\n') {
      line += letter;
      continue;
    }
    if (!line.empty() && line.back() == ',') line += ' ';
    while (i + 1 < data.size() && data[i + 1] == ' ') ++i;
  }
  const size_t at = line.rfind(", \"digest\": \"");
  return at == std::string::npos ? "" : sha256((line.substr(0, at) + "}").data(), at + 1);
}

// The major and the minor number of a version such as "0.1" or "0.1.7".
std::pair<int, int> minor_version(const std::string& version) {
  std::pair<int, int> found;
  const char *at = version.data(), *const end = at + version.size();
  const auto major = std::from_chars(at, end, found.first);
  expect(major.ec == std::errc() && major.ptr != end && *major.ptr == '.', "requires");
  const auto minor = std::from_chars(major.ptr + 1, end, found.second);
  expect(minor.ec == std::errc() && (minor.ptr == end || *minor.ptr == '.'), "requires");
  return found;
}

void check_versions(const std::string& path, const json::Object& manifest) {
  const auto required = json::get<json::Object>(manifest, "requires", json::Object());
  // Artifacts of version 0.1.0 have no such entry.
  const std::string needed = json::get<json::ffi::String>(required, "needle_runtime", "0.1");
  if (minor_version(NEEDLE_VERSION) < minor_version(needed))
    throw Failure(NEEDLE_ERROR_ARTIFACT, path + ": needs needle-runtime " + needed +
                                             " or later, but " NEEDLE_VERSION " is installed");
  const auto versions = json::get<json::Object>(manifest, "versions");
  const std::string tvm = json::text(versions, "tvm"), tvm_ffi = json::text(versions, "tvm_ffi");
  std::string here;
  for (const auto& [known_tvm, known_ffi] : kRuns) {
    if (tvm == known_tvm && tvm_ffi == known_ffi) return;
    here += (here.empty() ? "" : ", or ") + std::string(known_tvm) + " and " + known_ffi;
  }
  throw Failure(NEEDLE_ERROR_ARTIFACT, path + ": was built with tvm " + tvm + " and tvm_ffi " +
                                           tvm_ffi + ", this runtime runs code of " + here);
}

void check_signature(const Folder& folder, const Bytes& data, const char* public_key) {
  if (public_key == nullptr) return;
  if (!folder.has("manifest.sig"))
    throw Failure(NEEDLE_ERROR_SIGNATURE,
                  folder.path() + ": is not signed (manifest.sig is missing)");
  Bytes signature;
  try {
    signature = folder.read("manifest.sig", kSignatureLength);
  } catch (const Failure& error) {
    throw Failure(NEEDLE_ERROR_SIGNATURE, error.what());
  }
  if (!is_signed_by(data, signature, public_key))
    throw Failure(
        NEEDLE_ERROR_SIGNATURE,
        folder.path() + ": manifest.json is not what the owner of " + public_key + " signed");
}

Bytes checked_file(const Folder& folder, const std::string& name, const json::Object& recorded) {
  const uint64_t size = json::size(recorded, "size");
  Bytes data = folder.read(name, size);
  const std::string where = folder.path() + "/" + name + ": is damaged (";
  if (data.size() != size)
    throw Failure(NEEDLE_ERROR_ARTIFACT, where + std::to_string(data.size()) + " bytes long, not " +
                                             std::to_string(size) + ")");
  const std::string found = sha256(data.data(), data.size());
  const std::string wanted = json::text(recorded, "sha256");
  if (found != wanted)
    throw Failure(NEEDLE_ERROR_ARTIFACT, where + "SHA-256 " + found + ", not " + wanted + ")");
  return data;
}

}  // namespace

std::string describe(needle_dtype dtype, const std::vector<int64_t>& shape) {
  return std::string(needle_dtype_name(dtype)) + "(" + joined(shape) + ")";
}

std::string describe(const ArraySpec& spec) {
  std::vector<std::string> extents;
  for (const Extent& each : spec.shape)
    extents.push_back(each.is_open() ? each.text() : std::to_string(each.at({})));
  return std::string(needle_dtype_name(spec.dtype)) + "(" + joined(extents) + ")";
}

Manifest read_manifest(const Folder& folder, const char* public_key, Bytes* library,
                       std::optional<Bytes>* params) {
  const std::string file = folder.path() + "/manifest.json";
  if (!folder.has("manifest.json"))
    throw Failure(NEEDLE_ERROR_ARTIFACT,
                  folder.path() + ": no artifact there (manifest.json is missing)");
  const Bytes data = folder.read("manifest.json", kLargestManifest);
  check_signature(folder, data, public_key);
  Manifest manifest;
  try {
    const json::Object whole = json::parse(data.data(), data.size());
    const auto format = json::get<int64_t>(whole, "format");
    if (format != kFormat)
      throw Failure(NEEDLE_ERROR_ARTIFACT, file + ": has format " + std::to_string(format) +
                                               ", this version reads " + std::to_string(kFormat));
    if (digest_of(data) != json::text(whole, "digest"))
      throw Failure(NEEDLE_ERROR_ARTIFACT, file + ": is damaged (its digest does not match)");
    const auto target = json::get<json::Object>(whole, "target");
    manifest.kind = json::text(target, "kind");
    manifest.mcpu = json::get<json::ffi::String>(target, "mcpu", json::ffi::String());
    for (const auto& each : json::get<json::Array>(target, "features", json::Array()))
      manifest.features.emplace_back(json::as<json::ffi::String>(each, "features"));
    const auto threads = json::get<int64_t>(target, "num-cores", int64_t{0});
    expect(threads >= 0 && threads <= std::numeric_limits<int>::max(), "num-cores");
    manifest.threads = static_cast<int>(threads);
    manifest.main =
        function_of(json::get<json::Object>(json::get<json::Object>(whole, "functions"), "main"));
    check_versions(folder.path(), whole);

    const auto files = json::get<json::Object>(whole, "files");
    std::set<std::string> recorded;
    for (const auto& [name, facts] : files)
      recorded.insert(json::as<json::ffi::String>(name, "files"));
    for (const std::string& name : folder.names())
      if (name != "manifest.json" && name != "manifest.sig" && recorded.count(name) == 0)
        throw Failure(NEEDLE_ERROR_ARTIFACT,
                      folder.path() + "/" + name + ": does not belong to this artifact");
    for (const auto& [key, facts] : files) {
      const std::string name = json::as<json::ffi::String>(key, "files");
      expect(!name.empty() && name.find('/') == std::string::npos, "name of a file");
      if (!folder.has(name))
        throw Failure(NEEDLE_ERROR_ARTIFACT, folder.path() + "/" + name + ": is missing");
      Bytes bytes = checked_file(folder, name, json::as<json::Object>(facts, "files"));
      if (name == "lib.so") *library = std::move(bytes);
      if (name == "params.safetensors") *params = std::move(bytes);
    }
    if (recorded.count("lib.so") == 0)
      throw Failure(NEEDLE_ERROR_ARTIFACT, folder.path() + ": has no lib.so");
  } catch (const std::logic_error& error) {
    throw Failure(NEEDLE_ERROR_ARTIFACT,
                  file + ": is not an artifact's manifest (" + error.what() + ")");
  } catch (const std::overflow_error& error) {
    throw Failure(NEEDLE_ERROR_ARTIFACT,
                  file + ": is not an artifact's manifest (" + error.what() + ")");
  }
  return manifest;
}

}  // namespace needle::capi
