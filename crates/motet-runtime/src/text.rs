//! Text of others in lines of this program: control characters and giant values do not get through.

use motet_session::modules::MAX_ERROR_BYTES;

/// One line of at most [`MAX_ERROR_BYTES`] bytes: line ends become spaces, other control characters question marks.
pub fn one_line(text: &str) -> String {
    let mut line = String::new();
    for character in text.trim().chars() {
        let character = match character {
            '\n' | '\t' => ' ',
            '\r' => continue,
            control if control.is_control() => '?',
            other => other,
        };
        if line.len() + character.len_utf8() > MAX_ERROR_BYTES {
            break;
        }
        line.push(character);
    }
    line
}

/// An error, with the errors below it.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        text = format!("{text}: {cause}");
        below = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_one_bounded_line() {
        assert_eq!(one_line(" a\r\n\tb\x1b[2J\n"), "a  b?[2J");
        let long = one_line(&"ä".repeat(MAX_ERROR_BYTES));
        assert!(long.len() <= MAX_ERROR_BYTES && long.len() > MAX_ERROR_BYTES - 2);
    }
}
