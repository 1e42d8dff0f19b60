//! Lines of a CSV file, quoted where they have to be (RFC 4180, with `\n` as Python's pandas writes
//! it).

/// One line with its end.
pub fn line<S: AsRef<str>>(fields: &[S]) -> String {
    let mut line = String::new();
    for (place, field) in fields.iter().map(AsRef::as_ref).enumerate() {
        if place > 0 {
            line.push(',');
        }
        // A lone empty field would be an empty line, which readers skip.
        let quoted =
            field.contains([',', '"', '\n', '\r']) || (field.is_empty() && fields.len() == 1);
        if quoted {
            line.push_str(&format!("\"{}\"", field.replace('"', "\"\"")));
        } else {
            line.push_str(field);
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_quotes_gets_them() {
        assert_eq!(line(&["1", "a b", "", "-0.5"]), "1,a b,,-0.5\n");
        assert_eq!(
            line(&["a,b", "say \"hi\"", "two\nlines", "\r"]),
            "\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\",\"\r\"\n"
        );
        assert_eq!(line(&[""]), "\"\"\n");
    }
}
