#include "support/hostile_models.h"

#include <sys/stat.h>

#include <functional>
#include <limits>
#include <random>

#include "onnx_io/encode.h"
#include "onnx_io/wire.h"
#include "support/hostile_files.h"
#include "support/onnx_parts.h"
#include "support/temporary_directory.h"

namespace pipetrain {

namespace fs = std::filesystem;

std::vector<HostileModel> HostileFiles::write() {
  other_formats();
  damaged_bytes();
  deep_nesting();
  headers();
  graphs();
  values();
  attributes();
  tensors();
  external_tensors();
  functions();
  too_many();
  for_later_passes();
  return std::move(out_);
}

void HostileFiles::add(const std::string& name, std::string_view bytes, const std::string& message,
                       bool fails_to_read) {
  const fs::path path = directory_ / (name + ".onnx");
  put_file(path, bytes);
  out_.push_back({name, path, message, fails_to_read});
}

void HostileFiles::edited(const std::string& name, const std::string& message, const Edit& edit) {
  ModelParts parts = small_model();
  edit(parts);
  add(name, parts.bytes(), message);
}

void HostileFiles::weight(const std::string& name, const std::string& message,
                          const std::string& tensor) {
  edited(name, message, [&](ModelParts& parts) { parts.initializers = {tensor}; });
}

void HostileFiles::other_formats() {
  add("empty", "", "empty file");
  add("text", "Hello, this is a note about a model.\n", "text file");
  add("html", "\n<!DOCTYPE html><html><body>404</body></html>", "HTML page");
  add("lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
      "git-LFS pointer");
  add("zip", std::string("PK\x03\x04\x14\x00\x00\x00", 8), "zip archive");
  add("pickle", "\x80\x02}q\x00.", "pickle");
  add("gzip", "\x1f\x8b\x08", "gzip");
  add("json", R"({"ir_version": 8})", "JSON");
  std::mt19937 random(7);
  std::string noise(4096, '\0');
  for (char& c : noise) c = static_cast<char>(random() & 0xff);
  noise[0] = '\xff';
  add("noise", noise, "not an ONNX file");
  const fs::path folder = directory_ / "folder.onnx";
  fs::create_directory(folder);
  out_.push_back({"folder", folder, "directory"});
  const fs::path pipe = directory_ / "pipe.onnx";
  ::mkfifo(pipe.c_str(), 0600);
  out_.push_back({"pipe", pipe, "not a regular file"});
  out_.push_back({"missing", directory_ / "missing.onnx", "cannot open"});
}

void HostileFiles::damaged_bytes() {
  const std::string good = small_model().bytes();
  for (int part = 1; part < 16; ++part) {
    add(fmt_name("truncated", part), good.substr(0, good.size() * part / 16), "");
  }
  add("truncated_last_byte", good.substr(0, good.size() - 1), "cut short");
  add("trailing_garbage", good + std::string(64, '\xff'), "byte");
  add("overlong_number", "\x08" + std::string(11, '\x80') + "\x01", "more than 64 bits");
  add("number_over_64_bits", "\x08" + std::string(9, '\xff') + "\x7f", "more than 64 bits");
  add("claims_2_gib", "\x3a\xff\xff\xff\xff\x07xyz", "2147483647 bytes are claimed");
  add("claims_2_to_63", "\x3a" + std::string(9, '\xff') + "\x01xyz", "are claimed");
  add("graph_is_a_number", std::string("\x08\x08\x38\x01", 4), "must be a byte string");
  add("wire_type_3", std::string("\x08\x08\x3b\x01", 4), "wire type 3");
  add("wire_type_7", std::string("\x08\x08\x3f\x01", 4), "wire type 7");
  add("field_number_0", std::string("\x08\x08\x02\x00", 4), "field number 0");
  add("two_graphs", good + field(7, small_model().graph()), "appears twice");
  edited("name_not_utf8", "not UTF-8", [](ModelParts& parts) {
    parts.nodes = {node_part("MatMul", {"x", "W"}, {"y"}, {}, "\xff\xfe")};
  });
  edited("name_overlong_utf8", "not UTF-8", [](ModelParts& parts) {
    parts.nodes = {node_part("MatMul", {"x", "W"}, {"y"}, {}, "\xc0\x80")};
  });
  edited("name_of_1_mb", "longer than", [](ModelParts& parts) {
    parts.nodes = {node_part("MatMul", {"x", "W"}, {"y"}, {}, std::string(1 << 20, 'n'))};
  });
  weight("half_a_float", "not a whole number",
         tensor_part("W", {4, 4}, 1, field(4, std::string(63, '\0'))));
  weight("raw_data_twice", "appears twice",
         tensor_part("W", {4, 4}, 1,
                     raw_data(std::string(64, '\0')) + raw_data(std::string(64, '\0'))));
  weight("packed_number_cut_off", "cut off",
         tensor_part("W", {4, 4}, 6, field(5, std::string(3, '\x80'))));
}

std::string HostileFiles::fmt_name(const std::string& stem, int number) {
  return stem + "_" + std::to_string(number);
}

std::string HostileFiles::nested_if(int depth) {
  std::string node = node_part("If", {"c"}, {"y"});
  for (int i = 0; i < depth; ++i) {
    const std::string attribute =
        field(1, "then_branch") + field(6, field(1, node)) + field(20, std::int64_t{5});
    node = node_part("If", {"c"}, {"y"}) + field(5, attribute);
  }
  return node;
}

void HostileFiles::deep_nesting() {
  for (const int depth : {17, 30, 100}) {
    edited(fmt_name("nested_graphs", depth), "nested deeper",
           [&](ModelParts& parts) { parts.nodes = {nested_if(depth)}; });
  }
  // Bytes that mean nothing at each level, so that nothing but the depth is wrong.
  for (const int depth : {1000, 10000}) {
    std::string type;
    for (int i = 0; i < depth; ++i) type = field(4, field(1, type));
    edited(fmt_name("nested_types", depth), "nested deeper",
           [&](ModelParts& parts) { parts.inputs = {field(1, "x") + field(2, type)}; });
  }
}

void HostileFiles::headers() {
  const auto versions = [&](const std::string& name, const std::string& message,
                            std::vector<std::string> opsets) {
    edited(name, message, [&](ModelParts& parts) { parts.opsets = std::move(opsets); });
  };
  versions("no_opset", "which opset", {});
  versions("opset_6", "opset is 6", {encode_opset("", 6)});
  versions("opset_99", "opset is 99; 28 is the newest", {encode_opset("", 99)});
  versions("opset_negative", "opset is -3", {encode_opset("", -3)});
  versions("opset_twice", "two versions", {encode_opset("", 17), encode_opset("ai.onnx", 13)});
  versions("opset_of_others_only", "which opset", {encode_opset("evil.corp", 1)});
  for (const int version : {0, -1, 2, 99}) {
    edited(fmt_name("ir_version", version), "IR version",
           [&](ModelParts& parts) { parts.ir_version = version; });
  }
  add("no_graph", field(1, std::int64_t{8}) + field(8, encode_opset("", 17)), "no graph");
  add("header_only", field(1, std::int64_t{8}), "no graph");
}

void HostileFiles::graphs() {
  const auto nodes = [&](const std::string& name, const std::string& message,
                         std::vector<std::string> with) {
    edited(name, message, [&](ModelParts& parts) { parts.nodes = std::move(with); });
  };
  nodes("input_undefined", "'NOPE' is not defined", {node_part("MatMul", {"x", "NOPE"}, {"y"})});
  nodes("output_made_twice", "'y' is produced twice",
        {node_part("Relu", {"x"}, {"y"}, {}, "a"), node_part("Relu", {"x"}, {"y"}, {}, "b")});
  nodes("output_made_twice_by_one_node", "produced twice", {node_part("Split", {"x"}, {"y", "y"})});
  nodes("cycle", "cycle",
        {node_part("Add", {"x", "b"}, {"a"}, {}, "first"),
         node_part("Relu", {"a"}, {"b"}, {}, "second"), node_part("Relu", {"b"}, {"y"})});
  nodes("self_loop", "needs its own output", {node_part("Add", {"x", "y"}, {"y"}, {}, "loop")});
  std::vector<std::string> ring;
  for (int i = 0; i < 1000; ++i) {
    ring.push_back(node_part("Relu", {fmt_name("v", (i + 999) % 1000)}, {fmt_name("v", i)}));
  }
  ring.push_back(node_part("Relu", {"v_0"}, {"y"}));
  nodes("cycle_of_1000", "cycle", ring);
  nodes("no_nodes", "no node produces the graph output 'y'", {});
  nodes("output_of_others", "no node produces", {node_part("Relu", {"x"}, {"z"})});
  nodes("no_operator", "no operator", {node_part("", {"x"}, {"y"}, {}, "blank")});
  nodes("makes_an_input", "produced twice", {node_part("Relu", {"W"}, {"x", "y"})});
  nodes("makes_an_initializer", "produced twice", {node_part("Relu", {"x"}, {"W", "y"})});
  nodes("huge_name_with_escapes", "\\x1b[31m",
        {node_part("MatMul", {"x", "\x1b[31mNOPE\n"}, {"y"}, {}, "\x1b]0;title\x07")});
  edited("no_outputs", "no outputs", [](ModelParts& parts) { parts.outputs.clear(); });
  edited("outputs_twice", "duplicate graph output",
         [](ModelParts& parts) { parts.outputs.push_back(parts.outputs[0]); });
  edited("inputs_twice", "duplicate graph input",
         [](ModelParts& parts) { parts.inputs.push_back(parts.inputs[0]); });
  edited("initializers_twice", "duplicate initializer",
         [](ModelParts& parts) { parts.initializers.push_back(parts.initializers[0]); });
  edited("sparse_initializer", "sparse initializer", [](ModelParts& parts) {
    parts.graph_tail = field(15, field(1, parts.initializers[0]) + field(3, kHuge));
  });
}

void HostileFiles::values() {
  const auto input = [&](const std::string& name, const std::string& message,
                         const std::string& part) {
    edited(name, message, [&](ModelParts& parts) { parts.inputs = {part}; });
  };
  const auto tensor_type = [](std::int64_t type, const std::string& dims) {
    return field(2, field(1, field(1, type) + field(2, dims)));
  };
  input("input_negative", "extent -5",
        field(1, "x") + tensor_type(1, field(1, field(1, std::int64_t{-5}))));
  input("input_without_type", "has no type", field(1, "x"));
  input("input_without_name", "no name", tensor_type(1, ""));
  input("input_is_a_sequence", "not a tensor",
        field(1, "x") + field(2, field(4, field(1, field(1, field(1, std::int64_t{1}))))));
  input("input_of_strings", "string", field(1, "x") + tensor_type(8, ""));
  input("input_of_type_999", "number 999", field(1, "x") + tensor_type(999, ""));
  std::string dims;
  for (int i = 0; i < 10000; ++i) dims += field(1, field(1, std::int64_t{1}));
  input("input_of_rank_10000", "rank 10000", field(1, "x") + tensor_type(1, dims));
}

void HostileFiles::attributes() {
  const auto attribute = [&](const std::string& name, const std::string& message,
                             const std::string& bytes) {
    edited(name, message, [&](ModelParts& parts) {
      parts.nodes = {node_part("Gemm", {"x", "W"}, {"y"}, {}, "g") + bytes};
    });
  };
  const auto typed = [](const char* name, std::int64_t type, const std::string& value) {
    return field(5, field(1, name) + field(20, type) + value);
  };
  const std::string tensor = field(5, tensor_part("", {2}, 1, raw_data("12345678")));
  attribute("attribute_mismatch", "says that it is an int",
            typed("transA", 2, field(7, std::string(4, '\0'))));
  attribute("attribute_of_unknown_kind", "says that it is",
            typed("a", 99, field(5, tensor_part("", {2}, 1, field(14, std::int64_t{1})))));
  attribute("attribute_twice", "appears twice",
            typed("transA", 2, field(3, std::int64_t{0})) +
                typed("transA", 2, field(3, std::int64_t{1})));
  attribute("attribute_of_two_kinds", "two kinds",
            typed("transA", 2, field(3, std::int64_t{0}) + field(4, "text")));
  attribute("attribute_without_name", "no name", typed("", 2, field(3, std::int64_t{0})));
  attribute("attribute_without_tensor", "without a value", typed("value", 4, ""));
  attribute("attribute_without_graph", "without a value", typed("body", 5, ""));
  attribute("reference_outside_function", "outside of one", typed("transA", 2, field(21, "outer")));
  attribute("reference_with_a_value", "refers to another attribute too",
            typed("value", 4, field(21, "outer") + tensor));
  attribute("attribute_tensor_too_short", "needs 64 bytes",
            typed("value", 4, field(5, tensor_part("", {16}, 1, raw_data("12345678")))));
}

void HostileFiles::tensors() {
  const std::string full = raw_data(std::string(64, '\0'));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto dims = [&](const std::string& name, const std::string& message,
                        const std::vector<std::int64_t>& with, const std::string& payload) {
    weight(name, message, tensor_part("W", with, 1, payload));
  };
  // Harmless where nothing needs it.
  const auto unusable = [&](const std::string& name, const std::string& message,
                            const std::string& tensor) {
    ModelParts parts = small_model();
    parts.initializers = {tensor};
    add(name, parts.bytes(), message, /*fails_to_read=*/false);
  };
  dims("raw_too_small", "needs 64 bytes", {4, 4}, raw_data(std::string(60, '\0')));
  dims("raw_too_big", "needs 64 bytes", {4, 4}, raw_data(std::string(4096, '\0')));
  dims("dims_overflow", "overflows", {std::int64_t{1} << 32, std::int64_t{1} << 32}, full);
  dims("dims_2_to_62", "overflows", {std::int64_t{1} << 62}, full);
  dims("dims_largest", "overflows", {kMost, kMost, kMost}, full);
  dims("dims_wrap_to_16", "overflows", {std::int64_t{1} << 62, 4, 16}, full);
  dims("dims_zero_times_huge", "overflows", {0, std::int64_t{1} << 62, 4}, "");
  dims("dims_negative", "negative", {-4, -4}, full);
  dims("dims_minus_one", "negative", {-1, 4}, full);
  dims("dims_zero_with_data", "needs 0 bytes", {0, 4}, full);
  dims("rank_10000", "rank 10000", std::vector<std::int64_t>(10000, 1), full);
  dims("no_data", "has no data", {1000, 1000}, "");
  dims("no_data_for_10_to_10", "has no data", {100000, 100000}, "");
  dims("two_payloads", "two payloads", {4, 4}, full + field(4, std::string(64, '\0')));
  dims("values_too_few", "needs 16 values", {4, 4}, field(4, std::string(60, '\0')));
  dims("values_of_another_type", "cannot hold", {4, 4}, field(7, std::string(16, '\0')));
  dims("location_7", "data_location 7", {4, 4}, full + field(14, std::int64_t{7}));
  weight("no_element_type", "no element type", tensor_part("W", {4, 4}, 0, full));
  unusable("type_999", "number 999", tensor_part("W", {4, 4}, 999, full));
  unusable("type_negative", "number -1", tensor_part("W", {4, 4}, -1, full));
  unusable("strings", "strings", tensor_part("W", {1}, 8, field(6, "text")));
  unusable("strings_as_raw", "strings", tensor_part("W", {4, 4}, 8, full));
  unusable("int4", "int4: a model quantized", tensor_part("W", {4, 4}, 22, full));
  unusable("float8", "float8e4m3fn", tensor_part("W", {4, 4}, 17, full));
  weight("half_wrong_size", "needs 32 bytes", tensor_part("W", {4, 4}, 10, full));
  weight("byte_out_of_range", "300 does not fit uint8",
         tensor_part("W", {1}, 2, field(5, std::int64_t{300})));
  weight("half_bits_out_of_range", "does not fit float16",
         tensor_part("W", {1}, 10, field(5, std::int64_t{70000})));
  weight("tensor_without_name", "no name", tensor_part("", {4, 4}, 1, full));
}

void HostileFiles::external_tensors() {
  using Entries = std::vector<std::pair<std::string, std::string>>;
  put_file(directory_ / "good.bin", std::string(64, '\0'));
  put_file(directory_ / "short.bin", std::string(40, '\0'));
  fs::create_directory(directory_ / "sub");
  put_file(directory_ / "sub" / "deep.bin", std::string(64, '\0'));
  fs::create_symlink("good.bin", directory_ / "link.bin");
  fs::create_directory_symlink("sub", directory_ / "sublink");
  put_file(directory_ / "hard.bin", std::string(64, '\0'));
  fs::create_hard_link(directory_ / "hard.bin", directory_ / "hard2.bin");
  ::mkfifo((directory_ / "fifo.bin").c_str(), 0600);
  const auto external = [&](const std::string& name, const std::string& message,
                            const Entries& entries) {
    weight("external_" + name, message, tensor_part("W", {4, 4}, 1, external_data(entries)));
  };
  const auto place = [&](const std::string& name, const std::string& message,
                         const std::string& key, const std::string& value) {
    external(name, message, {{"location", "good.bin"}, {key, value}});
  };
  external("parent", "leaves the model's directory", {{"location", "../secret.bin"}});
  external("sub_parent", "leaves the model's directory", {{"location", "sub/../../secret"}});
  external("hidden_parent", "leaves the model's directory", {{"location", "sub/.//../good.bin"}});
  external("absolute", "absolute path", {{"location", "/etc/passwd"}});
  external("device", "absolute path", {{"location", "/dev/zero"}});
  external("symlink", "symbolic link", {{"location", "link.bin"}});
  external("symlink_on_the_way", "symbolic link", {{"location", "sublink/deep.bin"}});
  external("hard_link", "hard links", {{"location", "hard.bin"}});
  external("missing", "is missing", {{"location", "nowhere.bin"}});
  external("directory", "directory", {{"location", "sub"}});
  external("itself_a_dot", "names no file", {{"location", "./."}});
  external("pipe", "a pipe", {{"location", "fifo.bin"}});
  external("through_a_file", "cannot open", {{"location", "good.bin/x"}});
  external("too_short", "which has 40", {{"location", "short.bin"}});
  external("no_location", "no location", {{"offset", "0"}});
  external("empty_location", "no location", {{"location", ""}});
  external("nul", "NUL", {{"location", std::string("good.bin\0/../x", 14)}});
  external("long_location", "5000 bytes long", {{"location", std::string(5000, 'a')}});
  external("long_name", "cannot open", {{"location", std::string(300, 'a')}});
  external("two_locations", "two entries", {{"location", "good.bin"}, {"location", "../secret"}});
  external("memory_marker", "is missing", {{"location", "*_ORT_MEM_ADDR_*"}});
  place("offset_past_end", "from offset 99999", "offset", "99999");
  place("offset_negative", "not a byte count", "offset", "-8");
  place("offset_hexadecimal", "not a byte count", "offset", "0x10");
  place("offset_with_plus", "not a byte count", "offset", "+0");
  place("offset_empty", "not a byte count", "offset", "");
  place("offset_overflow", "not a byte count", "offset", "18446744073709551600");
  place("offset_largest", "from offset", "offset", "9223372036854775807");
  place("offset_beyond_64_bits", "not a byte count", "offset", std::string(40, '9'));
  place("length_negative", "not a byte count", "length", "-1");
  place("length_petabyte", "length 1125899906842624", "length", "1125899906842624");
  place("length_mismatch", "length 32", "length", "32");
  weight("external_and_inline", "both in the model and outside",
         tensor_part("W", {4, 4}, 1,
                     external_data({{"location", "good.bin"}}) + raw_data(std::string(64, '\0'))));
  weight("external_huge", "which has 64",
         tensor_part("W", {1 << 20, 1 << 20}, 1, external_data({{"location", "good.bin"}})));
}

void HostileFiles::functions() {
  const auto calls = [&](const std::string& name, const std::string& message,
                         std::vector<std::string> nodes, std::vector<std::string> defined) {
    edited(name, message, [&](ModelParts& parts) {
      parts.nodes = std::move(nodes);
      parts.functions = std::move(defined);
      parts.opsets.push_back(encode_opset("d", 1));
    });
  };
  const auto call = [](const std::string& name, std::vector<std::string> inputs,
                       std::vector<std::string> outputs, OnnxAttributes with = {}) {
    return node_part(name, std::move(inputs), std::move(outputs), std::move(with), "", "d");
  };
  const auto wrapper = [&](const std::string& name, const std::string& callee, int times) {
    std::vector<std::string> nodes;
    std::string at = "a";
    for (int i = 0; i < times; ++i) {
      const std::string next = i + 1 == times ? "b" : fmt_name("t", i);
      nodes.push_back(call(callee, {at}, {next}));
      at = next;
    }
    return function_part("d", name, {"a"}, {"b"}, nodes);
  };
  const std::string relu =
      function_part("d", "F0", {"a"}, {"b"}, {node_part("Relu", {"a"}, {"b"})});
  calls("function_of_itself", "calls itself", {call("F", {"x"}, {"y"})}, {wrapper("F", "F", 1)});
  calls("function_cycle", "d::F → d::G → d::F", {call("F", {"x"}, {"y"})},
        {wrapper("F", "G", 1), wrapper("G", "F", 1)});
  for (const int depth : {17, 100, 5000}) {
    std::vector<std::string> chain = {relu};
    for (int i = 1; i <= depth; ++i) {
      chain.push_back(wrapper(fmt_name("F", i), i == 1 ? "F0" : fmt_name("F", i - 1), 1));
    }
    calls(fmt_name("functions_nested", depth), "nested deeper",
          {call(fmt_name("F", depth), {"x"}, {"y"})}, chain);
  }
  // Each level calls the one below ten times: 10^15 nodes from a kilobyte.
  std::vector<std::string> bomb = {relu};
  for (int i = 1; i <= 15; ++i) {
    bomb.push_back(wrapper(fmt_name("F", i), i == 1 ? "F0" : fmt_name("F", i - 1), 10));
  }
  calls("functions_explode", "more than 1000000 nodes", {call("F_15", {"x"}, {"y"})}, bomb);
  // Few nodes, but each gets a copy of one large attribute.
  std::string copies;
  for (int i = 0; i < 1000; ++i) {
    copies += field(7, node_part("Relu", {"a"}, {i == 0 ? "b" : fmt_name("t", i)}) +
                           field(5, field(1, "k") + field(20, std::int64_t{7}) + field(21, "k")));
  }
  calls("function_copies_attribute", "MiB",
        {call("F", {"x"}, {"y"},
              {OnnxAttribute::of_ints("k", std::vector<std::int64_t>(100000, 1))})},
        {function_part("d", "F", {"a"}, {"b"}, {}, {"k"}) + copies});
  calls("function_twice", "defined twice", {call("F0", {"x"}, {"y"})}, {relu, relu});
  calls("function_with_more_inputs", "takes 1", {call("F0", {"x", "W"}, {"y"})}, {relu});
  calls("function_with_more_outputs", "gives 1", {call("F0", {"x"}, {"y", "z"})}, {relu});
  calls("function_without_name", "no name", {call("F0", {"x"}, {"y"})},
        {function_part("d", "", {"a"}, {"b"}, {})});
  calls("function_makes_nothing", "no node produces", {call("F", {"x"}, {"y"})},
        {function_part("d", "F", {"a"}, {"b"}, {})});
  calls("function_reads_outside", "is not defined", {call("F", {"x"}, {"y"})},
        {function_part("d", "F", {"a"}, {"b"}, {node_part("MatMul", {"a", "W"}, {"b"})})});
  calls("function_with_one_input_twice", "two inputs", {call("F", {"x", "W"}, {"y"})},
        {function_part("d", "F", {"a", "a"}, {"b"}, {node_part("Relu", {"a"}, {"b"})})});
  calls("function_writes_its_input", "produced twice", {call("F", {"x"}, {"y"})},
        {function_part("d", "F", {"a"}, {"b"},
                       {node_part("Relu", {"a"}, {"a"}), node_part("Relu", {"a"}, {"b"})})});
  calls("function_attribute_mismatch", "must be an int",
        {call("F", {"x"}, {"y"}, {OnnxAttribute::of_string("k", "text")})},
        {function_part("d", "F", {"a"}, {"b"},
                       {node_part("Softmax", {"a"}, {"b"}) +
                        field(5, field(1, "axis") + field(20, std::int64_t{2}) + field(21, "k"))},
                       {"k"})});
}

void HostileFiles::too_many() {
  constexpr int kTooMany = 1'000'001;
  std::string nodes;
  for (int i = 0; i < kTooMany; ++i) nodes += std::string("\x0a\x00", 2);
  edited("too_many_nodes", "would need more than",
         [&](ModelParts& parts) { parts.graph_tail = nodes; });
  std::string tensors;
  for (int i = 0; i < kTooMany; ++i) tensors += std::string("\x2a\x00", 2);
  edited("too_many_tensors", "would need more than",
         [&](ModelParts& parts) { parts.graph_tail = tensors; });
  std::string attributes;
  for (int i = 0; i < 2 * kTooMany; ++i) attributes += std::string("\x2a\x00", 2);
  edited("too_many_attributes", "would need more than",
         [&](ModelParts& parts) { parts.nodes[0] += attributes; });
  edited("too_many_attributes_inside", "would need more than", [&](ModelParts& parts) {
    parts.nodes.push_back(node_part("If", {"x"}, {"z"}) +
                          field(5, field(1, "then_branch") + field(6, field(1, attributes)) +
                                       field(20, std::int64_t{5})));
  });
  std::string metadata;
  for (int i = 0; i < 4 * kTooMany; ++i) metadata += std::string("\x72\x00", 2);
  edited("too_much_metadata", "would need more than",
         [&](ModelParts& parts) { parts.model_tail = metadata; });
}

std::vector<HostileModel> hostile_files(const fs::path& directory) {
  return HostileFiles(directory).write();
}

}  // namespace pipetrain
