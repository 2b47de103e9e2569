// A random key that only this user on this machine can read; a signature proves that the user's own
// run wrote a file. It is stored in the cache directory. Without it, files that a checkpoint names
// have to be given again on the command line.
#pragma once

#include <string>
#include <string_view>

namespace pipetrain {

/// The HMAC-SHA-256 of a text under the user's key, which is created on first use. Empty if there
/// is no cache directory.
std::string sign_as_user(std::string_view text);

/// Whether sign_as_user() gives this signature of the text.
bool is_signed_by_user(std::string_view text, std::string_view signature);

}  // namespace pipetrain
