//! Both forms, and hostile input.

use super::*;
use proptest::prelude::*;

const TOML: &str = r#"
name = "mesh"
driver = "exec"
requires = ["base", "gas"]
units = "./mesh"

[attributes]
arguments = ["-n", "4", "a b"]
restart = "on-failure"
restart-limit = 3
MESH_SIZE = 64
"#;

const XML: &str = r#"<?xml version="1.0"?>
<!-- the same -->
<defmod name="mesh" driver="exec">
  <attr label="arguments">-n</attr>
  <attr label="arguments">4</attr>
  <attr label="arguments"><![CDATA[a b]]></attr>
  <attr label="restart">on-failure</attr>
  <attr label="restart-limit">3</attr>
  <attr label="MESH_SIZE">64</attr>
  <requires>base</requires>
  <requires>gas</requires>
  <unit>./mesh</unit>
</defmod>"#;

fn fault(format: Format, text: &str) -> String {
    let fault = parse(format, text.as_bytes()).expect_err(text).0;
    assert!(!fault.contains('\n') && fault.len() <= 1024 && !fault.is_empty(), "{fault}");
    fault
}

#[test]
fn both_forms_mean_the_same() {
    let toml = parse(Format::Toml, TOML.as_bytes()).unwrap();
    assert_eq!(parse(Format::Xml, XML.as_bytes()).unwrap(), toml);
    assert_eq!((toml.name.as_str(), toml.driver), ("mesh", DriverKind::Exec));
    assert_eq!(toml.dependencies(), ["base", "gas"]);
    assert_eq!(toml.attributes["arguments"], ["-n", "4", "a b"]);
    assert_eq!(toml.option("restart-limit"), Some("3"));
    assert_eq!(toml.variables().collect::<Vec<_>>(), [("MESH_SIZE", "64")]);
    assert_eq!(toml.units, ["./mesh"]);
}

#[test]
fn wrong_toml_is_one_clear_line() {
    let with = |line: &str| format!("name = \"m\"\ndriver = \"exec\"\nunits = [\"x\"]\n{line}\n");
    for (text, said) in [
        ("", "has no name"),
        ("name = \"m\"", "has no driver"),
        ("name = \"../m\"\ndriver = \"exec\"", "is no name of a module"),
        ("name = 7", "name is no text"),
        ("name = \"m\"\ndriver = \"warp\"", "there is no driver \"warp\": use exec, shared"),
        ("name = \"m\"\ndriver = \"exec\"", "has 0 units"),
        ("name = \"m\"\nname = \"m\"", "line 2: "),
        ("name = \"m", "line 1: "),
        (&with("color = 1"), "there is no \"color\""),
        (&with("requires = [\"a/b\"]"), "is no name of a module"),
        (&with("requires = [[\"a\"]]"), "is no text"),
        (&with("attributes = 3"), "attributes is no table"),
        (&with("[attributes]\nspeed = 1"), "has no option \"speed\": use arguments"),
        (&with("[attributes]\nA = [\"1\", \"2\"]"), "A has more than one value"),
        (&with("[attributes]\nrestart = [\"a\", \"b\"]"), "restart has more than one value"),
        (&with("[attributes]\nA = \"a\\u0000b\""), "has a zero byte"),
        (&with(&format!("[attributes]\nA = \"{}\"", "x".repeat(5000))), "longer than 4096"),
        (&with(&format!("requires = [{}]", "\"a\",".repeat(17))), "requires more than 16"),
        ("name = \"m\"\ndriver = \"exec\"\nunits = [\"../../bin/sh\"]", "leaves the descriptor's folder"),
        ("name = \"m\"\ndriver = \"exec\"\nunits = [\"a/../../b\"]", "leaves the descriptor's folder"),
        ("name = \"m\"\ndriver = \"exec\"\nunits = [\"\"]", "a unit is empty"),
        ("name = \"m\"\ndriver = \"pkg\"\nunits = [\"a/b\"]", "is no name of a module"),
        ("name = \"m\"\ndriver = \"multi\"\nunits = [\"a\"]", "needs the option group"),
        ("name = \"m\"\ndriver = \"multi\"\nunits = [\"a\"]\nattributes.group = \"a/b\"", "is no name of a group"),
        (&"x".repeat(MAX_BYTES + 1), "is longer than"),
        (&format!("name = {}", "[".repeat(30_000)), ""),
    ] {
        let fault = fault(Format::Toml, text);
        assert!(fault.contains(said), "{said}: {fault}");
    }
}

#[test]
fn wrong_xml_is_one_clear_line() {
    let with = |inner: &str| format!("<defmod name=\"m\" driver=\"exec\">{inner}</defmod>");
    let entities = "<!DOCTYPE d [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]>";
    for (text, said) in [
        ("", ""),
        ("<defmod", ""),
        ("<other/>", "there is no \"other\" here: use defmod"),
        ("<defmod name=\"m\"/>", "has no driver"),
        ("<defmod colour=\"m\"/>", "has no \"colour\""),
        (&with("stray"), "text of its own"),
        (&with("<attr>1</attr>"), "an attr has no label"),
        (&with("<unit><b/></unit>"), "use text"),
        (&with("<units/>"), "there is no \"units\""),
        (&with("<unit>../x</unit>"), "leaves the descriptor's folder"),
        (&format!("{entities}{}", with("<unit>&b;</unit>")), ""),
        (&with(&"<unit>x</unit>".repeat(65)), "has 65 units"),
        (&with(&"<a>".repeat(20_000)), ""),
        (&with(&"<unit>x</unit>".repeat(4096)), ""),
    ] {
        let fault = fault(Format::Xml, text);
        assert!(fault.contains(said), "{said}: {fault}");
    }
}

#[test]
fn files_that_are_no_descriptors_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path| Source::read(path).unwrap_err().0;
    assert!(refused(&dir.path().join("m.toml")).contains("No such file"));
    assert!(refused(&dir.path().join("m.json")).contains("ends in .toml or .xml"));
    assert!(refused(Path::new("m.toml")).contains("is no absolute path"));
    std::fs::create_dir(dir.path().join("d.toml")).unwrap();
    assert!(refused(&dir.path().join("d.toml")).contains("is no file"));
    let fifo = dir.path().join("f.toml");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert!(refused(&fifo).contains("is no file"), "and nothing waits for its writer");
    std::fs::write(dir.path().join("m.xml"), XML).unwrap();
    assert!(Source::beside(dir.path(), "mesh").unwrap_err().0.contains("no mesh.toml"));
    assert!(Source::beside(dir.path(), "m").unwrap_err().0.contains("describes mesh, not m"));
    assert!(Source::beside(dir.path(), "../m").unwrap_err().0.contains("is no name"));
}

proptest! {
    #[test]
    fn any_text_gives_a_bounded_descriptor_or_one_line(text in "\\PC{0,400}", xml in any::<bool>()) {
        let format = if xml { Format::Xml } else { Format::Toml };
        if let Err(Fault(why)) = parse(format, text.as_bytes()) {
            prop_assert!(!why.contains('\n') && why.len() <= 1024);
        }
    }

    #[test]
    fn values_come_back_as_they_were(value in "[^\u{0}]{0,200}", argument in "\\PC{0,40}") {
        let mut table = toml::Table::new();
        for (key, value) in [("name", "m"), ("driver", "exec"), ("units", "x")] {
            table.insert(key.to_owned(), value.into());
        }
        let attributes = toml::Table::from_iter([
            ("A".to_owned(), toml::Value::from(value.clone())),
            ("arguments".to_owned(), toml::Value::from(vec![argument.clone()])),
        ]);
        table.insert("attributes".to_owned(), attributes.into());
        let descriptor = parse(Format::Toml, table.to_string().as_bytes()).unwrap();
        prop_assert_eq!(descriptor.variables().next(), Some(("A", &value[..])));
        prop_assert_eq!(&descriptor.attributes["arguments"], &[argument]);
    }
}
