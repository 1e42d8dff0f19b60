//! White space as Python's texts have it: what `str.isspace`, `str.strip` and `str.split` go by. Formats
//! that Python code defines are read by this; others by their own separators.

/// Whether `str.isspace` holds: Unicode's white space and the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `str.strip`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Whether nothing but white space is there.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(is_space)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[chr(i) for i in range(0x110000) if chr(i).isspace()]`
    #[test]
    fn spaces_are_those_of_python() {
        let spaces: Vec<u32> = (0..0x110000)
            .filter(|i| char::from_u32(*i).is_some_and(is_space))
            .collect();
        let mut wanted: Vec<u32> = (0x9..=0xd).chain(0x1c..=0x20).collect();
        wanted.extend([0x85, 0xa0, 0x1680]);
        wanted.extend(0x2000..=0x200a);
        wanted.extend([0x2028, 0x2029, 0x202f, 0x205f, 0x3000]);
        assert_eq!(spaces, wanted);
        assert_eq!(strip("\x1f a\u{85}"), "a");
        assert!(is_blank(" \x1c\u{3000}") && !is_blank("\u{200b}"));
    }
}
