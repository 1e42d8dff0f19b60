//! What a row is labelled with, as a set keeps it.

/// A class or, of a regression, a number; which of them it is the set's user knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(u32);

/// Stands for no label: neither a class, of which there are fewer, nor the bits of a finite
/// number.
const NONE: u32 = u32::MAX;

impl Label {
    pub fn class(id: u32) -> Label {
        assert!(
            i32::try_from(id).is_ok(),
            "a class is below the number of labels"
        );
        Label(id)
    }

    /// `None` of what is not finite.
    pub fn number(value: f32) -> Option<Label> {
        value.is_finite().then(|| Label(value.to_bits()))
    }

    pub fn as_class(self) -> i32 {
        self.0 as i32
    }

    pub fn as_number(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// As it stands in files.
    pub fn to_bits(label: Option<Label>) -> u32 {
        label.map_or(NONE, |label| label.0)
    }

    /// What [`Label::to_bits`] gave.
    pub fn from_bits(bits: u32) -> Option<Label> {
        (bits != NONE).then_some(Label(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_back_from_their_bits() {
        for label in [
            Label::class(0),
            Label::class(i32::MAX as u32),
            Label::number(-0.5).unwrap(),
            Label::number(f32::MIN).unwrap(),
        ] {
            assert_eq!(Label::from_bits(Label::to_bits(Some(label))), Some(label));
        }
        assert_eq!(Label::from_bits(Label::to_bits(None)), None);
        assert_eq!(
            (
                Label::class(7).as_class(),
                Label::number(-2.5).unwrap().as_number()
            ),
            (7, -2.5)
        );
        assert_eq!(
            (Label::number(f32::NAN), Label::number(f32::INFINITY)),
            (None, None)
        );
    }
}
