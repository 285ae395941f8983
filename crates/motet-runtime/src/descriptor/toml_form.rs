//! Descriptors in TOML.

use super::{Fault, Raw};
use toml::{Table, Value};

/// Parses the text.
pub fn parse(text: &str) -> Result<Raw, Fault> {
    let table: Table = toml::from_str(text).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        Fault(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
    })?;
    let mut raw = Raw::default();
    for (key, value) in table {
        match (key.as_str(), value) {
            ("name", Value::String(name)) => raw.name = Some(name),
            ("driver", Value::String(driver)) => raw.driver = Some(driver),
            ("requires", value) => raw.requires = texts("requires", value)?,
            ("units", value) => raw.units = texts("units", value)?,
            ("attributes", Value::Table(attributes)) => {
                for (label, value) in attributes {
                    let values = texts(&label, value)?;
                    raw.attributes.extend(values.into_iter().map(|value| (label.clone(), value)));
                }
            }
            ("name" | "driver", _) => return Err(Fault(format!("{key} is no text"))),
            ("attributes", _) => return Err(Fault("attributes is no table".to_owned())),
            _ => {
                let key: String = key.chars().take(64).collect();
                return Err(Fault(format!("there is no {key:?}: use name, driver, requires, units, attributes")));
            }
        }
    }
    Ok(raw)
}

/// A text, a number, a truth value, or a list of those.
fn texts(key: &str, value: Value) -> Result<Vec<String>, Fault> {
    let one = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        _ => Err(Fault(format!("{:?} is no text and no list of texts", key.chars().take(64).collect::<String>()))),
    };
    match value {
        Value::Array(values) => values.into_iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}
