//! Descriptors in the XML of PadicoTM:
//!
//! ```xml
//! <defmod name="mesh" driver="exec">
//!   <attr label="MESH_SIZE">64</attr>
//!   <requires>base</requires>
//!   <unit>./mesh</unit>
//! </defmod>
//! ```
//!
//! A document type is refused, and with it entities of one's own.

use super::{Fault, Raw};
use roxmltree::{Document, Node, ParsingOptions};

/// The most nodes of a document.
const MAX_NODES: u32 = 4096;

/// Parses the text.
pub fn parse(text: &str) -> Result<Raw, Fault> {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| Fault(error.to_string()))?;
    let root = document.root_element();
    if root.tag_name().name() != "defmod" {
        return Err(unknown(&root, "defmod"));
    }
    let mut raw = Raw::default();
    for attribute in root.attributes() {
        match attribute.name() {
            "name" => raw.name = Some(attribute.value().to_owned()),
            "driver" => raw.driver = Some(attribute.value().to_owned()),
            other => return Err(Fault(format!("defmod has no {:?}: use name, driver", start_of(other)))),
        }
    }
    for element in root.children() {
        if !element.is_element() {
            if element.is_text() && !element.text().unwrap_or_default().trim().is_empty() {
                return Err(Fault("defmod contains text of its own".to_owned()));
            }
            continue;
        }
        let text = text_of(&element)?;
        match element.tag_name().name() {
            "attr" => match element.attribute("label") {
                Some(label) => raw.attributes.push((label.to_owned(), text)),
                None => return Err(Fault("an attr has no label".to_owned())),
            },
            // One name, or several with spaces between them.
            "requires" => raw.requires.extend(text.split_whitespace().map(str::to_owned)),
            "unit" => raw.units.push(text),
            _ => return Err(unknown(&element, "attr, requires, unit")),
        }
    }
    Ok(raw)
}

/// The text within an element, which has no elements.
fn text_of(element: &Node<'_, '_>) -> Result<String, Fault> {
    let mut text = String::new();
    for child in element.children() {
        if child.is_element() {
            return Err(unknown(&child, "text"));
        }
        text.push_str(child.text().filter(|_| child.is_text()).unwrap_or_default());
    }
    Ok(text.trim().to_owned())
}

fn unknown(element: &Node<'_, '_>, known: &str) -> Fault {
    Fault(format!("there is no {:?} here: use {known}", start_of(element.tag_name().name())))
}

fn start_of(text: &str) -> String {
    text.chars().take(64).collect()
}
