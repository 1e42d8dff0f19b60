//! What makes a struct of `bindings` an argument: the size that it states, and the place of its call
//! in the plugin's table.
//!
//! Every struct starts with its own size, which is how both sides find out what the other one
//! knows. bin/pjrt-bindings lists the structs and calls that are used.

/// A struct of the C interface that carries its own size.
pub trait CStruct: Default {
    /// What the header calls `..._STRUCT_SIZE`: up to the end of the last field, without padding.
    /// Some plugins (Neuron's) compare for equality, so `size_of` would not do.
    const SIZE: usize;
}

/// The argument struct of one call; the struct type decides which slot of the table is called.
pub trait Call: CStruct {
    /// The call's name in the header.
    const NAME: &'static str;
    /// The slot's offset in the table, in bytes.
    const OFFSET: usize;
}

/// A call that asks one thing of an object: there is no other input.
pub trait Question<T>: Call {
    fn about(object: *mut T) -> Self;
}

macro_rules! structs {
    ($($name:ident = $size:ident),* $(,)?) => {$(
        impl $crate::pjrt::call::CStruct for $name {
            const SIZE: usize = $size as usize;
        }

        impl Default for $name {
            /// All fields zero or null, the size filled in.
            fn default() -> Self {
                // SAFETY: every field is an integer, a float, a bool, a raw pointer, an optional
                // function pointer, or a struct or union of these; all-zero bytes are a valid value
                // of each.
                let mut value: Self = unsafe { std::mem::zeroed() };
                value.struct_size = $size as usize;
                value
            }
        }
    )*};
}

/// Argument structs together with the calls that take them.
macro_rules! calls {
    ($($call:ident: $args:ident = $size:ident),* $(,)?) => {
        $crate::pjrt::call::structs! { $($args = $size),* }
        $(impl $crate::pjrt::call::Call for $args {
            const NAME: &'static str = stringify!($call);
            const OFFSET: usize = std::mem::offset_of!(PJRT_Api, $call);
        })*
    };
}

/// Argument structs of questions, with the field for the object and its type.
macro_rules! questions {
    ($($args:ident.$field:ident: $object:ident),* $(,)?) => {$(
        impl $crate::pjrt::call::Question<$object> for $args {
            fn about(object: *mut $object) -> Self {
                $args { $field: object, ..Default::default() }
            }
        }
    )*};
}

pub(super) use {calls, questions, structs};
