//! Sizes and offsets of the types, as data.

/// Layout of a C type.
#[derive(Clone, Copy, Debug)]
pub struct TypeLayout {
    /// Name of the `struct` in C.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Whether later versions of the interface may add fields at the end.
    pub grows: bool,
    /// Path of each field in C, and its offset in bytes.
    pub fields: &'static [(&'static str, usize)],
}

/// Layouts of all types of this crate.
pub fn all() -> impl Iterator<Item = &'static TypeLayout> {
    let modules = [
        crate::device::LAYOUTS,
        crate::objects::LAYOUTS,
        crate::extended::LAYOUTS,
        crate::requests::LAYOUTS,
    ];
    modules.into_iter().flatten()
}

/// Names of all constants in C, and their values.
pub fn numbers() -> impl Iterator<Item = (&'static str, i64)> {
    use crate::numbers::{NUMBERS, event, mask, opcode};
    let groups = [NUMBERS, mask::NUMBERS, opcode::NUMBERS, event::NUMBERS];
    groups.into_iter().flatten().copied()
}

/// Declares types, checks their sizes and offsets on x86-64 with glibc, and lists their layouts in `LAYOUTS`.
///
/// `name as Type is SIZE { OFFSET field: type, … }` stands for `struct name`. `or more` after the size: later versions may add
/// fields. A field whose path in C differs is followed by that path.
macro_rules! c_structs {
    ($(
        $(#[$about:meta])*
        $c:ident as $name:ident is $size:literal $(or $more:ident)? {
            $($at:literal $field:ident $(= $path:literal)?: $kind:ty,)*
        }
    )*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            pub struct $name {
                $(pub $field: $kind,)*
            }

            #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
            const _: () = {
                assert!(size_of::<$name>() == $size);
                $(assert!(core::mem::offset_of!($name, $field) == $at);)*
            };
        )*

        /// Layouts of the types of this module.
        pub(crate) const LAYOUTS: &[$crate::layout::TypeLayout] = &[
            $($crate::layout::TypeLayout {
                name: stringify!($c),
                size: size_of::<$name>(),
                grows: c_structs!(@grows $($more)?),
                fields: &[
                    $((c_structs!(@path $field $($path)?), core::mem::offset_of!($name, $field)),)*
                ],
            },)*
        ];
    };
    (@grows more) => { true };
    (@grows) => { false };
    (@path $field:ident $path:literal) => { $path };
    (@path $field:ident) => { stringify!($field) };
}

/// Declares constants, and lists them with their names in C in `NUMBERS`.
macro_rules! c_numbers {
    ($($(#[$about:meta])* $c:ident as $name:ident: $kind:ty = $value:expr;)*) => {
        $($(#[$about])* pub const $name: $kind = $value;)*

        /// Names of the constants in C, and their values.
        pub(crate) const NUMBERS: &[(&str, i64)] = &[$((stringify!($c), $name as i64),)*];
    };
}
