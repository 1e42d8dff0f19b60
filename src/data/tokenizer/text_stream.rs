//! Tokens as text, while they come.

use super::Tokenizer;
use crate::error::Result;

/// Gives the text of each token as soon as no later one can change it: a character of several
/// tokens when the last of them is there.
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    tokens: Vec<u32>,
    /// Decoding begins here: what a token looks like depends on those before it.
    start: usize,
    /// The text of tokens before this one was given.
    given: usize,
}

/// What a decoder makes of an unfinished character.
const UNFINISHED: char = '\u{FFFD}';

impl<'t> TextStream<'t> {
    /// Of what follows `prompt`.
    pub fn after(tokenizer: &'t Tokenizer, prompt: &[u32]) -> TextStream<'t> {
        TextStream {
            tokenizer,
            tokens: prompt.to_vec(),
            start: 0,
            given: prompt.len(),
        }
    }

    /// Adds a token; gives the text that is certain now.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let text = self.rest()?;
        if text.is_empty() || text.ends_with(UNFINISHED) {
            return Ok(String::new());
        }
        self.start = self.given;
        self.given = self.tokens.len();
        Ok(text)
    }

    /// What was held back, as it stands.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn finish(&mut self) -> Result<String> {
        let text = self.rest()?;
        self.start = self.given;
        self.given = self.tokens.len();
        Ok(text)
    }

    /// The text of the tokens that was not given yet.
    fn rest(&self) -> Result<String> {
        let decode = |tokens: &[u32]| self.tokenizer.decode(tokens, true);
        let before = decode(&self.tokens[self.start..self.given])?;
        let with = decode(&self.tokens[self.start..])?;
        Ok(with.get(before.len()..).unwrap_or_default().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::train_byte_bpe;

    #[test]
    fn text_comes_in_whole_characters_and_adds_up() {
        // Hardly any merges: each character beyond ASCII is of several tokens.
        let tokenizer = train_byte_bpe(&["a b a b a b"], 258).unwrap();
        let text = "naïve 日本語 🙂 ab";
        let ids = tokenizer.encode(text).unwrap();
        let prompt = tokenizer.encode("ab ").unwrap();
        let mut stream = TextStream::after(&tokenizer, &prompt);
        let mut pieces = Vec::new();
        for id in ids {
            pieces.push(stream.push(id).unwrap());
        }
        assert_eq!(stream.finish().unwrap(), "");
        assert_eq!(pieces.concat(), text);
        assert!(pieces.iter().any(String::is_empty), "{pieces:?}");
        assert!(
            pieces.iter().all(|piece| !piece.contains(UNFINISHED)),
            "{pieces:?}"
        );
        // A text that ends within a character shows that.
        let cut = tokenizer.encode("é").unwrap()[0];
        assert_eq!(stream.push(cut).unwrap(), "");
        assert_eq!(stream.finish().unwrap(), UNFINISHED.to_string());
    }
}
