#include "delta/apply.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/cancelled.h"
#include "delta/chain_applier.h"
#include "delta/contents.h"
#include "delta/output.h"

namespace dcr {
namespace {

// The two kinds of output behind one face.
class Output {
 public:
  static Result<Output> create(FileSystem& files, const std::string& path, bool directory) {
    Output output;
    if (directory) {
      DCR_ASSIGN(output.directory_, PartialDirectory::create(files, path));
    } else {
      DCR_ASSIGN(output.file_, PartialFile::create(files, path));
    }
    return output;
  }

  Result<File*> add(const DeltaFile& file) {
    if (directory_) return directory_->add(file.name, file.permissions);
    permissions_ = file.permissions;
    return &file_->file();
  }
  Status commit() { return directory_ ? directory_->commit() : file_->commit(permissions_); }
  Status discard(const Status& why) {
    return directory_ ? directory_->discard(why) : file_->discard(why);
  }

 private:
  std::optional<PartialFile> file_;
  std::optional<PartialDirectory> directory_;
  std::uint32_t permissions_ = 0;
};

// Creates the target's files with their contents; `weights` gets those that tensors go into.
Status write_contents(const Work& work, const std::vector<DeltaReader>& chain,
                      const Checkpoint& base, Output* output, std::vector<File*>* weights,
                      ApplyReport* report) {
  const std::vector<DeltaFile>& files = chain.back().footer().files;
  weights->assign(files.size(), nullptr);
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    if (!files[i].in_target) continue;
    DCR_TRY(check_cancelled(work.cancel));
    DCR_ASSIGN(const Bytes content, target_content(*work.files, chain, base, i));
    DCR_ASSIGN(File * file, output->add(files[i]));
    DCR_TRY(file->write(0, content));
    report->bytes_written += files[i].target_size;
    report->files.push_back(files[i].name);
    if (files[i].role == FileRole::kWeights) (*weights)[i] = file;
  }
  return {};
}

Result<ApplyReport> write_output(const Work& work, const DeltaChain& chain, const Checkpoint& base,
                                 Output* output) {
  ApplyReport report;
  std::vector<File*> weights;
  DCR_TRY(write_contents(work, chain.deltas, base, output, &weights, &report));
  ChainApplier applier(work, chain, base);
  const std::vector<DeltaTensor>& tensors = chain.deltas.back().footer().tensors;
  DCR_TRY(applier.run([&](std::uint32_t tensor, std::uint64_t offset, ByteSpan bytes) {
    const TensorSide& target = tensors[tensor].target;
    return weights[target.file]->write(target.offset + offset, bytes);
  }));
  report.changed = applier.changed();
  report.tensors = static_cast<std::uint64_t>(
      std::count_if(tensors.begin(), tensors.end(),
                    [](const DeltaTensor& tensor) { return tensor.target.present; }));
  return report;
}

}  // namespace

Result<ApplyReport> apply_chain(const Work& work, const std::vector<std::string>& deltas,
                                const std::string& base_path, const std::string& output_path) {
  DCR_ASSIGN(DeltaChain chain, DeltaChain::open(*work.files, deltas));
  DCR_ASSIGN(const Checkpoint base, open_checkpoint(*work.files, base_path));
  std::vector<std::string> inputs = input_paths(base);
  inputs.insert(inputs.end(), deltas.begin(), deltas.end());
  const bool directory = chain.deltas.back().footer().directory;
  DCR_TRY(check_output(*work.files, output_path, directory, work.force, inputs));
  if (Status status = check_table(base, chain.deltas.front(), false); !status.ok()) {
    return explain_mismatch(work, chain.deltas, base, status);
  }
  DCR_TRY(chain.validate(work));
  DCR_ASSIGN(Output output, Output::create(*work.files, output_path, directory));
  Result<ApplyReport> report = write_output(work, chain, base, &output);
  if (!report.ok()) {
    return output.discard(explain_mismatch(work, chain.deltas, base, report.status()));
  }
  DCR_TRY(output.commit());
  if (!directory) report->files = {base_name(output_path)};
  return report;
}

}  // namespace dcr
