// Writes a FileDescriptorSet with the protobufs that the Rust side edits: HLO modules and compile options, with all that they
// depend on. Run by build.rs; the library carries the descriptors, the wheel has no .proto files.

#include <fstream>
#include <iostream>
#include <set>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "xla/pjrt/proto/compile_options.pb.h"
#include "xla/service/hlo.pb.h"

namespace {

using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorSet;

// Dependencies first, each file once.
void Add(const FileDescriptor* file, std::set<std::string>& seen, FileDescriptorSet& set) {
  if (!seen.insert(std::string(file->name())).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) Add(file->dependency(i), seen, set);
  file->CopyTo(set.add_file());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: descriptors FILE\n";
    return 2;
  }
  FileDescriptorSet set;
  std::set<std::string> seen;
  Add(xla::HloModuleProto::descriptor()->file(), seen, set);
  Add(xla::CompileOptionsProto::descriptor()->file(), seen, set);
  std::ofstream out(argv[1], std::ios::binary);
  return set.SerializeToOstream(&out) ? 0 : 1;
}
