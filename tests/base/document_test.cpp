#include "base/document.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace pipetrain {
namespace {

constexpr const char* kSchema = "pipetrain.test/1";

std::string message_of(const auto& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Document, KeepsOrderAndEveryBitOfANumber) {
  const double third = 1.0 / 3, tiny = 5e-324;
  const Json body = {{"z", third}, {"a", tiny}, {"list", {1, 2, 3}}, {"m", "text"}};
  const std::string text = document_text(kSchema, body);
  EXPECT_LT(text.find("\"schema\""), text.find("\"z\""));
  EXPECT_LT(text.find("\"z\""), text.find("\"a\""));
  const Document document = Document::parse(text, "t.json", kSchema);
  EXPECT_EQ(document.root().at("z").real(), third);
  EXPECT_EQ(document.root().at("a").real(), tiny);
  EXPECT_EQ(document.root().at("list").item(2).integer(), 3);
  EXPECT_EQ(document.root().at("m").text(), "text");
}

TEST(Document, ReplacesFilesAsAWhole) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("pipetrain_doc_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto path = folder / "t.json";
  write_document(path, kSchema, {{"x", 1}});
  write_document(path, kSchema, {{"x", 2}});
  EXPECT_EQ(Document::read(path, kSchema).root().at("x").integer(), 2);
  // Nothing temporary is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(write_document(path, kSchema, {{"x", 1}}), Error);
}

TEST(Document, NamesFileAndField) {
  const Document document = Document::parse(
      R"({"schema": "pipetrain.test/1", "a": {"list": [1, "two", 3.5, true]}})", "t.json", kSchema);
  const DocumentField list = document.root().at("a").at("list");
  EXPECT_EQ(list.size(), 4u);
  EXPECT_TRUE(list.item(3).flag());
  EXPECT_EQ(list.item(2).real(), 3.5);
  EXPECT_EQ(list.item(0).real(), 1);
  EXPECT_EQ(message_of([&] { list.item(1).integer(); }),
            "t.json: a.list[1] must be an integer, got \"two\"");
  EXPECT_EQ(message_of([&] { list.item(0).integer(2, 9); }),
            "t.json: a.list[0] must be an integer between 2 and 9, got 1");
  EXPECT_EQ(message_of([&] { list.item(0).integer(-9, 0); }),
            "t.json: a.list[0] must be an integer between -9 and 0, got 1");
  EXPECT_EQ(message_of([&] { list.item(0).real(2); }),
            "t.json: a.list[0] must be a number of at least 2, got 1");
  EXPECT_EQ(message_of([&] { list.item(2).real(0, 3); }),
            "t.json: a.list[2] must be a number of at least 0 and at most 3, got 3.5");
  EXPECT_EQ(message_of([&] { list.item(2).text(); }), "t.json: a.list[2] must be a text, got 3.5");
  EXPECT_EQ(message_of([&] { list.item(2).integer(); }),
            "t.json: a.list[2] must be an integer, got 3.5");
  EXPECT_EQ(message_of([&] { list.item(4); }), "t.json: a.list has only 4 items");
  EXPECT_EQ(message_of([&] { list.at("x"); }),
            "t.json: a.list must be an object, got a list of 4 items");
  EXPECT_EQ(message_of([&] { document.root().at("b"); }), "t.json lacks the field \"b\"");
  EXPECT_FALSE(list.has("x"));
}

TEST(Document, SaysWhereJsonIsBroken) {
  const std::string message = message_of(
      [&] { Document::parse("{\"schema\": \"pipetrain.test/1\",\n  oops}", "t.json", kSchema); });
  EXPECT_NE(message.find("t.json is not JSON"), std::string::npos) << message;
  EXPECT_NE(message.find("line 2"), std::string::npos) << message;
}

TEST(Document, SurvivesHostileText) {
  for (const std::string& text :
       {std::string(1000000, '['), std::string("\0\0\0", 3), std::string("\xff\xfe"),
        "{\"schema\":" + std::string(200000, '{'), std::string("{\"schema\": 1e999}")}) {
    EXPECT_THROW(Document::parse(text, "t.json", kSchema), Error);
  }
}

TEST(Document, RefusesWhatIsNestedTooDeeplyOrHasTooManyFields) {
  const auto message = [](const std::string& x) {
    return message_of([&] {
      // The JSON library copies x when it grows the container.
      Document::parse(R"({"schema": "pipetrain.test/1", "x": )" + x + R"(, "y": 1, "z": 2})",
                      "t.json", kSchema);
    });
  };
  const auto repeat = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const int depth : {64, 100'000}) {
    for (const std::string& x : {repeat("[", depth) + repeat("]", depth),
                                 repeat(R"({"a":)", depth) + "1" + repeat("}", depth)})
      EXPECT_EQ(message(x), "t.json: values are nested more than 64 deep");
  }
  const std::string lists = repeat("[", 63) + repeat("]", 63);
  Document::parse(R"({"schema": "pipetrain.test/1", "x": )" + lists + "}", "t.json", kSchema);
  std::string wide = R"({"": 0)";
  for (int i = 0; i < 50'000; ++i) wide += fmt::format(R"(,"{}":0)", i);
  EXPECT_EQ(message(wide + "}"), "t.json: an object has more than 50000 fields");
}

TEST(Document, RefusesAFieldThatIsThereTwice) {
  const auto parse = [](const char* x) {
    Document::parse(fmt::format(R"({{"schema": "pipetrain.test/1", "x": {}}})", x), "t.json",
                    kSchema);
  };
  const auto message = [&](const char* x) { return message_of([&] { parse(x); }); };
  EXPECT_EQ(message(R"({"a": 1, "b": {"c": 1}, "a": 2})"),
            "t.json: an object has the field \"a\" twice");
  EXPECT_EQ(message(R"([{"b": {"c": 1, "c": 1}}])"), "t.json: an object has the field \"c\" twice");
  parse(R"([{"a": {"a": 1}}, {"a": {"a": 1}}])");
}

TEST(Document, RefusesFieldsThatNobodyReads) {
  const Document document = Document::parse(
      R"({"schema": "pipetrain.test/1", "a": {"b": 1, "c\n": 2}})", "t.json", "pipetrain.test/1");
  document.root().allow_only({"schema", "a"});
  document.root().at("a").allow_only({"b", "c\n"});
  EXPECT_EQ(message_of([&] {
              document.root().at("a").allow_only({"b", "d"});
            }),
            "t.json: a has an unknown field \"c\\x0a\"; known fields are b, d");
  EXPECT_EQ(message_of([&] { document.root().at("a").at("b").allow_only({"b"}); }),
            "t.json: a.b must be an object, got 1");
}

TEST(Document, SaysThatAVersionIsLater) {
  const auto read = [](const char* text) {
    return message_of([&] { Document::parse(text, "t.json", "pipetrain.test/2"); });
  };
  EXPECT_EQ(
      read(R"({"schema": "pipetrain.test/3"})"),
      "t.json is a pipetrain.test/3 document of a later version of pipetrain, but this "
      "program reads pipetrain.test/2 only; use that version, or recreate the file with this one");
  EXPECT_EQ(read(R"({"schema": "pipetrain.test/1"})"),
            "t.json is a pipetrain.test/1 document, but this program reads pipetrain.test/2 only; "
            "recreate it with this version");
}

}  // namespace
}  // namespace pipetrain
