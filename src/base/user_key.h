// A random key that only this user on this machine can read: what is signed with it was written by
// the user's own runs. It lies in the cache directory; who loses it has to name files again that a
// checkpoint would have named.
#pragma once

#include <string>
#include <string_view>

namespace pipetrain {

/// The HMAC-SHA-256 of a text under the user's key, which is made at the first call. Empty where
/// there is no place for a key.
std::string sign_as_user(std::string_view text);

/// Whether sign_as_user() has made this signature of the text.
bool is_signed_by_user(std::string_view text, std::string_view signature);

}  // namespace pipetrain
