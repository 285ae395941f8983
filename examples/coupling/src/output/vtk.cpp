// VTK XML files, values in base64 ("inline binary": a byte count of 64 bits, then the doubles).
// Format: "VTK File Formats", The VTK User's Guide, Kitware.
#include "output/vtk.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace coupling {
namespace {

std::string base64(const std::vector<unsigned char>& bytes) {
  static const char* const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = bytes.size() - i;
    const unsigned group = static_cast<unsigned>(bytes[i]) << 16 | (left > 1 ? static_cast<unsigned>(bytes[i + 1]) << 8 : 0U) |
                           (left > 2 ? static_cast<unsigned>(bytes[i + 2]) : 0U);
    text += digits[group >> 18 & 63U];
    text += digits[group >> 12 & 63U];
    text += left > 1 ? digits[group >> 6 & 63U] : '=';
    text += left > 2 ? digits[group & 63U] : '=';
  }
  return text;
}

void save(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

std::string extent(std::uint32_t from, std::uint32_t to, std::uint32_t rows) {
  return std::to_string(from) + " " + std::to_string(to) + " 0 " + std::to_string(rows) + " 0 0";
}

std::string real(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string file_head(const char* type) {
  return std::string("<?xml version=\"1.0\"?>\n<VTKFile type=\"") + type +
         "\" version=\"1.0\" byte_order=\"LittleEndian\" header_type=\"UInt64\">\n";
}

}  // namespace

VtkWriter::VtkWriter(std::string directory, std::string code, Box box, std::vector<std::uint32_t> starts, int rank)
    : directory_(std::move(directory)), code_(std::move(code)), box_(box), starts_(std::move(starts)), rank_(rank) {}

std::string VtkWriter::piece_name(std::uint32_t step, std::size_t rank) const {
  return code_ + "_" + std::to_string(step) + "_" + std::to_string(rank) + ".vti";
}

void VtkWriter::write(const Columns& temperature, std::uint32_t step, double time) {
  const auto rank = static_cast<std::size_t>(rank_);
  const std::string grid = "Origin=\"0 " + real(box_.bottom) + " 0\" Spacing=\"" + real(box_.cell_width) + " " +
                           real(box_.cell_height) + " 1\"";

  const std::uint64_t size = static_cast<std::uint64_t>(temperature.count()) * box_.rows * sizeof(double);
  std::vector<unsigned char> bytes(sizeof size + size);
  std::memcpy(bytes.data(), &size, sizeof size);
  unsigned char* out = bytes.data() + sizeof size;
  for (int row = 0; row < temperature.rows(); ++row) {
    for (int i = 0; i < temperature.count(); ++i, out += sizeof(double)) {
      std::memcpy(out, temperature.column(i) + row, sizeof(double));
    }
  }
  const std::string mine = extent(starts_[rank], starts_[rank + 1], box_.rows);
  save(directory_ + "/" + piece_name(step, rank),
       file_head("ImageData") + "<ImageData WholeExtent=\"" + mine + "\" " + grid + ">\n<Piece Extent=\"" + mine +
           "\">\n<CellData Scalars=\"temperature\">\n<DataArray type=\"Float64\" Name=\"temperature\" format=\"binary\">\n" +
           base64(bytes) + "\n</DataArray>\n</CellData>\n</Piece>\n</ImageData>\n</VTKFile>\n");
  if (rank_ != 0) return;

  std::string index = file_head("PImageData") + "<PImageData WholeExtent=\"" + extent(0, box_.columns, box_.rows) +
                      "\" GhostLevel=\"0\" " + grid +
                      ">\n<PCellData Scalars=\"temperature\">\n<PDataArray type=\"Float64\" Name=\"temperature\"/>\n</PCellData>\n";
  for (std::size_t r = 0; r + 1 < starts_.size(); ++r) {
    index += "<Piece Extent=\"" + extent(starts_[r], starts_[r + 1], box_.rows) + "\" Source=\"" + piece_name(step, r) +
             "\"/>\n";
  }
  const std::string name = code_ + "_" + std::to_string(step) + ".pvti";
  save(directory_ + "/" + name, index + "</PImageData>\n</VTKFile>\n");

  collection_ += "<DataSet timestep=\"" + real(time) + "\" file=\"" + name + "\"/>\n";
  save(directory_ + "/" + code_ + ".pvd",
       file_head("Collection") + "<Collection>\n" + collection_ + "</Collection>\n</VTKFile>\n");
}

}  // namespace coupling
