/* The compiler and the source hash of this library. compiling.py passes both as macros;
 * library.py reads them for `smbox doctor`. */

#define EXPORT __attribute__((visibility("default")))
EXPORT extern const char *const smbox_build_compiler;
EXPORT extern const char *const smbox_build_hash;

const char *const smbox_build_compiler = SMBOX_BUILD_COMPILER;
const char *const smbox_build_hash = SMBOX_BUILD_HASH;
