//! Definitions of lines: a struct, how it is written and how it is parsed, from one list.

/// A line of fixed words and values in turn: `"words", field: Type, ..`. What follows the last value is left
/// alone by the parser.
macro_rules! sequence {
    (
        $(#[$doc:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_doc:meta])* $words:literal, $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name $(<$life>)? {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// Appends the line.
            #[inline(always)]
            pub fn write(&self, to: &mut impl $crate::console::Sink) {
                $(
                    to.text($words);
                    $crate::console::Field::write(&self.$field, to);
                )*
            }

            /// Reads the line.
            pub fn parse(mut text: &$($life)? str) -> Option<Self> {
                $(
                    text = text.strip_prefix($words)?;
                    let $field = $crate::console::Field::parse(&mut text)?;
                )*
                let _ = text;
                Some(Self { $($field,)* })
            }
        }
    };
}
