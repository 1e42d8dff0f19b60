//! What a piece of an example's text is: bits of its label.

/// Its tokens count in the loss.
pub const COUNTED: u32 = 1;
/// The chat template wrote it, with all special tokens.
pub const RENDERED: u32 = 2;
/// No piece of the text but another one: tokens that both begin with do not count.
pub const PROMPT: u32 = 4;
/// No piece either, but the places between generation tags, outside of which nothing counts.
pub const TAGS: u32 = 8;
