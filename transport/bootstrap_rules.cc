#include "transport/bootstrap_rules.h"

#include <algorithm>
#include <cstdio>

namespace gradlane {
namespace {

constexpr size_t kMaxRejected = 16;
constexpr size_t kMaxShownValueBytes = 80;

std::string Count(uint32_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string Counts(const Membership& members) {
  return Count(members.num_workers, "worker") + " and " + Count(members.num_servers, "server");
}

std::string Option(const std::string& name, const std::string& value) {
  return Printable(name, kMaxNameBytes) + "=" + Printable(value, kMaxShownValueBytes);
}

}  // namespace

JoinTable::JoinTable(Member host, const JoinMessage& join, std::string address)
    : host_(host), members_(join.members), present_(join.members.Count()), min_peer_timeout_ms_(join.peer_timeout_ms) {
  present_[members_.IndexOf(host)] = Present{std::move(address), join.agreed};
  num_present_ = 1;
}

Result<void> JoinTable::Add(Member member, const JoinMessage& join, const std::string& address) {
  if (join.members != members_) {
    return Fail(ErrorCode::kMismatch, ToString(member) + " was started with " + Counts(join.members) + " but " +
                                          ToString(host_) + " with " + Counts(members_) +
                                          ": start every rank with the same --workers and --servers");
  }
  if (auto sentence = RankOutOfRange(member, members_)) return Fail(ErrorCode::kMismatch, *sentence);
  std::optional<Present>& slot = present_[members_.IndexOf(member)];
  if (slot) {
    return Fail(ErrorCode::kMismatch, "two processes say that they are " + ToString(member) + ", at " + slot->address +
                                          " and at " + address + ": give every process a --rank of its own");
  }
  TRY(CheckAgreed(member, join));
  slot = Present{address, join.agreed};
  ++num_present_;
  min_peer_timeout_ms_ = std::min(min_peer_timeout_ms_, join.peer_timeout_ms);
  return {};
}

// Reports every option in which the newcomer differs from the first rank that it differs from; of the two, the later
// member comes first in the sentence, so that it does not depend on who arrived first.
Result<void> JoinTable::CheckAgreed(Member member, const JoinMessage& join) const {
  for (uint32_t i = 0; i < present_.size(); ++i) {
    if (!present_[i]) continue;
    std::string mine, theirs;
    for (const auto& [name, value] : join.agreed) {
      const auto other = present_[i]->agreed.find(name);
      if (other == present_[i]->agreed.end() || other->second == value) continue;
      mine += (mine.empty() ? "" : ", ") + Option(name, value);
      theirs += (theirs.empty() ? "" : ", ") + Option(name, other->second);
    }
    if (mine.empty()) continue;
    Member first = member, second = members_.At(i);
    if (members_.IndexOf(first) < members_.IndexOf(second)) {
      std::swap(first, second);
      std::swap(mine, theirs);
    }
    return Fail(ErrorCode::kMismatch, ToString(first) + " has " + mine + " but " + ToString(second) + " has " + theirs +
                                          ": start every rank with the same options");
  }
  return {};
}

void JoinTable::AddRejected(Member claimed, const std::string& address) {
  for (Rejected& rejected : rejected_) {
    if (rejected.claimed == claimed) {
      rejected.address = address;
      return;
    }
  }
  if (rejected_.size() < kMaxRejected) rejected_.push_back({claimed, address});
}

std::string JoinTable::Missing() const {
  std::string text;
  for (uint32_t i = 0; i < present_.size(); ++i) {
    if (!present_[i]) text += (text.empty() ? "" : ", ") + ToString(members_.At(i));
    if (text.size() > kMaxSentenceBytes / 2) return text + ", ...";
  }
  return text;
}

Error JoinTable::Timeout(int join_timeout_ms) const {
  const auto missing =
      std::count_if(present_.begin(), present_.end(), [](const auto& present) { return !present.has_value(); });
  std::string sentence = Missing() + (missing == 1 ? " has" : " have") + " not joined " + ToString(host_) + " at " +
                         present_[members_.IndexOf(host_)]->address + " within " + Seconds(join_timeout_ms);
  bool wrong_secret = false;
  for (const Rejected& rejected : rejected_) {
    const bool is_missing =
        !RankOutOfRange(rejected.claimed, members_) && !present_[members_.IndexOf(rejected.claimed)];
    wrong_secret |= is_missing;
    sentence += "; a process at " + rejected.address + " that says it is " + ToString(rejected.claimed) +
                " was rejected because its secret is not the job's";
  }
  sentence += wrong_secret ? ": give every rank the same --secret-file or GRADLANE_SECRET"
                           : ": start the missing ranks, or look at what they say";
  return Error{wrong_secret ? ErrorCode::kUnauthenticated : ErrorCode::kTimeout, sentence};
}

Error VersionMismatch(Member a, uint32_t version_a, Member b, uint32_t version_b) {
  return Error{ErrorCode::kMismatch, ToString(a) + " speaks version " + std::to_string(version_a) +
                                         " of the bootstrap but " + ToString(b) + " speaks version " +
                                         std::to_string(version_b) +
                                         ": start every rank with the same build of Gradlane"};
}

std::string Seconds(int64_t ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(ms) / 1000);
  return text;
}

std::optional<std::string> RankOutOfRange(Member member, const Membership& members) {
  const bool server = member.role == Role::kServer;
  const uint32_t count = server ? members.num_servers : members.num_workers;
  if (member.rank < count) return std::nullopt;
  const char* role = server ? "server" : "worker";
  if (count == 0) return ToString(member) + " is out of range: this job has no " + role + "s";
  return ToString(member) + " is out of range: this job has " + Count(count, role) + ", ranks 0 to " +
         std::to_string(count - 1);
}

}  // namespace gradlane
